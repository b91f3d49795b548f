"""Batched drafts equal drafts made one by one, and the drafter's positions bound them."""

import math

import pytest
import tiny
import torch

from block_plugins.decoding.drafters import BlockDrafter

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
    prefix = torch.tensor([[5, 6, 7, 8], [9, EOS, EOS, 4], [UNK, 5, 4, EOS]])
    length = torch.tensor([4, 0, 3])
    budget = torch.tensor([20, 20, 2])
    with torch.no_grad():
        batched = drafter.start(**sample, capacity=12).propose(prefix, length, [4, 0, 3], 4, 5, budget)
        for row in range(3):
            tokens = sample["src_tokens"][row]
            alone = drafter.start(tokens[tokens != PAD].unsqueeze(0), sample["src_lengths"][row : row + 1], 12)
            begin = int(length[row])
            expected = alone.propose(
                prefix[row : row + 1], length[row : row + 1], [begin], begin, 5, budget[row : row + 1]
            )
            torch.testing.assert_close(batched.logits[row], expected.logits[0], rtol=0, atol=1e-12)
            assert batched.logits[row, :, PAD].eq(-math.inf).all()
            assert batched.tokens[row].tolist() == expected.tokens[0].tolist()
            assert batched.length[row] == expected.length[0] <= budget[row]
            inputs = torch.cat([prefix[row : row + 1, :begin], torch.full((1, 5), UNK)], dim=1)
            source = tokens[tokens != PAD].unsqueeze(0)
            whole = block(source, torch.tensor([source.size(1)]), inputs)[0][:, begin:]
            whole[..., PAD] = -math.inf
            torch.testing.assert_close(batched.logits[row : row + 1], whole, rtol=0, atol=1e-12)


def test_nothing_behind_a_drafted_eos_is_sent() -> None:
    block = tiny.drafter(SYMBOLS, 2, share_all_embeddings=False)
    block.decoder.output_projection.weight.data.zero_()
    block.decoder.output_projection.weight.data[EOS] = 1.0
    drafter = BlockDrafter(block, PAD, UNK, EOS)
    sample = tiny.sample(SYMBOLS, [5, 3], 1)["net_input"]
    with torch.no_grad():
        draft = drafter.start(**sample, capacity=12).propose(
            torch.tensor([[5], [6]]), torch.tensor([1, 1]), [1, 1], 1, 4, torch.tensor([9, 9])
        )
    ids = draft.tokens.tolist()
    for row, count in zip(ids, draft.length.tolist(), strict=True):
        assert count == (row.index(EOS) + 1 if EOS in row else 4)
    assert any(EOS in row[:-1] for row in ids)


def test_a_block_is_cut_at_the_drafters_last_position() -> None:
    drafter = BlockDrafter(tiny.drafter(SYMBOLS, 2, max_target_positions=6), PAD, UNK, EOS)
    sample = tiny.sample(SYMBOLS, [5, 3, 4], 1)["net_input"]
    prefix = torch.full((3, 7), 5)
    length = torch.tensor([4, 7, 0])
    with torch.no_grad():
        draft = drafter.start(**sample, capacity=12).propose(prefix, length, [4, 7, 0], 7, 5, torch.tensor([9, 9, 9]))
    assert draft.length[0] <= 2
    assert draft.length[1] == 0
    assert draft.length[2] <= 5


def test_an_encoder_that_is_the_verifiers_runs_once() -> None:
    options = {"encoder_learned_pos": True, "share_all_embeddings": True, "no_scale_embedding": True}
    verifier = tiny.verifier(SYMBOLS, 1, activation_fn="gelu", **options)
    block = tiny.drafter(SYMBOLS, 2, encoder_ffn_embed_dim=24)
    sample = tiny.sample(SYMBOLS, [5, 1, 8], 1)["net_input"]
    assert not BlockDrafter(block, PAD, UNK, EOS, verifier).shares_encoder
    block.encoder.load_state_dict(verifier.encoder.state_dict())
    alone, sharing = BlockDrafter(block, PAD, UNK, EOS), BlockDrafter(block, PAD, UNK, EOS, verifier)
    assert sharing.shares_encoder
    prefix, length, budget = torch.tensor([[5], [6], [7]]), torch.tensor([1, 1, 1]), torch.tensor([9, 9, 9])
    with torch.no_grad():
        expected = alone.start(**sample, capacity=12).propose(prefix, length, [1, 1, 1], 1, 4, budget)
        encoder_out = verifier.encoder(**sample)
        block.encoder.forward = None  # is not called any more
        state = sharing.start(**sample, capacity=12, verifier_out=encoder_out)
        found = state.propose(prefix, length, [1, 1, 1], 1, 4, budget)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)


def test_equal_weights_that_are_used_otherwise_make_another_encoder() -> None:
    options = {"encoder_learned_pos": True, "share_all_embeddings": True, "no_scale_embedding": True}
    verifier = tiny.verifier(SYMBOLS, 1, activation_fn="relu", **options)
    block = tiny.drafter(SYMBOLS, 2, encoder_ffn_embed_dim=24)
    block.encoder.load_state_dict(verifier.encoder.state_dict())
    assert not BlockDrafter(block, PAD, UNK, EOS, verifier).shares_encoder
