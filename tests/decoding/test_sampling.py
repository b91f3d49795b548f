"""Speculative sampling follows the verifier's exact law, enumerated, and the tests notice when it doesn't."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy import stats
from torch import Tensor

from block_plugins.decoding import generator, sampling
from block_plugins.decoding.acceptance import Verdict
from block_plugins.decoding.ar_drafter import ARDrafter, ARDraftState
from block_plugins.decoding.drafters import BlockDrafter, BlockDraftState, Draft
from block_plugins.decoding.settings import SamplingSettings, SpeculationSettings

SYMBOLS = tiny.dictionary(3)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()
MAX_LEN = 3
ROWS = 1500  # outputs drawn for each of two sources of different lengths


def filtered(probs: list[float], topk: int, topp: float) -> list[float]:
    """What top-k or top-p leave of a distribution, from their definitions, normalised."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    if topp > 0:
        kept, total = set(), 0.0
        for token in order:
            if total >= topp:
                break
            kept.add(token)
            total += probs[token]
    else:
        kept = set(order[:topk] if topk > 0 else order)
    total = sum(probs[token] for token in kept)
    return [p / total if token in kept else 0.0 for token, p in enumerate(probs)]


def law(verifier: Any, source: Tensor, temperature: float, topk: int, topp: float) -> dict[tuple[int, ...], float]:
    """The probability of every output, by going through all prefixes, each with the model's own forward pass."""
    outputs: dict[tuple[int, ...], float] = {}
    with torch.no_grad():
        encoder_out = verifier.encoder(source.unsqueeze(0), src_lengths=torch.tensor([len(source)]))

    def go_on(prefix: tuple[int, ...], probability: float) -> None:
        if len(prefix) == MAX_LEN:  # EOS is forced
            outputs[(*prefix, EOS)] = probability
            return
        with torch.no_grad():
            logits = verifier.decoder(torch.tensor([[EOS, *prefix]]), encoder_out=encoder_out)[0][0, -1]
        probs = (logits.double() / temperature).softmax(-1)
        probs[PAD] = 0.0
        if len(prefix) < 1:
            probs[EOS] = 0.0  # --min-len is 1 unless told otherwise
        # fairseq normalises before it takes symbols away, and draws from what is left
        for token, p in enumerate(filtered((probs / probs.sum()).tolist(), topk, topp)):
            if p > 0 and token == EOS:
                outputs[(*prefix, EOS)] = probability * p
            elif p > 0:
                go_on((*prefix, token), probability * p)

    go_on((), 1.0)
    assert abs(sum(outputs.values()) - 1) < 1e-9
    return outputs


def p_value(expected: dict[tuple[int, ...], float], found: Counter[tuple[int, ...]]) -> float:
    """Of the chi-square test; outputs that are expected fewer than five times are counted together."""
    count = sum(found.values())
    assert found.keys() <= expected.keys()
    often = [output for output, p in expected.items() if p * count >= 5]
    observed = [found[output] for output in often]
    wanted = [expected[output] * count for output in often]
    rest = count - sum(wanted)
    if rest > 1e-6 * count:
        observed.append(count - sum(observed))
        wanted.append(rest)
    return float(stats.chisquare(observed, wanted, sum_check=False).pvalue)


def models(seed: int = 1) -> tuple[Any, Any, Any]:
    """A verifier, and a block drafter and an autoregressive drafter that are neither right nor wrong too often."""
    verifier = tiny.verifier(SYMBOLS, seed)
    block = tiny.drafter(SYMBOLS, seed + 10)
    small = tiny.verifier(SYMBOLS, seed + 20)
    for model in (verifier, block, small):
        model.decoder.output_projection.weight.data.mul_(0.35)
    return verifier, block, small


def drawn(decode: Any) -> list[Counter[tuple[int, ...]]]:
    """How often each output came, for each of the two sources."""
    tokens = tiny.sample(SYMBOLS, [5, 2], 3)["net_input"]["src_tokens"]
    torch.manual_seed(7)
    rows = {"src_tokens": tokens.repeat(ROWS, 1), "src_lengths": tokens.ne(PAD).sum(1).repeat(ROWS)}
    output = generator.Generator(decode, PAD, EOS).generate([], {"net_input": rows})
    found = [tuple(row[0]["tokens"].tolist()) for row in output]
    return [Counter(found[0::2]), Counter(found[1::2])]


def sources() -> list[Tensor]:
    tokens = tiny.sample(SYMBOLS, [5, 2], 3)["net_input"]["src_tokens"]
    return [row[row != PAD] for row in tokens]


def p_values(
    kind: str,
    k: int,
    temperature: float,
    draft_temperature: float,
    topk: int = 0,
    topp: float = 0.0,
    lookahead: str = "constant",
) -> list[float]:
    """The p-value for each of the two sources."""
    verifier, block, small = models()
    search = tiny.settings(SYMBOLS, max_len_b=MAX_LEN, temperature=temperature)
    chance = SamplingSettings(topk, topp)
    if kind == "AR":
        decode = generator.autoregressive(verifier, search, sampling=chance)
    else:
        options = {"temperature": draft_temperature}
        drafter: Any = (
            BlockDrafter(block, PAD, UNK, EOS, **options) if kind == "block" else ARDrafter(small, PAD, EOS, **options)
        )
        settings = SpeculationSettings(k, lookahead=lookahead, sampling=chance)
        decode = generator.gad(drafter, verifier, search, settings)
    return [
        p_value(law(verifier, source, temperature, topk, topp), found)
        for source, found in zip(sources(), drawn(decode), strict=True)
    ]


CASES = [
    ("AR", 0, 1.0, 0.0, 0, 0.0),
    ("AR", 0, 0.5, 0.0, 3, 0.0),
    *((kind, k, 1.0, 1.0, 0, 0.0) for kind, k in itertools.product(("block", "small"), range(1, 7))),
    *((kind, 2, temperature, 1.0, 0, 0.0) for kind in ("block", "small") for temperature in (0.5, 1.5)),
    *((kind, 3, 1.0, 1.0, 3, 0.0) for kind in ("block", "small")),
    *((kind, 2, 1.0, 1.0, 0, 0.7) for kind in ("block", "small")),
    *((kind, 3, 1.5, 0.0, 0, 0.0) for kind in ("block", "small")),  # greedy drafts
    *((kind, 2, 0.5, 2.0, 2, 0.0) for kind in ("block", "small")),  # drafts hotter than what is drawn
    *((kind, 4, 1.0, 1.0, 0, 0.0, "confidence") for kind in ("block", "small")),
    ("small", 4, 1.0, 1.0, 0, 0.0, "heuristic"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_follow_the_verifiers_law(case: Any) -> None:
    for p in p_values(*case):
        assert p > 1e-4


def softmaxed_residual(original: Any) -> Any:
    """Planted mistake: the residual goes through a softmax (of what isn't ruled out) instead of being normalised."""

    def draw(weights: Tensor) -> Tensor:
        residual = weights[:, :-1]
        softmaxed = torch.where(residual > 0, residual.exp(), 0.0)
        return original(torch.cat([softmaxed, weights[:, -1:]], dim=1))

    return draw


def residual_of_the_best(original: Any, count: int) -> Any:
    """Planted mistake: the residual is drawn from among the best few tokens only."""

    def draw(weights: Tensor) -> Tensor:
        top, index = weights[:, :-1].topk(count, dim=-1)
        few = torch.zeros_like(weights[:, :-1]).scatter(-1, index, top)
        return original(torch.cat([few, weights[:, -1:]], dim=1))

    return draw


@pytest.mark.parametrize("kind", ["block", "small"])
@pytest.mark.parametrize("mistake", ["softmaxed residual", "softmax for a greedy draft", "residual of the best"])
def test_the_test_has_power(monkeypatch: pytest.MonkeyPatch, kind: str, mistake: str) -> None:
    original, temperature = sampling.draw, 1.0
    if mistake == "softmax for a greedy draft":
        # the best token is drafted, but judged as if it had been drawn
        def propose(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
            return logits.argmax(-1), logits.softmax(-1)

        for module in ("drafters", "ar_drafter"):
            monkeypatch.setattr(f"block_plugins.decoding.{module}.propose_by_chance", propose)
    else:
        planted = softmaxed_residual(original) if "softmaxed" in mistake else residual_of_the_best(original, 1)
        judge = sampling.judge_by_chance

        def judge_with_mistake(*arguments: Any) -> Verdict:
            monkeypatch.setattr(sampling, "draw", planted)
            verdict = judge(*arguments)
            monkeypatch.setattr(sampling, "draw", original)
            return verdict

        monkeypatch.setattr("block_plugins.decoding.speculative.judge_by_chance", judge_with_mistake)
    assert min(p_values(kind, 2, 1.0, temperature)) < 1e-9


@pytest.mark.parametrize("kind", ["block", "small"])
def test_leaving_the_token_in_doubt_out_would_be_a_mistake(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    state = BlockDraftState if kind == "block" else ARDraftState
    propose = state.propose

    def without_the_doubtful(*arguments: Any) -> Draft:
        draft = propose(*arguments)
        assert draft.probs is not None
        sure = draft.probs.gather(2, draft.tokens.unsqueeze(2)).squeeze(2) >= 0.4
        return replace(draft, length=np.minimum(draft.length, sure.int().cumprod(1).sum(1).numpy()))

    case = (kind, 3, 1.0, 1.0, 0, 0.0, "confidence")
    assert min(p_values(*case)) > 1e-4
    monkeypatch.setattr(state, "propose", without_the_doubtful)
    assert min(p_values(*case)) < 1e-9


def test_the_share_of_accepted_tokens_is_the_overlap_of_both_laws() -> None:
    generator_ = torch.Generator().manual_seed(5)
    p, q = (torch.randn(9, generator=generator_, dtype=torch.float64).softmax(-1) for _ in range(2))
    rows = 40000
    torch.manual_seed(11)
    draft = q.expand(rows, -1).multinomial(1)
    scores = p.log().expand(rows, 2, -1)
    verdict = sampling.judge_by_chance(
        scores, draft, q.expand(rows, 1, -1), torch.ones(rows, 1, dtype=torch.bool), SamplingSettings()
    )
    expected = float(torch.minimum(p, q).sum())
    error = (expected * (1 - expected) / rows) ** 0.5
    assert abs(verdict.kept.mean() - expected) < 3 * error
    first = torch.from_numpy(verdict.tokens[:, 0]).bincount(minlength=9)
    assert stats.chisquare(first.numpy(), (p * rows).numpy()).pvalue > 1e-4


def test_top_p_keeps_the_fewest_tokens_that_are_enough() -> None:
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    found = sampling.distribution(probs.log(), SamplingSettings(topp=0.65))
    torch.testing.assert_close(found, torch.tensor([0.0, 4 / 7, 0.0, 3 / 7], dtype=torch.float64))
    assert sampling.distribution(probs.log().half(), SamplingSettings()).dtype == torch.float32
