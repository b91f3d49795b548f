"""Paragraph pairs into sentence pairs, where both sides have the same number of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from corpus.pair import Pair

_BOUNDARY = re.compile(r"(?<=[.!?])(?<!\b[A-Za-z]\.)(?<!\w\.\w\.)\s+(?=[„“\"(]?[A-ZÄÖÜ])")
_ABBREVIATIONS = frozenset(
    (
        "bzw.",
        "ca.",
        "etc.",
        "evtl.",
        "ggf.",
        "inkl.",
        "max.",
        "min.",
        "Nr.",
        "No.",
        "usw.",
        "vs.",
        "vgl.",
        "sog.",
        "Dr.",
        "Mr.",
        "St.",
    )
)


def split_sentences(text: str) -> list[str]:
    """Sentences of one paragraph. A full stop after an abbreviation or a single letter ends nothing."""
    sentences: list[str] = []
    for part in _BOUNDARY.split(text):
        if sentences and sentences[-1].rsplit(maxsplit=1)[-1] in _ABBREVIATIONS:
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    return sentences


def split_pairs(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Sentence pairs where the counts agree; the paragraph as it is where they don't."""
    for pair in pairs:
        sources, targets = split_sentences(pair.source), split_sentences(pair.target)
        if len(sources) == len(targets):
            for source, target in zip(sources, targets, strict=True):
                yield replace(pair, source=source, target=target)
        else:
            yield pair
