"""The plots' values, read back from matplotlib, for small inputs."""

import importlib
import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fairseq.logging.progress_bar import JsonProgressBar, SimpleProgressBar

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def plot_stats(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("plot_stats")


def lines(panel: Any) -> dict[str, list[tuple[float, float]]]:
    """The points of each line with a label."""
    return {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in panel.get_lines()
        if not line.get_label().startswith("_")
    }


def write_trace(path: Path, accepted: list[int | None]) -> Path:
    """A sentence with an iteration for each number of accepted tokens; None stands for a step without a draft."""
    iterations = [
        {
            "draft": [{"token": "a", "id": 4, "confidence": 0.5}] * (0 if count is None else 3),
            "lookahead": 0 if count is None else 3,
            "accepted": count or 0,
            "correction": {"token": "b", "id": 5},
            "draft_seconds": 0.0,
            "verify_seconds": 0.0,
        }
        for count in accepted
    ]
    sentence = {
        "id": 0, "source": "s", "source_lang": "en", "target_lang": "de", "batch": 0, "batch_size": 1,
        "batch_seconds": 1.0, "iterations": iterations,
    }  # fmt: skip
    path.write_text(json.dumps(sentence) + "\n", encoding="utf-8")
    return path


def test_accepted_tokens_per_iteration(plot_stats: ModuleType, tmp_path: Path) -> None:
    one = write_trace(tmp_path / "one.jsonl", [0, 0, 2, 3, None])
    other = write_trace(tmp_path / "other.jsonl", [1, 1, 1])
    (panel,) = plot_stats.accepted([str(one), str(other)]).get_axes()
    bars = [[bar.get_height() for bar in group] for group in panel.containers if hasattr(group, "patches")]
    assert bars == [[50, 0, 25, 25], [0, 100]]  # per cent of the iterations with 1, 2, 3, 4 tokens
    assert [group.get_label() for group in panel.containers if hasattr(group, "patches")] == [
        "one: 2.25 on average, 4 iterations",
        "other: 2.00 on average, 3 iterations",
    ]
    first, second = panel.containers[0].patches[2], panel.containers[1].patches[1]
    assert first.get_x() + first.get_width() == pytest.approx(3) and second.get_x() == pytest.approx(2)


def row(strategy: str, batch: int, speedup: float, bleu: float) -> dict[str, Any]:
    return {"strategy": strategy, "batch": batch, "speedup": speedup, "BLEU": bleu, "alpha": None}


RESULTS = [
    row("fairseq beam 1", 1, 1.0, 30.0),
    row("fairseq beam 1", 32, 1.0, 30.0),
    row("GAD beta 1, block 10", 1, 3.0, 30.0),
    row("GAD beta 1, block 5", 1, 2.5, 30.0),
    row("GAD beta 5 tau 3, block 5", 1, 4.0, 29.0),
    row("GAD beta 5 tau inf, block 5", 1, 4.5, 28.0),
    row("GAD beta 10 tau 0.5, block 5", 1, 3.5, 29.5),
    row("GAD beta 1, AR drafter 3, int8", 1, 2.0, 30.0),
    row("GAD beta 1, block 5", 32, 1.5, 30.0),
    row("GAD beta 1, block 10", 32, 1.2, 30.0),
    row("drafter only, block 5", 1, 9.0, 10.0),
    row("authors' GAD beta 1, block 5 (inference.py)", 1, 2.2, 30.0),
    row("floor", 1, 12.0, 30.0),
]


@pytest.fixture
def results(tmp_path: Path) -> list[str]:
    """Two files, as of two runs."""
    files = tmp_path / "one.json", tmp_path / "two.json"
    for file, rows in zip(files, (RESULTS[:7], RESULTS[7:]), strict=True):
        file.write_text(json.dumps({"rows": rows, "notes": []}), encoding="utf-8")
    return [str(file) for file in files]


def test_speedup_against_block_size_and_batch_size(plot_stats: ModuleType, results: list[str]) -> None:
    one, many, by_batch = plot_stats.speedup(results).get_axes()
    assert lines(one) == {
        "block drafter, beta 1": [(5, 2.5), (10, 3.0)],
        "block drafter, beta 5 tau 3": [(5, 4.0)],
        "block drafter, beta 5 tau inf": [(5, 4.5)],
        "block drafter, beta 10 tau 0.5": [(5, 3.5)],
        "AR, int8 drafter, beta 1": [(3, 2.0)],
    }
    assert {name: points for name, points in lines(many).items() if points} == {
        "block drafter, beta 1": [(5, 1.5), (10, 1.2)]
    }
    best = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in by_batch.get_lines()]
    assert best[0] == [(1, 3.0), (32, 1.5)]
    assert best[1] == [(1, 4.0)]


def test_bleu_against_speedup(plot_stats: ModuleType, results: list[str]) -> None:
    figure = plot_stats.quality(results)
    one, many = figure.get_axes()
    assert lines(one) == {
        "GAD, block drafter, 10 tokens": [(3.0, 30.0)],
        "GAD, block drafter, 5 tokens": [(2.5, 30.0), (4.0, 29.0), (4.5, 28.0), (3.5, 29.5)],
        "GAD, AR, int8 drafter, 3 tokens": [(2.0, 30.0)],
        "fairseq beam 1": [(1.0, 30.0)],
        "authors' GAD beta 1, block 5 (inference.py)": [(2.2, 30.0)],
    }
    written = {text.get_text(): text.xy for text in one.texts}
    assert written["beta 5 tau 3"] == (4.0, 29.0) and written["beta 10 tau 0.5"] == (3.5, 29.5)
    assert lines(many)["GAD, block drafter, 5 tokens"] == [(1.5, 30.0)]
    assert "GAD, AR, int8 drafter, 3 tokens" in [text.get_text() for text in figure.legends[0].get_texts()]


def train_log(path: Path, kind: Any) -> Path:
    """What fairseq's own progress bars log of three intervals, an epoch and two validations."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("fairseq.logging.progress_bar")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        logger.info("loaded 6 examples | num_updates")
        bar = kind(range(300), epoch=1, log_interval=100)
        for at, _ in enumerate(bar, start=1):
            figures = {"loss": 10 - at / 100, "glat_accu": at / 1000, "ppl": 1e4, "num_updates": at, "lr": 1e-5}
            bar.log(figures, tag="train_inner", step=at)
        bar.print({"loss": 8.0, "glat_accu": 0.2, "num_updates": 300}, tag="train", step=300)
        for update, loss in ((150, 9.5), (300, 9.25)):
            figures = {"loss": loss, "nll_loss": 1.0, "num_updates": update, "best_loss": loss}
            kind([], epoch=1, prefix="valid on 'valid' subset").print(figures, tag="valid", step=update)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
    return path


@pytest.mark.parametrize("kind", [SimpleProgressBar, JsonProgressBar])
def test_training_logs(plot_stats: ModuleType, tmp_path: Path, kind: Any) -> None:
    log = train_log(tmp_path / "run.log", kind)
    loss, accuracy = plot_stats.training([str(log)], None).get_axes()
    assert lines(loss) == {
        "run, train": [(100, 9.0), (200, 8.0), (300, 7.0)],
        "run, valid": [(150, 9.5), (300, 9.25)],
    }
    assert lines(accuracy) == {"run, train": [(100, 0.1), (200, 0.2), (300, 0.3)]}
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "glat_accu")
    _, shown, valid_only = plot_stats.training([str(log)], ["ppl", "nll_loss"]).get_axes()
    assert lines(shown) == {"run, train": [(100, 1e4), (200, 1e4), (300, 1e4)]}
    assert lines(valid_only) == {"run, valid": [(150, 1.0), (300, 1.0)]}


def test_an_epoch_stands_for_intervals_that_were_not_logged(plot_stats: ModuleType, tmp_path: Path) -> None:
    whole = train_log(tmp_path / "whole.log", SimpleProgressBar).read_text(encoding="utf-8")
    log = tmp_path / "run.log"
    log.write_text("".join(line for line in whole.splitlines(True) if "train_inner" not in line), encoding="utf-8")
    loss, _ = plot_stats.training([str(log)], None).get_axes()
    assert lines(loss)["run, train"] == [(300, 8.0)]


def test_the_command_writes_the_file_whole_or_not_at_all(
    plot_stats: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: list[str]
) -> None:
    def call(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["plot_stats.py", *map(str, words)])
        try:
            plot_stats.main()
        except SystemExit as error:
            assert str(error).startswith("error: ") and "\n" not in str(error)
            return str(error)
        return ""

    trace, log = write_trace(tmp_path / "t", [1]), train_log(tmp_path / "log", SimpleProgressBar)
    for plot, file in (("accepted", trace), ("speedup", results[0]), ("quality", results[0]), ("training", log)):
        assert call(plot, file, "--output", tmp_path / f"{plot}.svg") == ""
        assert (tmp_path / f"{plot}.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    output = tmp_path / "wrong.svg"
    text = tmp_path / "text"
    text.write_text("text", encoding="utf-8")
    undrafted = write_trace(tmp_path / "undrafted", [None])
    no_gad = tmp_path / "no_gad.json"
    no_gad.write_text(json.dumps({"rows": RESULTS[:2]}), encoding="utf-8")
    assert "no iteration has a draft" in call("accepted", undrafted, "--output", output)
    assert "there is no sentence in it" in call("accepted", text, "--output", output)
    assert "is no JSON file of benchmarks/compare_strategies.py" in call("speedup", text, "--output", output)
    assert "has no row of GAD" in call("quality", no_gad, "--output", output)
    assert "can't be read (No such file" in call("speedup", tmp_path / "no", "--output", output)
    assert "tells no losses" in call("training", text, "--output", output)
    assert "--metric nothing is in none of the logs; they have" in call(
        "training", log, "--metric", "nothing", "--output", output
    )
    assert "must end in .svg, .png or .pdf" in call("accepted", trace, "--output", tmp_path / "plot.txt")
    assert "can't be written" in call("accepted", trace, "--output", tmp_path / "no" / "plot.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib isn't installed: pip install -e '.[plots]'" in call("accepted", trace, "--output", output)
    assert not output.exists() and not list(tmp_path.glob(".part*"))
