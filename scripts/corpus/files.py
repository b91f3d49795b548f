"""Writing text so that nothing half-written is ever found under a final name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from corpus.pair import Pair


def write_text(path: Path, text: str) -> None:
    """Write a file and move it into place."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


@contextmanager
def folder_in_one_go(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name ``path`` when the block ends without an error; the old one goes then."""
    unfinished = path.with_name(path.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    yield unfinished
    if path.exists():
        shutil.rmtree(path)
    os.replace(unfinished, path)


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def write_sets(folder: Path, sets: Mapping[str, Sequence[Pair]], languages: tuple[str, str]) -> None:
    """``{train,valid,test}.{source,target}``, one segment a line."""
    for name, pairs in sets.items():
        write_text(folder / f"{name}.{languages[0]}", _lines(pair.source for pair in pairs))
        write_text(folder / f"{name}.{languages[1]}", _lines(pair.target for pair in pairs))


def write_families(folder: Path, sets: Mapping[str, Sequence[Pair]]) -> None:
    """``{train,valid,test}.family``: the source of each line, to score by family."""
    for name, pairs in sets.items():
        write_text(folder / f"{name}.family", _lines(pair.family for pair in pairs))
