"""The chosen lookahead pays: with costs and acceptance that are known, the best length is found."""

import random

import pytest

from block_plugins.decoding.lookahead import AutoLookahead


def run(lookahead: AutoLookahead, rows: int, kept: float, cost_per_token: float, draft_cost: float) -> list[int]:
    """Iterations on a machine where a pass costs 1, each verified token ``cost_per_token``, a draft ``draft_cost``."""
    chosen = []
    dice = random.Random(1)
    for _ in range(600):
        length = lookahead.choose(rows)
        chosen.append(length)
        committed = []
        for _ in range(rows):
            count = 1
            while count <= length and dice.random() < kept:
                count += 1
            committed.append(count)
        lookahead.record(rows, length, committed, 1 + cost_per_token * length + (draft_cost if length else 0.0))
    return chosen


def best(lengths: list[int], kept: float, cost_per_token: float, draft_cost: float) -> int:
    def speed(length: int) -> float:
        tokens = sum(kept**i for i in range(length + 1))
        return tokens / (1 + cost_per_token * length + (draft_cost if length else 0.0))

    return max(lengths, key=speed)


@pytest.mark.parametrize(
    ("kept", "cost_per_token", "draft_cost"),
    [(0.9, 0.0, 0.5), (0.8, 0.1, 0.5), (0.5, 0.05, 0.3), (0.3, 0.5, 1.0), (0.05, 0.0, 1.0)],
)
def test_the_length_that_pays_most_is_found(kept: float, cost_per_token: float, draft_cost: float) -> None:
    lookahead = AutoLookahead(15)
    assert lookahead.lengths == [0, 1, 3, 7, 15]
    chosen = run(lookahead, 4, kept, cost_per_token, draft_cost)[100:]
    expected = best(lookahead.lengths, kept, cost_per_token, draft_cost)
    assert chosen.count(expected) > 0.85 * len(chosen)


def test_sizes_of_the_batch_are_told_apart() -> None:
    lookahead = AutoLookahead(7)
    few = run(lookahead, 1, 0.8, 0.0, 0.3)[200:]
    many = run(lookahead, 32, 0.8, 2.0, 5.0)[100:]
    again = run(lookahead, 1, 0.8, 0.0, 0.3)[50:]
    assert max(set(few), key=few.count) == max(set(again), key=again.count) == 7
    assert max(set(many), key=many.count) == 0


def test_lengths_end_with_the_whole_block() -> None:
    assert AutoLookahead(1).lengths == [0, 1]
    assert AutoLookahead(5).lengths == [0, 1, 3, 5]
