#!/usr/bin/env python3
"""Shows what --trace-path wrote: which tokens were drafted in each iteration, and what the verifier made of them.

    scripts/show_trace.py TRACE.jsonl                    in the terminal
    scripts/show_trace.py TRACE.jsonl --html TRACE.html  as one page for a browser

In the terminal accepted draft tokens are green, rejected ones red, struck through and in [-brackets-], tokens that were
drafted but not verified dim and in (parentheses), and the verifier's own tokens bold and in {+braces+}; behind a draft
token stands the drafter's confidence in it. Colours are for terminals, unless NO_COLOR is set, and for --colour.

The page needs nothing but itself: it can be stepped through with buttons, slider and arrow keys, and without JavaScript
it is a table. Its summary, like that in the terminal, is of the whole file, whatever --sentence and --limit leave.
"""

import argparse
import html
import os
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from traces import Iteration, Sentence, Summary, Token, read, summarise

TEMPLATE = Path(__file__).with_suffix(".html")
RESET = "\033[0m"


class Look(NamedTuple):
    """How a kind of token is shown: in the terminal (SGR parameters, and brackets), and on the page."""

    colour: str
    opening: str
    closing: str
    element: str
    symbol: str
    name: str


LOOKS = {
    "accepted": Look("32", "", "", "ins", "✓", "accepted"),
    "rejected": Look("31;9", "[-", "-]", "del", "✗", "rejected"),
    "unverified": Look("2", "(", ")", "s", "○", "drafted, not verified"),
    "own": Look("1", "{+", "+}", "strong", "◆", "the verifier's own"),
}


def kinds(iteration: Iteration) -> list[tuple[str, Token]]:
    """The draft's tokens and the verifier's own, each with its kind, which is a key of ``LOOKS``."""
    marked = [
        ("accepted" if at < iteration.accepted else "rejected" if at < iteration.lookahead else "unverified", token)
        for at, token in enumerate(iteration.draft)
    ]
    return marked if iteration.correction is None else [*marked, ("own", iteration.correction)]


def plain(tokens: list[str]) -> str:
    """Text whose BPE pieces are joined."""
    return re.sub(r"@@( |$)", "", " ".join(tokens))


def figure(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def count(number: int, one: str, more: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


# --- the terminal


def printable(text: str) -> str:
    """Text that can't steer a terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def painted(kind: str, token: Token, colour: bool) -> str:
    look = LOOKS[kind]
    word = f"{look.opening}{printable(token.text)}{look.closing}"
    sure = "" if token.confidence is None else f" {token.confidence:.2f}".replace(" 0.", " .")
    if not colour:
        return word + sure
    return f"\033[{look.colour}m{word}{RESET}" + (f"\033[2m{sure}{RESET}" if sure else "")


def terminal(sentences: list[Sentence], colour: bool) -> Iterator[str]:
    """The sentences, line by line, each iteration on one."""
    legend = [painted(kind, Token(look.name), colour) for kind, look in LOOKS.items()]
    yield f"accepted/verified, draft + verify ms (of the whole batch), tokens: {'  '.join(legend)}"
    for sentence in sentences:
        output = [token.text for token in sentence.output]
        yield ""
        sizes = f"{count(len(output), 'token')} in {count(len(sentence.iterations), 'iteration')}"
        yield f"sentence {sentence.id}: {sizes}"
        yield f"  source  {printable(plain(sentence.source.split(' ')))}"
        yield f"  output  {printable(plain(output))}"
        for number, iteration in enumerate(sentence.iterations, start=1):
            times = f"{1000 * iteration.draft_seconds:.1f} + {1000 * iteration.verify_seconds:.1f}"
            tokens = "  ".join(painted(kind, token, colour) for kind, token in kinds(iteration))
            share = f"{iteration.accepted}/{iteration.lookahead}" if iteration.draft else "-"
            yield f"  {number:3}  {share:>5}  {times:>11}  {tokens}"


def summary_lines(summary: Summary) -> Iterator[str]:
    """The figures of the whole file, with a histogram."""
    for name, value in figures(summary).items():
        yield f"{name:26} {value}"
    for name, seconds in times(summary).items():
        yield f"{name:26} {seconds:.2f} s"
    total, most = summary.per_iteration.total(), max(summary.per_iteration.values(), default=0)
    for tokens in range(1, max(summary.per_iteration, default=0) + 1):
        iterations = summary.per_iteration[tokens]
        bar = "#" * round(40 * iterations / most)
        yield f"{count(tokens, 'token') + ' in':>12} {iterations:7,} iterations ({iterations / total:4.0%}) {bar}"


def figures(summary: Summary) -> dict[str, str]:
    """What is told of the whole file."""
    found = {
        "sentences": f"{summary.sentences:,}",
        "tokens": f"{summary.tokens:,}",
        "iterations": f"{summary.iterations:,}",
        "tokens per iteration": figure(summary.tokens_per_iteration),
        "acceptance rate alpha": figure(summary.alpha),
        "tokens a second": figure(summary.tokens_per_second, ",.0f"),
    }
    if summary.undrafted:
        found["steps without a draft"] = f"{summary.undrafted:,}"
    return found


def times(summary: Summary) -> dict[str, float]:
    """What the seconds of the whole file went to."""
    rest = max(0.0, summary.seconds - summary.draft_seconds - summary.verify_seconds)
    return {"drafting": summary.draft_seconds, "verifying": summary.verify_seconds, "encoding and the rest": rest}


# --- the page


def word(text: str) -> str:
    """A token as HTML, with a light sign where it is joined with the next."""
    if text.endswith("@@"):
        return f"<span>{html.escape(text[:-2])}<i>@@</i></span>"
    return f"<span>{html.escape(text)}</span>"


def chip(kind: str, token: Token) -> str:
    """A token of an iteration: a symbol, the token, and the drafter's confidence in per cent."""
    look = LOOKS[kind]
    sure = "" if token.confidence is None else f"<small>{100 * token.confidence:.0f}</small>"
    return f"<{look.element}><b>{look.symbol}</b>{word(token.text)}{sure}</{look.element}>"


def sentence_html(sentence: Sentence, is_open: bool) -> str:
    """A sentence with the table of its iterations."""
    output = [token.text for token in sentence.output]
    iterations = len(sentence.iterations)
    rows = []
    for number, iteration in enumerate(sentence.iterations, start=1):
        tokens = " ".join(chip(kind, token) for kind, token in kinds(iteration))
        share = f"{iteration.accepted} of {iteration.lookahead}" if iteration.draft else "no draft"
        rows.append(
            f'<tr><th scope="row">{number}</th><td lang="{html.escape(sentence.target_lang)}">{tokens}</td>'
            f"<td>{share}</td><td>{1000 * iteration.draft_seconds:.1f}</td>"
            f"<td>{1000 * iteration.verify_seconds:.1f}</td></tr>"
        )
    table = (
        '<div class="wide"><table><thead><tr><th scope="col">iteration</th><th scope="col">draft, and what became of it'
        '</th><th scope="col">accepted</th><th scope="col">draft, ms</th><th scope="col">verify, ms</th></tr></thead>'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )
    rate = figure(len(output) / iterations if iterations else None)
    return (
        f'<details class="sentence" id="s{sentence.id}"{" open" if is_open else ""}><summary>'
        f'<span class="number">{sentence.id}</span> '
        f'<span class="source" lang="{html.escape(sentence.source_lang)}">'
        f"{html.escape(plain(sentence.source.split(' ')))}</span> "
        f'<span class="sizes">{count(len(output), "token")}, {count(iterations, "iteration")}, '
        f'<span class="rate">{rate}</span> an iteration</span></summary>\n'
        f'<p class="output" lang="{html.escape(sentence.target_lang)}">{html.escape(plain(output))}</p>\n'
        f"{table if rows else '<p>There was nothing to translate.</p>'}</details>\n"
    )


def histogram(summary: Summary) -> str:
    """Iterations by the tokens that they brought, as SVG."""
    if not summary.per_iteration:
        return "<p>No iteration had a draft.</p>"
    step, height, top = 44, 110, 34
    total, most = summary.per_iteration.total(), max(summary.per_iteration.values())
    values = range(1, max(summary.per_iteration) + 1)
    parts, told = [], []
    for value in values:
        iterations = summary.per_iteration[value]
        middle, tall = step * value - step / 2, height * iterations / most
        parts.append(
            f'<rect x="{middle - 15:g}" y="{top + height - tall:.1f}" width="30" height="{tall:.1f}"/>'
            f'<text x="{middle:g}" y="{top + height - tall - 16:.1f}">{iterations:,}</text>'
            f'<text class="share" x="{middle:g}" y="{top + height - tall - 4:.1f}">{iterations / total:.0%}</text>'
            f'<text x="{middle:g}" y="{top + height + 16}">{value}</text>'
        )
        told.append(f"{count(value, 'token')}: {count(iterations, 'iteration')}")
    width = step * len(values)
    return (
        f'<svg role="img" aria-labelledby="bars" viewBox="0 0 {width} {top + height + 22}" '
        f'style="max-width:{1.25 * width:g}px"><title id="bars">Iterations by the tokens that they brought. '
        f'{"; ".join(told)}.</title><path d="M0 {top + height + 0.5}H{width}"/>{"".join(parts)}</svg>'
    )


def time_bars(summary: Summary) -> str:
    """What the time went to, as SVG."""
    total = sum(times(summary).values()) or 1.0
    parts, told = [], []
    for at, (name, seconds) in enumerate(times(summary).items()):
        amount = f"{seconds:.2f} s, {seconds / total:.0%}"
        parts.append(
            f'<text class="left" x="0" y="{22 * at + 13}">{name}</text><rect x="140" y="{22 * at + 2}" '
            f'width="{160 * seconds / total:.1f}" height="14"/>'
            f'<text class="left" x="{146 + 160 * seconds / total:.1f}" y="{22 * at + 13}">{amount}</text>'
        )
        told.append(f"{name}: {amount}")
    return (
        f'<svg role="img" aria-labelledby="times" viewBox="0 0 400 66"><title id="times">Seconds. {"; ".join(told)}.'
        f"</title>{''.join(parts)}</svg>"
    )


def page(name: str, sentences: list[Sentence], summary: Summary) -> str:
    """The whole document, for the ``sentences`` of a file with this ``summary``."""
    left = "" if len(sentences) == summary.sentences else f"{len(sentences):,} of {summary.sentences:,} are shown."
    tiles = [f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in figures(summary).items()]
    legend = [
        f"<li><{look.element}><b>{look.symbol}</b><span>{look.name}</span></{look.element}></li>"
        for look in LOOKS.values()
    ]
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(name),
        figures="\n".join(tiles),
        times=time_bars(summary),
        histogram=histogram(summary),
        legend="\n".join(legend),
        left=left,
        sentences="".join(sentence_html(sentence, at == 0) for at, sentence in enumerate(sentences)),
    )


def chosen(sentences: list[Sentence], numbers: list[int] | None, limit: int | None, path: str) -> list[Sentence]:
    """The sentences with these numbers (default: all), at most ``limit``."""
    if numbers is not None:
        known = {sentence.id: sentence for sentence in sentences}
        missing = [number for number in numbers if number not in known]
        if missing:
            numbered = f"from {min(known)} to {max(known)}"
            sys.exit(f"error: --sentence: {path} has no sentence {missing[0]}; its numbers are {numbered}")
        sentences = [known[number] for number in numbers]
    return sentences[:limit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="file that --trace-path wrote")
    parser.add_argument("--html", metavar="FILE", help="write a page there instead")
    parser.add_argument("--sentence", type=int, nargs="+", metavar="N", help="only sentences with these numbers")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N sentences")
    parser.add_argument("--colour", action="store_true", help="colours, whatever the output is")
    arguments = parser.parse_args()
    if arguments.limit is not None and arguments.limit < 1:
        sys.exit(f"error: --limit must be at least 1, not {arguments.limit}")
    try:
        everything, whole = read(Path(arguments.trace))
    except ValueError as error:
        sys.exit(f"error: {arguments.trace}: {error}")
    if not whole:
        print(f"warning: {arguments.trace}: the last line has no end and is left out", file=sys.stderr)
    summary = summarise(everything)
    sentences = chosen(everything, arguments.sentence, arguments.limit, arguments.trace)
    if arguments.html is not None:
        output = Path(arguments.html)
        beside = output.with_name(f".{output.name}.part")
        try:
            beside.write_text(page(Path(arguments.trace).name, sentences, summary), encoding="utf-8")
            beside.replace(output)
        except OSError as error:
            beside.unlink(missing_ok=True)
            sys.exit(f"error: --html: {output} can't be written ({error.strerror})")
        return
    colour = arguments.colour or (sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    try:
        for line in [*terminal(sentences, colour), "", *summary_lines(summary)]:
            print(line)
    except BrokenPipeError:  # a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
