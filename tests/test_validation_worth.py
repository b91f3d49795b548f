"""What validation measures with a verifier: accepted tokens per iteration of the drafter in training."""

import json
import logging
import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import ModuleProxyWrapper
from fairseq.logging import metrics, progress_bar
from fairseq_tools import PLUGIN, column, here
from tiny_training import TINY, batch, drafter, make_task, saved, verifier, write_data

from block_plugins import checkpoints
from block_plugins.criterions.glat_loss import GlatLoss
from block_plugins.errors import UserError

SOURCES = [[10, 11, 12], [13], [14, 15, 16, 17, 18], [19, 20]]
TARGETS = [[20, 21, 22, 23], [24], [25, 26, 27], [28]]
SIZES = shlex.split("""
-s en -t de --cpu --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32
--max-source-positions 40 --max-target-positions 40 --encoder-learned-pos --decoder-learned-pos
--share-all-embeddings --optimizer adam --max-tokens 60 --log-format simple --log-interval 1 --seed 3""")
BLOCK = shlex.split("--arch block --src-embedding-copy --criterion glat_loss --noise block_mask --block-size 4")
AUTOREGRESSIVE = shlex.split("--criterion label_smoothed_cross_entropy --noise no_noise")
BY_WORTH = ["--best-checkpoint-metric", "accepted", "--maximize-best-checkpoint-metric"]


@pytest.fixture(autouse=True)
def _no_best_of_another_training() -> Iterator[None]:
    """fairseq keeps the best value of a metric for as long as the process lives."""
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    yield
    vars(checkpoint_utils.save_checkpoint).pop("best", None)


class Training:
    """A data directory, a verifier that knows a little, and what to tell fairseq-train."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_data(folder / "data")
        self.verifier = folder / "verifier" / "checkpoint_last.pt"
        words = [*AUTOREGRESSIVE, "--max-update", "80", "--lr", "1e-2", "--disable-validation"]
        here("train", *self.options("verifier", "--arch", "transformer", *words), cwd=folder)

    def options(self, save: str | Path, *flags: object) -> list[object]:
        return [self.data, "--save-dir", self.folder / save, *PLUGIN, *SIZES, *flags]

    def statistics(self, checkpoint: Path, cwd: Path, *flags: object) -> dict[str, float]:
        """Of ``fairseq-generate`` on the validation set."""
        path = cwd / "stats.json"
        words = ["--strategy", "gad", "--path", checkpoint, "--AR-path", self.verifier, "--lookahead", "constant"]
        here("generate", self.data, "-s", "en", "-t", "de", "--cpu", *PLUGIN, "--gen-subset", "valid",
             *words, "--stats-path", path, "--batch-size", 2, *flags, cwd=cwd)  # fmt: skip
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("worth"))


class Writer:
    """Stands in for TensorBoard's ``SummaryWriter``."""

    written: dict[tuple[str, str], dict[int, float]]

    def __init__(self, folder: str) -> None:
        self.tag = Path(folder).name

    def add_text(self, *_: object) -> None:
        pass

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.setdefault((self.tag, name), {})[step] = value

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], dict[int, float]]:
    """What is written, by folder and name, and then by update."""
    monkeypatch.setattr(progress_bar, "SummaryWriter", Writer)
    monkeypatch.setattr(progress_bar, "_tensorboard_writers", {})
    monkeypatch.setattr(Writer, "written", {}, raising=False)
    return Writer.written


def logged(log: str, name: str) -> dict[int, float]:
    """A metric in the lines of validation, by update."""
    lines = re.findall(rf"valid on 'valid' subset \|.*\| {name} ([\d.]+) .*num_updates (\d+)", log)
    return {int(update): float(value) for value, update in lines}


def test_validation_measures_what_decoding_then_does(
    training: Training,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    tensorboard: dict[tuple[str, str], dict[int, float]],
) -> None:
    flags = [*BLOCK, "--max-update", 20, "--lr", "2e-2", "--validate-interval-updates", 4, "--save-interval-updates", 4]
    measured = ["--valid-AR-path", training.verifier, "--tensorboard-logdir", tmp_path / "tb", *BY_WORTH]
    with caplog.at_level(logging.INFO):
        here("train", *training.options(tmp_path / "with", *flags, *measured), cwd=tmp_path)
    accepted, alpha = logged(caplog.text, "accepted"), logged(caplog.text, "alpha")
    assert {4, 8, 12, 16, 20} <= accepted.keys()
    assert len(set(accepted.values())) > 1 and max(accepted.values()) > 1

    at = {int(path.stem.split("_")[2]): path for path in (tmp_path / "with").glob("checkpoint_*_*.pt")}
    for update in (min(at), 20):  # the weights in training, and such as have changed since the first measurement
        figures = training.statistics(at[update], tmp_path, "--block-size", 4)
        assert accepted[update] == round(figures["tokens"] / figures["iterations"], 3)
        assert alpha[update] == round(figures["accepted"] / figures["drafted"], 3)

    state = torch.load(tmp_path / "with" / "checkpoint_best.pt", weights_only=True)
    best = max(accepted, key=lambda update: (accepted[update], update))  # of equal ones the last
    assert state["optimizer_history"][-1]["num_updates"] == best
    assert state["extra_state"]["val_loss"] == accepted[best]

    assert tensorboard["valid", "accepted"] == accepted
    assert tensorboard["valid", "alpha"] == alpha
    assert tensorboard["train_inner", "glat_context_p"].keys() == set(range(1, 21))
    assert "glat_accu=" in caplog.text and "glat_context_p=" in caplog.text

    # the training, and what it saves, is the same without
    here("train", *training.options(tmp_path / "without", *flags), cwd=tmp_path)
    states = [torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True) for name in ("with", "without")]
    assert states[0]["model"].keys() == states[1]["model"].keys()
    assert all(torch.equal(weight, states[1]["model"][name]) for name, weight in states[0]["model"].items())
    moments = [state["last_optimizer_state"]["state"] for state in states]
    assert all(torch.equal(one["exp_avg"], moments[1][n]["exp_avg"]) for n, one in moments[0].items())
    assert states[0]["task_state"] == states[1]["task_state"]


def test_a_drafter_that_is_its_verifier_is_always_right(
    training: Training, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An iteration then commits three draft tokens and one more: a quarter of the greedy output's length, rounded
    up.
    """
    start = ["--restore-file", training.verifier, "--reset-optimizer", "--reset-dataloader", "--reset-meters",
             "--reset-lr-scheduler", "--lr", "1e-9", "--max-update", 1, "--no-epoch-checkpoints"]  # fmt: skip
    words = ["--arch", "transformer_drafter", *AUTOREGRESSIVE, *start, "--num-draft-tokens", 3]
    with caplog.at_level(logging.INFO):
        here("train", *training.options(tmp_path, *words, "--valid-AR-path", training.verifier), cwd=tmp_path)
    greedy = here("generate", training.data, "-s", "en", "-t", "de", "--cpu", *PLUGIN, "--gen-subset", "valid",
                  "--path", training.verifier, "--beam", 1, cwd=tmp_path)  # fmt: skip
    lengths = [len(fields[1].split()) + 1 for fields in column(greedy, "H").values()]
    assert len(lengths) == 6
    expected = sum(lengths) / sum(-(-length // 4) for length in lengths)
    assert logged(caplog.text, "accepted") == {1: round(expected, 3)}
    assert logged(caplog.text, "alpha") == {1: 1.0}


# ---- a task with a verifier, without fairseq-train


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A verifier with random weights, which reads 5 source tokens at most (EOS counted)."""
    positions = {"max_source_positions": 5}
    state = saved(verifier(make_task(), **positions), "transformer", **positions)
    torch.save(state, tmp_path / "verifier.pt")
    return tmp_path / "verifier.pt"


def measuring_task(checkpoint: Path, **options: Any) -> tuple[Any, Any]:
    """A task and its drafter in training, both ready for validation."""
    task = make_task(noise="block_mask", block_size=3, valid_AR_path=str(checkpoint), **options)
    model = task.build_model(Namespace(**TINY, _name="block", arch="block")).train()
    task.begin_valid_epoch(1, model)
    return task, model


def test_batches_and_workers_add_up(checkpoint: Path) -> None:
    task, model = measuring_task(checkpoint)
    criterion = GlatLoss(task, 0.1)
    sample = batch(SOURCES[:2] + SOURCES[3:], TARGETS[:2] + TARGETS[3:])
    parts = [batch([SOURCES[n]], [TARGETS[n]]) for n in (0, 1, 3)]

    def reduced(*steps: list[dict[str, Any]]) -> dict[str, float]:
        with metrics.aggregate(new_root=True) as found:
            for logs in steps:
                task.reduce_metrics(logs, criterion)
        return {name: found[name].avg for name in ("accepted", "alpha")}

    whole = task.valid_step(sample, model, criterion)[2]
    one, two, three = (task.valid_step(part, model, criterion)[2] for part in parts)
    expected = {
        "accepted": whole["worth_tokens"] / whole["worth_iterations"],
        "alpha": whole["worth_accepted"] / whole["worth_drafted"],
    }
    assert whole["worth_iterations"] > 3
    assert reduced([whole]) == pytest.approx(expected)
    assert reduced([one, two, three]) == pytest.approx(expected)  # three workers
    assert reduced([one], [two], [three]) == pytest.approx(expected)  # three batches
    idle = task.valid_step({**parts[0], "id": torch.tensor([1000])}, model, criterion)[2]
    assert idle.keys() == one.keys()  # fairseq adds them up key by key
    assert reduced([one, idle], [two, idle], [idle], [three]) == pytest.approx(expected)
    assert reduced([idle]) == {"accepted": 0, "alpha": 0}


def test_what_is_measured_is_bounded(checkpoint: Path) -> None:
    for lines, sentences in ((1, [0]), (2, [0, 1]), (200, [0, 1, 3])):  # the third sentence is too long
        task, model = measuring_task(checkpoint, valid_lines=lines)
        counts = task.worth.measure(model, batch(SOURCES, TARGETS))
        single = [task.worth.measure(model, batch([SOURCES[n]], [TARGETS[n]])) for n in sentences]
        assert counts == {name: sum(one[name] for one in single) for name in counts}


def test_measuring_leaves_everything_as_it_is(checkpoint: Path) -> None:
    torch.manual_seed(5)
    plain = make_task(noise="block_mask").build_model(Namespace(**TINY, _name="block", arch="block"))
    torch.manual_seed(5)
    task, model = measuring_task(checkpoint)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    before = torch.get_rng_state()
    task.valid_step(batch(SOURCES, TARGETS), model, GlatLoss(task, 0.1))
    assert torch.equal(torch.get_rng_state(), before)
    model.train()
    task.worth.measure(model, batch(SOURCES, TARGETS))
    assert all(module.training for module in model.modules())
    assert not any(weight.requires_grad for weight in task.worth.verifier.parameters())
    assert task.state_dict().keys() == make_task().state_dict().keys()


@pytest.mark.parametrize("options", [{"cpu_autocast": "bf16"}, {}])
def test_other_precisions(checkpoint: Path, options: dict[str, Any]) -> None:
    task, model = measuring_task(checkpoint, **options)
    if not options:  # as under --bf16
        model.to(torch.bfloat16)
        task.begin_valid_epoch(1, model)
        assert {weight.dtype for weight in task.worth.verifier.parameters()} == {torch.bfloat16}
    log = task.valid_step(batch(SOURCES, TARGETS), model, GlatLoss(task, 0.1))[2]
    assert log["worth_tokens"] >= log["worth_iterations"] > 0


def test_a_drafter_in_the_wrappers_of_distributed_training(checkpoint: Path) -> None:
    task, model = measuring_task(checkpoint)
    wrapped = ModuleProxyWrapper(torch.nn.DataParallel(model))
    sample, criterion = batch(SOURCES, TARGETS), GlatLoss(task, 0.1)
    assert task.valid_step(sample, wrapped, criterion)[2] == task.valid_step(sample, model, criterion)[2]


def test_bleu_in_validation_is_that_of_the_weights_of_the_moment() -> None:
    task = make_task(noise="block_mask", block_size=3, eval_bleu=True, eval_bleu_args='{"max_len_b": 10}')
    model = task.build_model(Namespace(**TINY, _name="block", arch="block")).eval()
    sample = batch(SOURCES, TARGETS)

    def texts(generator: Any) -> list[list[int]]:
        return [row[0]["tokens"].tolist() for row in generator.generate([model], sample)]

    before = texts(task.sequence_generator)
    for weight, new in zip(model.parameters(), drafter(task, seed=7).parameters(), strict=True):
        weight.data.copy_(new.data)  # as fairseq's optimizers do
    task.begin_valid_epoch(2, model)
    after = texts(task.sequence_generator)
    assert after == texts(task.build_generator([model], Namespace(max_len_b=10)))
    assert after != before


# ---- what can't work is told when training starts


def test_options_that_do_not_go_together(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(*flags: object) -> str:
        with pytest.raises(UserError) as caught:
            here("train", *training.options(tmp_path / "save", *BLOCK, "--lr", "1e-3", *flags), cwd=tmp_path)
        return str(caught.value)

    given = ["--valid-AR-path", training.verifier]
    assert "--best-checkpoint-metric accepted is measured with a verifier" in error(*BY_WORTH)
    assert "give --maximize-best-checkpoint-metric" in error(*given, *BY_WORTH[:2])
    assert "--ddp-backend fully_sharded" in error(*given, "--ddp-backend", "fully_sharded")
    monkeypatch.setattr(progress_bar, "SummaryWriter", None)
    assert "--tensorboard-logdir needs the package tensorboardX" in error("--tensorboard-logdir", "tb")


def test_verifiers_that_do_not_fit(checkpoint: Path, tmp_path: Path) -> None:
    def error(**changes: Any) -> str:
        torch.save({**checkpoints.read(str(checkpoint), "--path"), **changes}, tmp_path / "changed.pt")
        with pytest.raises(UserError) as caught:
            measuring_task(tmp_path / "changed.pt")
        return str(caught.value).removeprefix("error: --valid-AR-path: ")

    other = ["<s>", "<pad>", "</s>", "<unk>", "other"]
    assert "symbol 4 is 'other' in the first" in error(task_state={"dictionaries": {"target": other}})
    block = saved(drafter(make_task()), "block")
    assert "is a block drafter, but the verifier has to be autoregressive" in error(**block)
    assert "is not a fairseq checkpoint" in error(model=None)
    with pytest.raises(UserError, match=r"--valid-AR-path: there is no checkpoint nowhere\.pt"):
        measuring_task(Path("nowhere.pt"))
    with pytest.raises(UserError, match="--valid-lines must be at least 1, not 0"):
        make_task(write_data(tmp_path / "data"), valid_lines=0)
