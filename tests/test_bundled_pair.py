"""The pair of models that is checked in, and the demo and the translator that use it."""

import json
import re
import subprocess
from pathlib import Path

import torch
from fairseq_tools import PLUGIN, REPOSITORY, column, here, script_environment
from sacrebleu import corpus_bleu

from block_plugins import checkpoints

PAIR = REPOSITORY / "checkpoints/demo.en-de"
TEXT = REPOSITORY / "data/demo.en-de"
LINES = 40


def test_the_files_are_small_and_hold_nothing_but_weights() -> None:
    models = [PAIR / "verifier.pt", PAIR / "drafter.pt"]
    assert sum(path.stat().st_size for path in models) <= 48 * 2**20
    weights = []
    for path in models:
        state = checkpoints.read(str(path), "--path")
        assert not state.get("last_optimizer_state")
        assert {weight.dtype for weight in state["model"].values() if weight.is_floating_point()} <= {
            torch.float16,
            torch.float32,  # fairseq's version numbers, of one element
        }
        assert all(w.numel() == 1 for w in state["model"].values() if w.dtype == torch.float32)
        assert not re.search("['\"]/[^'\"]", repr(state["cfg"]))  # paths of the machine that trained it
        weights.append(state["model"])
    encoder = [name for name in weights[0] if name.startswith("encoder.")]
    assert encoder and all(
        torch.equal(weights[0][name], weights[1][name]) for name in encoder
    )  # decoding runs one of them
    assert (PAIR / "dict.en.txt").read_bytes() == (PAIR / "dict.de.txt").read_bytes()
    assert "MPL-2.0" in (PAIR / "README.md").read_text(encoding="utf-8")


def test_beta_1_changes_nothing_and_drafts_are_good(tmp_path: Path) -> None:
    """fairseq's own search is what the text is compared with; the threshold is well below what the model card tells."""
    source, reference = (
        (TEXT / f"test.{language}").read_text(encoding="utf-8").splitlines()[:LINES] for language in ("en", "de")
    )

    def translated(*options: object) -> list[str]:
        common = ["-s", "en", "-t", "de", *PLUGIN, "--cpu", "--tokenizer", "moses", "--moses-no-dash-splits"]
        codes = ["--bpe", "subword_nmt", "--bpe-codes", PAIR / "codes", "--buffer-size", 100, "--batch-size", 20]
        output = here(
            "interactive", PAIR, *common, *codes, *options, cwd=tmp_path, stdin="".join(f"{line}\n" for line in source)
        )
        found = column(output, "D")
        return [found[number][1] for number in range(LINES)]

    verifier, drafter, stats = PAIR / "verifier.pt", PAIR / "drafter.pt", tmp_path / "stats.json"
    greedy = translated("--path", verifier, "--beam", 1)
    speculative = ["--strategy", "gad", "--path", drafter, "--AR-path", verifier, "--num-draft-tokens", 12]
    assert translated(*speculative, "--lookahead", "constant", "--stats-path", stats) == greedy
    assert json.loads(stats.read_text(encoding="utf-8"))["accepted_per_iteration"] > 3
    assert corpus_bleu(greedy, [reference]).score > 35


def test_the_translator_needs_no_options() -> None:
    text = "Open the file.\nClick the button.\n"
    printed = [
        subprocess.run(
            [REPOSITORY / "scripts/translate.sh", *options], env=script_environment(), input=text,
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout
        for options in ([], ["--strategy", "AR"])
    ]  # fmt: skip
    assert printed[0] == printed[1] and len(printed[0].splitlines()) == 2
    assert "Datei" in printed[0].splitlines()[0]
