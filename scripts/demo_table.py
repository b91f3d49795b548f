#!/usr/bin/env python3
"""The table at the end of the demo, and whether the verifier's text came out unchanged.

    scripts/demo_table.py FOLDER LANGUAGE REFERENCE

FOLDER holds, for each way of decoding, NAME.LANGUAGE (tokenised text), NAME.split (the same, compound-split) and
NAME.json (statistics), and the tokenised reference, compound-split (reference.split); REFERENCE is untokenised text.
The status is 1 where AR and GAD with beta 1 differ in a line.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacremoses import MosesDetokenizer

from score_table import as_fairseq, read_lines

GREEDY = "beam1"
ROWS = {
    GREEDY: "fairseq, beam 1",
    "ar": "AR (greedy, cached)",
    "gad-beta1": "GAD, beta 1",
    "gad-whole": "GAD, beta 1, whole drafts",
    "gad-beta5": "GAD, beta 5, tau 3",
}
EQUAL = (("ar", "gad-beta1"), ("ar", "gad-whole"), ("ar", GREEDY))
"""Whose lines are compared. fairseq's own search computes in another order, so that a tie in the last bit can make a
line differ: that is shown, but no failure.
"""
HEADER = ("", "BLEU", "split BLEU", "sentences/s", "speed-up", "tokens/iteration", "alpha", "lines unlike beam 1")


@dataclass(frozen=True)
class Decoded:
    """What one way of decoding gave."""

    lines: list[str]
    split: list[str]
    statistics: dict[str, float | None]


def read(folder: Path, name: str, language: str) -> Decoded:
    statistics = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return Decoded(read_lines(folder / f"{name}.{language}"), read_lines(folder / f"{name}.split"), statistics)


def differing(first: list[str], second: list[str]) -> list[int]:
    """Numbers, from 1, of the lines that differ; raises ``ValueError`` if one file is longer."""
    return [number for number, (one, other) in enumerate(zip(first, second, strict=True), start=1) if one != other]


def figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(
    decoded: dict[str, Decoded], language: str, reference: list[str], split_reference: list[str]
) -> list[tuple[str, ...]]:
    """A row of text for each way of decoding."""
    detokenizer = MosesDetokenizer(lang=language)
    base = decoded[GREEDY].statistics["sentences_per_second"]
    rows: list[tuple[str, ...]] = []
    for name, title in ROWS.items():
        result = decoded[name]
        speed = result.statistics["sentences_per_second"]
        plain = [detokenizer.detokenize(line.split()) for line in result.lines]
        rows.append(
            (
                title,
                f"{BLEU(force=True).corpus_score(plain, [reference]).score:.2f}",
                f"{as_fairseq().corpus_score(result.split, [split_reference]).score:.2f}",
                figure(speed, ".1f"),
                figure(speed / base if speed and base else None, ".2f"),
                figure(result.statistics["accepted_per_iteration"], ".2f"),
                figure(result.statistics["alpha"], ".2f"),
                str(len(differing(result.lines, decoded[GREEDY].lines))),
            )
        )
    return rows


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    folder, language, reference = Path(sys.argv[1]), sys.argv[2], read_lines(Path(sys.argv[3]))
    decoded = {name: read(folder, name, language) for name in ROWS}

    rows = [HEADER, *table(decoded, language, reference, read_lines(folder / "reference.split"))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]))

    print()
    total = len(decoded[GREEDY].lines)
    lossless = True
    for one, other in EQUAL:
        unlike = differing(decoded[one].lines, decoded[other].lines)
        print(f"{ROWS[one]} and {ROWS[other]}: {total - len(unlike)} of {total} lines are equal")
        for number in unlike:
            print(f"  line {number}: {decoded[one].lines[number - 1]}")
            print(f"  {' ' * len(f'line {number}:')} {decoded[other].lines[number - 1]}")
        lossless = lossless and (other == GREEDY or not unlike)
    sys.exit(not lossless)


if __name__ == "__main__":
    main()
