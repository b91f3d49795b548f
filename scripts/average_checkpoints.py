#!/usr/bin/env python3
"""Writes a checkpoint whose weights are the mean of those of several checkpoints of one training.

    scripts/average_checkpoints.py --inputs CHECKPOINT ... --output OUT
    scripts/average_checkpoints.py --inputs FOLDER --num-epoch-checkpoints 10 --output OUT
    scripts/average_checkpoints.py --inputs FOLDER --num-update-checkpoints 10 --output OUT

The last two take the newest of the checkpoints that fairseq-train saved after each epoch (checkpoint12.pt) or every so
many updates (checkpoint_12_30000.pt). The options are those of the script in fairseq's repository, which its packages
leave out. Weights are averaged in float64 and stored in the precision that they have in the first file; integers are
rounded down. All else is the first file's (the newest one's), without optimizer state, which belongs to other weights.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from block_plugins import checkpoints
from block_plugins.errors import UserError

KINDS = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}
"""fairseq-train's file names, with the number that grows from one to the next."""


def newest(folder: Path, kind: str, count: int) -> list[str]:
    """The ``count`` newest checkpoints of a kind in a folder, newest first; raises ``UserError`` if there are fewer."""
    if count < 1:
        raise UserError(f"--num-{kind}-checkpoints must be at least 1, not {count}")
    if not folder.is_dir():
        raise UserError(f"--inputs: {folder} is no folder: with --num-{kind}-checkpoints give the one to choose from")
    matches = ((re.fullmatch(KINDS[kind], path.name), path) for path in folder.iterdir())
    found = sorted(((int(match[1]), str(path)) for match, path in matches if match), reverse=True)
    if len(found) < count:
        raise UserError(f"--num-{kind}-checkpoints {count}: {folder} has {len(found)} of them")
    return [path for _, path in found[:count]]


def check_same_weights(first: dict[str, Tensor], other: dict[str, Tensor], names: tuple[str, str]) -> None:
    """Raises ``UserError`` naming file and weight where two state dicts aren't of the same network."""
    for name in sorted(first.keys() ^ other.keys()):
        has, lacks = names if name in first else names[::-1]
        raise UserError(f"--inputs: {lacks} has no {name}, which {has} has: average checkpoints of one training")
    for name, weight in first.items():
        if weight.shape != other[name].shape:
            raise UserError(
                f"--inputs: {name} is of size {list(other[name].shape)} in {names[1]}, but of {list(weight.shape)} in "
                f"{names[0]}: average checkpoints of one training"
            )


def summed(paths: list[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The first checkpoint, and the sums of the weights of all, in float64 or, of integers, int64."""
    first = checkpoints.read(paths[0], "--inputs")
    sums: dict[str, Tensor] = {}
    for path in paths:
        weights = checkpoints.read(path, "--inputs")["model"]
        check_same_weights(first["model"], weights, (paths[0], path))
        for name, weight in weights.items():
            wide = weight.to(torch.float64 if first["model"][name].is_floating_point() else torch.int64)
            sums[name] = sums[name] + wide if name in sums else wide
    return first, sums


def averaged(weights: dict[str, Tensor], sums: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The means, in the precision of ``weights``; what is one tensor there under several names stays so."""
    result: dict[str, Tensor] = {}
    seen: dict[tuple[int, torch.Size], Tensor] = {}
    for name, weight in weights.items():
        total = sums[name]
        mean = (total / count if total.is_floating_point() else total // count).to(weight.dtype)
        shared = seen.setdefault((weight.data_ptr(), weight.shape), mean)
        result[name] = shared if torch.equal(shared, mean) else mean
    return result


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", required=True, nargs="+", metavar="PATH", help="checkpoints, or one folder")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="checkpoint to write")
    newest_of = parser.add_mutually_exclusive_group()
    newest_of.add_argument("--num-epoch-checkpoints", dest="epoch", type=int, metavar="N", help="the last N epochs'")
    newest_of.add_argument("--num-update-checkpoints", dest="update", type=int, metavar="N", help="the last N saved")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the script."""
    given = parse_arguments(arguments)
    paths = given.inputs
    for kind in KINDS:
        count = getattr(given, kind)
        if count is not None:
            if len(paths) > 1:
                raise UserError(f"--num-{kind}-checkpoints takes one folder as --inputs, not {len(paths)} paths")
            paths = newest(Path(paths[0]), kind, count)
    if not given.output.absolute().parent.is_dir():
        raise UserError(f"--output: there is no folder {given.output.absolute().parent}")
    state, sums = summed(paths)
    state["model"] = averaged(state["model"], sums, len(paths))
    state["last_optimizer_state"] = None
    partial = given.output.with_name(given.output.name + ".tmp")
    torch.save(state, partial)
    partial.replace(given.output)
    print(f"{given.output}: the mean of {', '.join(paths)}")


if __name__ == "__main__":
    main()
