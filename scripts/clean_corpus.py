#!/usr/bin/env python3
"""A parallel text without the pairs that training is better off without.

    scripts/clean_corpus.py train.en train.de clean/train [--exclude valid.en valid.de ...] [--report report.json]

writes clean/train.en and clean/train.de; the files' endings are their languages. A pair is dropped under the first of
these rules that it breaks, and is never repaired:

    utf8         a side has bytes that aren't UTF-8, or characters that such bytes became earlier (U+FFFD)
    empty        a side is empty
    punctuation  a side has neither a letter nor a digit
    digits       a side has digits, but not one letter
    length       a side has more than --max-tokens tokens
    ratio        target tokens / source tokens are outside --min-ratio ... --max-ratio
    held-out     a side is a segment of the files --exclude, or has a sentence in common with one
    exact        an earlier pair that broke none of these is the same but for case, spacing and punctuation
    fuzzy        an earlier pair that was kept is nearly the same: of all sequences of 5 characters that the two pairs
                 have in what `exact` compares, --fuzzy or more are in both (Jaccard similarity)

A report of how many pairs fell to each goes to standard error, and to --report as JSON. What is kept keeps its order
and is written as it was, except that blanks at the ends go, and that characters which some tool takes for the end of a
line become blanks.

Tokens are words and single punctuation marks in raw text; with --tokenised, what blanks separate: for text that
sacremoses or BPE went over, or of a language that is written without blanks and was segmented.

Fuzzy duplicates are found by MinHash and locality-sensitive hashing (the package rensa), each pair in constant time:
similarity is estimated from 128 hashes, with a standard error of 0.035 at 0.8. Kept pairs take some 2 kB of memory
each with this rule and 0.1 kB without it; their text isn't kept.
"""

import argparse
import hashlib
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from corpus.files import write_text
from corpus.pair import key, normalise, sentence_keys, tokens
from wmt_text import LINE_BREAKS, lines

RULES = ("utf8", "empty", "punctuation", "digits", "length", "ratio", "held-out", "exact", "fuzzy")
ALWAYS = ("utf8", "empty", "held-out")
"""Rules that can't be switched off: without text there is no pair, and --exclude is an option already."""

SHINGLE = 5
HASHES, BANDS = 128, 16
"""A pair is compared with those with which it shares one of 16 bands of 8 hashes: two pairs of similarity 0.9 do with a
probability of 1 - (1 - 0.9^8)^16 = 0.9999, of 0.8 with 0.95."""


def shingles(text: str) -> list[str]:
    """The sequences of ``SHINGLE`` characters of a text; a shorter text is one of its own."""
    return [text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1))]


class NearDuplicates:
    """The pairs kept so far, as hashes; raises ``ImportError`` where rensa isn't installed."""

    def __init__(self, threshold: float) -> None:
        rensa = importlib.import_module("rensa")
        self._hash = rensa.RMinHash
        self._kept = rensa.RMinHashDeduplicator(threshold, HASHES, use_lsh=True, num_bands=BANDS)

    def add(self, text: str) -> bool:
        """Adds a text unless one that was added is nearly the same; whether it was added."""
        minhash = self._hash(HASHES, seed=42)  # the deduplicator's own
        minhash.update(shingles(text))
        return bool(self._kept.add(str(self._kept.len()), minhash))


class Cleaner:
    """Judges one pair after the other by the rules that are switched on."""

    def __init__(self, options: argparse.Namespace, held_out: set[str]) -> None:
        self.options = options
        self.active = set(RULES) - set(options.without)
        self.held_out = held_out
        self._seen: set[bytes] = set()
        self._near = NearDuplicates(options.fuzzy) if "fuzzy" in self.active else None

    def fault(self, source: str, target: str) -> str | None:
        """The first rule that a pair breaks, or None: then it counts as kept."""
        if "\N{REPLACEMENT CHARACTER}" in source or "\N{REPLACEMENT CHARACTER}" in target:
            return "utf8"
        sides = normalise(source), normalise(target)
        broken = self._content(sides) or self._lengths(*sides)
        if broken is not None:
            return broken
        if self.held_out and any(not self.held_out.isdisjoint(sentence_keys(side)) for side in sides):
            return "held-out"
        return self._repeated("\t".join(key(side) or side for side in sides))

    def _content(self, sides: tuple[str, str]) -> str | None:
        if not all(sides):
            return "empty"
        if "punctuation" in self.active and not all(any(map(str.isalnum, side)) for side in sides):
            return "punctuation"
        if "digits" in self.active:
            for side in sides:
                if not any(map(str.isalpha, side)) and any(map(str.isalnum, side)):
                    return "digits"
        return None

    def _lengths(self, source: str, target: str) -> str | None:
        options = self.options
        count = str.split if options.tokenised else tokens
        sources, targets = len(count(source)), len(count(target))
        if "length" in self.active and max(sources, targets) > options.max_tokens:
            return "length"
        # a quotient of whole numbers is rounded as the option's decimal is, so 7 / 10 isn't outside 0.7
        uneven = not options.min_ratio <= targets / sources <= options.max_ratio
        return "ratio" if "ratio" in self.active and uneven and abs(sources - targets) > options.slack else None

    def _repeated(self, text: str) -> str | None:
        if "exact" in self.active:
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest in self._seen:
                return "exact"
            self._seen.add(digest)
        if self._near is not None and not self._near.add(text):
            return "fuzzy"
        return None


def segments(path: Path) -> Iterator[str]:
    """The lines of a text file, each of them one line for every tool."""
    for line in lines(path):
        yield LINE_BREAKS.sub(" ", line).replace("\N{ZERO WIDTH NO-BREAK SPACE}", "").strip()


def held_out_keys(paths: list[Path]) -> set[str]:
    """The keys of all segments of the files, and of the sentences in them."""
    found = {one for path in paths for line in segments(path) for one in sentence_keys(normalise(line))}
    return found - {""}


def table(counts: Counter[str]) -> str:
    """Pairs read, dropped by each rule, and kept, as lines for people."""
    rows = [("pairs read", counts.total()), *((f"- {rule}", counts[rule]) for rule in RULES), ("kept", counts["kept"])]
    return "\n".join(f"{name:<15}{number:>13,}{number / max(1, counts.total()):>9.2%}" for name, number in rows)


def report(options: argparse.Namespace, counts: Counter[str]) -> dict[str, Any]:
    """The same with what led to it, for programs."""
    settings = {name: getattr(options, name) for name in ("min_ratio", "max_ratio", "slack", "max_tokens", "fuzzy")}
    return {
        "source": str(options.source),
        "target": str(options.target),
        "settings": {
            **settings,
            "tokenised": options.tokenised,
            "without": sorted(options.without),
            "exclude": [str(path) for path in options.exclude],
        },
        "pairs": counts.total(),
        "dropped": {rule: counts[rule] for rule in RULES},
        "kept": counts["kept"],
    }


def clean(options: argparse.Namespace, cleaner: Cleaner, outputs: tuple[Path, Path]) -> Counter[str]:
    """Writes what is kept; the pairs that each rule dropped, and those kept. ``ValueError`` where a side is shorter."""
    counts: Counter[str] = Counter()
    pairs = zip(segments(options.source), segments(options.target), strict=True)
    with ExitStack() as files:
        source_out, target_out = (
            files.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in outputs
        )
        for source, target in tqdm(pairs, "cleaning", unit=" pairs", disable=None):
            broken = cleaner.fault(source, target)
            counts[broken or "kept"] += 1
            if broken is None:
                source_out.write(source + "\n")
                target_out.write(target + "\n")
    return counts


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="source text, one segment a line; ends with its language")
    parser.add_argument("target", type=Path, help="target text, likewise")
    parser.add_argument("out", type=Path, help="prefix of the files to write")
    parser.add_argument("--min-ratio", type=float, default=0.7, help="fewest target tokens for a source token (0.7)")
    parser.add_argument("--max-ratio", type=float, default=1.3, help="most target tokens for a source token (1.3)")
    parser.add_argument(
        "--slack", type=int, default=0, help="so many tokens more or less are not too many in a short pair (0)"
    )
    parser.add_argument("--max-tokens", type=int, default=80, help="most tokens of a side (80)")
    parser.add_argument("--fuzzy", type=float, default=0.8, help="least similarity of fuzzy duplicates (0.8)")
    parser.add_argument("--tokenised", action="store_true", help="tokens are what blanks separate")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=[rule for rule in RULES if rule not in ALWAYS],
        metavar="RULE",
        help="rules to leave out: punctuation, digits, length, ratio, exact, fuzzy",
    )
    parser.add_argument("--exclude", nargs="+", type=Path, default=[], help="held-out texts, of either language")
    parser.add_argument("--report", type=Path, help="file for the counts, JSON")
    return parser.parse_args()


def check(options: argparse.Namespace) -> tuple[Path, Path]:
    """The files to write; ends with an error where options mean nothing."""
    if not 0 < options.min_ratio <= options.max_ratio < float("inf"):
        sys.exit(
            f"error: --min-ratio {options.min_ratio} and --max-ratio {options.max_ratio} must be above 0 and in order"
        )
    if not 0 < options.fuzzy <= 1:
        sys.exit(f"error: --fuzzy must be more than 0 and at most 1, not {options.fuzzy}")
    if options.max_tokens < 1:
        sys.exit(f"error: --max-tokens must be at least 1, not {options.max_tokens}")
    if options.slack < 0:
        sys.exit(f"error: --slack must not be negative, but is {options.slack}")
    for path in (options.source, options.target, *options.exclude):
        if not path.is_file():
            sys.exit(f"error: {path} does not exist")
    languages = options.source.suffix, options.target.suffix
    if "" in languages or languages[0] == languages[1]:
        sys.exit(
            f"error: {options.source} and {options.target} must end with their languages, as train.en and train.de"
        )
    if not options.out.name:
        sys.exit(f"error: {options.out} must be a prefix of files, as clean/train")
    source, target = (options.out.with_name(options.out.name + language) for language in languages)
    if {source.resolve(), target.resolve()} & {options.source.resolve(), options.target.resolve()}:
        sys.exit(f"error: {options.out} would overwrite the text that is read: give another prefix")
    for path in (options.out, options.report):
        if path is not None and not path.absolute().parent.is_dir():
            sys.exit(f"error: there is no folder {path.absolute().parent}")
    return source, target


def differing(options: argparse.Namespace) -> str:
    numbers = [sum(1 for _ in lines(path)) for path in (options.source, options.target)]
    return f"{options.source} and {options.target} differ in their number of lines: {numbers[0]} and {numbers[1]}"


def main() -> None:
    options = parse_arguments()
    finals = check(options)
    partial = tuple(path.with_name(path.name + ".tmp") for path in finals)
    try:
        counts = clean(options, Cleaner(options, held_out_keys(options.exclude)), (partial[0], partial[1]))
        print(table(counts), file=sys.stderr)
        if options.report is not None:
            write_text(options.report, json.dumps(report(options, counts), indent=2) + "\n")
        if not counts["kept"]:
            sys.exit(f"error: not one pair of {options.source} and {options.target} is left")
        for unfinished, path in zip(partial, finals, strict=True):
            unfinished.replace(path)
    except ImportError:
        sys.exit(
            "error: fuzzy duplicates need the package rensa: pip install rensa, or leave the rule out: --without fuzzy"
        )
    except ValueError:  # of the zip
        sys.exit(f"error: {differing(options)}")
    except OSError as error:
        sys.exit(f"error: {error.strerror}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for path in partial:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
