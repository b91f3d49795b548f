"""One batch of sentence pairs as two batches, source to target and target to source, and their pseudo translations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from block_plugins.decoding.generator import autoregressive
from block_plugins.decoding.settings import SearchSettings
from block_plugins.decoding.statistics import Statistics


class DirectedBatch(NamedTuple):
    """Pairs in one direction, with pad on either side of the sources and on the right of the targets."""

    src_tokens: Tensor  # [B, S]
    src_lengths: Tensor  # [B]
    prev_output_tokens: Tensor  # [B, T]
    target: Tensor  # [B, T], nothing but pad where the target isn't to be learned
    genuine: Tensor  # [B], true where people wrote both sides

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of an autoregressive model's forward pass."""
        return {
            "src_tokens": self.src_tokens,
            "src_lengths": self.src_lengths,
            "prev_output_tokens": self.prev_output_tokens,
        }


def both_directions(
    sample: dict[str, Any], pad: int, eos: int, tag: int | None = None
) -> tuple[DirectedBatch, DirectedBatch]:
    """fairseq's batch from source to target, and from target to source.

    A side that begins with ``tag`` is a machine's. It is a source, but never a target to learn: the model of that
    direction would learn the other's mistakes, and to write the tag (Caswell et al., 2019, tag sources only).
    """
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    source_right = utils.convert_padding_direction(source, pad, left_to_right=True)
    pseudo = [
        torch.zeros(len(side), dtype=torch.bool, device=side.device) if tag is None else side[:, 0].eq(tag)
        for side in (source_right, target)
    ]
    genuine = ~(pseudo[0] | pseudo[1])

    def directed(sources: Tensor, targets: Tensor, written_by_machine: Tensor) -> DirectedBatch:
        shifted = targets.roll(1, dims=1)
        shifted[:, 0] = eos
        return DirectedBatch(
            sources,
            sources.ne(pad).sum(1),
            shifted.masked_fill(targets.eq(pad), pad),
            targets.masked_fill(written_by_machine.unsqueeze(1), pad),
            genuine,
        )

    return directed(source, target, pseudo[1]), directed(target, source_right, pseudo[0])


def reconstruction(
    generator: FairseqEncoderDecoderModel, batch: DirectedBatch, opposite: DirectedBatch, search: SearchSettings
) -> DirectedBatch | None:
    """The genuine rows of ``opposite`` with ``generator``'s translations of ``batch`` in place of their sources, or
    None where no row is genuine.
    """
    rows = batch.genuine.nonzero().squeeze(1)
    if rows.numel() == 0:
        return None
    pseudo = translate(generator, batch.src_tokens[rows], batch.src_lengths[rows], search)
    lengths = pseudo.ne(search.pad).sum(1)
    return DirectedBatch(pseudo, lengths, *(part[rows] for part in opposite[2:]))


@torch.no_grad()
def translate(
    model: FairseqEncoderDecoderModel, src_tokens: Tensor, src_lengths: Tensor, search: SearchSettings
) -> Tensor:
    """Greedy translations ``[B, T]`` of ``src_tokens [B, S]``, with EOS and padded on the right.

    In evaluation mode, in the model's own precision, and with the cached decoder, whose weights are arranged anew for
    each batch, because training changes them between any two. Each row's length is bounded by that of its own source,
    so that a row's translation doesn't depend on the batch that it is in.
    """
    was_training = model.training
    model.eval()
    with torch.autocast(src_tokens.device.type, enabled=False):
        decoded = autoregressive(model, search)(src_tokens, src_lengths, None, Statistics())
    model.train(was_training)
    positions = model.decoder.max_positions()
    caps = [search.max_len(length, positions) for length in src_lengths.tolist()]
    return _padded(
        [capped(row[0]["tokens"], cap, search.eos) for row, cap in zip(decoded, caps, strict=True)], search.pad
    )


def capped(tokens: Tensor, most: int, eos: int) -> Tensor:
    """The first ``most`` of ``tokens``, which end with EOS, and EOS behind them."""
    return tokens if len(tokens) <= most + 1 else torch.cat([tokens[:most], tokens.new_tensor([eos])])


def _padded(rows: Sequence[Tensor], pad: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad)
