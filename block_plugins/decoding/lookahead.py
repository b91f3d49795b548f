"""How many tokens are drafted and sent to verification: always all, by a schedule, by the drafter's confidence, or as
many as pay on this machine.

With beta 1 the output doesn't depend on it.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from block_plugins.decoding.host import Array

_FIRST = 5
"""The length that schedules begin with."""

_LOW, _HIGH, _WINDOW = 0.55, 0.75, 32
"""Shares of accepted tokens in so many drafts, below and above which ``AdaptiveLookahead`` changes its length."""

GoesOn = Callable[[int, Array], Array]
"""Which rows' drafts go on behind their token number i (from 0), given the drafter's probability of it, ``[b]``."""


def planned_length(confidence: Array, goes_on: GoesOn) -> Array:
    """How many tokens of drafts with this ``confidence`` ``[b, k]`` count, ``[b]``: through the first behind which a
    draft doesn't go on.
    """
    going_on, planned = np.ones(len(confidence), dtype=bool), np.zeros(len(confidence), dtype=np.int64)
    for at in range(confidence.shape[1]):
        planned += going_on
        going_on = going_on & goes_on(at, confidence[:, at])
        if not going_on.any():
            break
    return planned


class Lookahead(Protocol):
    """Chooses a length for each row and iteration, and is told what came of it."""

    goes_on: GoesOn | None
    """Ends drafts early, by the drafter's confidence; None where nobody needs to compute that."""

    def start(self, rows: int) -> None:
        """A new batch of so many sentences."""
        ...

    def choose(self) -> Array:
        """How many tokens to draft at most in each open row, ``[b]``; all 0 for a step without a draft."""
        ...

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
        """What an iteration brought to each row, ``[b]`` each: draft tokens verified and kept, and tokens in all; how
        many draft tokens the longest row sent to the verifier; and the seconds that it took.
        """
        ...

    def select(self, keep: Array) -> None:
        """Keeps the open rows ``keep`` ``[b']``."""
        ...


class UniformLookahead:
    """The same length for all rows. This one: all of the block, always."""

    goes_on: GoesOn | None = None

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

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
        """See ``Lookahead.record``."""

    def select(self, keep: Array) -> None:
        """See ``Lookahead.select``."""
        self.rows = len(keep)


class ConfidenceLookahead(UniformLookahead):
    """A draft ends with its first token whose probability is below ``threshold``.

    That token is verified as well: left out because of what it is, it would change the law of what is drawn in its
    place.
    """

    def __init__(self, block_size: int, threshold: float) -> None:
        super().__init__(block_size)
        self.goes_on = lambda at, confidence: confidence >= threshold


class HeuristicLookahead:
    """Two more in a sentence after a draft that was accepted whole, one less after any other, within 1 and the block:
    the schedule of Hugging Face Transformers' assisted generation.
    """

    goes_on: GoesOn | None = None

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.lengths = np.zeros(0, dtype=np.int64)

    def start(self, rows: int) -> None:
        """See ``Lookahead.start``."""
        self.lengths = np.full(rows, min(_FIRST, self.block_size))

    def choose(self) -> Array:
        """See ``Lookahead.choose``."""
        return self.lengths

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
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

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
        """See ``Lookahead.record``."""
        self.drafts += len(sent)
        self.sent += int(sent.sum())
        self.accepted += int(accepted.sum())
        if self.drafts >= _WINDOW:
            alpha = self.accepted / max(self.sent, 1)
            self.current += (alpha > _HIGH) - (alpha < _LOW)
            self.current = min(max(self.current, 1), self.block_size)
            self.drafts = self.sent = self.accepted = 0
