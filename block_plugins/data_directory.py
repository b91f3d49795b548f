"""The data directory that a task is given: whether all that training and decoding need is there, told in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import data_utils

from block_plugins.errors import UserError


def check(cfg: Any) -> None:
    """Finds out the languages where a translation task's configuration doesn't name them; raises ``UserError`` if a
    directory, a dictionary or the name of a language is missing.
    """
    paths = _checked_directories(cfg.data)
    if cfg.source_lang is None or cfg.target_lang is None:
        cfg.source_lang, cfg.target_lang = data_utils.infer_language_pair(paths[0])
    if cfg.source_lang is None or cfg.target_lang is None:
        raise UserError(
            f"can't tell the languages from the file names in {paths[0]}: give --source-lang and --target-lang"
        )
    _check_dictionaries(paths[0], cfg.source_lang, cfg.target_lang)


def load_split(task: Any, split: str, load: Callable[[], None], with_target: bool) -> None:
    """Calls fairseq's ``load``; raises ``UserError`` if the split isn't there, or, if it has to be ``with_target``, has
    the source side only.
    """
    cfg = task.cfg
    try:
        load()
    except FileNotFoundError as error:
        raise UserError(
            f"{cfg.data} has no split {split!r} for {cfg.source_lang}-{cfg.target_lang} ({error})"
        ) from error
    if with_target and task.datasets[split].tgt is None:
        raise UserError(
            f"{cfg.data} is monolingual: its split {split!r} has no {cfg.target_lang} side to train on; "
            "run fairseq-preprocess on both languages"
        )


def _checked_directories(data: str | None) -> list[str]:
    """The directories of fairseq's positional argument; raises ``UserError`` if one isn't there."""
    if not data:
        raise UserError(
            "no data directory: give the directory that fairseq-preprocess wrote as first argument "
            "(fairseq-hydra-train: task.data=DIRECTORY)"
        )
    paths = utils.split_paths(data)
    for path in paths:
        if not Path(path).is_dir():
            raise UserError(f"data directory {path} does not exist: give the directory that fairseq-preprocess wrote")
    return list(paths)


def _check_dictionaries(folder: str, source_lang: str, target_lang: str) -> None:
    """Raises ``UserError`` if one or both of the dictionary files are missing."""
    missing = [name for name in (source_lang, target_lang) if not (Path(folder) / f"dict.{name}.txt").is_file()]
    if len(missing) == 2:
        raise UserError(
            f"data directory {folder} has no dictionaries (dict.{source_lang}.txt, dict.{target_lang}.txt): copy them "
            "there, or give the directory that fairseq-preprocess wrote, and its languages with -s and -t"
        )
    if missing:
        raise UserError(
            f"data directory {folder} is monolingual: it has no dict.{missing[0]}.txt; "
            "run fairseq-preprocess on both languages"
        )
