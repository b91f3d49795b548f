"""The benchmarks end to end, on models of two layers: what they write, and what the authors' script is asked."""

import importlib
import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fairseq.models.transformer.transformer_legacy import base_architecture
from tiny_training import TINY, drafter, make_task, verifier, write_data

from block_plugins.errors import UserError

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
STRATEGIES = [
    "fairseq beam 5",
    "fairseq beam 1",
    "left2right beam 5",
    "AR greedy",
    "GAD beta 1, block 3",
    "GAD beta 5 tau 3, block 3",
    "GAD beta 1, AR drafter 3",
    "GAD beta 5 tau 3, AR drafter 3",
    "drafter only, block 3",
    "floor",
]
STAND_IN = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--remove-bpe", action="store_true")
parser.add_argument("--cpu", action="store_true")
for name in ("path AR-path user-dir task max-sentences source-lang target-lang iter-decode-max-iter "
             "iter-decode-eos-penalty iter-decode-with-beam gen-subset input-path output-path block-size beta tau "
             "batch beam strategy").split():
    parser.add_argument("--" + name, required=True)
given = parser.parse_args()
print("anything")
with open("calls", "a") as calls:
    calls.write(json.dumps(vars(given)) + "\\n")
lines = open(given.input_path).read().splitlines()
with open(given.output_path, "w") as output:
    output.writelines(line.replace("@@ ", "") + "\\n" for line in lines)
"""


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def call(module: ModuleType, words: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, words)])
    module.main()


def has_plot(output: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """The plot is there, or one line says why not."""
    if importlib.util.find_spec("matplotlib") is not None:
        return output.with_suffix(".svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    return "the plot is left out: matplotlib isn't installed" in capsys.readouterr().err


def save(model: Any, arch: str, path: Path) -> Path:
    """A checkpoint as far as fairseq and CTranslate2 read it."""
    settings = Namespace(**TINY, _name=arch, arch=arch, task="translation", source_lang="en", target_lang="de")
    if arch == "transformer":
        base_architecture(settings)  # as fairseq's command line does
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}
    extra = {"train_iterator": {"epoch": 1}}
    state = {"args": None, "cfg": {"model": settings}, "model": model.state_dict()}
    torch.save({**state, "optimizer_history": [history], "extra_state": extra}, path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> list[Any]:
    """The command line's start: a data folder with six sentences, a verifier and a drafter."""
    data = write_data(tmp_path / "bin")
    task = make_task(data)
    return [
        *(data, "--verifier", save(verifier(task), "transformer", tmp_path / "verifier.pt")),
        *("--drafter", save(drafter(task), "block", tmp_path / "drafter.pt")),
    ]


def authors_checkout(folder: Path, *scripts: str) -> Path:
    folder.mkdir()
    for name in scripts:
        (folder / name).write_text(STAND_IN, encoding="utf-8")
    return folder


def test_all_strategies_side_by_side(
    pair: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = authors_checkout(tmp_path / "theirs", "inference.py", "inference_paper.py")
    authors = benchmark("authors", monkeypatch).Authors
    real = authors.translate

    def translate_in_known_time(self: Any, lines: list[str], *setting: Any) -> tuple[list[str], float]:
        return real(self, lines, *setting)[0], 1.0 + 0.05 * len(lines)

    monkeypatch.setattr(authors, "translate", translate_in_known_time)
    output = tmp_path / "results" / "strategies.md"
    words = [
        *pair, "--subset", "valid", "--batch", 1, 4, "--block-size", 3, 40, "--lookahead", "constant", "--max-len-b", 5,
        "--lines", 4, "--passes", 1, "--authors", checkout, "--ar-drafter", pair[2], "--output", output,
    ]  # fmt: skip
    call(benchmark("compare_strategies", monkeypatch), words, monkeypatch)

    content = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    theirs = [name for name in STRATEGIES if name.startswith("GAD") and "block" in name]
    for batch, script in ((1, "inference_paper.py"), (4, "inference.py")):
        rows = {row["strategy"]: row for row in content["rows"] if row["batch"] == batch}
        assert [name for name in rows if not name.startswith("CTranslate2")] == [
            *STRATEGIES,
            *(f"authors' {name} ({script})" for name in theirs),
        ]
        lossless = ("fairseq beam 1", "AR greedy", "GAD beta 1, block 3", "GAD beta 1, AR drafter 3", "floor")
        for name in (*lossless, "CTranslate2 float32 beam 1"):
            assert (rows[name]["identical"], rows[name]["differing"]) == (1, 0)
        assert rows["fairseq beam 1"]["speedup"] == 1
        assert rows["GAD beta 1, block 3"]["accepted_per_iteration"] >= 1
        assert rows["GAD beta 1, AR drafter 3"]["accepted_per_iteration"] > 2  # it is the verifier itself
        for name, row in rows.items():
            assert len(row["pass_speeds"]) == 1 and min(row["pass_speeds"]) > 0
            assert row["sentences"] == 4
            if name.startswith("authors'"):
                assert row["sentences_per_second"] == pytest.approx(20)  # the second of starting isn't counted
            elif sys.platform == "linux":
                assert row["peak_memory"] >= 0
    assert any("block sizes from 40 on are left out" in note for note in content["notes"])
    report = output.read_text(encoding="utf-8")
    header = report.splitlines()[0]
    assert all(column in header for column in ("identical to greedy", "peak memory, MB", "speed-up"))
    assert len([line for line in report.splitlines() if line.startswith("| ")]) == len(content["rows"]) + 2
    assert has_plot(output, capsys)


def test_what_gad_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    module, plots = benchmark("compare_strategies", monkeypatch), benchmark("plots", monkeypatch)
    rules = [module.acceptance_rule(text) for text in ("1:0", "10:0.5", "5:inf")]
    names = [name for name, *_ in module.acceptances(rules, [3])]
    assert names == ["GAD beta 1, block 3", "GAD beta 10 tau 0.5, block 3", "GAD beta 5 tau inf, block 3"]
    assert [plots.family(name)[0] for name in names] == ["GAD, lossless", *["GAD, top-beta within tau"] * 2]
    for wrong in ("5", "0:1", "1:-1", "1:nan", "a:b"):
        with pytest.raises(ValueError):
            module.acceptance_rule(wrong)


def test_the_authors_script_gets_their_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("authors", monkeypatch)
    checkout = authors_checkout(tmp_path / "theirs", "inference.py")
    (checkout / "specdec_plugins").mkdir()  # as in the later of their repositories
    monkeypatch.chdir(tmp_path)
    authors = module.Authors("theirs", sys.executable, "--cpu", "bin", "en", "de", "verifier.pt", "drafter.pt")
    lines, seconds = authors.translate(["w1@@ w2 w3", "w4"], 32, 25, 5, 3.0)
    assert lines == ["w1w2 w3", "w4"] and seconds > 0
    called = json.loads((checkout / "calls").read_text(encoding="utf-8"))
    expected = {"data": "bin", "path": "drafter.pt", "AR_path": "verifier.pt"}
    assert {name: called[name] for name in expected} == {name: str(tmp_path / file) for name, file in expected.items()}
    options = ("user_dir", "strategy", "batch", "block_size", "beta", "tau", "source_lang", "target_lang")
    assert [called[name] for name in options] == ["specdec_plugins", "specdec", "32", "25", "5", "3.0", "en", "de"]

    (checkout / "inference.py").write_text("import sys; sys.exit('no such model')", encoding="utf-8")
    with pytest.raises(UserError, match=r"inference\.py failed \(exit status 1\): no such model"):
        authors.translate(["w1"], 32, 25, 1, 0.0)
    (checkout / "inference.py").unlink()
    with pytest.raises(UserError, match=r"there is no inference\.py"):
        authors.translate(["w1"], 32, 25, 1, 0.0)


@pytest.mark.parametrize("given", [False, True])
def test_time_against_length(
    given: bool,
    pair: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "length.md"
    models = ["--data", *pair] if given else ["--layers", 1, "--width", 64, "--symbols", 40]
    words = [*models, "--lengths", 6, 12, 24, "--passes", 1, "--block-size", 4, "--output", output]
    call(benchmark("length", monkeypatch), words, monkeypatch)
    content = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    names = ["AR", "GAD, drafter"] if given else ["AR", "GAD, shallow drafter", "GAD, drafter of 1 layers"]
    assert [(row["strategy"], row["tokens"]) for row in content["rows"]] == [
        (name, length) for name in names for length in (6, 12, 24)
    ]
    assert list(content["exponents"]) == names
    for row in content["rows"]:
        assert len(row["pass_seconds"]) == 1 and row["seconds"] > 0
        assert row["relative"] == 1 or row["tokens"] != 6
    assert "time grows with length to the power of" in output.read_text(encoding="utf-8")
    assert has_plot(output, capsys)


def test_the_fitted_exponent_and_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    length = benchmark("length", monkeypatch)
    rows = [{"strategy": "AR", "tokens": tokens, "seconds": 0.01 * tokens**1.5} for tokens in (25, 100, 400)]
    assert length.exponent(rows, "AR") == pytest.approx(1.5)
    memory = benchmark("memory", monkeypatch)
    with memory.PeakMemory() as measured:
        torch.ones(10_000_000)
    if measured.bytes is not None:
        assert 38e6 < measured.bytes < 60e6
    with memory.PeakMemory() as measured:
        pass
    if measured.bytes is not None:
        assert measured.bytes < 5e6


def test_the_oracle_and_the_lookaheads(pair: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "scripts"))
    output = tmp_path / "analysis.json"
    words = [
        *pair, "--subset", "valid", "--batch", 2, "--draft-size", 6, "--lines", 4, "--passes", 1, "--output", output
    ]  # fmt: skip
    for drafter_path in (words[4], words[2]):  # the block drafter; the verifier as its own drafter
        words[4] = drafter_path
        call(benchmark("analyse_lookahead", monkeypatch), words, monkeypatch)
        content = json.loads(output.read_text(encoding="utf-8"))
        rows = {row["lookahead"]: row for row in content["table"]}
        assert list(rows) == ["oracle", "constant", "heuristic", "confidence", "adaptive", "auto"]
        assert len(content["oracle"]) == 4
        iterations = [count for of_sentence in content["oracle"] for count in of_sentence]
        assert rows["oracle"]["verifier_calls"] == rows["constant"]["verifier_calls"] == len(iterations)
        assert rows["oracle"]["tokens_per_iteration"] == rows["constant"]["tokens_per_iteration"]
        assert rows["oracle"]["drafter_calls"] <= rows["constant"]["drafter_calls"]
    assert max(iterations) == 6  # a model that drafts for itself is always right
    assert output.with_suffix(".md").is_file()
    if importlib.util.find_spec("matplotlib") is not None:
        for name in ("analysis-oracle.svg", "analysis-table.svg"):
            assert (tmp_path / name).is_file()


def test_drafters_sizes_lookaheads_and_temperatures(
    pair: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = benchmark("speculation", monkeypatch)
    # 3 draft tokens, each kept with chance 0.5: 1 + 0.5 + 0.25 + 0.125 tokens for 1 + 3 * 0.2 steps
    assert module.predictions(0.5, 0.2, 3) == pytest.approx((1.875 / 1.6, 2.5 / 1.6))
    assert module.predictions(1.0, 0.2, 3) == pytest.approx((4 / 1.6, 4 / 1.6))
    output = tmp_path / "speculation.md"
    words = [
        *pair, pair[2], "--subset", "valid", "--draft-size", 3, "--temperature", 0, 1, "--lines", 3, "--passes", 1,
        "--output", output,
    ]  # fmt: skip
    call(module, words, monkeypatch)
    rows = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 1 + 2 * 5 + 1 + 2 * 4
    own = next(row for row in rows if row["drafter"].startswith("AR drafter") and row["lookahead"] == "constant")
    assert own["alpha"] == 1.0 and own["leviathan"] == pytest.approx(own["linear"])
    assert all(row["leviathan"] is None for row in rows if row["lookahead"] != "constant")
    assert "| AR drafter verifier.pt | 1 | 3 | heuristic |" in output.read_text(encoding="utf-8")


TRAINING = """
import json, os, sys, time
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
print("loading")
for update in range(1, int(sys.argv[sys.argv.index("--max-update") + 1]) + 1):
    time.sleep(0.05)
    print("x | INFO | train_inner | " + json.dumps({"wpb": "100", "num_updates": str(update)}))
print("the end", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
"""Stands for a fairseq-train that takes a twentieth of a second for an update of 100 tokens."""


def test_speed_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("training_speed", monkeypatch)
    checkout = tmp_path / "theirs"
    (checkout / "specdec_plugins").mkdir(parents=True)
    for script in (checkout / "train.py", tmp_path / "own.py"):
        script.write_text(TRAINING, encoding="utf-8")
    monkeypatch.setattr(module, "OWN_TRAINING", [sys.executable, str(tmp_path / "own.py"), "--user-dir", "ours"])
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    output = tmp_path / "speed.md"
    words = [
        "--data", write_data(tmp_path / "bin"), "--layers", 1, "--width", 16, "--block-size", 3, "--max-tokens", 40,
        "--steps", 2, "--passes", 1, "--bf16", "--bf16-updates", 3, "--authors", checkout, "--output", output,
    ]  # fmt: skip
    call(module, words, monkeypatch)

    content = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
    rows = {row["training"]: row for row in content["ways"]}
    two = "drafter, two passes"
    assert list(rows) == ["verifier", "drafter, one pass", two, f"{two}, 4 blocks a sentence", f"{two}, frozen encoder"]
    tokens = {row["tokens_per_second"] * row["seconds_per_step"] * 2 for row in rows.values()}
    assert max(tokens) == pytest.approx(min(tokens)) and round(max(tokens)) <= 80  # the same two batches
    assert rows["drafter, one pass"]["relative_to_one_pass"] == rows["verifier"]["relative_to_verifier"] == 1
    assert all(len(row["pass_seconds"]) == 1 for row in rows.values())

    theirs, ours = content["authors"]
    for row in (theirs, ours):  # two updates of 100 tokens, a twentieth of a second each, behind the warm-up
        assert 200 < row["tokens_per_second"] <= 2000 * 1.05 and row["tokens"] == 200
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()]
    assert [words[:2] for words in calls] == [["--user-dir", "specdec_plugins"], ["--user-dir", "ours"]]
    flags = [[word for word in words[2:] if "tmp" not in word] for words in calls]
    assert flags[0] == flags[1] and {"block", "glat_loss", "block_mask"} <= set(flags[0])

    for row in content["bf16"]:
        assert abs(row["relative_difference"]) < 0.01 and row["validation_loss_bf16"] != row["validation_loss_float32"]
    text = output.read_text(encoding="utf-8")
    assert "(target: at most 1.75, " in text and "(target: at most 0.01, met)" in text and "bf16 instructions" in text
    assert f"| {two} |" in text and "times the authors' tokens/s (target: at least 1.15, " in text

    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(UserError, match=r"failed \(exit status 3\): the end"):
        module.process_speed([sys.executable, str(checkout / "train.py"), "--max-update", "1"], tmp_path, 0)
    monkeypatch.setenv("STATUS", "0")
    with pytest.raises(UserError, match="logged 2 updates, which is no more than the warm-up"):
        module.process_speed([sys.executable, str(checkout / "train.py"), "--max-update", "2"], tmp_path, 2)
    (checkout / "train.py").unlink()
    with pytest.raises(UserError, match=r"there is no train\.py"):
        call(module, words, monkeypatch)


def test_random_data_and_too_little_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("training_speed", monkeypatch)
    folder = module.write_random_corpus(str(tmp_path), 50, 400)
    task = make_task(Path(folder))
    task.load_dataset("train")
    lengths = [len(task.datasets["train"][number]["target"]) - 1 for number in range(400)]
    assert 18 < sorted(lengths)[200] < 27 and 1 <= min(lengths) < 10 and 60 < max(lengths) <= 150
    assert max(int(task.datasets["train"][number]["source"].max()) for number in range(400)) == 49
    with pytest.raises(UserError, match="50 batches were asked for"):
        call(module, ["--data", folder, "--layers", 1, "--width", 16, "--steps", 50], monkeypatch)


def test_bf16_instructions_are_those_that_linux_names(monkeypatch: pytest.MonkeyPatch) -> None:
    report = benchmark("report", monkeypatch)
    monkeypatch.setattr(report, "_told_by_linux", {"flags": "avx2 avx512_bf16 sse"}.get)
    assert report.bf16_instructions() == ["avx512_bf16"]
