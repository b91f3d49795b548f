"""The compiled kernels compute what torch computes."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from block_plugins.decoding import cpu_kernels, fast_path
from block_plugins.decoding.cached_decoder import CachedDecoder
from block_plugins.decoding.fast_path import Product
from block_plugins.decoding.int8 import Int8Linear

SYMBOLS = tiny.dictionary(12)


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize(("width", "out"), [(1, 1), (7, 3), (64, 33), (300, 3000)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_the_sum_of_products(rows: int, width: int, out: int, with_bias: bool) -> None:
    torch.manual_seed(rows)
    x, weight = torch.randn(1, rows, width), torch.randn(out, width)
    bias = torch.randn(out) if with_bias else None
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    found = Product(weight, bias)(x)
    assert found.shape == (1, rows, out) and found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 * width)
    exact = Product(weight.double(), None if bias is None else bias.double())(x.double())
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-13 * width)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_threads_share_a_product(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    x, weight = torch.randn(5, 300), torch.randn(3001, 300)  # more than is worth a second thread
    assert 5 * 3001 * 300 * x.element_size() > cpu_kernels._PARALLEL
    monkeypatch.setattr(cpu_kernels, "threads", lambda: parts)
    torch.testing.assert_close(Product(weight, None)(x), x @ weight.t(), rtol=0, atol=3e-4)


def test_threads_share_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.verifier(SYMBOLS, 1, dtype=torch.float64, decoder_layers=2)
    sample = tiny.sample(SYMBOLS, [3, 7], 1, left_pad=True)["net_input"]
    tokens = torch.randint(SYMBOLS.nspecial, len(SYMBOLS), (2, 4))
    assert tokens.numel() >= cpu_kernels._MANY
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        logits = []
        for parts in (1, 2, 3):
            monkeypatch.setattr(cpu_kernels, "threads", lambda parts=parts: parts)
            logits.append(CachedDecoder(model.decoder).start(encoder_out, 4).step(tokens, np.array([0, 0])))
    for shared in logits[1:]:
        torch.testing.assert_close(shared, logits[0], rtol=0, atol=1e-12)


def test_torch_keeps_its_number_of_threads() -> None:
    script = (
        "import torch; from block_plugins.decoding.fast_path import Product; torch.set_num_threads(1); "
        "Product(torch.ones(1024, 512), None)(torch.ones(4, 512)); print(torch.get_num_threads())"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.split() == ["1"]


def test_nan_and_infinity_pass_through() -> None:
    x = torch.tensor([[1.0, math.nan], [math.inf, 1.0]])
    found = Product(torch.ones(1, 2), None)(x)
    assert found[0, 0].isnan() and found[1, 0] == math.inf


def test_erf_to_single_precision() -> None:
    for x in np.linspace(-6, 6, 4001):
        assert abs(float(cpu_kernels._erf(np.float32(x))) - math.erf(float(np.float32(x)))) < 5e-7


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    n=st.integers(1, 4),
    before=st.booleans(),
    layers=st.integers(1, 3),
    activation=st.sampled_from(["relu", "gelu"]),
    left_pad=st.booleans(),
)
def test_few_rows_and_many_go_different_ways_to_the_same_logits(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    lengths: list[int],
    n: int,
    before: bool,
    layers: int,
    activation: str,
    left_pad: bool,
) -> None:
    options: dict[str, Any] = {"decoder_normalize_before": before, "decoder_layers": layers}
    model = tiny.verifier(SYMBOLS, seed, dtype=torch.float32, activation_fn=activation, **options)
    sample = tiny.sample(SYMBOLS, lengths, seed, left_pad)["net_input"]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(SYMBOLS.nspecial, len(SYMBOLS), (len(lengths), 3 * n), generator=generator)
    logits = {}
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        for rows in (0, 99):
            monkeypatch.setattr(fast_path, "MAX_ROWS", rows)
            monkeypatch.setattr(fast_path, "MAX_PRODUCT_ROWS", rows)
            state = CachedDecoder(model.decoder).start(encoder_out, 3 * n)
            assert state.layers.kernels is not None
            steps = [state.step(tokens[:, at : at + n], np.full(len(lengths), at)) for at in range(0, 3 * n, n)]
            logits[rows] = torch.cat(steps, dim=1)
    torch.testing.assert_close(logits[99], logits[0], rtol=0, atol=1e-5 * max(1.0, float(logits[0].abs().max())))


@pytest.mark.parametrize("rows", [1, 2, 3, 30])
def test_int8_is_close(rows: int) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(64, 500)
    x = torch.randn(rows, 64)
    with torch.no_grad():
        exact = linear(x)
        found = Int8Linear(linear)(x)
    assert found.shape == exact.shape
    # weights are off by half a step of max|w| / 127 at most; where there are many rows, activations too, by half a step
    # of range / 127
    weight, width = linear.weight.detach(), 64
    bound = width**0.5 * weight.abs().max() / 127 * x.abs().max()
    if rows > 2:
        bound += width**0.5 * (x.max() - x.min()) / 127 * weight.abs().max()
    assert 0 < (found - exact).abs().max() < bound


def test_int8_kernels_compute_with_rounded_weights() -> None:
    model = tiny.verifier(SYMBOLS, 3, dtype=torch.float32, activation_fn="gelu", decoder_layers=2)
    rounded = tiny.verifier(SYMBOLS, 3, dtype=torch.float32, activation_fn="gelu", decoder_layers=2)
    with torch.no_grad():
        for layer in rounded.decoder.layers:
            for name, module in layer.named_modules():
                of_source = name in ("encoder_attn.k_proj", "encoder_attn.v_proj")  # projected before, by torch
                if isinstance(module, torch.nn.Linear) and not of_source:
                    step = module.weight.abs().amax(1, keepdim=True) / 127
                    module.weight.copy_((module.weight / step).round() * step)
    sample = tiny.sample(SYMBOLS, [3, 5], 1)["net_input"]
    tokens = torch.randint(SYMBOLS.nspecial, len(SYMBOLS), (2, 3))
    with torch.no_grad():
        found, expected, exact = (
            CachedDecoder(one.decoder, int8=int8).start(model.encoder(**sample), 3).step(tokens, np.zeros(2, dtype=int))
            for one, int8 in ((model, True), (rounded, False), (model, False))
        )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(exact.abs().max()))
    assert (found - exact).abs().max() > 1e-3
