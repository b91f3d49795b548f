#!/usr/bin/env python3
"""Writes a checkpoint from which the training of a drafter starts with a verifier's weights.

    python scripts/init_drafter.py VERIFIER OUT [--arch block|transformer_drafter] [--parts encoder|all]
        [the drafter's architecture flags]

Every weight of the verifier is taken whose name and shape agree with the drafter's; the others keep their random
start. Sizes, activation and positions that are not given as flags are the verifier's. Train with the same
architecture flags and

    fairseq-train ... --finetune-from-model OUT

which starts from OUT once and goes on from the training's own checkpoints afterwards, or with ``--restore-file OUT
--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters``.
"""

import argparse
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from block_plugins import checkpoints
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATConfig, BlockNATModel
from block_plugins.models.transformer_drafter import TransformerDrafterModel

TAKEN_OPTIONS = [
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_normalize_before",
    "decoder_embed_dim",
    "decoder_ffn_embed_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_normalize_before",
    "decoder_output_dim",
    "share_all_embeddings",
    "share_decoder_input_output_embed",
    "layernorm_embedding",
    "activation_fn",
    "max_source_positions",
    "max_target_positions",
    "dropout",
    "attention_dropout",
    "activation_dropout",
]
"""Options that default to the verifier's."""

KEPT_OPTIONS = ["no_scale_embedding", "encoder_learned_pos", "decoder_learned_pos"]
"""Those that an autoregressive drafter has from its verifier as well; the block model has ways of its own."""


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, argparse.Namespace]:
    """The script's own arguments, and the drafter's architecture flags as far as they were given."""
    parser = argparse.ArgumentParser(description="Start a drafter with a verifier's weights.", allow_abbrev=False)
    parser.add_argument("verifier", help="checkpoint of an autoregressive fairseq Transformer")
    parser.add_argument("out", help="checkpoint to write")
    parser.add_argument(
        "--parts", choices=("encoder", "all"), default="all", help="take the encoder only, or the decoder as well"
    )
    parser.add_argument(
        "--arch",
        choices=("block", "transformer_drafter"),
        default="block",
        help="a block drafter, or a small Transformer",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed for the weights that are not taken")
    own = {action.dest for action in parser._actions}
    architecture = parser.add_argument_group(
        "architecture of the drafter, as for fairseq-train", argument_default=argparse.SUPPRESS
    )
    BlockNATModel.add_args(architecture)
    everything = vars(parser.parse_args(arguments))
    given = {name: value for name, value in everything.items() if name not in own}
    return argparse.Namespace(**{name: everything[name] for name in own & everything.keys()}), argparse.Namespace(
        **given
    )


def load_verifier(path: str) -> dict[str, Any]:
    """The checkpoint at `path`; raises ``UserError`` unless it holds an autoregressive encoder-decoder Transformer."""
    state = checkpoints.read(path, "VERIFIER")
    if checkpoints.is_block(state):
        raise UserError(f"VERIFIER: {path} holds a block drafter; the verifier's checkpoint comes first, OUT second")
    if not {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"} <= state["model"].keys():
        raise UserError(f"VERIFIER: {path} holds no encoder-decoder Transformer, so there is nothing to take from it")
    return state


def drafter_options(state: dict[str, Any], given: argparse.Namespace, arch: str) -> argparse.Namespace:
    """The drafter's options: those given, then the verifier's, then the architecture's defaults."""
    options, taken = argparse.Namespace(), TAKEN_OPTIONS
    if arch == "block":
        vars(options).update((name, value) for name, value in vars(BlockNATConfig()).items() if name != "_name")
    else:
        taken = TAKEN_OPTIONS + KEPT_OPTIONS
    for name in taken:
        value = checkpoints.model_option(state, name)
        if value is not None:
            setattr(options, name, value)
    for name, value in vars(given).items():
        setattr(options, name, value)
    if arch != "block":
        base_architecture(options)
    return options


def placeholder_dictionary(size: int) -> Dictionary:
    """A dictionary of `size` symbols: building a network needs no more of it than the numbers of the special ones."""
    dictionary = Dictionary()
    for index in range(len(dictionary), size):
        dictionary.add_symbol(f"symbol{index}")
    return dictionary


def build_drafter(options: argparse.Namespace, arch: str, weights: dict[str, Tensor], seed: int) -> Any:
    """A drafter with random weights and the verifier's vocabulary sizes."""
    torch.manual_seed(seed)
    task = SimpleNamespace(
        source_dictionary=placeholder_dictionary(len(weights["encoder.embed_tokens.weight"])),
        target_dictionary=placeholder_dictionary(len(weights["decoder.embed_tokens.weight"])),
    )
    model: Any = BlockNATModel if arch == "block" else TransformerDrafterModel
    return model.build_model(options, task)


def positions_of(side: str, weights: dict[str, Tensor], like: Tensor, padding: int) -> Tensor:
    """The verifier's position table ``[rows, d]``: its own if learned, else as many sinusoidal rows as `like` has."""
    learned = weights.get(f"{side}.embed_positions.weight")
    if learned is not None:
        return learned.float()
    return SinusoidalPositionalEmbedding.get_embedding(like.size(0), like.size(1), padding)


def absorb_embedding_scale(drafter: Any, side: str, scale: float) -> None:
    """Makes one side of the drafter compute with unscaled embeddings E what it did with `scale` * E.

    The token table can't be scaled where it is also the output layer's. Instead the positions are divided by `scale`,
    so that the first layer's input is the verifier's divided by `scale`; self-attention undoes that in its input
    projections. What it adds to the residual stream is divided by `scale` too, and layer normalisation cancels the
    factor: after the first layer's attention with post-normalisation, with pre-normalisation in every layer and at
    the end.
    """
    stack = getattr(drafter, side)
    stack.embed_positions.weight.div_(scale)
    if stack.layernorm_embedding is not None:
        return  # it cancels the factor at once
    for number, layer in enumerate(stack.layers):
        added = [layer.self_attn.out_proj]
        if layer.normalize_before:
            added.append(layer.fc2)
            if side == "decoder" and layer.encoder_attn is not None:
                added.append(layer.encoder_attn.out_proj)
        elif number > 0:
            return
        else:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                projection.weight.mul_(scale)
        for projection in added:
            projection.weight.div_(scale)
            projection.bias.div_(scale)


@torch.no_grad()
def take_weights(drafter: Any, state: dict[str, Any], parts: str) -> list[str]:
    """Copies the verifier's weights into `drafter`; a line of report for everything that isn't simply taken."""
    weights = state["model"]
    sides = ["encoder"] if parts == "encoder" else ["encoder", "decoder"]
    report, taken, left = [], 0, []
    for name, parameter in drafter.named_parameters():
        side = name.split(".")[0]
        if name == f"{side}.embed_positions.weight" and side in sides:
            table = positions_of(side, weights, parameter, drafter.encoder.padding_idx)
            if table.size(1) != parameter.size(1):
                left.append(name)
                continue
            rows = min(len(table), len(parameter))
            parameter[:rows] = table[:rows]
            if rows < len(parameter) or f"{side}.embed_positions.weight" not in weights:
                kind = "learned" if f"{side}.embed_positions.weight" in weights else "sinusoidal"
                report.append(f"{name}: {rows} of {len(parameter)} rows from {kind} positions")
            taken += 1
        elif side in sides and name in weights and weights[name].shape == parameter.shape:
            parameter.copy_(weights[name])
            taken += 1
        else:
            left.append(name)
    scaled = not checkpoints.model_option(state, "no_scale_embedding")
    if isinstance(drafter, BlockNATModel) and scaled and "encoder.embed_tokens.weight" not in left:
        scale = math.sqrt(drafter.encoder.embed_tokens.embedding_dim)
        for side in sides:
            absorb_embedding_scale(drafter, side, scale)
        report.append(f"embeddings: the verifier scales them by {scale:.4g}; absorbed into positions and projections")
    report += [f"{name}: random" for name in left]
    unused = [name for name in weights if name not in drafter.state_dict() and "_float_tensor" not in name]
    report += [f"{name}: only in the verifier" for name in unused]
    return [f"{taken} of {taken + len(left)} parameter tensors taken from the verifier ({parts})", *report]


def checkpoint_of(drafter: Any, options: argparse.Namespace, arch: str, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint at update 0, with all that fairseq's trainer reads from one."""
    return {
        "args": None,
        "cfg": {"model": {**vars(options), "_name": arch}},
        "model": drafter.state_dict(),
        "criterion": None,
        "optimizer_history": [
            {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "task_state": state.get("task_state", {}),
        "extra_state": {"train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
        "last_optimizer_state": None,
    }


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the script."""
    own, given = parse_arguments(arguments)
    state = load_verifier(own.verifier)
    options = drafter_options(state, given, own.arch)
    drafter = build_drafter(options, own.arch, state["model"], own.seed)
    report = take_weights(drafter, state, own.parts)
    Path(own.out).parent.mkdir(parents=True, exist_ok=True)
    checkpoint_utils.torch_persistent_save(checkpoint_of(drafter, options, own.arch, state), own.out)
    print("\n".join(report))
    print(f"wrote {own.out}")


if __name__ == "__main__":
    main()
