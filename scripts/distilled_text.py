#!/usr/bin/env python3
"""What fairseq-generate printed for the parts of a training set -> a parallel text, in the training set's order.

    scripts/distilled_text.py LOG ... --sentences N --source train.en --target train.de

Left out, and counted in what is printed: sentences that fairseq skipped (too long for the model), empty translations,
and degenerate ones, which ran on to the length limit or say a word or a pair of words again and again. Where other
sentences than the skipped ones are in no log, that is an error: a part is missing.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

LINE = re.compile(r"([SHP])-(\d+)\t(.*)")
REPEATS = 6
"""So many times in a row makes a repetition."""


def sentences(logs: Iterable[Path], kinds: str = "SH") -> dict[int, dict[str, str]]:
    """Of each sentence by its number: source (S), best hypothesis (H), log-probabilities of its tokens, base 2 (P)."""
    found: dict[int, dict[str, str]] = {}
    for log in logs:
        with log.open(encoding="utf-8") as file:
            for line in file:
                match = LINE.match(line)
                if match and match[1] in kinds:
                    kind, number, text = match.groups()
                    if kind == "H":
                        text = text.partition("\t")[2]  # behind the score
                    found.setdefault(int(number), {}).setdefault(kind, text)
    return found


def repeats(words: list[str]) -> bool:
    """Whether one word, or a pair of words, stands ``REPEATS`` times in a row."""
    for size in (1, 2):
        run = 1
        for at in range(size, len(words) - size + 1, size):
            run = run + 1 if words[at : at + size] == words[at - size : at] else 1
            if run >= REPEATS:
                return True
    return False


def judge(words: list[str], limit: int) -> str:
    """What becomes of a translation whose length limit was ``limit``: "kept", or why not."""
    if not words:
        return "empty"
    if len(words) >= limit:
        return "ran on to the length limit"
    return "repetitive" if repeats(words) else "kept"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--sentences", type=int, required=True, help="sentences of the training set")
    parser.add_argument("--skipped", type=int, default=0, help="how many of them fairseq said that it skips")
    parser.add_argument(
        "--max-len-a", type=float, default=0.0, help="the length limit that held: A * source length + B"
    )
    parser.add_argument("--max-len-b", type=float, default=200.0)
    parser.add_argument("--keep-degenerate", action="store_true", help="leave out what is empty or skipped only")
    parser.add_argument("--source", type=Path, required=True, help="file to write")
    parser.add_argument("--target", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()

    found = sentences(arguments.logs)
    missing = [number for number in range(arguments.sentences) if number not in found]
    if len(missing) != arguments.skipped:
        sys.exit(
            f"error: {len(missing)} of {arguments.sentences} sentences have no translation, but {arguments.skipped} "
            "were skipped as too long: a part is missing, or is of another training set"
        )
    counts = Counter(skipped=len(missing))
    with arguments.source.open("w", encoding="utf-8") as source, arguments.target.open("w", encoding="utf-8") as target:
        for number in sorted(found):
            text, words = found[number]["S"], found[number].get("H", "").split()
            limit = int(arguments.max_len_a * (len(text.split()) + 1) + arguments.max_len_b)
            verdict = judge(words, limit)
            if arguments.keep_degenerate and words:
                verdict = "kept"
            counts[verdict] += 1
            if verdict == "kept":
                source.write(text + "\n")
                target.write(" ".join(words) + "\n")
    print(f"{arguments.sentences} sentences: " + ", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    if counts["kept"] == 0:
        sys.exit("error: not one translation is left")


if __name__ == "__main__":
    main()
