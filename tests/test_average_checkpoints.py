"""scripts/average_checkpoints.py: means worked out by hand, the choice of files, and that the result decodes."""

import runpy
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq_tools import PLUGIN, column, here
from tiny_training import make_task, saved, verifier, write_data

from block_plugins import checkpoints
from block_plugins.errors import UserError

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "average_checkpoints.py"


def write(path: Path, update: int = 0, **model: Any) -> str:
    state = {
        "args": Namespace(arch="transformer"),
        "cfg": None,
        "model": model,
        "optimizer_history": [{"num_updates": update}],
        "extra_state": {},
        "last_optimizer_state": {"momentum": torch.ones(3)},
    }
    torch.save(state, path)
    return str(path)


def average(out: Path, *arguments: object) -> dict[str, Any]:
    runpy.run_path(str(SCRIPT))["main"](["--output", str(out), *map(str, arguments)])
    assert not list(out.parent.glob("*.tmp"))
    return checkpoints.read(str(out), "the average")


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[..., str]:
    """The one line with which the script ends, having written nothing."""

    def check(*arguments: object) -> str:
        out = tmp_path / "never.pt"
        with pytest.raises(UserError) as caught:
            average(out, *arguments)
        assert not out.exists()
        message = str(caught.value)
        assert message.startswith("error: --")
        assert len(message.splitlines()) == 1
        return message

    return check


def test_means_are_those_by_hand_in_the_stored_precision(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / f"{number}.pt",
            update=10 * number,
            weight=torch.tensor([[1.0, 2.0 * number], [-float(number), 0.5]]),
            # 2048 and 2049 differ by half of what float16 can tell apart there, so a sum in float16 would lose them
            half=torch.tensor([value], dtype=torch.float16),
            counter=torch.tensor([number, 10 * number]),
            flag=torch.tensor([True, number > 1]),
        )
        for number, value in ((1, 2048.0), (2, 2050.0), (4, 2056.0))
    ]
    state = average(tmp_path / "mean.pt", "--inputs", *files)
    model = state["model"]
    torch.testing.assert_close(model["weight"], torch.tensor([[1.0, 14 / 3], [-7 / 3, 0.5]]), rtol=0, atol=0)
    assert model["half"].dtype == torch.float16
    assert model["half"].item() == 2052.0  # 6154 / 3 = 2051.33, and 2052 is the float16 next to it
    assert model["counter"].tolist() == [2, 23]  # 7 / 3 and 70 / 3, rounded down
    assert model["counter"].dtype == torch.int64
    assert model["flag"].tolist() == [True, False]
    assert state["last_optimizer_state"] is None
    assert state["optimizer_history"] == [{"num_updates": 10}]  # the first file's


def test_one_tensor_under_several_names_stays_one(tmp_path: Path) -> None:
    files = []
    for number in (1.0, 2.0):
        shared = torch.full((1000,), number)
        files.append(write(tmp_path / f"{number}.pt", encoder=shared, decoder=shared, own=shared.clone()))
    model = average(tmp_path / "mean.pt", "--inputs", *files)["model"]
    assert model["encoder"].tolist() == model["own"].tolist() == [1.5] * 1000
    assert model["encoder"].data_ptr() == model["decoder"].data_ptr() != model["own"].data_ptr()


def test_the_newest_checkpoints_of_a_folder(tmp_path: Path, refusal: Callable[..., str]) -> None:
    for name, value in {
        "checkpoint2.pt": 2.0, "checkpoint9.pt": 9.0, "checkpoint10.pt": 10.0, "checkpoint_last.pt": 1000.0,
        "checkpoint_1_900.pt": 0.9, "checkpoint_1_1000.pt": 1.0, "checkpoint_2_1100.pt": 1.1, "checkpoint_best.pt": 0.0,
    }.items():  # fmt: skip
        write(tmp_path / name, x=torch.tensor([value], dtype=torch.float64))
    for option, count, mean in (
        ("--num-epoch-checkpoints", 2, 19 / 2),
        ("--num-epoch-checkpoints", 3, 7),
        ("--num-update-checkpoints", 2, 1.05),
        ("--num-update-checkpoints", 1, 1.1),
    ):
        model = average(tmp_path / "mean.pt", "--inputs", tmp_path, option, count)["model"]
        assert model["x"].item() == pytest.approx(mean, abs=1e-12)
    options = ["--inputs", tmp_path, "--num-epoch-checkpoints"]
    assert f"--num-epoch-checkpoints 4: {tmp_path} has 3 of them" in refusal(*options, 4)
    assert "--num-epoch-checkpoints must be at least 1, not 0" in refusal(*options, 0)
    assert "takes one folder as --inputs" in refusal("--inputs", tmp_path, tmp_path, "--num-update-checkpoints", 1)
    file = tmp_path / "checkpoint2.pt"
    assert f"{file} is no folder" in refusal("--inputs", file, "--num-update-checkpoints", 1)


def test_what_cannot_be_averaged(tmp_path: Path, refusal: Callable[..., str]) -> None:
    first = write(tmp_path / "first.pt", a=torch.zeros(2), b=torch.zeros(2))
    lacking = write(tmp_path / "lacking.pt", a=torch.zeros(2))
    larger = write(tmp_path / "larger.pt", a=torch.zeros(2), b=torch.zeros(3))
    other = tmp_path / "other.pt"
    torch.save({"weights": {}}, other)
    assert f"{lacking} has no b, which {first} has" in refusal("--inputs", first, lacking)
    assert f"{lacking} has no b, which {first} has" in refusal("--inputs", lacking, first)
    assert f"b is of size [3] in {larger}, but of [2] in {first}" in refusal("--inputs", first, larger)
    assert f"--inputs: {other} is not a fairseq checkpoint" in refusal("--inputs", first, other)
    assert "--inputs: there is no checkpoint" in refusal("--inputs", tmp_path / "nowhere.pt")
    with pytest.raises(UserError, match="--output: there is no folder"):
        average(tmp_path / "no" / "mean.pt", "--inputs", first)


def test_the_average_decodes(tmp_path: Path) -> None:
    """That of twice the same is what it is; that of two models is another."""
    data, task = write_data(tmp_path / "data"), make_task()
    one, two = (str(tmp_path / f"{seed}.pt") for seed in (1, 2))
    for seed, path in ((1, one), (2, two)):
        torch.save(saved(verifier(task, seed), "transformer"), path)
    average(tmp_path / "same.pt", "--inputs", one, one)
    average(tmp_path / "mean.pt", "--inputs", one, two)

    def decoded(path: object) -> dict[int, list[str]]:
        options = ["--gen-subset", "valid", "--path", path, "--cpu", "--beam", 2, "--max-len-b", 8]
        return column(here("generate", data, "-s", "en", "-t", "de", *PLUGIN, *options, cwd=tmp_path), "H")

    first = decoded(one)
    assert len(first) == 6
    assert decoded(tmp_path / "same.pt") == first
    assert decoded(tmp_path / "mean.pt") not in (first, decoded(two))
