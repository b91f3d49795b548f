"""scripts/score.sh against BLEU and chrF counted by brute force from their definitions: on a dozen lines whose text was
detokenised and tokenised by hand, and on the 3003 lines of the published WMT14 reference.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fairseq_tools import error_line
from test_scripts import run, succeed

SCRIPT = "scripts/score.sh"


class Line(NamedTuple):
    """A sentence in all its forms, each written by hand."""

    hypothesis: str
    """Tokenised."""
    hypothesis_plain: str
    """Detokenised."""
    reference: str
    """Tokenised, with normalised punctuation."""
    reference_plain: str
    """The tokenised reference, detokenised."""
    raw: str
    """As it was written."""


LINES = [
    Line("Die Ost-West-Achse war lang .", "Die Ost-West-Achse war lang.",
         "Die Ost-West-Achse ist sehr lang .", "Die Ost-West-Achse ist sehr lang.",
         "Die Ost-West-Achse ist sehr lang."),
    Line("Ein Haus steht am Wald .", "Ein Haus steht am Wald.",
         "Ein altes Haus steht am Wald .", "Ein altes Haus steht am Wald.",
         "Ein altes Haus steht am Wald."),
    Line("Er sagte : &quot; Das ist gut &quot; .", 'Er sagte: "Das ist gut".',
         "Er sagte : &quot; Das ist sehr gut &quot; .", 'Er sagte: "Das ist sehr gut".',
         "Er sagte: „Das ist sehr gut“."),
    Line("Die B 33-Ampel am Dorfplatz ist neu .", "Die B 33-Ampel am Dorfplatz ist neu.",
         "Die neue B 33-Ampel am Dorfplatz leuchtet .", "Die neue B 33-Ampel am Dorfplatz leuchtet.",
         "Die neue B 33-Ampel am Dorfplatz leuchtet."),
    Line("das das das das", "das das das das",
         "das ist das Haus", "das ist das Haus",
         "Das ist das Haus"),
    Line("Wo ist ( bitte ) der Bahnhof ?", "Wo ist (bitte) der Bahnhof?",
         "Wo liegt ( bitte ) der Bahnhof ?", "Wo liegt (bitte) der Bahnhof?",
         "Wo liegt (bitte) der Bahnhof?"),
    Line("Öffnen Sie die Datei , dann schließen Sie sie .", "Öffnen Sie die Datei, dann schließen Sie sie.",
         "Öffnen Sie die Datei und schließen Sie sie dann .", "Öffnen Sie die Datei und schließen Sie sie dann.",
         "Öffnen Sie die Datei und schließen Sie sie dann."),
    Line("Über 100 Gäste kamen !", "Über 100 Gäste kamen!",
         "Mehr als 100 Gäste kamen gestern !", "Mehr als 100 Gäste kamen gestern!",
         "Mehr als 100 Gäste kamen gestern!"),
    Line("Der Nord-Süd-Konflikt bleibt .", "Der Nord-Süd-Konflikt bleibt.",
         "Der Konflikt zwischen Nord und Süd bleibt .", "Der Konflikt zwischen Nord und Süd bleibt.",
         "Der Konflikt zwischen Nord und Süd bleibt."),
    Line("Klicken Sie auf OK ; das Fenster schließt sich .", "Klicken Sie auf OK; das Fenster schließt sich.",
         "Klicken Sie auf OK ; das Fenster schließt sich .", "Klicken Sie auf OK; das Fenster schließt sich.",
         "Klicken Sie auf OK \u2013 das Fenster schließt sich."),
    Line("Heute regnet es im Schwarzwald .", "Heute regnet es im Schwarzwald.",
         "Im Schwarzwald regnet es heute .", "Im Schwarzwald regnet es heute.",
         "Im Schwarzwald regnet es heute."),
    Line("Der Zug fährt um acht Uhr ab .", "Der Zug fährt um acht Uhr ab.",
         "Der Zug fährt morgens um acht Uhr ab .", "Der Zug fährt morgens um acht Uhr ab.",
         "Der Zug fährt morgens um acht Uhr ab."),
]  # fmt: skip


def words_13a(line: str) -> list[str]:
    """Those of mteval-v13a, as far as these lines go: punctuation stands alone, but a hyphen only behind a digit."""
    return re.findall(r"""[.,:;!?()"]|(?<=\d)-|(?:(?<!\d)-|[^\s.,:;!?()"-])+""", line)


def grams(symbols: Sequence[str], size: int) -> list[Sequence[str]]:
    return [symbols[start : start + size] for start in range(len(symbols) - size + 1)]


def matches(hypothesis: list[Sequence[str]], reference: list[Sequence[str]]) -> int:
    """How many n-grams find a partner of their own in the reference."""
    return (Counter(hypothesis) & Counter(reference)).total()


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """Papineni et al. (2002): geometric mean of the corpus's n-gram precisions, times the brevity penalty."""
    logarithms = 0.0
    for size in range(1, 5):
        pairs = [(grams(tuple(h), size), grams(tuple(r), size)) for h, r in zip(hypotheses, references, strict=True)]
        logarithms += math.log(sum(matches(h, r) for h, r in pairs) / sum(len(h) for h, _ in pairs))
    ratio = sum(map(len, references)) / sum(map(len, hypotheses))
    return 100 * math.exp(logarithms / 4) * (math.exp(1 - ratio) if ratio > 1 else 1)


def chrf(hypotheses: list[str], references: list[str]) -> float:
    """Popović (2015), beta 2: mean precision and mean recall of 1- to 6-grams of characters, without white space."""
    precision = recall = 0.0
    for size in range(1, 7):
        pairs = [
            (grams(re.sub(r"\s", "", h), size), grams(re.sub(r"\s", "", r), size))
            for h, r in zip(hypotheses, references, strict=True)
        ]
        found = sum(matches(h, r) for h, r in pairs)
        precision += found / sum(len(h) for h, _ in pairs) / 6
        recall += found / sum(len(r) for _, r in pairs) / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def split(line: str) -> list[str]:
    """Words, with compounds split by a loop over the characters of each."""
    parts: list[str] = []
    for word in line.split():
        begin = used = 0
        for at in range(1, len(word) - 1):
            if word[at] == "-" and at > used:  # the published expression wants characters of its own on both sides
                parts += [word[begin:at], "##AT##-##AT##"]
                begin, used = at + 1, at + 2
        parts.append(word[begin:])
    return parts


def table(printed: str) -> dict[str, tuple[float, str, str]]:
    """Score, signature and advice by name."""
    found = {}
    for line in printed.splitlines():
        match = re.fullmatch(r"(\S.*?) +(\d+\.\d\d)  (\S+) +(.+)", line)
        if match:
            found[match[1]] = (float(match[2]), match[3], match[4])
    return found


def scores(printed: str) -> list[float]:
    return [score for score, _, _ in table(printed).values()]


def shuffled_log(hypotheses: list[str], references: list[str]) -> str:
    """As fairseq-generate prints: in the order of lengths, with a second hypothesis."""
    head = [f"2026-11-30 12:00:00 | INFO | fairseq.tasks.translation | [{side}] dictionary: 99 types"
            for side in ("en", "de")]  # fmt: skip
    blocks = [
        f"S-{n}\tsource\nT-{n}\t{reference}\nH-{n}\t-0.5\t{hypothesis}\nD-{n}\t-0.5\t{hypothesis}\nP-{n}\t-0.1\n"
        f"H-{n}\t-0.9\tworse\nD-{n}\t-0.9\tworse\nP-{n}\t-0.9\n"
        for n, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True))
    ]
    random.Random(1).shuffle(blocks)
    return "\n".join(head) + "\n" + "".join(blocks) + "Generate test with beam=5: BLEU4 = 1.00, ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The dozen lines as files: hyp.de, ref.de (tokenised), raw.de, log."""
    for name, lines in {
        "hyp.de": [line.hypothesis for line in LINES],
        "ref.de": [line.reference for line in LINES],
        "raw.de": [line.raw for line in LINES],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    log = shuffled_log([line.hypothesis for line in LINES], [line.reference for line in LINES])
    (tmp_path / "log").write_text(log, encoding="utf-8")
    return tmp_path


def expected(raw: bool) -> list[float]:
    plain, reference = [x.hypothesis_plain for x in LINES], [x.raw if raw else x.reference_plain for x in LINES]
    return [
        bleu([x.hypothesis.split() for x in LINES], [x.reference.split() for x in LINES]),
        bleu([split(x.hypothesis) for x in LINES], [split(x.reference) for x in LINES]),
        bleu([words_13a(x) for x in plain], [words_13a(x) for x in reference]),
        chrf(plain, reference),
    ]


def test_the_counts_of_the_first_line_are_those_by_hand() -> None:
    hypothesis, reference = tuple(LINES[0].hypothesis.split()), tuple(LINES[0].reference.split())
    found = [matches(grams(hypothesis, n), grams(reference, n)) for n in range(1, 5)]
    assert found == [4, 2, 0, 0]  # "Die", "Ost-West-Achse", "lang", "."; "Die Ost-West-Achse", "lang ."
    assert split("x-y-z B33-Ampel -") == ["x", "##AT##-##AT##", "y-z", "B33", "##AT##-##AT##", "Ampel", "-"]
    assert words_13a('Zu 33-Ost: "Ost-West".') == ["Zu", "33", "-", "Ost", ":", '"', "Ost-West", '"', "."]


def test_a_dozen_lines_score_as_counted_by_brute_force(folder: Path) -> None:
    printed = succeed(SCRIPT, "hyp.de", "ref.de", cwd=folder).stdout
    assert scores(printed) == pytest.approx(expected(raw=False), abs=0.0051)
    for name, (_, signature, advice) in table(printed).items():
        assert ("detok:" in signature) == ("detokenised" in name) == ("not against a raw one" in advice)
        assert "version:" in signature
    against_raw = succeed(SCRIPT, "--raw-reference", "raw.de", "hyp.de", "ref.de", cwd=folder).stdout
    assert scores(against_raw) == pytest.approx(expected(raw=True), abs=0.0051)
    assert scores(against_raw)[:2] == scores(printed)[:2]
    assert scores(against_raw)[2] != scores(printed)[2]
    signatures = [signature for _, signature, _ in table(against_raw).values()]
    assert len(set(signatures)) == 4
    assert [signature.endswith("-de|ref:raw") for signature in signatures] == [False, False, True, True]


def test_logs_and_split_files_score_as_the_texts_that_they_are_of(folder: Path) -> None:
    wanted = succeed(SCRIPT, "hyp.de", "ref.de", cwd=folder).stdout
    assert succeed(SCRIPT, "log", cwd=folder).stdout == wanted
    for name in ("hyp", "ref"):
        succeed("ref.sh", f"{name}.de", f"{name}.split.de", cwd=folder)
    assert succeed(SCRIPT, "hyp.split.de", "ref.split.de", cwd=folder).stdout == wanted

    bpe = shuffled_log(
        [re.sub(r"(\w\w)(?=\w)", r"\1@@ ", line.hypothesis) for line in LINES],
        [re.sub(r"(\w\w\w)(?=\w)", r"\1@@ ", line.reference) for line in LINES],
    )
    (folder / "bpe").write_text(bpe, encoding="utf-8")
    assert "give --remove-bpe" in error_line(run(SCRIPT, "bpe", cwd=folder))
    assert succeed(SCRIPT, "--remove-bpe", "bpe", cwd=folder).stdout == wanted


def test_a_log_that_is_not_whole_is_scored_with_a_note(folder: Path) -> None:
    lines = (folder / "log").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.match(r"[STHDP]-3\t|Generate", line)]
    (folder / "part").write_text("\n".join(kept).replace("lang .", "<<unk>> .") + "\n", encoding="utf-8")
    printed = succeed(SCRIPT, "part", cwd=folder).stdout
    assert "11 lines" in printed
    assert "note: 1 of the 12 sentences" in printed
    assert "hold 1 unknown words" in printed
    assert "it may have been interrupted" in printed
    assert "note:" not in succeed(SCRIPT, "log", cwd=folder).stdout


def test_what_cannot_be_scored(folder: Path) -> None:
    def error(*arguments: str) -> str:
        return error_line(run(SCRIPT, *arguments, cwd=folder))

    (folder / "short.de").write_text("ein Wort\n", encoding="utf-8")
    (folder / "empty.de").write_text("", encoding="utf-8")
    (folder / "latin1.de").write_bytes(b"gut\n" * 11 + b"f\xfcr\n")
    (folder / "hyp").write_text("ein Wort\n", encoding="utf-8")
    (folder / "generated").write_text("H-0\t-1\tein Wort\n", encoding="utf-8")
    moses = "2026-11-30 12:00:00 | INFO | fairseq_cli.generate | {'bpe': None, 'tokenizer': {'_name': 'moses'}}\n"
    (folder / "moses").write_text(moses + (folder / "log").read_text(encoding="utf-8"), encoding="utf-8")
    assert "hyp.de and short.de differ in their number of lines: 12 and 1" in error("hyp.de", "short.de")
    assert "hyp.de and short.de differ" in error("--raw-reference", "short.de", "hyp.de", "ref.de")
    assert "empty.de and empty.de are empty" in error("empty.de", "empty.de")
    assert "the hypotheses nowhere does not exist" in error("nowhere", "ref.de")
    assert "the raw reference nowhere does not exist" in error("--raw-reference", "nowhere", "log")
    assert "line 12 of the hypotheses is not UTF-8" in error("latin1.de", "ref.de")
    assert "neither H nor T lines: give a reference" in error("hyp.de")
    assert "fairseq's output without T lines" in error("generated")
    assert "detokenised already" in error("moses")
    assert "give it with --lang" in error("hyp", "hyp")
    assert "must be a code such as de, not German" in error("--lang", "German", "hyp", "hyp")
    assert "--beam is none of" in error("--beam", "5", "hyp.de", "ref.de")
    assert "--lang needs a value" in error("hyp.de", "ref.de", "--lang")


def test_the_published_reference_of_3003_lines(tmp_path: Path, shared_dir: Path) -> None:
    """As hypotheses, its own lines with a few words changed, left out or repeated."""
    published = shared_dir / "upstream-data" / "test.de.compound.ref"
    lines = published.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(lines) == 3003
    reference = [line.replace(" ##AT##-##AT## ", "-") for line in lines]
    draw = random.Random(2)

    def changed(line: str) -> str:
        words = []
        for word in line.split():
            words += draw.choices([[word], [], ["und"], [word, word]], [0.9, 0.06, 0.02, 0.02])[0]
        return " ".join(words)

    hypotheses = [changed(line) for line in reference]
    (tmp_path / "log").write_text(shuffled_log(hypotheses, reference), encoding="utf-8")
    found = table(succeed(SCRIPT, "--lang", "de", "log", published, cwd=tmp_path).stdout)
    tokenised = bleu([line.split() for line in hypotheses], [line.split() for line in reference])
    compounds = bleu([split(line) for line in hypotheses], [line.split() for line in lines])
    assert found["tokenised BLEU"][0] == pytest.approx(tokenised, abs=0.0051)
    assert found["compound-split BLEU"][0] == pytest.approx(compounds, abs=0.0051)
    assert abs(tokenised - compounds) > 0.05
    by_fairseq = succeed("ref.sh", cwd=tmp_path, GEN=str(published), OUT="log", SYS="sys", REF="ref").stdout
    assert by_fairseq.startswith(f"BLEU4 = {found['compound-split BLEU'][0]:.2f},")
    assert (tmp_path / "sys").read_text(encoding="utf-8").splitlines() == [" ".join(split(x)) for x in hypotheses]
    assert (tmp_path / "ref").read_bytes() == published.read_bytes()


def test_ref_sh_of_a_log_without_a_reference(tmp_path: Path) -> None:
    (tmp_path / "generated").write_text("H-0\t-1\tein Wort\n", encoding="utf-8")
    assert "fairseq's output without T lines" in error_line(run("ref.sh", "generated", cwd=tmp_path))
