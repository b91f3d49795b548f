"""The authors' own scripts (arXiv 2203.16487), called by the command line that their README gives.

They write one translation a line, without BPE, to ``--output-path``. What they print is not looked at. A run is timed
from outside, with the start of Python and the loading of the models in it; therefore the first sentence is translated
alone as well, and what that takes is subtracted.
"""

import os
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from block_plugins.errors import UserError


@dataclass(frozen=True)
class Authors:
    """A checkout of their repository, with what to give it. ``flags`` are added to the command line."""

    checkout: str
    python: str
    flags: str
    data: str
    source_lang: str
    target_lang: str
    verifier: str
    drafter: str

    def script(self, batch: int) -> Path:
        """``inference_paper.py``, which their latencies come from, knows no batches; ``inference.py`` does."""
        for name in ("inference_paper.py", "inference.py") if batch == 1 else ("inference.py",):
            path = Path(self.checkout).resolve() / name
            if path.is_file():
                return path
        raise UserError(f"--authors: there is no inference.py in {self.checkout}")

    def translate(
        self, lines: list[str], batch: int, block_size: int, beta: int, tau: float
    ) -> tuple[list[str], float]:
        """The translations of BPE-encoded lines, and the seconds that the whole process took."""
        script = self.script(batch)
        renamed = (script.parent / "specdec_plugins").is_dir()  # as the later of their two repositories calls it
        with tempfile.TemporaryDirectory() as folder:
            given, written = Path(folder, "input"), Path(folder, "output")
            given.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            command = [
                *(self.python, script, Path(self.data).resolve(), "--path", Path(self.drafter).resolve()),
                *("--user-dir", "specdec_plugins" if renamed else "block_plugins"),
                *("--task", "translation_lev_modified", "--remove-bpe", "--max-sentences", 20),
                *("--source-lang", self.source_lang, "--target-lang", self.target_lang),
                *("--iter-decode-max-iter", 0, "--iter-decode-eos-penalty", 0, "--iter-decode-with-beam", 1),
                *("--gen-subset", "test", "--AR-path", Path(self.verifier).resolve()),
                *("--input-path", given, "--output-path", written),
                *("--block-size", block_size, "--beta", beta, "--tau", tau, "--batch", batch, "--beam", 1),
                *("--strategy", "specdec" if renamed else "gad", *shlex.split(self.flags)),
            ]
            begin = time.perf_counter()
            result = subprocess.run(
                [str(word) for word in command],
                cwd=script.parent,
                env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - begin
            if result.returncode != 0 or not written.is_file():
                last = (result.stderr.strip() or result.stdout.strip() or "it wrote nothing").splitlines()[-1]
                raise UserError(f"--authors: {script} failed (exit status {result.returncode}): {last}")
            output = written.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        if len(output) != len(lines):
            raise UserError(f"--authors: {script} wrote {len(output)} lines for {len(lines)}")
        return output, seconds

    def speed(self, lines: list[str], batch: int, block_size: int, beta: int, tau: float) -> float:
        """Sentences/s, the start of the process not counted."""
        start = self.translate(lines[:1], batch, block_size, beta, tau)[1]
        seconds = self.translate(lines, batch, block_size, beta, tau)[1] - start
        if seconds <= 0:
            raise UserError(f"--authors: {len(lines)} lines take no longer than one: raise --speed-lines")
        return (len(lines) - 1) / seconds
