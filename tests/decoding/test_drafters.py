"""Batched drafts equal drafts made one by one, and the drafter's positions bound them."""

import math

import numpy as np
import pytest
import tiny
import torch

from block_plugins.decoding import generator
from block_plugins.decoding.ar_drafter import ARDrafter
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.settings import SpeculationSettings

SYMBOLS = tiny.dictionary(12)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_layers": 1},
        {"decoder_layers": 1, "decoder_normalize_before": True, "layernorm_embedding": True},
        {"decoder_layers": 1, "decoder_learned_pos": False, "src_embedding_copy": False},
        {"decoder_layers": 2},
        {"decoder_layers": 2, "decoder_normalize_before": True, "layernorm_embedding": True},
        {"decoder_layers": 2, "scale_fc": True},  # a layer that only the model's own forward pass knows
    ],
)
def test_a_batched_draft_equals_the_draft_of_each_row_alone(options: dict[str, object]) -> None:
    block = tiny.drafter(SYMBOLS, 2, **options)
    drafter = BlockDrafter(block, PAD, UNK, EOS)
    sample = tiny.sample(SYMBOLS, [5, 1, 8], 1)["net_input"]
    # behind a row's length stands something, as in the decoder's buffer; one prefix holds a real unk
    prefix = np.array([[5, 6, 7, 8], [9, EOS, EOS, 4], [UNK, 5, 4, EOS]])
    length = np.array([4, 0, 3])
    with torch.no_grad():
        batched = drafter.start(**sample, capacity=12).propose(prefix, length, 4, 5)
        for row in range(3):
            tokens = sample["src_tokens"][row]
            alone = drafter.start(tokens[tokens != PAD].unsqueeze(0), sample["src_lengths"][row : row + 1], 12)
            begin = int(length[row])
            expected = alone.propose(prefix[row : row + 1], length[row : row + 1], begin, 5)
            torch.testing.assert_close(batched.logits[row], expected.logits[0], rtol=0, atol=1e-12)
            assert batched.logits[row, :, PAD].eq(-math.inf).all()
            assert batched.tokens[row].tolist() == expected.tokens[0].tolist()
            assert batched.length[row] == expected.length[0] == 5
            inputs = torch.cat([torch.from_numpy(prefix[row : row + 1, :begin]), torch.full((1, 5), UNK)], dim=1)
            source = tokens[tokens != PAD].unsqueeze(0)
            whole = block(source, torch.tensor([source.size(1)]), inputs)[0][:, begin:]
            whole[..., PAD] = -math.inf
            torch.testing.assert_close(batched.logits[row : row + 1], whole, rtol=0, atol=1e-12)


def test_a_block_is_cut_at_the_drafters_last_position() -> None:
    drafter = BlockDrafter(tiny.drafter(SYMBOLS, 2, max_target_positions=6), PAD, UNK, EOS)
    sample = tiny.sample(SYMBOLS, [5, 3, 4], 1)["net_input"]
    prefix = np.full((3, 7), 5)
    length = np.array([4, 7, 0])
    with torch.no_grad():
        draft = drafter.start(**sample, capacity=12).propose(prefix, length, 7, 5)
    assert draft.length.tolist() == [2, 0, 5]


@pytest.mark.parametrize("cached", [True, False])
def test_an_autoregressive_drafter_goes_on_from_any_prefix(cached: bool) -> None:
    """Drafts after every kind of change of the prefix equal the model's own continuation, computed from scratch."""
    options = {} if cached else {"adaptive_softmax_cutoff": [8], "decoder_output_dim": 16}
    model = tiny.verifier(SYMBOLS, 4, decoder_layers=2, **options)
    sample = tiny.sample(SYMBOLS, [5, 1, 8], 1)["net_input"]
    random = np.random.default_rng(0)
    with torch.no_grad():
        state = ARDrafter(model, PAD, EOS).start(**sample, capacity=30)
        encoder_out = model.encoder(**sample)
        prefix, length, newest = np.full((3, 24), EOS), np.zeros(3, dtype=np.int64), 0
        for accepted, undrafted in [([0, 2, 3], 0), ([3, 3, 3], 0), ([1, 0, 2], 2), ([0, 0, 0], 0), ([2, 3, 1], 0)]:
            draft = state.propose(prefix[:, : length.max()], length, newest, 9, 3)
            assert draft.tokens.shape == (3, 3) and draft.length.tolist() == [3, 3, 3]
            for row in range(3):
                row_out = model.encoder.reorder_encoder_out(encoder_out, torch.tensor([row]))
                inputs = [EOS, *prefix[row, : length[row]]]
                for step in range(3):
                    net_output = model.decoder(torch.tensor([inputs]), encoder_out=row_out)
                    scores = model.get_normalized_probs(net_output, log_probs=True)[0, -1]
                    scores[PAD] = -math.inf
                    inputs.append(int(scores.argmax()))
                    assert inputs[-1] == draft.tokens[row, step]
                # the accepted tokens, another one behind them, and more that were never drafted
                committed = [*inputs[1 + length[row] :][: accepted[row]], *random.integers(4, 14, 1 + undrafted)]
                prefix[row, length[row] : length[row] + len(committed)] = committed
                length[row] += len(committed)
            newest = 3 + 1 + undrafted
        state.select(torch.tensor([2, 0]))
        fewer = state.propose(prefix[[2, 0]], length[[2, 0]], newest, 9, 2)
        alone = ARDrafter(model, PAD, EOS).start(**sample, capacity=30).propose(prefix, length, 24, 9, 2)
    assert fewer.tokens.tolist() == alone.tokens[[2, 0]].tolist()


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    model = tiny.verifier(SYMBOLS, 3)
    search = tiny.settings(SYMBOLS, max_len_b=20)
    sample = tiny.sample(SYMBOLS, [3, 8, 5], 5)
    gad = generator.Generator(
        generator.gad(ARDrafter(model, PAD, EOS, model), model, search, SpeculationSettings(4)), PAD, EOS
    )
    lengths = [len(row[0]["tokens"]) for row in gad.generate([], sample)]
    assert gad.statistics.iterations == sum(-(-length // 5) for length in lengths)


def test_an_encoder_that_is_the_verifiers_runs_once() -> None:
    options = {"encoder_learned_pos": True, "share_all_embeddings": True, "no_scale_embedding": True}
    verifier = tiny.verifier(SYMBOLS, 1, activation_fn="gelu", **options)
    block = tiny.drafter(SYMBOLS, 2, encoder_ffn_embed_dim=24)
    sample = tiny.sample(SYMBOLS, [5, 1, 8], 1)["net_input"]
    assert not BlockDrafter(block, PAD, UNK, EOS, verifier).shares_encoder
    block.encoder.load_state_dict(verifier.encoder.state_dict())
    alone, sharing = BlockDrafter(block, PAD, UNK, EOS), BlockDrafter(block, PAD, UNK, EOS, verifier)
    assert sharing.shares_encoder
    prefix, length = np.array([[5], [6], [7]]), np.array([1, 1, 1])
    with torch.no_grad():
        expected = alone.start(**sample, capacity=12).propose(prefix, length, 1, 4)
        encoder_out = verifier.encoder(**sample)
        block.encoder.forward = None  # is not called any more
        state = sharing.start(**sample, capacity=12, verifier_out=encoder_out)
        found = state.propose(prefix, length, 1, 4)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)


def test_equal_weights_that_are_used_otherwise_make_another_encoder() -> None:
    options = {"encoder_learned_pos": True, "share_all_embeddings": True, "no_scale_embedding": True}
    verifier = tiny.verifier(SYMBOLS, 1, activation_fn="relu", **options)
    block = tiny.drafter(SYMBOLS, 2, encoder_ffn_embed_dim=24)
    block.encoder.load_state_dict(verifier.encoder.state_dict())
    assert not BlockDrafter(block, PAD, UNK, EOS, verifier).shares_encoder
