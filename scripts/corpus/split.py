"""Train, valid and test without a document or a sentence in common."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from corpus.pair import Pair, sentence_keys
from corpus.report import Report


class NotEnoughText(ValueError):
    """There are fewer pairs than the held-out sets need."""


def shuffled(names: Iterable[str], seed: int) -> list[str]:
    """An order that depends on the names and the seed alone, not on what else is there."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\t{name}".encode()).digest())


def quotas(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """``total`` shared out in proportion to ``sizes``, rounded by largest remainder."""
    everything = sum(sizes.values())
    exact = {family: total * size / everything for family, size in sorted(sizes.items())}
    shares = {family: int(share) for family, share in exact.items()}
    by_remainder = sorted(exact, key=lambda family: (shares[family] - exact[family], family))
    for family in by_remainder[: total - sum(shares.values())]:
        shares[family] += 1
    return shares


class _Seen:
    """The sentences of the sets that are filled already, on both sides."""

    def __init__(self) -> None:
        self._source: set[str] = set()
        self._target: set[str] = set()

    def add(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self._source |= sentence_keys(pair.source)
            self._target |= sentence_keys(pair.target)

    def __contains__(self, pair: Pair) -> bool:
        return not (
            self._source.isdisjoint(sentence_keys(pair.source)) and self._target.isdisjoint(sentence_keys(pair.target))
        )


def split(pairs: Sequence[Pair], held_out: int, seed: int, report: Report) -> dict[str, list[Pair]]:
    """Test and valid of ``held_out`` pairs each, drawn by document in proportion to the families; the rest is train.

    A pair outside the test set that repeats one of its sentences, on either side, is dropped; likewise for valid. What
    is left of a held-out document when its set is full is dropped, too.

    Raises:
        NotEnoughText: the held-out sets would take more than half of the pairs, or all documents of a family.
    """
    documents: dict[str, dict[str, list[Pair]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        documents[pair.family][pair.document].append(pair)
    sizes = {family: sum(map(len, of_family.values())) for family, of_family in documents.items()}
    order = {family: shuffled(of_family, seed) for family, of_family in documents.items()}
    if 4 * held_out > len(pairs):
        raise NotEnoughText(f"{len(pairs)} pairs are too few for two held-out sets of {held_out}")

    seen = _Seen()
    sets: dict[str, list[Pair]] = {}
    for name in ("test", "valid"):
        sets[name] = []
        for family, quota in quotas(sizes, held_out).items():
            chosen: list[Pair] = []
            while len(chosen) < quota:
                if not order[family]:
                    raise NotEnoughText(f"the family {family} has too few documents for the {name} set")
                for pair in documents[family].pop(order[family].pop(0)):
                    if len(chosen) == quota:
                        report.drop(family, "left over of a held-out document")
                    elif pair in seen:
                        report.drop(family, "sentence of a held-out set")
                    else:
                        chosen.append(pair)
            sets[name] += chosen
        seen.add(sets[name])

    sets["train"] = []
    for family in sorted(documents):
        for document in sorted(documents[family]):
            for pair in documents[family][document]:
                if pair in seen:
                    report.drop(family, "sentence of a held-out set")
                else:
                    sets["train"].append(pair)
    for name in ("train", "valid", "test"):
        for pair in sets[name]:
            report.keep(pair.family, name)
    return {name: sets[name] for name in ("train", "valid", "test")}
