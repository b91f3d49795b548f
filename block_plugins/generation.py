"""From fairseq's command line options to a generator: what is honoured, what is refused, and what has to fit
together.
"""

import argparse
import dataclasses
import json
import logging
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass.configs import GenerationConfig

from block_plugins import checkpoints, dictionaries
from block_plugins.decoding import generator
from block_plugins.decoding.cached_decoder import DecoderLayers, why_not_cached
from block_plugins.decoding.cuda_graphs import GraphedLayers
from block_plugins.decoding.drafters import Drafter
from block_plugins.decoding.settings import BeamSettings, SamplingSettings, SearchSettings, SpeculationSettings
from block_plugins.decoding.statistics import Statistics
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel

logger = logging.getLogger(__name__)

# Options of fairseq's generation group that mean the same here, or that have no bearing on a greedy search.
_HONOURED = {
    "_name",
    "beam",
    "max_len_a",
    "max_len_b",
    "min_len",
    "unnormalized",
    "no_early_stop",
    "no_beamable_mm",
    "lenpen",
    "unkpen",
    "sacrebleu",
    "prefix_size",
    "temperature",
    "print_step",
    "retain_iter_history",
    "no_seed_provided",
}
_WHY_REFUSED = {
    "nbest": "a greedy search has one hypothesis",
    "print_alignment": "attention weights are not kept",
    "replace_unk": "it needs an alignment, and attention weights are not kept",
    "lenpen": "with several beams --beam-start and --beam-alpha say how lengths are scored",
    "unnormalized": "with several beams --beam-alpha 0 leaves scores as they are",
    "no_repeat_ngram_size": "use --strategy AR, gad or fairseq",
    "score_reference": "use fairseq-score, or --strategy fairseq",
}


def refuse_what_is_not_honoured(options: Any, strategy: str) -> None:
    """Raises ``UserError`` naming the first generation option that ``strategy`` would have to ignore.

    ``options`` is fairseq's ``generation`` group, or a namespace with some of its options.
    """
    if strategy == "fairseq":
        for name in ("print_step", "retain_iter_history"):
            if getattr(options, name, False):
                raise UserError(f"{_flag(name)} is not possible with --strategy fairseq: its search has no iterations")
        return
    honoured = set(_HONOURED)
    if strategy in ("gad", "AR"):
        honoured |= {"sampling", "sampling_topk", "sampling_topp", "no_repeat_ngram_size"}
    if strategy == "left2right":
        beam, nbest = getattr(options, "beam", 5), getattr(options, "nbest", 1)
        if nbest > beam:
            raise UserError(
                f"--nbest {nbest} is more than --beam {beam}: a beam search has no more hypotheses than beams"
            )
        honoured |= {"nbest"}
        if beam > 1:
            honoured -= {"lenpen", "unnormalized"}
    for option in dataclasses.fields(GenerationConfig):
        if option.name in honoured:
            continue
        value = getattr(options, option.name, option.default)
        if value != option.default:
            why = _WHY_REFUSED.get(option.name, "leave it out, or use --strategy fairseq")
            raise UserError(f"{_flag(option.name)} is not possible with --strategy {strategy}: {why}")


def check_search(options: Any) -> None:
    """Raises ``UserError`` for numbers in fairseq's generation options that no search can do anything with."""
    for name, default in (("beam", 5), ("nbest", 1)):
        value = getattr(options, name, default)
        if value < 1:
            raise UserError(f"{_flag(name)} must be at least 1, not {value}")
    temperature = getattr(options, "temperature", 1.0)
    if not temperature > 0:
        raise UserError(f"--temperature must be more than 0, not {temperature}")
    size = getattr(options, "no_repeat_ngram_size", 0)
    if size < 0 or size == 1:
        raise UserError(f"--no-repeat-ngram-size must be 0 (off) or at least 2, not {size}: with 1 no output could end")


def check_sampling(cfg: Any, options: Any) -> None:
    """Raises ``UserError`` for options of sampling, fairseq's and the task's, that don't go together."""
    sampling = getattr(options, "sampling", False)
    if not sampling:
        if cfg.draft_temperature is not None:
            raise UserError("--draft-temperature is for --sampling: give that as well, or leave it out")
        for name in ("sampling_topk", "sampling_topp"):
            if cfg.strategy != "fairseq" and getattr(options, name, -1) > 0:
                raise UserError(f"{_flag(name)} is for --sampling: give that as well, or leave it out")
        return
    if cfg.strategy == "gad" and cfg.beta > 1:
        raise UserError(f"--sampling judges drafts by chance: --beta {cfg.beta} has no meaning there; leave it out")
    if cfg.draft_temperature is not None and cfg.strategy != "gad":
        raise UserError(f"--draft-temperature: --strategy {cfg.strategy} draws nothing from a drafter; leave it out")
    if cfg.draft_temperature is not None and not cfg.draft_temperature >= 0:
        raise UserError(f"--draft-temperature must not be negative, but is {cfg.draft_temperature}")


def check_shards(shards: int, shard: int) -> None:
    """Raises ``UserError`` where there is no shard of that number."""
    if not 0 <= shard < shards:
        raise UserError(f"--shard-id must be at least 0 and less than --num-shards {shards}, not {shard}")


def check_numbers(cfg: Any) -> None:
    """Raises ``UserError`` for values of the task's decoding options that mean nothing."""
    if cfg.beta < 1:
        raise UserError(f"--beta must be at least 1, not {cfg.beta}")
    if not cfg.tau >= 0:
        raise UserError(f"--tau must not be negative, but is {cfg.tau}")
    if not cfg.repetition_penalty >= 1:
        raise UserError(f"--repetition-penalty must be at least 1 (off), not {cfg.repetition_penalty}")
    if cfg.repetition_penalty > 1 and cfg.strategy not in ("gad", "AR"):
        raise UserError(
            f"--repetition-penalty is for --strategy AR and gad: with --strategy {cfg.strategy} leave it out"
        )
    if not 0 <= cfg.confidence_threshold <= 1:
        raise UserError(f"--confidence-threshold must be from 0 to 1, not {cfg.confidence_threshold}")
    if cfg.beta > 1 and str(cfg.lookahead) not in ("auto", "constant"):
        raise UserError(
            f"--lookahead {cfg.lookahead}: with --beta {cfg.beta} the text depends on how much of a draft is verified, "
            "so the whole draft always is; leave the option out"
        )
    if cfg.num_draft_tokens < 1:
        raise UserError(f"--num-draft-tokens must be at least 1, not {cfg.num_draft_tokens}")
    if str(cfg.drafter_dtype) != "same" and cfg.strategy not in ("gad", "drafter"):
        raise UserError(f"--drafter-dtype: --strategy {cfg.strategy} has no drafter; leave the option out")
    if cfg.cuda_graphs and cfg.strategy == "fairseq":
        raise UserError("--cuda-graphs: --strategy fairseq is fairseq's own search; leave the option out")
    if not cfg.beam_start > -1:
        raise UserError(f"--beam-start must be more than -1, not {cfg.beam_start}")
    if 0 <= cfg.beam_max < cfg.beam_min:
        raise UserError(f"--beam-min {cfg.beam_min} is more than --beam-max {cfg.beam_max}")
    if cfg.strategy == "gad" and not cfg.AR_path:
        raise UserError("--strategy gad needs a verifier: give its checkpoint with --AR-path (--path is the drafter)")
    if cfg.strategy != "gad" and cfg.AR_path:
        raise UserError(
            f"--AR-path is for --strategy gad only: with --strategy {cfg.strategy} give one model, as --path"
        )
    if cfg.trace_path is not None and cfg.strategy != "gad":
        raise UserError(
            f"--trace-path: --strategy {cfg.strategy} has no iterations of draft and verification; leave the option out"
        )
    for option, path in (("--stats-path", cfg.stats_path), ("--trace-path", cfg.trace_path)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UserError(f"{option}: there is no folder {Path(path).absolute().parent}")
    if cfg.trace_path is not None and cfg.trace_path == cfg.stats_path:
        raise UserError(f"--trace-path and --stats-path are both {cfg.trace_path}: give each its own file")


def check_checkpoints(cfg: Any, path: str, source: Any, target: Any) -> tuple[float, float]:
    """Looks into the checkpoints before fairseq loads them; raises ``UserError`` if they can't do what is asked.

    ``path`` is the value of ``--path``; ``source`` and ``target`` are the data's dictionaries. Returns the positions
    of the verifier that ``--AR-path`` names, source and target, or infinity where there is none.
    """
    paths = path.split(os.pathsep)
    if cfg.strategy != "fairseq" and len(paths) > 1:
        raise UserError(f"--path: --strategy {cfg.strategy} takes one checkpoint, not an ensemble of {len(paths)}")
    takes_drafter = cfg.strategy in ("gad", "drafter")
    for one in paths:
        state = checkpoints.read(one, "--path")
        if checkpoints.is_block(state) and not takes_drafter:
            raise UserError(
                f"--path: {one} is a block drafter, but --strategy {cfg.strategy} needs an autoregressive model there"
            )
        _check_contents(state, one, "--path", source, target)
    if not cfg.AR_path:
        return float("inf"), float("inf")
    drafts = checkpoints.is_drafter(state)
    state = checkpoints.read(cfg.AR_path, "--AR-path")
    if checkpoints.is_block(state) or (checkpoints.is_drafter(state) and not drafts):
        found = "two drafters" if drafts else "a verifier and a drafter, swapped"
        raise UserError(
            f"--path {path} and --AR-path {cfg.AR_path} are {found}: give the drafter with --path and the "
            "verifier, which is autoregressive, with --AR-path"
        )
    _check_contents(state, cfg.AR_path, "--AR-path", source, target)
    return (
        checkpoints.model_option(state, "max_source_positions") or float("inf"),
        checkpoints.model_option(state, "max_target_positions") or float("inf"),
    )


def check_verifier(path: str, option: str, source: Any, target: Any) -> None:
    """Looks into a checkpoint before it is loaded; raises ``UserError`` if it is no verifier of these dictionaries."""
    state = checkpoints.read(path, option)
    if checkpoints.is_block(state):
        raise UserError(f"{option}: {path} is a block drafter, but the verifier has to be autoregressive")
    _check_contents(state, path, option, source, target)


def load_verifier(path: str, option: str, task: Any) -> Any:
    """The verifier in a checkpoint, not to be trained, for something that trains: with no effect on random numbers.
    Raises ``UserError`` where it doesn't fit ``task``.
    """
    check_verifier(path, option, task.src_dict, task.tgt_dict)
    with torch.random.fork_rng(devices=[]):  # weights are drawn before the checkpoint's take their place
        return checkpoints.load_model(path, option, task).requires_grad_(False)


def _check_contents(state: dict[str, Any], path: str, option: str, source: Any, target: Any) -> None:
    """Raises ``UserError`` where a checkpoint isn't whole, or has other dictionaries."""
    checkpoints.check_whole(state, path, option)
    saved = (state.get("task_state") or {}).get("dictionaries", {})
    differs = dictionaries.first_differing_side(saved, source, target)
    if differs is not None:
        side, difference = differs
        raise UserError(
            f"{option}: {path} was trained with another {side} dictionary: {difference} (first: the checkpoint's, "
            "second: the data's); give the data directory of that checkpoint"
        )
    checkpoints.check_vocabulary(state, path, option, len(source), len(target))


def build_generator(task: Any, models: list[Any], options: Any, fairseq_generator: Any = None) -> generator.Generator:
    """The generator for ``task.cfg.strategy``.

    ``models`` is what ``--path`` names, already on its device and in its precision, which the verifier of
    ``--AR-path`` then gets as well. ``fairseq_generator`` is fairseq's own generator, for the strategy of that name.
    """
    cfg = task.cfg
    check_search(options)
    refuse_what_is_not_honoured(options, cfg.strategy)
    check_sampling(cfg, options)
    search = _search_settings(cfg, task.target_dictionary, options)
    model = models[0]
    layers = GraphedLayers if cfg.cuda_graphs else DecoderLayers
    if cfg.cuda_graphs:
        _check_graphed(model)
    verifier = drafter = None
    if cfg.strategy == "fairseq":
        decode = generator.fairseq_search(fairseq_generator)
    elif cfg.strategy == "AR":
        decode = generator.autoregressive(model, search, layers, _sampling_settings(options))
    elif cfg.strategy == "left2right":
        beam = _beam_settings(cfg, options)
        if beam.size > 1:
            decode = generator.left_to_right_beam(model, search, beam, layers)
        else:
            decode = generator.autoregressive(model, search, layers)
    else:
        if cfg.strategy == "gad":
            verifier = checkpoints.load_model(cfg.AR_path, "--AR-path", task)
            parameter = next(model.parameters())
            verifier.to(device=parameter.device, dtype=parameter.dtype)
            if cfg.cuda_graphs:
                _check_graphed(verifier)
        temperature = 0.0
        if getattr(options, "sampling", False):
            temperature = search.temperature if cfg.draft_temperature is None else cfg.draft_temperature
        drafter, size = _drafter(model, cfg, search, verifier, layers, temperature)
        if verifier is None:
            decode = generator.drafter_alone(drafter, model, search, size)
        else:
            keep_drafts = bool(getattr(options, "retain_iter_history", False))
            lookahead, sampling = str(cfg.lookahead), _sampling_settings(options)
            traced = cfg.trace_path is not None
            speculation = SpeculationSettings(
                size, cfg.beta, cfg.tau, keep_drafts, lookahead, cfg.confidence_threshold, sampling, traced
            )
            decode = generator.gad(drafter, verifier, search, speculation, layers)
    scoring = model if verifier is None else verifier
    reason = why_not_cached(scoring.decoder) if search.repetition_penalty > 1 else None
    if reason is not None:
        raise UserError(f"--repetition-penalty: this verifier gives no logits that could be changed ({reason})")
    if task.generates and cfg.strategy != "fairseq":
        _warm_up(decode, drafter, search, next(scoring.parameters()).device)
    return generator.Generator(decode, search.pad, search.eos)


def build_speculative_generator(task: Any, drafter: Any, verifier: Any) -> generator.Generator:
    """Draft and verify for ``--valid-AR-path``: beta 1, the whole draft verified, drafts as long as the task's options
    say, and fairseq's defaults otherwise. Both models are on their device and in their precision.
    """
    search = _search_settings(task.cfg, task.target_dictionary, argparse.Namespace())
    opened, size = _drafter(drafter, task.cfg, search, verifier, DecoderLayers, temperature=0.0)
    speculation = SpeculationSettings(size, lookahead="constant")
    return generator.Generator(generator.gad(opened, verifier, search, speculation), search.pad, search.eos)


@torch.no_grad()
def _warm_up(
    decode: generator.DecodeFunction, drafter: Drafter | None, search: SearchSettings, device: torch.device
) -> None:
    """Decodes nothing once, so that compiling the kernels is part of loading and not of the first sentence's time."""
    source, length = torch.tensor([[search.eos]], device=device), torch.tensor([1], device=device)
    decode(source, length, source, Statistics())  # EOS is forced at once
    if drafter is not None:
        drafter.start(source, length, 2).propose(np.array([[search.eos]]), np.array([1]), 1, 1)


def report_at_end(owner: generator.Generator, strategy: str, stats_path: str | None) -> None:
    """Logs the statistics, and writes them to ``stats_path``, as soon as ``owner`` is no longer needed.

    fairseq's tools don't tell a generator that they are done, but they let go of it; an interrupted run still reports.
    """
    weakref.finalize(owner, _report, owner.statistics, strategy, stats_path)


def _report(statistics: Statistics, strategy: str, stats_path: str | None) -> None:
    logger.info("%s: %s", strategy, statistics)
    if stats_path is None:
        return
    folder = Path(stats_path).absolute().parent
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".stats", delete=False, encoding="utf-8") as file:
        json.dump({"strategy": strategy, **statistics.as_dict()}, file, indent=2)
        file.write("\n")
    os.replace(file.name, stats_path)


class TraceFile:
    """The file of ``--trace-path``, whose lines ``decoding.trace`` describes.

    It gets a batch's lines as soon as the batch is decoded, all at once and under its own name: a run that is
    interrupted leaves what it has decoded, in whole lines.
    """

    def __init__(self, path: str, task: Any, statistics: Statistics) -> None:
        """Begins an empty file; ``statistics`` are those of the run."""
        self.path = Path(path)
        self.source, self.target = task.source_dictionary, task.target_dictionary
        self.languages = {"source_lang": task.cfg.source_lang, "target_lang": task.cfg.target_lang}
        self.statistics = statistics
        self.seconds = statistics.seconds
        self.batches = 0
        self._write("w", "")

    def add(self, numbers: list[int], src_tokens: torch.Tensor, hypotheses: generator.Decoded) -> None:
        """The batch that was decoded last: its sentences' numbers, sources ``[B, S]`` and hypotheses."""
        begin, self.seconds = self.seconds, self.statistics.seconds
        left_out = (self.source.pad(), self.source.eos())
        lines = []
        for number, row, of_row in zip(numbers, src_tokens.tolist(), hypotheses, strict=True):
            sentence = {
                "id": number,
                "source": " ".join(self.source.symbols[token] for token in row if token not in left_out),
                **self.languages,
                "batch": self.batches,
                "batch_size": len(numbers),
                "batch_seconds": round(self.seconds - begin, 6),
                "iterations": [iteration.as_dict(self.target.symbols) for iteration in of_row[0]["trace"]],
            }
            lines.append(json.dumps(sentence, ensure_ascii=False, allow_nan=False) + "\n")
        self.batches += 1
        self._write("a", "".join(lines))

    def _write(self, mode: str, text: str) -> None:
        try:
            with self.path.open(mode, encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise UserError(f"--trace-path: {self.path} can't be written ({error.strerror}); give another") from error


def _search_settings(cfg: Any, dictionary: Any, options: Any) -> SearchSettings:
    return SearchSettings(
        pad=dictionary.pad(),
        eos=dictionary.eos(),
        unk=dictionary.unk(),
        max_len_a=getattr(options, "max_len_a", 0),
        max_len_b=getattr(options, "max_len_b", 200),
        min_len=getattr(options, "min_len", 1),
        unk_penalty=getattr(options, "unkpen", 0),
        temperature=getattr(options, "temperature", 1.0),
        length_penalty=getattr(options, "lenpen", 1),
        normalize_scores=not getattr(options, "unnormalized", False),
        repetition_penalty=cfg.repetition_penalty,
        no_repeat_ngram=getattr(options, "no_repeat_ngram_size", 0),
    )


def _sampling_settings(options: Any) -> SamplingSettings | None:
    if not getattr(options, "sampling", False):
        return None
    return SamplingSettings(
        topk=max(0, getattr(options, "sampling_topk", -1)), topp=max(0.0, getattr(options, "sampling_topp", -1.0))
    )


def _beam_settings(cfg: Any, options: Any) -> BeamSettings:
    return BeamSettings(
        size=getattr(options, "beam", 5),
        nbest=getattr(options, "nbest", 1),
        start=cfg.beam_start,
        alpha=cfg.beam_alpha,
        shortest=cfg.beam_min,
        longest=cfg.beam_max,
    )


def _drafter(
    model: Any,
    cfg: Any,
    search: SearchSettings,
    verifier: torch.nn.Module | None,
    layers: type[DecoderLayers],
    temperature: float,
) -> tuple[Drafter, int]:
    """The drafter, which draws at ``temperature`` (0: takes the best), and how many tokens it drafts at most."""
    positions = model.decoder.max_positions()
    is_block = isinstance(model, BlockNATModel)
    if is_block and cfg.block_size > positions:
        raise UserError(f"--block-size {cfg.block_size} is beyond the drafter's {positions} positions: lower it")
    dtype = str(cfg.drafter_dtype)
    int8 = dtype == "int8"
    if int8 and next(model.parameters()).device.type != "cpu":
        raise UserError("--drafter-dtype int8 is for the CPU: give --cpu, or leave it out")
    if dtype in ("fp32", "bf16"):
        model.to(torch.float32 if dtype == "fp32" else torch.bfloat16)
    drafter = generator.open_drafter(model, search, verifier, int8, layers, temperature)
    return drafter, cfg.block_size if is_block else cfg.num_draft_tokens


def _check_graphed(model: Any) -> None:
    reason = why_not_cached(model.decoder)
    if reason is not None:
        raise UserError(f"--cuda-graphs: no graphs for this model ({reason}); leave the option out")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
