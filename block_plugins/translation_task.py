"""What the tasks of this plugin have in common, on top of fairseq's translation."""

from collections.abc import Collection
from typing import Any

import torch
from fairseq import utils
from fairseq.tasks.translation import TranslationTask

from block_plugins import dictionaries
from block_plugins.distributed import batch_seed
from block_plugins.errors import UserError


class PluginTask(TranslationTask):
    """Draws what is random in training from each batch's own seed, leaves no batch out, and records its dictionaries in
    checkpoints.
    """

    seed = 1
    """``--seed``, where a command line tool set the task up."""

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        """fairseq's training step; noise, masks and dropout are drawn from the batch's own seed."""
        utils.set_torch_seed(batch_seed(self.seed, update_num, int(sample["id"][0])))
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's, but it leaves no batch out for its size, as fairseq does with a last one whose number of sentences
        is no multiple of --required-batch-size-multiple: lines of output would be missing.
        """
        return super().get_batch_iterator(*args, **{**kwargs, "required_batch_size_multiple": 1})

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep of the task: the dictionaries' symbols, so that a mix-up is noticed on loading."""
        source = dictionaries.symbols(self.src_dict)
        target = dictionaries.symbols(self.tgt_dict)
        shared = source if source == target else target  # pickled once
        return {**super().state_dict(), "dictionaries": {"source": source, "target": shared}}


def check_more_is_better(checkpoint: Any, metrics: Collection[str]) -> None:
    """Raises ``UserError`` where the best checkpoint would be the one with the least of one of ``metrics``.

    ``checkpoint`` is fairseq's configuration of checkpoints, or None.
    """
    metric = None if checkpoint is None else checkpoint.best_checkpoint_metric
    if metric in metrics and not checkpoint.maximize_best_checkpoint_metric:
        raise UserError(
            f"--best-checkpoint-metric {metric}: more is better; give --maximize-best-checkpoint-metric as well"
        )
