"""What dual training and distillation bring: the models of scripts/low_resource.sh on a test set, in both directions.

    python benchmarks/low_resource.py DATA --source-lang en --target-lang de --plain FOLDER --dual FOLDER
        [--ablation NAME=FOLDER ...] [--reference TEXT/test] [--output RESULTS.md]

Each FOLDER holds what scripts/export_dual.py made of one training: forward-verifier.pt, forward-drafter.pt and the same
for the way back. "plain" was trained with cross entropy alone, "dual" with reconstruction and distillation, an ablation
like "dual" but for one thing. Each way of decoding first translates the whole test set: BLEU and chrF (sacreBLEU on
detokenised text) and alpha, the share of draft tokens that were accepted, come from there. Then all ways of a direction
take turns on the same set, ``--passes`` times: seconds are medians over these passes, without loading models and data.
Speed-up is against the plain verifier's greedy decoding.

Differences of scores are judged by sacreBLEU's paired bootstrap: p is the probability of a difference as large if there
were none.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sacremoses
import torch
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report
from compare_strategies import batches, open_task, without_bpe

from block_plugins import checkpoints, translation_scores
from block_plugins.decoding import generator
from block_plugins.decoding.settings import BeamSettings, SearchSettings, SpeculationSettings
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel

BASE, DUAL = "verifier, greedy", "dual + distilled, greedy"
METRICS = {"BLEU": BLEU, "chrF": CHRF}


@dataclass
class Row:
    """One way to decode; ``greedy`` names the row whose output it must have, ``seconds`` are those of each pass."""

    name: str
    decode: generator.DecodeFunction
    greedy: str = ""
    output: dict[int, list[int]] = field(default_factory=dict)  # tokens by the sentence's number
    alpha: float | None = None
    seconds: list[float] = field(default_factory=list)  # for a sentence


def rows_of(task: Any, dataset: Any, lines: int, way: str, arguments: argparse.Namespace) -> list[Row]:
    """All ways to decode the first ``lines`` of a set in one direction, ``way``: "forward" or "backward"."""
    symbols = task.target_dictionary
    search = SearchSettings(symbols.pad(), symbols.eos(), symbols.unk(), max_len_a=1.5, max_len_b=10)

    longest = max(range(lines), key=lambda number: int(dataset.src_sizes[number]))

    def loaded(folder: Path) -> tuple[Any, Any, Any]:
        files = [folder / f"{way}-{role}.pt" for role in ("verifier", "drafter")]
        verifier, drafter = (checkpoints.load_model(str(path), str(folder), task) for path in files)
        positions = min(network.max_positions()[0] for network in (verifier, drafter))
        if dataset.src_sizes[longest] > positions:
            raise UserError(
                f"line {longest + 1} of the set to translate has {dataset.src_sizes[longest]} tokens, but models in "
                f"{folder} have {positions} positions: leave such lines out, or train with more --max-source-positions"
            )
        return verifier, drafter, generator.open_drafter(drafter, search, verifier, arguments.drafter_dtype == "int8")

    def pair(folder: Path, greedy: str, drafted: str, lookaheads: dict[str, str]) -> Iterator[Row]:
        verifier, _, drafter = loaded(folder)
        yield Row(greedy, generator.autoregressive(verifier, search))
        for lookahead, name in lookaheads.items():
            settings = SpeculationSettings(arguments.draft_tokens, lookahead=lookahead)
            yield Row(name or drafted, generator.gad(drafter, verifier, search, settings), greedy)

    size = f"K = {arguments.draft_tokens}"
    _, network, drafter = loaded(arguments.plain)
    if isinstance(network, BlockNATModel):
        alone = Row("drafter alone", generator.drafter_alone(drafter, network, search, arguments.draft_tokens))
    else:
        alone = Row("drafter alone, beam 4", generator.left_to_right_beam(network, search, BeamSettings(size=4)))
    rows = [alone, *pair(arguments.plain, BASE, f"verifier + drafter, {size}", {"constant": ""})]
    drafted = {"constant": "", "auto": "the same, lookahead auto"}
    rows += pair(arguments.dual, DUAL, f"dual + distilled + drafter, {size}", drafted)
    for name, folder in arguments.ablation:
        rows += pair(folder, f"{name}, greedy", f"{name} + drafter, {size}", {"constant": ""})
    return rows


def translate(row: Row, samples: list[dict[str, Any]], symbols: Any) -> Any:
    """Translates the samples, keeps the output, and returns the statistics."""
    one = generator.Generator(row.decode, symbols.pad(), symbols.eos())
    for sample in samples:
        for number, hypotheses in zip(sample["id"].tolist(), one.generate([], sample), strict=True):
            row.output[number] = hypotheses[0]["tokens"].tolist()
    return one.statistics


def measure(
    arguments: argparse.Namespace, way: str, languages: tuple[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The table's rows for one direction, and remarks."""
    task = open_task(arguments.data, *languages)
    task.load_dataset(arguments.subset)
    dataset, symbols = task.dataset(arguments.subset), task.target_dictionary
    total = min(len(dataset), arguments.lines or len(dataset))
    rows = rows_of(task, dataset, total, way, arguments)
    direction = "-".join(languages)
    samples = batches(dataset, arguments.batch, total)
    for row in tqdm(rows, desc=f"{direction}: quality", disable=None):
        row.alpha = translate(row, samples, symbols).as_dict()["alpha"]
    for _ in tqdm(range(arguments.passes), desc=f"{direction}: passes", disable=None):
        for row in rows:
            figures = translate(row, samples, symbols)
            row.seconds.append(figures.seconds / figures.sentences)

    detokenizer = sacremoses.MosesDetokenizer(lang=languages[1])

    def text(tokens: list[int]) -> str:
        return str(detokenizer.detokenize(without_bpe(symbols, tokens).split()))

    references = [text(dataset[number]["target"].tolist()) for number in range(total)]
    if arguments.reference is not None:
        references = reference_file(arguments, languages[1]).read_text(encoding="utf-8").split("\n")[:total]
    lines = {row.name: [text(row.output[number]) for number in range(total)] for row in rows}
    base = statistics.median(next(row for row in rows if row.name == BASE).seconds)
    table, notes = [], []
    outputs = {row.name: row.output for row in rows}
    for row in rows:
        seconds = statistics.median(row.seconds)
        scores = {name: metric().corpus_score(lines[row.name], [references]).score for name, metric in METRICS.items()}
        table.append(
            {"direction": direction, "configuration": row.name, **scores, "alpha": row.alpha}
            | {"seconds_per_sentence": seconds, "speedup": base / seconds, "pass_seconds": row.seconds}
        )
        if row.greedy:
            unlike = sum(row.output[number] != outputs[row.greedy][number] for number in range(total))
            notes.append(f"{direction}: {row.name}: {total - unlike} of {total} lines are those of {row.greedy}")
    compared = [(BASE, DUAL), *((f"{name}, greedy", DUAL) for name, _ in arguments.ablation)]
    notes += [bootstrap(direction, one, other, lines, references) for one, other in compared]
    return table, notes


def bootstrap(direction: str, baseline: str, system: str, lines: dict[str, list[str]], references: list[str]) -> str:
    """By how much ``system`` differs from ``baseline``, with the p-values of a paired bootstrap."""
    metrics = {name: metric(references=[references]) for name, metric in METRICS.items()}
    systems = [(baseline, lines[baseline]), (system, lines[system])]
    _, found = PairedTest(systems, metrics, None, test_type="bs", n_samples=1000)()
    parts = []
    for name in METRICS:
        one, other = next(values for key, values in found.items() if key.startswith(name))
        parts.append(f"{name} {other.score - one.score:+.2f} (p = {other.p_value:.3f})")
    return f"{direction}: {system} against {baseline}: {', '.join(parts)}"


def markdown(table: list[dict[str, Any]], notes: list[str], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    lines = [
        "| direction | configuration | BLEU | chrF | alpha | seconds/sentence | speed-up |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        alpha = "-" if row["alpha"] is None else f"{row['alpha']:.2f}"
        lines.append(
            f"| {row['direction']} | {row['configuration']} | {row['BLEU']:.2f} | {row['chrF']:.2f} | {alpha} | "
            f"{row['seconds_per_sentence']:.4f} | {row['speedup']:.2f} |"
        )
    lines += [
        "",
        f"{report.circumstances()}; batch {arguments.batch}; drafter {arguments.drafter_dtype}; at most 1.5 * source "
        f"length + 10 tokens; seconds: medians of {arguments.passes} interleaved passes over all sentences.",
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def reference_file(arguments: argparse.Namespace, language: str) -> Path:
    """The raw test text in a language."""
    prefix: Path = arguments.reference
    return prefix.with_name(f"{prefix.name}.{language}")


def check(arguments: argparse.Namespace) -> None:
    """Raises ``UserError`` for files that aren't there."""
    for folder in (arguments.plain, arguments.dual, *(folder for _, folder in arguments.ablation)):
        for way, role in itertools.product(("forward", "backward"), ("verifier", "drafter")):
            if not (folder / f"{way}-{role}.pt").is_file():
                raise UserError(f"{folder} has no {way}-{role}.pt: give a folder that scripts/export_dual.py wrote to")
    if arguments.reference is not None:
        for language in (arguments.source_lang, arguments.target_lang):
            if not reference_file(arguments, language).is_file():
                raise UserError(f"--reference: there is no {reference_file(arguments, language)}")


def named_folder(text: str) -> tuple[str, Path]:
    """``NAME=FOLDER``."""
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ValueError(text)
    return name, Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--source-lang", required=True)
    parser.add_argument("--target-lang", required=True)
    parser.add_argument("--plain", type=Path, required=True, help="folder of the models trained with cross entropy")
    parser.add_argument("--dual", type=Path, required=True, help="folder of the models trained with all of the loss")
    parser.add_argument("--ablation", type=named_folder, nargs="+", default=[], metavar="NAME=FOLDER")
    parser.add_argument(
        "--reference",
        type=Path,
        help="prefix of the raw test text, before .LANGUAGE (default: the data's, detokenised)",
    )
    parser.add_argument("--subset", default="test")
    parser.add_argument("--draft-tokens", type=int, default=5, help="K (default: 5)")
    parser.add_argument("--drafter-dtype", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--batch", type=int, default=32, help="sentences decoded together (default: 32)")
    parser.add_argument("--passes", type=int, default=3, help="timed passes (default: 3)")
    parser.add_argument("--lines", type=int, help="only so many lines of the subset")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", help="Markdown file to write; its JSON goes beside it")
    arguments = parser.parse_args()
    check(arguments)
    torch.set_num_threads(arguments.threads)
    languages = arguments.source_lang, arguments.target_lang
    table, notes = measure(arguments, "forward", languages)
    back_table, back_notes = measure(arguments, "backward", languages[::-1])
    table, notes = table + back_table, notes + back_notes
    notes += [translation_scores.signature(name) for name in translation_scores.METRICS]
    report.save(arguments.output, markdown(table, notes, arguments), {"rows": table, "notes": notes})


if __name__ == "__main__":
    main()
