#!/usr/bin/env python3
"""fairseq-train's output on standard input -> a short line for each log interval, validation and error.

fairseq-train ... 2>&1 | scripts/training_progress.py NAME UPDATES
"""

import re
import sys

TRAINING = re.compile(r"\| train_inner \|.*\bloss=([\d.]+).*\bnum_updates=(\d+)")
VALIDATION = re.compile(r"\| valid on '[^']*' subset \| loss ([\d.]+)")
WORTH = re.compile(r"\| (accepted|alpha_fwd|alpha_bwd|bleu_fwd|bleu_bwd) ([\d.]+)")
TOLD = re.compile(r"(?:train\.sh|error|\w*Error): ")


def short(line: str, name: str, updates: str) -> str | None:
    """What a line of the log amounts to; None if it tells nothing that a spectator needs."""
    if match := TRAINING.search(line):
        return f"{name}: update {match[2]} of {updates}, loss {match[1]}"
    if match := VALIDATION.search(line):
        worth = "".join(f", {metric} {value}" for metric, value in WORTH.findall(line))
        return f"{name}: validation loss {match[1]}{worth}"
    if TOLD.match(line):
        return line.rstrip("\n")
    return None


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, updates = sys.argv[1:]
    for line in sys.stdin:
        message = short(line, name, updates)
        if message is not None:
            print(message, flush=True)


if __name__ == "__main__":
    main()
