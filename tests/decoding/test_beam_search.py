"""Beam search against an exhaustive search and against a slow beam search written from the definition."""

import itertools
import math
from typing import Any

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from block_plugins.decoding import generator
from block_plugins.decoding.settings import BeamSettings

float64_fairseq = tiny.float64_fairseq
SYMBOLS = tiny.dictionary(4)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()


def log_probs(model: Any, source: Tensor, tokens: list[int], unk_penalty: float) -> list[float]:
    """What may follow ``tokens``, from the model's own forward pass."""
    with torch.no_grad():
        logits = model(source, torch.tensor([source.size(1)]), torch.tensor([[EOS, *tokens]]))[0][0, -1]
    scores: list[float] = torch.log_softmax(logits, dim=-1).tolist()
    scores[PAD] = -math.inf
    scores[UNK] -= unk_penalty
    return scores


def score(total: float, length: int, beam: BeamSettings) -> float:
    value = total / ((beam.start + length) / (1 + beam.start)) ** beam.alpha
    outside = length < beam.shortest or (beam.longest >= 0 and length > beam.longest)
    return value - 1e3 if outside else value


def obvious_beam_search(
    model: Any, source: Tensor, beam: BeamSettings, max_len: int, unk_penalty: float
) -> list[tuple[float, list[int]]]:
    """One sentence, no cache, no early stop: pools of M alive and M finished hypotheses as lists."""
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for _ in range(max_len):
        candidates = [
            (total + value, [*tokens, token])
            for total, tokens in alive
            for token, value in enumerate(log_probs(model, source, tokens, unk_penalty))
            if value > -math.inf
        ]
        candidates = sorted(candidates, key=lambda pair: -pair[0])[: 2 * beam.size]
        ended = [(score(total, len(t), beam), t) for total, t in candidates if t[-1] == EOS]
        finished = sorted(finished + ended, key=lambda pair: -pair[0])[: beam.size]
        alive = [pair for pair in candidates if pair[1][-1] != EOS][: beam.size]
    forced = []
    for total, tokens in alive:
        value = log_probs(model, source, tokens, unk_penalty)[EOS]
        forced.append((score(total + value, max_len + 1, beam), [*tokens, EOS]))
    forced.sort(key=lambda pair: -pair[0])
    return (finished + forced)[: beam.nbest]


def decode(model: Any, sample: Any, beam: BeamSettings, **search: Any) -> list[list[dict[str, Any]]]:
    settings = tiny.settings(SYMBOLS, **search)
    return generator.Generator(generator.left_to_right_beam(model, settings, beam), PAD, EOS).generate([], sample)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    size=st.integers(2, 5),
    data=st.data(),
    start=st.sampled_from([0.0, 5.0]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0, -0.5]),
    shortest=st.sampled_from([0, 3]),
    longest=st.sampled_from([-1, 4]),
    max_len=st.integers(1, 7),
    unk_penalty=st.sampled_from([0.0, 1.0, -1.0]),
)
def test_pools_as_defined(
    float64_fairseq: None,
    seed: int,
    lengths: list[int],
    size: int,
    data: Any,
    start: float,
    alpha: float,
    shortest: int,
    longest: int,
    max_len: int,
    unk_penalty: float,
) -> None:
    model = tiny.verifier(SYMBOLS, seed)
    beam = BeamSettings(size, data.draw(st.integers(1, size)), start, alpha, shortest, longest)
    sample = tiny.sample(SYMBOLS, lengths, seed)
    found = decode(model, sample, beam, max_len_b=max_len, min_len=0, unk_penalty=unk_penalty)
    for row, hypotheses in zip(sample["net_input"]["src_tokens"], found, strict=True):
        expected = obvious_beam_search(model, row[row != PAD].unsqueeze(0), beam, max_len, unk_penalty)
        assert [h["tokens"].tolist() for h in hypotheses] == [tokens for _, tokens in expected]
        for hypothesis, (value, _) in zip(hypotheses, expected, strict=True):
            assert float(hypothesis["score"]) == pytest.approx(value, abs=1e-9)
            total = float(hypothesis["positional_scores"].sum())
            assert score(total, len(hypothesis["tokens"]), beam) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_with_beams_for_everything_the_best_of_all_outputs_is_found(
    float64_fairseq: None, seed: int, alpha: float
) -> None:
    """Every output of at most 3 tokens before EOS, enumerated: early stopping must never lose the best of them."""
    model, max_len = tiny.verifier(SYMBOLS, seed), 3
    sample = tiny.sample(SYMBOLS, [3], seed)
    source = sample["net_input"]["src_tokens"]
    words = [token for token in range(len(SYMBOLS)) if token not in (PAD, EOS)]
    beam = BeamSettings(len(words) ** max_len, 5, 5.0, alpha)
    everything = []
    for length in range(max_len):
        for tokens in itertools.product(words, repeat=length):
            output = [*tokens, EOS]
            total = sum(log_probs(model, source, output[:i], 0.0)[output[i]] for i in range(len(output)))
            everything.append((score(total, len(output), beam), output))
    everything.sort(key=lambda pair: -pair[0])
    hypotheses = decode(model, sample, beam, max_len_b=max_len, min_len=0)[0]
    assert [h["tokens"].tolist() for h in hypotheses] == [tokens for _, tokens in everything[:5]]


def test_a_sentence_leaves_early_only_when_nothing_can_change() -> None:
    sample = tiny.sample(SYMBOLS, [5, 2, 7], 1)
    saved = 0
    for seed in range(8):
        model = tiny.verifier(SYMBOLS, seed)
        found = []
        for unk_penalty in (0.0, -1e-12):  # a negative penalty forbids stopping early; this one changes nothing else
            search = tiny.settings(SYMBOLS, max_len_b=20, unk_penalty=unk_penalty)
            decode = generator.left_to_right_beam(model, search, BeamSettings(3, 1, alpha=0.0))
            decoder = generator.Generator(decode, PAD, EOS)
            tokens = [row[0]["tokens"].tolist() for row in decoder.generate([], sample)]
            found.append((tokens, decoder.statistics.iterations))
        (early, steps), (late, all_steps) = found
        assert early == late
        assert all_steps == 21 * 3
        saved += all_steps - steps
    assert saved > 0


def test_prefixes_are_forced_on_all_beams() -> None:
    model = tiny.verifier(SYMBOLS, 4)
    sample = tiny.sample(SYMBOLS, [5, 2], 1)
    prefix = torch.tensor([[5, 6], [7, PAD]])
    decoder = generator.Generator(
        generator.left_to_right_beam(model, tiny.settings(SYMBOLS, max_len_b=8), BeamSettings(3, 3)), PAD, EOS
    )
    found = decoder.generate([], sample, prefix_tokens=prefix)
    assert all(h["tokens"][:2].tolist() == [5, 6] for h in found[0])
    assert all(h["tokens"][0] == 7 for h in found[1])
