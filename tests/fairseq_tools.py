"""fairseq's command line tools, and the shell scripts, as a user calls them."""

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warm_tools

REPOSITORY = Path(__file__).resolve().parents[1]
PLUGIN = ["--user-dir", str(REPOSITORY / "block_plugins"), "--task", "translation_lev_modified"]
OWN_VARIABLES = re.compile(
    r"DATA|SAVE_DIR|ROLE|VERIFIER|DRAFTER|INPUT|OUTPUT|STRATEGY|BETA|TAU|BLOCK|BATCH|BEAM|MAX_.*|STATS|LOG|CPU.*|FP16|"
    r"SRC|TGT|GEN|OUT|SYS|REF|LR|WARMUP|DROPOUT|SEED|LAYERS|EMBED_DIM|HEADS|FFN_DIM|DEMO_.*|BPE_SYMBOLS|UPDATE_FREQ|"
    r"FREEZE_ENCODER|BLOCKS_PER_SENTENCE|DECODER_FFN_DIM|SHARDS?|FILTER|LOOKAHEAD|DRAFT_TOKENS|DRAFTER_DTYPE|BF16|CUDA_GRAPHS|RECIPE|CODES|VALID_.*|"
    r"DUAL_WARMUP|VALIDATE|REC_WEIGHT|KD(_WEIGHT)?|PASSES|MONO|PARALLEL|MODEL|TAGS?|REFERENCE|ROWS|CONFIDENCE|RATIO|GPUS|UPDATE_TOKENS|WORLD_SIZE|(LOCAL_)?RANK|MASTER_.*|TORCHELASTIC_.*|SLURM_.*"
)


def script_environment(**variables: str) -> dict[str, str]:
    """This process's environment without variables that the scripts read, and with `variables`."""
    inherited = {name: value for name, value in os.environ.items() if not OWN_VARIABLES.fullmatch(name)}
    return {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(warm_tools.folder()), str(Path(sys.executable).parent), os.environ["PATH"]]),
        **variables,
    }


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed script printed to standard error."""
    assert result.returncode != 0
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def run(tool: str, *arguments: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs ``fairseq-TOOL`` of this environment from ``cwd``."""
    return subprocess.run(
        [str(warm_tools.folder() / f"fairseq-{tool}"), *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def succeed(tool: str, *arguments: object, cwd: Path, stdin: str = "") -> str:
    """The standard output of a run that has to succeed."""
    result = run(tool, *arguments, cwd=cwd, stdin=stdin)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def here(tool: str, *arguments: object, cwd: Path, stdin: str = "") -> str:
    """As ``succeed``, but in this process, which spares the seconds that a tool takes to start.

    For what is decoded or trained; what a tool logs, how it ends and how it starts is seen by ``run``. A ``UserError``
    goes through.

    Without processes that load data: one whose loader falls to the garbage collector is waited for, five seconds.
    """
    words = [*map(str, arguments), "--num-workers", "0"]
    at = words.index("--user-dir")  # the plugin is there already
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", [f"fairseq-{tool}", *words[:at], *words[at + 2 :]])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        importlib.import_module(f"fairseq_cli.{tool}").cli_main()
    return output.getvalue()


def column(output: str, letter: str) -> dict[int, list[str]]:
    """The fields of the ``letter`` lines (S, T, H, D, P, I, E) of a tool's output, by sentence number."""
    found: dict[int, list[str]] = {}
    for line in output.splitlines():
        key, *fields = line.split("\t")
        if key.startswith(f"{letter}-") and key[2:].isdigit():
            found[int(key[2:])] = fields
    return found
