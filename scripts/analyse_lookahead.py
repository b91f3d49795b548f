#!/usr/bin/env python3
"""How long drafts should have been, and what each --lookahead makes of it.

    python scripts/analyse_lookahead.py DATA --verifier FILE --drafter FILE [--output ANALYSIS.json]

The oracle length of an iteration is the number of its draft tokens that are accepted when the whole draft is verified:
an oracle would have drafted just so many. Each lookahead then decodes the same sentences, all of them in turns,
``--passes`` times: tokens per iteration, verifier calls, drafter calls (an autoregressive drafter runs once for each
token, a block drafter once for each draft; calls for several sentences at once count for each of them) and seconds, the
median over the passes. Written are one JSON file and,
beside it, two plots: the oracle lengths of one sentence with their histogram, and the lookaheads against the oracle
(figures of this kind are in Mamou et al. 2024, arXiv 2405.04304).
"""

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import plots
import report
from compare_strategies import batches, open_task

from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.host import Array
from block_plugins.decoding.lookahead import Lookahead
from block_plugins.decoding.settings import SearchSettings, SpeculationSettings
from block_plugins.decoding.statistics import Statistics
from block_plugins.models.block_nat import BlockNATModel

LOOKAHEADS = ["constant", "heuristic", "confidence", "adaptive", "auto"]


class Recorder:
    """A lookahead that keeps what came of it: accepted tokens and lengths, a list for each batch."""

    def __init__(self, lookahead: Lookahead) -> None:
        self.lookahead = lookahead
        self.goes_on = lookahead.goes_on
        self.accepted: list[list[int]] = []
        self.lengths: list[list[int]] = []

    def start(self, rows: int) -> None:
        """See ``Lookahead.start``."""
        self.accepted.append([])
        self.lengths.append([])
        self.lookahead.start(rows)

    def choose(self) -> Array:
        """See ``Lookahead.choose``."""
        return self.lookahead.choose()

    def record(self, sent: Array, accepted: Array, committed: Array, width: int, seconds: float) -> None:
        """See ``Lookahead.record``."""
        self.accepted[-1] += accepted.tolist()
        self.lengths[-1] += sent.tolist()
        self.lookahead.record(sent, accepted, committed, width, seconds)

    def select(self, keep: Array) -> None:
        """See ``Lookahead.select``."""
        self.lookahead.select(keep)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of every lookahead, and the oracle lengths of each sentence."""
    task = open_task(arguments.data)
    task.load_dataset(arguments.subset)
    dataset, symbols = task.dataset(arguments.subset), task.target_dictionary
    verifier = checkpoints.load_model(arguments.verifier, "--verifier", task)
    model: Any = checkpoints.load_model(arguments.drafter, "--drafter", task)
    pad, eos = symbols.pad(), symbols.eos()
    search = SearchSettings(pad, eos, symbols.unk())
    is_block = isinstance(model, BlockNATModel)
    lines = min(len(dataset), arguments.lines)

    def recorder(name: str) -> Recorder:
        return Recorder(generator.open_lookahead(name, arguments.draft_size, arguments.confidence_threshold))

    def decoder(lookahead: Lookahead) -> generator.DecodeFunction:
        drafter = generator.open_drafter(model, search, verifier)
        return generator.gad(drafter, verifier, search, SpeculationSettings(arguments.draft_size), lookahead=lookahead)

    # One by one, the whole draft verified: what is accepted is what an oracle would have drafted.
    everything = recorder("constant")
    whole = generator.Generator(decoder(everything), pad, eos)
    for sample in batches(dataset, 1, lines):
        whole.generate([], sample)
    oracle = everything.accepted

    recorders = {name: recorder(name) for name in LOOKAHEADS}
    decoders = {name: decoder(lookahead) for name, lookahead in recorders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in LOOKAHEADS}
    decoded: dict[str, Statistics] = {}
    for passed in range(arguments.passes + 1):
        for name, decode in decoders.items():
            one = generator.Generator(decode, pad, eos)
            recorders[name].lengths.clear()
            for sample in batches(dataset, arguments.batch, lines):
                one.generate([], sample)
            decoded[name] = one.statistics
            if passed > 0:  # the first is the warm-up
                seconds[name].append(one.statistics.seconds)
    accepted = [count for of_sentence in oracle for count in of_sentence]
    tokens = decoded["constant"].tokens
    table = [
        {
            "lookahead": "oracle",
            "tokens_per_iteration": tokens / len(accepted),
            "verifier_calls": len(accepted),
            "drafter_calls": sum(count > 0 for count in accepted) if is_block else sum(accepted),
            "seconds": None,
        }
    ]
    for name, figures in decoded.items():
        lengths = [length for of_batch in recorders[name].lengths for length in of_batch]
        table.append(
            {
                "lookahead": name,
                "tokens_per_iteration": figures.tokens / (figures.iterations + figures.undrafted),
                "verifier_calls": figures.iterations + figures.undrafted,
                "drafter_calls": sum(length > 0 for length in lengths) if is_block else sum(lengths),
                "seconds": statistics.median(seconds[name]),
            }
        )
    return {"table": table, "oracle": oracle, "batch": arguments.batch, "circumstances": report.circumstances()}


def plot_oracle(oracle: list[list[int]], path: Path) -> None:
    """The oracle lengths over the iterations of the sentence with the most, and the histogram of all."""
    figure = plots.new_figure(9.0, 3.4)
    if figure is None:
        return
    over_time, histogram = figure.subplots(1, 2)
    longest = max(oracle, key=len)
    over_time.step(range(1, len(longest) + 1), longest, where="mid", color=plots.LINES[0])
    over_time.set_xlabel("iteration of one sentence", fontsize=9)
    over_time.set_ylabel("oracle length", fontsize=9)
    counts = Counter(count for of_sentence in oracle for count in of_sentence)
    values = range(max(counts) + 1)
    histogram.bar(values, [counts[value] for value in values], color=plots.LINES[0])
    histogram.set_xlabel("oracle length", fontsize=9)
    histogram.set_ylabel("iterations", fontsize=9)
    for panel in (over_time, histogram):
        plots.tidy(panel)
    figure.savefig(path)


def plot_lookaheads(table: list[dict[str, Any]], path: Path) -> None:
    """One panel of bars for each figure, a bar for each lookahead."""
    figure = plots.new_figure(11.0, 3.2)
    if figure is None:
        return
    names = [row["lookahead"] for row in table]
    columns = ["tokens_per_iteration", "verifier_calls", "drafter_calls", "seconds"]
    for panel, column in zip(figure.subplots(1, len(columns), sharey=True), columns, strict=True):
        values = [row[column] or 0 for row in table]
        panel.barh(names, values, color=[plots.LINES[1 if name == "oracle" else 0] for name in names])
        for at, row in enumerate(table):
            value = row[column]
            panel.text(value or 0, at, "" if value is None else f" {value:.4g}", va="center", fontsize=7)
        panel.margins(x=0.3)
        panel.set_title(column.replace("_", " "), fontsize=9)
        plots.tidy(panel)
    panel.invert_yaxis()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--verifier", required=True, help="checkpoint of the verifier")
    parser.add_argument("--drafter", required=True, help="checkpoint of a block drafter or an autoregressive one")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--lines", type=int, default=200, help="first lines of the subset (default: 200)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--draft-size", type=int, default=20, help="tokens of a draft at most (default: 20)")
    parser.add_argument("--confidence-threshold", type=float, default=0.4)
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", default="runs/lookahead.json", help="JSON file; the plots go beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = run(arguments)
    lines = ["| lookahead | tokens/iteration | verifier calls | drafter calls | seconds |", "| --- |" + " ---: |" * 4]
    for row in found["table"]:
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.3f}"
        lines.append(
            f"| {row['lookahead']} | {row['tokens_per_iteration']:.2f} | {row['verifier_calls']} | "
            f"{row['drafter_calls']} | {seconds} |"
        )
    lines += ["", f"{found['circumstances']}; batch {found['batch']}; medians of {arguments.passes} passes."]
    output = Path(arguments.output)
    report.save(str(output.with_suffix(".md")), "\n".join(lines) + "\n", found)
    plot_oracle(found["oracle"], output.with_name(f"{output.stem}-oracle.svg"))
    plot_lookaheads(found["table"], output.with_name(f"{output.stem}-table.svg"))


if __name__ == "__main__":
    main()
