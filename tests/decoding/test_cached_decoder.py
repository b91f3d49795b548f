"""The cached decoder equals the model's own forward pass, however a sequence is cut into steps."""

from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from fairseq.models.lstm import LSTMModel
from fairseq.models.lstm import base_architecture as lstm_architecture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from block_plugins.decoding.cached_decoder import CachedDecoder, RecomputingDecoder, open_decoder
from block_plugins.decoding.kv_cache import KVCache

float64_fairseq = tiny.float64_fairseq
SYMBOLS = tiny.dictionary(12)


@st.composite
def architectures(draw: Any) -> dict[str, Any]:
    width = draw(st.sampled_from([8, 16]))
    output = draw(st.sampled_from([width, 12]))
    return {
        "decoder_layers": draw(st.integers(1, 3)),
        "encoder_embed_dim": draw(st.sampled_from([8, 20])),
        "decoder_embed_dim": width,
        "decoder_input_dim": draw(st.sampled_from([width, 10])),
        "decoder_output_dim": output,
        "share_decoder_input_output_embed": False,
        "encoder_normalize_before": draw(st.booleans()),
        "decoder_normalize_before": draw(st.booleans()),
        "no_decoder_final_norm": draw(st.booleans()),
        "decoder_learned_pos": draw(st.booleans()),
        "no_token_positional_embeddings": draw(st.booleans()),
        "layernorm_embedding": draw(st.booleans()),
        "no_scale_embedding": draw(st.booleans()),
        "activation_fn": draw(st.sampled_from(["relu", "gelu", "tanh", "linear"])),
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), options=architectures(), seed=st.integers(0, 10**6), narrow=st.booleans())
def test_any_chunking_equals_the_models_forward_pass(
    float64_fairseq: None, data: Any, options: dict[str, Any], seed: int, narrow: bool
) -> None:
    dtype, tolerance = (torch.float32, 1e-5) if narrow else (torch.float64, 1e-10)
    options["decoder_input_dim"] = options["decoder_embed_dim"]  # the embedding table has the decoder's width
    model = tiny.verifier(SYMBOLS, seed, dtype=dtype, **options)
    check_chunks(model, data, seed, tolerance)


def check_chunks(model: Any, data: Any, seed: int, tolerance: float) -> None:
    """Each row goes its own way through its sequence: steps of n tokens, some of which are then taken back."""
    lengths = [5, 2, 7]
    sample = tiny.sample(SYMBOLS, lengths, seed)["net_input"]
    total = 12
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(SYMBOLS.nspecial, len(SYMBOLS), (3, total), generator=random)
    words[:, 0] = SYMBOLS.eos()
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        expected = model.decoder(words, encoder_out=encoder_out)[0]
        decoder = open_decoder(model.encoder, model.decoder)
        assert isinstance(decoder, CachedDecoder)
        state = decoder.start(encoder_out, total)
        at = torch.zeros(3, dtype=torch.long)
        rows = torch.arange(3)
        while len(rows) > 0:
            n = data.draw(st.integers(1, 4))
            columns = at.unsqueeze(1) + torch.arange(n)
            inside = columns < total
            tokens = words[rows].gather(1, columns.clamp(max=total - 1))
            taken = torch.tensor([data.draw(st.integers(1, n)) for _ in rows])
            # what will be taken back may just as well be nonsense
            nonsense = torch.arange(n) >= taken.unsqueeze(1)
            tokens = torch.where(nonsense, SYMBOLS.unk(), tokens)
            logits = state.step(tokens, at.numpy())
            right = inside & ~nonsense
            wanted = expected[rows].gather(1, columns.clamp(max=total - 1).unsqueeze(2).expand(-1, -1, len(SYMBOLS)))
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(logits[right], wanted[right], rtol=0, atol=tolerance * scale)
            at = (at + taken).clamp(max=total)
            keep = (at < total).nonzero().squeeze(1)
            if len(keep) < len(rows):
                state.select(keep)
                at, rows = at[keep], rows[keep]


def test_rows_can_be_reordered_and_repeated() -> None:
    model = tiny.verifier(SYMBOLS, 3)
    sample = tiny.sample(SYMBOLS, [5, 2, 7], 1)["net_input"]
    words = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 10], [2, 11, 12, 13]])
    order = torch.tensor([2, 0, 0])
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        state = open_decoder(model.encoder, model.decoder).start(encoder_out, 4)
        state.step(words[:, :2], np.zeros(3, dtype=np.int64))
        state.select(order)
        found = state.step(words[order, 2:], np.full(3, 2))
        expected = model.decoder(words, encoder_out=encoder_out)[0][order, 2:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # fairseq's softmax is float32


def lstm(seed: int) -> Any:
    options = Namespace(
        encoder_embed_dim=8, encoder_hidden_size=8, decoder_embed_dim=8, decoder_hidden_size=8, decoder_out_embed_dim=8
    )
    lstm_architecture(options)
    options.max_source_positions = options.max_target_positions = 40
    options.criterion = "cross_entropy"
    model = LSTMModel.build_model(options, tiny._task(SYMBOLS)).double()
    return tiny.sharpen(model, seed).eval()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: tiny.verifier(SYMBOLS, 1, adaptive_softmax_cutoff=[6, 10]), "adaptive softmax"),
        (lambda: tiny.verifier(SYMBOLS, 1, cross_self_attention=True), "cross_self_attention"),
        (lambda: tiny.verifier(SYMBOLS, 1, no_cross_attention=True), "no cross-attention"),
        (lambda: lstm(1), "LSTMDecoder is not a Transformer decoder"),
    ],
)
def test_what_cannot_be_cached_is_recomputed_with_a_warning(
    build: Any, reason: str, float64_fairseq: None, caplog: pytest.LogCaptureFixture
) -> None:
    model = build()
    decoder = open_decoder(model.encoder, model.decoder)
    assert isinstance(decoder, RecomputingDecoder)
    assert reason in caplog.text
    sample = tiny.sample(SYMBOLS, [5, 2, 7], 1, left_pad=False)["net_input"]
    order = torch.argsort(sample["src_lengths"], descending=True)  # fairseq's LSTM wants them so
    sample = {name: tensor[order] for name, tensor in sample.items()}
    words = torch.tensor([[2, 5, 6, 7, 8], [2, 8, 9, 10, 11], [2, 11, 12, 13, 14]])
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        net_output = model.decoder(words, encoder_out=encoder_out)
        expected = model.decoder.get_normalized_probs(net_output, log_probs=True, sample=None)
        state = decoder.start(encoder_out, 5)
        first = state.step(words[:, :3], np.zeros(3, dtype=np.int64))
        torch.testing.assert_close(first, expected[:, :3], rtol=0, atol=1e-9)
        state.select(torch.tensor([2, 1]))
        # row 2 goes on after two tokens (one is taken back), row 1 after three
        tokens = torch.stack([words[2, 2:4], words[1, 3:5]])
        second = state.step(tokens, np.array([2, 3]))
        torch.testing.assert_close(second[0], expected[2, 2:4], rtol=0, atol=1e-9)
        torch.testing.assert_close(second[1], expected[1, 3:5], rtol=0, atol=1e-9)


@pytest.mark.parametrize("rows", [[2, 0], [1], [0, 0, 2, 1], [2, 1, 0]])
def test_rows_that_stay_keep_what_they_have_and_meet_nothing_else(rows: list[int]) -> None:
    """Positions that no row has written are read as zeros, also where others have left nan."""
    cache = KVCache.empty(2, 3, 1, 6, 4, torch.empty(0))
    cache.reach(3)
    for stored in (cache.keys, cache.values):
        stored[:, :, :, :3] = torch.randn(2, 3, 1, 3, 4)
        stored[:, 1] = torch.nan
    keys, values = cache.keys.clone(), cache.values.clone()
    cache.select(torch.tensor(rows))
    cache.reach(5)
    for found, before in ((cache.keys, keys), (cache.values, values)):
        assert found.is_contiguous() and found.shape == (2, len(rows), 1, 6, 4)
        expected = before[:, rows]
        torch.testing.assert_close(found[:, :, :, :3], expected[:, :, :, :3], rtol=0, atol=0, equal_nan=True)
        assert (found[:, :, :, 3:5] == 0).all()
