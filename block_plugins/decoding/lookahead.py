"""How many draft tokens are sent to verification: always all of them, or as many as pay on this machine.

With beta 1 the output doesn't depend on it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

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
    """Chooses a length for each iteration, and is told what came of it."""

    def choose(self, rows: int) -> int:
        """How many draft tokens to verify in an iteration of so many rows; 0 for a step without a draft."""
        ...

    def record(self, rows: int, length: int, committed: Sequence[int], seconds: float) -> None:
        """What an iteration brought: tokens ``committed`` in each row, and the seconds that it took."""
        ...


class ConstantLookahead:
    """All of the block, always."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def choose(self, rows: int) -> int:
        """See ``Lookahead.choose``."""
        return self.block_size

    def record(self, rows: int, length: int, committed: Sequence[int], seconds: float) -> None:
        """See ``Lookahead.record``."""


class AutoLookahead:
    """The length with the most tokens a second, from what was measured so far.

    With p_j the share of drafts whose j-th token was kept among those whose tokens before it were, a draft of length n
    brings 1 + p_1 + p_1 p_2 + ... + p_1 ... p_n tokens. The seconds of an iteration are measured for each length and
    each size of the batch (in powers of two): a few rows are bound by reading the weights, and n more tokens cost next
    to nothing; many rows are bound by arithmetic, and every draft token costs what a committed one does.
    """

    def __init__(self, block_size: int) -> None:
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

    def choose(self, rows: int) -> int:
        """See ``Lookahead.choose``."""
        self.iteration += 1
        size = rows.bit_length()
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

    def record(self, rows: int, length: int, committed: Sequence[int], seconds: float) -> None:
        """See ``Lookahead.record``."""
        key = rows.bit_length(), length
        if key not in self.tried:
            self.tried.add(key)
        else:
            known = self.seconds.get(key, seconds)
            self.seconds[key] = known + _WEIGHT * (min(seconds, _OUTLIER * known) - known)
            self.measured[key] = self.iteration
        ended = Counter(committed)  # rows by the tokens they got
        reached = len(committed)
        for position in range(length):
            kept = reached - ended[position + 1]
            self.reached[position] = _FORGET * self.reached[position] + reached
            self.kept[position] = _FORGET * self.kept[position] + kept
            reached = kept
