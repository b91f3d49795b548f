"""Reading fairseq checkpoints safely, and telling in one readable line what is wrong with one."""

import argparse
import collections
import logging
import typing
from pathlib import Path
from typing import Any

import numpy as np
import omegaconf
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from numpy._core import multiarray

from block_plugins.errors import UserError

logger = logging.getLogger(__name__)

# The harmless classes that fairseq checkpoints hold besides tensors. The omegaconf ones come from checkpoints whose
# configuration was pickled as it was (fairseq 1.0.0a0), the numpy ones from meters, and the placeholder for a tensor
# from what the first of several processes in training tells the others of a checkpoint.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    collections.defaultdict,
    collections.OrderedDict,
    typing.Any,
    bool,
    int,
    float,
    str,
    dict,
    list,
    tuple,
    distributed_utils._TensorPlaceholder,
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    omegaconf.nodes.AnyNode,
    omegaconf.nodes.BooleanNode,
    omegaconf.nodes.FloatNode,
    omegaconf.nodes.IntegerNode,
    omegaconf.nodes.StringNode,
    np.dtype,
    np.ndarray,
    multiarray.scalar,
    multiarray._reconstruct,
    # the names of these functions before numpy 2
    (multiarray.scalar, "numpy.core.multiarray.scalar"),
    (multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},
]


def allow_harmless_classes() -> None:
    """Lets ``torch.load(weights_only=True)``, the default since torch 2.6, read fairseq's checkpoints."""
    torch.serialization.add_safe_globals(_HARMLESS)


def read(path: str, option: str) -> dict[str, Any]:
    """The contents of a fairseq checkpoint, its tensors on the CPU and mapped, not read, where its format allows it.

    Raises ``UserError``, naming ``option``, where the file is missing, can't be read or isn't fairseq's.
    """
    if not Path(path).is_file():
        raise UserError(f"{option}: there is no checkpoint {path}")
    try:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in many ways on a file that isn't its own
        raise UserError(f"{option}: {path} can't be read as a checkpoint ({_cause(error)})") from error
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("model"), dict)
        or (state.get("cfg") is None and state.get("args") is None)
    ):
        raise UserError(f"{option}: {path} is not a fairseq checkpoint (it has no model with its configuration)")
    return state


def _cause(error: Exception) -> str:
    """The line of torch's message that tells what is wrong; before it stands advice about weights_only."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def model_option(state: dict[str, Any], name: str) -> Any:
    """An option of the model in a checkpoint, whichever way fairseq stored it; None where it has none of that name."""
    model = state["cfg"]["model"] if state.get("cfg") is not None else state["args"]
    if isinstance(model, argparse.Namespace):
        return getattr(model, name, None)
    return model.get(name)


def architecture(state: dict[str, Any]) -> str:
    """The name that was given to ``--arch``, or that of the model where only that is known."""
    return str(model_option(state, "arch") or model_option(state, "_name"))


def is_block(state: dict[str, Any]) -> bool:
    """Whether a checkpoint holds a block drafter; everything else is autoregressive: a verifier, or its drafter."""
    return architecture(state).startswith("block")


def is_drafter(state: dict[str, Any]) -> bool:
    """Whether a checkpoint was trained to draft: by a block, or as a small autoregressive model."""
    return is_block(state) or architecture(state) == "transformer_drafter"


def check_whole(state: dict[str, Any], path: str, option: str) -> None:
    """Raises ``UserError`` where a checkpoint lacks what fairseq needs besides the model and its options."""
    missing = [name for name in ("optimizer_history", "extra_state") if name not in state]
    if state.get("args") is None and "task" not in state["cfg"]:
        missing.append("cfg.task")
    if missing:
        raise UserError(
            f"{option}: {path} has no {' and no '.join(missing)}, without which fairseq can't load it: give the file "
            "that fairseq-train, or a script of this project, wrote"
        )


def check_vocabulary(state: dict[str, Any], path: str, option: str, source_symbols: int, target_symbols: int) -> None:
    """Raises ``UserError`` where the embeddings don't have a row for each symbol of the data's dictionaries.

    Checkpoints written by this plugin also carry their dictionaries, which the task compares symbol by symbol; of
    others the size is all that is known.
    """
    for side, symbols in (("encoder", source_symbols), ("decoder", target_symbols)):
        weight = state["model"].get(f"{side}.embed_tokens.weight")
        if weight is not None and weight.size(0) != symbols:
            word = "source" if side == "encoder" else "target"
            raise UserError(
                f"{option}: {path} was trained with {weight.size(0)} {word} symbols, but the data's {word} dictionary "
                f"has {symbols} (the first one without a counterpart is number {min(weight.size(0), symbols)}): "
                "give the data directory with the dictionaries of that checkpoint"
            )


_BOOKKEEPING = ("version", "_float_tensor")
"""Last names of entries of a state dict that are no weights; fairseq's versions differ in which of them they write."""

_PARTS = {
    *("embed_tokens", "embed_positions", "layernorm_embedding", "layers", "layer_norm", "copy_attn"),
    *("project_in_dim", "project_out_dim", "output_projection", "adaptive_softmax"),
}
"""Parts of encoders and decoders: weights for one that a network hasn't tell that it isn't the one they are from."""


def judge_weights(model: torch.nn.Module, origin: str) -> None:
    """Makes ``model`` judge the state dict that it is given to load.

    What it can do without is let pass: bookkeeping of other versions of fairseq, present or absent; a weight that is
    absent where it is the same as another one; with a warning, weights of something that neither encoder nor decoder
    computes with. For everything else it raises ``UserError``, which begins with ``origin``.
    """
    norms = {side: getattr(getattr(model, side, None), "layer_norm", None) for side in ("encoder", "decoder")}

    def before(module: Any, weights: dict[str, Any], *_: Any) -> None:
        for side, norm in norms.items():
            if norm is not None and f"{side}.layer_norm.weight" in weights:
                # fairseq removes it where no version, or an early one, is recorded
                getattr(module, side).layer_norm = norm
        for name, parameter in module.state_dict().items():
            if name in weights and weights[name].shape != parameter.shape:
                raise UserError(
                    f"{origin}: {name} is of size {list(weights[name].shape)}, but by the checkpoint's own "
                    f"configuration it would be {list(parameter.shape)}"
                )

    def after(module: Any, keys: Any) -> None:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        loaded = {id(parameter) for name, parameter in parameters.items() if name not in keys.missing_keys}
        missing = [
            name
            for name in keys.missing_keys
            if name.rpartition(".")[2] not in _BOOKKEEPING and id(parameters.get(name)) not in loaded
        ]
        if missing:
            raise UserError(f"{origin}: the checkpoint lacks {_listed(missing)}")
        extra = [name for name in keys.unexpected_keys if name.rpartition(".")[2] not in _BOOKKEEPING]
        foreign = [name for name in extra if _PARTS & set(name.split("."))]
        if foreign:
            raise UserError(
                f"{origin}: the checkpoint holds {_listed(foreign)}, of which its own configuration knows nothing"
            )
        if extra:
            logger.warning("%s: the model has no use for %s", origin, _listed(extra))
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    model.register_load_state_dict_pre_hook(before)
    model.register_load_state_dict_post_hook(after)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def load_model(path: str, option: str, task: Any) -> torch.nn.Module:
    """The model in a checkpoint, built by ``task`` and in evaluation mode; raises ``UserError`` where that fails."""
    task.loading = f"{option}: {path}"
    try:
        models, _ = checkpoint_utils.load_model_ensemble([path], task=task)
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{option}: the model in {path} can't be built: {str(error).splitlines()[0]}") from error
    model: torch.nn.Module = models[0]
    return model.eval()
