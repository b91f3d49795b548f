"""Training as a user starts it: train.sh's recipes, the configuration files for hydra, several processes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_tools import REPOSITORY, here, run, script_environment
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tiny_training import batch, make_task, write_data

import block_plugins  # noqa: F401 - registers the task and the models

CONFIG = REPOSITORY / "block_plugins" / "config"
RECIPES: dict[str, tuple[dict[str, str], tuple[float, float, int, int, int]]] = {
    # configuration file: what train.sh is told; learning rate, dropout, warm-up, updates, target tokens of an update
    "drafter_wmt14": ({"RECIPE": "wmt14", "GPUS": "8"}, (5e-4, 0.1, 10_000, 300_000, 128 * 1024)),
    "drafter_wmt16": ({"RECIPE": "wmt16", "GPUS": "8"}, (1e-3, 0.2, 4_000, 50_000, 64 * 1024)),
    "ar_drafter_low_resource": ({"RECIPE": "low_resource", "GPUS": "1"}, (1e-3, 0.2, 4_000, 50_000, 16 * 1024)),
}
TINY = {
    "CPU": "1", "LAYERS": "1", "EMBED_DIM": "16", "HEADS": "2", "MAX_POSITIONS": "40", "MAX_TOKENS": "40",
    "LR": "0.01", "WARMUP": "1",
}  # fmt: skip
TINY_OVERRIDES = [
    "common.cpu=true", "common.fp16=false", "optimization.update_freq=[1]", "dataset.max_tokens=40",
    "task.max_source_positions=40", "task.max_target_positions=40", "model.encoder_layers=1", "model.decoder_layers=1",
    "model.encoder_embed_dim=16", "model.decoder_embed_dim=16", "model.encoder_ffn_embed_dim=64",
    "model.decoder_ffn_embed_dim=64", "model.encoder_attention_heads=2", "model.decoder_attention_heads=2",
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def told(stand_in: Path, data: Path, *arguments: str, **variables: str) -> tuple[str, list[str]]:
    """What train.sh says, and the arguments that fairseq-train gets from it."""
    variables |= {"PYTHON_BIN": str(stand_in), "DATA": str(data), "SAVE_DIR": str(data.parent / "save")}
    result = subprocess.run(
        [REPOSITORY / "train.sh", *arguments],
        env=script_environment(**variables), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    start = lines.index(str(data))
    return "\n".join(lines[:start]), lines[start:]


def from_command_line(words: list[str]) -> DictConfig:
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


@pytest.mark.filterwarnings("ignore")
def from_file(name: str, *overrides: str) -> DictConfig:
    """What fairseq-hydra-train makes of a configuration file and what is given behind it."""
    hydra_init(name)
    with initialize_config_dir(str(CONFIG), version_base="1.1"):
        configuration = compose(name, overrides=list(overrides))
    add_defaults(configuration)
    return OmegaConf.create(OmegaConf.to_container(configuration, resolve=True, enum_to_str=True))


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The options, by their full names, in which two configurations differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in one.keys() | other.keys():
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found[prefix + name] = (a, b)
    return found


# ---- configuration files


def test_there_is_a_file_for_each_recipe() -> None:
    assert {path.stem for path in CONFIG.iterdir()} == RECIPES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_a_file_says_what_train_sh_says(name: str, stand_in: Path, data: Path) -> None:
    variables, (lr, dropout, warmup, updates, tokens) = RECIPES[name]
    said, words = told(stand_in, data, **variables)
    by_flags = from_command_line(words)
    by_file = from_file(name, f"task.data={data}", f"checkpoint.save_dir={data.parent / 'save'}")
    differing = differences(OmegaConf.to_container(by_flags), OmegaConf.to_container(by_file))
    # where the plugin is, how many processes there are, and a default that fairseq gives its command line only
    allowed = {"common.user_dir", "scoring", "bmuf.distributed_world_size"}
    assert {option for option in differing if not option.startswith("distributed_training.")} <= allowed

    assert (by_file.optimization.lr, by_file.model.dropout) == ([lr], dropout)
    assert (by_file.lr_scheduler.warmup_updates, by_file.optimization.max_update) == (warmup, updates)
    (batches,) = by_file.optimization.update_freq
    assert int(variables["GPUS"]) * batches * by_file.dataset.max_tokens == tokens
    assert f" {tokens} target tokens an update" in said and said.endswith(f"wanted: {tokens}")


def test_the_sizes_for_a_small_corpus(stand_in: Path, data: Path) -> None:
    model = from_file("ar_drafter_low_resource").model
    _, words = told(stand_in, data, RECIPE="low_resource", ROLE="verifier", GPUS="1")
    verifier = from_command_line(words).model
    for found, size in ((model, (256, 4, 8)), (verifier, (512, 8, 8))):
        for side in ("encoder", "decoder"):
            names = ("embed_dim", "layers", "attention_heads")
            assert tuple(getattr(found, f"{side}_{option}") for option in names) == size
    assert model._name == "transformer_drafter" and verifier._name == "transformer"


def assert_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """The same names, shapes and values."""
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def built(configuration: DictConfig) -> tuple[Any, Any, float]:
    """The model with seeded weights, its options, and its loss on a batch, dropout included."""
    task = tasks.setup_task(configuration.task)
    torch.manual_seed(1)
    model = task.build_model(configuration.model).train()
    criterion = task.build_criterion(configuration.criterion)
    sample = batch([[10, 11, 12], [13], [14, 15, 16, 17, 18]], [[20, 21, 22, 23], [24], [25, 26, 27]])
    losses: list[torch.Tensor] = []
    optimizer = type("Optimizer", (), {"backward": staticmethod(losses.append)})
    task.train_step(sample, model, criterion, optimizer, update_num=1000)
    return model, task.cfg, losses[0].item()


@pytest.mark.parametrize("name", RECIPES)
def test_both_forms_build_the_same_model_with_the_same_loss(name: str, stand_in: Path, data: Path) -> None:
    variables = {**RECIPES[name][0], **TINY}
    _, words = told(stand_in, data, **variables)
    one, options_of_one, loss = built(from_command_line(words))
    other, options_of_other, other_loss = built(from_file(name, f"task.data={data}", *TINY_OVERRIDES))
    assert type(one) is type(other) and options_of_one == options_of_other
    assert other.encoder.layers[0].fc1.weight.shape == (64, 16) and len(other.decoder.layers) == 1
    assert_same_weights(one.state_dict(), other.state_dict())
    assert loss == other_loss > 0


@pytest.mark.parametrize("name", ["drafter_wmt14", "ar_drafter_low_resource"])
def test_sizes_that_a_file_leaves_out_follow_those_that_it_gives(name: str, data: Path) -> None:
    configuration = from_file(
        name, f"task.data={data}", "model.encoder_embed_dim=32", "model.encoder_ffn_embed_dim=48",
        "~model.decoder_embed_dim", "~model.decoder_ffn_embed_dim",
    )  # fmt: skip
    model = make_task().build_model(configuration.model)
    assert {layer.fc1.weight.shape for layer in model.decoder.layers} == {(48, 32)}


def test_hydra_trains_what_the_command_line_trains(stand_in: Path, data: Path, tmp_path: Path) -> None:
    _, words = told(
        stand_in, data, "--max-update", "3", "--no-epoch-checkpoints", "--disable-validation",
        **TINY, UPDATE_FREQ="1",
    )  # fmt: skip
    here("train", *words, cwd=tmp_path)
    result = run(
        "hydra-train", "--config-dir", CONFIG, "--config-name", "drafter_wmt14", f"task.data={data}", *TINY_OVERRIDES,
        f"common.user_dir={REPOSITORY / 'block_plugins'}", "checkpoint.save_dir=by_hydra", "dataset.num_workers=0",
        "optimization.max_update=3", "task.total_up=300000", "lr_scheduler.warmup_updates=1",
        "optimization.lr=[0.01]",
        "checkpoint.no_epoch_checkpoints=true", "dataset.disable_validation=true", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

    def loaded(folder: str) -> dict[str, torch.Tensor]:
        (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([f"{tmp_path}/{folder}/checkpoint_last.pt"])
        state: dict[str, torch.Tensor] = model.state_dict()
        return state

    assert_same_weights(loaded("save"), loaded("by_hydra"))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "save", "by_hydra"}


def test_an_autoregressive_drafter_is_trained_and_loaded(stand_in: Path, data: Path, tmp_path: Path) -> None:
    """Its encoder stays as it began, and its checkpoint says so."""
    flags = ["--max-update", "2", "--no-epoch-checkpoints", "--disable-validation"]
    variables = {**TINY, "RECIPE": "low_resource", "FREEZE_ENCODER": "1", "UPDATE_FREQ": "1"}
    _, words = told(stand_in, data, *flags, **variables)
    here("train", *words, cwd=tmp_path)
    (model,), *_ = checkpoint_utils.load_model_ensemble_and_task([f"{tmp_path}/save/checkpoint_last.pt"])
    start, *_ = built(from_command_line(words))
    assert model.encoder.frozen and type(model) is type(start)
    assert_same_weights(model.encoder.state_dict(), start.encoder.state_dict())
    assert not torch.equal(model.decoder.layers[0].fc1.weight, start.decoder.layers[0].fc1.weight)


# ---- several processes


FLAGS = [
    "--log-format", "json", "--log-interval", "1", "--num-workers", "0", "--no-epoch-checkpoints",
    "--disable-validation",
]  # fmt: skip
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames here-[1-2]" ] && printf 'localhost\\nelsewhere\\n'
"""


def losses(log: str, updates: range) -> list[float]:
    """The losses of these updates, as one process logged them."""
    found = [json.loads(line[line.index("{") :]) for line in log.splitlines() if '"update": ' in line]
    by_update = {int(entry["num_updates"]): float(entry["loss"]) for entry in found}
    return [by_update[update] for update in updates]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]
    return state


def assert_same_training(one: Path, other: Path, log: str, other_log: str, updates: range) -> None:
    """Up to the order of additions."""
    assert losses(log, updates) == pytest.approx(losses(other_log, updates), abs=1.5e-3)  # logged to three digits
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5, msg=name)


def in_one_process(stand_in: Path, data: Path, caplog: pytest.LogCaptureFixture, **variables: str) -> tuple[Path, str]:
    """A training whose updates are of two batches: its folder and its log."""
    said, words = told(stand_in, data, *FLAGS, **TINY, UPDATE_TOKENS="80", **variables)
    assert "80 target tokens an update at most (processes: 1, batches on each: 2," in said
    with caplog.at_level(logging.INFO):
        here("train", *words, cwd=data.parent)
    return data.parent / "save", caplog.text


def test_two_processes_under_torchrun_train_as_one(
    stand_in: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A block drafter. Noise, glancing and dropout are the batch's own, whichever process trains on it."""
    alone, log = in_one_process(stand_in, data, caplog, MAX_UPDATE="5")
    result = subprocess.run(
        ["torchrun", "--nproc-per-node", "2", "--no-python", REPOSITORY / "train.sh", *FLAGS],
        env=script_environment(**TINY, DATA=str(data), SAVE_DIR="together", UPDATE_TOKENS="80", MAX_UPDATE="5"),
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("80 target tokens an update at most (processes: 2, batches on each: 1,") == 1
    assert_same_training(tmp_path / "together", alone, result.stdout + result.stderr, log, range(1, 6))


def test_two_tasks_of_slurm_train_as_one(
    stand_in: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A verifier, which one process has trained for the first epoch, of three updates."""
    in_one_process(stand_in, data, caplog, ROLE="verifier", MAX_UPDATE="3")
    shutil.copytree(data.parent / "save", tmp_path / "together")
    alone, log = in_one_process(stand_in, data, caplog, ROLE="verifier", MAX_UPDATE="6")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "scontrol").write_text(SCONTROL, encoding="utf-8")
    (tmp_path / "tools" / "scontrol").chmod(0o755)
    variables = {
        **TINY, "ROLE": "verifier", "DATA": str(data), "SAVE_DIR": "together", "UPDATE_TOKENS": "80",
        "MAX_UPDATE": "6", "SLURM_JOB_ID": str(free_port() - 10_000), "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "here-[1-2]", "SLURM_LOCALID": "0",
    }  # fmt: skip
    started = []
    for number in ("0", "1"):
        given = script_environment(**variables, SLURM_PROCID=number)
        given["PATH"] += f"{os.pathsep}{tmp_path / 'tools'}"
        started.append(
            subprocess.Popen(
                [REPOSITORY / "train.sh", *FLAGS], env=given, cwd=tmp_path, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    try:
        first, second = (process.communicate(timeout=120)[0] for process in started)
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], first[-3000:] + second[-3000:]
    assert "(processes: 2, batches on each: 1," in first and "train.sh: " not in second
    assert_same_training(tmp_path / "together", alone, first, log, range(4, 7))


def free_port() -> int:
    """One that a job number above 0 can lead to."""
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if 10_000 < port < 60_000:
            return port
    raise AssertionError("there is no free port")


def test_train_sh_tells_fairseq_of_gpus_machines_and_tasks(stand_in: Path, data: Path) -> None:
    slurm = {
        "SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "a", "SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "head",
        "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    }  # fmt: skip
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "16", "RANK": "9", "LOCAL_RANK": "1"}

    def flags(*names: str, **variables: str) -> list[str | None]:
        """The values of these flags, without their dashes; '' for one that has none, None for one that isn't given."""
        _, words = told(stand_in, data, **variables)
        values = dict(zip(words, [*words[1:], "--"], strict=True))
        found = [values.get(f"--{name}") for name in names]
        return ["" if value is not None and value.startswith("--") else value for value in found]

    world, process, method = "distributed-world-size", "distributed-rank", "distributed-init-method"
    no_spawn, backends = "distributed-no-spawn", ("distributed-backend", "ddp-backend")
    assert flags(world, method, "update-freq", GPUS="1") == ["1", None, "32"]
    # fairseq starts a process for each
    assert flags(world, process, no_spawn, "update-freq", GPUS="3") == ["3", "0", None, "11"]  # 10.67
    assert str(flags(method, GPUS="3")[0]).startswith("tcp://localhost:")
    assert flags(world, "update-freq", GPUS="64") == ["64", "1"]  # more than was asked for, but at least one batch
    # started already
    found = flags(world, process, method, no_spawn, "device-id", "update-freq", *backends, GPUS="8", **torchrun)
    assert found == ["16", "9", "env://", "", "1", "2", None, None]
    tasks_and_gpus = (world, process, method, no_spawn, "device-id", "update-freq")
    found = flags(*tasks_and_gpus, GPUS="4", SLURM_STEP_NUM_TASKS="8", **slurm)
    assert found == ["8", "5", "tcp://head:33456", "", "1", "4"]
    found = flags(*tasks_and_gpus, GPUS="1", SLURM_STEP_NUM_TASKS="8", **slurm)
    assert found == ["8", "5", "tcp://head:33456", "", "0", "4"]  # each task sees its own GPU only
    # a task for each machine: fairseq starts a process for each of its GPUs
    found = flags(*tasks_and_gpus, GPUS="4", SLURM_STEP_NUM_TASKS="2", **{**slurm, "SLURM_PROCID": "1"})
    assert found == ["8", "4", "tcp://head:33456", None, None, "4"]


def test_numbers_of_train_sh_that_cannot_be(stand_in: Path, data: Path) -> None:
    def error(**variables: str) -> str:
        result = subprocess.run(
            [REPOSITORY / "train.sh"], capture_output=True, text=True, check=False,
            env=script_environment(PYTHON_BIN=str(stand_in), DATA=str(data), SAVE_DIR="unused", **variables),
        )  # fmt: skip
        assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
        return result.stderr

    assert "error: RECIPE must be wmt14, wmt16 or low_resource, not wmt15" in error(RECIPE="wmt15")
    assert "error: UPDATE_TOKENS must be a number above 0, not 128k" in error(UPDATE_TOKENS="128k")
    assert "error: GPUS must be a number above 0, not 0" in error(GPUS="0")
