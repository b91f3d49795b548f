#!/usr/bin/env python3
"""Makes a text file safe to give to fairseq-interactive, and prints its number of lines.

    scripts/source_lines.py INPUT OUTPUT

fairseq-interactive reads a lone carriage return as the end of a line, which would shift all translations after it, and
ends in a traceback on a byte that isn't UTF-8.
"""

import sys
from pathlib import Path


def clean_lines(data: bytes) -> list[str]:
    """The lines of a text file, without carriage returns and byte order mark; raises ``ValueError`` naming a bad
    line.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    cleaned = []
    for number, line in enumerate(lines, start=1):
        try:
            cleaned.append(line.decode("utf-8").replace("\r", " ").strip())
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} is not UTF-8 text ({error.reason})") from error
    return cleaned


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    try:
        lines = clean_lines(source.read_bytes())
    except ValueError as error:
        sys.exit(f"error: {source}: {error}")
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    print(len(lines))


if __name__ == "__main__":
    main()
