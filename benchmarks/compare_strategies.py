"""Quality and speed of every decoding strategy on one test set, side by side in one run.

    python benchmarks/compare_strategies.py DATA --verifier FILE --drafter FILE [--output RESULTS.md]

DATA is a folder that fairseq-preprocess wrote. Each strategy first translates the whole test set: BLEU (sacreBLEU on
detokenised text), tokens committed per iteration, alpha, and the number of lines that differ from fairseq's beam 1 come
from there. Then all take turns, ``--passes`` times, on the first ``--speed-lines`` sentences, so that a machine whose
speed drifts slows all of them alike: speeds are medians over these passes, beside them the slowest and the fastest.
Loading models and data is not part of the times. For each line in which an exact strategy differs, the gap between the
verifier's scores for both tokens is shown: in float32 a near-tie can flip with the shape of a matrix product.

CTranslate2 (extra "bench"), where it is installed, translates with the converted verifier. "floor" is what a perfect
and free drafter would cost: the encoder, and one verifier pass over the finished output.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fairseq
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

import block_plugins  # noqa: F401 - registers the task and the models
from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.drafters import BlockDrafter
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
    speeds: list[float] = field(default_factory=list)  # sentences/s of each pass
    figures: dict[str, Any] = field(default_factory=dict)


def rows_at(
    batch: int, task: Any, verifier: Any, drafter: Any, greedy: dict[tuple[int, ...], list[int]], arguments: Any
) -> list[Row]:
    """All strategies at one batch size. ``greedy`` gets fairseq's greedy outputs by source before "floor" runs."""
    symbols = task.target_dictionary
    search = SearchSettings(symbols.pad(), symbols.eos(), symbols.unk(), max_len_b=arguments.max_len_b)
    int8 = arguments.drafter_dtype == "int8"
    block = BlockDrafter(drafter, symbols.pad(), symbols.unk(), symbols.eos(), verifier, int8)

    def fairseq_beam(size: int) -> generator.DecodeFunction:
        own = SequenceGenerator([verifier], symbols, beam_size=size, max_len_b=arguments.max_len_b)
        return generator.fairseq_search(own)

    rows = [
        Row("fairseq beam 5", batch, fairseq_beam(5)),
        Row(REFERENCE_ROW, batch, fairseq_beam(1)),
        Row("left2right beam 5", batch, generator.left_to_right_beam(verifier, search, BeamSettings(size=5))),
        Row("AR", batch, generator.autoregressive(verifier, search), exact=True),
    ]
    for size in arguments.block_size:
        for beta, tau in ((1, 0.0), (5, 3.0)):
            speculation = SpeculationSettings(size, beta, tau, lookahead=arguments.lookahead)
            name = f"GAD beta {beta}{f' tau {tau:g}' if tau else ''}, block {size}"
            rows.append(Row(name, batch, generator.gad(block, verifier, search, speculation), exact=beta == 1))
        alone = generator.drafter_alone(block, drafter, search, size)
        rows.append(Row(f"drafter only, block {size}", batch, alone))
    for compute_type, beam in (("float32", 1), ("int8", 1), ("float32", 5)):
        peer = peers.ctranslate2(arguments.verifier, arguments.data, symbols, compute_type, beam, search)
        if peer is not None:
            rows.append(Row(f"CTranslate2 {compute_type} beam {beam}", batch, peer))
    return [*rows, Row("floor", batch, peers.floor(verifier, search, greedy), exact=True)]


def batches(task: Any, subset: str, size: int, lines: int) -> list[dict[str, Any]]:
    """The first ``lines`` sentences of a subset in batches of ``size``, similar lengths together."""
    dataset = task.dataset(subset)
    numbers = sorted(range(lines), key=lambda number: (dataset.size(number), number))
    return [dataset.collater([dataset[number] for number in numbers[at : at + size]]) for at in range(0, lines, size)]


def near_tie(verifier: Any, source: Tensor, expected: list[int], found: list[int]) -> str:
    """Where two outputs part, with the verifier's scores for both tokens there."""
    at = next(index for index, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
    eos = expected[-1]
    with torch.no_grad():
        inputs = torch.tensor([[eos, *expected[:at]]])
        logits = verifier(source.unsqueeze(0), torch.tensor([len(source)]), inputs)[0][0, -1]
    one, other = float(logits[expected[at]]), float(logits[found[at]])
    return f"token {at}: logits {one:.6f} and {other:.6f}, gap {abs(one - other):.1e}"


def run(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The table's rows, and a line for each sentence in which an exact strategy differs."""
    parser = options.get_generation_parser()
    words = [arguments.data, "--task", "translation_lev_modified", "--cpu"]
    task = tasks.setup_task(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words)).task)
    task.load_dataset(arguments.subset)
    dataset = task.dataset(arguments.subset)
    verifier = checkpoints.load_model(arguments.verifier, "--verifier", task)
    drafter = checkpoints.load_model(arguments.drafter, "--drafter", task)
    symbols = task.target_dictionary
    total = min(len(dataset), arguments.lines or len(dataset))

    greedy: dict[tuple[int, ...], list[int]] = {}
    rows = [row for batch in arguments.batch for row in rows_at(batch, task, verifier, drafter, greedy, arguments)]
    for row in tqdm(rows, desc="quality", disable=None):
        whole = generator.Generator(row.decode, symbols.pad(), symbols.eos())
        for sample in batches(task, arguments.subset, row.batch, total):
            for number, hypotheses in zip(sample["id"].tolist(), whole.generate([], sample), strict=True):
                row.output[number] = hypotheses[0]["tokens"].tolist()
                if row.name == REFERENCE_ROW:
                    greedy[peers.source_key(dataset[number]["source"], symbols.pad())] = row.output[number]
        row.figures = whole.statistics.as_dict()
    for _ in tqdm(range(arguments.passes), desc="passes", disable=None):
        for row in rows:
            timed = generator.Generator(row.decode, symbols.pad(), symbols.eos())
            for sample in batches(task, arguments.subset, row.batch, min(arguments.speed_lines, total)):
                timed.generate([], sample)
            row.speeds.append(timed.statistics.sentences / timed.statistics.seconds)

    detokenizer = sacremoses.MosesDetokenizer(lang=task.cfg.target_lang)

    def text(tokens: list[int]) -> str:
        plain = symbols.string(torch.tensor(tokens), "@@ ", extra_symbols_to_ignore={symbols.eos()})
        return str(detokenizer.detokenize(plain.split()))

    references = [text(dataset[number]["target"].tolist()) for number in range(total)]
    if arguments.reference is not None:
        references = Path(arguments.reference).read_text(encoding="utf-8").split("\n")[:total]
    metric = sacrebleu.metrics.BLEU()
    table, differences = [], []
    for row in rows:
        base = next(other for other in rows if other.name == REFERENCE_ROW and other.batch == row.batch)
        differing = [number for number in range(total) if row.output[number] != base.output[number]]
        if row.exact:
            differences += [
                f"{row.name}, batch {row.batch}, line {number + 1}: "
                + near_tie(verifier, dataset[number]["source"], base.output[number], row.output[number])
                for number in differing
            ]
        speed = statistics.median(row.speeds)
        table.append(
            {
                "strategy": row.name,
                "batch": row.batch,
                "BLEU": metric.corpus_score([text(row.output[n]) for n in range(total)], [references]).score,
                "differing": len(differing),
                **row.figures,
                "sentences_per_second": speed,
                "pass_speeds": row.speeds,
                "speedup": speed / statistics.median(base.speeds),
            }
        )
    differences.append(f"BLEU: {metric.get_signature()}")
    return table, differences


def markdown(table: list[dict[str, Any]], notes: list[str], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    lines = [
        "| strategy | batch | BLEU | lines that differ | tokens/iteration | alpha | sentences/s | from-to | speed-up |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        per_iteration, alpha = (
            "" if row[name] is None else f"{row[name]:.2f}" for name in ("accepted_per_iteration", "alpha")
        )
        speeds = f"{min(row['pass_speeds']):.1f} - {max(row['pass_speeds']):.1f}"
        lines.append(
            f"| {row['strategy']} | {row['batch']} | {row['BLEU']:.2f} | {row['differing']} | {per_iteration} | "
            f"{alpha} | {row['sentences_per_second']:.2f} | {speeds} | {row['speedup']:.2f} x |"
        )
    machine = f"{platform.machine()}, {processor()}, {torch.get_num_threads()} threads, float32"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, fairseq {fairseq.__version__}"
    lines += [
        "",
        f"{datetime.date.today()}; {table[0]['sentences']} sentences, speeds: medians of {arguments.passes} passes "
        f"over {min(arguments.speed_lines, table[0]['sentences'])} of them; GAD beta 1 with lookahead "
        f"{arguments.lookahead}, "
        f"drafter {arguments.drafter_dtype}; lines that differ and speed-up: against {REFERENCE_ROW} at the same "
        f"batch size; {machine}; {versions}.",
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def processor() -> str:
    """The processor's name, where Linux tells it."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if (info.exists())
        else []
    )
    return names[0] if names else platform.processor() or "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--verifier", required=True, help="checkpoint of the autoregressive model")
    parser.add_argument("--drafter", required=True, help="checkpoint of the block drafter")
    parser.add_argument("--reference", help="raw reference text (default: the data's, detokenised)")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="batch sizes (default: 1 32)")
    parser.add_argument("--block-size", type=int, nargs="+", default=[25], help="block sizes (default: 25)")
    parser.add_argument("--lookahead", choices=("constant", "auto"), default="auto")
    parser.add_argument("--drafter-dtype", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--max-len-b", type=int, default=200)
    parser.add_argument("--lines", type=int, help="only so many lines of the subset")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--speed-lines", type=int, default=128, help="lines of a timed pass (default: 128)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", help="Markdown file to write; its JSON goes beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table, notes = run(arguments)
    report = markdown(table, notes, arguments)
    print(report)
    if arguments.output:
        path = Path(arguments.output)
        path.write_text(report, encoding="utf-8")
        path.with_suffix(".json").write_text(
            json.dumps({"rows": table, "notes": notes}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
