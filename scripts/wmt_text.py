#!/usr/bin/env python3
"""The two steps from a parallel text to one for fairseq-preprocess, in several processes.

    scripts/wmt_text.py tokenise LANG INPUT ... --out FILE [--held-out FILE] [--normalise] [--split-dashes]
    scripts/wmt_text.py encode CODES SRC_IN TGT_IN SRC_OUT TGT_OUT [--clean]

``tokenise`` (sacremoses) takes its inputs for one text, one sentence a line, and keeps the number of lines; --held-out
receives every hundredth line instead of --out. --normalise does to punctuation and to characters that can't be printed
what Moses' normalize-punctuation.perl and remove-non-printing-char.perl do, and --split-dashes writes "a @-@ b" for
"a-b".

``encode`` applies BPE (subword-nmt) to both sides. --clean leaves out the pairs that Moses' clean-corpus-n.perl leaves
out when it is called with -ratio 1.5 and the limits 1 and 250: a side is empty or longer than 250 subwords, one has
more than 1.5 times as many as the other, or there is a subword of more than 1000 characters.
"""

import argparse
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from multiprocessing import Pool
from pathlib import Path
from typing import Any

HELD_OUT_EVERY = 100
RATIO, LONGEST, LONGEST_WORD = 1.5, 250, 1000
BLOCK = 100_000
"""Items that are handed to the processes at once, so that the text needn't fit into memory."""

LINE_BREAKS = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""What one tool or another takes for the end of a line."""


class Tokeniser:
    """From a raw line to a tokenised one."""

    def __init__(self, language: str, normalise: bool, split_dashes: bool) -> None:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # takes a while, and only this step needs it

        self.normaliser = MosesPunctNormalizer(language) if normalise else None
        self.tokenizer = MosesTokenizer(language)
        self.split_dashes = split_dashes

    def __call__(self, line: str) -> str:
        line = LINE_BREAKS.sub(" ", line)
        if self.normaliser is not None:
            line = printable(self.normaliser.normalize(line))
        return str(self.tokenizer.tokenize(line, aggressive_dash_splits=self.split_dashes, return_str=True))


class Encoder:
    """From a tokenised pair to an encoded one, or to None where it is left out."""

    def __init__(self, codes: Path, clean: bool) -> None:
        from subword_nmt.apply_bpe import BPE

        with codes.open(encoding="utf-8") as file:
            self.bpe = BPE(file)
        self.clean = clean

    def __call__(self, pair: tuple[str, str]) -> tuple[str, str] | None:
        source, target = (self.bpe.process_line(line).split() for line in pair)
        if self.clean and not fits(source, target):
            return None
        return " ".join(source), " ".join(target)


def printable(line: str) -> str:
    """The line with a space for each character of the Unicode categories C (control, format, unassigned ...)."""
    if line.isprintable():
        return line
    return "".join(" " if unicodedata.category(character).startswith("C") else character for character in line)


def fits(source: list[str], target: list[str]) -> bool:
    """Whether training keeps the pair."""
    shorter, longer = sorted((len(source), len(target)))
    return (
        shorter >= 1
        and longer <= LONGEST
        and longer <= RATIO * shorter
        and len(max(source + target, key=len)) <= LONGEST_WORD
    )


_work: Callable[[Any], Any]
"""What a process of the pool does."""


def _start(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool


def _do(item: Any) -> Any:
    return _work(item)


def mapped(work: Callable[[Any], Any], items: Iterable[Any], workers: int) -> Iterator[Any]:
    """``work`` of each item, in order, by so many processes."""
    if workers == 1:
        yield from map(work, items)
        return
    items = iter(items)
    with Pool(workers, _start, (work,)) as pool:
        while block := list(islice(items, BLOCK)):
            yield from pool.map(_do, block, chunksize=500)


def lines(path: Path) -> Iterator[str]:
    """The lines of a file; bytes that aren't UTF-8 become U+FFFD, as a text of millions of lines has some."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")


def tokenise(arguments: argparse.Namespace) -> None:
    work = Tokeniser(arguments.language, arguments.normalise, arguments.split_dashes)
    text = (line for path in arguments.inputs for line in lines(path))
    with ExitStack() as files:
        out = files.enter_context(arguments.out.open("w", encoding="utf-8", newline="\n"))
        held_out = out
        if arguments.held_out is not None:
            held_out = files.enter_context(arguments.held_out.open("w", encoding="utf-8", newline="\n"))
        for number, line in enumerate(mapped(work, text, arguments.workers), start=1):
            (held_out if number % HELD_OUT_EVERY == 0 else out).write(line + "\n")


def encode(arguments: argparse.Namespace) -> None:
    pairs = zip(lines(arguments.source), lines(arguments.target), strict=True)
    total = kept = 0
    with ExitStack() as files:
        source, target = (
            files.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for path in (arguments.source_out, arguments.target_out)
        )
        for pair in mapped(Encoder(arguments.codes, arguments.clean), pairs, arguments.workers):
            total += 1
            if pair is not None:
                kept += 1
                source.write(pair[0] + "\n")
                target.write(pair[1] + "\n")
    print(f"{kept} of {total} pairs kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("tokenise")
    command.set_defaults(run=tokenise)
    command.add_argument("language")
    command.add_argument("inputs", type=Path, nargs="+")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--held-out", type=Path)
    command.add_argument("--normalise", action="store_true")
    command.add_argument("--split-dashes", action="store_true")
    command.add_argument("--workers", type=int, default=1)
    command = commands.add_parser("encode")
    command.set_defaults(run=encode)
    command.add_argument("codes", type=Path)
    command.add_argument("source", type=Path)
    command.add_argument("target", type=Path)
    command.add_argument("source_out", type=Path)
    command.add_argument("target_out", type=Path)
    command.add_argument("--clean", action="store_true")
    command.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except OSError as error:
        sys.exit(f"error: {error.strerror}" + (f": {error.filename}" if error.filename else ""))
    except ValueError as error:  # of the zip
        sys.exit(f"error: {arguments.source} and {arguments.target} differ in their number of lines ({error})")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
