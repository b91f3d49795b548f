#!/usr/bin/env python3
"""New source sentences in the style of a text: the beginning of one sentence with the end of another.

    scripts/recombine.py tok/train.en --without tok/valid.en tok/test.en > more.en

A verifier that has been trained on a text for long translates it almost by heart, and what it writes then is no example
of what it writes for other text, which is what a drafter has to learn. Sentences made of two are other text, and cost
nothing where there is no monolingual text of the kind. Most make little sense, which doesn't matter for words in a row.

The text is tokenised, not yet BPE-encoded, one sentence a line. A sentence is cut before one of the text's most
frequent words (punctuation and function words), where phrases tend to begin; each beginning gets the end of another
sentence, drawn without replacement. What the text, or one of --without, has already is left out, as are results that
are too long, and sentences too short to be cut.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from source_lines import clean_lines

FREQUENT = 50
"""So many words of a text count as its most frequent ones."""
MARGIN = 2
"""At least so many words are on either side of a cut."""


def halves(sentences: list[list[str]], chance: random.Random) -> Iterator[tuple[list[str], list[str]]]:
    """Each sentence cut in two at random before a frequent word; sentences without such a place are left out."""
    counts = Counter(word for words in sentences for word in words)
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    for words in sentences:
        places = [at for at in range(MARGIN, len(words) - MARGIN + 1) if words[at] in frequent]
        if places:
            at = chance.choice(places)
            yield words[:at], words[at:]


def recombine(
    text: Iterable[str], without: Iterable[str], *, copies: int = 1, longest: int = 60, seed: int = 1
) -> Iterator[str]:
    """New sentences of at most ``longest`` words; a line of the text is the beginning of at most ``copies`` of them."""
    chance = random.Random(seed)
    sentences = [line.split() for line in text]
    seen = {" ".join(words) for words in sentences} | {" ".join(line.split()) for line in without}
    for _ in range(copies):
        cut = list(halves(sentences, chance))
        ends = [end for _, end in cut]
        chance.shuffle(ends)
        for (beginning, _), end in zip(cut, ends, strict=True):
            words = beginning + end
            sentence = " ".join(words)
            if len(words) <= longest and sentence not in seen:
                seen.add(sentence)
                yield sentence


def read_lines(path: Path) -> list[str]:
    """Ends the process where there is no UTF-8 text."""
    try:
        with path.open("rb") as file:
            return list(clean_lines(file))
    except OSError as error:
        sys.exit(f"error: {path} can't be read ({error.strerror})")
    except ValueError as error:
        sys.exit(f"error: {path}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--without", nargs="+", type=Path, default=[], help="texts whose sentences must not be made")
    parser.add_argument("--copies", type=int, default=1, help="how often each beginning is used (%(default)s)")
    parser.add_argument("--max-words", type=int, default=60, help="longest sentence (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    without = [line for path in arguments.without for line in read_lines(path)]
    sentences = recombine(
        read_lines(arguments.text), without, copies=arguments.copies, longest=arguments.max_words, seed=arguments.seed
    )
    made = False
    for sentence in sentences:
        print(sentence)
        made = True
    if not made:
        sys.exit(f"error: nothing can be made of {arguments.text}: it has no sentences that are long enough")


if __name__ == "__main__":
    main()
