"""Counting what came in, what was dropped under which rule, and what was kept."""

from __future__ import annotations

from collections import Counter


class Report:
    """Counts for each family, such that pairs found = pairs dropped + lines kept.

    What an extractor passed over without making a pair of it (code, a paragraph without translation) is counted apart.
    """

    def __init__(self) -> None:
        self.skipped: Counter[tuple[str, str]] = Counter()  # (reason, family)
        self.found: Counter[str] = Counter()  # family
        self.dropped: Counter[tuple[str, str]] = Counter()  # (rule, family)
        self.lines: Counter[tuple[str, str]] = Counter()  # (split, family)

    def skip(self, family: str, reason: str, count: int = 1) -> None:
        self.skipped[reason, family] += count

    def find(self, family: str, count: int = 1) -> None:
        self.found[family] += count

    def drop(self, family: str, rule: str, count: int = 1) -> None:
        self.dropped[rule, family] += count

    def keep(self, family: str, split: str, count: int = 1) -> None:
        self.lines[split, family] += count

    def markdown(self) -> str:
        """A table with a column for each family: skipped by reason, found, dropped by rule, lines by split."""
        families = sorted({*self.found, *(family for _, family in self.skipped)})
        rows = _rows("passed over: {}", self.skipped, families)
        rows.append(("**pairs found**", [self.found[family] for family in families]))
        rows += _rows("dropped: {}", self.dropped, families)
        rows += _rows("**{}**", self.lines, families)
        table = [f"| | {' | '.join(families)} | all |", "| --- |" + " ---: |" * (len(families) + 1)]
        for label, counts in rows:
            table.append(f"| {label} | " + " | ".join(f"{count:,}" for count in [*counts, sum(counts)]) + " |")
        return "\n".join(table) + "\n"


def _rows(label: str, counts: Counter[tuple[str, str]], families: list[str]) -> list[tuple[str, list[int]]]:
    """One row for each first half of the keys, in the order in which they first came up."""
    names = dict.fromkeys(name for name, _ in counts)
    return [(label.format(name), [counts[name, family] for family in families]) for name in names]
