"""A small autoregressive drafter: fairseq's Transformer, which may leave its verifier's encoder as it is."""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import nn

from block_plugins.models.freezable_encoder import FreezableEncoder, freeze_option


@dataclass
class _FreezeConfig(FairseqDataclass):
    freeze_encoder: bool = freeze_option()


@register_model("transformer_drafter")
class TransformerDrafterModel(TransformerModel):
    """fairseq's ``transformer`` with ``--freeze-encoder``."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the flags."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, _FreezeConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "TransformerDrafterModel":
        """Builds the model from the command line's options, or from those in a checkpoint."""
        model: TransformerDrafterModel = super().build_model(args, task)
        if getattr(args, "freeze_encoder", False):
            model.encoder.freeze()
        return model

    @classmethod
    def build_encoder(cls, args: Any, src_dict: Any, embed_tokens: nn.Embedding) -> FreezableEncoder:
        return FreezableEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)


@register_model_architecture("transformer_drafter", "transformer_drafter")
def transformer_drafter(args: Any) -> None:
    """What is not given is as in fairseq's ``transformer``."""
    base_architecture(args)
