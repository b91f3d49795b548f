"""Translation with a corrupted decoder input: trains block drafters and, with ``--noise no_noise``, ordinary verifiers.

The task also holds the options of speculative decoding, so that fairseq's own command line tools can be told about
them.
"""

import json
import logging
from argparse import Namespace
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import progress_bar
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf

from block_plugins import autocast, checkpoints, data_directory, dictionaries, drafting_worth, generation, noise
from block_plugins.criterions.fused_label_smoothing import LabelSmoothedCrossEntropyCriterion
from block_plugins.distributed import unwrapped
from block_plugins.drafting_worth import DraftingWorth
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel
from block_plugins.translation_task import PluginTask, check_more_is_better

logger = logging.getLogger(__name__)

MASKING_NOISES = ("block_mask", "full_mask", "random_mask")
VALIDATION_SEED = 1
"""Validation draws its noise from this seed plus the number of the batch's first sentence."""

NOISE_CHOICES = ChoiceEnum([*MASKING_NOISES, "random_delete", "no_noise"])
DRAFTER_DTYPE_CHOICES = ChoiceEnum(["same", "fp32", "bf16", "int8"])
LOOKAHEAD_CHOICES = ChoiceEnum(["constant", "heuristic", "confidence", "adaptive", "auto"])
STRATEGY_CHOICES = ChoiceEnum(["fairseq", "AR", "left2right", "gad", "drafter"])
AUTOCAST_CHOICES = ChoiceEnum(list(autocast.CHOICES))


@dataclass
class TranslationLevModifiedConfig(TranslationConfig):
    """fairseq's translation options, plus noise and curriculum for training and the options of speculative decoding."""

    noise: NOISE_CHOICES = field(  # type: ignore[valid-type]
        default="random_delete",
        metadata={
            "help": "how the decoder's input is corrupted: block_mask for a block drafter, no_noise for an "
            "autoregressive verifier (random_delete masks nothing, so a drafter only learns to copy)"
        },
    )
    start_p: float = field(
        default=0.5, metadata={"help": "share of the wrong predictions that glancing reveals, at the first update"}
    )
    minus_p: float = field(default=0.2, metadata={"help": "by how much that share falls over --total-up updates"})
    total_up: int = field(default=300000, metadata={"help": "updates over which the glancing share falls linearly"})
    block_size: int = field(default=25, metadata={"help": "target tokens that the drafter proposes at once"})
    num_draft_tokens: int = field(
        default=5, metadata={"help": "target tokens that an autoregressive drafter proposes, one after the other"}
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata={
            "help": "AR and gad: positive logits of tokens that are in the output already are divided by this, "
            "negative ones multiplied; 1 is off"
        },
    )
    draft_temperature: Optional[float] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "with --sampling, the temperature at which draft tokens are drawn (default: --temperature); 0 "
            "drafts the best tokens"
        },
    )
    blocks_per_sentence: int = field(
        default=1,
        metadata={
            "help": "with --noise block_mask, train on so many blocks of every sentence at once; the encoder, which "
            "runs once, is then a smaller part of the work"
        },
    )
    cpu_autocast: AUTOCAST_CHOICES = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "train and validate on the CPU with matrix products in this precision"}
    )
    valid_AR_path: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "checkpoint of a verifier: validation decodes with it and the drafter in training, and logs "
            "accepted (tokens per iteration) and alpha (share of draft tokens that were accepted)"
        },
    )
    valid_lines: int = field(
        default=200,
        metadata={"help": "with --valid-AR-path, decode so many sentences from the beginning of each validation set"},
    )
    strategy: STRATEGY_CHOICES = field(  # type: ignore[valid-type]
        default="fairseq",
        metadata={
            "help": "how to decode: fairseq's own search, AR (greedy, cached), left2right (beam search, cached), gad "
            "(draft and verify), drafter (the drafter's text unverified)"
        },
    )
    AR_path: Optional[str] = field(  # noqa: UP045 - fairseq doesn't read "str | None"
        default=None, metadata={"help": "checkpoint of the autoregressive verifier"}
    )
    beta: int = field(
        default=1, metadata={"help": "a draft token may be kept if it is among the verifier's BETA best; 1 is lossless"}
    )
    tau: float = field(
        default=0.0, metadata={"help": "a draft token may be kept if its score is within TAU of the verifier's best"}
    )
    lookahead: LOOKAHEAD_CHOICES = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "how much of a draft is verified: constant (all), heuristic (two more after a draft that was "
            "accepted whole, one less after others), confidence (see --confidence-threshold), adaptive (one more or "
            "less by the share of accepted tokens in a window of drafts), auto (as much as was measured to pay; no "
            "draft at all where none does); with --beta above 1, and for auto with --sampling too, always constant"
        },
    )
    confidence_threshold: float = field(
        default=0.4,
        metadata={"help": "--lookahead confidence ends a draft with its first token whose probability is below this"},
    )
    drafter_dtype: DRAFTER_DTYPE_CHOICES = field(  # type: ignore[valid-type]
        default="same",
        metadata={
            "help": "precision of the drafter, which only proposes: same as the verifier, fp32, bf16, or int8 for its "
            "decoder's weights (CPU)"
        },
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={"help": "launch the decoders' layers as CUDA graphs, recorded once for each shape (GPU)"},
    )
    beam_start: float = field(
        default=5.0, metadata={"help": "left2right: a score is divided by ((START + length) / (START + 1)) ^ ALPHA"}
    )
    beam_alpha: float = field(default=0.6, metadata={"help": "left2right: see --beam-start"})
    beam_min: int = field(
        default=0, metadata={"help": "left2right: shorter outputs (EOS counted) are all but ruled out"}
    )
    beam_max: int = field(
        default=-1, metadata={"help": "left2right: longer outputs (EOS counted) are all but ruled out; -1 for no bound"}
    )
    stats_path: Optional[str] = field(  # noqa: UP045
        default=None, metadata={"help": "write the statistics of decoding to this file as JSON"}
    )
    trace_path: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "gad: write every iteration of every sentence to this file (what was drafted, accepted and put in "
            "its place), a JSON object a line; scripts/show_trace.py shows it"
        },
    )


@register_task("translation_lev_modified", dataclass=TranslationLevModifiedConfig)
class TranslationLevModifiedTask(PluginTask):
    """Trains block drafters and verifiers, and decodes with one, the other or both."""

    cfg: TranslationLevModifiedConfig

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self.trains = False
        self.generates = False
        self.bf16 = False
        self.loading = "the model"  # option and file of the checkpoint that is loaded next, for messages
        self.verifier_positions = (float("inf"), float("inf"))
        self.lines_read = 0  # of all earlier buffers of fairseq-interactive
        self.first_line = 0
        self.trace: generation.TraceFile | None = None
        self.coming: deque[list[int]] = deque()  # line numbers of the batches that fairseq-interactive will decode
        self.worth: DraftingWorth | None = None  # of a drafter in training

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TranslationLevModifiedTask":
        """Loads the dictionaries; raises ``UserError`` for options and data directories that can't work."""
        if cfg.block_size < 1:
            raise UserError(f"--block-size must be at least 1, not {cfg.block_size}")
        if cfg.blocks_per_sentence < 1:
            raise UserError(f"--blocks-per-sentence must be at least 1, not {cfg.blocks_per_sentence}")
        if not 0.0 <= cfg.minus_p <= cfg.start_p <= 1.0:
            raise UserError(
                f"--start-p {cfg.start_p} --minus-p {cfg.minus_p}: the glancing share must stay between 0 and 1, "
                "so 0 <= minus-p <= start-p <= 1"
            )
        if cfg.total_up < 1:
            raise UserError(f"--total-up must be at least 1, not {cfg.total_up}")
        if cfg.valid_lines < 1:
            raise UserError(f"--valid-lines must be at least 1, not {cfg.valid_lines}")
        data_directory.check(cfg)
        generation.check_numbers(cfg)
        task: TranslationLevModifiedTask = super().setup_task(cfg)
        # The whole configuration, where a command line tool set the task up: what can't work is told before anything
        # is loaded.
        everything = cfg._get_parent() if OmegaConf.is_config(cfg) else None
        if everything is not None:
            task._check_everything(everything)
        return task

    def _check_everything(self, everything: Any) -> None:
        """Raises ``UserError`` for options and checkpoints that don't fit together, as far as the task can see them."""
        common = everything.get("common")
        if common is not None:
            self.seed = common.seed
        on_cpu = common is not None and (common.cpu or not torch.cuda.is_available())
        if on_cpu and common.fp16:
            raise UserError("--fp16 needs a GPU: leave it out on the CPU (to train faster there: --cpu-autocast bf16)")
        if on_cpu and self.cfg.cuda_graphs:
            raise UserError("--cuda-graphs needs a GPU: leave it out on the CPU")
        if common is not None and common.tensorboard_logdir and progress_bar.SummaryWriter is None:
            raise UserError(
                "--tensorboard-logdir needs the package tensorboardX: pip install tensorboardX, or leave the option out"
            )
        self._check_validation(everything)
        path = everything.common_eval.path if everything.get("common_eval") is not None else None
        if path is None:
            return
        self.generates = True
        self.bf16 = common is not None and bool(common.bf16)
        generation.check_shards(everything.dataset.num_shards, everything.dataset.shard_id)
        distributed, shards = everything.distributed_training, everything.dataset
        if distributed.distributed_init_method is None:
            # fairseq-generate takes its share of the data from these two, of which the first counts the GPUs unless
            # told otherwise, and has no eye for --num-shards and --shard-id
            distributed.distributed_world_size, distributed.distributed_rank = shards.num_shards, shards.shard_id
        generation.check_search(everything.generation)
        generation.refuse_what_is_not_honoured(everything.generation, self.cfg.strategy)
        generation.check_sampling(self.cfg, everything.generation)
        self.loading = f"--path: {path}"
        self.verifier_positions = generation.check_checkpoints(self.cfg, path, self.src_dict, self.tgt_dict)

    def _check_validation(self, everything: Any) -> None:
        """Raises ``UserError`` where the drafter's worth is asked for but can't be measured, or means the reverse."""
        checkpoint = everything.get("checkpoint")
        metric = None if checkpoint is None else checkpoint.best_checkpoint_metric
        if metric in drafting_worth.METRICS and not self.cfg.valid_AR_path:
            raise UserError(
                f"--best-checkpoint-metric {metric} is measured with a verifier: give its checkpoint with "
                f"{drafting_worth.OPTION}"
            )
        check_more_is_better(checkpoint, drafting_worth.METRICS)
        if self.cfg.valid_AR_path and everything.distributed_training.ddp_backend == "fully_sharded":
            raise UserError(
                f"{drafting_worth.OPTION}: with --ddp-backend fully_sharded no worker has the whole drafter to decode "
                "with; leave one of the two out"
            )

    def max_positions(self) -> tuple[float, float]:
        """Source and target tokens that the data may have: no more than the verifier of ``--AR-path`` can read."""
        source, target = super().max_positions()
        return min(source, self.verifier_positions[0]), min(target, self.verifier_positions[1])

    def build_dataset_for_inference(self, src_tokens: Any, src_lengths: Any, constraints: Any = None) -> Any:
        """The dataset of one buffer of input lines, whose number in the whole input is remembered for messages."""
        self.first_line = self.lines_read
        self.lines_read += len(src_tokens)
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, constraints=constraints)
        if self.trace is not None:
            self._note_numbers(dataset, self.first_line)
        return dataset

    def _note_numbers(self, dataset: Any, first_line: int) -> None:
        """Has ``dataset`` note the numbers of the lines in each batch that it makes: what fairseq-interactive hands on
        to be decoded is without them.
        """
        make = dataset.collater

        def collater(samples: Any) -> Any:
            batch = make(samples)
            self.coming.append([first_line + at for at in batch["id"].tolist()])
            return batch

        dataset.collater = collater

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], prefix_tokens: Any = None, constraints: Any = None
    ) -> Any:
        """fairseq's step; what happened in it goes to the file of ``--trace-path``."""
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        if self.trace is not None:
            numbers = sample["id"].tolist() if "id" in sample else self.coming.popleft()
            self.trace.add(numbers, sample["net_input"]["src_tokens"], hypotheses)
        return hypotheses

    def filter_indices_by_size(
        self, indices: Any, dataset: Any, max_positions: Any = None, ignore_invalid_inputs: bool = False
    ) -> Any:
        """fairseq's filter; raises ``UserError`` naming the first line that is too long, unless such are to be
        skipped.
        """
        if not ignore_invalid_inputs:
            _, ignored = dataset.filter_indices_by_size(indices, max_positions)
            if len(ignored) > 0:
                first = int(min(ignored))
                source, target = (int(length) for length in dataset.size(first))
                lengths = f"{source} tokens" if target == 0 else f"{source} source and {target} target tokens"
                raise UserError(
                    f"line {self.first_line + first + 1} is too long: {lengths} (at most {max_positions[0]} and "
                    f"{max_positions[1]} fit); shorten it, or give --skip-invalid-size-inputs-valid-test"
                )
        return super().filter_indices_by_size(indices, dataset, max_positions, ignore_invalid_inputs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's model; with ``--valid-AR-path``, where that one is to be trained, the verifier is loaded first."""
        if self.cfg.valid_AR_path and not from_checkpoint:
            self.worth = DraftingWorth(self, self.cfg.valid_AR_path, self.cfg.valid_lines)
        model = super().build_model(cfg, from_checkpoint)
        if from_checkpoint:
            checkpoints.judge_weights(model, self.loading)
        if self.cfg.cpu_autocast != "none":
            autocast.make_dropout_frugal(model)
        if isinstance(model, BlockNATModel) and not from_checkpoint:
            if self.cfg.block_size > model.decoder.max_positions():
                raise UserError(
                    f"--block-size {self.cfg.block_size} is beyond the drafter's {model.decoder.max_positions()} "
                    "positions (--max-target-positions)"
                )
            if self.cfg.noise not in MASKING_NOISES:
                logger.warning(
                    f"--noise {self.cfg.noise} masks nothing, so the drafter only learns to copy its input; "
                    "use --noise block_mask"
                )
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        self.trains = True  # decoding has no criterion
        if self.cfg.noise != "no_noise" and self.cfg.left_pad_target:
            raise UserError("--left-pad-target: noise is put on targets that are padded on the right; leave it out")
        if cfg._name == "label_smoothed_cross_entropy":
            return LabelSmoothedCrossEntropyCriterion.build_criterion(cfg, self)
        return super().build_criterion(cfg, from_checkpoint)

    def build_generator(
        self,
        models: list[Any],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """fairseq's generator for ``--strategy fairseq``, otherwise this plugin's."""
        if self.cfg.eval_bleu and isinstance(models[0], BlockNATModel):
            self.cfg.strategy = "drafter"  # a drafter in training is validated by its own text: there is no verifier
        if self.bf16:  # fairseq's tools for decoding know --fp16 only
            for model in models:
                model.to(torch.bfloat16)
        fairseq_generator = None
        if self.cfg.strategy == "fairseq":
            fairseq_generator = super().build_generator(
                models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
            )
            if not isinstance(fairseq_generator, SequenceGenerator) or not self.generates:
                return fairseq_generator
        result = generation.build_generator(self, models, args, fairseq_generator)
        if self.generates:
            generation.report_at_end(result, str(self.cfg.strategy), self.cfg.stats_path)
            if self.cfg.trace_path is not None:
                self.trace = generation.TraceFile(self.cfg.trace_path, self, result.statistics)
        return result

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Loads a split; raises ``UserError`` if it isn't there, or has no target side to train on."""

        def load() -> None:
            super(TranslationLevModifiedTask, self).load_dataset(split, epoch=epoch, combine=combine, **kwargs)

        data_directory.load_split(self, split, load, with_target=self.trains)

    def context_p(self, update_num: int) -> float:
        """The glancing share at an update: falls linearly from start_p by minus_p over total_up updates."""
        return self.cfg.start_p - self.cfg.minus_p * min(1.0, update_num / self.cfg.total_up)

    def corrupted(self, sample: dict[str, Any], max_length: int, generator: torch.Generator | None) -> dict[str, Any]:
        """A copy of fairseq's batch with the task's noise on its decoder input, and the target aligned with it.

        Args:
            sample: left as it is.
            max_length: positions of the decoder.
            generator: source of random numbers; None for torch's global one.
        """
        target, pad, unk = sample["target"], self.tgt_dict.pad(), self.tgt_dict.unk()
        if self.cfg.noise == "no_noise":
            return sample
        if self.cfg.noise == "block_mask":
            if generator is None:  # validation, whose noise is drawn from a generator, takes one block
                target = target.repeat_interleave(self.cfg.blocks_per_sentence, dim=0)
            result = noise.block_mask(
                target, self.cfg.block_size, pad=pad, unk=unk, max_length=max_length, generator=generator
            )
        elif self.cfg.noise == "full_mask":
            result = noise.full_mask(target, pad=pad, unk=unk)
        elif self.cfg.noise == "random_mask":
            result = noise.random_mask(target, pad=pad, unk=unk, generator=generator)
        else:
            result = noise.random_delete(target, pad=pad, eos=self.tgt_dict.eos(), generator=generator)
        net_input = {**sample["net_input"], "prev_output_tokens": result.prev_output_tokens}
        if result.prefix_length is not None:
            net_input["prefix_length"] = result.prefix_length
        return {**sample, "net_input": net_input, "target": result.target}

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        """The training step on a corrupted batch, under CPU autocast if asked for."""
        scored = self._on_corrupted_batches(criterion, None, self.context_p(update_num))
        return super().train_step(sample, model, scored, optimizer, update_num, ignore_grad)

    @torch.no_grad()
    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Opens ``model`` for what validation decodes: that reads the weights once, and they have changed."""
        super().begin_valid_epoch(epoch, model)
        if self.cfg.eval_bleu:
            options = Namespace(**json.loads(self.cfg.eval_bleu_args))
            self.sequence_generator = self.build_generator([model], options)
        if self.worth is not None:
            self.worth.open(model)

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any
    ) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        """fairseq's validation step (with BLEU under ``--eval-bleu``), with the same noise in every validation, and
        under ``--valid-AR-path`` what the drafter's drafts are worth.
        """
        target = sample["target"]
        generator = torch.Generator(device=target.device)
        generator.manual_seed(VALIDATION_SEED + int(sample["id"][0]))
        scored = self._on_corrupted_batches(criterion, generator, None)
        loss, sample_size, log = super().valid_step(sample, model, scored)
        if self.worth is not None:
            log.update(self.worth.measure(unwrapped(model), sample))
        return loss, sample_size, log

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """fairseq's metrics and the criterion's, and ``accepted`` and ``alpha`` where they were measured."""
        super().reduce_metrics(logging_outputs, criterion)
        drafting_worth.log_metrics(logging_outputs)

    def _on_corrupted_batches(
        self, criterion: Any, generator: torch.Generator | None, context_p: float | None
    ) -> Callable[[Any, dict[str, Any]], Any]:
        """`criterion` as a function of model and clean batch; the backward pass is outside of it, without autocast."""

        def scored(model: Any, sample: dict[str, Any]) -> Any:
            network = unwrapped(model)
            is_drafter = isinstance(network, BlockNATModel)
            if self.cfg.noise != "no_noise" and not is_drafter:
                raise UserError(
                    f"--noise {self.cfg.noise} is for block drafters; train a verifier with --noise no_noise"
                )
            noisy = self.corrupted(sample, network.max_decoder_positions(), generator)
            if self.cfg.noise in MASKING_NOISES:
                noisy = {**noisy, "context_p": context_p}
            with autocast.cpu_autocast(self.cfg.cpu_autocast, noisy["target"].device):
                return criterion(model, noisy)

        return scored

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ``UserError`` naming the first symbol in which a checkpoint's dictionaries differ from the task's."""
        rest = dict(state_dict)
        differs = dictionaries.first_differing_side(rest.pop("dictionaries", {}), self.src_dict, self.tgt_dict)
        if differs is not None:
            side, difference = differs
            raise UserError(
                f"the {side} dictionary in {self.cfg.data} isn't the one the checkpoint was trained with: "
                f"{difference} (first: checkpoint, second: data); use the data directory of that model"
            )
        super().load_state_dict(rest)
