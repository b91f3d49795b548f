"""Telling whether two dictionaries number the same symbols in the same way."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any


def symbols(dictionary: Any) -> list[str]:
    """All symbols of a fairseq dictionary, special ones included, in the order of their ids."""
    return list(dictionary.symbols)


def first_difference(first: Sequence[str], second: Sequence[str]) -> str | None:
    """Where two lists of symbols first differ, in words; None if they are equal."""
    for index, (one, other) in enumerate(zip_longest(first, second)):
        if one == other:
            continue
        if one is None or other is None:
            longer, symbol = ("second", other) if one is None else ("first", one)
            return f"symbol {index} ({symbol!r}) is in the {longer} only ({len(first)} and {len(second)} symbols)"
        return f"symbol {index} is {one!r} in the first and {other!r} in the second"
    return None
