"""What a drafter in training is worth: the tokens that its drafts save the verifier, measured by decoding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics

from block_plugins import generation
from block_plugins.decoding.generator import Generator
from block_plugins.decoding.statistics import Statistics

OPTION = "--valid-AR-path"
METRICS = ("accepted", "alpha")
"""What validation logs: accepted tokens per iteration, and accepted draft tokens / drafted tokens. More is better."""

_COUNTS = ("tokens", "iterations", "drafted", "accepted")


class DraftingWorth:
    """Decodes the first sentences of a validation set with the drafter in training and a verifier that stays as it is,
    with beta 1 and the whole draft verified, and counts.
    """

    def __init__(self, task: Any, path: str, lines: int) -> None:
        """Loads the verifier, with no effect on random numbers; raises ``UserError`` where it doesn't fit ``task``.

        Args:
            task: knows the dictionaries, and how many tokens a draft has.
            path: the verifier's checkpoint.
            lines: so many sentences from the beginning of each validation set are decoded.
        """
        self.task = task
        self.lines = lines
        self.verifier = generation.load_verifier(path, OPTION, task)

    @torch.no_grad()
    def open(self, drafter: Any) -> None:
        """To be called when a validation begins: decoding arranges the weights of ``drafter`` as they are now."""
        weight = next(drafter.parameters())
        self.verifier.to(device=weight.device, dtype=weight.dtype)
        with _evaluating(drafter):
            self.generator: Generator = generation.build_speculative_generator(self.task, drafter, self.verifier)

    def measure(self, drafter: Any, sample: dict[str, Any]) -> dict[str, int]:
        """The counts of one batch of that validation, by the names under which they are logged; zeros where none of its
        sentences is to be decoded. Sentences longer than the verifier's positions are left out.
        """
        source, length = sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"]
        # by their number in the set, so that the choice doesn't depend on batches and workers
        chosen = (sample["id"] < self.lines) & (length <= self.verifier.max_positions()[0])
        statistics = self.generator.statistics = Statistics()
        if bool(chosen.any()):
            source = source[chosen]
            source = source[:, source.ne(self.generator.pad).any(0)]  # padding for the sake of others
            with _evaluating(drafter):
                self.generator.generate([], {"net_input": {"src_tokens": source, "src_lengths": length[chosen]}})
        return {_logged(name): getattr(statistics, name) for name in _COUNTS}


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def log_metrics(logging_outputs: list[dict[str, Any]]) -> None:
    """Logs ``METRICS`` from the counts of all workers, weighted so that they end up as quotients of whole sums."""
    if not any(_logged("iterations") in log for log in logging_outputs):
        return
    total = {name: utils.item(sum(log.get(_logged(name), 0) for log in logging_outputs)) for name in _COUNTS}
    for metric, part, whole in zip(METRICS, ("tokens", "accepted"), ("iterations", "drafted"), strict=True):
        # without weight where nothing was decoded: the metric is there all the same, for fairseq asks for it
        metrics.log_scalar(metric, total[part] / max(1, total[whole]), total[whole], round=3)


def _logged(name: str) -> str:
    return f"worth_{name}"
