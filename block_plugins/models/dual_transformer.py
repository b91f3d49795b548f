"""Two verifiers, source to target (forward) and target to source (backward), and a drafter for each, in one model.

All four read one dictionary. A verifier has one table of embeddings for its encoder, its decoder and its output layer;
with ``--share-dual-embeddings`` both verifiers have the same. A drafter has no table of its own: it borrows its
verifier's, through a projection where it is narrower, and without gradient, so that what trains a drafter leaves its
verifier alone. Layers are pre-norm: with eight on each side, post-norm ones need more care than little data allows.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, register_model
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_legacy import base_architecture
from omegaconf import II
from torch import Tensor, nn

from block_plugins import dictionaries
from block_plugins.annealing import Annealing
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATConfig, BlockNATModel

COMPONENTS = ("forward_verifier", "backward_verifier", "forward_drafter", "backward_drafter")
DRAFTER_KINDS = ChoiceEnum(["ar", "block"])

Passes = dict[str, tuple[str, dict[str, Tensor]]]
"""What to run, each under a name: a component and the arguments of its forward pass."""


@dataclass
class DualTransformerConfig(FairseqDataclass):
    """Sizes of verifiers and drafters; those of the two directions are the same."""

    verifier_embed_dim: int = field(default=512, metadata={"help": "width of the verifiers"})
    verifier_ffn_embed_dim: Optional[int] = field(  # noqa: UP045 - fairseq doesn't read "int | None"
        default=None, metadata={"help": "their feed-forward width (default: 4 times the width)"}
    )
    verifier_encoder_layers: int = field(default=8, metadata={"help": "their encoder layers"})
    verifier_decoder_layers: int = field(default=8, metadata={"help": "their decoder layers"})
    verifier_attention_heads: int = field(default=8, metadata={"help": "their attention heads"})
    drafter_kind: DRAFTER_KINDS = field(  # type: ignore[valid-type]
        default="ar", metadata={"help": "ar: small autoregressive Transformers; block: block drafters"}
    )
    drafter_embed_dim: int = field(default=256, metadata={"help": "width of the drafters, at most the verifiers'"})
    drafter_ffn_embed_dim: Optional[int] = field(  # noqa: UP045
        default=None, metadata={"help": "their feed-forward width (default: 4 times the width)"}
    )
    drafter_encoder_layers: int = field(default=4, metadata={"help": "their encoder layers"})
    drafter_decoder_layers: int = field(default=4, metadata={"help": "their decoder layers"})
    drafter_attention_heads: int = field(default=8, metadata={"help": "their attention heads"})
    dropout: float = field(default=0.1, metadata={"help": "dropout in all four"})
    share_dual_embeddings: bool = field(
        default=False, metadata={"help": "one table of embeddings for both directions, not one for each"}
    )
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


def component_options(cfg: Any, component: str) -> Namespace:
    """The options of an ordinary fairseq model, ``arch`` "transformer" or "block", that is the component by itself."""
    direction, role = component.split("_")
    width, heads = getattr(cfg, f"{role}_embed_dim"), getattr(cfg, f"{role}_attention_heads")
    is_block = role == "drafter" and str(cfg.drafter_kind) == "block"
    options = Namespace(arch="block" if is_block else "transformer")
    if is_block:
        vars(options).update((name, value) for name, value in vars(BlockNATConfig()).items() if name != "_name")
        options.src_embedding_copy = options.no_scale_embedding = True  # as in the published drafters
    for side in ("encoder", "decoder"):
        setattr(options, f"{side}_embed_dim", width)
        setattr(options, f"{side}_ffn_embed_dim", getattr(cfg, f"{role}_ffn_embed_dim") or 4 * width)
        setattr(options, f"{side}_layers", getattr(cfg, f"{role}_{side}_layers"))
        setattr(options, f"{side}_attention_heads", heads)
        setattr(options, f"{side}_normalize_before", True)
    options.decoder_input_dim = options.decoder_output_dim = width
    options.share_all_embeddings = options.share_decoder_input_output_embed = True
    options.dropout = cfg.dropout
    positions = cfg.max_source_positions, cfg.max_target_positions
    options.max_source_positions, options.max_target_positions = (
        positions if direction == "forward" else positions[::-1]
    )
    if not is_block:
        base_architecture(options)
    return options


def build_ordinary(options: Namespace, dictionary: Any) -> FairseqEncoderDecoderModel:
    """The ordinary fairseq model that ``component_options`` describe, with a table of its own."""
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    if options.arch == "block":
        return BlockNATModel.build_model(options, task)
    model: TransformerModelBase = TransformerModelBase.build_model(TransformerConfig.from_namespace(options), task)
    return model


class BorrowedEmbedding(nn.Module):
    """Another model's table of embeddings, projected to ``width`` where that is less than the table's.

    No gradient reaches the table.
    """

    def __init__(self, table: nn.Embedding, width: int) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim, self.padding_idx = table.num_embeddings, width, table.padding_idx
        self.projection: nn.Linear | None = None
        if width != table.embedding_dim:
            self.projection = nn.Linear(table.embedding_dim, width, bias=False)
            # the projected rows begin with the variance, 1 / width, that fairseq gives those of a table of this width
            nn.init.normal_(self.projection.weight, std=width**-0.5)

    @property
    def weight(self) -> Tensor:
        """The table as its borrower sees it, ``[V, width]``."""
        return self._projected(self.table.weight.detach())

    def forward(self, tokens: Tensor) -> Tensor:
        """``[...]`` to ``[..., width]``."""
        return self._projected(F.embedding(tokens, self.table.weight.detach()))

    def _projected(self, rows: Tensor) -> Tensor:
        return rows if self.projection is None else self.projection(rows)


class BorrowedOutput(nn.Module):
    """The output layer over a borrowed table."""

    def __init__(self, embedding: BorrowedEmbedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, features: Tensor) -> Tensor:
        """``[..., width]`` to logits ``[..., V]``."""
        return F.linear(features, self.embedding.weight)


def _build_component(
    options: Namespace, dictionary: Any, embedding: nn.Embedding | BorrowedEmbedding
) -> FairseqEncoderDecoderModel:
    kind: Any = BlockNATModel if options.arch == "block" else TransformerModelBase
    config = TransformerConfig.from_namespace(options)
    config.share_decoder_input_output_embed = not isinstance(embedding, BorrowedEmbedding)
    encoder = kind.build_encoder(config, dictionary, embedding)
    decoder = kind.build_decoder(config, dictionary, embedding)
    if isinstance(embedding, BorrowedEmbedding):
        decoder.output_projection = BorrowedOutput(embedding)
    return kind(config, encoder, decoder)


@register_model("dual_transformer", dataclass=DualTransformerConfig)
class DualTransformerModel(BaseFairseqModel):
    """The four components, each a fairseq model under its name in ``COMPONENTS``, how far the weight of their
    reconstruction has been annealed, and what tells their dictionary from others.
    """

    symbols: Tensor  # []

    def __init__(self, cfg: Any, dictionary: Any) -> None:
        super().__init__()
        self.cfg = cfg
        self.dictionary = dictionary
        self.annealing = Annealing()
        # kept with the weights, for fairseq doesn't show a task what a checkpoint says of it when training goes on
        self.register_buffer("symbols", torch.tensor(dictionaries.digest(dictionary)))
        tables: dict[str, nn.Embedding] = {}
        for component in COMPONENTS:  # verifiers first
            direction, role = component.split("_")
            options = component_options(cfg, component)
            if role == "verifier":
                shared = cfg.share_dual_embeddings and tables
                tables[direction] = (
                    tables["forward"]
                    if shared
                    else Embedding(len(dictionary), options.encoder_embed_dim, dictionary.pad())
                )
                embedding: nn.Embedding | BorrowedEmbedding = tables[direction]
            else:
                embedding = BorrowedEmbedding(tables[direction], options.encoder_embed_dim)
            setattr(self, component, _build_component(options, dictionary, embedding))

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "DualTransformerModel":
        """Builds the model; raises ``UserError`` for sizes that can't be."""
        for role in ("verifier", "drafter"):
            width, heads = getattr(cfg, f"{role}_embed_dim"), getattr(cfg, f"{role}_attention_heads")
            if heads < 1 or width % heads:
                raise UserError(f"--{role}-attention-heads: {width} dimensions can't be divided among {heads} heads")
        if cfg.drafter_embed_dim > cfg.verifier_embed_dim:
            raise UserError(
                f"--drafter-embed-dim {cfg.drafter_embed_dim}: a drafter shares its verifier's embeddings, so it can't "
                f"be wider than --verifier-embed-dim {cfg.verifier_embed_dim}; lower it"
            )
        return cls(cfg, task.source_dictionary)

    def max_positions(self) -> tuple[int, int]:
        """Source and target tokens that a pair may have."""
        return self.cfg.max_source_positions, self.cfg.max_target_positions

    def forward(self, passes: Passes) -> dict[str, Tensor]:
        """Logits by the names of the passes: ``[B, T, V]``, or what a block drafter gives for its scored positions,
        ``[N, V]``.

        All passes of a training step are one call, as wrappers for distributed training want it.
        """
        return {name: getattr(self, component)(**inputs)[0] for name, (component, inputs) in passes.items()}

    def component_weights(self, component: str) -> dict[str, Tensor]:
        """The weights of the ordinary model that the component is by itself: a projection goes into its table."""
        module = getattr(self, component)
        tables = ("embed_tokens.", "output_projection.")
        weights = {
            name: weight for name, weight in module.state_dict().items() if not any(part in name for part in tables)
        }
        table = module.encoder.embed_tokens.weight.detach()
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
            weights[f"{name}.weight"] = table
        return weights

    def ordinary(self, component: str) -> FairseqEncoderDecoderModel:
        """The component as an ordinary model in evaluation mode, with copies of its weights."""
        weights = self.component_weights(component)
        table = weights["encoder.embed_tokens.weight"]
        model = build_ordinary(component_options(self.cfg, component), self.dictionary).to(table)
        model.load_state_dict(weights)
        return model.eval()

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Raises ``UserError`` where a checkpoint's dictionary is another one than the data's, or where its sizes are
        others than the options say.
        """
        self.upgrade_state_dict(state_dict)
        if "symbols" in state_dict and int(state_dict["symbols"]) != int(self.symbols):
            raise UserError(
                "the dictionary in the data directory isn't the one that the checkpoint was trained with: give the "
                "data directory of that training, or another --save-dir"
            )
        found = {name: tuple(weight.shape) for name, weight in state_dict.items()}
        wanted = {name: tuple(weight.shape) for name, weight in self.state_dict().items()}
        for name in [*wanted, *found]:
            if found.get(name) != wanted.get(name):
                raise UserError(
                    f"the checkpoint's sizes are others than the options of --arch dual_transformer say: {name} is "
                    f"{found.get(name, 'absent')} in the checkpoint and {wanted.get(name, 'absent')} by the options; "
                    "give the options it was trained with, or another --save-dir"
                )
        tables = [state_dict[f"{way}_verifier.encoder.embed_tokens.weight"] for way in ("forward", "backward")]
        if self.cfg.share_dual_embeddings and not torch.equal(*tables):
            raise UserError(
                "--share-dual-embeddings: the checkpoint has a table of embeddings for each direction; leave the "
                "option out, or give another --save-dir"
            )
        return super().load_state_dict(state_dict, strict, model_cfg, args)
