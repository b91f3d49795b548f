"""The commands of the README and of docs/, as a person would type them, in a copy of the checkout.

Everything is real but for size: the text has 72 lines, trainings end after two updates, models have width 16 or 32,
benchmarks take a few lines; and what is fetched from the web lies on the disk.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_get_data
import test_low_resource
import tiny
import torch
import warm_tools
from fairseq.data import Dictionary
from fairseq_tools import REPOSITORY, script_environment

CARD = "checkpoints/demo.en-de/README.md"
# in this order: some leave what others go on with, as they do for a person who reads them in turn
DOCS = (
    *("docs/training.md", "docs/low-resource.md", "README.md", "docs/performance.md"),
    *("docs/from-the-authors-scripts.md", CARD),
)
WITHOUT_COMMANDS = ("docs/how-it-works.md", "docs/options.md", "docs/guarantees.md", "docs/results.md")
SMALL = {
    **{"LAYERS": "1", "EMBED_DIM": "32", "HEADS": "2", "MAX_POSITIONS": "256", "MAX_TOKENS": "9000", "WARMUP": "1"},
    **{
        "UPDATE_FREQ": "1",
        "MAX_UPDATE": "2",
        "LOG_INTERVAL": "1",
        "VALID_LINES": "2",
        "BPE_SYMBOLS": "60",
        "SHARDS": "1",
    },
    **{"DUAL_WARMUP": "1", "VALIDATE": "2", "PASSES": "1", "FILTER": "0", "WORKERS": "1", "CPU": "1"},
    **{"DEMO_TEXT": "text", "DEMO_UPDATES": "2", "DEMO_DRAFTER_UPDATES": "2", "DEMO_SHARDS": "1", "DEMO_BATCH": "100"},
    **{"TESTS": "tests/test_noise.py", "PYTEST_FLAGS": "-q"},
}
# Stand-ins that add to what a command of the documentation says what makes it small, for want of a variable that does.
SHORTENING = {
    "fairseq-train": """
        case " $* " in *" dual_transformer "*)
            set -- "$@" --verifier-embed-dim 16 --verifier-attention-heads 2 --verifier-encoder-layers 1 \\
                --verifier-decoder-layers 1 --drafter-embed-dim 8 --drafter-attention-heads 2 \\
                --drafter-encoder-layers 1 --drafter-decoder-layers 1 --max-tokens 600 ;;
        esac
        case " $* " in *" --max-update "*) set -- "$@" --max-update 2 ;; esac """,
    "fairseq-hydra-train": """
        set -- "$@" optimization.max_update=2 optimization.update_freq=[1] model.encoder_embed_dim=32 \\
            model.encoder_layers=1 model.decoder_layers=1 model.encoder_attention_heads=2 \\
            model.decoder_attention_heads=2 model.decoder_embed_dim=32 model.encoder_ffn_embed_dim=64 \\
            model.decoder_ffn_embed_dim=64 """,
    "python": """
        while [ "$1" = -W ]; do shift 2; done
        case $1 in
        benchmarks/compare_strategies.py) set -- "$@" --lines 4 --speed-lines 4 --passes 1 --max-len-b 10 --batch 1 ;;
        benchmarks/length.py) set -- "$@" --lengths 3 6 --layers 1 --width 64 --symbols 30 --passes 1 ;;
        esac """,
}


def commands(document: str) -> list[str]:
    """The blocks of commands in a document."""
    return re.findall(
        r"^```sh\n(.*?)^```$", (REPOSITORY / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


class Sandbox:
    """A checkout with small text and models under the names that the documentation uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for path in REPOSITORY.iterdir():
            if path.name not in ("data", "checkpoints", "runs", ".venv") and not path.name.endswith(
                ("-info", "_cache")
            ):
                (self.folder / path.name).symlink_to(path)
        for parent in ("data", "checkpoints"):
            (self.folder / parent).mkdir()
            (self.folder / parent / "demo.en-de").symlink_to(REPOSITORY / parent / "demo.en-de")
        programs = self.folder / "env/bin"
        programs.mkdir(parents=True)
        for path in warm_tools.folder().iterdir():
            extra = SHORTENING.get(path.name, "")
            (programs / path.name).write_text(f'#!/usr/bin/env bash\n{extra}\nexec {path} "$@"\n', encoding="utf-8")
            (programs / path.name).chmod(0o755)
        for name in ("ruff", "mypy"):
            (programs / name).symlink_to(Path(sys.executable).parent / name)
        self.variables = script_environment(**SMALL, VENV=str(self.folder / "env"))
        self.variables["PATH"] = f"{programs}{os.pathsep}{self.variables['PATH']}"

        test_low_resource.write_text(self.folder / "text")
        for corpus in ("corpus", "lohelp"):  # as if Debian's packages had been fetched
            shutil.copytree(self.folder / "text", self.folder / corpus / "text")
        self.run("scripts/preprocess.sh en de text made")
        (self.folder / "made/bin").rename(self.folder / "bin")
        (self.folder / "made/bpe/test.en").rename(self.folder / "test.bpe.en")
        for language, name in (("en", "test.raw.en"), ("de", "test.raw.de")):
            shutil.copy(self.folder / f"text/test.{language}", self.folder / name)
        (self.folder / "made/tok/test.de").rename(self.folder / "test.tok.de")
        (self.folder / "made/codes").rename(self.folder / "codes")
        save_models(self.folder / "bin/dict.en.txt", self.folder / "verifier.pt", self.folder / "drafter.pt")
        for name, content in test_get_data.wmt14(folder / "sources").items():
            if name != "OUT":
                self.variables[name] = content
        published = folder / "sources/verifier.pt", folder / "sources/drafter.pt"
        save_models(folder / "sources/DICT_EN", *published)
        self.variables |= {"VERIFIER_URL": published[0].as_uri(), "DRAFTER_URL": published[1].as_uri()}
        self.variables |= {"NEWSTEST_SHA256": "", "EUROPARL_SHA256": "", "COMMONCRAWL_SHA256": ""}

    def run(self, script: str) -> str:
        """The output of commands, each of which has to succeed."""
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout[-3000:]
        return result.stdout


def save_models(dictionary: Path, verifier: Path, drafter: Path) -> None:
    """Random models of a dictionary."""
    symbols = Dictionary.load(str(dictionary))
    positions = {"max_source_positions": 256, "max_target_positions": 256}
    options = {**positions, "share_all_embeddings": True}
    model = tiny.verifier(symbols, dtype=torch.float32, **options)
    tiny.save(model, {**tiny.verifier_options(**options), "_name": "transformer", "arch": "transformer"}, verifier)
    block = {**tiny.drafter_options(**positions), "_name": "block", "arch": "block"}
    tiny.save(tiny.drafter(symbols, dtype=torch.float32, **positions), block, drafter)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("docs"))


@pytest.mark.parametrize("document", DOCS)
def test_the_commands_of_a_document_run(sandbox: Sandbox, document: str) -> None:
    blocks = commands(document)
    assert blocks
    sandbox.run("\n".join(blocks))


def test_no_document_is_left_out() -> None:
    documents = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").glob("*.md")}
    documents |= {"README.md", CARD}
    assert documents == {*DOCS, *WITHOUT_COMMANDS}
    assert not any(commands(document) for document in WITHOUT_COMMANDS)
    for document in documents:
        fences = re.findall(r"^```(\w*)$", (REPOSITORY / document).read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences) <= {"sh", "", "bibtex"}  # a block of commands is marked as one


def test_links_lead_somewhere() -> None:
    for document in (*DOCS, *WITHOUT_COMMANDS):
        path = REPOSITORY / document
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert target.startswith("http") or (path.parent / target).exists(), f"{document}: {target}"


def test_the_page_of_options_is_what_the_code_says() -> None:
    page = "".join(runpy.run_path(str(REPOSITORY / "scripts/options_table.py"))["lines"]())
    assert page == (REPOSITORY / "docs/options.md").read_text(encoding="utf-8")
    assert "| `--beta` | `1` | a draft token" in page and "| `--AR-path` |  |" in page
