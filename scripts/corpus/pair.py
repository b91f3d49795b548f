"""The unit that all steps pass on, and the two ways in which its text is looked at: as tokens and as a key."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")


@dataclass(frozen=True)
class Pair:
    """One aligned segment. ``family`` names the source, ``document`` the unit that a split must keep together."""

    source: str
    target: str
    family: str
    document: str


def normalise(text: str) -> str:
    """One line, single spaces, Unicode NFC, no soft hyphens or zero-width characters; nothing else is changed."""
    visible = "".join(c for c in unicodedata.normalize("NFC", text) if c.isspace() or unicodedata.category(c) != "Cf")
    return " ".join(visible.split())


def tokens(text: str) -> list[str]:
    """Words and single punctuation marks."""
    return _TOKEN.findall(text)


def words(text: str) -> list[str]:
    """The tokens that have a letter or a digit in them."""
    return [token for token in tokens(text) if any(c.isalnum() for c in token)]


def key(text: str) -> str:
    """What is left when case, spacing and punctuation are forgotten: two texts with one key are the same sentence."""
    return " ".join(words(text.casefold()))


def sentence_keys(text: str, min_words: int = 3) -> set[str]:
    """Keys of the whole segment and of each sentence in it that has at least ``min_words`` words."""
    parts = (part for part in _SENTENCE_END.split(text) if len(words(part)) >= min_words)
    return {key(text)} | {key(part) for part in parts}
