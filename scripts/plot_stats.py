#!/usr/bin/env python3
"""Plots of what decoding and training have written, with matplotlib (extra "plots").

    scripts/plot_stats.py accepted TRACE.jsonl ...    histogram of accepted tokens per iteration
    scripts/plot_stats.py speedup RESULTS.json ...    speed-up against draft size and against batch size
    scripts/plot_stats.py quality RESULTS.json ...    BLEU against speed-up: GAD over beta and tau, and other strategies
    scripts/plot_stats.py training TRAIN.log ...      loss curves and glat_accu, from the output of fairseq-train

TRACE.jsonl is what --trace-path writes. RESULTS.json is what benchmarks/compare_strategies.py writes beside its
--output; its --acceptance takes more values of beta and tau. A log is in --log-format simple or json. --output ends in
.svg, .png or .pdf.
"""

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import plots

import traces

REFERENCE = "fairseq beam 1"
GAD = re.compile(r"GAD beta (?P<beta>\d+)(?: tau (?P<tau>\S+))?, (?P<draft>.+) (?P<size>\d+)(?P<dtype>, \w+)?")
LOGGED = re.compile(r"\| INFO \| (?P<tag>\w+) \| (?P<figures>\{.*\}$|.*[ ,]num_updates.*)")
FIGURE = re.compile(r"(\w+)[ =](-?\d[\d.]*(?:e[-+]?\d+)?|nan|inf)(?=$|[ ,])")


def look(number: int) -> dict[str, Any]:
    """A line's colour and marker."""
    colour, marker = plots.LINES[number % len(plots.LINES)], plots.MARKERS[number % len(plots.MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4}


# --- from traces


def accepted(files: list[str]) -> Any:
    """The share of iterations by the tokens that they brought, a group of bars for each number of tokens."""
    summaries = {}
    for file in files:
        try:
            found, _ = traces.read(Path(file))
        except ValueError as error:
            sys.exit(f"error: {file}: {error}")
        summaries[file] = traces.summarise(found)
        if not summaries[file].iterations:
            sys.exit(f"error: {file}: no iteration has a draft, so there is nothing to count")
    figure = plots.new_figure(7.0, 3.8)
    panel = figure.subplots()
    width = 0.8 / len(files)
    for number, (file, summary) in enumerate(summaries.items()):
        values = range(1, max(summary.per_iteration) + 1)
        label = f"{Path(file).stem}: {summary.tokens_per_iteration:.2f} on average, {summary.iterations:,} iterations"
        bars = panel.bar(
            [value + width * (number - (len(files) - 1) / 2) for value in values],
            [100 * summary.per_iteration[value] / summary.iterations for value in values],
            width, color=look(number)["color"], label=label,
        )  # fmt: skip
        panel.bar_label(bars, fmt="%.0f", fontsize=7)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("tokens of an iteration, the verifier's own included", fontsize=9)
    panel.set_ylabel("% of the iterations", fontsize=9)
    plots.tidy(panel)
    figure.legend(loc="outside upper center", fontsize=8, frameon=False)
    return figure


# --- from benchmarks


def table(files: list[str]) -> list[dict[str, Any]]:
    """The rows of all files, those of GAD with their "beta", "tau", "size" and "drafter"."""
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            for found in json.loads(Path(file).read_text(encoding="utf-8"))["rows"]:
                row = {name: found[name] for name in ("strategy", "batch", "speedup", "BLEU")}
                match = GAD.fullmatch(row["strategy"])
                if match:
                    row |= {"beta": int(match["beta"]), "tau": float(match["tau"] or 0), "size": int(match["size"])}
                    row["drafter"] = match["draft"].removesuffix(" drafter") + (match["dtype"] or "")
                rows.append(row)
        except OSError as error:
            sys.exit(f"error: {file} can't be read ({error.strerror})")
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f"error: {file} is no JSON file of benchmarks/compare_strategies.py ({error!r})")
    if not any("beta" in row for row in rows):
        sys.exit(f"error: {files[0]} has no row of GAD: there is nothing to draw")
    return rows


def rule(row: dict[str, Any]) -> str:
    """How GAD judged drafts, in short."""
    return f"beta {row['beta']}" + (f" tau {row['tau']:g}" if row["tau"] else "")


def speedup(files: list[str]) -> Any:
    """A panel for each batch size: speed-up against the tokens of a draft. And one against the batch size."""
    gad = [row for row in table(files) if "beta" in row]
    batches = sorted({row["batch"] for row in gad})
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in gad:
        kinds.setdefault(f"{row['drafter']} drafter, {rule(row)}", []).append(row)
    figure = plots.new_figure(3.2 * (len(batches) + 1), 3.8)
    *by_size, by_batch = figure.subplots(1, len(batches) + 1, sharey=True)
    for number, (kind, rows) in enumerate(kinds.items()):
        best: dict[int, float] = {}
        for panel, batch in zip(by_size, batches, strict=True):
            line = {row["size"]: row["speedup"] for row in rows if row["batch"] == batch}
            panel.plot(sorted(line), [line[size] for size in sorted(line)], label=kind, **look(number))
            if line:
                best[batch] = max(line.values())
        by_batch.plot(list(best), list(best.values()), **look(number))
    for panel, batch in zip(by_size, batches, strict=True):
        panel.set_title(f"batch {batch}", fontsize=10)
        panel.set_xlabel("tokens of a draft (block size)", fontsize=9)
        panel.set_xticks(sorted({row["size"] for row in gad}))
    by_batch.set_title("with the best draft size", fontsize=10)
    by_batch.set_xlabel("sentences of a batch", fontsize=9)
    by_batch.set_xscale("log", base=2)
    by_batch.set_xticks(batches, [str(batch) for batch in batches])
    by_size[0].set_ylabel(f"speed-up over {REFERENCE}", fontsize=9)
    for panel in (*by_size, by_batch):
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_ylim(bottom=0)
        plots.tidy(panel)
    figure.legend(
        *by_size[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8, frameon=False
    )
    return figure


def quality(files: list[str]) -> Any:
    """A panel for each batch size: BLEU against speed-up. Lines lead from one beta and tau to the next.

    Other strategies are points, save for the two that are no way to translate: drafts alone, and the floor.
    """
    rows = [row for row in table(files) if not row["strategy"].startswith(("drafter only", "floor"))]
    batches = sorted({row["batch"] for row in rows})
    drafts = list(dict.fromkeys((row["drafter"], row["size"]) for row in rows if "beta" in row))
    others = list(dict.fromkeys(row["strategy"] for row in rows if "beta" not in row))
    figure = plots.new_figure(0.6 + 4.6 * len(batches), 5.2)
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for panel, batch in zip(panels, batches, strict=True):
        at_batch = [row for row in rows if row["batch"] == batch]
        for number, (drafter, size) in enumerate(drafts):
            line = [row for row in at_batch if (row.get("drafter"), row.get("size")) == (drafter, size)]
            line.sort(key=lambda row: (row["beta"], row["tau"]))
            name = f"GAD, {drafter} drafter, {size} tokens"
            points = [row["speedup"] for row in line], [row["BLEU"] for row in line]
            (handles[name],) = panel.plot(*points, label=name, **look(number))
            above = 4 if number % 2 == 0 else -10
            for row in line:
                at = row["speedup"], row["BLEU"]
                panel.annotate(rule(row), at, xytext=(4, above), textcoords="offset points", fontsize=7)
        for row in at_batch:
            if "beta" not in row:
                name = row["strategy"]
                shape = {"color": plots.family(name)[1], "marker": "PX*phd1234"[others.index(name) % 10]}
                (handles[name],) = panel.plot(
                    row["speedup"], row["BLEU"], linestyle="", markersize=7, label=name, **shape
                )
        panel.set_title(f"batch {batch}", fontsize=10)
        panel.set_xlabel(f"speed-up over {REFERENCE}", fontsize=9)
        panel.margins(x=0.25, y=0.1)
        plots.tidy(panel)
    panels[0].set_ylabel("BLEU", fontsize=9)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


# --- from logs of training


def logged(file: str) -> dict[str, dict[str, dict[int, float]]]:
    """Of "train" and "valid" the values of each metric by the number of updates. Where a log goes on from a checkpoint
    the later values count.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        sys.exit(f"error: {file} can't be read ({error.strerror})")
    found: dict[str, dict[str, dict[int, float]]] = {"train_inner": {}, "train": {}, "valid": {}}
    for match in filter(None, map(LOGGED.search, lines)):
        tag, text = match["tag"], match["figures"]
        try:
            figures = dict(FIGURE.findall(text)) if text[0] != "{" else json.loads(text)
        except ValueError:  # of something else, or cut off
            continue
        figures = {name.removeprefix(f"{tag}_"): value for name, value in figures.items()}
        if "num_updates" not in figures:
            continue
        update = int(float(figures["num_updates"]))
        for name, value in figures.items():
            if value is not None:
                found[tag if tag in found else "valid"].setdefault(name, {})[update] = float(value)
    if not any(figures.get("loss") for figures in found.values()):
        sys.exit(f"error: {file} tells no losses: give the output of fairseq-train, in --log-format simple or json")
    # an epoch's average, where no interval of it was logged
    return {"train": found["train_inner"] or found["train"], "valid": found["valid"]}


def training(files: list[str], metrics: list[str] | None) -> Any:
    """Losses against updates, and a panel for each of ``metrics``, by default for glat_accu where a log has it."""
    logs = {file: logged(file) for file in files}

    def known(name: str) -> bool:
        return any(name in figures for log in logs.values() for figures in log.values())

    for name in metrics or []:
        if not known(name):
            names = sorted({name for log in logs.values() for figures in log.values() for name in figures})
            sys.exit(f"error: --metric {name} is in none of the logs; they have {', '.join(names)}")
    shown = ["loss", *(["glat_accu"] if known("glat_accu") else [])] if metrics is None else ["loss", *metrics]
    figure = plots.new_figure(4.6 * len(shown), 3.8)
    for panel, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for number, (file, log) in enumerate(logs.items()):
            colour = look(number)["color"]
            for part, style in (("train", {"linewidth": 1}), ("valid", {"linestyle": "--", "marker": "o"})):
                values = log[part].get(name, {})
                if values:
                    updates = sorted(values)
                    label = f"{Path(file).stem}, {part}"
                    at = [values[update] for update in updates]
                    panel.plot(updates, at, label=label, color=colour, markersize=4, **style)
        panel.set_xlabel("updates", fontsize=9)
        panel.set_ylabel(name, fontsize=9)
        panel.legend(fontsize=8, frameon=False)
        plots.tidy(panel)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", choices=("accepted", "speedup", "quality", "training"))
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--output", required=True, metavar="FILE", help="plot to write")
    parser.add_argument("--metric", nargs="+", metavar="NAME", help="training: what to show beside the loss")
    arguments = parser.parse_args()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit("error: matplotlib isn't installed: pip install -e '.[plots]'")
    if arguments.metric is not None and arguments.plot != "training":
        parser.error("--metric is for training")
    output = Path(arguments.output)
    if output.suffix not in (".svg", ".png", ".pdf"):
        sys.exit(f"error: --output: {output} must end in .svg, .png or .pdf")
    if arguments.plot == "training":
        figure = training(arguments.files, arguments.metric)
    else:
        figure = {"accepted": accepted, "speedup": speedup, "quality": quality}[arguments.plot](arguments.files)
    beside = output.with_name(f".part-{output.name}")
    try:
        figure.savefig(beside)
        beside.replace(output)
    except OSError as error:
        beside.unlink(missing_ok=True)
        sys.exit(f"error: --output: {output} can't be written ({error.strerror})")


if __name__ == "__main__":
    main()
