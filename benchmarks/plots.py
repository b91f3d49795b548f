"""The benchmarks' plots, with matplotlib (extra "plots"); without it they are left out."""

import logging
import sys
from pathlib import Path
from typing import Any

# By the first prefix that fits: Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
FAMILIES = {
    "fairseq": ("fairseq", "#999999"),
    "left2right": ("this plugin, no draft", "#56B4E9"),
    "AR": ("this plugin, no draft", "#56B4E9"),
    "GAD beta 1,": ("GAD, lossless", "#0072B2"),
    "GAD beta 1 ": ("GAD, lossless", "#0072B2"),
    "GAD at the rate of beta 1,": ("GAD, lossless", "#0072B2"),
    "GAD": ("GAD, top-beta within tau", "#009E73"),
    "drafter only": ("drafter only", "#CC79A7"),
    "CTranslate2": ("CTranslate2", "#E69F00"),
    "authors": ("the authors' code", "#D55E00"),
    "floor": ("floor: encoder + one pass", "#F0E442"),
}
LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"]
MARKERS = "os^Dv"


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches; None, with a line that says so, where matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("the plot is left out: matplotlib isn't installed (pip install -e '.[plots]')", file=sys.stderr)
        return None
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it reports every font that it looks at
    return Figure(figsize=(width, height), layout="constrained")


def tidy(panel: Any) -> None:
    """No frame above and to the right, small numbers."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)


def family(strategy: str) -> tuple[str, str]:
    """The name of the family that a strategy belongs to, and its colour."""
    return next(look for prefix, look in FAMILIES.items() if strategy.startswith(prefix))


def speedups(table: list[dict[str, Any]], reference: str, path: Path) -> None:
    """Horizontal bars: speed-up over ``reference`` by strategy, one panel for each batch size."""
    batches = sorted({row["batch"] for row in table})
    names = list(dict.fromkeys(row["strategy"] for row in table))
    figure = new_figure(3.0 + 2.8 * len(batches), 1.4 + 0.24 * len(names))
    if figure is None:
        return
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    families: dict[str, Any] = {}
    for panel, batch in zip(panels, batches, strict=True):
        for row in table:
            if row["batch"] == batch:
                name, colour = family(row["strategy"])
                at, speedup = names.index(row["strategy"]), row["speedup"]
                families.setdefault(name, panel.barh(at, speedup, color=colour))
                panel.barh(at, speedup, color=colour)
                panel.text(speedup, at, f" {speedup:.2f} x", va="center", fontsize=7)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.margins(x=0.25)
        panel.set_xlim(left=0)
        panel.set_title(f"batch {batch}", fontsize=10)
        tidy(panel)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.supxlabel(f"sentences/s, as a multiple of {reference}", fontsize=9)
    figure.legend(families.values(), families.keys(), loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path)


def growth(table: list[dict[str, Any]], path: Path) -> None:
    """Lines over the target length: time of a sentence, and time of a token."""
    figure = new_figure(9.0, 3.8)
    if figure is None:
        return
    sentence, token = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(row["strategy"] for row in table)):
        rows = [row for row in table if row["strategy"] == name]
        lengths = [row["tokens"] for row in rows]
        look = {"color": LINES[index % len(LINES)], "marker": MARKERS[index % len(MARKERS)], "markersize": 4}
        sentence.plot(lengths, [row["seconds"] for row in rows], label=name, **look)
        token.plot(lengths, [1000 * row["seconds_per_token"] for row in rows], **look)
    sentence.set_ylabel("seconds a sentence", fontsize=9)
    token.set_ylabel("milliseconds a token", fontsize=9)
    for panel in (sentence, token):
        panel.set_xlabel("target tokens", fontsize=9)
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        tidy(panel)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path)
