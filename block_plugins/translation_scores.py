"""sacreBLEU's BLEU and chrF from statistics that can be added up over batches and workers."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

METRICS: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF}


def statistics(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """The counts from which a metric of ``METRICS`` is computed, summed over the sentences."""
    rows = METRICS[name]()._extract_corpus_statistics(hypotheses, [references])
    return [sum(column) for column in zip(*rows, strict=True)]


def score(name: str, counts: Sequence[float]) -> float:
    """The corpus score, 0 to 100, of summed counts."""
    return float(METRICS[name]()._compute_score_from_stats([int(count) for count in counts]).score)


def signature(name: str) -> str:
    """sacreBLEU's signature of the metric, with one reference."""
    metric = METRICS[name]()
    name = metric.corpus_score(["a"], [["a"]]).name  # after which the metric knows the number of references
    return f"{name}|{metric.get_signature()}"
