"""The numbers that every decode reports."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Statistics:
    """Counts and seconds, summed over all batches.

    An iteration is one draft pass and one verify pass of one sentence; ``drafted`` counts the draft tokens sent to
    verification and ``accepted`` those of them that were committed. ``undrafted`` counts tokens that were decoded one
    by one, because a draft didn't pay.
    """

    sentences: int = 0
    tokens: int = 0
    iterations: int = 0
    drafted: int = 0
    accepted: int = 0
    undrafted: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "verify": 0.0})

    @contextmanager
    def phase(self, name: str, device: torch.device) -> Iterator[None]:
        """Adds the time spent inside to a phase; waits for a GPU to finish first, so that the time is its own."""
        begin = time.perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.phases[name] += time.perf_counter() - begin

    def as_dict(self) -> dict[str, float | int | None]:
        """All figures by their names; what was not measured (nothing drafted, no iterations) is None."""
        draft, verify = self.phases["draft"], self.phases["verify"]
        return {
            "sentences": self.sentences,
            "tokens": self.tokens,
            "iterations": self.iterations,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "undrafted": self.undrafted,
            "accepted_per_iteration": _ratio(self.tokens - self.undrafted, self.iterations),
            "alpha": _ratio(self.accepted, self.drafted),
            "seconds_draft": draft,
            "seconds_verify": verify,
            "seconds_other": max(0.0, self.seconds - draft - verify),
            "seconds": self.seconds,
            "sentences_per_second": _ratio(self.sentences, self.seconds),
            "tokens_per_second": _ratio(self.tokens, self.seconds),
        }

    def __str__(self) -> str:
        figures = self.as_dict()
        return ", ".join(f"{name} {_readable(value)}" for name, value in figures.items())


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def _readable(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
