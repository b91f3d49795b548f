#!/usr/bin/env python3
"""Makes a text safe to give to fairseq-interactive.

    scripts/source_lines.py INPUT OUTPUT      prints the number of lines
    scripts/source_lines.py --stream COUNT    standard input to standard output, each line at once; the number of lines
                                              goes to the file COUNT at the end

fairseq-interactive reads a lone carriage return as the end of a line, which would shift all translations after it, and
ends in a traceback on a byte that isn't UTF-8.
"""

import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def clean_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """The lines of a text without carriage returns and byte order mark; raises ``ValueError`` naming a bad line."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode("utf-8").replace("\r", " ").strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} is not UTF-8 text ({error.reason})") from error


def stream(count: Path) -> None:
    """From standard input to standard output; ends without a word where nobody reads on, or at Ctrl-C."""
    for quiet in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(quiet, signal.SIG_DFL)
    lines = 0
    try:
        for line in clean_lines(sys.stdin.buffer):
            sys.stdout.buffer.write(f"{line}\n".encode())
            sys.stdout.buffer.flush()
            lines += 1
    except ValueError as error:
        sys.exit(f"error: {error}")
    finally:
        count.write_text(f"{lines}\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--stream":
        stream(Path(sys.argv[2]))
        return
    source, target = map(Path, sys.argv[1:])
    try:
        with source.open("rb") as file:
            lines = list(clean_lines(file))
    except ValueError as error:
        sys.exit(f"error: {source}: {error}")
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    print(len(lines))


if __name__ == "__main__":
    main()
