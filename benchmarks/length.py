"""Time of a sentence against the length of its translation, one sentence at a time.

    python benchmarks/length.py [--output RESULTS.md]
    python benchmarks/length.py --data FOLDER --verifier FILE --drafter FILE [--output RESULTS.md]

Every length is forced: EOS is ruled out before it, and comes at it. Sources are random sentences of 25 tokens. Without
checkpoints the weights are random; the drafters run, at their full cost, but their tokens are replaced by the
verifier's own output, each token of which is wrong with a given probability (see published_size.py), for drafts of
random weights would never be accepted. With checkpoints the drafter's tokens are its own.

For each strategy the exponent b of time = a * length ^ b is fitted (least squares over the logarithms): 1 is linear
growth. Beside it stands the time of a token relative to that at 100 tokens. All strategies and lengths take turns,
``--passes`` times after a warm-up; times are medians over the passes.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import plots
import published_size
import report
from compare_strategies import open_task

import block_plugins  # noqa: F401 - registers the task and the models
from block_plugins import checkpoints
from block_plugins.decoding import generator
from block_plugins.decoding.drafters import BlockDrafter
from block_plugins.decoding.settings import SearchSettings, SpeculationSettings
from block_plugins.errors import UserError

RELATIVE_TO = 100


def load(arguments: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The symbols, the verifier, and the drafters' networks by their names."""
    if arguments.verifier is None:
        symbols = published_size.dictionary(arguments.symbols)
        verifier, deep, shallow = published_size.models(symbols, arguments)
        return symbols, verifier, {"shallow drafter": shallow, f"drafter of {arguments.layers} layers": deep}
    task = open_task(arguments.data)
    verifier = checkpoints.load_model(arguments.verifier, "--verifier", task)
    drafter = checkpoints.load_model(arguments.drafter, "--drafter", task)
    positions = min(verifier.decoder.max_positions(), drafter.decoder.max_positions())
    if max(arguments.lengths) > positions:
        raise UserError(f"--lengths: {max(arguments.lengths)} tokens don't fit these models' {positions} positions")
    return task.target_dictionary, verifier, {"drafter": drafter}


def run(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The table's rows, and the exponent of each strategy's growth."""
    symbols, verifier, networks = load(arguments)
    special = (symbols.pad(), symbols.eos(), symbols.unk())
    pad, eos, unk = special
    samples = [published_size.sources(1, seed, symbols) for seed in range(arguments.sentences)]
    speculation = SpeculationSettings(arguments.block_size, lookahead=arguments.lookahead)
    drafters: dict[str, Any] = {}
    for name, network in networks.items():
        block = BlockDrafter(network, pad, unk, eos, verifier, int8=arguments.drafter_dtype == "int8")
        drafters[name] = block if arguments.verifier else published_size.ReplacedDrafter(block, arguments.errors)

    decoders: dict[tuple[str, int], Any] = {}
    outputs: dict[int, list[Any]] = {}
    for length in arguments.lengths:
        search = SearchSettings(*special, max_len_b=length - 1, min_len=length - 1)
        decoders["AR", length] = generator.autoregressive(verifier, search)
        for name, drafter in drafters.items():
            decoders[f"GAD, {name}", length] = generator.gad(drafter, verifier, search, speculation)
        greedy = generator.Generator(decoders["AR", length], pad, eos)
        outputs[length] = [greedy.generate([], sample)[0][0]["tokens"].unsqueeze(0) for sample in samples]

    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in decoders}
    figures: dict[tuple[str, int], dict[str, Any]] = {}
    for passed in tqdm(range(arguments.passes + 1), desc="passes", disable=None):
        for (name, length), decode in decoders.items():
            timed = generator.Generator(decode, pad, eos)
            spent = 0.0
            for sample, output in zip(samples, outputs[length], strict=True):
                for drafter in drafters.values():
                    drafter.outputs = output
                begin = time.perf_counter()
                (found,) = timed.generate([], sample)
                spent += time.perf_counter() - begin
                assert found[0]["tokens"].numel() == length
            if passed > 0:  # the first is the warm-up
                seconds[name, length].append(spent / len(samples))
            figures[name, length] = timed.statistics.as_dict()

    table = []
    for name in dict.fromkeys(name for name, _ in decoders):
        per_token = {length: statistics.median(seconds[name, length]) / length for length in arguments.lengths}
        base = per_token.get(RELATIVE_TO, per_token[arguments.lengths[0]])
        for length in arguments.lengths:
            table.append(
                {
                    "strategy": name,
                    "tokens": length,
                    "accepted_per_iteration": figures[name, length]["accepted_per_iteration"],
                    "seconds": per_token[length] * length,
                    "pass_seconds": seconds[name, length],
                    "seconds_per_token": per_token[length],
                    "relative": per_token[length] / base,
                }
            )
    return table, {name: exponent(table, name) for name in dict.fromkeys(row["strategy"] for row in table)}


def exponent(table: list[dict[str, Any]], name: str) -> float:
    """b of time = a * length ^ b."""
    points = [(row["tokens"], row["seconds"]) for row in table if row["strategy"] == name]
    lengths, seconds = np.log(np.array(points)).T
    return float(np.polyfit(lengths, seconds, 1)[0])


def markdown(table: list[dict[str, Any]], exponents: dict[str, float], arguments: argparse.Namespace) -> str:
    """The tables and what they were measured with."""
    base = RELATIVE_TO if RELATIVE_TO in arguments.lengths else arguments.lengths[0]
    lines = [
        "| strategy | target tokens | tokens/iteration | seconds a sentence | from-to | ms a token | "
        f"relative to {base} |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        rate = row["accepted_per_iteration"]
        lines.append(
            f"| {row['strategy']} | {row['tokens']} | {'' if rate is None else f'{rate:.2f}'} | {row['seconds']:.4f} | "
            f"{min(row['pass_seconds']):.4f} - {max(row['pass_seconds']):.4f} | "
            f"{1000 * row['seconds_per_token']:.3f} | {row['relative']:.2f} |"
        )
    lines += ["", "| strategy | time grows with length to the power of |", "| --- | ---: |"]
    lines += [f"| {name} | {value:.2f} |" for name, value in exponents.items()]
    weights = (
        f"{arguments.verifier} and {arguments.drafter}"
        if arguments.verifier
        else f"random weights, {arguments.layers} + {arguments.layers} layers of {arguments.width}, "
        f"{arguments.symbols} symbols; draft tokens are the verifier's, wrong at a rate of {arguments.errors:g}"
    )
    lines += [
        "",
        f"{report.circumstances()}. Batch 1; {weights}; {published_size.SOURCE_TOKENS} source tokens; block size "
        f"{arguments.block_size}, lookahead {arguments.lookahead}, drafter {arguments.drafter_dtype}; medians of "
        f"{arguments.passes} interleaved passes over {arguments.sentences} sentence(s), after a warm-up; loading not "
        "included.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[25, 50, 100, 200, 300, 400, 500])
    parser.add_argument("--data", help="folder with the dictionaries, for --verifier and --drafter")
    parser.add_argument("--verifier", help="checkpoint of the autoregressive model (default: random weights)")
    parser.add_argument("--drafter", help="checkpoint of the block drafter (default: random weights)")
    parser.add_argument("--layers", type=int, default=3, help="of the models with random weights (default: 3)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--symbols", type=int, default=8192)
    parser.add_argument("--errors", type=float, default=0.28, help="rate of wrong tokens in the drafts (default: 0.28)")
    parser.add_argument("--block-size", type=int, default=10)
    parser.add_argument("--lookahead", choices=("constant", "auto"), default="constant")
    parser.add_argument("--drafter-dtype", choices=("fp32", "int8"), default="int8")
    parser.add_argument("--sentences", type=int, default=1, help="sentences of a pass (default: 1)")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", help="Markdown file to write; its JSON and its plot (SVG) go beside it")
    arguments = parser.parse_args()
    if len({arguments.data is None, arguments.verifier is None, arguments.drafter is None}) > 1:
        parser.error("--data, --verifier and --drafter go together")
    arguments.lengths = sorted(set(arguments.lengths))
    torch.set_num_threads(arguments.threads)
    table, exponents = run(arguments)
    content = {"rows": table, "exponents": exponents}
    plot = report.save(arguments.output, markdown(table, exponents, arguments), content)
    if plot is not None:
        plots.growth(table, plot)


if __name__ == "__main__":
    main()
