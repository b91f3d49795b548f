"""Parity with the authors' own code: a verifier and a drafter that it trained, and the outputs that it gave."""

import json
import os
import runpy
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_tools import PLUGIN, REPOSITORY, column, here

from block_plugins import checkpoints

LINES = int(os.environ.get("REFERENCE_LINES", "60"))
"""Lines of the reference input, which has 200, that are translated in each way."""


@pytest.fixture(scope="module")
def translate(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Output lines, BPE removed, for lines of the reference input and the decoding options given."""
    folder = tmp_path_factory.mktemp("reference")
    for language in ("en", "de"):
        shutil.copy(shared_dir / "reference" / f"dict.{language}.txt", folder)
    text = (shared_dir / "reference" / "input.bpe.en").read_text(encoding="utf-8").splitlines()

    def run(
        strategy: str, *options: object, numbers: Sequence[int] = range(LINES), models: Path | None = None
    ) -> list[str]:
        drafter, verifier = ((models or shared_dir / "reference") / f"{name}.pt" for name in ("drafter", "verifier"))
        paths = ["--path", drafter, "--AR-path", verifier] if strategy == "gad" else ["--path", verifier]
        output = here(
            "interactive", folder, "-s", "en", "-t", "de", *PLUGIN, "--cpu", "--strategy", strategy, *paths,
            "--buffer-size", 500, "--batch-size", 20, "--remove-bpe", *options,
            cwd=folder, stdin="".join(text[number] + "\n" for number in numbers),
        )  # fmt: skip
        found = column(output, "H")
        assert sorted(found) == list(range(len(numbers)))
        return [found[n][1] for n in range(len(numbers))]

    return run


@pytest.mark.parametrize(
    ("expected", "strategy", "options"),
    [
        ("ar", "AR", []),
        ("gad-b10-beta1", "gad", ["--block-size", 10]),
        ("gad-b10-beta5-tau3", "gad", ["--block-size", 10, "--beta", 5, "--tau", 3]),
        ("gad-b25-beta3-tau1", "gad", ["--block-size", 25, "--beta", 3, "--tau", 1]),
    ],
)
def test_outputs_equal_those_of_the_authors_code(
    expected: str, strategy: str, options: list[object], translate: Callable[..., list[str]], shared_dir: Path
) -> None:
    lines = (shared_dir / "reference" / "expected" / f"{expected}.out").read_text(encoding="utf-8").splitlines()[:LINES]
    assert translate(strategy, *options) == lines


def test_rewritten_checkpoints_of_the_authors_code(
    translate: Callable[..., list[str]], shared_dir: Path, tmp_path: Path
) -> None:
    """All options in ``args``, as older versions of fairseq save them, the mean of several checkpoints, no optimizer,
    entries of the state dict missing and added.
    """
    average = runpy.run_path(str(REPOSITORY / "scripts" / "average_checkpoints.py"))["main"]
    for name in ("drafter", "verifier"):
        state = checkpoints.read(str(shared_dir / "reference" / f"{name}.pt"), "--path")
        state["args"], state["cfg"] = state["cfg"]["model"], None
        assert state["args"].data.startswith("/data/gad/") and isinstance(state["args"], Namespace)
        del state["last_optimizer_state"], state["model"]["encoder.version"], state["model"]["decoder.version"]
        state["model"]["decoder.embed_length.weight"] = torch.zeros(256, 256)
        torch.save(state, tmp_path / f"{name}.1.pt")
        average(["--inputs", *[str(tmp_path / f"{name}.1.pt")] * 2, "--output", str(tmp_path / f"{name}.pt")])
    for strategy, name, options in (
        ("AR", "ar", []),
        ("gad", "gad-b10-beta5-tau3", ["--block-size", 10, "--beta", 5, "--tau", 3]),  # which depends on the drafter
    ):
        text = (shared_dir / "reference" / "expected" / f"{name}.out").read_text(encoding="utf-8").splitlines()
        shortest = sorted(range(len(text)), key=lambda number: len(text[number]))[:6]
        found = translate(strategy, *options, numbers=shortest, models=tmp_path)
        assert found == [text[number] for number in shortest]


def test_the_verifiers_logits_equal_those_of_the_authors_code(shared_dir: Path) -> None:
    folder = shared_dir / "reference"
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / "verifier.pt")], arg_overrides={"data": str(folder)}
    )
    verifier = models[0].eval()
    for case in json.loads((folder / "expected" / "logits.json").read_text(encoding="utf-8")):
        source = torch.tensor([case["src"]])
        with torch.no_grad():
            logits = verifier(source, torch.tensor([source.size(1)]), torch.tensor([[2, *case["prefix"]]]))[0][0, -1]
        wanted = next(value for key, value in case.items() if key.startswith("verifier") and isinstance(value, list))
        torch.testing.assert_close(logits[: len(wanted)], torch.tensor(wanted), rtol=0, atol=1e-4)
