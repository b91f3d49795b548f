"""A weight that is halved each time a score has stopped improving."""

import torch
from torch import Tensor, nn


class Annealing(nn.Module):
    """Counts validations without a new best score; after so many in a row the weight is halved, and the count begins
    anew.

    A module, for what it counts is kept in a buffer of the model: of all state that fairseq saves, the model's is what
    a restarted training gets back. Integers, so that half precision leaves them alone.
    """

    counts: Tensor  # [3]: best score in hundredths, validations since then or since the last halving, halvings

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.tensor([-1, 0, 0]))

    def weight(self, start: float, least: float) -> float:
        """What is left of ``start``, but no less than ``least``."""
        return max(least, start / 2 ** int(self.counts[2]))

    def observe(self, score: float, patience: int) -> bool:
        """Takes note of a validation's score, 0 to 100; true if it halves the weight."""
        best, stagnant, halvings = self.counts.tolist()
        hundredths = round(100 * score)
        stagnant = 0 if hundredths > best else stagnant + 1
        halves = stagnant >= patience
        self.counts.copy_(torch.tensor([max(best, hundredths), 0 if halves else stagnant, halvings + halves]))
        return halves
