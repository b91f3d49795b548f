"""The lookahead that drafts as long as it pays, from what this run has measured."""

import itertools

import numpy as np

from block_plugins.decoding.host import Array
from block_plugins.decoding.lookahead import UniformLookahead

_BINS = 10
"""Classes of confidence, equally wide."""

_PRIOR = 4.0
"""So many drafts speak for what would be expected anyway, until more are known."""

_FORGET_TOKENS, _FORGET_COSTS = 0.999, 0.97
"""What older tokens and older times count for, one iteration later."""

_OUTLIER = 2.0
"""No time counts for more than so many times what was expected."""

_REMEASURE = 64
"""Iterations, at least, after which what is not thought best is tried again."""

_BUDGET = 0.03
"""The share of all time that trials may take. The first ones, without which nothing is known, are free."""

_BURST = 3
"""Iterations of such a trial. The first doesn't count: what it works with is in no cache."""

_TRIED = (1, 4)
"""Lengths of drafts that show what a token costs. No draft is longer than the second while drafts don't pay: in large
batches it would cost more than it can tell.
"""

_REFRESH = 16
"""Drafts between two looks at what the drafter's confidence has been worth."""


class AutoLookahead(UniformLookahead):
    """The lengths with the most tokens a second.

    How often a draft token is accepted is counted by its position and by the drafter's confidence in it; what an
    iteration costs is measured against its length and the size of the batch. Where R tokens a second are gained and one
    more draft token costs c seconds, a draft goes on as long as the next token is expected to bring at least R c tokens
    over all rows: that is, while it raises R. And where steps without a draft bring more, there are no drafts.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.goes_on = self._goes_on
        self.calibration = _Calibration(block_size)
        self.costs: dict[int, _Costs] = {}  # by the size of the batch, in powers of two
        self.drafts = 0
        self.seconds = self.of_trials = 0.0

    def length(self) -> int:
        """See ``UniformLookahead.length``."""
        size = self.rows.bit_length()
        if size not in self.costs:
            nearest = min(self.costs, key=lambda other: abs(other - size), default=None)
            self.costs[size] = _Costs(self.block_size, None if nearest is None else self.costs[nearest])
        self.current = self.costs[size]
        self.classes: list[Array] = []
        self.fixed = self.current.choose(self.of_trials <= _BUDGET * self.seconds)
        if self.fixed is None:
            self.surviving = np.ones(self.rows)  # the probability that all of a draft so far is accepted
            self.price = self.current.price()
            self.drafts += 1
            if self.drafts % _REFRESH == 0:
                self.calibration.refresh()
            return self.block_size if self.current.drafts_paid else min(_TRIED[1], self.block_size)
        return self.fixed

    def _goes_on(self, at: int, confidence: Array) -> Array:
        # a drafter's numbers may overflow: nan is no confidence
        classes = (np.nan_to_num(confidence) * _BINS).clip(0, _BINS - 1).astype(np.int64)
        self.classes.append(classes)
        if self.fixed is not None:
            return np.ones(len(confidence), dtype=bool)
        self.surviving = self.surviving * self.calibration.shares[at, classes]
        following = self.calibration.means[min(at + 1, self.block_size - 1)]
        pays = float(self.surviving.sum()) * following >= self.price
        # a longer draft in one row makes the pass longer for all, so they go on or end together
        return np.full(len(confidence), pays)

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
        """See ``Lookahead.record``."""
        self.seconds += seconds
        self.of_trials += seconds if self.current.trying else 0.0
        self.current.add(int(committed.sum()), width, seconds, self.fixed)
        if self.classes:
            self.calibration.add(self.classes[:width], sent, accepted)


class _Calibration:
    """How often tokens are accepted where those before them were: ``shares [position, class of confidence]`` and, of
    all classes, ``means [position]``.
    """

    def __init__(self, block_size: int) -> None:
        self.reached = np.zeros((block_size, _BINS))
        self.kept = np.zeros((block_size, _BINS))
        self.refresh()

    def add(self, classes: list[Array], sent: Array, accepted: Array) -> None:
        """Counts the tokens of an iteration, of the ``classes`` ``[b]`` at each position."""
        self.reached *= _FORGET_TOKENS
        self.kept *= _FORGET_TOKENS
        for at, of_rows in enumerate(classes):
            reached = (sent > at) & (accepted >= at)
            if not reached.any():
                break
            self.reached[at] += np.bincount(of_rows[reached], minlength=_BINS)
            self.kept[at] += np.bincount(of_rows[accepted > at], minlength=_BINS)

    def refresh(self) -> None:
        """Brings the shares up to date. Until more is known a position is like the others, and confidence is right."""
        believed = (np.arange(_BINS) + 0.5) / _BINS
        anywhere = (self.kept.sum(0) + _PRIOR * believed) / (self.reached.sum(0) + _PRIOR)
        self.shares = (self.kept + _PRIOR * anywhere) / (self.reached + _PRIOR)
        overall = (self.kept.sum() + _PRIOR * 0.5) / (self.reached.sum() + _PRIOR)
        self.means = (self.kept.sum(1) + _PRIOR * overall) / (self.reached.sum(1) + _PRIOR)


class _Costs:
    """What iterations of batches of one size took."""

    def __init__(self, block_size: int, similar: "_Costs | None" = None) -> None:
        """What batches of a ``similar`` size took spares this one most of its trials."""
        short, long = (min(length, block_size) for length in _TRIED)
        self.trials: list[int | None] = [*[0] * _BURST, *[short] * _BURST, *[None] * _BURST]
        self.trying = False  # whether this iteration is a trial
        self.last: int | None = -1  # what the iteration before this one was
        self.cycle = itertools.cycle([0, short, 0, long])
        self.since = 0  # iterations since something was tried
        self.drafts_paid = False
        # weighted sums over lengths n > 0 and times t
        self.count = self.n = self.squares = self.t = self.products = 0.0
        self.drafted = _Rate()  # with drafts as long as pays,
        self.undrafted = _Rate()  # and without a draft
        if similar is not None and not similar.trials:
            self.count, self.n, self.squares = similar.count, similar.n, similar.squares
            self.t, self.products = similar.t, similar.products
            self.drafts_paid = similar.drafts_pay()
            if not self.drafts_paid:  # they are tried later, as they would be there
                self.trials = [0] * _BURST

    def drafts_pay(self) -> bool:
        """Whether drafts brought as many tokens a second as steps without them."""
        return self.drafted.value() >= self.undrafted.value()

    def choose(self, may_try: bool) -> int | None:
        """A fixed length, 0 for no draft, or None for a draft as long as pays; what is not thought best only if it
        ``may_try``.
        """
        self.since += 1
        if not self.trials:
            self.drafts_paid = self.drafts_pay()
            if may_try and self.since > _REMEASURE:
                self.since = 0
                self.trials = [next(self.cycle) if self.drafts_paid else None] * _BURST
        self.trying = bool(self.trials)
        if self.trying:
            return self.trials.pop(0)
        return None if self.drafts_paid else 0

    def add(self, tokens: int, length: int, seconds: float, fixed: int | None) -> None:
        """An iteration with a draft of so many tokens, whose length was ``fixed`` or not."""
        changed, self.last = fixed != self.last, fixed
        if changed:
            return
        if length == 0:
            self.undrafted.add(tokens, seconds)
            return
        expected = self._seconds(length) if self.count > 0 else 0.0
        if expected > 0:
            seconds = min(seconds, _OUTLIER * expected)
        self.count = _FORGET_COSTS * self.count + 1
        self.n = _FORGET_COSTS * self.n + length
        self.squares = _FORGET_COSTS * self.squares + length**2
        self.t = _FORGET_COSTS * self.t + seconds
        self.products = _FORGET_COSTS * self.products + length * seconds
        if fixed is None:
            self.drafted.add(tokens, seconds)

    def price(self) -> float:
        """How many tokens one more draft token has to bring."""
        return max(self.drafted.value(), self.undrafted.value()) * self._slope()

    def _slope(self) -> float:
        """Seconds that one more draft token takes: the line through all times, by least squares."""
        spread = self.count * self.squares - self.n**2
        if spread <= 1e-6 * self.squares:
            return 0.0
        return max(0.0, (self.count * self.products - self.n * self.t) / spread)

    def _seconds(self, length: int) -> float:
        return (self.t + self._slope() * (length * self.count - self.n)) / self.count


class _Rate:
    """Tokens a second, lately."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """So many tokens in so many seconds, which count for no more than ``_OUTLIER`` times what was expected."""
        if self.seconds > 0:
            seconds = min(seconds, _OUTLIER * tokens / self.value())
        self.tokens = _FORGET_COSTS * self.tokens + tokens
        self.seconds = _FORGET_COSTS * self.seconds + seconds

    def value(self) -> float:
        """Tokens a second, 0 where nothing was measured."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0
