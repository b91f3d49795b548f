"""The Ding dictionary: example sentences among its entries.

A line is ``German :: English``; both sides have the same number of parts, divided by ``|``: the headword, its forms,
phrases and example sentences. Nothing marks a sentence as one, but that it starts like one and ends like one. Of
several whole sentences (divided by ``;``) the first is taken; synonyms within a sentence (``;`` or ``/``) and remarks
in brackets are no running text, and such a part is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from corpus.pair import Pair, normalise
from corpus.report import Report

FAMILY = "ding"
_QUOTES = "\"'„“”»«\u201a\u2018\u2019"
_SENTENCE = re.compile(rf"[{_QUOTES}(…]*[A-ZÄÖÜ0-9].*[.!?][{_QUOTES})]*")
_ABBREVIATION_AT_END = re.compile(r"\b(?:sb|sth|etw|jdn|jdm|jds|jd|etc|usw)\.$")
_ALTERNATIVES = re.compile(r"[;/]")
_REMARK = re.compile(r"[{}\[\]()<>]")


def _is_sentence(text: str) -> bool:
    return bool(_SENTENCE.fullmatch(text)) and not _ABBREVIATION_AT_END.search(text)


def _first_sentence(text: str) -> str:
    """The first of several alternative sentences; the text as it is where the alternatives are smaller than that."""
    alternatives = text.split("; ")
    return alternatives[0] if all(map(_is_sentence, alternatives)) else text


def extract(dictionary: Path, report: Report) -> Iterator[Pair]:
    """Pairs of example sentences, English first; the document is the entry, named by its German side's first part."""
    with dictionary.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("#") or line.count(" :: ") != 1:
                continue
            german, english = ([normalise(part) for part in side.split(" | ")] for side in line.split(" :: "))
            if len(german) != len(english):
                report.skip(FAMILY, "parts do not match")
                continue
            for source, target in zip(map(_first_sentence, english), map(_first_sentence, german), strict=True):
                if not (_is_sentence(source) and _is_sentence(target)):
                    continue
                if _ALTERNATIVES.search(source + target):
                    report.skip(FAMILY, "alternatives")
                elif _REMARK.search(source + target):
                    report.skip(FAMILY, "remark in brackets")
                else:
                    yield Pair(source, target, FAMILY, german[0])
