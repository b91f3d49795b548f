"""The README that goes with a corpus: where the text is from, under which licences, and what became of it."""

from __future__ import annotations

from pathlib import Path

from corpus.report import Report

_TEMPLATE = """# English-German corpus from Debian packages

Raw UTF-8 text, one segment a line: `text/{{train,valid,test}}.{{en,de}}`, and `.family` with the source of each line.
`bin/` is what fairseq reads, `codes` and `bpe/` the joint BPE behind it. Made by `scripts/prepare_corpus.sh en de`.

## Sources and licences

| family | what | packages | licence |
| --- | --- | --- | --- |
| lohelp | LibreOffice's offline help | {help} | MPL-2.0, LibreOffice contributors and others |
| ddtp | package descriptions and their translations | {indices} | each under the licence of the package it describes |
| ding | example sentences of the Ding dictionary | {ding} | GPL-2+, Frank Richter |

`licences/` holds the packages' copyright files. These are copyleft licences of several kinds: train and measure on the
corpus; before you pass it on, see that you keep to all of them.

## What became of the pairs

Each pair found counts once more below: under the first rule that it broke, or in the split that it went to.

{table}
"""


def read_versions(path: Path) -> dict[str, str]:
    """Package or index -> its version or origin, from lines ``name<TAB>version``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines)


def sources_markdown(versions: dict[str, str], report: Report) -> str:
    """The README's text. ``versions`` has the three packages and, as ``indices``, where the descriptions are from."""
    english, german = "libreoffice-help-en-us", "libreoffice-help-de"
    return _TEMPLATE.format(
        help=f"`{english}` {versions[english]}, `{german}` {versions[german]}",
        indices=versions["indices"],
        ding=f"`trans-de-en` {versions['trans-de-en']}",
        table=report.markdown(),
    )
