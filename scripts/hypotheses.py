#!/usr/bin/env python3
"""What fairseq-generate or fairseq-interactive printed -> plain translations, one a line, in input order.

    scripts/hypotheses.py --lines 3003 --name test.en < fairseq.log > test.de

Takes the detokenised (D) line of each sentence, the best one where there are several. A sentence without a translation
(fairseq skipped it) becomes an empty line and a warning.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator

HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t?([^\n]*)")


def numbered(log: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Number (from 0) and text of each translation, in the order of the log."""
    for line in log:
        match = HYPOTHESIS.match(line)
        if match:
            yield int(match.group(1)), match.group(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, help="lines of the input (default: as many as the log tells of)")
    parser.add_argument("--name", default="the input", help="what warnings call the input")
    arguments = parser.parse_args()

    sys.stdin.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    best: dict[int, str] = {}
    for number, text in numbered(sys.stdin):
        best.setdefault(number, text)
    total = max(best, default=-1) + 1 if arguments.lines is None else arguments.lines
    beyond = [number for number in best if number >= total]
    if beyond:
        sys.exit(f"error: {arguments.name} has {total} lines, but there is a translation of line {max(beyond) + 1}")
    for number in range(total):
        if number not in best:
            print(
                f"warning: line {number + 1} of {arguments.name} was skipped: its translation is an empty line",
                file=sys.stderr,
            )
        print(best.get(number, ""))


if __name__ == "__main__":
    main()
