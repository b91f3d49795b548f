"""The views of a trace: what they say in a terminal, and what a person can do with the page in a real browser."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "show_trace.py"


def token(text: str, confidence: float | None = 0.5) -> dict[str, Any]:
    return {"token": text, "id": 4, "confidence": confidence}


def iteration(draft: list[dict[str, Any]], lookahead: int, accepted: int, own: str | None) -> dict[str, Any]:
    return {
        "draft": draft,
        "lookahead": lookahead,
        "accepted": accepted,
        "correction": None if own is None else {"token": own, "id": 5},
        "draft_seconds": 0.001 * len(draft),
        "verify_seconds": 0.004,
    }


def sentence(number: int, source: str, batch: int, *iterations: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": number, "source": source, "source_lang": "en", "target_lang": "de", "batch": batch,
        "batch_size": 2 - batch, "batch_seconds": 0.02 + 0.06 * batch, "iterations": list(iterations),
    }  # fmt: skip


# Ten tokens come from five iterations with a draft, of whose ten verified tokens seven were accepted, and one from a
# step without. The first two sentences are one batch, so that its times count once.
LINES = [
    sentence(
        7, "the hou@@ se", 0,
        iteration([token("das", 0.98), token("Ha@@", 0.91), token("us", 0.34), token("ist", None)], 3, 2, "user"),
        iteration([token("</s>", 0.9), token("x", 0.1), token("x", 0.1), token("x", 0.1)], 1, 1, None),
    ),
    sentence(
        2, 'a <b>&"\' <unk>', 0,
        iteration([token("<unk>"), token("&amp;"), token('"'), token("x")], 3, 1, "</p><script>alert(1)</script>"),
        iteration([token("a"), token("b"), token("c"), token("d")], 2, 2, "</s>"),
    ),
    sentence(11, "z", 1, iteration([], 0, 0, "Z"), iteration([token("</s>"), token("y")], 1, 1, None)),
]  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


FIGURES = {
    "sentences": "3",
    "tokens": "11",
    "iterations": "5",
    "tokens per iteration": "2.00",
    "acceptance rate alpha": "0.70",
    "tokens a second": "110",
    "steps without a draft": "1",
}
TIMES = {"drafting": "0.01 s", "verifying": "0.02 s", "encoding and the rest": "0.07 s"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("trace") / "a&b.jsonl", LINES)


def show(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script in isolated mode without site packages: the standard library has to do."""
    return subprocess.run(
        [sys.executable, "-S", str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables},
    )  # fmt: skip


def test_in_a_terminal_without_colours(trace: Path) -> None:
    result = show(trace)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "\033" not in result.stdout
    assert [line for line in lines if line.startswith("sentence ")] == [
        "sentence 2: 5 tokens in 2 iterations",
        "sentence 7: 4 tokens in 2 iterations",
        "sentence 11: 2 tokens in 2 iterations",
    ]
    at = lines.index("sentence 7: 4 tokens in 2 iterations")
    assert lines[at + 1 : at + 5] == [
        "  source  the house",
        "  output  das Hauser </s>",
        "    1    2/3    4.0 + 4.0  das .98  Ha@@ .91  [-us-] .34  (ist)  {+user+}",
        "    2    1/1    4.0 + 4.0  </s> .90  (x) .10  (x) .10  (x) .10",
    ]
    assert "    1      -    0.0 + 4.0  {+Z+}" in lines


def test_the_summary_in_a_terminal_is_of_the_whole_file(trace: Path) -> None:
    lines = show(trace, "--sentence", 11, 7, "--limit", 1).stdout.splitlines()
    assert [line for line in lines if line.startswith("sentence ")] == ["sentence 11: 2 tokens in 2 iterations"]
    told = dict(re.split(r"  +", line, maxsplit=1) for line in lines if re.match(r"[a-z][a-z ]+  +[\d.]", line))
    assert told == {**FIGURES, **TIMES}
    assert lines[-3:] == [
        f"  1 token in       2 iterations ( 40%) {'#' * 40}",
        f" 2 tokens in       1 iterations ( 20%) {'#' * 20}",
        f" 3 tokens in       2 iterations ( 40%) {'#' * 40}",
    ]


def in_a_terminal(*arguments: object, **variables: str) -> str:
    """What the script shows where its output is a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)], stdout=theirs, env={**os.environ, **variables}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # so Linux tells the end
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode("utf-8")


def test_colours(trace: Path) -> None:
    """Green, red and struck through, dim, bold."""
    coloured = show(trace, "--sentence", 7, "--colour", NO_COLOR="1").stdout
    for part in ("\033[32mdas\033[0m", "\033[31;9m[-us-]\033[0m", "\033[2m(ist)\033[0m", "\033[1m{+user+}\033[0m"):
        assert part in coloured
    assert in_a_terminal(trace, "--sentence", 7, NO_COLOR="").replace("\r\n", "\n") == coloured
    assert "\033" not in in_a_terminal(trace, NO_COLOR="1")


def test_a_token_cannot_steer_the_terminal(tmp_path: Path) -> None:
    lines = [sentence(0, "a\x1b[2Jb", 0, iteration([token("\x1b]0;x\x07")], 1, 0, "\x9bm\r"))]
    shown = show(write(tmp_path / "t", lines)).stdout
    assert shown.isprintable() or all(character.isprintable() or character == "\n" for character in shown)
    assert "[-\ufffd]0;x\ufffd-]" in shown


def test_bad_files_and_options(trace: Path, tmp_path: Path) -> None:
    def error(*arguments: object) -> str:
        result = show(*arguments)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line

    assert "nothing: it can't be read (No such file" in error(tmp_path / "nothing")
    (tmp_path / "empty").write_text("", encoding="utf-8")
    assert "empty: there is no sentence in it" in error(tmp_path / "empty")
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    assert "bytes: it is not UTF-8 text" in error(tmp_path / "bytes")
    for wrong in ("text", "[]", '{"id": 1}'):
        (tmp_path / "wrong").write_text(json.dumps(LINES[0]) + f"\n{wrong}\n", encoding="utf-8")
        assert "wrong: line 2 is none of a trace" in error(tmp_path / "wrong")
    assert "--sentence:" in error(trace, "--sentence", 3) and "from 2 to 11" in error(trace, "--sentence", 3)
    assert "--limit must be at least 1, not 0" in error(trace, "--limit", 0)
    assert "can't be written (No such file" in error(trace, "--html", tmp_path / "no" / "page.html")
    assert "can't be written (" in error(trace, "--html", tmp_path)
    assert not list(tmp_path.parent.glob(".*.part"))


def test_a_cut_line_is_left_out(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", LINES[:2])
    cut = tmp_path / "cut"
    cut.write_text(whole.read_text(encoding="utf-8") + json.dumps(LINES[2])[:50], encoding="utf-8")
    result = show(cut)
    assert result.stdout == show(whole).stdout
    assert result.stderr == f"warning: {cut}: the last line has no end and is left out\n"


# --- the page, as text


@pytest.fixture(scope="module")
def page(trace: Path) -> Path:
    output = trace.with_name("page.html")
    result = show(trace, "--html", output)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert sorted(path.name for path in trace.parent.iterdir()) == ["a&b.jsonl", "page.html"]
    return output


class Tags(HTMLParser):
    """Notes every tag, and that each is closed where it has to be."""

    VOID = frozenset({"meta", "link", "input", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    names = [name for name, _ in tags.found]
    assert names.count("script") == 1 and not {"img", "iframe", "object", "base"} & set(names)
    for _, attributes in tags.found:
        assert not attributes.keys() & {"src", "srcset", "onclick", "onload"}
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|@import|url\(", text)
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_has_enough_contrast_in_both_schemes(page: Path) -> None:
    schemes = re.findall(r":root \{(.*?)\}", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", scheme))
        kinds = ("accepted", "rejected", "own")
        pairs = [(text, back) for text in ("text", "quiet") for back in ("page", "card")]
        # the sign that joins BPE pieces is quiet on every background
        pairs += [(text, f"{kind}-back") for kind in kinds for text in (kind, "quiet")]
        for text, back in pairs:
            dark, bright = sorted(luminance(colours[name]) for name in (text, back))
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, back)


# --- the page, in a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    if browser.find() is None:
        pytest.skip("no browser is installed (Debian: apt-get install chromium)")
    with browser.opened(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def visit(chromium: browser.Browser, page: Path) -> Iterator[Callable[..., browser.Browser]]:
    """Opens the page; at the end nothing may have been complained of, and nothing else asked for."""
    address = page.as_uri()

    def go(place: str = "", **options: Any) -> browser.Browser:
        chromium.goto(address + place, **options)
        return chromium

    yield go
    assert chromium.complaints() == []
    assert {url.split("#")[0] for url in chromium.requests()} == {address}


def texts(chromium: browser.Browser, selector: str) -> list[str]:
    """What a person sees in these elements; nothing of what isn't shown."""
    chromium.value(f"document.querySelector({json.dumps(selector)})?.scrollIntoView({{block: 'center'}})")
    chromium.settle()
    found: list[str] = chromium.value(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.checkVisibility())"
        ".map(e => e.innerText.replace(/\\s+/g, ' ').trim())"
    )
    return found


def test_without_javascript_it_is_a_table(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit(javascript=False)
    assert texts(chromium, "h1") == ["Trace of a&b.jsonl"]
    assert dict(zip(texts(chromium, "dt"), texts(chromium, "dd"), strict=True)) == FIGURES
    assert texts(chromium, ".stepper, form") == []
    assert texts(chromium, "noscript")[0].startswith("Open a sentence for the table")
    assert texts(chromium, "#s2 .source") == ["a <b>&\"' <unk>"]
    # the first sentence is open, and every token stands there as it is, with symbol and confidence
    assert texts(chromium, "#s2 tbody tr") == [
        '1 ✓ <unk> 50 ✗ &amp; 50 ✗ " 50 ○ x 50 ◆ </p><script>alert(1)</script> 1 of 3 4.0 4.0',
        "2 ✓ a 50 ✓ b 50 ○ c 50 ○ d 50 ◆ </s> 2 of 2 4.0 4.0",
    ]
    assert texts(chromium, "#s7 tbody tr") == []
    chromium.click("#s7 summary")  # this works without JavaScript too
    assert texts(chromium, "#s7 tbody tr") == [
        "1 ✓ das 98 ✓ Ha@@ 91 ✗ us 34 ○ ist ◆ user 2 of 3 4.0 4.0",
        "2 ✓ </s> 90 ○ x 10 ○ x 10 ○ x 10 1 of 1 4.0 4.0",
    ]
    assert texts(chromium, "#s11 tbody tr") == []


def test_colour_is_never_alone(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit()
    looks = {}
    for kind in ("ins", "del", "s", "strong"):
        style = f"getComputedStyle(document.querySelector('#s2 {kind}'))"
        word = f"getComputedStyle(document.querySelector('#s2 {kind} > span'))"
        looks[kind] = chromium.value(
            f"[{word}.textDecorationLine, {word}.fontStyle, +{style}.fontWeight, {style}.borderTopStyle, "
            f"document.querySelector('#s2 {kind} > b').textContent]"
        )
    assert looks["ins"][0] == "underline" and looks["del"][0] == "line-through"
    assert looks["s"][1] == "italic" and looks["s"][3] == "dashed" and looks["strong"][2] >= 700
    assert len({tuple(look) for look in looks.values()}) == len({look[-1] for look in looks.values()}) == 4
    languages = "document.querySelector('#s7 .source').lang + document.querySelector('#s7 td').lang"
    assert chromium.value("document.documentElement.lang + " + languages) == "enende"


def test_stepping_with_buttons_slider_keys_and_rows(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit()
    chromium.click("#s7 summary")

    def seen() -> tuple[list[str], list[str]]:
        """The text in the stepper, token by token, and the marked row of the table."""
        return texts(chromium, "#s7 .text > *"), texts(chromium, "#s7 tr[aria-current] th")

    first = ["✓ das 98 %", "✓ Ha@@ 91 %", "✗ us 34 %", "○ ist", "◆ user"], ["1"]
    second = ["das", "Ha@@", "user", "✓ </s> 90 %", "○ x 10 %", "○ x 10 %", "○ x 10 %"], ["2"]
    assert seen() == first
    told = "Iteration 1 of 2: 2 of 3 draft tokens accepted, then the verifier's own: “user”."
    assert texts(chromium, "#s7 [aria-live=polite]") == [told]
    steps: list[tuple[Callable[[], None], Any]] = [
        (lambda: chromium.click("#s7 button:nth-of-type(3)"), second),
        (lambda: chromium.click("#s7 button:nth-of-type(2)"), first),
        (lambda: chromium.press("ArrowRight"), second),
        (lambda: chromium.press("ArrowRight"), second),  # there is no third
        (lambda: chromium.press("ArrowLeft"), first),
        (lambda: chromium.click("#s7 tbody tr:nth-child(2)"), second),
        (lambda: chromium.click("#s7 button:nth-of-type(1)"), first),
        (lambda: chromium.value("document.querySelector('#s7 [type=range]').focus()"), first),
        (lambda: chromium.press("ArrowRight"), second),  # now the slider takes the key
    ]
    for number, (act, expected) in enumerate(steps):
        act()
        assert seen() == expected, number
    assert texts(chromium, "#s7 [aria-live]") == ["Iteration 2 of 2: 1 of 1 draft tokens accepted; an accepted end of "
                                                  "sentence ends it."]  # fmt: skip
    assert chromium.value("document.querySelector('#s7 [type=range]').getAttribute('aria-valuetext')") == (
        "Iteration 2 of 2"
    )
    assert chromium.value("document.querySelector('#s7 button:nth-of-type(3)').disabled")
    # what was drafted from sentence 2 is text here as well
    chromium.click("#s2 button:nth-of-type(3)")
    assert texts(chromium, "#s2 .text > *")[:2] == ["<unk>", "</p><script>alert(1)</script>"]


def test_a_step_without_a_draft_and_an_address_that_opens_a_sentence(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit("#s11")
    assert texts(chromium, "#s11 .text > *") == ["◆ Z"]
    assert texts(chromium, "#s11 [aria-live]") == [
        "Iteration 1 of 2: Nothing was verified; the verifier's own token is “Z”."
    ]
    assert texts(chromium, "#s11 tbody tr")[0] == "1 ◆ Z no draft 0.0 4.0"


def test_the_histogram_can_be_read(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit()
    svg = "[aria-labelledby=histogram] svg"
    labels = chromium.value(f"[...document.querySelectorAll('{svg} text')].map(text => text.textContent)")
    assert labels == ["2", "40%", "1", "1", "20%", "2", "2", "40%", "3"]  # iterations, their share, their tokens
    heights = chromium.value(f"[...document.querySelectorAll('{svg} rect')].map(bar => +bar.getAttribute('height'))")
    assert heights[0] == heights[2] == 2 * heights[1] > 0
    title = chromium.value(f"document.querySelector('{svg} title').textContent")
    assert "1 token: 2 iterations; 2 tokens: 1 iteration; 3 tokens: 2 iterations" in title


def test_finding_and_ordering(visit: Callable[..., browser.Browser]) -> None:
    chromium = visit()
    assert texts(chromium, ".number") == ["2", "7", "11"]
    chromium.click("[type=search]")
    chromium.type("HOUSE")
    assert texts(chromium, ".number") == ["7"] and texts(chromium, "output") == ["1 of 3"]
    chromium.value("document.querySelector('form').reset()")
    chromium.value("document.querySelector('[type=search]').dispatchEvent(new Event('input'))")
    for order, numbers in (("slow", ["11", "7", "2"]), ("fast", ["2", "7", "11"])):
        chromium.value(f"document.querySelector('select').value = '{order}'")
        chromium.value("document.querySelector('select').dispatchEvent(new Event('change'))")
        assert texts(chromium, ".number") == numbers


def test_light_dark_and_narrow(visit: Callable[..., browser.Browser], tmp_path: Path) -> None:
    backgrounds = set()
    for dark in (False, True):
        chromium = visit(dark=dark)
        backgrounds.add(chromium.value("getComputedStyle(document.body).backgroundColor"))
        chromium.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert backgrounds == {"rgb(255, 255, 255)", "rgb(20, 24, 28)"}
    chromium = visit(width=360)
    assert chromium.value("document.documentElement.scrollWidth <= innerWidth")  # nothing to scroll sideways


def test_a_thousand_sentences(chromium: browser.Browser, tmp_path: Path) -> None:
    one = iteration([token("das"), token("Ha@@"), token("us"), token("ist"), token("x")], 4, 2, "user")
    lines = [sentence(number, f"source {number}", 0, *[one] * 8) for number in range(1000)]
    output = tmp_path / "page.html"
    assert show(write(tmp_path / "trace", lines), "--html", output).returncode == 0
    chromium.goto(output.as_uri())
    assert chromium.complaints() == []
    assert chromium.value("document.querySelectorAll('.stepper').length") == 1  # others are made when they are opened
    chromium.click("[type=search]")
    chromium.type("977")
    assert texts(chromium, ".number") == ["977"]
    chromium.click("#s977 summary")
    chromium.press("ArrowRight")
    assert texts(chromium, "#s977 .place") == ["Iteration 2 of 8"]
