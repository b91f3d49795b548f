"""The drafter's training loss: label-smoothed cross entropy on the masked positions, after glancing."""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from block_plugins.distributed import unwrapped
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel
from block_plugins.smoothed_cross_entropy import smoothed_cross_entropy


@dataclass
class GlatLossConfig(FairseqDataclass):
    """Options of ``--criterion glat_loss``."""

    label_smoothing: float = field(default=0.0, metadata={"help": "weight of the uniform distribution, 0 for none"})


@register_criterion("glat_loss", dataclass=GlatLossConfig)
class GlatLoss(FairseqCriterion):
    """Sums over the scored target tokens; their number is the sample size.

    Dividing the summed gradient by the summed sample size, as fairseq does, gives the gradient of one big batch,
    however it was split among workers and update steps.
    """

    def __init__(self, task: Any, label_smoothing: float) -> None:
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            raise UserError(f"--label-smoothing must be at least 0 and below 1, not {label_smoothing}")
        self.label_smoothing = label_smoothing

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss, the number of scored tokens and what is logged.

        Args:
            model: a ``BlockNATModel``, possibly inside a wrapper for distributed training.
            sample: fairseq's batch with a corrupted ``prev_output_tokens [B, T]``, the aligned ``target [B, T]`` (pad
                where nothing is predicted) and in ``context_p`` the strength of glancing; without ``context_p`` there
                is none.
        """
        if not isinstance(unwrapped(model), BlockNATModel):
            raise UserError("--criterion glat_loss trains a block drafter: give --arch block (or block_6e6d512)")
        context_p = sample.get("context_p")
        output = model(**sample["net_input"], target=sample["target"], context_p=context_p)
        loss, nll_loss = smoothed_cross_entropy(output.logits, output.target, self.label_smoothing)
        sample_size = output.target.numel()
        return (
            loss,
            sample_size,
            {
                "loss": loss.detach(),
                "nll_loss": nll_loss,
                "ntokens": sample["ntokens"],
                "nsentences": sample["target"].size(0),
                "sample_size": sample_size,
                "glat_correct": output.correct,
                "glat_masked": output.glanced,
                "glat_context_p": context_p or 0.0,
                "glat_passes": int(context_p is not None),
            },
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Logs the averages over all workers: losses in bits per scored token."""

        def total(key: str) -> float:
            return utils.item(sum(log.get(key, 0) for log in logging_outputs))

        tokens, masked, passes = total("sample_size"), total("glat_masked"), total("glat_passes")
        if tokens > 0:
            in_bits = 1.0 / (tokens * math.log(2))
            metrics.log_scalar("loss", total("loss") * in_bits, tokens, round=3)
            metrics.log_scalar("word_ins", total("loss") * in_bits, tokens, round=3)
            metrics.log_scalar("nll_loss", total("nll_loss") * in_bits, tokens, round=3)
            metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        if masked > 0:
            metrics.log_scalar("glat_accu", total("glat_correct") / masked, masked, round=3)
        if passes > 0:
            metrics.log_scalar("glat_context_p", total("glat_context_p") / passes, passes, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every logged value is a sum, so fairseq may add them up across workers before :meth:`reduce_metrics`."""
        return True
