"""What proposes tokens: given the sources and the committed prefixes, a draft of the next tokens for each row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from block_plugins.decoding.cached_decoder import (
    DecoderLayers,
    EncoderOut,
    columns,
    finish,
    output_projection,
    position_table,
    why_not_cached,
)
from block_plugins.decoding.fast_path import MAX_ROWS, Embeddings
from block_plugins.decoding.host import Array, to_host
from block_plugins.decoding.int8 import Int8Linear
from block_plugins.decoding.lookahead import GoesOn, planned_length
from block_plugins.decoding.sampling import confidence, propose_by_chance


@dataclass
class Draft:
    """Tokens ``[B, k]`` and the drafter's logits for them, ``[B, k, V]``; of row b the first ``length[b]`` count.
    ``length`` is on the host. Tokens that were drawn were drawn from ``probs`` ``[B, k, V]``.
    """

    tokens: Tensor
    logits: Tensor
    length: Array
    probs: Tensor | None = None


class DraftState(Protocol):
    """A batch whose sources the drafter has encoded."""

    def propose(
        self, prefix: Array, length: Array, newest: int, size: int, k: int | None = None, goes_on: GoesOn | None = None
    ) -> Draft:
        """The first ``k`` tokens (default: all) of a draft of at most ``size`` tokens to follow each prefix.

        ``prefix`` ``[B, T]`` holds the committed tokens, of which the first ``length`` ``[B]`` of each row count, and
        at most the last ``newest`` of these are new since the last call. Both are on the host. With ``goes_on`` a row's
        draft ends with the first token behind which it doesn't go on.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']``."""
        ...


class Drafter(Protocol):
    """Starts drafting for a batch of sources."""

    def start(
        self, src_tokens: Tensor, src_lengths: Tensor, capacity: int, verifier_out: EncoderOut | None = None
    ) -> DraftState:
        """Encodes ``src_tokens`` ``[B, S]``; prefix and draft together will not exceed ``capacity`` tokens.

        ``verifier_out`` is what the verifier's encoder made of them.
        """
        ...


class LateStart:
    """A batch of a drafter that isn't started before it has to draft: where drafts don't pay it never has to."""

    def __init__(self, start: Callable[[], DraftState]) -> None:
        self.start = start
        self.state: DraftState | None = None
        self.selections: list[Tensor] = []

    def propose(
        self, prefix: Array, length: Array, newest: int, size: int, k: int | None = None, goes_on: GoesOn | None = None
    ) -> Draft:
        """See ``DraftState.propose``."""
        if self.state is None:
            self.state = self.start()
            for rows in self.selections:
                self.state.select(rows)
        return self.state.propose(prefix, length, newest, size, k, goes_on)

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        if self.state is None:
            self.selections.append(rows)
        else:
            self.state.select(rows)


class ModelDrafter:
    """What all drafters that are networks have in common."""

    def __init__(
        self,
        model: FairseqEncoderDecoderModel,
        pad: int,
        eos: int,
        verifier: FairseqEncoderDecoderModel | None,
        int8: bool,
        temperature: float,
    ) -> None:
        """Where ``verifier`` has the very encoder that the drafter has, that encoder runs once for both.

        With ``int8`` the decoder's weight matrices are in 8 bits where they are multiplied with a few rows on a CPU,
        those of the output projection always.
        Tokens are drawn at ``temperature``; 0 takes the best ones.
        """
        self.pad, self.eos = pad, eos
        self.temperature = temperature
        self.encoder = model.encoder
        self.shares_encoder = verifier is not None and same_encoder(model.encoder, verifier.encoder)
        self.int8: Int8Linear | None = None
        if int8 and isinstance(model.decoder.output_projection, nn.Linear):
            self.int8 = Int8Linear(model.decoder.output_projection)


class BlockDrafter(ModelDrafter):
    """The block NAT model: prefix, then a block of masks, all read at once; the block's tokens are predicted in
    parallel.

    With one decoder layer nothing of the prefix but that layer's keys and values is ever used, and these depend on the
    token and its position alone: they are kept, and a draft costs no more for a long prefix than for a short one. More
    layers read the whole prefix anew each time, for the decoder attends in both directions.
    """

    def __init__(
        self,
        model: FairseqEncoderDecoderModel,
        pad: int,
        unk: int,
        eos: int,
        verifier: FairseqEncoderDecoderModel | None = None,
        int8: bool = False,
        layers: type[DecoderLayers] = DecoderLayers,
        temperature: float = 0.0,
    ) -> None:
        """``layers`` is how the decoder's layers are run; the others as for ``ModelDrafter``."""
        super().__init__(model, pad, eos, verifier, int8, temperature)
        self.unk = unk
        self.decoder = model.decoder
        self.positions = model.decoder.max_positions()
        # The weights as they are now: of a drafter in training a new one has to be opened for each validation.
        plain = why_not_cached(model.decoder) is None
        self.project = self.int8 or output_projection(model.decoder)
        self.layers = layers(model.decoder, self.int8 is not None) if plain else None
        self.position_table = position_table(model.decoder)
        self.embeddings: Embeddings | None = None
        if self.layers is not None and self.layers.kernels and model.decoder.layernorm_embedding is None:
            self.embeddings = Embeddings(model.decoder.embed_tokens.weight, 1.0, self.position_table)

    def start(
        self, src_tokens: Tensor, src_lengths: Tensor, capacity: int, verifier_out: EncoderOut | None = None
    ) -> "BlockDraftState":
        """See ``Drafter.start``."""
        if self.shares_encoder and verifier_out is not None:
            encoder_out = self.encoder.with_copy_keys(verifier_out, src_tokens)
        else:
            encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        if self.layers is None:
            return BlockDraftState(self, encoder_out)
        if len(self.decoder.layers) == 1:
            return PrefixCachingDraftState(self, encoder_out, self.layers, min(capacity, self.positions))
        return RereadingDraftState(self, encoder_out, self.layers)


class BlockDraftState:
    """Encoded sources. Here the model's own forward pass drafts, which knows layers of every kind."""

    def __init__(self, owner: BlockDrafter, encoder_out: EncoderOut) -> None:
        self.owner = owner
        self.encoder_out = encoder_out
        self.device = encoder_out["encoder_out"][0].device

    def propose(
        self, prefix: Array, length: Array, newest: int, size: int, k: int | None = None, goes_on: GoesOn | None = None
    ) -> Draft:
        """See ``DraftState.propose``. A row whose prefix leaves no position for a draft gets an empty one."""
        owner = self.owner
        k = size if k is None else k
        room = (owner.positions - length).clip(0, size)
        # the network always reads a whole block of masks, as it was trained to
        logits = owner.project(self.features(prefix, length, min(newest, prefix.shape[1]), room, size)[:, :k])
        logits.select(2, owner.pad).fill_(float("-inf"))
        tokens, probs = propose_by_chance(logits, owner.temperature)
        length = room.clip(max=k)
        if goes_on is not None:
            (sure,) = to_host(confidence(logits, tokens, probs))
            length = np.minimum(length, planned_length(sure, goes_on))
        return Draft(tokens, logits, length, probs)

    def features(self, prefix: Array, length: Array, newest: int, room: Array, k: int) -> Tensor:
        """Finished features ``[B, k, d]`` of ``k`` masks behind each prefix; row b has room for ``room[b]`` of them."""
        tokens, at = self.side_by_side(prefix, length, room, k)
        return columns(self.owner.decoder.extract_features(tokens, self.encoder_out)[0], at)

    def side_by_side(self, prefix: Array, length: Array, room: Array, k: int) -> tuple[Tensor, Tensor]:
        """The decoder's input ``[prefix, masks, pad]`` ``[B, T]``, and where the masks stand, ``[B, k]``."""
        owner = self.owner
        width = min(int(length.max()) + k, owner.positions)
        column = np.arange(width)
        start = length[:, None].clip(max=width)
        end = start + room[:, None]
        tokens = np.full((len(length), width), owner.pad)
        known = min(prefix.shape[1], width)
        tokens[:, :known] = prefix[:, :known]
        tokens[(column >= start) & (column < end)] = owner.unk
        tokens[column >= end] = owner.pad
        at = (start + np.arange(k)).clip(max=width - 1)
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(at).to(self.device)

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        self.encoder_out = self.owner.encoder.reorder_encoder_out(self.encoder_out, rows)


class RereadingDraftState(BlockDraftState):
    """The same network, without what a draft can do without: the sources are projected once a batch, not once a draft,
    and the last layer is computed for the block alone.
    """

    def __init__(self, owner: BlockDrafter, encoder_out: EncoderOut, layers: DecoderLayers) -> None:
        super().__init__(owner, encoder_out)
        self.state = layers.start(encoder_out, 0)

    def features(self, prefix: Array, length: Array, newest: int, room: Array, k: int) -> Tensor:
        """See ``BlockDraftState.features``."""
        tokens, at = self.side_by_side(prefix, length, room, k)
        decoder = self.owner.decoder
        x, positions = decoder.embed(tokens, self.encoder_out)
        return finish(decoder, self.state.reread(x, positions, tokens.ne(self.owner.pad), at))

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        super().select(rows)
        self.state.select(rows)


class PrefixCachingDraftState(BlockDraftState):
    """A decoder of one layer, whose keys and values of the prefix are kept from draft to draft."""

    def __init__(self, owner: BlockDrafter, encoder_out: EncoderOut, layers: DecoderLayers, capacity: int) -> None:
        super().__init__(owner, encoder_out)
        self.state = layers.start(encoder_out, capacity)
        self.capacity = capacity
        # the decoder's input at masked positions [B, P, d], which depends on the source and the position alone
        self.masks: Tensor | None = None

    def features(self, prefix: Array, length: Array, newest: int, room: Array, k: int) -> Tensor:
        """See ``BlockDraftState.features``."""
        owner, longest = self.owner, int(length.max())
        masks = self._masks(longest + k)
        kernels, embeddings = self.state.kernels, owner.embeddings
        if kernels is not None and embeddings is not None and len(length) * k <= MAX_ROWS:
            x = kernels.draft(prefix, length, newest, room, k, owner.unk, embeddings, masks)
            return finish(owner.decoder, x)
        start = torch.from_numpy(length).to(self.device).unsqueeze(1)
        if newest > 0:
            at = start + torch.arange(-newest, 0, device=self.device)  # [B, newest]
            # into the slot for what nobody sees goes what isn't there, or is beyond the drafter's positions
            at = torch.where((at >= 0) & (at < self.capacity), at, self.capacity)
            tokens = torch.from_numpy(prefix).to(self.device).gather(1, at.clamp(max=prefix.shape[1] - 1))
            self.state.store(self._embed(tokens, at), at)
        at = start + torch.arange(k, device=self.device)  # [B, k]
        x = columns(masks, at.clamp(max=masks.size(1) - 1))
        end = start + torch.from_numpy(room).to(self.device).unsqueeze(1)
        at = torch.where(at < end, at, self.capacity)
        # a row without room for a draft sees something all the same; nobody reads what it drafts
        seen = end.clamp(min=1, max=self.capacity).expand(-1, k)
        return finish(owner.decoder, self.state.run(x, at, seen, min(longest + k, self.capacity)))

    def _masks(self, count: int) -> Tensor:
        """The input at masked positions ``[B, P, d]``, of at least the first ``count``, where there are as many."""
        if self.masks is None or self.masks.size(1) < min(count, self.capacity):
            rows = self.encoder_out["encoder_out"][0].size(1)
            positions = torch.arange(min(self.capacity, 2 * count), device=self.device).expand(rows, -1)
            self.masks = self._embed(torch.full_like(positions, self.owner.unk), positions)
        return self.masks

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        decoder = self.owner.decoder
        embedded = F.embedding(positions.clamp(max=self.owner.positions - 1), self.owner.position_table)
        x, _ = decoder.embed(tokens, self.encoder_out, embedded)
        return x + embedded

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        super().select(rows)
        self.state.select(rows)
        if self.masks is not None:
            self.masks = self.masks.index_select(0, rows)


@torch.no_grad()
def same_encoder(one: FairseqEncoder, other: FairseqEncoder) -> bool:
    """Whether two Transformer encoders have equal weights and compute the same with them."""
    if not isinstance(one, TransformerEncoderBase) or not isinstance(other, TransformerEncoderBase):
        return False
    weights, others = dict(one.named_parameters()), dict(other.named_parameters())
    if weights.keys() != others.keys():
        return False
    for name, weight in weights.items():
        other_weight = others[name]
        if weight.dtype != other_weight.dtype or not torch.equal(weight, other_weight):
            return False
    size, device = one.embed_tokens.num_embeddings, next(iter(weights.values())).device
    probe = torch.arange(size - min(size, 8), size, device=device).unsqueeze(0)
    outputs = [encoder(probe, src_lengths=probe.new_tensor([probe.size(1)])) for encoder in (one, other)]
    return all(torch.equal(outputs[0][key][0], outputs[1][key][0]) for key in ("encoder_out", "encoder_embedding"))
