"""Target corruption: what a drafter sees of a target sentence, and what it has to predict, as pure tensor functions.

Every function takes targets ``[B, T]`` that end with EOS and are padded on the right, and returns a decoder input and
the target aligned with it position by position, both ``[B, W]``. The aligned target holds pad wherever nothing is to
be predicted. Masked positions hold `unk`. Random numbers come from `generator`, or from torch's global generator
where it is None.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Corrupted(NamedTuple):
    """A decoder input and what it has to predict."""

    prev_output_tokens: Tensor  # [B, W]
    target: Tensor  # [B, W]
    prefix_length: Tensor | None = None  # [B] tokens before the block, where there is one


def _uniform(target: Tensor, size: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Random numbers in [0, 1) on the target's device; float64, so that a product with a length stays below it."""
    return torch.rand(size, generator=generator, device=target.device, dtype=torch.float64)


def block_mask(
    target: Tensor,
    block_size: int,
    *,
    pad: int,
    unk: int,
    max_length: int | None = None,
    generator: torch.Generator | None = None,
) -> Corrupted:
    """Cuts each row at a uniform point and puts `block_size` masks after what is left of the cut.

    The cut is drawn from 0 .. length - 1, so that at least one token (EOS counts) is to be predicted. The masks are
    all there even where the sentence ends within the block, as they are in decoding; those beyond EOS have pad as
    target.

    Args:
        target: ``[B, T]``.
        block_size: masks in a row, at least 1.
        max_length: columns beyond this are left out (the decoder has no positions for them).
    """
    rows, width = target.shape
    lengths = target.ne(pad).sum(dim=1)
    cut = (_uniform(target, (rows,), generator) * lengths).long().unsqueeze(1)  # [B, 1]
    columns = int(cut.max()) + block_size
    if max_length is not None:
        columns = min(columns, max_length)
    padded = target.new_full((rows, max(columns, width)), pad)
    padded[:, :width] = target
    padded = padded[:, :columns]

    position = torch.arange(columns, device=target.device)
    in_prefix, in_row = position < cut, position < cut + block_size
    prev_output_tokens = torch.where(in_prefix, padded, torch.where(in_row, unk, pad))
    return Corrupted(prev_output_tokens, padded.masked_fill(in_prefix | ~in_row, pad), cut.squeeze(1))


def full_mask(target: Tensor, *, pad: int, unk: int) -> Corrupted:
    """Masks every token, EOS included: the drafter must also find the end."""
    return Corrupted(target.masked_fill(target.ne(pad), unk), target)


def random_mask(target: Tensor, *, pad: int, unk: int, generator: torch.Generator | None = None) -> Corrupted:
    """Masks n tokens of each row, drawn without replacement; n is uniform on 1 .. length."""
    tokens = target.ne(pad)
    count = 1 + (_uniform(target, (target.size(0),), generator) * tokens.sum(dim=1)).long()
    scores = _uniform(target, tuple(target.shape), generator).masked_fill(~tokens, 2.0)
    masked = scores.argsort(dim=1).argsort(dim=1) < count.unsqueeze(1)
    return Corrupted(target.masked_fill(masked, unk), target.masked_fill(~masked, pad))


def random_delete(target: Tensor, *, pad: int, eos: int, generator: torch.Generator | None = None) -> Corrupted:
    """Deletes n tokens of each row but never EOS, and closes the gaps; n is uniform on 0 .. length - 1.

    Nothing is masked: the aligned target is the shortened row itself.
    """
    deletable = target.ne(pad) & target.ne(eos)
    count = (_uniform(target, (target.size(0),), generator) * (deletable.sum(dim=1) + 1)).long()
    scores = _uniform(target, tuple(target.shape), generator).masked_fill(~deletable, 2.0)
    kept = target.ne(pad) & (scores.argsort(dim=1).argsort(dim=1) >= count.unsqueeze(1))
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)  # kept tokens first, in their order
    shortened = target.masked_fill(~kept, pad).gather(1, order)[:, : int(kept.sum(dim=1).max())]
    return Corrupted(shortened, shortened)
