"""The shell scripts as a person calls them: in subprocesses, from another working directory, on tiny models."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import sacrebleu
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.data.indexed_dataset import make_dataset
from fairseq_tools import error_line, script_environment

import block_plugins.checkpoints  # noqa: F401 - lets torch.load read the classes in fairseq's checkpoints

ROOT = Path(__file__).resolve().parents[1]
TINY = {"LAYERS": "1", "EMBED_DIM": "32", "HEADS": "2", "MAX_POSITIONS": "64", "MAX_TOKENS": "600", "UPDATE_FREQ": "1"}
UPDATES = 4


def run(script: str, *arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / script, *map(str, arguments)],
        cwd=cwd,
        env=script_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def succeed(script: str, *arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    result = run(script, *arguments, cwd=cwd, **variables)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result


def updates_of(checkpoint: Path) -> tuple[int, int]:
    """Updates that the checkpoint counts, and steps that Adam has taken for its first parameter."""
    state = load_checkpoint_to_cpu(str(checkpoint))
    return state["optimizer_history"][-1]["num_updates"], int(state["last_optimizer_state"]["state"][0]["step"])


# --- the text tools
# ------------------------------------------------------------------------------------------------------------

SPLITS = {
    "Ein Haus .": "Ein Haus .",
    "B33-Ampel": "B33 ##AT##-##AT## Ampel",
    "die Ost-West-Achse war": "die Ost ##AT##-##AT## West ##AT##-##AT## Achse war",
    "er sagte - leise": "er sagte - leise",
    "-links und rechts-": "-links und rechts-",
    "Süd-Äthiopien": "Süd ##AT##-##AT## Äthiopien",
    # as in the published reference: the one letter between two hyphens belongs to the first match
    "x-y-z": "x ##AT##-##AT## y-z",
    "": "",
}


def test_ref_splits_plain_text(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("".join(f"{line}\n" for line in SPLITS), encoding="utf-8")
    once = succeed("ref.sh", "plain", cwd=tmp_path).stdout
    assert once == "".join(f"{line}\n" for line in SPLITS.values())


def test_ref_leaves_split_text_alone_and_may_overwrite_its_source(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x-y-z\n", encoding="utf-8")
    for _ in range(2):
        succeed("ref.sh", "text", "text", cwd=tmp_path)
        assert (tmp_path / "text").read_text(encoding="utf-8") == "x ##AT##-##AT## y-z\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_ref_gives_the_published_reference_back(tmp_path: Path, shared_dir: Path) -> None:
    published = (shared_dir / "upstream-data" / "test.de.compound.ref").read_text(encoding="utf-8")
    assert published.count("\n") == 3003
    (tmp_path / "plain").write_text(published.replace(" ##AT##-##AT## ", "-"), encoding="utf-8")
    assert succeed("ref.sh", "plain", cwd=tmp_path).stdout == published


HYPOTHESES = ["die Ost-West-Achse war lang .", "ein Haus steht am Wald .", "das ist gut ."]
REFERENCES = ["die Ost-West-Achse ist lang .", "ein altes Haus steht am Wald .", "das ist sehr gut ."]


def generate_log(hypotheses: list[str], references: list[str]) -> str:
    """As fairseq-generate prints: out of order, two hypotheses a sentence."""
    blocks = [
        f"S-{i}\tsource\nT-{i}\t{reference}\nH-{i}\t-0.5\t{hypothesis}\nD-{i}\t-0.5\t{hypothesis}\nP-{i}\t-0.1 -0.2\n"
        f"H-{i}\t-0.9\tworse\nD-{i}\t-0.9\tworse\n"
        for i, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True))
    ]
    return "".join(reversed(blocks)) + "Generate test with beam=5: BLEU4 = 1.00\n"


def expected_bleu(hypotheses: list[str], references: list[str]) -> float:
    """By sacreBLEU, on text split by a loop over the hyphens of each word."""

    def split(line: str) -> str:
        return " ".join(word.replace("-", " ##AT##-##AT## ") for word in line.split())

    return sacrebleu.corpus_bleu(
        [split(line) for line in hypotheses], [[split(line) for line in references]], tokenize="none", force=True
    ).score


def test_compound_split_bleu_is_sacrebleus(tmp_path: Path) -> None:
    (tmp_path / "sys").write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    printed = succeed("scripts/compound_split_bleu.sh", "sys", "ref", cwd=tmp_path).stdout
    assert re.fullmatch(r"BLEU4 = ([\d.]+), .*\n", printed)[1] == f"{expected_bleu(HYPOTHESES, REFERENCES):.2f}"  # type: ignore[index]


def test_ref_scores_by_its_variables_from_a_generate_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(generate_log(["nothing"] * 3, REFERENCES), encoding="utf-8")
    (tmp_path / "out").write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8")
    printed = succeed("ref.sh", cwd=tmp_path, GEN="log", OUT="out", REF="split.ref").stdout
    assert printed.startswith(f"BLEU4 = {expected_bleu(HYPOTHESES, REFERENCES):.2f},")
    split = (tmp_path / "split.ref").read_text(encoding="utf-8")
    assert split.startswith("die Ost ##AT##-##AT## West ##AT##-##AT## Achse")
    assert (tmp_path / "out.sys").exists()


def test_compound_split_bleu_of_a_generate_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(generate_log(HYPOTHESES, REFERENCES), encoding="utf-8")
    printed = succeed("scripts/compound_split_bleu.sh", "log", cwd=tmp_path).stdout
    assert printed.startswith(f"BLEU4 = {expected_bleu(HYPOTHESES, REFERENCES):.2f},")


def test_compound_split_bleu_refuses_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "sys").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "ref").write_text("a\n", encoding="utf-8")
    script = "scripts/compound_split_bleu.sh"
    assert "sys and ref differ in their number of lines: 2 and 1" in error_line(run(script, "sys", "ref", cwd=tmp_path))
    assert "the reference nowhere does not exist" in error_line(run(script, "sys", "nowhere", cwd=tmp_path))
    assert "neither H nor T lines" in error_line(run(script, "sys", cwd=tmp_path))


def test_hypotheses_come_in_input_order_one_a_line(tmp_path: Path) -> None:
    log = "noise\nD-10\t-1\televen\nH-0\t-1\traw\nD-0\t-1\tone\nD-0\t-2\tworse\nD-2\t-1\t\nD-3\t-1\ta\u2028b\tc\n"
    (tmp_path / "log").write_text(log, encoding="utf-8")
    with open(tmp_path / "log", encoding="utf-8") as file:
        result = subprocess.run(
            [sys.executable, ROOT / "scripts/hypotheses.py", "--lines", "12", "--name", "t"],
            stdin=file, capture_output=True, check=True,
        )  # fmt: skip
    lines = result.stdout.decode("utf-8").split("\n")
    assert lines == ["one", "", "", "a\u2028b\tc", *[""] * 6, "eleven", "", ""]
    skipped = re.findall(r"warning: line (\d+) of t was skipped", result.stderr.decode("utf-8"))
    assert skipped == ["2", "5", "6", "7", "8", "9", "10", "12"]


def test_source_lines_are_fairseqs_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfone\r\ntw\ro\n\nlast")
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/source_lines.py", "in", "out"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout == "4\n"
    assert (tmp_path / "out").read_bytes() == b"one\ntw o\n\nlast\n"


# --- train.sh without training: a stand-in prints how it was called
# ------------------------------------------------------------


def flags(stand_in: Path, cwd: Path, *arguments: str, **variables: str) -> dict[str, str]:
    """fairseq-train's options as train.sh gives them; those without a value are ''."""
    variables = {"DATA": str(stand_in / "bin"), "SAVE_DIR": "save", "GPUS": "8", **variables}
    printed = succeed("train.sh", *arguments, cwd=cwd, PYTHON_BIN=str(stand_in), **variables).stdout.splitlines()
    given = {}
    for word, following in zip(printed, [*printed[1:], "--"], strict=True):
        if word.startswith("--"):
            given[word] = "" if following.startswith("--") else following
    return given


PUBLISHED = {
    "--arch": "block_6e6d512", "--task": "translation_lev_modified", "--noise": "block_mask", "--criterion":
    "glat_loss", "--block-size": "25", "--start-p": "0.5", "--minus-p": "0.2", "--total-up": "300000", "--lr":
    "0.0005", "--dropout": "0.1", "--warmup-updates": "10000", "--lr-scheduler": "inverse_sqrt", "--optimizer": "adam",
    "--adam-betas": "(0.9, 0.999)", "--adam-eps": "1e-6", "--weight-decay": "0.01", "--clip-norm": "5", "--seed": "1",
    "--max-tokens": "4096", "--update-freq": "4", "--max-update": "300000", "--label-smoothing": "0.1", "--fp16": "",
    "--share-all-embeddings": "", "--src-embedding-copy": "", "--apply-bert-init": "", "--encoder-learned-pos": "",
    "--decoder-learned-pos": "", "--activation-fn": "gelu", "--encoder-layers": "6", "--decoder-layers": "6",
    "--encoder-embed-dim": "512", "--decoder-ffn-embed-dim": "2048", "--decoder-attention-heads": "8",
    "--max-source-positions": "1000", "--max-target-positions": "1000",
}  # fmt: skip


def test_train_defaults_are_the_published_ones(stand_in: Path, tmp_path: Path) -> None:
    given = flags(stand_in, tmp_path)
    assert {name: given.get(name) for name in PUBLISHED} == PUBLISHED
    assert not given.keys() & {"--cpu", "--cpu-autocast", "--tensorboard-logdir", "--restore-file", "--source-lang"}


def test_train_variables_override(stand_in: Path, tmp_path: Path) -> None:
    given = flags(
        stand_in, tmp_path, "--patience", "7",
        CPU="1", CPU_AUTOCAST="bf16", LR="0.001", MAX_UPDATE="50000", EMBED_DIM="128", TENSORBOARD="tb", SRC="en",
        TGT="ro",
    )  # fmt: skip
    expected = {
        "--cpu": "", "--cpu-autocast": "bf16", "--lr": "0.001", "--max-update": "50000", "--total-up": "50000",
        "--encoder-ffn-embed-dim": "512", "--encoder-attention-heads": "2", "--tensorboard-logdir": "tb",
        "--source-lang": "en", "--target-lang": "ro", "--patience": "7",
    }  # fmt: skip
    assert {name: given.get(name) for name in expected} == expected
    assert "--fp16" not in given


def test_train_the_verifier(stand_in: Path, tmp_path: Path) -> None:
    given = flags(stand_in, tmp_path, ROLE="verifier", FP16="0")
    expected = {"--arch": "transformer", "--noise": "no_noise", "--criterion": "label_smoothed_cross_entropy"}
    assert {name: given.get(name) for name in expected} == expected
    assert {"--no-scale-embedding", "--encoder-learned-pos"} <= given.keys()
    assert not given.keys() & {"--src-embedding-copy", "--apply-bert-init", "--block-size", "--fp16"}


def test_train_an_autoregressive_drafter(stand_in: Path, tmp_path: Path) -> None:
    given = flags(stand_in, tmp_path, ROLE="ar_drafter", FREEZE_ENCODER="1", DECODER_LAYERS="1")
    expected = {
        "--arch": "transformer_drafter", "--noise": "no_noise", "--criterion": "label_smoothed_cross_entropy",
        "--freeze-encoder": "", "--no-scale-embedding": "", "--encoder-layers": "6", "--decoder-layers": "1",
    }  # fmt: skip
    assert {name: given.get(name) for name in expected} == expected
    assert not given.keys() & {"--src-embedding-copy", "--apply-bert-init", "--block-size"}


def test_train_a_drafter_on_distributions(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "v.pt").touch()
    with zipfile.ZipFile(tmp_path / "save" / "checkpoint_last.pt", "w") as archive:  # a training that goes on
        archive.writestr("data", "update 10")
    given = flags(stand_in, tmp_path, ROLE="ar_drafter", KD="1", VERIFIER="v.pt")
    assert (given["--criterion"], given["--kd-AR-path"]) == ("kd_loss", "v.pt")
    assert "--label-smoothing" not in given

    def error(**variables: str) -> str:
        variables |= {"PYTHON_BIN": str(stand_in), "DATA": str(stand_in), "SAVE_DIR": "save", "KD": "1"}
        return error_line(run("train.sh", cwd=tmp_path, **variables))

    assert "VERIFIER is not set: the verifier's checkpoint (with KD=1)" in error(ROLE="ar_drafter")
    assert "(VERIFIER) gone.pt does not exist" in error(ROLE="ar_drafter", VERIFIER="gone.pt")
    assert "KD is for ROLE=ar_drafter; leave it out with ROLE=drafter" in error(VERIFIER="v.pt")


def test_train_measures_with_the_verifier_that_is_there(stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    with zipfile.ZipFile(tmp_path / "save" / "checkpoint_last.pt", "w") as archive:  # a training that goes on
        archive.writestr("data", "update 10")
    for name in ("v.pt", "other.pt"):
        (tmp_path / name).touch()

    def measured(**variables: str) -> str | None:
        return flags(stand_in, tmp_path, **variables).get("--valid-AR-path")

    assert measured(VERIFIER="v.pt") == "v.pt"
    assert measured(VERIFIER="v.pt", VALID_VERIFIER="other.pt", ROLE="ar_drafter") == "other.pt"
    assert measured(VALID_VERIFIER="other.pt") == "other.pt"
    assert measured(VERIFIER="v.pt", VALID_VERIFIER="") is None
    assert measured(VERIFIER="gone.pt") is None
    assert flags(stand_in, tmp_path, VERIFIER="v.pt", VALID_LINES="50")["--valid-lines"] == "50"
    variables = {"PYTHON_BIN": str(stand_in), "DATA": str(stand_in), "SAVE_DIR": "save", "VALID_VERIFIER": "gone.pt"}
    assert "(VALID_VERIFIER) gone.pt does not exist" in error_line(run("train.sh", cwd=tmp_path, **variables))


def test_progress_of_training_in_short() -> None:
    line = "2026 | INFO | valid | epoch 1 | valid on 'valid' subset | loss 5.3 | ppl 9 | accepted 1.12 | alpha 0.1 |"
    without = line.replace("accepted 1.12 | alpha 0.1 ", "")
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/training_progress.py", "drafter", "600"],
        input=f"{line}\n{without}\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = ["drafter: validation loss 5.3, accepted 1.12", "drafter: validation loss 5.3"]
    assert result.stdout.splitlines() == expected


def test_train_goes_on_from_the_newest_whole_checkpoint(stand_in: Path, tmp_path: Path) -> None:
    save = tmp_path / "save"
    save.mkdir()
    for age, number in enumerate((30, 20, 10)):
        with zipfile.ZipFile(save / f"checkpoint_1_{number}.pt", "w") as archive:
            archive.writestr("data", f"update {number}")
        os.utime(save / f"checkpoint_1_{number}.pt", (1e9 - age, 1e9 - age))
    broken = (save / "checkpoint_1_30.pt").read_bytes()[:-10]
    (save / "checkpoint_1_30.pt").write_bytes(broken)
    (save / "checkpoint_last.pt").write_bytes(broken)

    given = flags(stand_in, tmp_path, VERIFIER="not-needed-any-more.pt")
    assert "--restore-file" not in given
    with zipfile.ZipFile(save / "checkpoint_last.pt") as archive:
        assert archive.read("data") == b"update 20"


def test_train_tells_what_is_missing(stand_in: Path, tmp_path: Path) -> None:
    def error(**variables: str) -> str:
        return error_line(run("train.sh", cwd=tmp_path, PYTHON_BIN=str(stand_in), **variables))

    assert "DATA is not set" in error()
    assert "SAVE_DIR is not set" in error(DATA=str(stand_in))
    assert "(DATA) nowhere does not exist" in error(DATA="nowhere", SAVE_DIR="s")
    assert "ROLE must be drafter, ar_drafter or verifier" in error(DATA=str(stand_in), SAVE_DIR="s", ROLE="teacher")
    assert "(VERIFIER) v.pt does not exist" in error(DATA=str(stand_in), SAVE_DIR="s", VERIFIER="v.pt")


# --- for real
# ------------------------------------------------------------------------------------------------------------------


def training_demo(folder: Path) -> dict[str, str]:
    """What train_demo.sh is told."""
    return {
        **TINY, "DEMO_DIR": str(folder / "demo"), "DEMO_TEXT": str(folder / "text"), "DEMO_UPDATES": str(UPDATES),
        "DEMO_DRAFTER_UPDATES": str(UPDATES), "DEMO_BATCH": "4", "BPE_SYMBOLS": "150", "LOG_INTERVAL": "1",
        "FILTER": "0",  # what four updates teach a verifier is degenerate
        "SAVE_INTERVAL_UPDATES": "2",
        "DEMO_SHARDS": "1",  # the distillation by parts has a test of its own
    }  # fmt: skip


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo of training on a few lines: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "text").mkdir()
    for language in ("en", "de"):
        for split, lines in (("train", 200), ("valid", 10), ("test", 6)):
            name = f"{split}.{language}"
            text = (ROOT / "data" / "demo.en-de" / name).read_text(encoding="utf-8").split("\n")[:lines]
            (folder / "text" / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return folder, succeed("scripts/train_demo.sh", cwd=folder, **training_demo(folder)).stdout


def test_demo_does_the_whole_job(demo_run: tuple[Path, str]) -> None:
    folder, printed = demo_run
    assert f"verifier: update {UPDATES} of {UPDATES}, loss" in printed
    assert f"drafter: update {UPDATES} of {UPDATES}, loss" in printed
    assert "AR (greedy, cached) and GAD, beta 1: 6 of 6 lines are equal" in printed
    outputs = folder / "demo" / "out"
    assert (outputs / "ar.de").read_bytes() == (outputs / "gad-beta1.de").read_bytes()
    for name in ("beam1", "ar", "gad-beta1", "gad-whole", "gad-beta5"):
        assert len((outputs / f"{name}.de").read_text(encoding="utf-8").splitlines()) == 6
        assert json.loads((outputs / f"{name}.json").read_text())["sentences"] == 6
    table = [line for line in printed.splitlines() if line.startswith("GAD, beta 1, whole drafts ")]
    assert len(table) == 1 and len(re.findall(r"[\d.]+", table[0])) == 8
    assert "sentence 0: " in printed and "tokens per iteration" in printed


@pytest.mark.parametrize(("altered", "status"), [("gad-beta1", 1), ("gad-whole", 1), ("beam1", 0), ("gad-beta5", 0)])
def test_demo_fails_where_beta_1_changes_a_line(
    demo_run: tuple[Path, str], tmp_path: Path, altered: str, status: int
) -> None:
    folder, _ = demo_run
    outputs = shutil.copytree(folder / "demo" / "out", tmp_path / "out")
    lines = (outputs / f"{altered}.de").read_text(encoding="utf-8").splitlines()
    lines[2] += " und"
    (outputs / f"{altered}.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, ROOT / "scripts/demo_table.py", outputs, "de", folder / "text" / "test.de"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stderr
    compared = altered != "gad-beta5"
    assert bool(re.search(f"^ (?: line 3:| {{8}}) {re.escape(lines[2])}$", result.stdout, re.MULTILINE)) == compared
    assert result.stdout.count("5 of 6 lines are equal") == compared


def test_the_drafter_starts_from_the_verifier(demo_run: tuple[Path, str]) -> None:
    folder, printed = demo_run
    taken, total = map(int, re.search(r"(\d+) of (\d+) parameter tensors taken from the verifier", printed).groups())  # type: ignore[union-attr]
    assert taken == total - 1  # all but the attention that copies source embeddings
    verifier = load_checkpoint_to_cpu(str(folder / "demo/verifier/checkpoint_last.pt"))["model"]
    initial = load_checkpoint_to_cpu(str(folder / "demo/drafter/initial.pt"))["model"]
    assert torch.equal(initial["encoder.layers.0.fc1.weight"], verifier["encoder.layers.0.fc1.weight"])


def test_demo_skips_what_is_done(demo_run: tuple[Path, str]) -> None:
    folder, _ = demo_run
    before = {path: path.stat().st_mtime_ns for path in (folder / "demo").rglob("*.*") if path.name != "preprocess.log"}
    again = run("scripts/train_demo.sh", cwd=folder, **training_demo(folder) | {"DEMO_BATCH": "none"})
    after = {path: path.stat().st_mtime_ns for path in (folder / "demo").rglob("*.*") if path.name != "preprocess.log"}
    assert before == after
    assert again.stdout.count("trained already") == 2
    assert error_line(again) == "error: DEMO_BATCH must be a number of sentences, at least 1, not none"


def models(folder: Path) -> dict[str, str]:
    """What inference.sh must be told of the demo's models."""
    return {
        "DATA": str(folder / "demo/data/bin"), "CPU": "1", "MAX_LEN_B": "12", "BLOCK": "5",
        "VERIFIER": str(folder / "demo/verifier/checkpoint_last.pt"),
        "DRAFTER": str(folder / "demo/drafter/checkpoint_last.pt"),
    }  # fmt: skip


def test_distilled_text_is_in_order_and_without_what_is_degenerate(tmp_path: Path) -> None:
    source = ["a b", "c d e", "f", "g h", "i"]
    translations = ["A B", "C C C C C C", "", "G H I J K L M N O P", "I I I"]
    for part in (0, 1):
        lines = []
        for number in reversed(range(part, 5, 2)):
            lines += [f"S-{number}\t{source[number]}", f"T-{number}\tref", f"H-{number}\t-0.5\t{translations[number]}"]
        (tmp_path / f"{part}.txt").write_text("noise\n" + "\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts/distilled_text.py"), "--max-len-a", "1.5", "--max-len-b", "5",
               "--source", str(tmp_path / "en"), "--target", str(tmp_path / "de"), "--sentences"]  # fmt: skip
    logs = [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")]

    result = subprocess.run([*command, "5", *logs], capture_output=True, text=True, check=True)
    assert (tmp_path / "en").read_text(encoding="utf-8") == "a b\ni\n"
    assert (tmp_path / "de").read_text(encoding="utf-8") == "A B\nI I I\n"
    expected = "5 sentences: 1 empty, 2 kept, 1 ran on to the length limit, 1 repetitive, 0 skipped\n"
    assert result.stdout == expected

    subprocess.run([*command, "5", "--keep-degenerate", *logs], capture_output=True, check=True)
    assert (tmp_path / "en").read_text(encoding="utf-8") == "a b\nc d e\ng h\ni\n"

    subprocess.run([*command, "5", "--skipped", "2", logs[0]], capture_output=True, check=True)
    assert (tmp_path / "en").read_text(encoding="utf-8") == "a b\ni\n"
    error = error_line(subprocess.run([*command, "5", logs[0]], capture_output=True, text=True, check=False))
    assert "2 of 5 sentences have no translation, but 0 were skipped" in error


def test_distillation_by_parts_equals_distillation_at_once(demo_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo_run
    given = {
        "DATA": str(folder / "demo/data/bin"), "VERIFIER": str(folder / "demo/verifier/checkpoint_last.pt"), "CPU": "1",
        "OUT": str(tmp_path / "out"), "SHARDS": "2", "FILTER": "0",
    }  # fmt: skip
    succeed("scripts/distill.sh", cwd=tmp_path, **given, SHARD="1")
    assert [path.name for path in (tmp_path / "out/shards").glob("*.txt")] == ["1-of-2.txt"]
    printed = succeed("scripts/distill.sh", cwd=tmp_path, **given).stdout
    assert "translated already" in printed and "200 sentences: " in printed
    # The sources are in the same order; translations that run on end where the padding of their batch lets them.
    whole = (folder / "demo/distilled/train.en").read_text(encoding="utf-8")
    assert (tmp_path / "out/train.en").read_text(encoding="utf-8") == whole
    assert len((tmp_path / "out/train.de").read_text(encoding="utf-8").splitlines()) == len(whole.splitlines())
    assert (tmp_path / "out/bin/valid.en-de.de.bin").is_file()
    assert "distilled already" in succeed("scripts/distill.sh", cwd=tmp_path, **given).stdout
    another = {**given, "VERIFIER": str(folder / "demo/drafter/checkpoint_last.pt")}
    assert "by another model or with other options" in error_line(run("scripts/distill.sh", cwd=tmp_path, **another))

    # more sources, behind those of the training set, which aren't translated anew
    target = (tmp_path / "out/train.de").read_text(encoding="utf-8")
    encoded = (folder / "demo/data/bpe/test.en").read_text(encoding="utf-8")
    (tmp_path / "mono").write_text(encoded, encoding="utf-8")
    given["MONO"] = "mono"
    printed = succeed("scripts/distill.sh", cwd=tmp_path, **given).stdout
    assert printed.count("translated already") == 2 and "6 sentences: " in printed
    assert (tmp_path / "out/train.en").read_text(encoding="utf-8") == whole + encoded
    lines = (tmp_path / "out/train.de").read_text(encoding="utf-8").splitlines()
    assert lines[:-6] == target.splitlines() and all(lines[-6:])
    assert len(make_dataset(str(tmp_path / "out/bin/train.en-de.de"), "mmap")) == len(lines)
    (tmp_path / "mono").write_text(encoded * 2, encoding="utf-8")
    message = error_line(run("scripts/distill.sh", cwd=tmp_path, **given))
    assert "out/more/shards has translations of other text" in message


def test_distillation_tells_what_is_wrong(tmp_path: Path) -> None:
    def error(**variables: str) -> str:
        return error_line(run("scripts/distill.sh", cwd=tmp_path, **variables))

    (tmp_path / "bin").mkdir()
    (tmp_path / "v.pt").write_bytes(b"")
    complete = {"DATA": "bin", "VERIFIER": "v.pt", "OUT": "out"}
    assert "VERIFIER is not set" in error(DATA="bin")
    assert "bin has no training set" in error(**complete)
    assert "SHARDS must be" in error(**complete, SHARDS="0")
    assert "SHARD must be one of 0 ... 7, not 8" in error(**complete, SHARD="8")
    assert "STRATEGY must be AR, left2right or fairseq, not gad" in error(**complete, STRATEGY="gad")
    assert "the text to add (MONO) m does not exist" in error(**complete, SRC="en", TGT="de", MONO="m")


def test_inference_gives_one_line_for_each(demo_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo_run
    good = (folder / "demo/data/bpe/test.en").read_text(encoding="utf-8").splitlines()
    strange = ["", "x " * 100, good[0].replace(" ", "\r", 1), good[1] + "\r"]
    (tmp_path / "source").write_text("\n".join([*good, *strange, good[2]]), encoding="utf-8")  # no newline at the end
    result = succeed(
        "inference.sh", "--skip-invalid-size-inputs-valid-test", cwd=tmp_path, **models(folder),
        BETA="1", TAU="0", BATCH="3", INPUT="source", OUTPUT="target", STATS="stats.json",
    )  # fmt: skip
    lines = (tmp_path / "target").read_text(encoding="utf-8").split("\n")
    assert len(lines) == len(good) + len(strange) + 2 and lines.pop() == ""
    assert not any("@@" in line for line in lines)
    assert lines[6:8] == ["", ""]
    assert [lines[8], lines[9], lines[10]] == [lines[0], lines[1], lines[2]]
    assert re.findall(r"warning: line (\d+) of source", result.stderr) == ["8"]
    assert json.loads((tmp_path / "stats.json").read_text())["sentences"] in {9, 10}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "stats.json", "target"]


def test_stripped_checkpoints_decode_and_tell_nothing_of_this_machine(
    demo_run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = demo_run
    for name in ("verifier", "drafter"):
        given = folder / f"demo/{name}/checkpoint_last.pt"
        out = tmp_path / f"{name}.pt"
        monkeypatch.setattr(sys, "argv", ["strip_checkpoint.py", str(given), str(out)])
        runpy.run_path(str(ROOT / "scripts/strip_checkpoint.py"), run_name="__main__")
        state = torch.load(out, weights_only=True)
        assert "last_optimizer_state" not in state
        assert all(weight.dtype == torch.float16 for weight in state["model"].values() if weight.is_floating_point())
        assert str(tmp_path.parent).encode() not in out.read_bytes() and str(ROOT).encode() not in out.read_bytes()
        weights = state["model"]
        tied = weights["encoder.embed_tokens.weight"].data_ptr() == weights["decoder.embed_tokens.weight"].data_ptr()
        assert tied and out.stat().st_size < given.stat().st_size / 2
    stripped = {"VERIFIER": str(tmp_path / "verifier.pt"), "DRAFTER": str(tmp_path / "drafter.pt")}
    outputs = []
    for strategy in ("AR", "gad"):
        variables = {**models(folder), **stripped, "STRATEGY": strategy, "BETA": "1", "TAU": "0"}
        variables |= {"INPUT": str(folder / "demo/data/bpe/test.en"), "OUTPUT": str(tmp_path / strategy)}
        succeed("inference.sh", cwd=tmp_path, **variables)
        outputs.append((tmp_path / strategy).read_text(encoding="utf-8"))
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == 6


def test_inference_that_fails_leaves_the_old_output(demo_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo_run
    (tmp_path / "source").write_text("short\n" + "x " * 100 + "\n", encoding="utf-8")
    (tmp_path / "target").write_text("of an earlier run\n", encoding="utf-8")
    result = run("inference.sh", cwd=tmp_path, **models(folder), INPUT="source", OUTPUT="target")
    assert "line 2 is too long" in error_line(result)
    assert (tmp_path / "target").read_text(encoding="utf-8") == "of an earlier run\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_inference_tells_what_is_missing(tmp_path: Path) -> None:
    for name in ("drafter.pt", "verifier.pt", "source"):
        (tmp_path / name).write_text("word\n", encoding="utf-8")
    (tmp_path / "latin1").write_bytes(b"fine\nf\xfcr\n")
    complete = {"DATA": ".", "INPUT": "source", "OUTPUT": "target", "DRAFTER": "drafter.pt", "VERIFIER": "verifier.pt"}

    def error(**variables: str) -> str:
        return error_line(run("inference.sh", cwd=tmp_path, **variables))

    for name in complete:
        assert f"{name} is not set" in error(**{key: value for key, value in complete.items() if key != name})
    assert "(INPUT) nowhere does not exist" in error(**{**complete, "INPUT": "nowhere"})
    assert "(OUTPUT) no/folder does not exist" in error(**{**complete, "OUTPUT": "no/folder/target"})
    assert "STRATEGY must be gad, AR, left2right, fairseq or drafter, not fast" in error(**complete, STRATEGY="fast")
    assert "BATCH must be a number" in error(**complete, BATCH="0")
    assert "latin1: line 2 is not UTF-8" in error(**{**complete, "INPUT": "latin1"})
    assert not (tmp_path / "target").exists()


def test_interrupted_training_goes_on(demo_run: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo_run
    variables = {
        **TINY, "DATA": str(folder / "demo/data/bin"), "CPU": "1", "SAVE_DIR": str(tmp_path / "save"), "WARMUP": "5",
        "SAVE_INTERVAL_UPDATES": "3", "KEEP": "2",
    }  # fmt: skip
    options = ("--num-workers", "0", "--no-epoch-checkpoints", "--disable-validation")
    last = tmp_path / "save" / "checkpoint_last.pt"

    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        training = subprocess.Popen(
            [ROOT / "train.sh", *options],
            cwd=tmp_path, env=script_environment(**variables, MAX_UPDATE="100000"), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test runner may ignore it
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while not last.exists() and training.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(training.pid, signal.SIGINT)
            assert training.wait(timeout=60) != 0
        finally:
            if training.poll() is None:
                os.killpg(training.pid, signal.SIGKILL)
                training.wait()

    # the copy to checkpoint_last.pt may have been what was interrupted: then it goes on from the file that was copied
    reached = max(int(path.stem.split("_")[2]) for path in (tmp_path / "save").glob("checkpoint_*_*.pt"))
    assert reached % 3 == 0
    resumed = succeed("train.sh", *options, cwd=tmp_path, **variables, MAX_UPDATE=str(reached + 2))
    start = int(re.search(r"Loaded checkpoint .* @ (\d+) updates", resumed.stdout + resumed.stderr)[1])  # type: ignore[index]
    assert 0 < start <= reached
    assert updates_of(last) == (reached + 2, reached + 2)
