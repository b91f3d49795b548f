#!/usr/bin/env python3
"""Genuine parallel text, mixed with pseudo pairs out of what fairseq-generate printed for a monolingual text.

    scripts/back_translated_text.py LOG ... --mono mono.de --genuine train.en train.de --out mixed.en mixed.de

The translations become sources, with a tag in front; their targets are the lines of the monolingual text itself. Left
out, and counted in what is printed: what scripts/distilled_text.py leaves out, and pairs of low confidence, which is
the geometric mean of the probabilities that the model gave the tokens of its translation. Of the rest, ``--ratio``
pairs for each genuine one are drawn, and all are shuffled: with the same seed, in the same way.
"""

import argparse
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from distilled_text import judge, sentences
from wmt_text import lines

Pair = tuple[str, str]


def confidence(log_probabilities: str) -> float:
    """Geometric mean of the probabilities whose logarithms to base 2 are on a P line."""
    return 2.0 ** statistics.fmean(map(float, log_probabilities.split()))


def pseudo_pairs(arguments: argparse.Namespace) -> tuple[list[Pair], Counter[str], list[float]]:
    """Tagged pairs; how many sentences were kept and how many dropped, by reason; the confidences it was about."""
    mono = list(lines(arguments.mono))
    found = sentences(arguments.logs, "HP")
    missing = len(mono) - len(found)
    if missing != arguments.skipped or max(found, default=0) >= len(mono):
        sys.exit(
            f"error: {missing} of the {len(mono)} lines of {arguments.mono} have no translation, but "
            f"{arguments.skipped} were skipped as too long: a part is missing, or is of another text"
        )
    counts, pairs, confidences = Counter(skipped=missing), [], []
    for number in sorted(found):
        words = found[number]["H"].split()
        limit = int(arguments.max_len_a * (len(mono[number].split()) + 1) + arguments.max_len_b)
        verdict = judge(words, limit)
        if arguments.keep_degenerate and words:
            verdict = "kept"
        if verdict == "kept":
            confidences.append(confidence(found[number]["P"]))
            if confidences[-1] < arguments.confidence:
                verdict = "of low confidence"
        counts[verdict] += 1
        if verdict == "kept":
            pairs.append((" ".join([arguments.tag, *words]), mono[number]))
    return pairs, counts, confidences


def genuine_pairs(paths: tuple[Path, Path], tag: str) -> list[Pair]:
    """The pairs of a parallel text; ends with an error if it isn't one, or has pseudo pairs already."""
    source, target = paths
    sides = [list(lines(path)) for path in paths]
    if len(sides[0]) != len(sides[1]):
        sys.exit(f"error: {source} and {target} differ in their number of lines: {len(sides[0])} and {len(sides[1])}")
    if not sides[0]:
        sys.exit(f"error: {source} is empty")
    tagged = sum(line.split(maxsplit=1)[:1] == [tag] for line in sides[0])
    if tagged:
        sys.exit(f"error: {tagged} lines of {source} begin with {tag}: give genuine pairs only, or another tag")
    return list(zip(*sides, strict=True))


def drawn(pairs: list[Pair], wanted: int, generator: random.Random) -> list[Pair]:
    """So many of the pairs, none twice, in their order; all of them where there are no more."""
    if wanted >= len(pairs):
        return pairs
    return [pairs[number] for number in sorted(generator.sample(range(len(pairs)), wanted))]


def write(pairs: list[Pair], paths: tuple[Path, Path]) -> None:
    """The pairs as two files, which appear when both are written."""
    partial = [path.with_name(path.name + ".tmp") for path in paths]
    for side, path in enumerate(partial):
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(pair[side] + "\n" for pair in pairs)
    for unfinished, path in zip(partial, paths, strict=True):
        unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--mono", type=Path, required=True, help="the text that was translated")
    parser.add_argument("--skipped", type=int, default=0, help="how many of its lines fairseq said that it skips")
    parser.add_argument("--max-len-a", type=float, default=0.0, help="the length limit that held: A * length + B")
    parser.add_argument("--max-len-b", type=float, default=200.0)
    parser.add_argument("--keep-degenerate", action="store_true", help="repetitive and endless translations as well")
    parser.add_argument("--confidence", type=float, default=0.3, help="pairs below it are dropped (0.3)")
    parser.add_argument("--tag", default="<BT>", help="symbol in front of pseudo sources (<BT>)")
    parser.add_argument("--genuine", nargs=2, type=Path, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--ratio", type=float, default=1.0, help="pseudo pairs for each genuine one (1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", nargs=2, type=Path, required=True, metavar=("SOURCE", "TARGET"), help="files to write")
    arguments = parser.parse_args()

    genuine = genuine_pairs((arguments.genuine[0], arguments.genuine[1]), arguments.tag)
    pseudo, counts, confidences = pseudo_pairs(arguments)
    print(f"{counts.total()} sentences: " + ", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    if len(confidences) > 1:
        tenths = statistics.quantiles(confidences, n=10, method="inclusive")
        print("a tenth, half and nine tenths of the translations that aren't degenerate have a confidence below "
              f"{tenths[0]:.3f}, {tenths[4]:.3f} and {tenths[8]:.3f}")  # fmt: skip
    if not pseudo:
        sys.exit("error: not one pseudo pair is left; a lower confidence keeps more")
    generator = random.Random(arguments.seed)
    wanted = round(arguments.ratio * len(genuine))
    chosen = drawn(pseudo, wanted, generator)
    mixed = genuine + chosen
    generator.shuffle(mixed)
    write(mixed, (arguments.out[0], arguments.out[1]))
    print(f"{len(genuine)} genuine and {len(chosen)} of {len(pseudo)} pseudo pairs")
    if len(chosen) < wanted:
        print(f"a ratio of {arguments.ratio:g} would be {wanted} pseudo pairs: there are no more; translate more text")


if __name__ == "__main__":
    main()
