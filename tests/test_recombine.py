"""scripts/recombine.py: new sentences made of the text's own beginnings and ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scripts import ROOT, error_line

sys.path.insert(0, str(ROOT / "scripts"))
import recombine
from recombine import MARGIN

WORDS = st.lists(st.sampled_from([",", "the", "of", "cell", "file", "ü", "menu"]), max_size=9)


@given(st.lists(WORDS, max_size=8), st.integers(1, 3), st.integers(2, 12), st.integers(0, 5))
def test_each_is_a_beginning_and_an_end_and_new(text: list[list[str]], copies: int, longest: int, seed: int) -> None:
    lines = [" ".join(words) for words in text]
    without = [*lines[:1], "the cell of file"]
    beginnings = {tuple(words[:at]) for words in text for at in range(MARGIN, len(words) - MARGIN + 1)}
    ends = {tuple(words[at:]) for words in text for at in range(MARGIN, len(words) - MARGIN + 1)}
    made = list(recombine.recombine(lines, without, copies=copies, longest=longest, seed=seed))
    assert len(made) == len(set(made)) <= copies * len(text)
    assert not set(made) & {*lines, *without}
    for sentence in made:
        words = sentence.split(" ")
        assert 2 * MARGIN <= len(words) <= longest
        assert any(tuple(words[:at]) in beginnings and tuple(words[at:]) in ends for at in range(len(words)))
    assert made == list(recombine.recombine(lines, without, copies=copies, longest=longest, seed=seed))


def test_cuts_are_before_frequent_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recombine, "FREQUENT", 1)
    text = [f"a{number} b{number} , c{number} d{number}" for number in range(9)] + ["a b c d e f g"]
    made = list(recombine.recombine(text, []))
    assert len(made) > 5
    for sentence in made:
        a, b, comma, c, d = sentence.split(" ")
        assert (a[0], b[0], comma, c[0], d[0]) == ("a", "b", ",", "c", "d")
        assert a[1:] == b[1:] != c[1:] == d[1:]


def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts/recombine.py"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "text").write_text("öffne die Datei , dann\nschließe das Fenster , bitte\n", encoding="utf-8")
    (tmp_path / "short").write_text("a b\n\n", encoding="utf-8")
    (tmp_path / "latin").write_bytes(b"ok\n\xfc\n")
    made = run("text", "--copies", "9").stdout.splitlines()
    assert set(made) > {"öffne die Fenster , bitte", "schließe das Datei , dann"}
    (tmp_path / "made").write_text("öffne die Fenster , bitte\r\n", encoding="utf-8")
    others = run("text", "--copies", "9", "--without", "made").stdout.splitlines()
    assert set(others) == set(made) - {"öffne die Fenster , bitte"}
    assert "nothing can be made of short" in error_line(run("short"))
    assert "latin: line 2 is not UTF-8" in error_line(run("text", "--without", "latin"))
    assert "nowhere can't be read" in error_line(run("nowhere"))
