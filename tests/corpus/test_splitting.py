"""Train, valid and test: sizes, shares of the families, and nothing in common."""

import random
from itertools import combinations
from pathlib import Path

import pytest

from corpus.files import folder_in_one_go, write_families, write_sets
from corpus.pair import Pair, sentence_keys
from corpus.report import Report
from corpus.split import NotEnoughText, quotas, split


def made_up_pairs(count: int = 3000, seed: int = 0) -> list[Pair]:
    """Documents of 1 to 10 pairs from a vocabulary so small that many sentences repeat on one side or on both."""
    draw = random.Random(seed)
    pairs: list[Pair] = []
    while len(pairs) < count:
        family = draw.choice(["ddtp", "lohelp", "lohelp"])
        for _ in range(draw.randint(1, 10)):
            number, other = draw.randint(1, 2000), draw.randint(1, 2000)
            source = f"The number is {number}." + (f" The next is {other}." if draw.random() < 0.2 else "")
            target = f"Die Zahl lautet {number + draw.randint(0, 1)}."
            pairs.append(Pair(source, target, family, f"document {len(pairs) // 10}"))
    return pairs


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return made_up_pairs()


def test_nothing_in_common(pairs: list[Pair]) -> None:
    sets = split(pairs, 100, 1, Report())
    assert len(sets["test"]) == len(sets["valid"]) == 100
    assert len(sets["train"]) > 1000
    for one, other in combinations(sets.values(), 2):
        assert not {(p.family, p.document) for p in one} & {(p.family, p.document) for p in other}
        for side in ("source", "target"):
            sentences = [set().union(*(sentence_keys(getattr(p, side)) for p in pairs)) for pairs in (one, other)]
            assert not sentences[0] & sentences[1]


def test_the_made_up_pairs_would_overlap_if_only_documents_were_kept_apart(pairs: list[Pair]) -> None:
    report = Report()
    split(pairs, 100, 1, report)
    assert sum(count for (rule, _), count in report.dropped.items() if rule == "sentence of a held-out set") > 50


def test_every_pair_is_accounted_for(pairs: list[Pair]) -> None:
    report = Report()
    sets = split(pairs, 100, 1, report)
    assert sum(report.dropped.values()) + sum(map(len, sets.values())) == len(pairs)
    assert sum(report.lines.values()) == sum(map(len, sets.values()))


def test_families_have_their_share(pairs: list[Pair]) -> None:
    share = sum(pair.family == "ddtp" for pair in pairs) / len(pairs)
    for name in ("valid", "test"):
        held_out = split(pairs, 100, 1, Report())[name]
        assert sum(pair.family == "ddtp" for pair in held_out) == pytest.approx(100 * share, abs=1)


def test_the_seed_alone_decides(pairs: list[Pair]) -> None:
    def tests(seed: int) -> list[Pair]:
        return split(pairs, 100, seed, Report())["test"]

    assert tests(1) == tests(1)
    assert tests(1) != tests(2)


def test_quotas() -> None:
    assert quotas({"a": 1, "b": 1, "c": 1}, 100) == {"a": 34, "b": 33, "c": 33}
    assert quotas({"a": 940, "b": 60}, 10) == {"a": 9, "b": 1}
    assert sum(quotas({"a": 7, "b": 11, "c": 13}, 1000).values()) == 1000


def test_too_little_text(pairs: list[Pair]) -> None:
    with pytest.raises(NotEnoughText, match="200 pairs are too few for two held-out sets of 100"):
        split(pairs[:200], 100, 1, Report())
    with pytest.raises(NotEnoughText, match="ddtp has too few documents"):
        split([Pair(f"number {i} is here", f"Nummer {i} ist da", "ddtp", "one") for i in range(900)], 100, 1, Report())


def test_files_are_line_by_line_and_in_one_go(tmp_path: Path, pairs: list[Pair]) -> None:
    sets = {"train": pairs[:3], "test": pairs[3:5]}
    with folder_in_one_go(tmp_path / "text") as folder:
        write_sets(folder, sets, ("en", "de"))
        write_families(folder, sets)
        assert not (tmp_path / "text").exists()
    assert (tmp_path / "text/train.en").read_text().splitlines() == [pair.source for pair in pairs[:3]]
    assert (tmp_path / "text/test.de").read_text().splitlines() == [pair.target for pair in pairs[3:5]]
    assert (tmp_path / "text/train.family").read_text().splitlines() == [pair.family for pair in pairs[:3]]
    with pytest.raises(KeyboardInterrupt), folder_in_one_go(tmp_path / "other"):
        raise KeyboardInterrupt
    assert not (tmp_path / "other").exists()
