"""Speed of training on the CPU: a verifier, and a block drafter in its ways of training, on the same batches.

    python benchmarks/training_speed.py [--data FOLDER] [--bf16] [--output RESULTS.md]

A step is fairseq's whole step: forward and backward, clipping, Adam. "One pass" is a drafter's step without glancing,
"two passes" the published one (GLAT): a glancing pass without gradient, and one on what is still masked. Tokens are the
target tokens of the batch's sentences, whatever is masked of them. Without ``--data`` sentences are of random symbols,
with lengths as in news text.

``--authors`` adds the authors' own training (their train.py) with the same flags, batches and seeds: it and this plugin
run as processes of their own, in turns, and an update is timed from the moment at which its predecessor was logged, so
that starting and loading aren't counted.

``--bf16`` trains drafter and verifier twice from the same weights on the same batches, in float32 and under
``--cpu-autocast bf16``, and compares validation loss and time.

All rows take turns, ``--passes`` times after a warm-up; times are medians over the passes.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import report

import block_plugins  # noqa: F401 - registers the task and the models
from block_plugins.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[1]
VERIFIER = ["--arch", "transformer", "--criterion", "label_smoothed_cross_entropy", "--noise", "no_noise",
            "--no-scale-embedding"]  # fmt: skip
DRAFTER = ["--arch", "block", "--criterion", "glat_loss", "--noise", "block_mask", "--src-embedding-copy",
           "--apply-bert-init"]  # fmt: skip
ONE_PASS = ["--start-p", "0", "--minus-p", "0"]
TWO_PASSES = ["--start-p", "0.5", "--minus-p", "0.2"]
PLAIN, GLAT, OF_VERIFIER = "drafter, one pass", "drafter, two passes", "verifier"
TARGETS = {"two passes": 1.75, "authors": 1.15, "bf16": 0.01}
"""Time of a two-pass step in one-pass steps, speed in the authors', and relative difference of validation losses."""
OWN_TRAINING = [sys.executable, "-m", "fairseq_cli.train", "--user-dir", str(REPOSITORY / "block_plugins")]


def write_random_corpus(folder: str, symbols: int, sentences: int) -> str:
    """A folder as fairseq-preprocess writes it, of random symbols; returns it.

    Lengths are log-normal with a median of 22 tokens, as in newspapers, from 1 to 150; a target is a little longer or
    shorter than its source.
    """
    dictionary = Dictionary()
    for index in range(len(dictionary), symbols):
        dictionary.add_symbol(f"symbol{index}")
    random = np.random.default_rng(1)
    for split, count in (("train", sentences), ("valid", max(8, sentences // 20))):
        lengths = random.lognormal(np.log(22), 0.6, count)
        for language in ("en", "de"):
            dictionary.save(f"{folder}/dict.{language}.txt")
            prefix = f"{folder}/{split}.en-de.{language}"
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=symbols)
            for length in np.clip(lengths * random.normal(1, 0.1, count), 1, 150).astype(int):
                words = random.integers(dictionary.nspecial, symbols, length)
                builder.add_item(torch.from_numpy(np.append(words, dictionary.eos())))
            builder.finalize(f"{prefix}.idx")
    return folder


def network(arguments: argparse.Namespace) -> list[str]:
    """fairseq's flags for sizes, optimizer and batches, as published where they aren't the benchmark's own."""
    sizes = [
        word
        for side in ("encoder", "decoder")
        for word in (f"--{side}-layers", arguments.layers, f"--{side}-embed-dim", arguments.width,
                     f"--{side}-ffn-embed-dim", 4 * arguments.width,
                     f"--{side}-attention-heads", max(1, arguments.width // 64), f"--{side}-learned-pos")
    ]  # fmt: skip
    words = [
        arguments.data, "--task", "translation_lev_modified", "--cpu", "--seed", 1, *sizes, "--activation-fn", "gelu",
        "--share-all-embeddings", "--max-source-positions", 1000, "--max-target-positions", 1000, "--dropout", 0.1,
        "--label-smoothing", 0.1, "--optimizer", "adam", "--adam-betas", "(0.9, 0.999)", "--adam-eps", 1e-6,
        "--weight-decay", 0.01, "--clip-norm", 5, "--lr", arguments.lr, "--lr-scheduler", "inverse_sqrt",
        "--warmup-updates", arguments.warmup, "--warmup-init-lr", 1e-7, "--max-tokens", arguments.max_tokens,
        "--update-freq", 1, "--num-workers", 0,
    ]  # fmt: skip
    return [str(word) for word in words]


def ways(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The rows: what is trained, and the flags for it."""
    drafter = [*DRAFTER, "--block-size", str(arguments.block_size)]
    if arguments.decoder_layers is not None:
        drafter += ["--decoder-layers", str(arguments.decoder_layers)]
    blocks = arguments.blocks_per_sentence
    return {
        OF_VERIFIER: VERIFIER,
        PLAIN: [*drafter, *ONE_PASS],
        GLAT: [*drafter, *TWO_PASSES],
        f"{GLAT}, {blocks} blocks a sentence": [*drafter, *TWO_PASSES, "--blocks-per-sentence", str(blocks)],
        f"{GLAT}, frozen encoder": [*drafter, *TWO_PASSES, "--freeze-encoder"],
    }


def trainer(words: list[str]) -> Trainer:
    """fairseq's trainer with a new model, as ``fairseq-train`` makes it."""
    parsed = options.parse_args_and_arch(options.get_training_parser(), words)
    configuration = convert_namespace_to_omegaconf(parsed)
    torch.manual_seed(configuration.common.seed)
    task = setup_task(configuration.task)
    model, criterion = task.build_model(configuration.model), task.build_criterion(configuration.criterion)
    return Trainer(configuration, task, model, criterion)


def batches(trained: Trainer, count: int) -> list[dict[str, Any]]:
    """The first batches of the training set, in fairseq's order; raises ``UserError`` where there are fewer."""
    found = list(islice(trained.get_train_iterator(epoch=1).next_epoch_itr(shuffle=True), count))
    if len(found) < count:
        raise UserError(f"{count} batches were asked for, and the data has {len(found)}: lower --steps or --max-tokens")
    return found


def steps(trained: Trainer, samples: list[dict[str, Any]]) -> float:
    """The seconds that a step on each of these batches takes."""
    begin = time.perf_counter()
    for sample in samples:
        trained.train_step([sample])
    return time.perf_counter() - begin


def compare_ways(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The main table's rows."""
    flags = {name: [*network(arguments), *own] for name, own in ways(arguments).items()}
    trained = {OF_VERIFIER: trainer(flags.pop(OF_VERIFIER))}
    samples = batches(trained[OF_VERIFIER], arguments.steps)
    trained |= {name: trainer(words) for name, words in flags.items()}
    tokens = sum(sample["ntokens"] for sample in samples)
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for passed in tqdm(range(arguments.passes + 1), desc="passes", disable=None):
        for name, one in trained.items():
            spent = steps(one, samples if passed else samples[:1])
            if passed > 0:  # the first is the warm-up
                seconds[name].append(spent)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        {
            "training": name,
            "tokens_per_second": tokens / medians[name],
            "seconds_per_step": medians[name] / len(samples),
            "pass_seconds": seconds[name],
            "relative_to_one_pass": medians[name] / medians[PLAIN],
            "relative_to_verifier": medians[name] / medians[OF_VERIFIER],
        }
        for name in trained
    ]


def process_speed(command: list[str], folder: Path, warm_up: int) -> tuple[float, int]:
    """Target tokens/s of a training process after its first ``warm_up`` updates, and how many tokens those were.

    Raises ``UserError`` where it fails or logs no updates.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    last, logged = "it printed nothing", []
    for line in process.stdout:
        last = line.strip() or last
        if '"wpb": ' in line and '"num_updates": ' in line:
            entry = json.loads(line[line.index("{") :])
            logged.append((time.perf_counter(), float(entry["wpb"])))
    if process.wait() != 0:
        raise UserError(f"{' '.join(command[:3])} ... failed (exit status {process.returncode}): {last}")
    if len(logged) <= warm_up:
        raise UserError(f"{' '.join(command[:3])} ... logged {len(logged)} updates, which is no more than the warm-up")
    tokens = sum(words for _, words in logged[warm_up:])
    return tokens / (logged[-1][0] - logged[warm_up - 1][0]), round(tokens)


def compare_with_authors(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows for the authors' two-pass training and this plugin's, each in processes of its own."""
    checkout = Path(arguments.authors).resolve()
    if not (checkout / "train.py").is_file():
        raise UserError(f"--authors: there is no train.py in {arguments.authors}")
    plugins = "specdec_plugins" if (checkout / "specdec_plugins").is_dir() else "block_plugins"
    warm_up = 2
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *network(arguments), *ways(arguments)[GLAT], "--save-dir", folder, "--no-save", "--disable-validation",
            "--log-format", "json", "--log-interval", "1", "--max-update", str(warm_up + arguments.steps),
        ]  # fmt: skip
        commands = {
            "authors' training, process": ([arguments.authors_python, "train.py", "--user-dir", plugins], checkout),
            "this plugin's training, process": (OWN_TRAINING, REPOSITORY),
        }
        speeds: dict[str, list[float]] = {name: [] for name in commands}
        tokens: dict[str, int] = {}
        for _ in tqdm(range(arguments.passes), desc="processes", disable=None):
            for name, (command, where) in commands.items():
                speed, tokens[name] = process_speed([*command, *words], where, warm_up)
                speeds[name].append(speed)
    theirs = statistics.median(next(iter(speeds.values())))
    return [
        {
            "training": name,
            "tokens_per_second": statistics.median(values),
            "pass_speeds": values,
            "tokens": tokens[name],
            "relative_to_authors": statistics.median(values) / theirs,
        }
        for name, values in speeds.items()
    ]


def validation_loss(trained: Trainer) -> float:
    """The loss per scored token of the validation set, in bits."""
    task = trained.task
    task.load_dataset("valid")
    trained.model.eval()
    total = scored = 0.0
    with torch.no_grad():
        for sample in trained.get_valid_iterator("valid").next_epoch_itr(shuffle=False):
            loss, size, _ = task.valid_step(sample, trained.model, trained.criterion)
            total, scored = total + float(loss), scored + size
    return total / scored / float(np.log(2))


def compare_precisions(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows for drafter and verifier: what float32 and bf16 autocast come to after the same updates."""
    table = []
    for name in (OF_VERIFIER, GLAT):
        losses, seconds = {}, {}
        for precision in ("none", "bf16"):
            trained = trainer([*network(arguments), *ways(arguments)[name], "--cpu-autocast", precision])
            samples = batches(trained, arguments.bf16_updates)
            warm_up = max(1, len(samples) // 10)
            steps(trained, samples[:warm_up])
            seconds[precision] = steps(trained, samples[warm_up:]) / (len(samples) - warm_up)
            losses[precision] = validation_loss(trained)
        table.append(
            {
                "training": name,
                "updates": len(samples),
                "validation_loss_float32": losses["none"],
                "validation_loss_bf16": losses["bf16"],
                "relative_difference": losses["bf16"] / losses["none"] - 1,
                "seconds_per_step_float32": seconds["none"],
                "seconds_per_step_bf16": seconds["bf16"],
                "speedup": seconds["none"] / seconds["bf16"],
            }
        )
    return table


def verdict(value: float, target: float, at_most: bool) -> str:
    """Whether a target is met."""
    met = value <= target if at_most else value >= target
    return f"target: at {'most' if at_most else 'least'} {target:g}, {'met' if met else 'missed'}"


def markdown(results: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """The tables and what they were measured with."""
    lines = [
        "| training | target tokens/s | seconds a step | from-to | x one pass | x verifier |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["ways"]:
        each = [seconds / arguments.steps for seconds in row["pass_seconds"]]
        lines.append(
            f"| {row['training']} | {row['tokens_per_second']:.0f} | {row['seconds_per_step']:.3f} | "
            f"{min(each):.3f} - {max(each):.3f} | {row['relative_to_one_pass']:.2f} | "
            f"{row['relative_to_verifier']:.2f} |"
        )
    ratio = next(row["relative_to_one_pass"] for row in results["ways"] if row["training"] == GLAT)
    notes = [
        f"a step of two passes takes {ratio:.2f} times one of a single pass "
        f"({verdict(ratio, TARGETS['two passes'], at_most=True)})"
    ]
    if results["authors"]:
        lines += ["", "| training | target tokens/s | from-to | x authors' |", "| --- | ---: | ---: | ---: |"]
        for row in results["authors"]:
            speeds = row["pass_speeds"]
            lines.append(
                f"| {row['training']} | {row['tokens_per_second']:.0f} | {min(speeds):.0f} - {max(speeds):.0f} | "
                f"{row['relative_to_authors']:.2f} |"
            )
        ours = results["authors"][-1]["relative_to_authors"]
        notes.append(f"{ours:.2f} times the authors' tokens/s ({verdict(ours, TARGETS['authors'], at_most=False)})")
        if len({row["tokens"] for row in results["authors"]}) > 1:
            notes.append("the two trainings did not take the same batches")
    if results["bf16"]:
        lines += [
            "",
            "| training | updates | validation loss, float32 | bf16 | difference | seconds a step, float32 | bf16 | "
            "speed-up |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for row in results["bf16"]:
            lines.append(
                f"| {row['training']} | {row['updates']} | {row['validation_loss_float32']:.3f} | "
                f"{row['validation_loss_bf16']:.3f} | {100 * row['relative_difference']:+.2f} % | "
                f"{row['seconds_per_step_float32']:.3f} | {row['seconds_per_step_bf16']:.3f} | {row['speedup']:.2f} x |"
            )
        worst = max(abs(row["relative_difference"]) for row in results["bf16"])
        notes.append(f"bf16: largest difference {100 * worst:.2f} % ({verdict(worst, TARGETS['bf16'], at_most=True)})")
        flags = report.bf16_instructions()
        notes.append(
            f"this processor's bf16 instructions: {', '.join(flags)}"
            if flags
            else "this processor has no bf16 instructions (neither avx512_bf16 nor amx_bf16): they are emulated, so "
            "that the losses mean something, but not the times"
        )
    source = arguments.data if arguments.given else f"random symbols ({arguments.symbols})"
    decoder = f" ({arguments.decoder_layers} in the drafter's decoder)" if arguments.decoder_layers else ""
    lines += [
        "",
        f"{report.circumstances()}. {source}; {arguments.layers} + {arguments.layers} layers{decoder} of "
        f"{arguments.width}, block size {arguments.block_size}; {arguments.steps} steps on batches of at most "
        f"{arguments.max_tokens} tokens; medians of {arguments.passes} interleaved passes, after a warm-up; loading "
        "not included.",
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that fairseq-preprocess wrote (default: random symbols)")
    parser.add_argument("--symbols", type=int, default=8192, help="of the random data (default: 8192)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--decoder-layers", type=int, help="of the drafter (default: --layers)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=25)
    parser.add_argument("--blocks-per-sentence", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a batch (default: 2048)")
    parser.add_argument("--lr", type=float, default=0.0005)
    parser.add_argument("--warmup", type=int, default=4000, help="updates (default: 4000)")
    parser.add_argument("--steps", type=int, default=8, help="of a pass (default: 8)")
    parser.add_argument("--passes", type=int, default=5, help="timed passes (default: 5)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--authors", metavar="PATH", help="checkout of the authors' code: adds its training")
    parser.add_argument("--authors-python", metavar="FILE", default=sys.executable, help="the Python that runs it")
    parser.add_argument("--bf16", action="store_true", help="compare float32 and bf16 autocast as well")
    parser.add_argument("--bf16-updates", type=int, default=100, help="after which they are compared (default: 100)")
    parser.add_argument("--output", help="Markdown file to write; its JSON goes beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger().setLevel(logging.WARNING)  # fairseq's trainer reports every thing that it does
    arguments.given = arguments.data is not None
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.given:
            needed = max(arguments.steps, arguments.bf16_updates if arguments.bf16 else 0)
            sentences = (needed + 4) * max(8, arguments.max_tokens // 10)
            arguments.data = write_random_corpus(folder, arguments.symbols, sentences)
        arguments.data = str(Path(arguments.data).resolve())
        results = {
            "ways": compare_ways(arguments),
            "authors": compare_with_authors(arguments) if arguments.authors else [],
            "bf16": compare_precisions(arguments) if arguments.bf16 else [],
        }
    report.save(arguments.output, markdown(results, arguments), results)


if __name__ == "__main__":
    main()
