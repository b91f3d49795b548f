"""From unpacked Debian packages and indices to train, valid and test text with its report.

``python -m corpus.build WORK OUT`` is a step of ``scripts/prepare_corpus.sh``, which says what WORK holds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from tqdm import tqdm

from corpus import ddtp, ding, lohelp
from corpus.clean import clean, deduplicate
from corpus.files import folder_in_one_go, write_families, write_sets, write_text
from corpus.language import LanguageCheck
from corpus.pair import Pair
from corpus.report import Report
from corpus.sentences import split_pairs
from corpus.sources import PACKAGES, read_versions, sources_markdown
from corpus.split import NotEnoughText, split

LANGUAGES = ("en", "de")
HELD_OUT = 1000
SEED = 1


def extract_all(work: Path, families: Collection[str], report: Report) -> Iterator[Pair]:
    """The raw pairs of all sources, family by family."""
    indices = work / "indices"
    packages = work / "packages"
    if "lohelp" in families:
        yield from lohelp.extract(packages, report)
    if "ddtp" in families:
        source_packages = ddtp.read_sources(indices / "Packages")
        yield from ddtp.extract(indices / "Translation-en", indices / "Translation-de", source_packages, report)
    if "ding" in families:
        yield from ding.extract(packages / "usr/share/trans/de-en", report)


def corpus_sets(work: Path, families: Collection[str], held_out: int, report: Report) -> dict[str, list[Pair]]:
    """Extracted, cut into sentences, cleaned, deduplicated, checked and split."""
    found: list[Pair] = []
    for pair in split_pairs(tqdm(extract_all(work, families, report), "reading", unit=" pairs")):
        report.find(pair.family)
        found.append(pair)
    unique = list(deduplicate(clean(tqdm(found, "cleaning", unit=" pairs"), report), report))
    checked = list(LanguageCheck(*LANGUAGES).filter(tqdm(unique, "language check", unit=" pairs"), report))
    return split(checked, held_out, SEED, report)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the text of the corpus.")
    parser.add_argument("work", type=Path, help="packages/ (unpacked), indices/ and versions.tsv")
    parser.add_argument("out", type=Path, help="receives text/, licences/ and README.md")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="lines of valid and of test")
    parser.add_argument("--families", nargs="+", choices=PACKAGES, default=list(PACKAGES), help="sources to take")
    arguments = parser.parse_args()
    work, out = arguments.work, arguments.out

    report = Report()
    try:
        sets = corpus_sets(work, arguments.families, arguments.held_out, report)
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename} is missing; remove {work} and run scripts/prepare_corpus.sh again")
    except NotEnoughText as error:
        sys.exit(f"error: {error}")
    with folder_in_one_go(out / "licences") as folder:
        for package in (package for family in arguments.families for package in PACKAGES[family]):
            shutil.copy(work / "packages/usr/share/doc" / package / "copyright", folder / f"{package}.txt")
    write_text(out / "README.md", sources_markdown(read_versions(work / "versions.tsv"), report, arguments.families))
    with folder_in_one_go(out / "text") as folder:
        write_sets(folder, sets, LANGUAGES)
        write_families(folder, sets)
    print(report.markdown())


if __name__ == "__main__":
    main()
