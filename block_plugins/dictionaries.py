"""Telling whether two dictionaries number the same symbols in the same way."""

import hashlib
from collections.abc import Mapping, Sequence
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


def first_differing_side(saved: Mapping[str, Sequence[str]], source: Any, target: Any) -> tuple[str, str] | None:
    """The side, "source" or "target", in which fairseq dictionaries differ from the symbols that a checkpoint recorded,
    with the difference; None where none does. A side without a record can't differ.
    """
    for side, dictionary in (("source", source), ("target", target)):
        difference = first_difference(saved[side], symbols(dictionary)) if side in saved else None
        if difference is not None:
            return side, difference
    return None


def digest(dictionary: Any) -> int:
    """A number of 63 bits that tells dictionaries with other symbols, or in another order, apart."""
    text = "\n".join(symbols(dictionary)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
