#!/usr/bin/env python3
"""Some of the four models of a dual_transformer checkpoint, each as an ordinary fairseq checkpoint.

    scripts/export_dual.py CHECKPOINT --component COMPONENT [COMPONENT ...] [--out OUT]

COMPONENT is forward-verifier, backward-verifier, forward-drafter or backward-drafter. Each is written to COMPONENT.pt
beside CHECKPOINT, a single one to OUT where that is given. A verifier or an autoregressive drafter becomes a fairseq
``transformer``, a block drafter a ``block`` model; either has one table of embeddings, in which a drafter's projection
is multiplied out, so its logits stay the same. It is loaded by fairseq-generate (as --path or --AR-path) and, unless a
block drafter, by CTranslate2's converter (``ct2-fairseq-converter --user_dir block_plugins``, whose import allows what
fairseq pickles).
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig

from block_plugins import checkpoints
from block_plugins.errors import UserError
from block_plugins.models.dual_transformer import COMPONENTS, DualTransformerModel, component_options


def dictionary_of(symbols: list[str]) -> Dictionary:
    """The dictionary with these symbols, of which fairseq's special ones come first."""
    result = Dictionary()
    for symbol in symbols[len(result) :]:
        result.add_symbol(symbol)
    return result


def load(path: str) -> tuple[DualTransformerModel, dict[str, Any]]:
    """The model of a checkpoint, and all of the checkpoint; raises ``UserError`` where it holds no such model."""
    state = checkpoints.read(path, "CHECKPOINT")
    if checkpoints.architecture(state) != "dual_transformer":
        raise UserError(f"CHECKPOINT: {path} holds a model of --arch {checkpoints.architecture(state)}, not a dual one")
    symbols = (state.get("task_state") or {}).get("dictionaries", {}).get("source")
    if symbols is None:
        raise UserError(f"CHECKPOINT: {path} has no dictionary; was it trained with --task dual_translation?")
    model = DualTransformerModel(argparse.Namespace(**state["cfg"]["model"]), dictionary_of(symbols))
    model.load_state_dict(state["model"])
    return model.eval(), state


def exported(model: DualTransformerModel, state: dict[str, Any], component: str) -> dict[str, Any]:
    """The component's checkpoint, with all that fairseq's tools read from one."""
    options = component_options(model.cfg, component)
    known = {item.name for item in fields(TranslationConfig)}
    task = {name: value for name, value in state["cfg"]["task"].items() if name in known}
    task.update(_name="translation", data="")  # which is where the data was on this machine
    if component.startswith("backward"):
        task["source_lang"], task["target_lang"] = task["target_lang"], task["source_lang"]
    # CTranslate2 asks the model's options for the task
    options._name, options.task = options.arch, task["_name"]
    options.source_lang, options.target_lang = task["source_lang"], task["target_lang"]
    return {
        "args": None,
        "cfg": {"model": options, "task": task},
        "model": {name: weight.clone() for name, weight in model.ordinary(component).state_dict().items()},
        "criterion": None,
        "optimizer_history": state["optimizer_history"],
        "task_state": {"dictionaries": state["task_state"]["dictionaries"]},
        "extra_state": {"train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}},
        "last_optimizer_state": None,
    }


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    names = [name.replace("_", "-") for name in COMPONENTS]
    parser.add_argument("--component", required=True, nargs="+", choices=names)
    parser.add_argument("--out", type=Path)
    own = parser.parse_args(arguments)
    if own.out is not None and len(own.component) > 1:
        raise UserError("--out is the file of one model: leave it out where --component names several")
    model, state = load(own.checkpoint)
    for component in own.component:
        out = own.out or Path(own.checkpoint).with_name(f"{component}.pt")
        if not out.absolute().parent.is_dir():
            raise UserError(f"--out: there is no folder {out.absolute().parent}")
        partial = out.with_name(out.name + ".tmp")
        torch.save(exported(model, state, component.replace("-", "_")), partial)
        partial.replace(out)
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
