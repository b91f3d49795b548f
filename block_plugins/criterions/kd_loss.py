"""Word-level knowledge distillation (Kim and Rush, 2016, section 3.1): a drafter learns its verifier's distributions.

    loss = KL(verifier || drafter), at each target token behind the tokens before it

Where the targets are the verifier's own translations, these are the distributions that decoding compares: what a draft
is worth depends on nothing else (DistillSpec, Zhou et al., 2024). A token that was the verifier's choice by a hair, and
one that it was sure of, are the same example to cross entropy, but not to this loss.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from block_plugins import generation
from block_plugins.distributed import unwrapped
from block_plugins.divergence import check_temperature, divergence
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel

OPTION = "--kd-AR-path"


@dataclass
class KDLossConfig(FairseqDataclass):
    """Options of ``--criterion kd_loss``."""

    kd_AR_path: Optional[str] = field(  # noqa: UP045 - fairseq doesn't read "str | None"
        default=None, metadata={"help": "checkpoint of the verifier whose distributions the drafter learns"}
    )
    kd_temperature: float = field(default=1.0, metadata={"help": "what KD divides the logits of both models by"})


@register_criterion("kd_loss", dataclass=KDLossConfig)
class KDLoss(FairseqCriterion):
    """Sums over target tokens; their number is the sample size."""

    def __init__(self, task: Any, kd_AR_path: str | None, kd_temperature: float) -> None:
        super().__init__(task)
        check_temperature(kd_temperature)
        if not kd_AR_path:
            raise UserError(f"--criterion kd_loss learns from a verifier: give its checkpoint with {OPTION}")
        self.temperature = kd_temperature
        # in a list, so that it isn't a part of the criterion, whose weights fairseq would train and save
        self.verifier = [generation.load_verifier(kd_AR_path, OPTION, task)]

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss, the number of target tokens and what is logged.

        Args:
            model: an autoregressive drafter, possibly inside a wrapper for distributed training.
            sample: fairseq's batch, with ``target [B, T]``.
        """
        (verifier,) = self.verifier
        drafter = unwrapped(model)
        if isinstance(drafter, BlockNATModel):
            raise UserError(
                "--criterion kd_loss trains autoregressive drafters: give --criterion glat_loss for a block"
            )
        for side, has, needs in zip(
            ("source", "target"), verifier.max_positions(), drafter.max_positions(), strict=True
        ):
            if has < needs:
                raise UserError(
                    f"{OPTION}: the verifier has {has} {side} positions, but the drafter {needs}: give "
                    f"--max-{side}-positions {has}"
                )
        weight = next(drafter.parameters())
        verifier.to(device=weight.device, dtype=weight.dtype)
        scored = sample["target"].ne(self.padding_idx)
        student = model(**sample["net_input"])[0][scored]
        with torch.no_grad():
            teacher = verifier(**sample["net_input"])[0][scored]
        loss = divergence(teacher, student, self.temperature)
        sample_size = len(student)
        return (
            loss,
            sample_size,
            {
                "loss": loss.detach(),
                "agreeing": teacher.argmax(-1).eq(student.detach().argmax(-1)).sum(),
                "ntokens": sample["ntokens"],
                "nsentences": sample["target"].size(0),
                "sample_size": sample_size,
            },
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Logs the averages over all workers: the loss in bits per token, and the share of tokens at which drafter and
        verifier like the same token best.
        """
        loss, agreeing, tokens = (
            utils.item(sum(log.get(key, 0) for log in logging_outputs)) for key in ("loss", "agreeing", "sample_size")
        )
        if tokens > 0:
            metrics.log_scalar("loss", loss / tokens / math.log(2), tokens, round=3)
            metrics.log_scalar("agreement", agreeing / tokens, tokens, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every logged value is a sum, so fairseq may add them up across workers before :meth:`reduce_metrics`."""
        return True
