"""The small slice of LibreOffice's help that is checked in under ``data/demo.en-de``.

``python -m corpus.make_demo ROOT DEMO``: ROOT is a folder into which libreoffice-help-en-us and libreoffice-help-de
were unpacked (``scripts/prepare_corpus.sh`` leaves it as OUT/work/packages), DEMO receives {train,valid,test}.{en,de}.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from corpus import lohelp
from corpus.clean import clean, deduplicate
from corpus.files import write_sets
from corpus.language import LanguageCheck
from corpus.pair import Pair, tokens
from corpus.report import Report
from corpus.sentences import split_pairs
from corpus.split import split

MIN_TOKENS, MAX_TOKENS = 3, 25
PAIRS = 11_000
HELD_OUT = 200
SEED = 1


def _types(text: str) -> set[str]:
    return set(tokens(text.casefold()))


def easiest(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """The ``count`` pairs whose rarest word is the most frequent, in the order in which they came.

    A model of a few minutes learns formulaic sentences with a small vocabulary, not a long tail of names.
    """
    sources = Counter(word for pair in pairs for word in _types(pair.source))
    targets = Counter(word for pair in pairs for word in _types(pair.target))

    def rarest(pair: Pair) -> int:
        return min(min(sources[w] for w in _types(pair.source)), min(targets[w] for w in _types(pair.target)))

    chosen = sorted(range(len(pairs)), key=lambda i: (-rarest(pairs[i]), i))[:count]
    return [pairs[i] for i in sorted(chosen)]


def demo_sets(root: Path, report: Report) -> dict[str, list[Pair]]:
    """Train, valid and test of the slice."""
    found = list(split_pairs(lohelp.extract(root, report)))
    report.find(lohelp.FAMILY, len(found))
    checked = LanguageCheck("en", "de").filter(deduplicate(clean(found, report), report), report)
    short = [
        pair for pair in checked if all(MIN_TOKENS <= len(tokens(t)) <= MAX_TOKENS for t in (pair.source, pair.target))
    ]
    return split(easiest(short, PAIRS), HELD_OUT, SEED, report)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the slice of real text that the demo trains on.")
    parser.add_argument("root", type=Path, help="folder into which the two help packages were unpacked")
    parser.add_argument("demo", type=Path, help="folder to write {train,valid,test}.{en,de} into")
    arguments = parser.parse_args()
    if not (arguments.root / lohelp.HELP_FOLDER).is_dir():
        sys.exit(f"error: {arguments.root}: no {lohelp.HELP_FOLDER} in it; unpack libreoffice-help-en-us and -de there")
    sets = demo_sets(arguments.root, Report())
    arguments.demo.mkdir(parents=True, exist_ok=True)
    write_sets(arguments.demo, sets, ("en", "de"))
    print(", ".join(f"{name}: {len(pairs)} pairs" for name, pairs in sets.items()))


if __name__ == "__main__":
    main()
