"""A weight that is halved each time a score has stopped improving."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Annealing:
    """Counts validations without a new best score; after ``patience`` of them in a row the weight is halved, and the
    count begins anew.
    """

    patience: int
    best: float = float("-inf")
    stagnant: int = 0
    halvings: int = 0

    def weight(self, start: float, least: float) -> float:
        """What is left of ``start``, but no less than ``least``."""
        return max(least, start / 2**self.halvings)

    def observe(self, score: float) -> bool:
        """Takes note of a validation; true if it halves the weight."""
        if score > self.best:
            self.best, self.stagnant = score, 0
            return False
        self.stagnant += 1
        if self.stagnant < self.patience:
            return False
        self.stagnant, self.halvings = 0, self.halvings + 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """What has been counted, for checkpoints."""
        return {name: value for name, value in asdict(self).items() if name != "patience"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.best, self.stagnant, self.halvings = state["best"], state["stagnant"], state["halvings"]
