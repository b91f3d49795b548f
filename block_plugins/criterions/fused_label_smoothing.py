"""fairseq's label-smoothed cross entropy in one pass over the logits."""

from typing import Any

from fairseq.criterions import label_smoothed_cross_entropy as original
from torch import Tensor

from block_plugins.smoothed_cross_entropy import smoothed_cross_entropy


class LabelSmoothedCrossEntropyCriterion(original.LabelSmoothedCrossEntropyCriterion):
    """The criterion of that name, without log-probabilities of the whole batch and of padding.

    It bears the name of the original, because fairseq continues a training only under the same name.
    """

    def compute_loss(self, model: Any, net_output: Any, sample: Any, reduce: bool = True) -> tuple[Tensor, Tensor]:
        """The summed smoothed loss and negative log-likelihood of ``target [B, T]`` under the logits ``[B, T, V]``."""
        if not reduce or self.ignore_prefix_size > 0:
            return super().compute_loss(model, net_output, sample, reduce)
        logits, target = net_output[0], model.get_targets(sample, net_output)
        scored = target.ne(self.padding_idx)
        # fairseq gives eps / (V - 1) to every wrong token; spread over all V tokens that is a little more than eps.
        size = logits.size(-1)
        return smoothed_cross_entropy(logits[scored], target[scored], self.eps * size / (size - 1))
