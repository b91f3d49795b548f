"""scripts/low_resource.sh: once from raw text to the table, with tiny models; what it refuses; how scores compare."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from fairseq_tools import REPOSITORY, error_line, script_environment

NOUNS = ("house", "tree", "cat", "dog", "book", "table", "river", "window")
GERMAN = dict(zip(NOUNS, ("Haus", "Baum", "Katze", "Hund", "Buch", "Tisch", "Fluss", "Fenster"), strict=True))
TINY = [
    "--verifier-embed-dim",
    "16",
    "--verifier-attention-heads",
    "2",
    "--verifier-encoder-layers",
    "1",
    "--verifier-decoder-layers",
    "1",
    "--drafter-embed-dim",
    "8",
    "--drafter-attention-heads",
    "2",
    "--drafter-encoder-layers",
    "1",
    "--max-tokens",
    "400",
    "--warmup-updates",
    "1",
    "--log-interval",
    "1",
]


def write_text(folder: Path) -> None:
    """Pairs that all differ, and one of the training set's twice."""
    folder.mkdir()
    generator = random.Random(1)
    seen: list[tuple[str, ...]] = []
    while len(seen) < 72:
        nouns = tuple(generator.sample(NOUNS, 5))
        if nouns not in seen:
            seen.append(nouns)
    parts = {"train": [*seen[:60], seen[0]], "valid": seen[60:66], "test": seen[66:]}
    for split, rows in parts.items():
        for lang, words in (("en", {noun: noun for noun in NOUNS}), ("de", GERMAN)):
            lines = [" ".join(words[noun] for noun in nouns) for nouns in rows]
            (folder / f"{split}.{lang}").write_text("".join(f"{line} .\n" for line in lines), encoding="utf-8")


def run(*arguments: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [REPOSITORY / "scripts" / "low_resource.sh", *map(str, arguments)],
        cwd=cwd,
        env=script_environment(**variables),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def model(path: Path) -> dict[str, Any]:
    weights: dict[str, Any] = torch.load(path, weights_only=True)["model"]
    return weights


def test_from_raw_text_to_the_table(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    short = {"BPE_SYMBOLS": "40", "DUAL_WARMUP": "2", "MAX_UPDATE": "4", "VALIDATE": "4", "PASSES": "1"}
    command = ("en", "de", "text", "--out", "out", "--", *TINY)
    result = run(*command, cwd=tmp_path, **short)
    assert result.returncode == 0, result.stdout + result.stderr
    out = tmp_path / "out"
    assert len((out / "clean/train.en").read_text().splitlines()) <= 60
    assert json.loads((out / "clean/report.json").read_text())["dropped"]["exact"] == 1
    assert (out / "clean/test.de").read_bytes() == (tmp_path / "text/test.de").read_bytes()
    progress = [line.split(", ")[0] for line in result.stdout.splitlines() if ": update " in line]
    assert progress == [
        *(f"warmup: update {number} of 2" for number in (1, 2)),
        *(f"{name}: update {number} of 4" for name in ("plain", "dual") for number in (3, 4)),
    ]
    for name, terms in (("plain", {"draft"}), ("dual", {"rec", "kd"})):
        log = (out / name / "train.log").read_text()
        assert {term for term in ("draft", "rec", "kd") if re.search(rf"epoch \d+:.* {term}_fwd=", log)} == terms
    first, other = (model(out / name / "forward-verifier.pt") for name in ("plain", "dual"))
    assert first.keys() == other.keys()
    assert any(not torch.equal(first[name], other[name]) for name in first)

    rows = json.loads((out / "table.json").read_text())["rows"]
    names = [row["configuration"] for row in rows]
    assert names[:6] == names[6:] == [
        *("drafter alone, beam 4", "verifier, greedy", "verifier + drafter, K = 5", "dual + distilled, greedy"),
        *("dual + distilled + drafter, K = 5", "the same, lookahead auto"),
    ]  # fmt: skip
    assert [row["direction"] for row in rows] == ["en-de"] * 6 + ["de-en"] * 6
    for row in rows:
        if "drafter, K" in row["configuration"]:
            assert 0 <= row["alpha"] <= 1
        elif "auto" not in row["configuration"]:  # which may have drafted or not
            assert row["alpha"] is None
    notes = (out / "table.md").read_text()
    assert notes.count("6 of 6 lines are those of") == 6
    assert re.search(
        r"en-de: dual \+ distilled, greedy against verifier, greedy: BLEU [+-]\d+\.\d+ \(p = \d\.\d+\)", notes
    )
    steps = [line.rpartition(":")[0] for line in (out / "times.txt").read_text().splitlines()]
    assert steps == [
        "cleaning text",
        "preprocessing",
        "training warmup",
        "training plain",
        "training dual",
        "the table",
    ]

    again = run(*command, cwd=tmp_path, **short)
    assert again.returncode == 0 and "==" not in again.stdout
    assert again.stdout.endswith(notes) and again.stdout.count("trained already") == 3
    assert "out/warmup was trained with other flags" in error_line(run(*command, "--lr", "1", cwd=tmp_path, **short))
    fewer = run(*command, "--total-num-update", "4", cwd=tmp_path, **{**short, "MAX_UPDATE": "3"})
    assert "out/warmup was trained with other flags" in error_line(fewer)
    (out / "dual/done-4").unlink()  # as if interrupted behind the last checkpoint
    assert run(*command, cwd=tmp_path, **short).stdout == again.stdout.replace("trained already: out/dual\n", "")
    (tmp_path / "text/train.en").write_text((tmp_path / "text/train.en").read_text().replace("cat", "hen"))
    assert "out was made from other text" in error_line(run(*command, cwd=tmp_path, **short))


def test_what_it_refuses(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    assert "--preset must be cpu or gpu, not tpu" in error_line(
        run("en", "de", "text", "--preset", "tpu", cwd=tmp_path)
    )
    assert "no option --fast" in error_line(run("en", "de", "text", "--fast", cwd=tmp_path))
    for flag in ("--kd-weight", "--save-dir=x"):
        assert f"{flag} differs from training to training" in error_line(
            run("en", "de", "text", "--", "--lr", "1", flag, cwd=tmp_path)
        )
    assert "PASSES must be a number above 0" in error_line(run("en", "de", "text", cwd=tmp_path, PASSES="0"))
    assert "the same language" in error_line(run("en", "en", "text", cwd=tmp_path))
    assert "text/train.fr does not exist" in error_line(run("en", "fr", "text", cwd=tmp_path))
    too_long = error_line(run("en", "de", "text", cwd=tmp_path, DUAL_WARMUP="5", MAX_UPDATE="5"))
    assert "DUAL_WARMUP, 5, must be below MAX_UPDATE, 5" in too_long
    with (tmp_path / "text/valid.de").open("a") as file:
        file.write("Ein Satz zu viel .\n")
    assert "differ in their number of lines: 6 and 7" in error_line(run("en", "de", "text", cwd=tmp_path))
    assert not (tmp_path / "low_resource.en-de").exists()


def test_differences_are_judged_by_sacrebleus_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import low_resource

    generator = random.Random(2)
    references = [" ".join(generator.choices(NOUNS, k=8)) for _ in range(60)]
    good = [line if number % 2 else line.replace("cat", "dog") for number, line in enumerate(references)]
    bad = [line.replace("cat", "dog").replace("tree", "river") for line in references]
    note = low_resource.bootstrap("en-de", "bad", "good", {"bad": bad, "good": good}, references)
    match = re.fullmatch(r"en-de: good against bad: BLEU \+([\d.]+) \(p = ([\d.]+)\), chrF \+([\d.]+) \(p = .*\)", note)
    assert match is not None
    scores = [sacrebleu.corpus_bleu(lines, [references]).score for lines in (good, bad)]
    assert float(match[1]) == pytest.approx(scores[0] - scores[1], abs=0.006) and float(match[2]) < 0.01
    same = low_resource.bootstrap("en-de", "one", "two", {"one": good, "two": good}, references)
    assert "BLEU +0.00" in same
