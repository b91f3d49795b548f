"""Drafters, draft sizes, lookaheads and temperatures against plain decoding, with what theory predicts.

    python benchmarks/speculation.py DATA --verifier FILE --drafter FILE [FILE ...] [--output RESULTS.md]

Every drafter (block or autoregressive) runs with every draft size K and lookahead, at every temperature: 0 is greedy
decoding, others are sampling, where measured times choose nothing and "auto" is left out. Speeds are against
``--strategy AR`` at the same temperature; all take turns, ``--passes`` times after a warm-up, medians count.

Beside them stand two predictions from alpha, the share of draft tokens that were kept, and gamma, the time of drafting
one token over that of one plain step, both measured: (1 - alpha^(K+1)) / ((1 - alpha) (gamma K + 1)) (Leviathan et al.
2023, theorem 3.8), which takes each token to be kept with chance alpha by itself, and (K alpha + 1) / (K gamma + 1).
Both take a verifier pass to cost the same for one token and for K + 1, and hold for a draft of constant length.
"""

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report
from compare_strategies import batches, open_task

from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.settings import SamplingSettings, SearchSettings, SpeculationSettings
from block_plugins.models.block_nat import BlockNATModel

LOOKAHEADS = ("constant", "heuristic", "confidence", "adaptive", "auto")


@dataclass
class Row:
    """One way to decode; ``speeds`` are sentences/s of each pass."""

    drafter: str
    size: int
    lookahead: str
    temperature: float
    decode: generator.DecodeFunction
    speeds: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def predictions(alpha: float, gamma: float, size: int) -> tuple[float, float]:
    """The expected speed-ups, see the module's text."""
    kept = size + 1 if alpha == 1 else (1 - alpha ** (size + 1)) / (1 - alpha)
    return kept / (gamma * size + 1), (size * alpha + 1) / (size * gamma + 1)


def rows_for(symbols: Any, verifier: Any, models: list[tuple[str, Any]], arguments: argparse.Namespace) -> list[Row]:
    """Plain decoding and every combination of what is to be compared."""
    pad, eos, unk = symbols.pad(), symbols.eos(), symbols.unk()
    rows = []
    for temperature in arguments.temperature:
        search = SearchSettings(pad, eos, unk, temperature=temperature or 1.0)
        chance = SamplingSettings() if temperature > 0 else None
        plain = generator.autoregressive(verifier, search, sampling=chance)
        rows.append(Row("AR", 0, "", temperature, plain))
        int8 = arguments.drafter_dtype == "int8"
        drafters = [
            (
                f"{'block' if isinstance(model, BlockNATModel) else 'AR'} drafter {name}",
                generator.open_drafter(model, search, verifier, int8, temperature=temperature),
            )
            for name, model in models
        ]
        for (name, drafter), size, lookahead in itertools.product(drafters, arguments.draft_size, arguments.lookahead):
            if temperature > 0 and lookahead == "auto":
                continue
            threshold = arguments.confidence_threshold
            settings = SpeculationSettings(size, lookahead=lookahead, threshold=threshold, sampling=chance)
            decode = generator.gad(drafter, verifier, search, settings)
            rows.append(Row(name, size, lookahead, temperature, decode))
    return rows


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The table's rows."""
    task = open_task(arguments.data)
    task.load_dataset(arguments.subset)
    dataset, symbols = task.dataset(arguments.subset), task.target_dictionary
    verifier = checkpoints.load_model(arguments.verifier, "--verifier", task)
    models = [(Path(path).name, checkpoints.load_model(path, "--drafter", task)) for path in arguments.drafter]
    rows = rows_for(symbols, verifier, models, arguments)
    samples = batches(dataset, arguments.batch, min(len(dataset), arguments.lines))
    for passed in tqdm(range(arguments.passes + 1), desc="passes", disable=None):
        torch.manual_seed(passed)
        for row in rows:
            one = generator.Generator(row.decode, symbols.pad(), symbols.eos())
            for sample in samples:
                one.generate([], sample)
            if passed > 0:  # the first is the warm-up
                row.figures = one.statistics.as_dict()
                row.speeds.append(one.statistics.tokens / one.statistics.seconds)
    table = []
    plain = {row.temperature: row for row in rows if row.drafter == "AR"}
    for row in rows:
        figures, base = row.figures, plain[row.temperature]
        entry = {
            "drafter": row.drafter,
            "K": row.size,
            "lookahead": row.lookahead,
            "temperature": row.temperature,
            "tokens_per_second": statistics.median(row.speeds),
            "pass_speeds": row.speeds,
            "speedup": statistics.median(row.speeds) / statistics.median(base.speeds),
            "accepted_per_iteration": None,
            "alpha": None,
            "gamma": None,
            "leviathan": None,
            "linear": None,
        }
        if row.size > 0 and figures["iterations"] > 0:
            step = base.figures["seconds_verify"] / base.figures["tokens"]
            gamma = figures["seconds_draft"] / figures["iterations"] / row.size / step
            entry |= {name: figures[name] for name in ("accepted_per_iteration", "alpha")} | {"gamma": gamma}
            if row.lookahead == "constant":
                entry["leviathan"], entry["linear"] = predictions(figures["alpha"], gamma, row.size)
        table.append(entry)
    return table


def markdown(table: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    numbers = ["alpha", "accepted_per_iteration", "gamma", "speedup", "leviathan", "linear"]
    heads = [
        "alpha",
        "tokens/iteration",
        "gamma",
        "speed-up over AR",
        "Leviathan et al.",
        "(K alpha+1)/(K gamma+1)",
    ]
    lines = [
        "| drafter | temperature | K | lookahead | " + " | ".join(heads) + " |",
        "| --- | ---: | ---: | --- |" + " ---: |" * len(heads),
    ]
    for row in table:
        values = " | ".join("" if row[name] is None else f"{row[name]:.2f}" for name in numbers)
        lines.append(
            f"| {row['drafter']} | {row['temperature']:g} | {row['K'] or ''} | {row['lookahead']} | {values} |"
        )
    lines += [
        "",
        f"{report.circumstances()}; batch {arguments.batch}; {arguments.lines} sentences; drafter "
        f"{arguments.drafter_dtype}; medians of {arguments.passes} interleaved passes.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--verifier", required=True)
    parser.add_argument("--drafter", required=True, nargs="+", help="block drafters and autoregressive ones")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--draft-size", type=int, nargs="+", default=[3, 5, 8, 12, 20], help="default: 3 5 8 12 20")
    parser.add_argument("--lookahead", nargs="+", choices=LOOKAHEADS, default=LOOKAHEADS)
    parser.add_argument("--confidence-threshold", type=float, default=0.4)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8, 1.0, 1.2], help="0: greedy")
    parser.add_argument("--drafter-dtype", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--lines", type=int, default=64, help="first lines of the subset (default: 64)")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", help="Markdown file to write; its JSON goes beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = run(arguments)
    report.save(arguments.output, markdown(table, arguments), {"rows": table})


if __name__ == "__main__":
    main()
