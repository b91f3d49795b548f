"""LibreOffice's offline help: two trees of HTML pages in which a paragraph and its translation have the same id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from lxml import html

from corpus.pair import Pair, normalise
from corpus.report import Report

FAMILY = "lohelp"
HELP_FOLDER = Path("usr/share/libreoffice/help")
_ID_PREFIXES = ("par_", "hd_")
_CODE_CLASSES = ("code", "smathcode", "image")


def _shown_variant(switch: html.HtmlElement) -> html.HtmlElement | None:
    """The child of an inline switch (one text for each system or application) that a reader sees by default."""
    return next((child for child in switch if child.get("id", "").startswith("default")), None)


def _text(paragraph: html.HtmlElement) -> str | None:
    """The text a reader sees, or None where it depends on the application, or where a picture or code stands in it."""
    for part in paragraph.iterdescendants():
        if part.tag == "img" or part.get("class") in ("input", "code"):
            return None
        if part.tag == "br":
            part.tail = " " + (part.tail or "")
    for switch in paragraph.xpath('.//span[@class="switchinline"]'):
        shown = _shown_variant(switch)
        if shown is None:
            return None
        for child in switch:
            if child is not shown:
                child.drop_tree()
    return normalise(paragraph.text_content())


def read_page(page: Path) -> dict[str, list[str | None]]:
    """Paragraph id -> the texts under that id in page order (an embedded section can bring an id twice)."""
    tree = html.parse(page, parser=html.HTMLParser(encoding="utf-8"))
    paragraphs: dict[str, list[str | None]] = defaultdict(list)
    for element in tree.iter("p", "h1", "h2", "h3", "h4", "h5", "h6"):
        name, kind = element.get("id", ""), element.get("class") or ""
        if name.startswith(_ID_PREFIXES) and not kind.startswith(_CODE_CLASSES):
            paragraphs[name].append(_text(element))
    return paragraphs


def extract(root: Path, report: Report) -> Iterator[Pair]:
    """Pairs of ``root``, a folder into which both help packages were unpacked; the document is the page."""
    english = root / HELP_FOLDER / "en-US" / "text"
    german = root / HELP_FOLDER / "de" / "text"
    for page in sorted(english.rglob("*.html")):
        name = page.relative_to(english)
        if not (german / name).exists():
            report.skip(FAMILY, "page without translation")
            continue
        theirs = read_page(german / name)
        for identifier, sources in read_page(page).items():
            targets = theirs.get(identifier, [])
            if len(targets) != len(sources):
                report.skip(FAMILY, "id on one side only", max(len(sources), len(targets)))
                continue
            for source, target in zip(sources, targets, strict=True):
                if source is None or target is None:
                    report.skip(FAMILY, "picture, code or switch inside")
                elif source or target:
                    yield Pair(source, target, FAMILY, str(name))
