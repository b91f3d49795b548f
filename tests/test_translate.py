"""Raw text in, raw text out: scripts/translate.sh."""

import io
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fairseq.data import Dictionary, indexed_dataset
from fairseq_tools import PLUGIN, column, error_line, here, script_environment
from sacremoses import MosesDetokenizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

ROOT = Path(__file__).resolve().parents[1]
SOURCE = """Open the file's menu, please.
The "old" window (on the left) is closed.
Isn't it 5% of the text-file & more?
Close the menu.
The left window is open; the old file is not."""
TARGET = """Öffnen Sie bitte das Menü der Datei.
Das "alte" Fenster (links) ist geschlossen.
Sind das nicht 5% der Text-Datei & mehr?
Schließen Sie das Menü.
Das linke Fenster ist offen; die alte Datei nicht."""
TRAINING = shlex.split("""
-s en -t de --cpu --arch transformer --noise no_noise --criterion label_smoothed_cross_entropy
--encoder-embed-dim 48 --decoder-embed-dim 48 --encoder-ffn-embed-dim 96 --decoder-ffn-embed-dim 96
--encoder-layers 1 --decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0
--max-source-positions 60 --max-target-positions 60 --share-all-embeddings --optimizer adam --lr 5e-3
--lr-scheduler fixed --max-tokens 900 --seed 1 --disable-validation --no-epoch-checkpoints --clip-norm 1
--max-update 80 --log-format simple""")


class Models:
    """A model that knows five sentences by heart, with what it takes to translate raw text. It is its own drafter."""

    def __init__(self, folder: Path) -> None:
        self.data, self.codes = folder / "bin", folder / "codes"
        self.model = folder / "model" / "checkpoint_last.pt"
        tokenised = {language: self.tokenised(language, text) for language, text in (("en", SOURCE), ("de", TARGET))}
        with self.codes.open("w", encoding="utf-8") as file:
            learn_bpe(io.StringIO("\n".join([*tokenised["en"], *tokenised["de"]]) + "\n"), file, 60)
        encoded = {language: [self.encoded(line) for line in lines] for language, lines in tokenised.items()}
        words = Dictionary()
        for line in (*encoded["en"], *encoded["de"]):
            words.encode_line(line)
        words.finalize(padding_factor=1)
        self.data.mkdir()
        for language, lines in encoded.items():
            words.save(str(self.data / f"dict.{language}.txt"))
            prefix = self.data / f"train.en-de.{language}"
            builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(words))
            for line in lines:
                builder.add_item(words.encode_line(line, add_if_not_exist=False).long())
            builder.finalize(f"{prefix}.idx")
        here("train", self.data, "--save-dir", self.model.parent, *PLUGIN, *TRAINING, cwd=folder)

    @staticmethod
    def tokenised(language: str, text: str) -> list[str]:
        """As ``sacremoses -l LANGUAGE tokenize`` does it."""
        tokenizer = MosesTokenizer(language)
        return [tokenizer.tokenize(line, return_str=True) for line in text.split("\n")]

    def encoded(self, line: str) -> str:
        with self.codes.open(encoding="utf-8") as file:
            return BPE(file).process_line(line)

    def flags(self) -> list[str | Path]:
        return ["--data", self.data, "--codes", self.codes, "--verifier", self.model, "--drafter", self.model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


class Translator:
    """The running script, to which lines are written and from which they are read."""

    def __init__(self, cwd: Path, *arguments: object, **variables: str) -> None:
        self.process = subprocess.Popen(
            [ROOT / "scripts/translate.sh", *map(str, arguments)],
            cwd=cwd, env=script_environment(**variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test runner may ignore it
        )  # fmt: skip
        self.watch = threading.Timer(120, self.kill)  # what hangs shall fail
        self.watch.daemon = True
        self.watch.start()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str, str]:
        """Exit status, and the rest of standard output and standard error."""
        output, errors = self.process.communicate()
        self.watch.cancel()
        return self.process.returncode, output, errors


def test_each_line_is_translated_before_the_next_is_written(models: Models, tmp_path: Path) -> None:
    translator = Translator(tmp_path, *models.flags(), "--batch", 1, "--max-len-b", 30, CPU="1")
    for source, target in zip(SOURCE.split("\n"), TARGET.split("\n"), strict=True):
        translator.write(source + "\n")
        assert translator.read() == target + "\n"
        translator.write("\n")
        assert translator.read() == "\n"

    # what the model doesn't know by heart: the same as step by step
    lines = ["  Close the old menu & the window's text.\r", "Unheard Wörter (5%)!", "", SOURCE[:20]]
    translator.write("\n".join(lines))  # the last one without an end
    status, output, errors = translator.end()
    assert (status, errors) == (0, "")
    encoded = [models.encoded(line) for line in models.tokenised("en", "\n".join(lines))]
    printed = here("interactive", models.data, "-s", "en", "-t", "de", "--cpu", *PLUGIN, "--beam", 1, "--path",
                   models.model, "--max-len-b", 30, "--remove-bpe", cwd=tmp_path,
                   stdin="\n".join(encoded) + "\n")  # fmt: skip
    decoded = column(printed, "H")
    detokenizer = MosesDetokenizer("de")
    assert output.split("\n") == [*(detokenizer.detokenize(decoded[n][1].split()) for n in range(4)), ""]
    assert not list(tmp_path.iterdir())


# ---- around decoding: a stand-in for fairseq-interactive


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """Variables with which lines come out in capitals and the line "long" is skipped; --fail fails at once."""
    for name in ("tools", "bin"):
        (tmp_path / name).mkdir()
    for name in ("codes", "verifier.pt", "drafter.pt"):
        (tmp_path / name).touch()
    program = tmp_path / "tools" / "fairseq-interactive"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "if '--fail' in sys.argv:\n"
        "    sys.exit('noise\\nerror: it cannot work')\n"
        "print('some log', *sys.argv[2:], file=open('arguments', 'w'))\n"
        "for n, line in enumerate(iter(sys.stdin.readline, '')):\n"
        "    if line != 'long\\n':\n"
        "        print(f'S-{n}\\t{line}D-{n}\\t-1\\t{line.upper()}D-{n}\\t-2\\tworse')\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return {
        "PYTHON_BIN": str(tmp_path / "tools"), "DATA": "bin", "CODES": "codes", "VERIFIER": "verifier.pt",
        "DRAFTER": "drafter.pt", "BATCH": "1",
    }  # fmt: skip


def test_a_line_for_each_line(stand_in: dict[str, str], tmp_path: Path) -> None:
    translator = Translator(tmp_path, **stand_in)
    translator.write("\ufeffa\u2028b\nlong\nc\nlong")
    status, output, errors = translator.end()
    assert (status, output) == (0, "A\u2028B\n\nC\n\n")
    assert errors.splitlines() == [
        f"warning: line {number} of the input was skipped: its translation is an empty line" for number in (2, 4)
    ]
    assert Translator(tmp_path, **stand_in).end() == (0, "", "")


def test_options_reach_fairseq(stand_in: dict[str, str], tmp_path: Path) -> None:
    def given(*words: object, **variables: str) -> str:
        assert Translator(tmp_path, *words, **{**stand_in, **variables}).end() == (0, "", "")
        return (tmp_path / "arguments").read_text(encoding="utf-8")

    words = given("--beta", 5, "--tau", 3, "--lenpen", 2, "--batch", 7, "--source-lang", "de", "--target-lang", "ro")
    for flags in ("--strategy gad", "--beta 5 --tau 3", "--lenpen 2", "--buffer-size 7 --batch-size 7",
                  "--source-lang de --target-lang ro", "--path drafter.pt --AR-path verifier.pt"):  # fmt: skip
        assert f" {flags} " in f" {words.strip()} "
    words = given(STRATEGY="AR", BATCH="", CPU="1")
    for flags in ("--strategy AR", "--path verifier.pt", "--buffer-size 32 --batch-size 32", "--cpu"):
        assert f" {flags} " in f" {words.strip()} "
    assert "--beta 1 --tau 0" in given()


def test_a_line_that_is_no_text_ends_the_job_with_its_number(stand_in: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(
        [ROOT / "scripts/translate.sh"], cwd=tmp_path, env=script_environment(**stand_in), input=b"a\nb\xff\nc\n",
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (1, b"A\n")
    assert result.stderr == b"error: line 2 is not UTF-8 text (invalid start byte)\n"


def test_a_failure_is_told_while_the_input_is_still_open(stand_in: dict[str, str], tmp_path: Path) -> None:
    translator = Translator(tmp_path, "--fail", **stand_in)
    assert translator.process.wait(timeout=60) == 1
    assert translator.end() == (1, "", "error: it cannot work\n")


def test_a_reader_that_leaves_and_ctrl_c_are_no_errors(stand_in: dict[str, str], tmp_path: Path) -> None:
    command = f"yes | '{ROOT}/scripts/translate.sh' | head -n 2"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=script_environment(**stand_in),
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("Y\nY\n", "")

    translator = Translator(tmp_path, **stand_in)
    translator.write("a\n")
    assert translator.read() == "A\n"
    os.killpg(translator.process.pid, signal.SIGINT)
    status, output, errors = translator.end()
    assert status in (130, -signal.SIGINT) and (output, errors) == ("", "")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # nothing of it is left running
        try:
            os.killpg(translator.process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("a process is left")


def test_what_is_missing_is_told(stand_in: dict[str, str], tmp_path: Path) -> None:
    def error(*arguments: str, **variables: str) -> str:
        result = subprocess.run(
            [ROOT / "scripts/translate.sh", *arguments],
            cwd=tmp_path, env=script_environment(**variables), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        return error_line(result)

    for name in ("DATA", "CODES", "VERIFIER", "DRAFTER"):
        assert f"{name} is not set" in error(**{key: value for key, value in stand_in.items() if key != name})
    assert "the verifier (VERIFIER) nowhere.pt does not exist" in error("--verifier", "nowhere.pt", **stand_in)
    assert "(CODES) nowhere does not exist" in error("--codes", "nowhere", **stand_in)
    assert "--beta needs a value" in error("--beta", **stand_in)
    assert "BATCH must be a number of sentences, at least 1, not x" in error("--batch", "x", **stand_in)
    assert "STRATEGY must be gad, AR, left2right, fairseq or drafter, not fast" in error(
        "--strategy", "fast", **stand_in
    )
    message = "the bundled pair translates en into de, not de into en: give DATA, CODES, VERIFIER and DRAFTER"
    assert message in error("--source-lang", "de", "--target-lang", "en")
