"""prepare_corpus.sh and preprocess.sh as a user calls them, but for the downloads, whose results are there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_extractors import write_page

from corpus import build

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts"
TOOLS = ("awk", "bash", "cat", "cut", "dirname", "env", "mkdir", "mv", "paste", "rm", "sed", "sort", "uname", "wc")


@pytest.fixture(scope="module")
def without_apt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH has the usual tools and this Python's commands, but nothing of apt or dpkg."""
    folder = tmp_path_factory.mktemp("tools")
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return {
        **os.environ,
        "PATH": str(folder),
        "PYTHON_BIN": str(Path(sys.executable).parent),
        "BPE_SYMBOLS": "60",
        "WORKERS": "1",
        "OMP_NUM_THREADS": "1",
    }


def run(script: str, *arguments: object, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def write_text(folder: Path, sentences: int = 30) -> None:
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language, word in (("en", "number"), ("de", "Nummer")):
            lines = "".join(f"{word} {split} {i}.\n" for i in range(sentences))
            (folder / f"{split}.{language}").write_text(lines)


def test_no_apt_is_told_in_one_line(tmp_path: Path, without_apt: dict[str, str]) -> None:
    result = run("prepare_corpus.sh", "en", "de", "out", env=without_apt, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: no apt-get here: the corpus is made of Debian packages")
    assert result.stderr.count("\n") == 1


def test_other_languages_are_told_in_one_line(tmp_path: Path, without_apt: dict[str, str]) -> None:
    result = run("prepare_corpus.sh", "en", "ro", "out", env=without_apt, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: only 'en de' can be built, not 'en ro'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", ["prepare_corpus.sh", "preprocess.sh"])
def test_usage(script: str, tmp_path: Path, without_apt: dict[str, str]) -> None:
    result = run(script, "en", env=without_apt, cwd=tmp_path)
    assert result.returncode == 2
    assert f"scripts/{script}" in result.stderr


def write_unpacked_packages(work: Path) -> None:
    """What the download leaves: three families of ten documents or more, each sentence with words of its own."""
    names = [
        "bird",
        "cat",
        "dog",
        "eel",
        "fox",
        "goat",
        "hare",
        "ibex",
        "jay",
        "kite",
        "lion",
        "mole",
        "newt",
        "owl",
        "pig",
        "quail",
        "rat",
        "seal",
        "toad",
        "vole",
    ]
    index = {"en": "", "de": ""}
    dictionary = "# header\n"
    for name in names:
        for language, (title, second, fourth) in {
            "en-US": (f"The {name} page title", f"Choose the {name} from the list.", f"It removes the {name} again."),
            "de": (f"Der Titel zum {name}x", f"Wählen Sie {name}x aus der Liste.", f"Das entfernt {name}x wieder."),
        }.items():
            write_page(work / "packages", language, f"{name}.html", title=title, second=second, fourth=fourth, rest="")
        for language, text in {"en": f"library for the {name}", "de": f"Bibliothek für alle {name}x"}.items():
            index[language] += f"Package: {name}\nDescription-md5: {name}\nDescription-{language}: {text}\n\n"
        dictionary += f"{name} {{n}} | Das {name}x schläft heute. :: {name} | The {name} sleeps today.\n"
    (work / "indices").mkdir()
    (work / "indices/Packages").write_text("".join(f"Package: {name}\nVersion: 1\n\n" for name in names))
    for language, text in index.items():
        (work / f"indices/Translation-{language}").write_text(text, encoding="utf-8")
    (work / "packages/usr/share/trans").mkdir(parents=True)
    (work / "packages/usr/share/trans/de-en").write_text(dictionary, encoding="utf-8")
    packages = ("libreoffice-help-en-us", "libreoffice-help-de", "trans-de-en")
    for package in packages:
        folder = work / "packages/usr/share/doc" / package
        folder.mkdir(parents=True)
        (folder / "copyright").write_text(f"licence of {package}")
    versions = [(package, "1.0") for package in packages] + [("indices", "an archive")]
    (work / "versions.tsv").write_text("".join(f"{name}\t{version}\n" for name, version in versions))


def test_from_unpacked_packages_to_binarised_data(tmp_path: Path, without_apt: dict[str, str]) -> None:
    write_unpacked_packages(tmp_path / "out/work")
    env = {**without_apt, "HELD_OUT": "10", "TAGS": "<BT> <X>"}
    result = run("prepare_corpus.sh", "en", "de", "out", env=env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr

    out = tmp_path / "out"
    counts = {}
    for split in ("train", "valid", "test"):
        lines = [(out / f"text/{split}.{end}").read_text().splitlines() for end in ("en", "de", "family")]
        assert len(lines[0]) == len(lines[1]) == len(lines[2])
        assert set(lines[2]) == {"ddtp", "ding", "lohelp"}
        counts[split] = len(lines[0])
        encoded = (out / f"bpe/{split}.de").read_text().splitlines()
        assert len(encoded) == counts[split]
    assert counts["valid"] == counts["test"] == 10
    readme = (out / "README.md").read_text()
    assert "`trans-de-en` 1.0" in readme and "an archive" in readme
    assert re.search(rf"\*\*train\*\*.* {counts['train']} \|$", readme, re.MULTILINE)
    assert sorted(path.name for path in (out / "licences").iterdir()) == [
        "libreoffice-help-de.txt",
        "libreoffice-help-en-us.txt",
        "trans-de-en.txt",
    ]
    assert {"dict.en.txt", "dict.de.txt", "train.en-de.en.bin", "test.en-de.de.idx"} <= set(os.listdir(out / "bin"))
    assert (out / "bin/dict.en.txt").read_text() == (out / "bin/dict.de.txt").read_text()
    assert (out / "bin/dict.en.txt").read_text().endswith("\n<BT> 1\n<X> 1\n")
    assert not list(out.rglob("*.tmp"))

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = run("prepare_corpus.sh", "en", "de", out, env=env, cwd=tmp_path / "out/text")
    assert again.stdout == f"data for fairseq: {out}/bin\n"
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_a_choice_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_apt: dict[str, str]) -> None:
    work = tmp_path / "work"
    write_unpacked_packages(work)
    (work / "indices/Packages").unlink()  # which aren't fetched then
    options = ["--held-out", "10", "--families", "lohelp", "ding"]
    monkeypatch.setattr("sys.argv", ["build", str(work), str(tmp_path), *options])
    build.main()
    assert {*(tmp_path / "text/train.family").read_text().split()} == {"lohelp", "ding"}
    readme = (tmp_path / "README.md").read_text()
    assert '`FAMILIES="lohelp ding"`' in readme and "| ding |" in readme and "| ddtp |" not in readme
    result = run("prepare_corpus.sh", "en", "de", "out", env={**without_apt, "FAMILIES": "lohelp web"}, cwd=tmp_path)
    assert result.stderr == "error: FAMILIES may name lohelp, ddtp and ding, not web\n"


def test_preprocess_names_what_is_wrong_with_the_text(tmp_path: Path, without_apt: dict[str, str]) -> None:
    def message() -> str:
        result = run("preprocess.sh", "en", "de", "text", "out", env=without_apt, cwd=tmp_path)
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()
        return result.stderr

    assert "text, text does not exist" in message()
    write_text(tmp_path / "text")
    (tmp_path / "text/test.de").write_text("eine Zeile\n")
    assert message() == "error: text/test.en and test.de differ in their number of lines\n"
    (tmp_path / "text/valid.en").unlink()
    assert message() == "error: text/valid.en is missing or empty\n"


def test_preprocess_names_a_missing_command(tmp_path: Path, without_apt: dict[str, str]) -> None:
    write_text(tmp_path / "text")
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {**without_apt, "PYTHON_BIN": str(empty)}
    result = run("preprocess.sh", "en", "de", "text", "out", env=env, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: sacremoses is not on the PATH")


def test_preprocess_refuses_carriage_returns(tmp_path: Path, without_apt: dict[str, str]) -> None:
    write_text(tmp_path / "text")
    with (tmp_path / "text/train.en").open("a", newline="") as file:
        file.write("two\rlines\n")
    with (tmp_path / "text/train.de").open("a") as file:
        file.write("zwei Zeilen\n")
    result = run("preprocess.sh", "en", "de", "text", "out", env=without_apt, cwd=tmp_path)
    assert result.returncode == 1
    assert "text/train.en: the tokeniser sees another number of lines" in result.stderr


def test_interrupted_preprocess_leaves_nothing_half_written(tmp_path: Path, without_apt: dict[str, str]) -> None:
    write_text(tmp_path / "text")
    slow = tmp_path / "slow"
    slow.mkdir()
    for name, body in {
        "sacremoses": 'case " $* " in *" -l de "*) echo half; exec sleep 60 ;; esac; exec cat',
        "subword-nmt": "exec cat",
        "fairseq-preprocess": "exit 1",
    }.items():
        (slow / name).write_text(f"#!/bin/sh\n{body}\n")
        (slow / name).chmod(0o755)
    (slow / "sleep").symlink_to(str(shutil.which("sleep")))
    process = subprocess.Popen(
        [SCRIPTS / "preprocess.sh", "en", "de", "text", "out"],
        env={**without_apt, "PYTHON_BIN": str(slow)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test runner may ignore it
    )
    half = tmp_path / "out/tok/train.de.tmp"
    deadline = time.monotonic() + 30
    while not (half.exists() and half.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "preprocess.sh: interrupted; the same command goes on from here\n"
    assert (tmp_path / "out/tok/train.en").read_text() == (tmp_path / "text/train.en").read_text()
    assert half.read_text() == "half\n"
    assert not (tmp_path / "out/tok/train.de").exists()
