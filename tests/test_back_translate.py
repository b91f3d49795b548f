"""scripts/back_translate.sh: once with a tiny model, otherwise with stand-ins that print what fairseq would."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import tiny
import torch
from fairseq.data import Dictionary, indexed_dataset
from test_scripts import error_line, run, succeed

SCRIPT = "scripts/back_translate.sh"


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def pairs(prefix: Path) -> list[tuple[str, str]]:
    return list(
        zip(read(prefix.with_name(prefix.name + ".en")), read(prefix.with_name(prefix.name + ".de")), strict=True)
    )


# --- for real


def greedy(model: torch.nn.Module, symbols: Dictionary, line: str, longest: int) -> tuple[str, float]:
    """The most likely token at each step, by whole passes; its text, and the mean log-probability, to base e."""
    source = symbols.encode_line(line, add_if_not_exist=False).long()[None]
    tokens, total = [symbols.eos()], 0.0
    while len(tokens) == 1 or tokens[-1] != symbols.eos():
        logits = model(source, torch.tensor([source.size(1)]), torch.tensor([tokens]))[0][0, -1]
        scores = logits.log_softmax(-1)
        scores[symbols.pad()] = -math.inf
        if len(tokens) == 1:
            scores[symbols.eos()] = -math.inf  # fairseq's shortest output has one token besides EOS
        token = symbols.eos() if len(tokens) > longest else int(scores.argmax())
        total += float(scores[token])
        tokens.append(token)
    return symbols.string(tokens[1:-1]), total / (len(tokens) - 1)


@torch.no_grad()
def test_a_text_is_translated_judged_tagged_and_mixed(tmp_path: Path) -> None:
    symbols = tiny.dictionary(12)
    for language in ("en", "de"):
        symbols.save(str(tmp_path / f"dict.{language}.txt"))
    options = {"share_all_embeddings": True, "decoder_layers": 1}
    model = tiny.verifier(symbols, seed=3, dtype=torch.float32, **options)
    tiny.save(model, {**tiny.verifier_options(**options), "_name": "transformer"}, tmp_path / "model.pt")
    generator = random.Random(1)
    mono = [" ".join(f"w{generator.randrange(12)}" for _ in range(generator.randint(1, 9))) for _ in range(40)]
    write(tmp_path / "mono", mono)
    genuine = [(f"w1 w{number}", f"w2 w{number}") for number in range(10)]
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"train.{language}", [pair[side] for pair in genuine])

    expected = {}
    for line in mono:
        text, mean = greedy(model, symbols, line, 12)
        expected[line] = text, math.exp(mean)
    threshold = sorted(confidence for _, confidence in expected.values())[15] - 1e-4
    result = succeed(
        SCRIPT, cwd=tmp_path, DATA=".", MODEL="model.pt", MONO="mono", PARALLEL="train", OUT="out", CPU="1", SHARDS="1",
        FILTER="0", MAX_LEN_A="0", MAX_LEN_B="12", CONFIDENCE=f"{threshold:.6f}", RATIO="100",
    )  # fmt: skip
    kept = [("<BT> " + text, line) for line, (text, confidence) in expected.items() if confidence >= threshold]
    assert 0 < len(kept) < len(mono)
    mixed = pairs(tmp_path / "out/train")
    assert Counter(mixed) == Counter(genuine + kept) and mixed != genuine + kept
    assert f"40 sentences: {len(kept)} kept, {40 - len(kept)} of low confidence, 0 skipped" in result.stdout

    # binarised, the tag is a symbol of its own, and the others have kept their numbers
    old, new = (Dictionary.load(str(folder / "dict.en.txt")) for folder in (tmp_path, tmp_path / "out/bin"))
    assert new.symbols == [*old.symbols, "<BT>"]
    assert (tmp_path / "out/bin/dict.en.txt").read_bytes() == (tmp_path / "out/bin/dict.de.txt").read_bytes()
    rows = indexed_dataset.make_dataset(str(tmp_path / "out/bin/train.en-de.en"), "mmap")
    assert [new.string(row) for row in rows] == [source for source, _ in mixed]
    assert sum(new.index("<BT>") in row for row in rows) == len(kept)


# --- with stand-ins


MONO = ["e1 e2", "f1", "g1 g2 g3", "h1", "i1 i2", "j1"]
TRANSLATIONS = [
    ("E1 E2", "-1.0 -1.0 -1.0"),
    ("F1", "-3.0 -3.0"),
    ("G " * 6 + "G", "-0.1"),
    ("", "-0.1"),
    ("I1", "-2.0 -0.5"),
    ("J1 J2", "-0.5 -0.5 -0.5"),
]
"""Confidences: 2^-1 = 0.5, 2^-3 = 0.125, a repetition, nothing, 2^-1.25 = 0.42, 2^-0.5 = 0.71."""
GENUINE = [("one", "eins"), ("two", "zwei"), ("three", "drei")]
KEPT = [("<BT> E1 E2", "e1 e2"), ("<BT> I1", "i1 i2"), ("<BT> J1 J2", "j1")]


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Variables for a run with stand-ins, which note how they were called in ``calls``."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    programs = {
        "fairseq-generate": 'all="$*"; id=${all##*--shard-id }; [ ! -e broken ] && cat "shard${id%% *}"',
        "fairseq-preprocess": 'all="$*"; folder=${all##*--destdir }; mkdir -p "${folder%% *}"',
    }
    for name, body in programs.items():
        (folder / name).write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> calls\n{body}\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    for shard in (0, 1):
        lines = [
            f"S-{number}\t<unk>\nH-{number}\t-9\t{TRANSLATIONS[number][0]}\nP-{number}\t{TRANSLATIONS[number][1]}"
            for number in reversed(range(shard, len(MONO), 2))
        ]
        write(tmp_path / f"shard{shard}", ["noise", *lines])
    write(tmp_path / "mono", MONO)
    write(tmp_path / "train.en", [source for source, _ in GENUINE])
    write(tmp_path / "train.de", [target for _, target in GENUINE])
    write(tmp_path / "dict.en.txt", ["one 3", "two 2"])
    write(tmp_path / "dict.de.txt", ["eins 3", "zwei 2"])
    (tmp_path / "model.pt").write_bytes(b"a model")
    return {
        "DATA": ".", "MODEL": "model.pt", "MONO": "mono", "PARALLEL": "train", "OUT": "out", "SHARDS": "2",
        "PYTHON_BIN": str(folder),
    }  # fmt: skip


def calls(folder: Path) -> list[str]:
    """The programs that were called, in order."""
    return [line.split()[0].removeprefix("fairseq-") for line in read(folder / "calls")]


def test_what_is_dropped_is_counted_and_the_targets_are_the_text_itself(given: dict[str, str], tmp_path: Path) -> None:
    printed = succeed(SCRIPT, cwd=tmp_path, **given).stdout
    assert "6 sentences: 1 empty, 3 kept, 1 of low confidence, 1 repetitive, 0 skipped" in printed
    assert "3 genuine and 3 of 3 pseudo pairs" in printed
    assert Counter(pairs(tmp_path / "out/train")) == Counter(GENUINE + KEPT)
    assert "dict.en.txt lacks <BT>" in printed
    assert read(tmp_path / "out/dict.en.txt") == ["one 3", "two 2", "<BT> 1"]
    assert read(tmp_path / "out/dict.de.txt") == ["eins 3", "zwei 2"]
    assert calls(tmp_path) == ["preprocess", "generate", "generate", "preprocess"]

    # the confidence is a bound that may be reached; changing it doesn't translate anew
    printed = succeed(SCRIPT, cwd=tmp_path, **given, CONFIDENCE="0.5", TAG="<pseudo>").stdout
    assert "2 kept, 2 of low confidence" in printed and printed.count("translated already") == 2
    assert set(pairs(tmp_path / "out/train")) == {*GENUINE, ("<pseudo> E1 E2", "e1 e2"), ("<pseudo> J1 J2", "j1")}
    assert read(tmp_path / "out/dict.en.txt") == ["one 3", "two 2", "<pseudo> 1"]
    assert calls(tmp_path)[4:] == ["preprocess"]

    # nothing is left to do
    before = (tmp_path / "out/train.en").stat().st_mtime_ns
    succeed(SCRIPT, cwd=tmp_path, **given, CONFIDENCE="0.5", TAG="<pseudo>")
    assert (tmp_path / "out/train.en").stat().st_mtime_ns == before and len(calls(tmp_path)) == 5

    # translations of other text aren't taken for those of this one
    write(tmp_path / "mono", MONO[::-1])
    assert "out/shards has translations of other text" in error_line(run(SCRIPT, cwd=tmp_path, **given))


def test_ratio_and_seed(given: dict[str, str], tmp_path: Path) -> None:
    drawn = {}
    for seed in ("1", "2", "3", "4", "1"):
        shutil.rmtree(tmp_path / "out/bin", ignore_errors=True)
        succeed(SCRIPT, cwd=tmp_path, **given, RATIO=".67", SEED=seed)
        mixed = pairs(tmp_path / "out/train")
        assert len(mixed) == len(set(mixed)) == 5 and set(GENUINE) < set(mixed) < {*GENUINE, *KEPT}
        assert drawn.setdefault(seed, mixed) == mixed
    assert len({tuple(mixed) for mixed in drawn.values()}) > 1
    printed = succeed(SCRIPT, cwd=tmp_path, **given, RATIO="2", FILTER="0", CONFIDENCE="0").stdout
    assert "3 genuine and 5 of 5 pseudo pairs" in printed and "a ratio of 2 would be 6 pseudo pairs" in printed
    repetition = ("<BT> " + TRANSLATIONS[2][0], MONO[2])
    assert set(pairs(tmp_path / "out/train")) == {*GENUINE, *KEPT, ("<BT> F1", "f1"), repetition}


def test_an_interrupted_run_goes_on_where_it_was(given: dict[str, str], tmp_path: Path) -> None:
    succeed(SCRIPT, cwd=tmp_path, **given, SHARD="1")
    assert not (tmp_path / "out/train.en").exists()
    (tmp_path / "broken").touch()
    assert "part 0 of 2 failed" in run(SCRIPT, cwd=tmp_path, **given).stderr
    (tmp_path / "broken").unlink()
    succeed(SCRIPT, "--sampling", cwd=tmp_path, **{**given, "OUT": "other"})
    assert "--sampling" in read(tmp_path / "calls")[-2]
    succeed(SCRIPT, cwd=tmp_path, **given)
    assert Counter(pairs(tmp_path / "out/train")) == Counter(GENUINE + KEPT)
    assert pairs(tmp_path / "other/train") == pairs(tmp_path / "out/train")
    whole = ["preprocess", "generate", "generate", "preprocess"]
    assert calls(tmp_path) == [*whole[:3], *whole, *whole[2:]]


def test_what_is_wrong_is_told_before_anything_is_translated(given: dict[str, str], tmp_path: Path) -> None:
    def error(**variables: str) -> str:
        return error_line(run(SCRIPT, cwd=tmp_path, **{**given, **variables}))

    for name in ("DATA", "MODEL", "MONO", "PARALLEL", "OUT"):
        assert f"{name} is not set" in error(**{name: ""})
    assert "(MODEL) no.pt does not exist" in error(MODEL="no.pt")
    assert "(PARALLEL) no.en does not exist" in error(PARALLEL="no")
    assert "TAG must be one symbol" in error(TAG="<B T>")
    assert "TAG must be one symbol" in error(TAG="<unk>")
    for ratio in ("0", "-1", "x", "nan", "."):
        assert f"RATIO must be a number of pseudo pairs for a genuine one, above 0, not {ratio}" in error(RATIO=ratio)
    for confidence in ("1.01", "-0.1", "high"):
        assert "CONFIDENCE must be a probability" in error(CONFIDENCE=confidence)
    assert "SEED must be a whole number" in error(SEED="x")
    assert "STRATEGY must be" in error(STRATEGY="gad")
    assert not (tmp_path / "calls").exists()


def test_texts_that_do_not_go_together_are_refused(given: dict[str, str], tmp_path: Path) -> None:
    def error() -> str:
        return error_line(run(SCRIPT, cwd=tmp_path, **given))

    write(tmp_path / "train.en", ["one", "<BT> two", "three"])
    assert "1 lines of train.en begin with <BT>" in error()
    write(tmp_path / "train.en", ["one"])
    assert "train.en and train.de differ in their number of lines: 1 and 3" in error()
    write(tmp_path / "train.en", [source for source, _ in GENUINE])
    (tmp_path / "out/shards/1-of-2.txt").write_text("H-1\t-1\tF1\nP-1\t-1\n", encoding="utf-8")
    assert "2 of the 6 lines of out/mono.de have no translation, but 0 were skipped" in error()
    assert not (tmp_path / "out/train.en").exists() and not (tmp_path / "out/bin").exists()
