"""Package descriptions: the archive's Translation-en and Translation-de indices, joined on Description-md5.

A stanza has the format of Debian's control files (deb822), a long description that of Debian Policy 5.6.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from corpus.pair import Pair, normalise
from corpus.report import Report

FAMILY = "ddtp"
_ITEM = re.compile(r"\s*[-*+o•]\s+")

Block = tuple[str, str]  # (kind, text), the kind being title, text, item or verbatim


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Field name in lower case -> the lines of its value, the first without, the others with, their leading space."""
    fields: dict[str, list[str]] = {}
    value: list[str] = []
    for line in lines:
        line = line.rstrip("\n")
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif line[0] in " \t":
            value.append(line)
        else:
            name, _, first = line.partition(":")
            value = fields[name.lower()] = [first.strip()]
    if fields:
        yield fields


def blocks(description: list[str]) -> list[Block]:
    """Title, paragraphs, list items (without their mark) and verbatim text of a description."""
    result: list[Block] = [("title", description[0])]
    fresh = True
    for line in description[1:]:
        body = line[1:]
        if body.strip() in (".", ""):
            fresh = True
            continue
        item = _ITEM.match(body)
        if item:
            result.append(("item", body[item.end() :]))
        elif body[0] in " \t" and (fresh or result[-1][0] != "item"):
            result.append(("verbatim", body))
        elif fresh or result[-1][0] == "verbatim" or (body[0] not in " \t" and result[-1][0] == "item"):
            result.append(("text", body))
        else:
            result[-1] = (result[-1][0], f"{result[-1][1]} {body.strip()}")
        fresh = False
    return [(kind, normalise(text)) for kind, text in result]


def read_index(path: Path, language: str) -> dict[str, tuple[str, list[Block]]]:
    """Description-md5 -> (package, blocks), from a Translation index; the first stanza of a checksum counts."""
    descriptions: dict[str, tuple[str, list[Block]]] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for fields in stanzas(lines):
            if "description-md5" in fields and (text := fields.get(f"description-{language}")):
                descriptions.setdefault(fields["description-md5"][0], (fields["package"][0], blocks(text)))
    return descriptions


def read_sources(path: Path) -> dict[str, str]:
    """Package -> its source package, from a Packages index."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return {
            fields["package"][0]: fields.get("source", fields["package"])[0].split()[0] for fields in stanzas(lines)
        }


def extract(english: Path, german: Path, source_packages: Mapping[str, str], report: Report) -> Iterator[Pair]:
    """Pairs of title, paragraph and list item; the document is the source package, whose packages share text."""
    theirs = read_index(german, "de")
    ours = sorted((package, checksum, text) for checksum, (package, text) in read_index(english, "en").items())
    for package, checksum, sources in ours:
        if checksum not in theirs:
            continue
        targets = theirs[checksum][1]
        if [kind for kind, _ in sources] != [kind for kind, _ in targets]:
            report.skip(FAMILY, "structure differs", max(len(sources), len(targets)))
            continue
        for (kind, source), (_, target) in zip(sources, targets, strict=True):
            if kind == "verbatim":
                report.skip(FAMILY, "verbatim text")
            else:
                yield Pair(source, target, FAMILY, source_packages.get(package, package))
