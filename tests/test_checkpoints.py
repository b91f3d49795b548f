"""Safe loading of what fairseq pickles into its checkpoints."""

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from block_plugins import checkpoints
from block_plugins.errors import UserError


class Harmful:
    pass


def test_what_fairseq_checkpoints_hold_can_be_read_safely(tmp_path: Path) -> None:
    config = OmegaConf.create({"model": {"arch": "transformer", "layers": [1, 2], "dropout": 0.1, "deep": {"x": None}}})
    state = {
        "cfg": config,
        "args": Namespace(lr=[0.1], arch="transformer"),
        "model": {"weight": torch.ones(2)},
        "extra_state": {
            "best": np.float64(1.5),
            "steps": np.int64(3),
            "flag": np.bool_(True),
            "array": np.arange(3, dtype=np.int32),
            "meters": OrderedDict(a=1.0),
        },
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    found = checkpoints.read(str(path), "--path")
    assert found["args"] == state["args"]
    assert found["cfg"] == config
    assert found["extra_state"]["best"] == 1.5
    assert found["extra_state"]["array"].tolist() == [0, 1, 2]
    assert found["extra_state"]["meters"]["a"] == 1.0


def test_a_class_that_is_not_on_the_list_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "cfg": {}, "extra": Harmful()}, path)
    with pytest.raises(UserError, match=r"--path: .*checkpoint.pt can't be read as a checkpoint .*Harmful"):
        checkpoints.read(str(path), "--path")


def test_files_in_torchs_old_format_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state = {"model": {"weight": torch.ones(2)}, "cfg": None, "args": Namespace(arch="block_base")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    found = checkpoints.read(str(path), "--path")
    assert found["model"]["weight"].tolist() == [1.0, 1.0]
    assert checkpoints.is_block(found)


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"args": Namespace(arch="block_base"), "cfg": None}, "block_base"),
        ({"args": None, "cfg": {"model": Namespace(arch="transformer")}}, "transformer"),
        ({"cfg": {"model": {"_name": "block"}}}, "block"),
        ({"cfg": OmegaConf.create({"model": {"_name": "transformer", "arch": "transformer_iwslt_de_en"}})},
         "transformer_iwslt_de_en"),
    ],
)  # fmt: skip
def test_the_architecture_is_found_wherever_fairseq_puts_it(state: dict[str, object], name: str) -> None:
    assert checkpoints.architecture(state) == name
    assert checkpoints.is_block(state) == name.startswith("block")


def test_weights_only_false_appears_nowhere() -> None:
    repository = Path(__file__).resolve().parents[1]
    forbidden = "weights_only" + "=False"
    files = [*repository.glob("block_plugins/**/*.py"), *repository.glob("scripts/**/*.py"), *repository.glob("*.py"),
             *repository.glob("tests/**/*.py"), *repository.glob("benchmarks/**/*.py")]  # fmt: skip
    assert len(files) > 20
    assert [str(file) for file in files if forbidden in file.read_text(encoding="utf-8")] == []
