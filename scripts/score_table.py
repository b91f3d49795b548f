#!/usr/bin/env python3
"""The table of scripts/score.sh.

    scripts/score_table.py FOLDER LANGUAGE

FOLDER holds, line by line, tokenised hypotheses and reference (sys, ref), the same compound-split (sys.split,
ref.split) and, if there is one, the reference before its tokenisation (raw).
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesDetokenizer


class Row(NamedTuple):
    """One line of the table."""

    name: str
    score: str
    signature: str
    comparable: str


HEADER = Row("score", "", "signature", "compares with")


def read_lines(path: Path) -> list[str]:
    """The lines of a text, which end with a newline and with nothing else; ends the process where it isn't UTF-8."""
    try:
        return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        what = {"sys": "hypotheses", "ref": "reference", "raw": "raw reference"}.get(path.name, f"file {path}")
        sys.exit(f"error: line {line} of the {what} is not UTF-8 text ({error.reason})")


def as_fairseq() -> BLEU:
    """BLEU of tokenised text as fairseq-score computes it."""
    return BLEU(tokenize="none", smooth_method="none", force=True)


def row(
    metric: BLEU | CHRF, name: str, hypotheses: list[str], reference: list[str], comparable: str, prepared: str = ""
) -> Row:
    """The score of ``metric``; ``prepared`` is how the text came about, as sacreBLEU's signature doesn't tell."""
    score = metric.corpus_score(hypotheses, [reference]).score
    return Row(name, f"{score:.2f}", f"{metric.get_signature()}{prepared}", comparable)


def table(folder: Path, language: str) -> list[Row]:
    """The four scores."""
    hypotheses, reference = read_lines(folder / "sys"), read_lines(folder / "ref")
    detokenizer = MosesDetokenizer(lang=language)
    plain = [detokenizer.detokenize(line.split()) for line in hypotheses]
    prepared = f"|detok:sacremoses-{importlib.metadata.version('sacremoses')}-{language}"
    if (folder / "raw").exists():
        raw, prepared = read_lines(folder / "raw"), prepared + "|ref:raw"
        others = "such scores of other systems against this raw reference"
    else:
        raw, prepared = [detokenizer.detokenize(line.split()) for line in reference], prepared + "|ref:detok"
        others = "such scores against this detokenised reference, not against a raw one"

    return [
        row(as_fairseq(), "tokenised BLEU", hypotheses, reference,
            "what fairseq-generate prints with --remove-bpe; papers with the same tokenisation"),
        row(as_fairseq(), "compound-split BLEU", read_lines(folder / "sys.split"), read_lines(folder / "ref.split"),
            "scripts/compound_split_bleu.sh; papers that score WMT14 as Vaswani et al. (2017)", "|split:compounds"),
        row(BLEU(force=True), "sacreBLEU, detokenised", plain, raw, others, prepared),
        row(CHRF(), "chrF, detokenised", plain, raw, others, prepared),
    ]  # fmt: skip


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, language = Path(sys.argv[1]), sys.argv[2]
    detokenised = "the hypotheses" if (folder / "raw").exists() else "hypotheses and reference"
    rows = [HEADER, *table(folder, language)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, score, signature, comparable in rows:
        print(f"{name:{widths[0]}}  {score:>{widths[1]}}  {signature:{widths[2]}}  {comparable}")
    print(f"\n{len(read_lines(folder / 'sys'))} lines; detokenised: {detokenised}")


if __name__ == "__main__":
    main()
