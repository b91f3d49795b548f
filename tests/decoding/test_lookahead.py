"""The chosen lookahead pays: with costs and acceptance that are known, the best length is found."""

import random

import numpy as np
import pytest
import tiny
import torch

from block_plugins.decoding import generator
from block_plugins.decoding.ar_drafter import ARDrafter
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.lookahead import AdaptiveLookahead, AutoLookahead, HeuristicLookahead
from block_plugins.decoding.settings import SamplingSettings, SpeculationSettings


def run(lookahead: AutoLookahead, rows: int, kept: float, cost_per_token: float, draft_cost: float) -> list[int]:
    """Iterations on a machine where a pass costs 1, each verified token ``cost_per_token``, a draft ``draft_cost``."""
    chosen = []
    dice = random.Random(1)
    lookahead.start(rows)
    for _ in range(600):
        lengths = lookahead.choose()
        length = int(lengths[0])
        assert lengths.tolist() == [length] * rows
        chosen.append(length)
        committed = []
        for _ in range(rows):
            count = 1
            while count <= length and dice.random() < kept:
                count += 1
            committed.append(count)
        count = np.array(committed)
        lookahead.record(lengths, count - 1, count, 1 + cost_per_token * length + (draft_cost if length else 0.0))
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


def test_the_heuristic_schedule_of_each_sentence() -> None:
    lookahead = HeuristicLookahead(8)
    lookahead.start(3)
    nothing = np.zeros(3)
    assert lookahead.choose().tolist() == [5, 5, 5]
    lookahead.record(np.array([5, 5, 2]), np.array([5, 4, 2]), nothing, 1.0)
    assert lookahead.choose().tolist() == [7, 4, 7]  # whole drafts: +2, also where the draft was short; others: -1
    lookahead.record(np.array([7, 4, 7]), np.array([7, 0, 0]), nothing, 1.0)
    assert lookahead.choose().tolist() == [8, 3, 6]  # no more than the block
    lookahead.select(np.array([1]))
    for _ in range(4):
        lookahead.record(np.array([3]), np.array([0]), nothing, 1.0)
    assert lookahead.choose().tolist() == [1]  # no less than one
    lookahead.start(2)
    assert lookahead.choose().tolist() == [5, 5]


def test_the_adaptive_schedule_over_windows() -> None:
    lookahead = AdaptiveLookahead(6)
    lookahead.start(8)

    def window(accepted: int) -> int:
        for _ in range(4):  # of 8 rows: 32 drafts
            lookahead.record(np.full(8, 10), np.full(8, accepted), np.zeros(8), 1.0)
        return int(lookahead.choose()[0])

    assert lookahead.choose().tolist() == [5] * 8
    assert [window(8), window(8), window(6), window(5), window(5)] == [6, 6, 6, 5, 4]
    lookahead.start(8)  # goes on
    assert lookahead.choose().tolist() == [4] * 8


def test_a_draft_ends_behind_the_first_token_in_doubt() -> None:
    symbols = tiny.dictionary(12)
    pad, eos, unk = symbols.pad(), symbols.eos(), symbols.unk()
    block, small = tiny.drafter(symbols, 2), tiny.verifier(symbols, 3)
    sample = tiny.sample(symbols, [5, 1, 8], 1)["net_input"]
    prefix, length = np.full((3, 2), 5), np.array([2, 0, 1])
    for kind, threshold in ((0, 0.3), (0, 0.9), (1, 0.3), (1, 0.9)):
        with torch.no_grad():
            whole, cut = (
                (ARDrafter(small, pad, eos, threshold=t) if kind else BlockDrafter(block, pad, unk, eos, threshold=t))
                .start(**sample, capacity=12)
                .propose(prefix, length, 3, 6)
                for t in (0.0, threshold)
            )
        probs = whole.logits.softmax(-1).gather(2, whole.tokens.unsqueeze(2)).squeeze(2)
        for row, of_row in enumerate(probs.tolist()):
            doubts = [at for at, p in enumerate(of_row) if p < threshold]
            assert cut.length[row] == (doubts[0] + 1 if doubts else 6)
            kept = int(cut.length[row])
            assert cut.tokens[row, :kept].tolist() == whole.tokens[row, :kept].tolist()
        assert cut.tokens.size(1) == (cut.length.max() if kind else 6)


def test_a_schedule_saves_work_and_changes_nothing() -> None:
    symbols = tiny.dictionary(12)
    pad, eos = symbols.pad(), symbols.eos()
    verifier, small = tiny.verifier(symbols, 1), tiny.verifier(symbols, 2)
    sample, search = tiny.sample(symbols, [3, 8, 5, 2], 5), tiny.settings(symbols, max_len_b=30)
    drafted, texts = {}, []
    for name in ("constant", "heuristic", "adaptive", "confidence"):
        drafter = ARDrafter(small, pad, eos, threshold=0.4 if name == "confidence" else 0.0)
        decode = generator.gad(drafter, verifier, search, SpeculationSettings(12, lookahead=name))
        whole = generator.Generator(decode, pad, eos)
        texts.append([row[0]["tokens"].tolist() for row in whole.generate([], sample)])
        drafted[name] = whole.statistics.drafted
    assert all(text == texts[0] for text in texts)
    assert max(drafted["heuristic"], drafted["adaptive"], drafted["confidence"]) < drafted["constant"]
    sampled = SpeculationSettings(12, lookahead="confidence", sampling=SamplingSettings())
    decode = generator.gad(ARDrafter(small, pad, eos, temperature=1.0, threshold=0.4), verifier, search, sampled)
    assert len(generator.Generator(decode, pad, eos).generate([], sample)) == 4
