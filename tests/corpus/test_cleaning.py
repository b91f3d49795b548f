"""Cutting into sentences, the rules of cleaning, duplicates, language, and the counts of the report."""

import pytest

from corpus.clean import RULES, clean, deduplicate, fault
from corpus.language import LanguageCheck
from corpus.pair import Pair, key, normalise, sentence_keys
from corpus.report import Report
from corpus.sentences import split_pairs, split_sentences


def pair(source: str, target: str, family: str = "ding") -> Pair:
    return Pair(source, target, family, "a document")


BROKEN = [
    ("fewer than 3 words", "Two words.", "Nur zwei Worte."),
    ("more than 80 tokens", "word " * 81, "Wort " * 81),
    ("source equals target", "Noto Sans Condensed Bold", "Noto Sans, condensed bold"),
    ("token ratio outside 0.5-2.0", "one two three", "eins zwei drei vier fünf sechs sieben"),
    ("markup", "Press <b>OK</b> to go on", "Drücken Sie <b>OK</b> zum Fortfahren"),
    ("markup", "Fish &amp; chips for all", "Fisch &amp; Pommes für alle"),
    ("placeholder or code", "Copied %s files to disk", "Es wurden %s Dateien kopiert"),
    ("placeholder or code", "The value of ${name} is wrong", "Der Wert von ${name} ist falsch"),
    ("placeholder or code", "Call the function read_all to start", "Rufen Sie zum Starten read_all auf"),
    ("address or path", "See https://example.org for more", "Mehr dazu unter https://example.org im Netz"),
    ("word broken at a line's end", "A class for reading files", "Eine Klasse zum Datei- lesen von Platte"),
    ("few letters", "1, 2, 3, 4 or 5 bits", "1, 2, 3, 4 oder 5 Bits"),
    ("numbers differ", "It has 3 large rooms", "Es hat 4 große Zimmer"),
    ("most words untranslated", "Voice over IP client library", "Voice over IP Client Bibliothek"),
]


@pytest.mark.parametrize(("rule", "source", "target"), BROKEN)
def test_each_rule_names_what_breaks_it(rule: str, source: str, target: str) -> None:
    assert fault(pair(source, target)) == rule


def test_every_rule_is_tested() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Uses 50% of the width.", "Verwendet 50 % der Breite."),
        ("In 1,000 years nobody will know.", "In 1.000 Jahren weiß das niemand mehr."),
        ("Input and output of text", "Ein- und Ausgabe von Text"),
        ("word " * 40, "Wort " * 80),
        ("Choose Insert - Cross-reference.", "Wählen Sie Einfügen \u2013 Querverweis."),
    ],
)
def test_good_pairs_pass(source: str, target: str) -> None:
    assert fault(pair(source, target)) is None


def test_duplicates_differ_in_case_spacing_or_punctuation_only() -> None:
    first, again = (
        pair("Open the file.", "Öffnen Sie die Datei."),
        pair("open the File", "Öffnen Sie die Datei", "ddtp"),
    )
    other = pair("Open the file.", "Die Datei öffnen.")
    report = Report()
    assert list(deduplicate([first, again, other], report)) == [first, other]
    assert report.dropped == {("duplicate", "ddtp"): 1}


def test_language_check_drops_the_wrong_language_on_either_side() -> None:
    english, german = (
        "This is clearly an English sentence about files.",
        "Das ist eindeutig ein deutscher Satz über Dateien.",
    )
    good, source, target = pair(english, german), pair(german, german), pair(english, english)
    report = Report()
    assert list(LanguageCheck("en", "de").filter([good, source, target], report)) == [good]
    assert report.dropped == {("source is not en", "ding"): 1, ("target is not de", "ding"): 1}


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Open it. Close it! Done?", ["Open it.", "Close it!", "Done?"]),
        ("See z. B. Seite 3. Dann weiter.", ["See z. B. Seite 3.", "Dann weiter."]),
        ("Das ist Nr. Fünf bzw. Sechs. Gut.", ["Das ist Nr. Fünf bzw. Sechs.", "Gut."]),
        ("It costs 3.5 euros. and so on", ["It costs 3.5 euros. and so on"]),
        ("Er sagt es. „Ja!“ Punkt.", ["Er sagt es.", "„Ja!“ Punkt."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_paragraphs_are_cut_only_where_the_counts_agree() -> None:
    even, uneven = pair("One. Two.", "Eins. Zwei."), pair("One. Two.", "Eins, zwei.")
    assert list(split_pairs([even, uneven])) == [pair("One.", "Eins."), pair("Two.", "Zwei."), uneven]


def test_normalise_and_keys() -> None:
    assert normalise(" a\n\u00a0b\tc\u00ad\u200bd  u\u0308 ") == "a b cd ü"
    assert key("Grüße,  an ALLE!") == key("grüsse an alle")
    assert sentence_keys("Click OK. Then close the file: It is saved.") == {
        "click ok then close the file it is saved",
        "then close the file",
        "it is saved",
    }


def test_report_counts_and_table() -> None:
    report = Report()
    pairs = [pair(source, target) for _, source, target in BROKEN] + [pair("This one is fine.", "Das ist in Ordnung.")]
    report.find("ding", len(pairs))
    report.skip("lohelp", "verbatim text", 1200)
    kept = list(clean(pairs, report))
    report.keep("ding", "train", len(kept))
    assert len(kept) == 1
    assert report.dropped["markup", "ding"] == 2
    assert sum(report.dropped.values()) + sum(report.lines.values()) == sum(report.found.values()) == len(pairs)
    table = report.markdown()
    assert "| passed over: verbatim text | 0 | 1,200 | 1,200 |" in table
    assert "| dropped: placeholder or code | 3 | 0 | 3 |" in table
    assert "| **train** | 1 | 0 | 1 |" in table
