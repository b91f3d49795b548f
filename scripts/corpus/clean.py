"""The rules a pair must pass. A pair with a fault is dropped, never repaired."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from corpus.pair import Pair, key, tokens, words
from corpus.report import Report

MIN_TOKENS, MAX_TOKENS = 3, 80
MIN_RATIO, MAX_RATIO = 0.5, 2.0
MAX_SHARED_WORDS = 0.7
MIN_LETTERS = 0.6

_MARKUP = re.compile(r"</?\w|&#?\w+;|^\s*[*•]\s|\w>")
_PLACEHOLDER = re.compile(r"(?<!\d)%[\w(%]|\$[\w({\[]|[{}\\|^~`#@=_]|\w\(\)|\[\w*\]")
_ADDRESS = re.compile(r"https?:|ftp:|www\.|\w/\w+/|\.(?:org|com|net|de|html?)\b", re.IGNORECASE)
_BROKEN = re.compile(r"\w- (?!(?:und|oder|bzw|sowie|als|wie|bis|and|or|to)\b)\w")
_NUMBER = re.compile(r"\d+")


def _any_side(pattern: re.Pattern[str]) -> Callable[[Pair], bool]:
    return lambda pair: bool(pattern.search(pair.source) or pattern.search(pair.target))


def _too_short(pair: Pair) -> bool:
    return min(len(words(pair.source)), len(words(pair.target))) < MIN_TOKENS


def _too_long(pair: Pair) -> bool:
    return max(len(tokens(pair.source)), len(tokens(pair.target))) > MAX_TOKENS


def _uneven(pair: Pair) -> bool:
    return not MIN_RATIO <= len(tokens(pair.source)) / len(tokens(pair.target)) <= MAX_RATIO


def _few_letters(pair: Pair) -> bool:
    return any(sum(c.isalpha() for c in text) < MIN_LETTERS * len(text) for text in (pair.source, pair.target))


def _numbers_differ(pair: Pair) -> bool:
    return sorted(_NUMBER.findall(pair.source)) != sorted(_NUMBER.findall(pair.target))


def _same(pair: Pair) -> bool:
    return key(pair.source) == key(pair.target)


def _untranslated(pair: Pair) -> bool:
    source = set(words(pair.source.casefold()))
    target = words(pair.target.casefold())
    return sum(word in source for word in target) > MAX_SHARED_WORDS * len(target)


RULES: dict[str, Callable[[Pair], bool]] = {
    f"fewer than {MIN_TOKENS} words": _too_short,
    f"more than {MAX_TOKENS} tokens": _too_long,
    "source equals target": _same,
    f"token ratio outside {MIN_RATIO}-{MAX_RATIO}": _uneven,
    "markup": _any_side(_MARKUP),
    "placeholder or code": _any_side(_PLACEHOLDER),
    "address or path": _any_side(_ADDRESS),
    "word broken at a line's end": _any_side(_BROKEN),
    "few letters": _few_letters,
    "numbers differ": _numbers_differ,
    "most words untranslated": _untranslated,
}


def fault(pair: Pair) -> str | None:
    """The first rule that the pair breaks, or None."""
    return next((name for name, broken in RULES.items() if broken(pair)), None)


def clean(pairs: Iterable[Pair], report: Report) -> Iterator[Pair]:
    """The pairs without a fault."""
    for pair in pairs:
        name = fault(pair)
        if name is None:
            yield pair
        else:
            report.drop(pair.family, name)


def deduplicate(pairs: Iterable[Pair], report: Report) -> Iterator[Pair]:
    """The first of the pairs that agree in both sentences but for case, spacing and punctuation."""
    seen: set[tuple[str, str]] = set()
    for pair in pairs:
        both = key(pair.source), key(pair.target)
        if both in seen:
            report.drop(pair.family, "duplicate")
        else:
            seen.add(both)
            yield pair
