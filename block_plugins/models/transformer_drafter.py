"""A small autoregressive drafter: fairseq's Transformer, which may leave its verifier's encoder as it is."""

from argparse import Namespace
from dataclasses import dataclass, fields
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModel
from torch import nn

from block_plugins.models.freezable_encoder import FreezableEncoder, freeze_option
from block_plugins.models.transformer_options import transformer_options

_DERIVED_DEFAULTS = {
    "decoder_embed_dim": "the encoder's",
    "decoder_ffn_embed_dim": "the encoder's",
    "decoder_input_dim": "the decoder's embedding dimension",
    "decoder_output_dim": "the decoder's embedding dimension",
}
_TransformerOptions: Any = transformer_options("TransformerOptions", {}, _DERIVED_DEFAULTS)


@dataclass
class TransformerDrafterConfig(_TransformerOptions):
    """All options of fairseq's Transformer under flat names, and whether the encoder is trained."""

    freeze_encoder: bool = freeze_option()


@register_model("transformer_drafter", dataclass=TransformerDrafterConfig)
class TransformerDrafterModel(TransformerModel):
    """fairseq's ``transformer`` with ``--freeze-encoder``."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the flags, without defaults: what isn't given is as in fairseq's ``transformer``."""
        gen_parser_from_dataclass(parser, TransformerDrafterConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "TransformerDrafterModel":
        """Builds the model from a configuration node, or from the namespace of a checkpoint."""
        # fairseq's architecture fills in what a namespace lacks, but takes a None for a value
        given = {item.name: getattr(args, item.name, None) for item in fields(TransformerDrafterConfig)}
        options = Namespace(**{name: value for name, value in given.items() if value is not None})
        model: TransformerDrafterModel = super().build_model(options, task)
        if given["freeze_encoder"]:
            model.encoder.freeze()
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> FreezableEncoder:
        return FreezableEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)
