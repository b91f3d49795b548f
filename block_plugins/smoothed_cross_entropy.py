"""Label-smoothed cross entropy that never holds log-probabilities of the whole batch.

For bfloat16 or float16 logits the arithmetic is done in float32, a slice of rows at a time, so that no float32 copy
of the logits is made either.
"""

from typing import Any

import torch
from torch import Tensor

SLICE_ELEMENTS = 1 << 20
"""Logits that are converted to float32 at a time: small enough to stay in a processor's cache."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(logits.dtype, torch.float32)
        rows = _rows_per_slice(logits)
        normaliser = torch.empty(len(target), dtype=precise, device=logits.device)
        loss, nll = normaliser.new_zeros(()), normaliser.new_zeros(())
        for start in range(0, len(target), rows):
            piece = logits[start : start + rows].to(precise)
            log_z = piece.logsumexp(dim=-1)
            piece_nll = (log_z - piece.gather(1, target[start : start + rows, None]).squeeze(1)).sum()
            nll += piece_nll
            loss += (1.0 - smoothing) * piece_nll + smoothing * (log_z - piece.mean(dim=-1)).sum()
            normaliser[start : start + rows] = log_z
        ctx.save_for_backward(logits, target, normaliser)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor, None, None]:
        logits, target, normaliser = ctx.saved_tensors
        rows = _rows_per_slice(logits)
        gradient = torch.empty_like(logits)
        for start in range(0, len(target), rows):
            stop = start + rows
            piece = (logits[start:stop] - normaliser[start:stop, None]).exp_()  # in the normaliser's precision
            piece -= ctx.smoothing / logits.size(-1)
            correct = target[start:stop, None]
            piece.scatter_add_(1, correct, piece.new_full((1, 1), ctx.smoothing - 1.0).expand_as(correct))
            gradient[start:stop] = piece.mul_(grad_loss)
        return gradient, None, None


def _rows_per_slice(logits: Tensor) -> int:
    return max(1, SLICE_ELEMENTS // logits.size(-1))


def smoothed_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sums over N positions of the smoothed loss and of the plain negative log-likelihood, in nats.

    The smoothed loss of one position is (1 - smoothing) * -log p(target) + smoothing * mean over the vocabulary of
    -log p (Szegedy et al., 2016, section 7). Only the first of the two sums carries a gradient.

    Args:
        logits: ``[N, V]``; N may be 0.
        target: ``[N]``.
        smoothing: 0 (plain cross entropy) to 1.
    """
    loss, nll = _SmoothedCrossEntropy.apply(logits, target, smoothing)
    return loss, nll
