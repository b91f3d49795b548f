"""Quality, speed and memory of every decoding strategy on one test set, side by side in one run.

    python benchmarks/compare_strategies.py DATA --verifier FILE --drafter FILE [--output RESULTS.md]

DATA is a folder that fairseq-preprocess wrote. Each strategy first translates the whole test set: BLEU (sacreBLEU on
detokenised text), tokens committed per iteration, alpha, the share of sentences that are identical to those of
fairseq's beam 1, the share of tokens that lookahead auto decoded without a draft, and the peak memory come from there.
Then all take turns, ``--passes`` times, on the first ``--speed-lines`` sentences, so that a machine whose speed drifts
slows all of them alike: speeds are medians over these passes, beside them the slowest and the fastest. Loading models
and data is not part of the times. For each line in which an exact strategy differs, the gap between the verifier's
scores for both tokens is shown: in float32 a near-tie can flip with the shape of a matrix product.

Peak memory is what the process held at most while a strategy translated, beyond what it held before: caches,
activations and buffers. All models are loaded by then, and each strategy has translated one sentence.

CTranslate2 (extra "bench"), where it is installed, translates with the converted verifier. "floor" is what a perfect
and free drafter would cost: the encoder, and one verifier pass over the finished output. With ``--authors`` the
authors' own script runs too, in a process of its own.
"""

import argparse
import copy
import itertools
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sacrebleu
import sacremoses
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers
import plots
import report
from authors import Authors
from memory import PeakMemory

import block_plugins  # noqa: F401 - registers the task and the models
from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.drafters import Drafter
from block_plugins.decoding.settings import BeamSettings, SearchSettings, SpeculationSettings

REFERENCE_ROW = "fairseq beam 1"


@dataclass
class Row:
    """One strategy at one batch size: how it decodes, and the tokens of each sentence by the sentence's number."""

    name: str
    batch: int
    decode: generator.DecodeFunction
    exact: bool = False  # whether it has to give fairseq's greedy output
    output: dict[int, list[int]] = field(default_factory=dict)
    peak_memory: int | None = None  # bytes
    speeds: list[float] = field(default_factory=list)  # sentences/s of each pass
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class AuthorsRow:
    """GAD by the authors' script at one batch size; ``lines`` are its translations by the sentence's number."""

    name: str
    batch: int
    setting: tuple[int, int, float]  # block size, beta, tau
    lines: dict[int, str] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)


def acceptances(
    rules: list[tuple[int, float]], sizes: list[int], draft: str = "block"
) -> list[tuple[str, int, int, float]]:
    """What GAD is compared with: a label, the size of its drafts, beta and tau, which come from ``rules``."""
    return [
        (f"GAD beta {beta}{f' tau {tau:g}' if tau else ''}, {draft} {size}", size, beta, tau)
        for size in sizes
        for beta, tau in rules
    ]


def acceptance_rule(text: str) -> tuple[int, float]:
    """Beta and tau from ``BETA:TAU``."""
    beta, _, tau = text.partition(":")
    rule = int(beta), float(tau)
    if rule[0] < 1 or not rule[1] >= 0:
        raise ValueError(text)
    return rule


def rows_at(
    batch: int,
    task: Any,
    verifier: Any,
    drafter: Any,
    ar_drafter: Any,
    greedy: dict[tuple[int, ...], list[int]],
    arguments: Any,
) -> list[Row]:
    """All strategies at one batch size. ``ar_drafter`` may be None; ``greedy`` gets fairseq's greedy outputs by source
    before "floor" runs.
    """
    symbols = task.target_dictionary
    search = SearchSettings(symbols.pad(), symbols.eos(), symbols.unk(), max_len_b=arguments.max_len_b)

    def opened(model: Any, dtype: str) -> Drafter:
        model = copy.deepcopy(model).bfloat16() if dtype == "bf16" else model
        return generator.open_drafter(model, search, verifier, dtype == "int8")

    drafts = [("block", drafter, arguments.block_size)]
    if ar_drafter is not None:
        drafts.append(("AR drafter", ar_drafter, arguments.draft_tokens))

    def fairseq_beam(size: int) -> generator.DecodeFunction:
        own = SequenceGenerator([verifier], symbols, beam_size=size, max_len_b=arguments.max_len_b)
        return generator.fairseq_search(own)

    rows = [
        Row("fairseq beam 5", batch, fairseq_beam(5)),
        Row(REFERENCE_ROW, batch, fairseq_beam(1)),
        Row("left2right beam 5", batch, generator.left_to_right_beam(verifier, search, BeamSettings(size=5))),
        Row("AR greedy", batch, generator.autoregressive(verifier, search), exact=True),
    ]
    proposing: dict[tuple[str, str], Drafter] = {}
    for (draft, model, sizes), dtype in itertools.product(drafts, arguments.drafter_dtype):
        one = proposing[draft, dtype] = opened(model, dtype)
        for name, size, beta, tau in acceptances(arguments.acceptance, sizes, draft):
            speculation = SpeculationSettings(size, beta, tau, lookahead=arguments.lookahead)
            named = f"{name}, {dtype}" if len(arguments.drafter_dtype) > 1 else name
            rows.append(Row(named, batch, generator.gad(one, verifier, search, speculation), exact=beta == 1))
    for size in arguments.block_size:
        block = proposing["block", arguments.drafter_dtype[0]]
        alone = generator.drafter_alone(block, drafter, search, size)
        rows.append(Row(f"drafter only, block {size}", batch, alone))
    if arguments.float64:
        return rows
    for compute_type, beam in (("float32", 1), ("int8", 1), ("float32", 5), ("int8", 5)):
        peer = peers.ctranslate2(arguments.verifier, arguments.data, symbols, compute_type, beam, search)
        if peer is not None:
            rows.append(Row(f"CTranslate2 {compute_type} beam {beam}", batch, peer))
    return [*rows, Row("floor", batch, peers.floor(verifier, search, greedy), exact=True)]


def by_length(dataset: Any, lines: int) -> list[int]:
    """The numbers of the first ``lines`` sentences, similar lengths together."""
    return sorted(range(lines), key=lambda number: (dataset.size(number), number))


def batches(dataset: Any, size: int, lines: int) -> list[dict[str, Any]]:
    """The first ``lines`` sentences in batches of ``size``."""
    numbers = by_length(dataset, lines)
    return [dataset.collater([dataset[number] for number in numbers[at : at + size]]) for at in range(0, lines, size)]


def without_bpe(symbols: Any, tokens: list[int]) -> str:
    """The words of an output or a target, whose EOS goes."""
    return str(symbols.string(torch.tensor(tokens), "@@ ", extra_symbols_to_ignore={symbols.eos()}))


def open_task(data: str, *languages: str) -> Any:
    """The task on a folder that fairseq-preprocess wrote; ``languages``, source and target, if they are to be others
    than the folder says.
    """
    words = [data, "--task", "translation_lev_modified", "--cpu"]
    for option, language in zip(("--source-lang", "--target-lang"), languages, strict=False):
        words += [option, language]
    parsed = options.parse_args_and_arch(options.get_generation_parser(), words)
    return tasks.setup_task(convert_namespace_to_omegaconf(parsed).task)


def near_tie(verifier: Any, source: Tensor, expected: list[int], found: list[int]) -> str:
    """Where two outputs part, with the verifier's scores for both tokens there."""
    at = next(index for index, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
    eos = expected[-1]
    with torch.no_grad():
        inputs = torch.tensor([[eos, *expected[:at]]])
        logits = verifier(source.unsqueeze(0), torch.tensor([len(source)]), inputs)[0][0, -1]
    one, other = float(logits[expected[at]]), float(logits[found[at]])
    return f"token {at}: logits {one:.6f} and {other:.6f}, gap {abs(one - other):.1e}"


def fitting(block_sizes: list[int], drafter: Any, notes: list[str]) -> list[int]:
    """The block sizes for which the drafter has positions; the others are noted."""
    positions = drafter.decoder.max_positions()
    if any(size >= positions for size in block_sizes):
        notes.append(f"block sizes from {positions} on are left out: the drafter has {positions} positions")
    return [size for size in block_sizes if size < positions]


def run(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The table's rows, and remarks: among them a line for each sentence in which an exact strategy differs."""
    task = open_task(arguments.data)
    task.load_dataset(arguments.subset)
    dataset = task.dataset(arguments.subset)
    verifier = checkpoints.load_model(arguments.verifier, "--verifier", task)
    drafter = checkpoints.load_model(arguments.drafter, "--drafter", task)
    ar_drafter = None
    if arguments.ar_drafter is not None:
        ar_drafter = checkpoints.load_model(arguments.ar_drafter, "--ar-drafter", task)
    if arguments.float64:
        verifier, drafter = verifier.double(), drafter.double()
        ar_drafter = ar_drafter and ar_drafter.double()
    symbols = task.target_dictionary
    total = min(len(dataset), arguments.lines or len(dataset))
    timed_lines = min(arguments.speed_lines, total)
    notes: list[str] = []
    arguments.block_size = fitting(arguments.block_size, drafter, notes)

    greedy: dict[tuple[int, ...], list[int]] = {}
    rows = [
        row
        for batch in arguments.batch
        for row in rows_at(batch, task, verifier, drafter, ar_drafter, greedy, arguments)
    ]
    if not arguments.float64 and not any(row.name.startswith("CTranslate2") for row in rows):
        notes.append("CTranslate2 isn't installed (pip install -e '.[bench]'): its rows are left out")
    own: list[AuthorsRow] = []
    if arguments.authors is not None:
        authors = Authors(
            arguments.authors, arguments.authors_python, arguments.authors_flags, arguments.data,
            task.cfg.source_lang, task.cfg.target_lang, arguments.verifier, arguments.drafter,
        )  # fmt: skip
        own = [
            AuthorsRow(f"authors' {name} ({authors.script(batch).name})", batch, (size, beta, tau))
            for batch in arguments.batch
            for name, size, beta, tau in acceptances(arguments.acceptance, arguments.block_size)
        ]
        sources = [task.source_dictionary.string(dataset[number]["source"]) for number in range(total)]

    def translate(row: Row, samples: list[dict[str, Any]]) -> generator.Generator:
        whole = generator.Generator(row.decode, symbols.pad(), symbols.eos())
        for sample in samples:
            for number, hypotheses in zip(sample["id"].tolist(), whole.generate([], sample), strict=True):
                row.output[number] = hypotheses[0]["tokens"].tolist()
                if row.name == REFERENCE_ROW:
                    greedy[peers.source_key(dataset[number]["source"], symbols.pad())] = row.output[number]
        return whole

    for row in tqdm(rows, desc="quality", disable=None):
        samples = batches(dataset, row.batch, total)
        translate(row, batches(dataset, 1, 1))  # what is made once is made here
        with PeakMemory() as memory:
            row.figures = translate(row, samples).statistics.as_dict()
        row.peak_memory = memory.bytes
    for row in tqdm(own, desc="quality of the authors' code", disable=None):
        order = by_length(dataset, total)
        lines, _ = authors.translate([sources[number] for number in order], row.batch, *row.setting)
        row.lines = dict(zip(order, lines, strict=True))
    for _ in tqdm(range(arguments.passes), desc="passes", disable=None):
        for row in rows:
            timed = generator.Generator(row.decode, symbols.pad(), symbols.eos())
            for sample in batches(dataset, row.batch, timed_lines):
                timed.generate([], sample)
            row.speeds.append(timed.statistics.sentences / timed.statistics.seconds)
        for row in own:
            lines = [sources[number] for number in by_length(dataset, timed_lines)]
            row.speeds.append(authors.speed(lines, row.batch, *row.setting))

    detokenizer = sacremoses.MosesDetokenizer(lang=task.cfg.target_lang)

    def plain(tokens: list[int]) -> str:
        return without_bpe(symbols, tokens)

    def text(line: str) -> str:
        return str(detokenizer.detokenize(line.split()))

    references = [text(plain(dataset[number]["target"].tolist())) for number in range(total)]
    if arguments.reference is not None:
        references = Path(arguments.reference).read_text(encoding="utf-8").split("\n")[:total]
    metric = sacrebleu.metrics.BLEU()

    def entry(row: Row | AuthorsRow, base: Row, lines: list[str], differing: int) -> dict[str, Any]:
        speed = statistics.median(row.speeds)
        return {
            "strategy": row.name,
            "batch": row.batch,
            "BLEU": metric.corpus_score([text(line) for line in lines], [references]).score,
            "differing": differing,
            "identical": 1 - differing / total,
            "accepted_per_iteration": None,
            "alpha": None,
            **(row.figures if isinstance(row, Row) else {"sentences": total}),
            "peak_memory": row.peak_memory if isinstance(row, Row) else None,
            "sentences_per_second": speed,
            "pass_speeds": row.speeds,
            "speedup": speed / statistics.median(base.speeds),
        }

    table = []
    for batch in arguments.batch:
        base = next(row for row in rows if row.name == REFERENCE_ROW and row.batch == batch)
        greedy_lines = [plain(base.output[number]) for number in range(total)]
        for row in (row for row in rows if row.batch == batch):
            differing = [number for number in range(total) if row.output[number] != base.output[number]]
            if row.exact:
                notes += [
                    f"{row.name}, batch {batch}, line {number + 1}: "
                    + near_tie(verifier, dataset[number]["source"], base.output[number], row.output[number])
                    for number in differing
                ]
            table.append(entry(row, base, [plain(row.output[number]) for number in range(total)], len(differing)))
        for row in (row for row in own if row.batch == batch):
            lines = [row.lines[number] for number in range(total)]
            unlike = sum(one.split() != other.split() for one, other in zip(lines, greedy_lines, strict=True))
            table.append(entry(row, base, lines, unlike))
    if own:
        notes.append(
            "the authors' script: identical means equal text, without BPE; its speed has reading the input and writing "
            "the output in it, but not the start of the process with the loading of the models: that is what a run on "
            "one sentence takes, and is subtracted"
        )
    notes.append(f"BLEU: {metric.get_signature()}")
    return table, notes


def markdown(table: list[dict[str, Any]], notes: list[str], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    lines = [
        "| strategy | batch | BLEU | identical to greedy | without a draft | tokens/iteration | alpha | "
        "peak memory, MB | sentences/s | from-to | speed-up |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        per_iteration, alpha = (
            "" if row[name] is None else f"{row[name]:.2f}" for name in ("accepted_per_iteration", "alpha")
        )
        plain = "GAD" not in row["strategy"] or "undrafted" not in row
        undrafted = "" if plain else f"{100 * row['undrafted'] / row['tokens']:.0f} %"
        peak = "" if row["peak_memory"] is None else f"{row['peak_memory'] / 1e6:.1f}"
        speeds = f"{min(row['pass_speeds']):.2f} - {max(row['pass_speeds']):.2f}"
        lines.append(
            f"| {row['strategy']} | {row['batch']} | {row['BLEU']:.2f} | {100 * row['identical']:.1f} % | "
            f"{undrafted} | {per_iteration} | {alpha} | {peak} | {row['sentences_per_second']:.2f} | {speeds} | "
            f"{row['speedup']:.2f} x |"
        )
    sentences = table[0]["sentences"]
    lines += [
        "",
        f"{report.circumstances()}. {sentences} sentences; speeds: medians of {arguments.passes} interleaved passes "
        f"over {min(arguments.speed_lines, sentences)} of them, after a warm-up (the pass over all sentences), loading "
        f"of models and data not included; GAD beta 1 with lookahead {arguments.lookahead}, drafter "
        f"{' and '.join(arguments.drafter_dtype)}{', all else in float64' if arguments.float64 else ''}; identical "
        f"and speed-up: against {REFERENCE_ROW} at the same batch size; peak "
        "memory: beyond that of the loaded models.",
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--verifier", required=True, help="checkpoint of the autoregressive model")
    parser.add_argument("--drafter", required=True, help="checkpoint of the block drafter")
    parser.add_argument("--ar-drafter", help="checkpoint of a small autoregressive drafter, which is compared as well")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[3], help="tokens that it drafts (default: 3)")
    parser.add_argument("--reference", help="raw reference text (default: the data's, detokenised)")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128], help="default: 1 8 32 128")
    parser.add_argument("--block-size", type=int, nargs="+", default=[5, 10, 15, 25], help="default: 5 10 15 25")
    parser.add_argument(
        "--acceptance", type=acceptance_rule, nargs="+", default=[(1, 0.0), (5, 3.0)], metavar="BETA:TAU",
        help="what GAD keeps of drafts (default: 1:0 5:3)",
    )  # fmt: skip
    parser.add_argument("--lookahead", choices=("constant", "auto"), default="auto")
    parser.add_argument(
        "--drafter-dtype", choices=("fp32", "bf16", "int8"), nargs="+", default=["int8"], help="default: int8"
    )
    parser.add_argument(
        "--float64", action="store_true", help="both models in float64, to see what is identical without rounding"
    )
    parser.add_argument("--max-len-b", type=int, default=200)
    parser.add_argument("--lines", type=int, help="only so many lines of the subset")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--speed-lines", type=int, default=128, help="lines of a timed pass (default: 128)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--authors", metavar="PATH", help="checkout of the authors' code: adds its GAD to the table")
    parser.add_argument("--authors-python", metavar="FILE", default=sys.executable, help="the Python that runs it")
    parser.add_argument(
        "--authors-flags", metavar="FLAGS", default="--cpu", help="more flags for its script (default: --cpu)"
    )
    parser.add_argument("--output", help="Markdown file to write; its JSON and its plot (SVG) go beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table, notes = run(arguments)
    plot = report.save(arguments.output, markdown(table, notes, arguments), {"rows": table, "notes": notes})
    if plot is not None:
        plots.speedups(table, REFERENCE_ROW, plot)


if __name__ == "__main__":
    main()
