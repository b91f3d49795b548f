"""Translation in both directions at once: two verifiers that train each other, and drafters distilled from them.

Goes with ``--arch dual_transformer`` and ``--criterion dual_reconstruction_loss``, which says what the loss is. The
first ``--dual-warmup-updates`` train with cross entropy alone: before the verifiers can translate, reconstruction is
noise, and their distributions are no better examples for drafters than the references.
"""

import json
import logging
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import utils
from fairseq.data import encoders
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf

from block_plugins import data_directory, dictionaries, translation_scores
from block_plugins.criterions.dual_reconstruction_loss import WAYS
from block_plugins.decoding import generator
from block_plugins.decoding.settings import SearchSettings, SpeculationSettings
from block_plugins.distributed import unwrapped
from block_plugins.dual_batches import DirectedBatch, both_directions
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel
from block_plugins.models.dual_transformer import DualTransformerModel
from block_plugins.translation_task import PluginTask, check_more_is_better

logger = logging.getLogger(__name__)

MORE_IS_BETTER = {
    f"{name}{way}" for name in (*translation_scores.METRICS, "alpha") for way in ("", *(f"_{way}" for way in WAYS))
}
"""What validation logs besides losses."""

PSEUDO_TAG = "<BT>"
DRAFT_WEIGHT = 0.1
"""Of the drafters' cross entropy: the default of --kd-weight, so that Adam's averages still fit when KD takes over."""


@dataclass
class DualTranslationConfig(TranslationConfig):
    """fairseq's translation options, plus stages and weights of the loss, and how validation decodes."""

    dual_warmup_updates: int = field(default=4000, metadata={"help": "first updates, with cross entropy alone"})
    rec_weight: float = field(default=0.2, metadata={"help": "weight of the reconstruction terms"})
    rec_weight_min: float = field(default=0.05, metadata={"help": "where halving the weight ends"})
    rec_patience: int = field(
        default=5, metadata={"help": "validations without better BLEU after which the weight is halved"}
    )
    rec_max_len_a: float = field(
        default=1.5,
        metadata={"help": "translations in training and validation have at most A * source length + B tokens"},
    )
    rec_max_len_b: int = field(default=10, metadata={"help": "see --rec-max-len-a"})
    kd_weight: float = field(default=DRAFT_WEIGHT, metadata={"help": "weight of the distillation terms"})
    pseudo_tag: str = field(
        default=PSEUDO_TAG,
        metadata={"help": "symbol at the beginning of a sentence that a machine wrote, as in back-translated pairs"},
    )
    block_size: int = field(default=25, metadata={"help": "target tokens that a block drafter proposes at once"})
    num_draft_tokens: int = field(
        default=5, metadata={"help": "target tokens that an autoregressive drafter proposes, one after the other"}
    )


def _check_numbers(cfg: Any) -> None:
    """Raises ``UserError`` for values that mean nothing."""
    for name in ("rec_weight", "rec_weight_min", "kd_weight", "dual_warmup_updates", "rec_max_len_a", "rec_max_len_b"):
        if not getattr(cfg, name) >= 0:
            raise UserError(f"--{name.replace('_', '-')} must not be negative, but is {getattr(cfg, name)}")
    for name in ("rec_patience", "block_size", "num_draft_tokens"):
        if getattr(cfg, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(cfg, name)}")
    if cfg.rec_max_len_a + cfg.rec_max_len_b < 1:
        raise UserError("--rec-max-len-a and --rec-max-len-b allow no token: raise one of them")
    if cfg.rec_weight_min > cfg.rec_weight:
        raise UserError(f"--rec-weight-min {cfg.rec_weight_min} is more than --rec-weight {cfg.rec_weight}: lower it")
    if cfg.left_pad_target:
        raise UserError("--left-pad-target: targets have to be padded on the right; leave it out")
    if cfg.eval_bleu:
        raise UserError("--eval-bleu: validation always reports BLEU here; leave it out")


@register_task("dual_translation", dataclass=DualTranslationConfig)
class DualTranslationTask(PluginTask):
    """Trains and validates a ``DualTransformerModel``; decoding is for what ``scripts/export_dual.py`` makes of it."""

    cfg: DualTranslationConfig

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.updates = 0
        self.validated = False  # the first subset, whose BLEU counts
        self.generators: dict[str, generator.Generator] = {}
        tag = src_dict.index(cfg.pseudo_tag)
        self.tag: int | None = None if tag == src_dict.unk() else tag
        self.search = SearchSettings(
            pad=src_dict.pad(),
            eos=src_dict.eos(),
            unk=src_dict.unk(),
            max_len_a=cfg.rec_max_len_a,
            max_len_b=cfg.rec_max_len_b,
        )

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "DualTranslationTask":
        """Loads the dictionaries; raises ``UserError`` for options and data directories that can't work."""
        _check_numbers(cfg)
        data_directory.check(cfg)
        task: DualTranslationTask = super().setup_task(cfg)
        difference = dictionaries.first_difference(
            dictionaries.symbols(task.src_dict), dictionaries.symbols(task.tgt_dict)
        )
        if difference is not None:
            raise UserError(
                f"{cfg.data} has separate dictionaries: {difference} (first: {cfg.source_lang}, second: "
                f"{cfg.target_lang}); run fairseq-preprocess with --joined-dictionary"
            )
        if task.tag is None and cfg.pseudo_tag != PSEUDO_TAG:
            raise UserError(f"--pseudo-tag {cfg.pseudo_tag}: the dictionaries in {cfg.data} have no such symbol")
        # The whole configuration, where a command line tool set the task up.
        everything = cfg._get_parent() if OmegaConf.is_config(cfg) else None
        if everything is not None:
            task._check_everything(everything)
        return task

    def _check_everything(self, everything: Any) -> None:
        """Raises ``UserError`` for options of training that don't go with this task."""
        common, checkpoint, ema = (everything.get(name) for name in ("common", "checkpoint", "ema"))
        if common is not None:
            self.seed = common.seed
            if common.fp16 and (common.cpu or not torch.cuda.is_available()):
                raise UserError("--fp16 needs a GPU: leave it out on the CPU")
        check_more_is_better(checkpoint, MORE_IS_BETTER)
        if ema is not None and ema.store_ema:
            raise UserError("--store-ema averages floating-point numbers only, and this model counts: leave it out")
        if everything.get("task") is not None:  # what was found out belongs into the checkpoints
            everything.task.source_lang, everything.task.target_lang = self.cfg.source_lang, self.cfg.target_lang

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Loads a split; raises ``UserError`` if one of its sides is missing."""

        def load() -> None:
            super(DualTranslationTask, self).load_dataset(split, epoch=epoch, combine=combine, **kwargs)

        data_directory.load_split(self, split, load, with_target=True)

    def directions(self, sample: dict[str, Any]) -> tuple[DirectedBatch, DirectedBatch]:
        """A batch from source to target, and from target to source."""
        return both_directions(sample, self.search.pad, self.search.eos, self.tag)

    def rec_weight(self, model: DualTransformerModel) -> float:
        """What annealing has left of ``--rec-weight``."""
        return model.annealing.weight(self.cfg.rec_weight, self.cfg.rec_weight_min)

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        """The training step with the weights of this stage."""
        self.updates = update_num
        self.generators = {}  # of weights that change now
        warm = update_num >= self.cfg.dual_warmup_updates
        kd_weight = self.cfg.kd_weight if warm else 0.0
        weights = {
            "rec_weight": self.rec_weight(unwrapped(model)) if warm else 0.0,
            "kd_weight": kd_weight,
            "draft_weight": DRAFT_WEIGHT if kd_weight == 0.0 else 0.0,
        }
        return super().train_step({**sample, **weights}, model, criterion, optimizer, update_num, ignore_grad)

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """From here on the first subset is the one whose BLEU counts."""
        self.validated = False

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any
    ) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        """The loss without reconstruction and distillation, so that it means the same in every validation, and what
        BLEU, chrF and alpha are computed from.
        """
        loss, sample_size, log = super().valid_step(sample, model, criterion)
        network = unwrapped(model)
        for way, batch in zip(WAYS, self.directions(sample), strict=True):
            log.update({f"_{way}_{name}": count for name, count in self._measured(way, batch, network).items()})
        return loss, sample_size, log

    def _measured(self, way: str, batch: DirectedBatch, model: DualTransformerModel) -> dict[str, float]:
        """Counts of one batch: the verifier's greedy translation, decoded with drafts, against the reference."""
        if way not in self.generators:
            self.generators[way] = self._speculating(way, model)
        decoder = self.generators[way]
        before = decoder.statistics.drafted, decoder.statistics.accepted
        output = decoder.generate([], {"net_input": batch.inputs()})
        counts: dict[str, float] = {
            "drafted": decoder.statistics.drafted - before[0],
            "accepted": decoder.statistics.accepted - before[1],
        }
        hypotheses = [self._text(way, row[0]["tokens"], "UNKNOWNTOKENINHYP") for row in output]
        references = [self._text(way, row, "UNKNOWNTOKENINREF") for row in batch.target]
        for name in translation_scores.METRICS:
            statistics = translation_scores.statistics(name, hypotheses, references)
            counts.update({f"{name}_{number}": count for number, count in enumerate(statistics)})
        return counts

    def _speculating(self, way: str, model: DualTransformerModel) -> generator.Generator:
        """Lossless decoding with the whole drafts of this direction's drafter, as it would be exported."""
        verifier, network = getattr(model, f"{WAYS[way]}_verifier"), model.ordinary(f"{WAYS[way]}_drafter")
        size = self.cfg.num_draft_tokens
        if isinstance(network, BlockNATModel):
            size = min(self.cfg.block_size, network.max_decoder_positions())
        drafter = generator.open_drafter(network, self.search, verifier)
        decode = generator.gad(drafter, verifier, self.search, SpeculationSettings(size))
        return generator.Generator(decode, self.search.pad, self.search.eos)

    def _text(self, way: str, tokens: torch.Tensor, unknown: str) -> str:
        """Plain text of a row of tokens, by fairseq's options for that."""
        words = self.tgt_dict.string(
            tokens[tokens.ne(self.search.pad)], self.cfg.eval_bleu_remove_bpe, unk_string=unknown
        )
        language = self.cfg.target_lang if way == "fwd" else self.cfg.source_lang
        options = {"target_lang": language, **json.loads(self.cfg.eval_bleu_detok_args or "{}")}
        detokeniser = encoders.build_tokenizer(Namespace(tokenizer=self.cfg.eval_bleu_detok, **options))
        text: str = words if detokeniser is None else detokeniser.decode(words)
        return text

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """The criterion's metrics; in validation ``bleu_fwd``, ``chrf_fwd``, ``alpha_fwd``, the same for the way back,
        and ``bleu``, the mean of both.
        """
        super().reduce_metrics(logging_outputs, criterion)
        keys = sorted({key for log in logging_outputs for key in log if key.startswith("_")})
        for key in keys:
            metrics.log_scalar_sum(key, utils.item(sum(log.get(key, 0) for log in logging_outputs)))
        if not keys:
            return
        for way in WAYS:
            for name in translation_scores.METRICS:
                metrics.log_derived(f"{name}_{way}", lambda meters, name=name, way=way: _score(meters, name, way))
            metrics.log_derived(f"alpha_{way}", lambda meters, way=way: _alpha(meters, way))
        metrics.log_derived(
            "bleu", lambda meters: round(sum(_score(meters, "bleu", way) for way in WAYS) / len(WAYS), 2)
        )

    def post_validate(self, model: Any, stats: dict[str, Any], agg: Any) -> None:
        """Takes note of the first validation subset's BLEU."""
        if self.validated:
            return
        self.validated = True
        signatures = [translation_scores.signature(name) for name in translation_scores.METRICS]
        logger.info("signatures: %s", ", ".join(signatures))
        dual, patience = unwrapped(model), self.cfg.rec_patience
        if self.updates >= self.cfg.dual_warmup_updates and dual.annealing.observe(stats["bleu"], patience):
            logger.info(
                "BLEU has not risen for %d validations: the reconstruction terms weigh %g from now on",
                patience,
                self.rec_weight(dual),
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ``UserError`` naming the first symbol in which a checkpoint's dictionary differs from the task's."""
        rest = dict(state_dict)
        differs = dictionaries.first_differing_side(rest.pop("dictionaries", {}), self.src_dict, self.tgt_dict)
        if differs is not None:
            raise UserError(
                f"the dictionary in {self.cfg.data} isn't the one the checkpoint was trained with: {differs[1]} "
                "(first: checkpoint, second: data); use the data directory of that model"
            )
        super().load_state_dict(rest)


def _score(meters: Any, name: str, way: str) -> float:
    """A metric of the counts logged so far."""
    prefix = f"_{way}_{name}_"
    size = sum(key.startswith(prefix) for key in meters)
    return round(translation_scores.score(name, [meters[f"{prefix}{number}"].sum for number in range(size)]), 2)


def _alpha(meters: Any, way: str) -> float:
    """Accepted draft tokens / draft tokens sent to verification."""
    return round(meters[f"_{way}_accepted"].sum / max(1, meters[f"_{way}_drafted"].sum), 3)
