"""The loss of ``--arch dual_transformer``: two translation models that train each other and their drafters.

    loss = CE_fwd + CE_bwd + w_rec (rec_fwd + rec_bwd) + w_kd (KD_fwd + KD_bwd)

CE is the verifiers' label-smoothed cross entropy. For rec_fwd the forward verifier translates the sources, as it is and
without gradient, and the backward verifier learns to get the sources back from that (label-smoothed as well); rec_bwd
the other way round. KD is the drafter's divergence KL(verifier || drafter) at each target token behind the gold
prefix, with the distributions that the verifier has just had for CE, dropout included, as constants; both are softened
by a temperature T and the divergence is multiplied by T ** 2, which keeps the size of its gradient (Hinton et al.,
2015, section 2).

A block drafter sees the prefix up to a random cut and masks behind it (``block_mask``), and is compared with the
verifier's distribution at each masked position. The verifier knows the tokens between the cut and that position, the
drafter can't see them: its best answer is the mean, over these tokens, of what the verifier says, as it is the mean of
the tokens themselves with cross entropy. Glancing, which eases the choice between several hard targets, has no part in
it.

Until distillation comes in, and throughout where w_kd is 0, drafters learn from the references, by cross entropy as
well ("draft"); afterwards from KD alone. Verifiers get nothing from either (their embeddings, which drafters borrow,
neither). So these terms weigh nothing against anything for a single parameter, and Adam, whose steps don't depend on
the gradient's size, trains drafters at any w_kd above 0; but through ``--clip-norm`` the ratio of gradients counts.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from block_plugins import noise
from block_plugins.distributed import unwrapped
from block_plugins.divergence import check_temperature, divergence
from block_plugins.dual_batches import DirectedBatch, reconstruction
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel
from block_plugins.models.dual_transformer import DualTransformerModel, Passes
from block_plugins.smoothed_cross_entropy import smoothed_cross_entropy

WAYS = {"fwd": "forward", "bwd": "backward"}
TERMS = [f"{kind}_{way}" for kind in ("ce", "nll", "rec", "draft", "kd") for way in WAYS]
"""What is logged, each in bits per token of its own; "nll" is CE without label smoothing."""


@dataclass
class DualReconstructionLossConfig(FairseqDataclass):
    """Options of ``--criterion dual_reconstruction_loss``."""

    label_smoothing: float = field(default=0.1, metadata={"help": "weight of the uniform distribution, 0 for none"})
    kd_temperature: float = field(default=1.0, metadata={"help": "what KD divides the logits of both models by"})


@register_criterion("dual_reconstruction_loss", dataclass=DualReconstructionLossConfig)
class DualReconstructionLoss(FairseqCriterion):
    """Sums over tokens. The sample size is the mean of the two directions' target tokens, so that loss / sample size is
    the formula with an average in place of each term, and so that the gradient doesn't depend on how a batch is split
    among workers.
    """

    def __init__(self, task: Any, label_smoothing: float, kd_temperature: float) -> None:
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            raise UserError(f"--label-smoothing must be at least 0 and below 1, not {label_smoothing}")
        check_temperature(kd_temperature)
        if not hasattr(task, "directions"):
            raise UserError("--criterion dual_reconstruction_loss needs --task dual_translation")
        self.label_smoothing = label_smoothing
        self.temperature = kd_temperature

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, float, dict[str, Any]]:
        """The summed loss, the sample size and what is logged.

        ``sample`` is fairseq's batch with the weights ``rec_weight``, ``draft_weight`` and ``kd_weight``; a term
        without a weight isn't computed.
        """
        dual = unwrapped(model)
        if not isinstance(dual, DualTransformerModel):
            raise UserError("--criterion dual_reconstruction_loss trains --arch dual_transformer: give that")
        batches = dict(zip(WAYS, self.task.directions(sample), strict=True))
        weights = {"ce": 1.0, **{kind: sample.get(f"{kind}_weight", 0.0) for kind in ("rec", "draft", "kd")}}
        passes: Passes = {f"ce_{way}": (f"{WAYS[way]}_verifier", batch.inputs()) for way, batch in batches.items()}
        targets = {f"ce_{way}": batch.target for way, batch in batches.items()}
        if weights["rec"] > 0:
            for way, other in (("fwd", "bwd"), ("bwd", "fwd")):
                generator = getattr(dual, f"{WAYS[way]}_verifier")
                batch = reconstruction(generator, batches[way], batches[other], self.task.search)
                if batch is not None:
                    passes[f"rec_{way}"] = f"{WAYS[other]}_verifier", batch.inputs()
                    targets[f"rec_{way}"] = batch.target
        for kind, (way, batch) in itertools.product(("draft", "kd"), batches.items()):
            if weights[kind] > 0:
                inputs, targets[f"{kind}_{way}"] = self._drafting(getattr(dual, f"{WAYS[way]}_drafter"), batch)
                passes[f"{kind}_{way}"] = f"{WAYS[way]}_drafter", inputs

        logits = model(passes)
        sums: dict[str, Tensor] = {}
        for name in passes:
            kind, way = name.split("_")
            scored = targets[name].ne(self.padding_idx)
            if kind == "kd":
                teacher = _at(logits[f"ce_{way}"], scored)
                sums[name] = divergence(teacher, _at(logits[name], scored), self.temperature)
            else:
                predicted = _at(logits[name], scored)
                sums[name], nll = smoothed_cross_entropy(predicted, targets[name][scored], self.label_smoothing)
                if kind == "ce":
                    sums[f"nll_{way}"] = nll
        loss = torch.stack([weights[name.split("_")[0]] * sums[name] for name in passes]).sum()
        tokens = {name: int(target.ne(self.padding_idx).sum()) for name, target in targets.items()}
        sample_size = (tokens["ce_fwd"] + tokens["ce_bwd"]) / 2
        log: dict[str, Any] = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            "rec_weight": weights["rec"],
            "weighted": int("rec_weight" in sample),
        }
        for name in TERMS:
            # a tensor in any case: fairseq adds up tensors and numbers of several workers apart
            log[name] = sums[name].detach() if name in sums else loss.new_zeros(())
            log[f"{name}_tokens"] = tokens.get(name.replace("nll", "ce"), 0)
        return loss, sample_size, log

    def _drafting(self, drafter: Any, batch: DirectedBatch) -> tuple[dict[str, Tensor], Tensor]:
        """The arguments of the drafter's forward pass, and the tokens ``[B, T]`` it predicts with pad at all others."""
        if not isinstance(drafter, BlockNATModel):
            return batch.inputs(), batch.target
        corrupted = noise.block_mask(
            batch.target,
            self.task.cfg.block_size,
            pad=self.padding_idx,
            unk=self.task.target_dictionary.unk(),
            max_length=drafter.max_decoder_positions(),
        )
        inputs = {**batch.inputs(), "prev_output_tokens": corrupted.prev_output_tokens, "target": corrupted.target}
        return inputs, corrupted.target

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Logs the averages over all workers: the loss in bits per unit of sample size, each term per own token."""

        def total(key: str) -> float:
            return utils.item(sum(log.get(key, 0) for log in logging_outputs))

        def log_bits(name: str, amount: float, tokens: float) -> None:
            if tokens > 0:
                metrics.log_scalar(name, amount / tokens / math.log(2), tokens, round=3)

        log_bits("loss", total("loss"), total("sample_size"))
        for name in TERMS:
            log_bits(name, total(name), total(f"{name}_tokens"))
        if total("weighted") > 0:
            metrics.log_scalar("rec_weight", total("rec_weight") / total("weighted"), total("weighted"), round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every logged value is a sum, so fairseq may add them up across workers before :meth:`reduce_metrics`."""
        return True


def _at(logits: Tensor, scored: Tensor) -> Tensor:
    """The rows of ``logits [B, T, V]`` at the N positions that are ``scored [B, W]``; those of a block drafter,
    ``[N, V]``, are that already.
    """
    return logits[scored.nonzero(as_tuple=True)] if logits.dim() == 3 else logits
