"""A fairseq decoder as a step function: tokens in, logits out, with the past kept in a static cache.

``open_decoder`` gives a ``CachedDecoder`` for every Transformer decoder that it can run exactly, and a
``RecomputingDecoder``, slower but never wrong, for all others. Both are used through ``start`` and the state's
``step`` and ``select``.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from fairseq.models import FairseqDecoder, FairseqEncoder
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules import MultiheadAttention, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from block_plugins.decoding import fast_path
from block_plugins.decoding.fast_path import Product
from block_plugins.decoding.host import Array
from block_plugins.decoding.kv_cache import KVCache

logger = logging.getLogger(__name__)

EncoderOut = dict[str, list[Tensor]]


class DecoderState(Protocol):
    """A batch of target sequences that a decoder is in the middle of."""

    device: torch.device
    dtype: torch.dtype

    def step(self, tokens: Tensor, start: Array) -> Tensor:
        """Logits (or log-probabilities) ``[B, n, V]`` after each of ``tokens`` ``[B, n]``.

        Row b's tokens stand at positions ``start[b] ... start[b] + n - 1`` of the decoder's input (position 0 is the
        EOS that begins every target); whatever stood there or behind is forgotten. ``start`` ``[B]`` is on the host.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']``, in that order."""
        ...

    def reorder(self, rows: Tensor, filled: int) -> None:
        """Permutes (or repeats) rows ``[B]`` among rows of the same source, whose first ``filled`` positions count."""
        ...


class StepDecoder(Protocol):
    """Starts decoding a batch; ``positions`` is how many tokens the decoder's input may have."""

    positions: int

    def start(self, encoder_out: EncoderOut, capacity: int, beams: int = 1) -> DecoderState:
        """A state for encoded sources, for inputs of at most ``capacity`` (no more than ``positions``) tokens.

        With several ``beams`` each source has as many rows, side by side, and comes and goes with all of them.
        """
        ...


def open_decoder(
    encoder: FairseqEncoder, decoder: FairseqDecoder, layers: "type[DecoderLayers] | None" = None, int8: bool = False
) -> StepDecoder:
    """The fastest step function that reproduces ``decoder`` exactly, or with ``int8`` nearly so; ``layers`` is how a
    cached one runs them.
    """
    reason = why_not_cached(decoder)
    if reason is None:
        return CachedDecoder(decoder, layers or DecoderLayers, int8)
    logger.warning("no cache for this decoder (%s): every step recomputes the whole prefix, which is slower", reason)
    return RecomputingDecoder(encoder, decoder)


def why_not_cached(decoder: FairseqDecoder) -> str | None:
    """Why ``CachedDecoder`` can't run this decoder, or None where it can."""
    if not isinstance(decoder, TransformerDecoderBase):
        return f"{type(decoder).__name__} is not a Transformer decoder"
    if type(decoder).extract_features_scriptable is not TransformerDecoderBase.extract_features_scriptable:
        return f"{type(decoder).__name__} has a forward pass of its own"
    if decoder.adaptive_softmax is not None:
        return "adaptive softmax"
    if decoder.cross_self_attention:
        return "cross_self_attention"
    if decoder.quant_noise is not None:
        return "quantisation noise"
    for layer in decoder.layers:
        if not isinstance(layer, TransformerDecoderLayerBase):
            return f"layers of type {type(layer).__name__}"
        if layer.encoder_attn is None:
            return "no cross-attention"
        if layer.c_attn is not None or layer.attn_ln is not None or layer.ffn_layernorm is not None:
            return "scaled heads or extra layer norms"
        if layer.w_resid is not None:
            return "scaled residuals"
        for attention in (layer.self_attn, layer.encoder_attn):
            if attention.bias_k is not None or attention.add_zero_attn:
                return "attention with extra keys"
            if not isinstance(attention.q_proj, nn.Linear):
                return "quantised attention projections"
            if attention.head_dim != decoder.layers[0].self_attn.head_dim:
                return "layers with heads of different widths"
    return None


class InferenceLayer:
    """A fairseq decoder layer in evaluation mode, in two parts: what self-attention needs, and what comes after it."""

    def __init__(self, layer: TransformerDecoderLayerBase) -> None:
        attention, cross = layer.self_attn, layer.encoder_attn
        self.module = layer
        self.qkv = Product(*joined_projection(attention))  # query, key and value in one product
        self.self_out = Product(attention.out_proj.weight, attention.out_proj.bias)
        self.cross_query = Product(cross.q_proj.weight, cross.q_proj.bias)
        self.cross_out = Product(cross.out_proj.weight, cross.out_proj.bias)
        self.fc1 = Product(layer.fc1.weight, layer.fc1.bias)
        self.fc2 = Product(layer.fc2.weight, layer.fc2.bias)

    def project_heads(self, x: Tensor) -> tuple[Tensor, ...]:
        """Self-attention query, key and value for the layer's input ``x`` ``[B, n, d]``, each ``[B, n, heads,
        head_dim]``.
        """
        if self.module.normalize_before:
            x = self.module.self_attn_layer_norm(x)
        return tuple(split_heads(part, self.module.self_attn.num_heads) for part in self.qkv(x).chunk(3, dim=-1))

    def finish(self, x: Tensor, mixed: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        """The layer's output for its input ``x`` ``[B, n, d]``.

        ``mixed`` ``[B, heads, n, head_dim]`` is what its self-attention found for these positions; ``keys`` and
        ``values`` ``[B', heads, S, head_dim]`` are those of its cross-attention, for B / B' rows of x each.
        """
        layer, before = self.module, self.module.normalize_before
        x = x + self.self_out(_join_heads(mixed))
        if not before:
            x = layer.self_attn_layer_norm(x)

        residual = x
        if before:
            x = layer.encoder_attn_layer_norm(x)
        # to its source the beams of a sentence are so many positions more
        query = self.cross_query(x).view(keys.size(0), -1, x.size(2))
        query = split_heads(query, layer.encoder_attn.num_heads).transpose(1, 2)
        x = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        x = residual + self.cross_out(_join_heads(x).view(residual.shape))
        if not before:
            x = layer.encoder_attn_layer_norm(x)

        residual = x
        if before:
            x = layer.final_layer_norm(x)
        x = residual + self.fc2(layer.activation_fn(self.fc1(x)))
        if not before:
            x = layer.final_layer_norm(x)
        return x


class DecoderLayers:
    """The layers of a fairseq Transformer decoder over static caches, in evaluation mode (no dropout).

    A few rows on a CPU go through compiled kernels, all others through torch. The weights are
    arranged when the object is made: make a new one after the decoder's parameters have changed.
    """

    def __init__(self, decoder: TransformerDecoderBase, int8: bool = False) -> None:
        """With ``int8`` the kernels' matrices are in 8 bits, which is for drafters."""
        self.layers = [InferenceLayer(layer) for layer in decoder.layers]
        self.kernels = fast_path.open_kernels(decoder.layers, [layer.qkv for layer in self.layers], int8)

    def start(self, encoder_out: EncoderOut, capacity: int, beams: int = 1) -> "LayersState":
        """Projects the cross-attention's keys and values once and allocates the self-attention's cache, ``beams`` rows
        for each source.
        """
        like = encoder_out["encoder_out"][0]
        cross, visible = project_memory(self.layers, encoder_out)
        attention = self.layers[0].module.self_attn
        # one slot more, where tokens beyond the capacity can be written without harm
        past = KVCache.empty(
            len(self.layers), like.size(1) * beams, attention.num_heads, capacity + 1, attention.head_dim, like
        )
        return LayersState(self, past, cross, visible)


class LayersState:
    """A batch on its way through the layers: caches of its self- and cross-attention."""

    def __init__(self, owner: DecoderLayers, past: KVCache, cross: KVCache, visible: Tensor | None) -> None:
        self.owner = owner
        self.past = past
        self.cross = cross
        self.visible = visible
        self._bind()

    def _bind(self) -> None:
        kernels = self.owner.kernels
        self.kernels = None if kernels is None else kernels.bind(self.past, self.cross, self.visible)

    def run(self, x: Tensor, positions: Tensor, seen: Tensor, longest: int) -> Tensor:
        """The layers' output ``[B, n, d]`` for ``x`` ``[B, n, d]``, which is overwritten.

        Column i of row b stands at ``positions[b, i]`` and sees what stands before ``seen[b, i]``, itself and the other
        columns included; ``longest`` is the greatest of ``seen``.
        """
        if self.kernels is not None and fast_path.suits(x, fast_path.MAX_ROWS):
            return self.kernels.run(x, positions, seen)
        mask = (torch.arange(longest, device=x.device) < seen.unsqueeze(2)).unsqueeze(1)  # [B, 1, n, longest]
        for index, layer in enumerate(self.owner.layers):
            query, key, value = layer.project_heads(x)
            self.past.write(index, key, value, positions)
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                self.past.keys[index, :, :, :longest],
                self.past.values[index, :, :, :longest],
                attn_mask=mask,
            )
            x = layer.finish(x, mixed, self.cross.keys[index], self.cross.values[index], self.visible)
        return x

    def reread(self, x: Tensor, added: Tensor, known: Tensor, at: Tensor) -> Tensor:
        """The layers' output ``[B, k, d]`` at the positions ``at`` ``[B, k]`` of ``x`` ``[B, T, d]``, without a past.

        ``added`` ``[B, T, d]`` is added before every layer. All positions see those that are ``known`` ``[B, T]``.
        """
        last = len(self.owner.layers) - 1
        for index, layer in enumerate(self.owner.layers):
            x = x + added
            query, key, value = layer.project_heads(x)  # [B, T, heads, head_dim]
            if index == last:
                x = columns(x, at)
                query = columns(query.flatten(2), at).unflatten(2, query.shape[2:])
            mixed = F.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=known[:, None, None, :]
            )
            x = layer.finish(x, mixed, self.cross.keys[index], self.cross.values[index], self.visible)
        return x

    def store(self, x: Tensor, positions: Tensor) -> None:
        """Writes the first layer's keys and values of ``x`` ``[B, n, d]`` at ``positions`` ``[B, n]``, nothing more."""
        _, key, value = self.owner.layers[0].project_heads(x)
        self.past.write(0, key, value, positions)

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']`` of the caches."""
        beams = self.past.keys.size(1) // self.cross.keys.size(1)
        sources = rows[::beams] // beams
        self.past.select(rows)
        self.cross.select(sources)
        if self.visible is not None:
            self.visible = self.visible.index_select(0, sources)
        self._bind()


class CachedDecoder:
    """Runs a fairseq Transformer decoder over static caches, in evaluation mode (no dropout)."""

    def __init__(
        self, decoder: TransformerDecoderBase, layers: type[DecoderLayers] = DecoderLayers, int8: bool = False
    ) -> None:
        self.decoder = decoder
        self.positions = decoder.max_positions()
        self.layers = layers(decoder, int8)
        self.project = output_projection(decoder)
        self.position_table = None if decoder.embed_positions is None else position_table(decoder)
        self.embeddings: fast_path.Embeddings | None = None
        if self.layers.kernels and decoder.project_in_dim is None and decoder.layernorm_embedding is None:
            weight = decoder.embed_tokens.weight
            self.embeddings = fast_path.Embeddings(weight, decoder.embed_scale, self.position_table)

    def start(self, encoder_out: EncoderOut, capacity: int, beams: int = 1) -> "CachedState":
        """See ``StepDecoder.start``."""
        return CachedState(self, self.layers.start(encoder_out, capacity, beams), capacity)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token plus position embeddings ``[B, n, d]`` of ``tokens`` at ``positions``, both ``[B, n]``."""
        decoder = self.decoder
        x = decoder.embed_tokens(tokens)
        if decoder.embed_scale != 1.0:
            x = decoder.embed_scale * x
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if self.position_table is not None:
            # the slot beyond the last position is nobody's, so any embedding will do there
            x = x + F.embedding(positions.clamp(max=self.positions - 1), self.position_table)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        return x


class CachedState:
    """A batch in decoding."""

    def __init__(self, owner: CachedDecoder, layers: LayersState, capacity: int) -> None:
        self.owner = owner
        self.layers = layers
        self.capacity = capacity
        self.device, self.dtype = layers.past.keys.device, layers.past.keys.dtype

    def step(self, tokens: Tensor, start: Array) -> Tensor:
        """See ``DecoderState.step``. Logits at positions beyond the capacity mean nothing."""
        owner, kernels = self.owner, self.layers.kernels
        longest = int(start.max()) + tokens.size(1)
        self.layers.past.reach(min(longest, self.capacity + 1))
        if kernels is not None and owner.embeddings is not None and tokens.numel() <= fast_path.MAX_ROWS:
            x = kernels.decode(tokens, start, self.capacity, owner.embeddings)
            return owner.project(finish(owner.decoder, x))
        offsets = torch.arange(tokens.size(1), device=tokens.device)
        positions = torch.from_numpy(start).to(tokens.device).unsqueeze(1) + offsets  # [B, n]
        if longest > self.capacity:
            # a token beyond the capacity writes into the slot that is kept for such, and sees it too
            positions = positions.clamp(max=self.capacity)
            longest = self.capacity + 1
        x = self.layers.run(owner.embed(tokens, positions), positions, positions + 1, longest)
        return owner.project(finish(owner.decoder, x))

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']`` of every cache."""
        self.layers.select(rows)

    def reorder(self, rows: Tensor, filled: int) -> None:
        """See ``DecoderState.reorder``: the sources' caches stay as they are."""
        self.layers.past.reorder(rows, filled)


class RecomputingDecoder:
    """Any fairseq decoder, run anew over the whole input at each step."""

    def __init__(self, encoder: FairseqEncoder, decoder: FairseqDecoder) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.positions = decoder.max_positions()

    def start(self, encoder_out: EncoderOut, capacity: int, beams: int = 1) -> "RecomputingState":
        """See ``StepDecoder.start``."""
        return RecomputingState(self, encoder_out, capacity, beams)


class RecomputingState:
    """A batch in decoding: the tokens seen so far, ``[B, capacity]``."""

    def __init__(self, owner: RecomputingDecoder, encoder_out: EncoderOut, capacity: int, beams: int) -> None:
        self.owner = owner
        self.beams = beams
        self.encoder_out = encoder_out
        self.capacity = capacity
        self.tokens: Tensor | None = None
        weight = next(owner.decoder.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def step(self, tokens: Tensor, start: Array) -> Tensor:
        """See ``DecoderState.step``; gives log-probabilities, the one thing that every fairseq decoder can give."""
        if self.tokens is None:
            sources = torch.arange(tokens.size(0), device=tokens.device) // self.beams
            self.encoder_out = self.owner.encoder.reorder_encoder_out(self.encoder_out, sources)
            # Any token but pad will do behind a row's end: a causal decoder doesn't look there.
            self.tokens = tokens[:, :1].expand(-1, self.capacity + 1).contiguous()
        offsets = torch.arange(tokens.size(1), device=tokens.device)
        positions = (torch.from_numpy(start).to(tokens.device).unsqueeze(1) + offsets).clamp(max=self.capacity)
        self.tokens.scatter_(1, positions, tokens)
        longest = min(int(start.max()) + tokens.size(1), self.capacity)
        net_output = self.owner.decoder(self.tokens[:, :longest], encoder_out=self.encoder_out)
        log_probs = self.owner.decoder.get_normalized_probs(net_output, log_probs=True, sample=None)
        wanted = positions.clamp(max=longest - 1).unsqueeze(2).expand(-1, -1, log_probs.size(2))
        return log_probs.gather(1, wanted)

    def select(self, rows: Tensor) -> None:
        """See ``DecoderState.select``."""
        self.encoder_out = self.owner.encoder.reorder_encoder_out(self.encoder_out, rows)
        self.reorder(rows, self.capacity)

    def reorder(self, rows: Tensor, filled: int) -> None:
        """See ``DecoderState.reorder``."""
        if self.tokens is not None:
            self.tokens = self.tokens.index_select(0, rows)


def project_memory(layers: Sequence[InferenceLayer], encoder_out: EncoderOut) -> tuple[KVCache, Tensor | None]:
    """The cross-attention's keys and values, and which source positions are no padding, ``[B, 1, 1, S]``, or None
    where all are.
    """
    memory = encoder_out["encoder_out"][0].transpose(0, 1)  # [B, S, encoder d]
    padding = encoder_out["encoder_padding_mask"]
    visible = None
    if len(padding) > 0 and bool(padding[0].any()):
        visible = ~padding[0][:, None, None, :]
    keys, values = [], []
    for layer in layers:
        cross = layer.module.encoder_attn
        keys.append(split_heads(cross.k_proj(memory), cross.num_heads).transpose(1, 2))
        values.append(split_heads(cross.v_proj(memory), cross.num_heads).transpose(1, 2))
    return KVCache(torch.stack(keys), torch.stack(values)), visible


def finish(decoder: TransformerDecoderBase, x: Tensor) -> Tensor:
    """The last layer's output ``[..., d]`` as the output projection wants it."""
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    if decoder.project_out_dim is not None:
        x = decoder.project_out_dim(x)
    return x


def output_projection(decoder: TransformerDecoderBase) -> Callable[[Tensor], Tensor]:
    """The function from finished features ``[..., d]`` to logits ``[..., V]``."""
    output = decoder.output_projection
    if isinstance(output, nn.Linear):
        return Product(output.weight, output.bias)
    project: Callable[[Tensor], Tensor] = decoder.output_layer
    return project


def joined_projection(attention: MultiheadAttention) -> tuple[Tensor, Tensor | None]:
    """Weight ``[3d, d]`` and bias ``[3d]`` that give query, key and value in one product."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([projection.weight for projection in projections]).detach()
    if attention.q_proj.bias is None:
        return weight, None
    return weight, torch.cat([projection.bias for projection in projections]).detach()


def position_table(decoder: TransformerDecoderBase) -> Tensor:
    """The embeddings ``[P, d]`` of the decoder's positions, counted from 0."""
    module: Any = decoder.embed_positions
    first, size = decoder.padding_idx + 1, decoder.max_positions()  # fairseq numbers positions from there
    if not isinstance(module, SinusoidalPositionalEmbedding):
        return module.weight.detach()[first : first + size]
    weights = module.weights
    if weights.size(0) < first + size:
        weights = SinusoidalPositionalEmbedding.get_embedding(first + size, module.embedding_dim, module.padding_idx)
    return weights[first : first + size].to(decoder.embed_tokens.weight)


def columns(x: Tensor, at: Tensor) -> Tensor:
    """The positions ``at`` ``[B, k]`` of ``x`` ``[B, T, d]``."""
    return x.gather(1, at.unsqueeze(2).expand(-1, -1, x.size(2)))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, n, d]`` to ``[B, n, heads, head_dim]``."""
    return x.unflatten(-1, (heads, -1))


def _join_heads(x: Tensor) -> Tensor:
    """``[B, heads, n, head_dim]`` to ``[B, n, d]``."""
    return x.transpose(1, 2).flatten(2)
