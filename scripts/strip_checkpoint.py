#!/usr/bin/env python3
"""A checkpoint to hand out: the weights in half precision, without optimizer state and without paths of this machine.

    scripts/strip_checkpoint.py CHECKPOINT OUT

Rounding to 16 bits changes a model a little, so a drafter should be judged with the stripped verifier. Equal weights of
two checkpoints stay equal: a drafter that shares its verifier's encoder still does.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from block_plugins import checkpoints

KEPT = ("args", "cfg", "model", "task_state", "optimizer_history", "extra_state")
"""What loading a model for decoding, or starting another from it, needs: fairseq looks into the last two as well."""


def without_paths(value: Any) -> Any:
    """The same configuration with every absolute path left empty."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**without_paths(vars(value)))
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return "" if isinstance(value, str) and Path(value).is_absolute() else value


def halved(weights: dict[str, Any]) -> dict[str, Any]:
    """The same with floating-point numbers in 16 bits; weights that are one tensor under several names stay so."""
    done: dict[int, Tensor] = {}
    result = dict(weights)
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and weight.is_floating_point():
            result[name] = done.setdefault(weight.data_ptr(), weight.half())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    state = {key: value for key, value in checkpoints.read(arguments.checkpoint, "CHECKPOINT").items() if key in KEPT}
    state["model"] = halved(state["model"])
    for key in ("args", "cfg"):
        if isinstance(state.get(key), DictConfig):
            state[key] = OmegaConf.to_container(state[key], resolve=True)
        state[key] = without_paths(state.get(key))
    partial = arguments.out.with_name(arguments.out.name + ".tmp")
    torch.save(state, partial)
    partial.replace(arguments.out)
    size = arguments.out.stat().st_size / 2**20
    print(
        f"{arguments.out}: {sum(w.numel() for w in state['model'].values()) / 1e6:.1f} million weights, {size:.1f} MiB"
    )


if __name__ == "__main__":
    main()
