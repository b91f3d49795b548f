"""The loop with top-beta/tau acceptance against the definition, and with drafters that are right, wrong or absurd."""

import math
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from block_plugins.decoding import generator
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.settings import SpeculationSettings

SYMBOLS = tiny.dictionary(12)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()


def obvious_gad(
    verifier: Any, drafter: Any, source: Tensor, block_size: int, beta: int, tau: float, max_len: int, min_len: int
) -> tuple[list[int], int]:
    """GAD from its definition: one sentence, no cache, one token at a time; returns the output and the iterations."""

    def scores_after(tokens: list[int]) -> list[float]:
        logits = verifier(source, torch.tensor([source.size(1)]), torch.tensor([[EOS, *tokens]]))[0][0, -1]
        values: list[float] = logits.tolist()
        values[PAD] = -math.inf
        if len(tokens) < min_len:
            values[EOS] = -math.inf
        if len(tokens) >= max_len:
            values = [value if token == EOS else -math.inf for token, value in enumerate(values)]
        return values

    def block_after(tokens: list[int]) -> list[int]:
        size = min(block_size, drafter.decoder.max_positions() - len(tokens))
        if size <= 0:
            return []
        inputs = torch.tensor([tokens + [UNK] * size])
        logits = drafter(source, torch.tensor([source.size(1)]), inputs)[0][0, -size:]
        logits[:, PAD] = -math.inf
        result: list[int] = logits.argmax(-1).tolist()
        return result

    output: list[int] = []
    iterations = 0
    while not output or output[-1] != EOS:
        iterations += 1
        for token in block_after(output)[: max_len - len(output)]:
            values = scores_after(output)
            ranked = sorted(range(len(values)), key=lambda t: -values[t])
            if token not in ranked[:beta] or values[ranked[0]] - values[token] > tau or values[token] == -math.inf:
                break
            output.append(token)
            if token == EOS:
                break
        if output and output[-1] == EOS:
            break
        values = scores_after(output)
        output.append(max(range(len(values)), key=lambda t: values[t]))
    return output, iterations


def follows_the_definition(
    seed: int, lengths: list[int], block_size: int, beta: int, tau: float, max_len: int, min_len: int, positions: int
) -> None:
    """Compares a batch with ``obvious_gad``, a sentence at a time."""
    verifier, block = tiny.verifier(SYMBOLS, seed), tiny.drafter(SYMBOLS, seed + 1, max_target_positions=positions)
    sample = tiny.sample(SYMBOLS, lengths, seed)
    search = tiny.settings(SYMBOLS, max_len_b=max_len, min_len=min_len)
    drafter = BlockDrafter(block, PAD, UNK, EOS)
    gad = generator.Generator(
        generator.gad(drafter, verifier, search, SpeculationSettings(block_size, beta, tau)), PAD, EOS
    )
    found = gad.generate([], sample)
    for row, hypothesis in zip(sample["net_input"]["src_tokens"], found, strict=True):
        source = row[row != PAD].unsqueeze(0)
        with torch.no_grad():
            output, iterations = obvious_gad(verifier, block, source, block_size, beta, tau, max_len, min_len)
        assert hypothesis[0]["tokens"].tolist() == output
        assert hypothesis[0]["steps"] == iterations


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    block_size=st.integers(1, 7),
    beta=st.sampled_from([1, 2, 3, 5, 100]),
    tau=st.sampled_from([0.0, 0.3, 1.0, 3.0, 100.0, math.inf]),
    max_len=st.integers(2, 14),
    min_len=st.integers(0, 2),
    positions=st.sampled_from([3, 6, 40]),
)
def test_top_beta_within_tau_as_defined(
    seed: int, lengths: list[int], block_size: int, beta: int, tau: float, max_len: int, min_len: int, positions: int
) -> None:
    """Also where a draft would go beyond the ``positions`` of the drafter, sooner in one row than in another."""
    follows_the_definition(seed, lengths, block_size, beta, tau, max_len, min_len, positions)


@pytest.mark.parametrize("seed", range(8))
def test_rows_whose_drafts_are_cut_short_beside_longer_ones(seed: int) -> None:
    follows_the_definition(seed, [4, 7, 2, 5], 4, 5, math.inf, 14, 0, positions=7)


def decode(block_size: int, errors: float, wrong: int | None) -> tuple[list[Any], list[Any], generator.Statistics]:
    """GAD with a scripted drafter, and the greedy output it has to give."""
    verifier = tiny.verifier(SYMBOLS, 7)
    sample = tiny.sample(SYMBOLS, [4, 9, 1, 6, 3, 2], 8)
    search = tiny.settings(SYMBOLS, max_len_b=17)
    expected = generator.Generator(generator.autoregressive(verifier, search), PAD, EOS).generate([], sample)
    scripts = {
        tiny.source(row, SYMBOLS): hypothesis[0]["tokens"].tolist()
        for row, hypothesis in zip(sample["net_input"]["src_tokens"], expected, strict=True)
    }
    drafter = tiny.ScriptedDrafter(SYMBOLS, scripts, errors, wrong)
    speculation = SpeculationSettings(block_size, keep_drafts=True)
    gad = generator.Generator(generator.gad(drafter, verifier, search, speculation), PAD, EOS)
    found = gad.generate([], sample)
    assert [h[0]["tokens"].tolist() for h in found] == [h[0]["tokens"].tolist() for h in expected]
    assert len({len(h[0]["tokens"]) for h in found}) > 1  # the rows don't all end together
    return found, expected, gad.statistics


@pytest.mark.parametrize("block_size", [1, 3, 5, 30])
def test_a_drafter_that_is_always_right(block_size: int) -> None:
    found, _, statistics = decode(block_size, 0.0, None)
    # each iteration brings the block and the verifier's own token, the last one what is left
    iterations = [math.ceil(len(h[0]["tokens"]) / (block_size + 1)) for h in found]
    assert [h[0]["steps"] for h in found] == iterations
    assert statistics.iterations == sum(iterations)
    assert statistics.as_dict()["accepted_per_iteration"] == statistics.tokens / sum(iterations)


@pytest.mark.parametrize("wrong", [PAD, UNK])
def test_a_drafter_that_is_always_wrong(wrong: int) -> None:
    found, expected, statistics = decode(5, 1.0, wrong)
    assert not any(wrong in h[0]["tokens"].tolist() for h in expected)  # else it would be right at times
    assert [h[0]["steps"] for h in found] == [len(h[0]["tokens"]) for h in expected]
    assert statistics.accepted == 0
    assert statistics.drafted > 0
    assert statistics.as_dict()["alpha"] == 0.0


def test_a_drafter_that_says_nothing_but_eos_is_right_at_the_end_only() -> None:
    found, expected, statistics = decode(5, 1.0, EOS)
    at_limit = [len(h[0]["tokens"]) == 18 for h in expected]
    assert [h[0]["steps"] for h in found] == [len(h[0]["tokens"]) for h in expected]
    # EOS at the length limit isn't drafted (there is no room for a draft), everywhere else it is
    assert statistics.accepted == at_limit.count(False)


def test_an_accepted_eos_ends_the_sentence_and_what_the_drafter_says_behind_it_is_ignored() -> None:
    # a block much longer than any output: script, EOS, pads
    found, _, statistics = decode(30, 0.0, None)
    assert all(h[0]["steps"] == 1 for h in found)
    assert statistics.accepted + statistics.iterations >= statistics.tokens


def test_drafts_are_kept_as_history() -> None:
    found, _, statistics = decode(3, 0.5, None)
    for hypothesis in found:
        assert len(hypothesis[0]["history"]) == hypothesis[0]["steps"]
        assert all(len(draft["tokens"]) <= 3 for draft in hypothesis[0]["history"])
    assert statistics.drafted == sum(len(d["tokens"]) for h in found for d in h[0]["history"])


def test_the_output_stops_at_the_length_limit_with_nothing_accepted() -> None:
    verifier = tiny.verifier(SYMBOLS, 11)
    sample = tiny.sample(SYMBOLS, [5], 1)
    search = tiny.settings(SYMBOLS, max_len_b=4, min_len=4)
    scripts = {tiny.source(sample["net_input"]["src_tokens"][0], SYMBOLS): [PAD] * 9}
    gad = generator.gad(tiny.ScriptedDrafter(SYMBOLS, scripts), verifier, search, SpeculationSettings(3))
    tokens = generator.Generator(gad, PAD, EOS).generate([], sample)[0][0]["tokens"].tolist()
    assert len(tokens) == 5
    assert tokens[-1] == EOS


def test_drafter_alone_commits_its_blocks_unverified() -> None:
    block = tiny.drafter(SYMBOLS, 5)
    sample = tiny.sample(SYMBOLS, [4, 7, 2], 3)
    search = tiny.settings(SYMBOLS, max_len_b=12)
    decode = generator.drafter_alone(BlockDrafter(block, PAD, UNK, EOS), block, search, 4)
    found = generator.Generator(decode, PAD, EOS).generate([], sample)
    for row, hypothesis in zip(sample["net_input"]["src_tokens"], found, strict=True):
        source, tokens = row[row != PAD].unsqueeze(0), []
        while EOS not in tokens:
            inputs = torch.tensor([tokens + [UNK] * 4])
            with torch.no_grad():
                logits = block(source, torch.tensor([source.size(1)]), inputs)[0][0, -4:]
            logits[:, PAD] = -math.inf
            if not tokens:
                logits[0, EOS] = -math.inf  # --min-len 1
            tokens += logits.argmax(-1).tolist()
            tokens = [*tokens[:12], EOS] if len(tokens) > 12 else tokens
        assert hypothesis[0]["tokens"].tolist() == tokens[: tokens.index(EOS) + 1]
