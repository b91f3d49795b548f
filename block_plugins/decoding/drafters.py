"""What proposes tokens: given the sources and the committed prefixes, a draft of the next tokens for each row."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from block_plugins.decoding.cached_decoder import (
    EncoderOut,
    JoinedWeights,
    joined_projection,
    project_heads,
    project_memory,
    run_layer,
    why_not_cached,
)
from block_plugins.decoding.kv_cache import KVCache


@dataclass
class Draft:
    """Tokens ``[B, k]`` and the drafter's logits for them, ``[B, k, V]``; of row b the first ``length[b]`` count."""

    tokens: Tensor
    logits: Tensor
    length: Tensor


class DraftState(Protocol):
    """A batch whose sources the drafter has encoded."""

    def propose(self, prefix: Tensor, length: Tensor, longest: int, k: int, budget: Tensor) -> Draft:
        """At most ``k`` tokens to follow each prefix.

        ``prefix`` ``[B, T]`` holds the committed tokens, of which the first ``length`` ``[B]`` (at most ``longest``)
        of each row count; ``budget`` ``[B]`` is how many tokens a row can still use.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']``."""
        ...


class Drafter(Protocol):
    """Starts drafting for a batch of sources."""

    def start(self, src_tokens: Tensor, src_lengths: Tensor) -> DraftState:
        """Encodes ``src_tokens`` ``[B, S]``."""
        ...


class BlockDrafter:
    """The block NAT model: prefix, then a block of masks, all read at once; the block's tokens are predicted in
    parallel.
    """

    def __init__(self, model: FairseqEncoderDecoderModel, pad: int, unk: int, eos: int) -> None:
        self.encoder = model.encoder
        self.decoder = model.decoder
        self.positions = model.decoder.max_positions()
        self.pad, self.unk, self.eos = pad, unk, eos
        self.plain = why_not_cached(model.decoder) is None

    def start(self, src_tokens: Tensor, src_lengths: Tensor) -> "BlockDraftState":
        """See ``Drafter.start``."""
        return BlockDraftState(self, self.encoder(src_tokens, src_lengths=src_lengths))

    def features(self, tokens: Tensor, at: Tensor, state: "BlockDraftState") -> Tensor:
        """Features ``[B, k, d]`` of the positions ``at`` ``[B, k]`` of ``tokens`` ``[B, T]``.

        The same network as the model's own forward pass, without what a draft can do without: the sources are projected
        once a batch, not once a draft, and the last layer is computed for the block alone.
        """
        decoder = self.decoder
        if not self.plain:  # unusual layers: the model's own forward pass knows them
            return _rows(decoder.extract_features(tokens, state.encoder_out)[0], at)
        x, positions = decoder.embed(tokens, state.encoder_out)
        known = ~tokens.eq(self.pad)[:, None, None, :]  # [B, 1, 1, T]
        last = len(decoder.layers) - 1
        for index, (layer, weights, cross) in enumerate(
            zip(decoder.layers, state.qkv, state.cross_caches, strict=True)
        ):
            x = x + positions
            query, key, value = project_heads(layer, x, weights)  # [B, T, heads, head_dim]
            if index == last:
                x = _rows(x, at)
                query = _rows(query.flatten(2), at).unflatten(2, query.shape[2:])
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=known
            )
            x = run_layer(layer, x, mixed, cross, state.visible)
        return decoder.finish(x)


class BlockDraftState:
    """Encoded sources; the prefix is read anew each time, for the decoder attends in both directions."""

    def __init__(self, owner: BlockDrafter, encoder_out: EncoderOut) -> None:
        self.owner = owner
        self.encoder_out = encoder_out
        self.qkv: list[JoinedWeights] = []
        self.cross_caches: list[KVCache] = []
        self.visible: Tensor | None = None
        if owner.plain:
            # joined anew for each batch, for the weights may be in training
            self.qkv = [joined_projection(layer.self_attn) for layer in owner.decoder.layers]
            self.cross_caches, self.visible = project_memory(owner.decoder, encoder_out)

    def propose(self, prefix: Tensor, length: Tensor, longest: int, k: int, budget: Tensor) -> Draft:
        """See ``DraftState.propose``. A row whose prefix leaves no position for a draft gets an empty one."""
        owner = self.owner
        # Rows are drafted side by side: [prefix, k masks, pad]. A block is never cut short by the budget, for the
        # drafter was trained on whole blocks; only the drafter's positions cut it.
        block = (owner.positions - length).clamp(min=0, max=k).unsqueeze(1)  # [B, 1]
        width = min(longest + k, owner.positions)
        column = torch.arange(width, device=prefix.device)
        start = length.unsqueeze(1).clamp(max=width)
        tokens = torch.full((prefix.size(0), width), owner.pad, dtype=prefix.dtype, device=prefix.device)
        known = min(prefix.size(1), width)
        tokens[:, :known] = prefix[:, :known]
        tokens = tokens.masked_fill((column >= start) & (column < start + block), owner.unk)
        tokens = tokens.masked_fill(column >= start + block, owner.pad)

        at = (start + torch.arange(k, device=prefix.device)).clamp(max=width - 1)  # [B, k]
        logits = owner.decoder.output_layer(owner.features(tokens, at, self))
        allowed = logits.clone()
        allowed[..., owner.pad] = float("-inf")
        draft = allowed.argmax(-1)
        # what stands behind a drafted EOS can never be committed
        ended = draft.eq(owner.eos).long().cumsum(1) - draft.eq(owner.eos).long()
        useful = torch.minimum((ended == 0).sum(1), torch.minimum(block.squeeze(1), budget))
        return Draft(draft, logits, useful)

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        self.encoder_out = self.owner.encoder.reorder_encoder_out(self.encoder_out, rows)
        for cache in self.cross_caches:
            cache.select(rows)
        if self.visible is not None:
            self.visible = self.visible.index_select(0, rows)


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """The positions ``at`` ``[B, k]`` of ``x`` ``[B, T, d]``."""
    return x.gather(1, at.unsqueeze(2).expand(-1, -1, x.size(2)))
