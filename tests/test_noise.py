"""Noise against loops written from the definitions, and its distributions."""

import pytest
import torch
from tiny_training import padded
from torch import Tensor

from block_plugins.noise import block_mask, full_mask, random_delete, random_mask

PAD, EOS, UNK = 1, 2, 3


def rows(count: int, longest: int, seed: int) -> list[list[int]]:
    """Random rows of 1 to `longest` tokens, EOS included."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest, (count,), generator=generator).tolist()
    return [[*torch.randint(4, 30, (n,), generator=generator).tolist(), EOS] for n in lengths]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close_to_uniform(values: Tensor, outcomes: int) -> bool:
    """Whether every count is within 5 standard deviations of what a uniform law expects."""
    counts = torch.bincount(values, minlength=outcomes).double()
    expected = len(values) / outcomes
    return len(counts) == outcomes and bool(((counts - expected).abs() < 5 * expected**0.5).all())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [1, 3, 25])
def test_block_mask_is_prefix_then_masks_and_predicts_what_the_masks_hide(seed: int, block_size: int) -> None:
    sentences = rows(40, 12, seed)
    noisy = block_mask(padded(sentences), block_size, pad=PAD, unk=UNK, generator=generator(seed))
    longest = 0
    for sentence, seen, wanted in zip(sentences, noisy.prev_output_tokens.tolist(), noisy.target.tolist(), strict=True):
        cut = seen.index(UNK)
        assert cut < len(sentence)
        longest = max(longest, cut + block_size)
        expected_input = sentence[:cut] + [UNK] * block_size
        expected_target = [PAD] * cut + sentence[cut : cut + block_size]
        width = len(seen)
        assert seen == expected_input + [PAD] * (width - len(expected_input))
        assert wanted == expected_target + [PAD] * (width - len(expected_target))
    assert noisy.target.size(1) == longest


def test_block_mask_cuts_uniformly_among_all_points_that_leave_something() -> None:
    target = padded([[10, 11, 12, 13, EOS]] * 10000 + [[10, EOS]] * 10000)
    seen = block_mask(target, 4, pad=PAD, unk=UNK, generator=generator()).prev_output_tokens
    cut = seen.eq(UNK).long().argmax(dim=1)
    assert close_to_uniform(cut[:10000], 5)
    assert close_to_uniform(cut[10000:], 2)


def test_block_mask_leaves_out_columns_beyond_the_decoders_positions() -> None:
    sentences = rows(50, 12, 0)
    whole = block_mask(padded(sentences), 8, pad=PAD, unk=UNK, generator=generator())
    limited = block_mask(padded(sentences), 8, pad=PAD, unk=UNK, max_length=13, generator=generator())
    assert whole.target.size(1) > 13
    assert torch.equal(limited.prev_output_tokens, whole.prev_output_tokens[:, :13])
    assert torch.equal(limited.target, whole.target[:, :13])


def test_full_mask_hides_every_token() -> None:
    noisy = full_mask(padded([[7, 8, EOS], [EOS]]), pad=PAD, unk=UNK)
    assert noisy.prev_output_tokens.tolist() == [[UNK, UNK, UNK], [UNK, PAD, PAD]]
    assert noisy.target.tolist() == [[7, 8, EOS], [EOS, PAD, PAD]]


def test_random_mask_hides_some_tokens_and_predicts_just_these() -> None:
    sentences = rows(60, 9, 1)
    noisy = random_mask(padded(sentences), pad=PAD, unk=UNK, generator=generator())
    for sentence, seen, wanted in zip(sentences, noisy.prev_output_tokens.tolist(), noisy.target.tolist(), strict=True):
        assert UNK in seen
        for position, (shown, answer) in enumerate(zip(seen, wanted, strict=True)):
            token = sentence[position] if position < len(sentence) else PAD
            assert (shown, answer) in ([(PAD, PAD)] if token == PAD else [(token, PAD), (UNK, token)])


def test_random_mask_draws_number_and_places_uniformly() -> None:
    target = padded([[10, 11, 12, EOS]] * 12000)
    masked = random_mask(target, pad=PAD, unk=UNK, generator=generator()).prev_output_tokens.eq(UNK)
    count = masked.sum(dim=1)
    assert close_to_uniform(count - 1, 4)
    assert close_to_uniform(masked[count == 1].long().argmax(dim=1), 4)
    assert close_to_uniform(masked[count == 3].logical_not().long().argmax(dim=1), 4)


def test_random_delete_keeps_order_and_eos() -> None:
    sentences = rows(60, 9, 2)
    noisy = random_delete(padded(sentences), pad=PAD, eos=EOS, generator=generator())
    assert torch.equal(noisy.prev_output_tokens, noisy.target)
    assert noisy.target.ne(PAD).any(dim=0).all()  # no column of padding only
    for sentence, row in zip(sentences, noisy.target.tolist(), strict=True):
        kept = row[: row.index(EOS) + 1]
        assert row[len(kept) :] == [PAD] * (len(row) - len(kept))
        remaining = iter(sentence)
        assert all(token in remaining for token in kept)  # a subsequence


def test_random_delete_draws_the_number_uniformly() -> None:
    target = padded([[10, 11, 12, EOS]] * 12000)
    shortened = random_delete(target, pad=PAD, eos=EOS, generator=generator()).target
    assert close_to_uniform(shortened.ne(PAD).sum(dim=1) - 1, 4)
    two_left = shortened[shortened.ne(PAD).sum(dim=1) == 2]
    assert close_to_uniform(two_left[:, 0] - 10, 3)


def test_a_generator_makes_noise_repeatable_and_leaves_the_global_one_alone() -> None:
    target = padded(rows(30, 9, 3))
    before = torch.get_rng_state()
    for noise in (
        lambda g: block_mask(target, 3, pad=PAD, unk=UNK, generator=g),
        lambda g: random_mask(target, pad=PAD, unk=UNK, generator=g),
        lambda g: random_delete(target, pad=PAD, eos=EOS, generator=g),
    ):
        first, second, other = noise(generator(5)), noise(generator(5)), noise(generator(6))
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a is b is None
        assert not torch.equal(first.prev_output_tokens, other.prev_output_tokens)
    assert torch.equal(torch.get_rng_state(), before)
