"""The chosen lookahead pays: with costs and acceptance that are known, the best lengths are found."""

import numpy as np
import pytest
import tiny
import torch

from block_plugins.decoding import generator
from block_plugins.decoding.ar_drafter import ARDrafter
from block_plugins.decoding.auto_lookahead import AutoLookahead
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.lookahead import AdaptiveLookahead, HeuristicLookahead, Lookahead
from block_plugins.decoding.settings import SamplingSettings, SpeculationSettings


def simulate(
    lookahead: Lookahead,
    rows: int,
    probabilities: tuple[float, ...],
    costs: tuple[float, float, float],
    overconfidence: float = 0.0,
    iterations: int = 2000,
) -> tuple[float, list[int]]:
    """Tokens a second, and lengths, on a made-up machine after the first 300 iterations.

    Each draft token is accepted with one of the ``probabilities``, drawn anew, of which the drafter knows, save for its
    ``overconfidence``. ``costs`` are the seconds of a pass, of a draft, and of each draft token.
    """
    dice = np.random.default_rng(1)
    of_pass, of_draft, of_token = costs
    tokens = seconds = 0.0
    widths = []
    lookahead.start(rows)
    for iteration in range(iterations):
        limit = lookahead.choose()
        chances = dice.choice(probabilities, (rows, max(1, int(limit.max()))))
        going_on, sent = limit > 0, np.zeros(rows, dtype=np.int64)
        for at in range(int(limit.max())):
            sent += going_on
            if lookahead.goes_on is not None:
                going_on = going_on & lookahead.goes_on(at, np.minimum(1.0, chances[:, at] + overconfidence))
            going_on = going_on & (sent < limit)
        accepted = np.zeros(rows, dtype=np.int64)
        for row in range(rows):
            while accepted[row] < sent[row] and dice.random() < chances[row, accepted[row]]:
                accepted[row] += 1
        width = int(sent.max())
        spent = (of_pass + (of_draft if width else 0.0) + of_token * width) * dice.uniform(0.9, 1.1)
        lookahead.record(sent, accepted, accepted + 1, width, spent)
        if iteration >= 300:
            widths.append(width)
            tokens, seconds = tokens + float((accepted + 1).sum()), seconds + spent
    return tokens / seconds, widths


def best_fixed(rows: int, kept: float, costs: tuple[float, float, float]) -> float:
    """The expected tokens a second of the best fixed length, none included."""
    of_pass, of_draft, of_token = costs
    return max(
        rows * sum(kept**i for i in range(length + 1)) / (of_pass + (of_draft if length else 0.0) + of_token * length)
        for length in range(16)
    )


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("kept", "costs"),
    [
        (0.9, (1.0, 0.5, 0.0)),
        (0.8, (1.0, 0.5, 0.1)),
        (0.8, (1.0, 0.0, 0.3)),
        (0.5, (1.0, 0.3, 0.05)),
        (0.3, (1.0, 1.0, 0.5)),
        (0.05, (1.0, 1.0, 0.0)),
    ],
)
def test_no_fixed_length_is_much_better(rows: int, kept: float, costs: tuple[float, float, float]) -> None:
    """Where confidence tells nothing, the best fixed length of all, none at all included, is found."""
    assert simulate(AutoLookahead(15), rows, (kept,), costs)[0] > 0.95 * best_fixed(rows, kept, costs)


@pytest.mark.parametrize("overconfidence", [0.0, 0.3])
def test_confidence_is_worth_something_and_is_not_simply_believed(overconfidence: float) -> None:
    """Half of the tokens are as good as sure and half of them not: no fixed length can tell them apart."""
    chances, costs = (0.97, 0.2), (1.0, 0.0, 0.2)
    fixed = best_fixed(1, sum(chances) / 2, costs)
    assert simulate(AutoLookahead(15), 1, chances, costs, overconfidence)[0] > 1.05 * fixed


def test_sizes_of_the_batch_are_told_apart() -> None:
    lookahead = AutoLookahead(7)
    _, few = simulate(lookahead, 1, (0.8,), (1.0, 0.3, 0.0))
    _, many = simulate(lookahead, 32, (0.8,), (1.0, 5.0, 2.0))
    _, again = simulate(lookahead, 1, (0.8,), (1.0, 0.3, 0.0), iterations=500)
    assert max(set(few), key=few.count) == max(set(again), key=again.count) == 7
    assert max(set(many), key=many.count) == 0


def test_a_size_begins_with_what_is_known_of_others() -> None:
    lookahead = AutoLookahead(7)
    simulate(lookahead, 32, (0.8,), (1.0, 5.0, 2.0), iterations=400)
    lookahead.start(16)
    nothing, one = np.zeros(16, dtype=np.int64), np.ones(16, dtype=np.int64)
    for _ in range(40):
        assert not lookahead.choose().any()
        lookahead.record(nothing, nothing, one, 0, 1.0)
    _, widths = simulate(lookahead, 16, (0.8,), (1.0, 0.3, 0.0), iterations=5000)  # but it may be otherwise there
    assert max(set(widths), key=widths.count) == 7


def test_a_drafter_without_numbers_is_no_trouble() -> None:
    lookahead = AutoLookahead(5)
    lookahead.start(2)
    for _ in range(200):
        limit = lookahead.choose()
        sent = np.zeros(2, dtype=np.int64)
        for at in range(int(limit.max())):
            sent += 1
            if not lookahead._goes_on(at, np.array([np.nan, np.inf])).any():
                break
        lookahead.record(
            sent, np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64), int(sent.max()), 1.0 + 0.1 * sent.max()
        )
    assert limit.tolist() == [0, 0]


def test_the_heuristic_schedule_of_each_sentence() -> None:
    lookahead = HeuristicLookahead(8)
    lookahead.start(3)
    nothing = np.zeros(3)
    assert lookahead.choose().tolist() == [5, 5, 5]
    lookahead.record(np.array([5, 5, 2]), np.array([5, 4, 2]), nothing, 5, 1.0)
    assert lookahead.choose().tolist() == [7, 4, 7]  # whole drafts: +2, also where the draft was short; others: -1
    lookahead.record(np.array([7, 4, 7]), np.array([7, 0, 0]), nothing, 5, 1.0)
    assert lookahead.choose().tolist() == [8, 3, 6]  # no more than the block
    lookahead.select(np.array([1]))
    for _ in range(4):
        lookahead.record(np.array([3]), np.array([0]), nothing, 5, 1.0)
    assert lookahead.choose().tolist() == [1]  # no less than one
    lookahead.start(2)
    assert lookahead.choose().tolist() == [5, 5]


def test_the_adaptive_schedule_over_windows() -> None:
    lookahead = AdaptiveLookahead(6)
    lookahead.start(8)

    def window(accepted: int) -> int:
        for _ in range(4):  # of 8 rows: 32 drafts
            lookahead.record(np.full(8, 10), np.full(8, accepted), np.zeros(8), 5, 1.0)
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
                (ARDrafter(small, pad, eos) if kind else BlockDrafter(block, pad, unk, eos))
                .start(**sample, capacity=12)
                .propose(prefix, length, 3, 6, goes_on=generator.open_lookahead(name, 6, threshold).goes_on)
                for name in ("constant", "confidence")
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
        decode = generator.gad(ARDrafter(small, pad, eos), verifier, search, SpeculationSettings(12, lookahead=name))
        whole = generator.Generator(decode, pad, eos)
        texts.append([row[0]["tokens"].tolist() for row in whole.generate([], sample)])
        drafted[name] = whole.statistics.drafted
    assert all(text == texts[0] for text in texts)
    assert max(drafted["heuristic"], drafted["adaptive"], drafted["confidence"]) < drafted["constant"]
    sampled = SpeculationSettings(12, lookahead="confidence", sampling=SamplingSettings())
    decode = generator.gad(ARDrafter(small, pad, eos, temperature=1.0), verifier, search, sampled)
    assert len(generator.Generator(decode, pad, eos).generate([], sample)) == 4
