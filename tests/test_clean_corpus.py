"""scripts/clean_corpus.py: each rule by hand-made pairs, duplicates against comparing every pair with every other."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import clean_corpus  # noqa: E402

needs_rensa = pytest.mark.skipif(
    importlib.util.find_spec("rensa") is None, reason="the package rensa is not installed (extra: clean)"
)


def run(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """The script on train.en and train.de of a folder, in a process of its own."""
    return subprocess.run(
        [sys.executable, ROOT / "scripts/clean_corpus.py", "train.en", "train.de", "out", *map(str, options)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder: Path, pairs: list[tuple[str, str]]) -> None:
    for side, language in enumerate(("en", "de")):
        data = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"train.{language}").write_text(data, encoding="utf-8", newline="\n", errors="surrogateescape")


def cleaned(
    folder: Path, pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, *options: object
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """What is kept of the pairs, and how many fell to each rule."""
    write(folder, pairs)
    monkeypatch.chdir(folder)
    words = ["clean_corpus.py", "train.en", "train.de", "out", "--report", "report.json", *map(str, options)]
    monkeypatch.setattr(sys, "argv", words)
    clean_corpus.main()
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    sides = ((folder / f"out.{language}").read_text(encoding="utf-8").split("\n")[:-1] for language in ("en", "de"))
    kept = list(zip(*sides, strict=True))
    assert report["pairs"] == len(pairs) and report["kept"] == len(kept)
    assert sum(report["dropped"].values()) + report["kept"] == len(pairs)
    return kept, {rule: count for rule, count in report["dropped"].items() if count}


WITHOUT_FUZZY = ("--without", "fuzzy")
TEN = "a b c d e f g h i j"

# rule, source, target
BY_HAND = [
    ("", "A small house.", "Ein kleines Haus."),
    ("utf8", "caf\udce9 open", "Café offen"),
    ("utf8", "coffee open", "Caf\ufffd offen"),
    ("empty", "", "Nichts davor."),
    ("empty", "Nothing behind.", " \u00a0\u200b "),
    ("empty", "", ""),
    ("punctuation", "... !", "... !"),
    ("punctuation", "Why not?", "\u00bf?\u3002"),  # of other scripts
    ("punctuation", "\u00a9 \u2014 _", "Alle Rechte"),
    ("digits", "42", "42"),
    ("digits", "3.5 %", "drei Prozent"),
    ("digits", "vier", "\u0664"),  # an Arabic digit
    ("", "Room 101", "Zimmer 101"),
    ("length", "x " * 81, "y " * 81),
    ("length", "x " * 80, "z " * 80 + "."),
    ("", "x " * 80, "y " * 80),
    ("", TEN, "1 2 3 4 5 6 sieben"),  # 7 / 10
    ("", TEN, "n o p q r s t u v w x y z"),  # 13 / 10
    ("ratio", TEN, "1 2 3 4 5 sechs"),
    ("ratio", TEN, "m n o p q r s t u v w x y z"),
    ("ratio", "Yes, sir", "Jawohl"),  # 1 / 3
    ("ratio", "two words", "drei ganze Wörter"),  # 3 / 2
    ("exact", "a small  house -", "EIN KLEINES HAUS!"),
    ("exact", "A small house.", "Ein kleines Haus."),
    ("", "A small house.", "Ein kleiner Bau."),  # another translation
    ("exact", "room, 101", "Zimmer: 101"),
    ("", "हिन्दी में", "in Hindi"),  # vowel signs are parts of the words
    ("", "हिन्दी मा", "in Hindi"),
]


def test_every_rule_drops_what_was_made_for_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, dropped = cleaned(tmp_path, [(s, t) for _, s, t in BY_HAND], monkeypatch, *WITHOUT_FUZZY)
    assert kept == [(s.strip(), t.strip()) for rule, s, t in BY_HAND if not rule]
    assert dropped == {"utf8": 2, "empty": 3, "punctuation": 3, "digits": 3, "length": 2, "ratio": 4, "exact": 3}
    rows = {line[:15].strip(): line[15:].split() for line in capsys.readouterr().err.splitlines()}
    assert rows["pairs read"] == ["28", "100.00%"] and rows["kept"] == ["8", "28.57%"]
    assert rows["- exact"] == ["3", "10.71%"] and rows["- fuzzy"] == ["0", "0.00%"]


@pytest.mark.parametrize("rule", ["punctuation", "digits", "length", "ratio", "exact"])
def test_each_rule_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    pairs = [(s, t) for name, s, t in BY_HAND if name in (rule, "")]
    kept, dropped = cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, rule, "ratio")
    assert dropped == {} and len(kept) == len(pairs)


def test_limits_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("a b", "c d e"), ("a b", "f"), ("a b c d", "g h i j k l"), ("x y z", "x y z")]
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY)[1] == {"ratio": 3}
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, "--slack", 1)[1] == {"ratio": 1}
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, "--max-ratio", 1.5)[1] == {"ratio": 1}
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, "--min-ratio", 0.5)[1] == {"ratio": 2}
    options = ("--max-ratio", 1.5, "--max-tokens", 3)
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, *options)[1] == {"length": 1, "ratio": 1}


def test_tokens_of_tokenised_text_are_what_blanks_separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("isn &apos;t it", "nicht wahr ja"), ("我 喜欢 你", "ich mag dich")]
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY)[1] == {"ratio": 1}  # 3 / 6, with & and ;
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, "--tokenised")[1] == {}


def test_held_out_sentences_are_left_out_on_either_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "valid.en").write_text("The cat sleeps now.\nYes\n", encoding="utf-8")
    (tmp_path / "valid.de").write_text("Die Katze schläft jetzt.\nJa\n", encoding="utf-8")
    pairs = [
        ("the cat SLEEPS now", "Der Kater schläft gerade"),
        ("My cat is asleep", "Die Katze schläft jetzt!"),
        ("It is night. The cat sleeps now.", "Es ist Nacht. Mieze schläft gerade."),
        ("Yes sir", "Ja Herr"),
        ("The cat sleeps now and then", "Manchmal schläft die Katze ein"),
    ]
    kept, dropped = cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY, "--exclude", "valid.en", "valid.de")
    assert kept == pairs[3:] and dropped == {"held-out": 3}


def test_a_line_stays_one_line_for_every_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("\ufeffone\rtwo \r", "eins\u2028zwei\t"), ("three  four", "drei\u0085vier")]
    assert cleaned(tmp_path, pairs, monkeypatch, *WITHOUT_FUZZY)[0] == [
        ("one two", "eins zwei"),
        ("three  four", "drei vier"),
    ]


# --- duplicates against brute force


def letters(text: str) -> str:
    """Words in one case, with single blanks, character by character."""
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in folded).split())


sides = st.lists(
    st.sampled_from(["one", "One", "TWO", "two,", "three!", "-", "üb", "u\u0308b"]), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sides.map(" ".join), sides.map("  ".join)), min_size=1, max_size=25))
def test_exact_duplicates_are_those_of_comparing_all_pairs(pairs: list[tuple[str, str]]) -> None:
    options = clean_corpus.argparse.Namespace(without=["fuzzy", "ratio", "punctuation"], tokenised=False, max_tokens=80,
                                              min_ratio=1, max_ratio=1, slack=0)  # fmt: skip
    cleaner = clean_corpus.Cleaner(options, set())
    expected: list[str | None] = []
    for number, pair in enumerate(pairs):
        same = [
            all(letters(a) == letters(b) if letters(a) else a == b for a, b in zip(pair, earlier, strict=True))
            for earlier in pairs[:number]
        ]
        expected.append("exact" if any(same) else None)
    assert [cleaner.fault(*pair) for pair in pairs] == expected


def jaccard(first: str, second: str) -> float:
    """Share of the sequences of five characters of two texts that are in both."""
    a, b = ({text[at : at + 5] for at in range(max(1, len(text) - 4))} for text in (first, second))
    return len(a & b) / len(a | b)


@needs_rensa
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_fuzzy_duplicates_are_those_of_comparing_all_pairs_within_the_standard_error(seed: int) -> None:
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(200)]
    texts: list[str] = []
    for _ in range(40):
        chosen = generator.choices(words, k=generator.randint(6, 20))
        texts.append(" ".join(chosen))
        for _ in range(generator.randrange(4)):  # some words of it are replaced
            other = [word if generator.random() < 0.93 else generator.choice(words) for word in chosen]
            texts.append(" ".join(other))
    near, kept = clean_corpus.NearDuplicates(0.8), []
    for text in texts:
        similarity = max((jaccard(text, one) for one in kept), default=0.0)
        added = near.add(text)
        # 4 standard errors, sqrt(0.8 * 0.2 / 128), to each side, and what the bands are sure to find
        assert added or similarity > 0.8 - 0.142
        assert not added or similarity < 0.8 + 0.142
        if added:
            kept.append(text)
    assert len(kept) < len(texts)


@needs_rensa
def test_fuzzy_duplicates_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (
        "The committee will publish the final report on fisheries next Tuesday in Brussels",
        "Der Ausschuss wird den Abschlussbericht zur Fischerei nächsten Dienstag in Brüssel veröffentlichen",
    )
    near = (first[0].replace("Tuesday", "Thursday"), first[1] + " .")
    other = (first[0], "Nächste Woche erscheint, was das Komitee in Brüssel abschließend zur Fischerei zu sagen hat")
    assert cleaned(tmp_path, [first, near, other], monkeypatch) == ([first, other], {"fuzzy": 1})
    assert cleaned(tmp_path, [first, near], monkeypatch, "--fuzzy", 1)[1] == {}
    assert cleaned(tmp_path, [first, near], monkeypatch, *WITHOUT_FUZZY)[1] == {}


@needs_rensa
def test_ten_thousand_pairs_keep_their_order_and_come_out_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghij", k=6)) for _ in range(3000)]
    pairs = []
    for number in range(10_000):
        text = " ".join(generator.choices(words, k=8))
        pairs.append((f"n{number} {text}", f"n{number} {text[::-1]}"))
    pairs[5000:5100] = pairs[:100]
    kept, dropped = cleaned(tmp_path, pairs, monkeypatch)
    assert dropped == {"exact": 100}
    assert all(int(a.split()[0][1:]) < int(b.split()[0][1:]) for (a, _), (b, _) in pairwise(kept))
    assert cleaned(tmp_path, pairs, monkeypatch) == (kept, dropped)


# --- what goes wrong


def test_errors_are_told_in_one_line_and_leave_nothing(tmp_path: Path) -> None:
    def error(*options: object) -> str:
        result = run(tmp_path, *options)
        assert result.returncode == 1 and not list(tmp_path.glob("out*"))
        last = result.stderr.splitlines()[-1]
        assert last.startswith("error: ") and "Traceback" not in result.stderr
        return last

    write(tmp_path, [("one", "eins"), ("two", "zwei")])
    (tmp_path / "train.de").write_text("eins\nzwei\ndrei", encoding="utf-8")
    assert error(*WITHOUT_FUZZY) == "error: train.en and train.de differ in their number of lines: 2 and 3"
    write(tmp_path, [("...", "!")])
    assert error(*WITHOUT_FUZZY) == "error: not one pair of train.en and train.de is left"
    (tmp_path / "train.de").unlink()
    assert error() == "error: train.de does not exist"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-ratio", "1.4"), "--min-ratio 1.4 and --max-ratio 1.3 must be above 0 and in order"),
        (("--min-ratio", "nan"), "--min-ratio nan and --max-ratio 1.3 must be above 0 and in order"),
        (("--max-tokens", "0"), "--max-tokens must be at least 1, not 0"),
        (("--slack", "-1"), "--slack must not be negative, but is -1"),
        (("--fuzzy", "1.1"), "--fuzzy must be more than 0 and at most 1, not 1.1"),
        (("--exclude", "valid.en"), "valid.en does not exist"),
        (("--report", "no/report.json"), "there is no folder"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match=r"^error: ") as ended:
        cleaned(tmp_path, [("one", "eins")], monkeypatch, *options)
    assert message in str(ended.value)
    assert not list(tmp_path.glob("out*"))


def test_names_that_do_not_tell_the_languages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.de", "source"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    for names, message in [
        (("source", "train.de", "out"), "must end with their languages"),
        (("train.en", "train.en", "out"), "must end with their languages"),
        (("train.en", "train.de", "train"), "would overwrite the text that is read"),
    ]:
        monkeypatch.setattr(sys, "argv", ["clean_corpus.py", *names])
        with pytest.raises(SystemExit, match=f"^error: .*{message}"):
            clean_corpus.main()


def test_without_the_package_fuzzy_duplicates_can_be_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(SystemExit, match=r"^error: .*rensa.*--without fuzzy$"):
        cleaned(tmp_path, [("one", "eins")], monkeypatch)
    assert cleaned(tmp_path, [("one", "eins")], monkeypatch, *WITHOUT_FUZZY) == ([("one", "eins")], {})
