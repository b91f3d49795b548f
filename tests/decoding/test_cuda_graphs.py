"""Layers that are recorded and replayed give what they give otherwise.

Without a GPU a stand-in takes the place of the recording itself: a function that is run anew each time and, like a
graph, always writes its result to the same place. With one, the real thing is tried as well.
"""

from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from block_plugins import generation
from block_plugins.decoding import cuda_graphs, generator
from block_plugins.decoding.cached_decoder import CachedDecoder, DecoderLayers
from block_plugins.decoding.cuda_graphs import GraphedLayers, rounded
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.settings import BeamSettings, SpeculationSettings
from block_plugins.errors import UserError
from block_plugins.tasks.translation_lev_modified import TranslationLevModifiedConfig

float64_fairseq = tiny.float64_fairseq

SYMBOLS = tiny.dictionary(12)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


class StandIn:
    """``capture`` for a CPU; counts recordings and replays."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0

    def __call__(self, function: Callable[[], Tensor], pool: Any) -> Callable[[], Tensor]:
        self.recordings += 1
        output = function().clone()

        def replay() -> Tensor:
            self.replays += 1
            return output.copy_(function())

        return replay


@pytest.fixture
def stand_in(device: str, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """In place of ``capture`` where the test's device is the CPU."""
    result = StandIn()
    if device == "cpu":
        monkeypatch.setattr(cuda_graphs, "capture", result)
    return result


def test_shapes_are_rounded_up_to_powers_of_two() -> None:
    assert [rounded(count) for count in (1, 2, 3, 4, 5, 33)] == [1, 2, 4, 4, 8, 64]
    assert [rounded(count, 16) for count in (1, 16, 17)] == [16, 16, 32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normalize_before", [True, False])
def test_any_steps_of_batch_after_batch_equal_the_ordinary_decoder(
    normalize_before: bool, device: str, stand_in: StandIn
) -> None:
    options = {"decoder_layers": 2, "encoder_embed_dim": 20, "decoder_normalize_before": normalize_before}
    model = tiny.verifier(SYMBOLS, 1, max_target_positions=200, **options).to(device)
    ordinary, graphed = CachedDecoder(model.decoder), CachedDecoder(model.decoder, GraphedLayers)
    layers = graphed.layers
    assert isinstance(layers, GraphedLayers)
    dice = np.random.default_rng(1)
    compared = 0
    # smaller and larger batches, sources and capacities than those before, some with more slots than 64
    batches = [([5, 2, 7], 12), ([3, 20, 1, 4, 4], 12), ([6], 9), ([30, 2], 80)]
    batches += [([4, 8], 80), ([4, 1, 9, 2, 4], 80), ([2, 25, 6, 3, 9], 80), ([7, 5, 25, 1, 8], 80)]
    for lengths, capacity in batches:
        sample = tiny.sample(SYMBOLS, lengths, len(lengths))["net_input"]
        encoder_out = model.encoder(**{name: tensor.to(device) for name, tensor in sample.items()})
        with torch.no_grad():
            states = [decoder.start(encoder_out, capacity) for decoder in (ordinary, graphed)]
            rows = len(lengths)
            at = np.zeros(rows, dtype=np.int64)
            while rows > 0:
                n = int(dice.choice([1, 4, 26] if capacity > 12 else [1, 4]))
                words = torch.from_numpy(dice.integers(SYMBOLS.nspecial, len(SYMBOLS), (rows, n))).to(device)
                expected, found = (state.step(words, at) for state in states)
                assert found.shape == expected.shape
                inside = torch.from_numpy(at[:, None] + np.arange(n) < capacity)
                torch.testing.assert_close(found.cpu()[inside], expected.cpu()[inside], rtol=0, atol=1e-10)
                compared += int(inside.sum())
                at = at + dice.integers(1, n + 1, rows)
                keep = np.flatnonzero(at < capacity)[::-1].copy()  # rows also change places
                for state in states:
                    state.select(torch.from_numpy(keep).to(device))
                at, rows = at[keep], len(keep)
        for buffer in layers.buffers():  # the next batch has to find nothing of this one
            buffer.fill_(float("nan") if buffer.is_floating_point() else True)
    assert compared > 100
    assert layers.size == (8, 128, 32)
    if device == "cpu":
        assert stand_in.replays > stand_in.recordings > 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_recorded_serves_later_batches(device: str, stand_in: StandIn) -> None:
    model = tiny.verifier(SYMBOLS, 1).to(device)
    decode = generator.autoregressive(model, tiny.settings(SYMBOLS, max_len_b=10), GraphedLayers)
    sample = tiny.sample(SYMBOLS, [5, 2, 7], 1)["net_input"]
    batch = {"net_input": {name: tensor.to(device) for name, tensor in sample.items()}}
    texts, recordings = [], []
    for _ in range(3):
        output = generator.Generator(decode, PAD, EOS).generate([], batch)
        texts.append([hypothesis[0]["tokens"].tolist() for hypothesis in output])
        recordings.append(stand_in.recordings)
    assert texts[0] == texts[1] == texts[2]
    assert recordings[0] == recordings[2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "strategy", ["AR", "beam", "gad", "gad, auto", "gad, two layers", "drafter", "drafter, two layers"]
)
def test_every_strategy_gives_the_same_text_with_and_without(
    strategy: str, device: str, float64_fairseq: None, stand_in: StandIn
) -> None:
    verifier = tiny.verifier(SYMBOLS, 3, decoder_layers=2).to(device)
    block = tiny.drafter(SYMBOLS, 4, decoder_layers=2 if "two" in strategy else 1, max_target_positions=22).to(device)
    search = tiny.settings(SYMBOLS, max_len_b=20)
    lookahead = "auto" if "auto" in strategy else "constant"

    def decode(layers: type[DecoderLayers]) -> generator.DecodeFunction:
        if strategy == "AR":
            return generator.autoregressive(verifier, search, layers)
        if strategy == "beam":
            return generator.left_to_right_beam(verifier, search, BeamSettings(3), layers)
        drafter = BlockDrafter(block, PAD, UNK, EOS, layers=layers)
        if strategy.startswith("drafter"):
            return generator.drafter_alone(drafter, block, search, 4)
        return generator.gad(drafter, verifier, search, SpeculationSettings(4, lookahead=lookahead), layers)

    ordinary, graphed = (generator.Generator(decode(layers), PAD, EOS) for layers in (DecoderLayers, GraphedLayers))
    for seed, lengths in enumerate([[3, 8, 1, 5, 5], [4], [9, 2, 18, 3, 3, 7], [2, 2]]):
        sample = tiny.sample(SYMBOLS, lengths, seed)["net_input"]
        batch = {"net_input": {name: tensor.to(device) for name, tensor in sample.items()}}
        expected, found = ordinary.generate([], batch), graphed.generate([], batch)
        for one, other in zip(expected, found, strict=True):
            assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
            torch.testing.assert_close(
                other[0]["positional_scores"], one[0]["positional_scores"], rtol=0, atol=1e-9, equal_nan=True
            )
    if device == "cpu":
        assert stand_in.recordings > 0
        assert lookahead == "auto" or stand_in.replays > stand_in.recordings  # which tries many lengths first


def test_a_model_that_cannot_be_cached_is_refused() -> None:
    model = tiny.verifier(SYMBOLS, 1, cross_self_attention=True)
    cfg = TranslationLevModifiedConfig()
    cfg.cuda_graphs, cfg.strategy = True, "AR"
    task = SimpleNamespace(cfg=cfg, target_dictionary=SYMBOLS, generates=True)
    with pytest.raises(UserError, match=r"--cuda-graphs: .*cross_self_attention"):
        generation.build_generator(task, [model], Namespace())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_differs_in_near_ties_only(dtype: torch.dtype, device: str) -> None:
    verifier = tiny.verifier(SYMBOLS, 3, dtype=dtype, decoder_layers=2).to(device)
    search = tiny.settings(SYMBOLS, max_len_b=20)
    sample = tiny.sample(SYMBOLS, [3, 8, 1, 5, 5, 2, 9, 4], 5)["net_input"]
    batch = {"net_input": {name: tensor.to(device) for name, tensor in sample.items()}}
    expected = generator.Generator(generator.autoregressive(verifier, search), PAD, EOS).generate([], batch)
    equal = 0
    for layers in (1, 2):
        block = tiny.drafter(SYMBOLS, 4, dtype=dtype, decoder_layers=layers).to(device)
        drafter = BlockDrafter(block, PAD, UNK, EOS)
        for beta in (1, 2):
            speculation = SpeculationSettings(4, beta=beta)
            found = generator.Generator(generator.gad(drafter, verifier, search, speculation), PAD, EOS)
            for one, other in zip(expected, found.generate([], batch), strict=True):
                tokens, others = one[0]["tokens"].tolist(), other[0]["tokens"].tolist()
                assert other[0]["positional_scores"].dtype == torch.float32
                if beta == 1 and tokens == others:
                    equal += 1
                elif beta == 1:
                    first = next(i for i, (a, b) in enumerate(zip(tokens, others, strict=False)) if a != b)
                    scores = (hypothesis[0]["positional_scores"][first] for hypothesis in (one, other))
                    assert abs(next(scores) - next(scores)) < 0.3
    assert equal >= 8
