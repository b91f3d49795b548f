#!/usr/bin/env python3
"""The table at the end of the demo, and whether the verifier's text came out unchanged.

    scripts/demo_table.py FOLDER REFERENCE

FOLDER holds, for each way of decoding, NAME.de (tokenised text), NAME.json (statistics) and NAME.compound (the line of
fairseq-score); REFERENCE is untokenised text.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import sacrebleu
from sacremoses import MosesDetokenizer

GREEDY = "beam1"
ROWS = {
    "beam5": "fairseq, beam 5",
    GREEDY: "fairseq, beam 1",
    "ar": "AR (greedy, cached)",
    "gad-beta1": "GAD, beta 1",
    "gad-beta5": "GAD, beta 5, tau 3",
}
HEADER = ("", "BLEU", "split BLEU", "sentences/s", "accepted/iteration", "lines unlike greedy")


@dataclass(frozen=True)
class Decoded:
    """What one way of decoding gave."""

    lines: list[str]
    statistics: dict[str, float | None]
    compound_split: str


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def read(folder: Path, name: str) -> Decoded:
    statistics = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    score = (folder / f"{name}.compound").read_text(encoding="utf-8")  # "BLEU4 = 25.85, 58.2/..."
    return Decoded(read_lines(folder / f"{name}.de"), statistics, score.split("=")[1].split(",")[0].strip())


def differing(first: list[str], second: list[str]) -> list[int]:
    """Numbers, from 1, of the lines that differ; raises ``ValueError`` if one file is longer."""
    return [number for number, (one, other) in enumerate(zip(first, second, strict=True), start=1) if one != other]


def bleu(lines: list[str], reference: list[str]) -> float:
    """sacreBLEU of tokenised German against untokenised."""
    detokenizer = MosesDetokenizer(lang="de")
    text = [detokenizer.detokenize(line.split()) for line in lines]
    return sacrebleu.corpus_bleu(text, [reference]).score


def table(decoded: dict[str, Decoded], reference: list[str]) -> list[tuple[str, ...]]:
    """A row of text for each way of decoding."""
    rows: list[tuple[str, ...]] = []
    for name, title in ROWS.items():
        result = decoded[name]
        speed, accepted = result.statistics["sentences_per_second"], result.statistics["accepted_per_iteration"]
        rows.append(
            (
                title,
                f"{bleu(result.lines, reference):.2f}",
                result.compound_split,
                "-" if speed is None else f"{speed:.1f}",
                "-" if accepted is None else f"{accepted:.2f}",
                str(len(differing(result.lines, decoded[GREEDY].lines))),
            )
        )
    return rows


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, reference = Path(sys.argv[1]), read_lines(Path(sys.argv[2]))
    decoded = {name: read(folder, name) for name in ROWS}

    rows = [HEADER, *table(decoded, reference)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]))

    print()
    total = len(decoded[GREEDY].lines)
    for one, other in (("ar", "gad-beta1"), ("ar", GREEDY)):
        unlike = differing(decoded[one].lines, decoded[other].lines)
        where = f" (unlike: {', '.join(map(str, unlike))})" if unlike else ""
        print(f"{ROWS[one]} and {ROWS[other]}: {total - len(unlike)} of {total} lines are equal{where}")


if __name__ == "__main__":
    main()
