"""The block drafter: a non-autoregressive Transformer that fills a block of masked positions after a prefix.

The decoder's input is the prefix followed by ``unk`` at every position to be filled, without a token before the first
target
word: target word ``i`` sits at position ``i``. The network has the parameter names of the published models, so that
their checkpoints load.
"""

from argparse import Namespace
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerModelBase,
)
from fairseq.modules import MultiheadAttention, transformer_layer
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn
from torch.nn import functional

from block_plugins.errors import UserError
from block_plugins.glancing import glance
from block_plugins.models.freezable_encoder import FreezableEncoder, freeze_option
from block_plugins.models.transformer_options import transformer_options

HEAD_WIDTH = 64
"""Width of an attention head where ``--encoder-attention-heads`` or ``--decoder-attention-heads`` is not given."""

_DEFAULTS = {
    "activation_fn": "gelu",
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
}
_DERIVED_DEFAULTS = {
    "encoder_ffn_embed_dim": "4 times the embedding dimension",
    "encoder_attention_heads": f"one for every {HEAD_WIDTH} dimensions",
    "decoder_embed_dim": "the encoder's",
    "decoder_ffn_embed_dim": "the encoder's",
    "decoder_attention_heads": f"one for every {HEAD_WIDTH} dimensions",
    "decoder_input_dim": "the decoder's embedding dimension",
    "decoder_output_dim": "the decoder's embedding dimension",
}
_TransformerOptions: Any = transformer_options("TransformerOptions", _DEFAULTS, _DERIVED_DEFAULTS)


@dataclass
class BlockNATConfig(_TransformerOptions):
    """All options of fairseq's Transformer under flat names, plus those of the block model."""

    src_embedding_copy: bool = field(
        default=False, metadata={"help": "feed masked positions with an attention mix of the source embeddings"}
    )
    apply_bert_init: bool = field(
        default=False, metadata={"help": "initialise all linear and embedding weights from N(0, 0.02)"}
    )
    freeze_encoder: bool = freeze_option()


def _complete(options: Any) -> Namespace:
    """`options` (a namespace, a configuration node or a ``BlockNATConfig``) with all that was left open filled in."""
    found = Namespace(**{item.name: item.default for item in fields(BlockNATConfig)})
    for name in vars(found):
        value = getattr(options, name, None)
        if value is not None:  # what a configuration node lacks is None in some versions of omegaconf
            setattr(found, name, value)
    if found.decoder_embed_dim is None:
        found.decoder_embed_dim = found.encoder_embed_dim
    if found.encoder_ffn_embed_dim is None:
        found.encoder_ffn_embed_dim = 4 * found.encoder_embed_dim
    if found.decoder_ffn_embed_dim is None:
        found.decoder_ffn_embed_dim = found.encoder_ffn_embed_dim
    for side in ("encoder", "decoder"):
        if getattr(found, f"{side}_attention_heads") is None:
            setattr(found, f"{side}_attention_heads", max(1, getattr(found, f"{side}_embed_dim") // HEAD_WIDTH))
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(found, name) is None:
            setattr(found, name, found.decoder_embed_dim)
    return found


def _refuse_what_cannot_be_built(options: Namespace) -> None:
    """Raises ``UserError`` for Transformer options that have no meaning for the block model."""
    if options.adaptive_softmax_cutoff is not None:
        raise UserError("--adaptive-softmax-cutoff: the block model has a full softmax; leave the option out")
    if options.no_token_positional_embeddings:
        raise UserError("--no-token-positional-embeddings: masked positions differ by position only; leave it out")
    if options.src_embedding_copy and options.encoder_embed_dim != options.decoder_embed_dim:
        raise UserError(
            "--src-embedding-copy mixes source embeddings into the decoder's input: --encoder-embed-dim "
            f"({options.encoder_embed_dim}) and --decoder-embed-dim ({options.decoder_embed_dim}) must be equal"
        )
    for side in ("encoder", "decoder"):
        width, heads = getattr(options, f"{side}_embed_dim"), getattr(options, f"{side}_attention_heads")
        if heads < 1 or width % heads:
            raise UserError(f"--{side}-attention-heads: {width} dimensions can't be divided among {heads} heads")


class BlockLoss(NamedTuple):
    """What a training criterion needs of one forward pass; N positions of the batch are scored."""

    logits: Tensor  # [N, V]
    target: Tensor  # [N]
    correct: Tensor  # [] masked positions that the glancing pass got right
    glanced: Tensor  # [] masked positions that the glancing pass looked at


class BlockEncoder(FreezableEncoder):
    """fairseq's Transformer encoder that also hands out what the decoder's copy attention looks at."""

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """fairseq's encoder output for ``src_tokens [B, S]``, and ``copy_keys``: embedding + position ``[B, S, d]``."""
        encoder_out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        return self.with_copy_keys(encoder_out, src_tokens)

    def with_copy_keys(self, encoder_out: dict[str, list[Tensor]], src_tokens: Tensor) -> dict[str, list[Tensor]]:
        """An encoder output of fairseq's for ``src_tokens [B, S]``, and ``copy_keys``."""
        return {**encoder_out, "copy_keys": [encoder_out["encoder_embedding"][0] + self.embed_positions(src_tokens)]}

    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """The rows ``new_order [B']`` of an encoder output, all entries that the decoder reads included."""
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        reordered["copy_keys"] = [keys.index_select(0, new_order) for keys in encoder_out["copy_keys"]]
        return reordered


class FusedCrossAttention(MultiheadAttention):
    """Encoder-decoder attention that always takes torch's fused kernel.

    Outside incremental decoding fairseq's decoder layer asks for attention weights and static keys; nobody reads the
    weights, and both rule the fused kernel out.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor, **unread: Any) -> Any:
        """``query [T, B, d]``, ``key`` and ``value [S, B, d]``, ``key_padding_mask [B, S]`` -> ``[T, B, d]``, None."""
        return super().forward(query, key, value, key_padding_mask=key_padding_mask, need_weights=False)


class BlockDecoderLayer(transformer_layer.TransformerDecoderLayerBase):
    """fairseq's decoder layer with the fused cross attention, which can compute some positions alone."""

    @property
    def plain(self) -> bool:
        """Whether the layer is without the options that :meth:`at_positions` doesn't know."""
        return all(part is None for part in (self.c_attn, self.attn_ln, self.ffn_layernorm, self.w_resid))

    def at_positions(
        self,
        x: Tensor,
        context: Tensor,
        memory: Tensor,
        memory_padding: Tensor,
        padding: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """The layer's output ``[n, B, d]`` at the positions alone whose input is ``x [n, B, d]``.

        They attend to ``context [T, B, d]``, the input of all positions, but not where ``padding [B, T]`` or ``hidden
        [B, n, T]`` is true. ``memory [S, B, d]`` is the encoder's output, with ``memory_padding [B, S]``.
        """
        before = self.normalize_before

        def join(residual: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
            joined = residual + self.dropout_module(added)
            return joined if before else norm(joined)

        query, context = (self.self_attn_layer_norm(part) if before else part for part in (x, context))
        mask = None if hidden is None else hidden.repeat_interleave(self.self_attn.num_heads, dim=0)
        mixed, _ = self.self_attn(query, context, context, key_padding_mask=padding, attn_mask=mask, need_weights=False)
        residual = join(x, mixed, self.self_attn_layer_norm)
        query = self.encoder_attn_layer_norm(residual) if before else residual
        mixed, _ = self.encoder_attn(query, memory, memory, key_padding_mask=memory_padding)
        residual = join(residual, mixed, self.encoder_attn_layer_norm)
        inner = self.final_layer_norm(residual) if before else residual
        inner = self.activation_dropout_module(self.activation_fn(self.fc1(inner)))
        return join(residual, self.fc2(inner), self.final_layer_norm)

    def build_encoder_attention(self, embed_dim: int, cfg: Any) -> FusedCrossAttention:
        return FusedCrossAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )


class BlockDecoder(TransformerDecoderBase):
    """Full self-attention over prefix and block; positions are added again before every layer."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        self.unk = dictionary.unk()
        width = cfg.decoder.embed_dim
        self.copy_attn: nn.Linear | None = nn.Linear(width, width, bias=False) if cfg.src_embedding_copy else None

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        layer = BlockDecoderLayer(cfg, no_encoder_attn)
        if cfg.checkpoint_activations:
            return checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return layer

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], features_only: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        """Logits ``[B, T, V]`` (features ``[B, T, d]`` with `features_only`) for ``prev_output_tokens [B, T]``."""
        features, extra = self.extract_features(prev_output_tokens, encoder_out)
        return (features if features_only else self.output_layer(features)), extra

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], at: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features ``[B, T, d]`` for ``prev_output_tokens [B, T]``: unk is a masked position, pad is right padding.

        With ``at [B, n]`` only those of these positions, ``[B, n, d]``: the last layer is computed there alone.
        """
        padding = prev_output_tokens.eq(self.padding_idx)
        memory, memory_padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        x, positions = self.embed(prev_output_tokens, encoder_out)
        x, positions = x.transpose(0, 1), positions.transpose(0, 1)  # [T, B, d]
        for layer in self.layers:
            x = self.dropout_module(x + positions)
            if at is not None and layer is self.layers[-1] and isinstance(layer, BlockDecoderLayer) and layer.plain:
                rows = at.t().unsqueeze(2).expand(-1, -1, x.size(2))
                x, at = layer.at_positions(x.gather(0, rows), x, memory, memory_padding, padding), None
            else:
                x, _, _ = layer(x, memory, memory_padding, self_attn_padding_mask=padding)
        x = x.transpose(0, 1)
        if at is not None:
            x = x.gather(1, at.unsqueeze(2).expand(-1, -1, x.size(2)))
        return self._finished(x), {}

    def _finished(self, x: Tensor) -> Tensor:
        """The last layer's output ``[..., d]`` as the output layer wants it."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x

    @property
    def packs(self) -> bool:
        """Whether :meth:`logits_at` takes several blocks of a sentence together."""
        return len(self.layers) == 1 and isinstance(self.layers[0], BlockDecoderLayer) and self.layers[0].plain

    def _block_features(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], prefix_length: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Features ``[R, k, d]`` of the blocks in ``prev_output_tokens [R, T]``, and where they stand, ``[R, k]``.

        For a single layer, and for the R / B blocks of each of B sentences, one after the other: what the layer reads
        at a position of the prefix is the same for all blocks, so it is computed once for the sentence.
        """
        rows, width = prev_output_tokens.shape
        sentences = encoder_out["encoder_out"][0].size(1)
        length = prefix_length.unsqueeze(1)
        size = int((prev_output_tokens.ne(self.padding_idx).sum(1, keepdim=True) - length).max())
        offset = torch.arange(size, device=length.device)
        at = (length + offset).clamp(max=width - 1)
        in_block = (length + offset < width) & prev_output_tokens.gather(1, at).ne(self.padding_idx)

        # of each sentence's prefixes the longest holds all others
        longest = prefix_length.view(sentences, -1).argmax(1) + torch.arange(
            0, rows, rows // sentences, device=length.device
        )
        tokens = prev_output_tokens[longest, : max(1, int(length.max()))]
        x, positions = self.embed(tokens, encoder_out)
        of_block = prev_output_tokens.gather(1, at).view(sentences, -1)
        block_positions = self.embed_positions(prev_output_tokens)
        block_positions = block_positions.gather(1, at.unsqueeze(2).expand(-1, -1, block_positions.size(2)))
        block, block_positions = self.embed(of_block, encoder_out, block_positions.view(sentences, -1, x.size(2)))

        x = self.dropout_module(x + positions)
        block = self.dropout_module(block + block_positions)
        # a block sees its own prefix and its own positions
        visible = torch.arange(x.size(1), device=length.device) < length  # [R, T]
        visible = visible.view(sentences, -1, 1, x.size(1)).expand(-1, -1, size, -1).flatten(1, 2)
        own = torch.eye(rows // sentences, dtype=torch.bool, device=length.device)
        own = own.repeat_interleave(size, 0).repeat_interleave(size, 1) & in_block.view(sentences, 1, -1)
        itself = torch.eye(own.size(1), dtype=torch.bool, device=own.device)
        hidden = torch.cat([visible, own | itself], dim=2).logical_not()
        features = self.layers[0].at_positions(
            block.transpose(0, 1),
            torch.cat([x, block], dim=1).transpose(0, 1),
            encoder_out["encoder_out"][0],
            encoder_out["encoder_padding_mask"][0],
            hidden=hidden,
        )
        return self._finished(features.transpose(0, 1)).reshape(rows, size, -1), at

    def logits_at(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        wanted: Tensor,
        among: Tensor,
        prefix_length: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[N, V]`` of the N positions where ``wanted [B, T]`` is true, row by row from left to right.

        The last layer is computed where ``among [B, T]`` is true, which includes these positions: two passes with the
        same random state drop the same units only if they compute the same positions.

        A decoder that :attr:`packs` takes several rows for each source of ``encoder_out``, one after the other, each of
        them ``prefix_length [B]`` tokens and a block.
        """
        if prefix_length is not None and encoder_out["encoder_out"][0].size(1) < prev_output_tokens.size(0):
            features, at = self._block_features(prev_output_tokens, encoder_out, prefix_length)
            place = at - prefix_length.unsqueeze(1) == torch.arange(at.size(1), device=at.device)
            return self.output_layer(features[wanted.gather(1, at) & place])
        count = max(1, int(among.sum(1).max()))
        # the positions of each row that are to be computed first, in their order
        at = among.logical_not().long().sort(dim=1, stable=True).indices[:, :count]
        features, _ = self.extract_features(prev_output_tokens, encoder_out, at)
        return self.output_layer(features[wanted.gather(1, at)])

    def embed(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]], positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The first layer's input, and the positions that are added to it before every layer, both ``[B, T, d]``.

        ``positions`` ``[B, T, d]`` are their embeddings where the tokens don't stand side by side from the first on.
        """
        if positions is None:
            positions = self.embed_positions(prev_output_tokens)
        x = self.embed_tokens(prev_output_tokens)
        masked = prev_output_tokens.eq(self.unk)
        # where asking costs nothing, nothing is mixed that nobody wants
        if self.copy_attn is not None and (masked.is_cuda or bool(masked.any())):
            mix = self._source_mix(self.copy_attn(positions), encoder_out)
            x = torch.where(masked.unsqueeze(-1), mix.to(x.dtype), x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return x, positions

    @staticmethod
    def _source_mix(queries: Tensor, encoder_out: dict[str, list[Tensor]]) -> Tensor:
        """For ``queries [B, T, d]`` mixes of source embeddings, softmax(query . key) . embedding: ``[B, T, d]``."""
        keep = encoder_out["encoder_padding_mask"][0].logical_not().unsqueeze(1)  # [B, 1, S]
        return functional.scaled_dot_product_attention(
            queries,
            encoder_out["copy_keys"][0],
            encoder_out["encoder_embedding"][0],
            attn_mask=keep,
            scale=1.0,
        )


@register_model("block", dataclass=BlockNATConfig)
class BlockNATModel(TransformerModelBase):
    """The block drafter as a fairseq model."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the flags, without defaults: those not given are filled in by :func:`_complete`."""
        from fairseq.dataclass.utils import gen_parser_from_dataclass

        # Learned positions are the default, and yet the flags of published commands must go on meaning "learned".
        flags = BlockNATConfig(encoder_learned_pos=False, decoder_learned_pos=False)
        gen_parser_from_dataclass(parser, flags, delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "BlockNATModel":
        """Builds the model from a configuration node, or from the namespace of a checkpoint of the authors' fairseq."""
        options = _complete(cfg)
        _refuse_what_cannot_be_built(options)
        options.no_scale_embedding = True  # the published network never scales, whatever its configuration says
        try:
            model: BlockNATModel = super().build_model(TransformerConfig.from_namespace(options), task)
        except ValueError as error:  # options that contradict each other
            raise UserError(str(error)) from error
        if options.freeze_encoder:
            model.encoder.freeze()
        return model

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Embedding) -> BlockEncoder:
        encoder = BlockEncoder(cfg, src_dict, embed_tokens)
        return encoder.apply(init_bert_params) if cfg.apply_bert_init else encoder

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> BlockDecoder:
        decoder = BlockDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)
        return decoder.apply(init_bert_params) if cfg.apply_bert_init else decoder

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        target: Tensor | None = None,
        context_p: float | None = None,
        prefix_length: Tensor | None = None,
    ) -> Any:
        """Without `target`: logits ``[B, T, V]`` and an empty dictionary, as any fairseq encoder-decoder model
        returns them.

        With ``target [B, T]`` (pad where nothing is to be predicted): a :class:`BlockLoss` with the logits of the
        scored positions only. In training, `context_p` turns glancing on. ``prefix_length [B]`` is how many tokens
        stand before the block, where the decoder's inputs are a prefix and a block.
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        blocks = prev_output_tokens.size(0) // max(src_tokens.size(0), 1)
        if blocks > 1 and (target is None or prefix_length is None or not self.decoder.packs):
            # several decoder inputs for each source, one after the other
            rows = torch.arange(src_tokens.size(0), device=src_tokens.device).repeat_interleave(blocks)
            encoder_out = self.encoder.reorder_encoder_out(encoder_out, rows)
        if target is None:
            return self.decoder(prev_output_tokens, encoder_out)

        scored = in_block = target.ne(self.decoder.padding_idx)
        correct = glanced = scored.new_zeros((), dtype=torch.long)
        if self.training and context_p:
            result = glance(self.decoder, prev_output_tokens, target, scored, encoder_out, context_p, prefix_length)
            prev_output_tokens, scored = result.prev_output_tokens, result.masked
            correct, glanced = result.correct, result.glanced
        logits = self.decoder.logits_at(prev_output_tokens, encoder_out, scored, in_block, prefix_length)
        if context_p == 0.0:  # nothing is revealed, so this pass is what a first pass would have seen
            correct, glanced = logits.argmax(dim=-1).eq(target[scored]).sum(), scored.sum()
        return BlockLoss(logits, target[scored], correct, glanced)


@register_model_architecture("block", "block_base")
def block_base(args: Any) -> None:
    """6 + 6 layers of 512 dimensions: what options that are not given default to, so there is nothing to set."""


@register_model_architecture("block", "block_6e6d512")
def block_6e6d512(args: Any) -> None:
    """The same network under the name that the published commands use."""
