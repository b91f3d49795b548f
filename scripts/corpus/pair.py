"""The unit that all steps pass on, and the two ways in which its text is looked at: as tokens and as a key."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

import regex

_TOKEN = regex.compile(r"\w+|[^\w\s]")
"""By ``regex``, for which, other than for ``re``, the vowel signs of Indic scripts are part of a word."""
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
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if text.isprintable():  # so there is nothing invisible
        return text
    return " ".join("".join(c for c in text if c.isspace() or unicodedata.category(c) != "Cf").split())


def tokens(text: str) -> list[str]:
    """Words and single punctuation marks."""
    return _TOKEN.findall(text)


def words(text: str) -> list[str]:
    """The tokens that have a letter or a digit in them."""
    return [token for token in tokens(text) if token.isalnum() or any(map(str.isalnum, token))]


def key(text: str) -> str:
    """What is left when case, spacing and punctuation are forgotten: two texts with one key are the same sentence."""
    return " ".join(words(text.casefold()))


def sentence_keys(text: str, min_words: int = 3) -> set[str]:
    """Keys of the whole segment and of each sentence in it that has at least ``min_words`` words."""
    parts = _SENTENCE_END.split(text)
    if len(parts) == 1:
        return {key(text)}
    return {key(text)} | {key(part) for part in parts if len(words(part)) >= min_words}
