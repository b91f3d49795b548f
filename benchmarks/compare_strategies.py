"""Quality and speed of every decoding strategy on one test set, side by side in one run.

    python benchmarks/compare_strategies.py DATA --verifier FILE --drafter FILE [--output RESULTS.md]

DATA is a folder that fairseq-preprocess wrote. The strategies take turns on each chunk of the test set, so that a
machine whose speed drifts slows all of them alike; speeds are medians over the chunks. Loading models and data is not
part of the times. What is printed, and written as Markdown and JSON with --output, are one row for each strategy and
batch size: BLEU (sacreBLEU on detokenised text), sentences/s, speed-up over fairseq's beam 1, tokens committed per
iteration, alpha, and the number of lines that differ from fairseq's beam 1. For each line in which an exact strategy
differs, the gap between the verifier's two best scores at the first differing token is shown: in float32 a near-tie
can flip with the shape of a matrix product.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
from collections.abc import Callable
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

import block_plugins  # noqa: F401 - registers the task and the models
from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.settings import SearchSettings, SpeculationSettings

REFERENCE_ROW = "fairseq beam 1"
EXACT = ("AR", "GAD beta 1")


@dataclass
class Row:
    """One strategy at one batch size: its generator, and the tokens of each sentence by the sentence's number."""

    name: str
    batch: int
    generator: generator.Generator
    output: dict[int, list[int]] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)  # sentences/s of each chunk


def strategies(
    task: Any, verifier: Any, drafter: Any, block_size: int, max_len_b: int
) -> dict[str, Callable[[], generator.DecodeFunction]]:
    """The decode functions to compare, by the names they have in the table."""
    symbols = task.target_dictionary
    search = SearchSettings(pad=symbols.pad(), eos=symbols.eos(), unk=symbols.unk(), max_len_b=max_len_b)
    block = BlockDrafter(drafter, symbols.pad(), symbols.unk(), symbols.eos(), verifier)

    def fairseq_beam(size: int) -> generator.DecodeFunction:
        return generator.fairseq_search(SequenceGenerator([verifier], symbols, beam_size=size, max_len_b=max_len_b))

    def gad(beta: int, tau: float) -> generator.DecodeFunction:
        return generator.gad(block, verifier, search, SpeculationSettings(block_size, beta, tau))

    return {
        "fairseq beam 5": lambda: fairseq_beam(5),
        REFERENCE_ROW: lambda: fairseq_beam(1),
        "AR": lambda: generator.autoregressive(verifier, search),
        "GAD beta 1": lambda: gad(1, 0.0),
        "GAD beta 5 tau 3": lambda: gad(5, 3.0),
        "drafter only": lambda: generator.drafter_alone(block, drafter, search, block_size),
    }


def batches(task: Any, subset: str, size: int, first: int, last: int) -> list[dict[str, Any]]:
    """The sentences number ``first`` to ``last - 1`` of a subset in batches of ``size``, similar lengths together."""
    dataset = task.dataset(subset)
    numbers = sorted(range(first, min(last, len(dataset))), key=lambda number: (dataset.size(number), number))
    return [
        dataset.collater([dataset[number] for number in numbers[at : at + size]]) for at in range(0, len(numbers), size)
    ]


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

    rows = []
    for batch in arguments.batch:
        for name, build in strategies(task, verifier, drafter, arguments.block_size, arguments.max_len_b).items():
            rows.append(Row(name, batch, generator.Generator(build(), symbols.pad(), symbols.eos())))
    for row in rows:  # a warm-up that doesn't count
        warm = generator.Generator(row.generator.decode, symbols.pad(), symbols.eos())
        warm.generate([], batches(task, arguments.subset, row.batch, 0, row.batch)[0])

    for first in tqdm(range(0, total, arguments.chunk), desc="chunks", disable=None):
        for row in rows:
            before = row.generator.statistics.seconds
            for sample in batches(task, arguments.subset, row.batch, first, min(first + arguments.chunk, total)):
                found = row.generator.generate([], sample)
                for number, hypothesis in zip(sample["id"].tolist(), found, strict=True):
                    row.output[number] = hypothesis[0]["tokens"].tolist()
            sentences = min(first + arguments.chunk, total) - first
            row.speeds.append(sentences / (row.generator.statistics.seconds - before))

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
        greedy = next(other for other in rows if other.name == REFERENCE_ROW and other.batch == row.batch)
        differing = [number for number in range(total) if row.output[number] != greedy.output[number]]
        if row.name in EXACT:
            differences += [
                f"{row.name}, batch {row.batch}, line {number + 1}: "
                + near_tie(verifier, dataset[number]["source"], greedy.output[number], row.output[number])
                for number in differing
            ]
        figures = row.generator.statistics.as_dict()
        speed, base = statistics.median(row.speeds), statistics.median(greedy.speeds)
        table.append(
            {
                "strategy": row.name,
                "batch": row.batch,
                "BLEU": metric.corpus_score([text(row.output[n]) for n in range(total)], [references]).score,
                "speedup": speed / base,
                "differing": len(differing),
                **figures,
                "sentences_per_second": speed,
                "chunk_speeds": row.speeds,
            }
        )
    differences.append(f"BLEU: {metric.get_signature()}")
    return table, differences


def markdown(table: list[dict[str, Any]], notes: list[str], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    lines = [
        "| strategy | batch | BLEU | sentences/s | speed-up | tokens/iteration | alpha | lines that differ |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        per_iteration, alpha = (
            "" if row[name] is None else f"{row[name]:.2f}" for name in ("accepted_per_iteration", "alpha")
        )
        lines.append(
            f"| {row['strategy']} | {row['batch']} | {row['BLEU']:.2f} | {row['sentences_per_second']:.2f} | "
            f"{row['speedup']:.2f} x | {per_iteration} | {alpha} | {row['differing']} |"
        )
    machine = f"{platform.machine()}, {processor()}, {torch.get_num_threads()} threads, float32"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, fairseq {fairseq.__version__}"
    lines += [
        "",
        f"{datetime.date.today()}; {table[0]['sentences']} sentences, block size {arguments.block_size}, "
        f"speed-up over {REFERENCE_ROW} at the same batch size; {machine}; {versions}.",
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
    parser.add_argument("--block-size", type=int, default=25)
    parser.add_argument("--max-len-b", type=int, default=200)
    parser.add_argument("--lines", type=int, help="only so many lines of the subset")
    parser.add_argument("--chunk", type=int, default=128, help="lines after which the strategies take turns")
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
