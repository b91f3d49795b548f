"""Glancing: reveal part of the target to the decoder, the more the worse it does (Qian et al., 2021, section 3.2).

A first pass without gradient predicts every masked position. Of each row then floor((masked - correct) * context_p)
masked positions, drawn at random, are replaced by their target token, and the loss is taken on what is still masked.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Glanced(NamedTuple):
    """The decoder input after glancing."""

    prev_output_tokens: Tensor  # [B, T], revealed positions hold their target token
    masked: Tensor  # [B, T], true where the loss is taken
    correct: Tensor  # [] masked positions that the first pass got right
    glanced: Tensor  # [] masked positions of the first pass


def choose_revealed(correct: Tensor, masked: Tensor, context_p: float, scores: Tensor) -> Tensor:
    """Which masked positions are revealed, ``[B, T]``.

    In each row the floor((masked - correct) * context_p) masked positions with the lowest scores.

    Args:
        correct: ``[B, T]``, true where the first pass was right; counts at masked positions only.
        masked: ``[B, T]``.
        context_p: share of the wrong predictions that is made up for, 0 to 1.
        scores: ``[B, T]``, random numbers in [0, 1).
    """
    wrong = (masked & ~correct).sum(dim=1, keepdim=True)
    count = (wrong.double() * context_p).floor().long()  # in float32 0.29 * 100 would be 29
    rank = scores.masked_fill(~masked, 2.0).argsort(dim=1).argsort(dim=1)
    return rank < count


def glance(
    decoder: Any,
    prev_output_tokens: Tensor,
    target: Tensor,
    masked: Tensor,
    encoder_out: dict[str, list[Tensor]],
    context_p: float,
    prefix_length: Tensor | None = None,
) -> Glanced:
    """Runs the first pass and reveals target tokens.

    The random state is put back afterwards, so that the pass that follows draws the same dropout masks.

    Args:
        decoder: gives ``logits_at(tokens, encoder_out, wanted, among, prefix_length)``.
        prev_output_tokens: ``[B, T]``.
        target: ``[B, T]``, aligned with `prev_output_tokens`.
        masked: ``[B, T]``, the positions to be predicted.
        encoder_out: shared by both passes.
        context_p: see :func:`choose_revealed`.
        prefix_length: ``[B]``, what stands before the block, for the decoder; None where there are no blocks.
    """
    device = prev_output_tokens.device
    scores = torch.rand(prev_output_tokens.shape, device=device)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        predicted = decoder.logits_at(prev_output_tokens, encoder_out, masked, masked, prefix_length).argmax(dim=-1)
        correct = torch.zeros_like(masked)
        correct[masked] = predicted.eq(target[masked])
    revealed = choose_revealed(correct, masked, context_p, scores)
    return Glanced(torch.where(revealed, target, prev_output_tokens), masked & ~revealed, correct.sum(), masked.sum())
