"""How many draft tokens are sent to verification: always all of them, by a schedule, or as many as pay on this machine.

With beta 1 the output doesn't depend on it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from block_plugins.decoding.host import Array

_FIRST = 5
"""The length that schedules begin with."""

_LOW, _HIGH, _WINDOW = 0.55, 0.75, 32
"""Shares of accepted tokens in so many drafts, below and above which ``AdaptiveLookahead`` changes its length."""

_WEIGHT = 0.2
"""How much a new measurement counts in a running mean."""

_OUTLIER = 2.0
"""No measurement counts for more than so many times the mean."""

_FORGET = 0.99
"""What older drafts count for, one iteration later."""

_PRIOR = 4.0
"""So many drafts speak for a position being like the one before it, until more are known."""

_REMEASURE = 50
"""One iteration in so many goes to the length that was not measured for the longest time."""


class Lookahead(Protocol):
    """Chooses a length for each row and iteration, and is told what came of it."""

    def start(self, rows: int) -> None:
        """A new batch of so many sentences."""
        ...

    def choose(self) -> Array:
        """How many draft tokens to verify in each open row, ``[b]``; all 0 for a step without a draft."""
        ...

    def record(self, sent: Array, accepted: Array, committed: Array, seconds: float) -> None:
        """What an iteration brought to each row, ``[b]`` each: draft tokens verified and kept, and tokens in all; and
        the seconds that it took.
        """
        ...

    def select(self, keep: Array) -> None:
        """Keeps the open rows ``keep`` ``[b']``."""
        ...


class UniformLookahead:
    """The same length for all rows. This one: all of the block, always."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.rows = 0

    def start(self, rows: int) -> None:
        """See ``Lookahead.start``."""
        self.rows = rows

    def length(self) -> int:
        """What is chosen for all rows."""
        return self.block_size

    def choose(self) -> Array:
        """See ``Lookahead.choose``."""
        return np.full(self.rows, self.length())

    def record(self, sent: Array, accepted: Array, committed: Array, seconds: float) -> None:
        """See ``Lookahead.record``."""

    def select(self, keep: Array) -> None:
        """See ``Lookahead.select``."""
        self.rows = len(keep)


class HeuristicLookahead:
    """Two more in a sentence after a draft that was accepted whole, one less after any other, within 1 and the block:
    the schedule of Hugging Face Transformers' assisted generation.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.lengths = np.zeros(0, dtype=np.int64)

    def start(self, rows: int) -> None:
        """See ``Lookahead.start``."""
        self.lengths = np.full(rows, min(_FIRST, self.block_size))

    def choose(self) -> Array:
        """See ``Lookahead.choose``."""
        return self.lengths

    def record(self, sent: Array, accepted: Array, committed: Array, seconds: float) -> None:
        """See ``Lookahead.record``."""
        self.lengths = (self.lengths + np.where(accepted == sent, 2, -1)).clip(1, self.block_size)

    def select(self, keep: Array) -> None:
        """See ``Lookahead.select``."""
        self.lengths = self.lengths[keep]


class AdaptiveLookahead(UniformLookahead):
    """One less where a window of drafts had less than ``_LOW`` of its tokens accepted, one more where it had more than
    ``_HIGH``; what it has come to goes on from batch to batch.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.current = min(_FIRST, block_size)
        self.drafts = self.sent = self.accepted = 0

    def length(self) -> int:
        """See ``UniformLookahead.length``."""
        return self.current

    def record(self, sent: Array, accepted: Array, committed: Array, seconds: float) -> None:
        """See ``Lookahead.record``."""
        self.drafts += len(sent)
        self.sent += int(sent.sum())
        self.accepted += int(accepted.sum())
        if self.drafts >= _WINDOW:
            alpha = self.accepted / max(self.sent, 1)
            self.current += (alpha > _HIGH) - (alpha < _LOW)
            self.current = min(max(self.current, 1), self.block_size)
            self.drafts = self.sent = self.accepted = 0


class AutoLookahead(UniformLookahead):
    """The length with the most tokens a second, from what was measured so far.

    With p_j the share of drafts whose j-th token was kept among those whose tokens before it were, a draft of length n
    brings 1 + p_1 + p_1 p_2 + ... + p_1 ... p_n tokens. The seconds of an iteration are measured for each length and
    each size of the batch (in powers of two): a few rows are bound by reading the weights, and n more tokens cost next
    to nothing; many rows are bound by arithmetic, and every draft token costs what a committed one does.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        lengths = [0, 1]
        while lengths[-1] < block_size:
            lengths.append(min(2 * lengths[-1] + 1, block_size))
        self.lengths = lengths
        self.reached = [0.0] * block_size  # drafts whose tokens before this position were kept,
        self.kept = [0.0] * block_size  # and those of them whose token here was kept as well
        self.seconds: dict[tuple[int, int], float] = {}  # by size of the batch and length
        self.measured: dict[tuple[int, int], int] = {}
        self.tried: set[tuple[int, int]] = set()  # a first time doesn't count: kernels are compiled or recorded then
        self.iteration = 0
        self.chosen = 0

    def length(self) -> int:
        """See ``UniformLookahead.length``."""
        self.iteration += 1
        self.chosen = self._most_tokens_a_second(self.rows.bit_length())
        return self.chosen

    def _most_tokens_a_second(self, size: int) -> int:
        oldest = min(self.lengths, key=lambda length: self.measured.get((size, length), -1))
        if (size, oldest) not in self.measured or self.iteration % _REMEASURE == 0:
            return oldest
        return max(self.lengths, key=lambda length: self.expected(length) / self.seconds[size, length])

    def expected(self, length: int) -> float:
        """Tokens that a draft of this length brings, the verifier's own included."""
        total = reached = 1.0
        share = 0.5
        for position in range(length):
            share = (self.kept[position] + _PRIOR * share) / (self.reached[position] + _PRIOR)
            reached *= share
            total += reached
        return total

    def record(self, sent: Array, accepted: Array, committed: Array, seconds: float) -> None:
        """See ``Lookahead.record``."""
        key = len(committed).bit_length(), self.chosen
        if key not in self.tried:
            self.tried.add(key)
        else:
            known = self.seconds.get(key, seconds)
            self.seconds[key] = known + _WEIGHT * (min(seconds, _OUTLIER * known) - known)
            self.measured[key] = self.iteration
        ended = Counter(committed.tolist())  # rows by the tokens they got
        reached = len(committed)
        for position in range(self.chosen):
            kept = reached - ended[position + 1]
            self.reached[position] = _FORGET * self.reached[position] + reached
            self.kept[position] = _FORGET * self.kept[position] + kept
            reached = kept


def open_lookahead(name: str, block_size: int) -> Lookahead:
    """The lookahead of that name; "confidence" is the drafter's affair, which ends its drafts itself."""
    kinds: dict[str, Callable[[int], Lookahead]] = {
        "heuristic": HeuristicLookahead,
        "adaptive": AdaptiveLookahead,
        "auto": AutoLookahead,
    }
    return kinds.get(name, UniformLookahead)(block_size)
