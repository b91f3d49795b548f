#!/usr/bin/env python3
"""What fairseq-generate or fairseq-interactive printed -> plain translations, one a line, in input order.

    scripts/hypotheses.py --lines 3003 --name test.en < fairseq.log > test.de
    fairseq-interactive ... | scripts/hypotheses.py --stream

Takes the detokenised (D) line of each sentence, the best one where there are several. A sentence without a translation
(fairseq skipped it) becomes an empty line and a warning. --stream prints each translation as soon as it is there, which
takes them to come in order, as those of fairseq-interactive do; at the end a line "lines: NUMBER" may tell how many
there have to be.
"""

import argparse
import re
import signal
import sys
from collections.abc import Iterable, Iterator

COUNT = re.compile(r"lines: (\d+)$")
HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t?([^\n]*)")


def numbered(log: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Number (from 0) and text of each translation, in the order of the log."""
    for line in log:
        match = HYPOTHESIS.match(line)
        if match:
            yield int(match.group(1)), match.group(2)


def stream(log: Iterable[str], name: str) -> None:
    """Prints translations while they come; ends without a word where nobody reads on, or at Ctrl-C."""
    for quiet in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(quiet, signal.SIG_DFL)
    done = 0
    for line in log:
        match = HYPOTHESIS.match(line) or COUNT.match(line)
        if match is None:
            continue
        number = int(match[1])
        for missing in range(done, number):
            put(missing, None, name)
        done = max(done, number)
        if match.re is HYPOTHESIS and number == done:  # a second one of a sentence is worse
            put(number, match[2], name)
            done += 1


def put(number: int, text: str | None, name: str) -> None:
    """Prints a translation at once; where there is none, an empty line and a warning."""
    if text is None:
        print(f"warning: line {number + 1} of {name} was skipped: its translation is an empty line", file=sys.stderr)
    print(text or "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, help="lines of the input (default: as many as the log tells of)")
    parser.add_argument("--name", default="the input", help="what warnings call the input")
    parser.add_argument("--stream", action="store_true", help="prints each translation at once")
    arguments = parser.parse_args()

    sys.stdin.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    if arguments.stream:
        stream(sys.stdin, arguments.name)
        return
    best: dict[int, str] = {}
    for number, text in numbered(sys.stdin):
        best.setdefault(number, text)
    total = max(best, default=-1) + 1 if arguments.lines is None else arguments.lines
    beyond = [number for number in best if number >= total]
    if beyond:
        sys.exit(f"error: {arguments.name} has {total} lines, but there is a translation of line {max(beyond) + 1}")
    for number in range(total):
        put(number, best.get(number), arguments.name)


if __name__ == "__main__":
    main()
