"""Extractors on small files written by hand in the format of the real ones."""

from pathlib import Path

import pytest

from corpus import ddtp, ding, lohelp
from corpus.report import Report

PAGE = """<html><head><meta charset="utf-8"><title>{title}</title></head><body>
<p id="search">{title}</p>
<h1 id="hd_id1">{title}</h1>
<p id="par_id2" class="paragraph">{second}</p>
<pre><p id="par_id3" class="code">Print 1</p></pre>
<p id="par_id4" class="paragraph">{fourth}</p>
{rest}
</body></html>"""


def write_page(root: Path, language: str, name: str, **parts: str) -> None:
    page = root / lohelp.HELP_FOLDER / language / "text" / name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(PAGE.format(**parts), encoding="utf-8")


def test_help_pages_are_paired_by_paragraph_id(tmp_path: Path) -> None:
    switch = '<span class="switchinline"><span class="MAC">Prefs</span><span id="default1">{}</span></span>'
    write_page(
        tmp_path,
        "en-US",
        "calc/a.html",
        title="Moving  Rows",
        second='Choose <span class="emph">Insert &amp;\n Move</span>.<br>Press OK.',
        fourth=f"Open {switch.format('Options')} now.",
        rest='<p id="par_id9">Only here.</p><p id="par_id5">Click <img src="x.png"> twice.</p>',
    )
    write_page(
        tmp_path,
        "de",
        "calc/a.html",
        title="Zeilen verschieben",
        second='Wählen Sie <span class="emph">Einfügen</span>.<br>Drücken Sie OK.',
        fourth=f"Öffnen Sie {switch.format('Optionen')} jetzt.",
        rest='<p id="par_id5">Klicken Sie <img src="x.png"> doppelt.</p>',
    )
    write_page(tmp_path, "en-US", "calc/b.html", title="No translation", second="a", fourth="b", rest="")

    report = Report()
    pairs = list(lohelp.extract(tmp_path, report))

    assert [(pair.source, pair.target) for pair in pairs] == [
        ("Moving Rows", "Zeilen verschieben"),
        ("Choose Insert & Move. Press OK.", "Wählen Sie Einfügen. Drücken Sie OK."),
        ("Open Options now.", "Öffnen Sie Optionen jetzt."),
    ]
    assert {pair.document for pair in pairs} == {"calc/a.html"}
    assert report.skipped == {
        ("page without translation", "lohelp"): 1,
        ("id on one side only", "lohelp"): 1,
        ("picture, code or switch inside", "lohelp"): 1,
    }


def test_a_switch_without_default_is_passed_over(tmp_path: Path) -> None:
    switch = 'Use <span class="switchinline"><span class="WRITER">a</span><span class="CALC">b</span></span> here.'
    for language in ("en-US", "de"):
        write_page(tmp_path, language, "a.html", title="A title", second=switch, fourth="A text", rest="")
    assert [pair.source for pair in lohelp.extract(tmp_path, Report())] == ["A title", "A text"]


ENGLISH_INDEX = """Package: foo-data
Description-md5: 111
Description-en: strategy game (data)
 A game about war
 and peace.
 .
 Features:
  * first item that
    goes on
  * second item
 .
   $ foo --help
 .
 The end.

Package: bar
Description-md5: 222
Description-en: not translated

Package: baz
Description-md5: 333
Description-en: another tool
 One paragraph.
 .
 Two paragraphs.
"""
GERMAN_INDEX = """Package: foo-data
Description-md5: 111
Description-de: Strategiespiel (Daten)
 Ein Spiel über Krieg und
 Frieden.
 .
 Eigenschaften:
  * erstes Merkmal, das
    weitergeht
  * zweites Merkmal
 .
   $ foo --help
 .
 Das Ende.

Package: baz
Description-md5: 333
Description-de: noch ein Werkzeug
 Ein einziger Absatz.
"""


def test_descriptions_are_joined_on_their_checksum(tmp_path: Path) -> None:
    english, german, packages = tmp_path / "en", tmp_path / "de", tmp_path / "Packages"
    english.write_text(ENGLISH_INDEX, encoding="utf-8")
    german.write_text(GERMAN_INDEX, encoding="utf-8")
    packages.write_text("Package: foo-data\nSource: foo (1.2-3)\nVersion: 1\n\nPackage: baz\n", encoding="utf-8")

    report = Report()
    pairs = list(ddtp.extract(english, german, ddtp.read_sources(packages), report))

    assert [(pair.source, pair.target) for pair in pairs] == [
        ("strategy game (data)", "Strategiespiel (Daten)"),
        ("A game about war and peace.", "Ein Spiel über Krieg und Frieden."),
        ("Features:", "Eigenschaften:"),
        ("first item that goes on", "erstes Merkmal, das weitergeht"),
        ("second item", "zweites Merkmal"),
        ("The end.", "Das Ende."),
    ]
    assert {pair.document for pair in pairs} == {"foo"}
    assert report.skipped == {("verbatim text", "ddtp"): 1, ("structure differs", "ddtp"): 3}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Abend {m} | Abende {pl} | Guten Abend, Herr Nachbar! :: evening | evenings | Good evening, neighbour!",
            [("Good evening, neighbour!", "Guten Abend, Herr Nachbar!")],
        ),
        ("essen {vt} | Er isst.; Er speist. :: to eat | He eats.; He dines.", [("He eats.", "Er isst.")]),
        ("A | Das ist gut/schlecht. :: B | That is good.", []),
        ("A | Er hat (heute) Zeit. :: B | He has time.", []),
        ("A | Er gab es jdm. :: B | He gave it to sb.", []),  # an abbreviation is no end of a sentence
        ("A | Er ging :: B | He went.", []),
        ("A | Eins. | Zwei. :: B | One.", []),  # the parts don't match
        ("# Das ist ein Kommentar. :: This is a comment.", []),
    ],
)
def test_dictionary_sentences(tmp_path: Path, line: str, expected: list[tuple[str, str]]) -> None:
    dictionary = tmp_path / "de-en"
    dictionary.write_text(f"# header\n{line}\n", encoding="utf-8")
    assert [(pair.source, pair.target) for pair in ding.extract(dictionary, Report())] == expected


def test_dictionary_entries_are_the_documents(tmp_path: Path) -> None:
    dictionary = tmp_path / "de-en"
    dictionary.write_text("Ast {m} | Der Ast bricht. :: bough | The bough breaks.\n", encoding="utf-8")
    assert [pair.document for pair in ding.extract(dictionary, Report())] == ["Ast {m}"]
