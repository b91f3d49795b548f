"""The README that goes with a corpus: where the text is from, under which licences, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from corpus.report import Report

PACKAGES: Mapping[str, Sequence[str]] = {
    "lohelp": ("libreoffice-help-en-us", "libreoffice-help-de"),
    "ddtp": (),  # descriptions, out of apt's indices
    "ding": ("trans-de-en",),
}
"""The families of text, and the Debian packages that each is in."""

_ROWS = {
    "lohelp": ("LibreOffice's offline help", "MPL-2.0, LibreOffice contributors and others"),
    "ddtp": ("package descriptions and their translations", "each under the licence of the package it describes"),
    "ding": ("example sentences of the Ding dictionary", "GPL-2+, Frank Richter"),
}

_TEMPLATE = """# English-German corpus from Debian packages

Raw UTF-8 text, one segment a line: `text/{{train,valid,test}}.{{en,de}}`, and `.family` with the source of each line.
`bin/` is what fairseq reads, `codes` and `bpe/` the joint BPE behind it. Made by
`scripts/prepare_corpus.sh en de`{only}.

## Sources and licences

| family | what | packages | licence |
| --- | --- | --- | --- |
{rows}

`licences/` holds the packages' copyright files. Where these are copyleft licences of several kinds: train and measure
on the corpus; before you pass it on, see that you keep to all of them.

## What became of the pairs

Each pair found counts once more below: under the first rule that it broke, or in the split that it went to.

{table}
"""


def read_versions(path: Path) -> dict[str, str]:
    """Package or index -> its version or origin, from lines ``name<TAB>version``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines)


def sources_markdown(versions: dict[str, str], report: Report, families: Sequence[str]) -> str:
    """The README's text. ``versions`` has the families' packages and, as ``indices``, the descriptions' origin."""
    rows = []
    for family in families:
        what, licence = _ROWS[family]
        packages = [f"`{package}` {versions[package]}" for package in PACKAGES[family]]
        rows.append(f"| {family} | {what} | {', '.join(packages) or versions['indices']} | {licence} |")
    only = "" if set(families) == set(PACKAGES) else f' with `FAMILIES="{" ".join(families)}"`'
    return _TEMPLATE.format(rows="\n".join(rows), only=only, table=report.markdown())
