"""The README's table of results, out of what benchmarks/compare_strategies.py wrote.

    python benchmarks/summary.py docs/results/strategies*.json [--readme README.md]

Without --readme the table is printed; with it, it takes the place of what stands between the two marks in that file.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- results: made by benchmarks/summary.py -->\n", "<!-- end of results -->\n"
SHOWN = (
    *("fairseq beam 5", "fairseq beam 1", "CTranslate2 float32 beam 1", "CTranslate2 int8 beam 1", "left2right beam 5"),
    *("AR greedy", "GAD beta 1", "GAD beta 5 tau 3"),
)
"""The rows: strategies by name, and of GAD whatever draft size was the fastest at each batch size."""


def fastest(rows: list[dict[str, Any]], name: str, batch: int) -> dict[str, Any] | None:
    """The row of a strategy at a batch size; None where there is none."""
    found = [row for row in rows if row["batch"] == batch and row["strategy"].split(",")[0] == name]
    return max(found, key=lambda row: row["sentences_per_second"], default=None)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Sentences/s by strategy and batch size, with the speed-up over fairseq's beam 1."""
    batches = sorted({row["batch"] for row in rows})
    lines = [
        "| | BLEU | lines as greedy | " + " | ".join(f"batch {batch}" for batch in batches) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(batches),
    ]
    for name in SHOWN:
        cells = [fastest(rows, name, batch) for batch in batches]
        there = [cell for cell in cells if cell is not None]
        if not there:
            continue
        least = min(cell["identical"] for cell in there)
        speeds = [
            "" if cell is None else f"{cell['sentences_per_second']:.1f} ({cell['speedup']:.2f} x)" for cell in cells
        ]
        lines.append(f"| {name} | {there[-1]['BLEU']:.2f} | {100 * least:.1f} % | {' | '.join(speeds)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of one pair of models")
    parser.add_argument("--readme", type=Path)
    arguments = parser.parse_args()
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.results]
    rows = [row for content in contents for row in content["rows"]]
    circumstances = "; ".join(dict.fromkeys(content["circumstances"] for content in contents))
    text = "\n".join([*table(rows), "", f"Sentences/s, in brackets against fairseq's beam 1. {circumstances}."]) + "\n"
    if arguments.readme is None:
        print(text, end="")
        return
    readme = arguments.readme.read_text(encoding="utf-8")
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"error: {arguments.readme} lacks the marks {BEGIN.strip()} and {END.strip()}")
    arguments.readme.write_text(before + BEGIN + "\n" + text + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
