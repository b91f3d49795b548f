"""scripts/get_checkpoints.sh on local stand-ins for the published models."""

import hashlib
import io
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from downloads import PAGE, ROOT, breaking_server, environment, files, needs_curl, run, succeed
from fairseq_tools import error_line

CODES = b"#version: 0.2\nt h\nth e</w>\n"
DICTIONARY = b"the 3\na@@ 2\nb 1\n"
MODEL_FILES = ["at-verifier-base.pt", "nat-drafter-base.pt"]
PUBLISHED_IDS = {
    "wmt14.en-de": ("1L9z0Y5rked_tYn7Fllh-0VsRdgBHN1Mp", "1fPYt1QGgIrNfk78XvGnrx_TeDRYePr2e"),
    "wmt14.de-en": ("1h5EdTEt2PMqvAqCq2G5bRhCeWk8LzwoG", "1IEX2K65rgv5SUHWxiowXYaS--Zqr3GvT"),
    "wmt16.en-ro": ("1WocmZ9iw_OokYZY_BtzNAjGsgRXB-Aft", "1V_WbPRbgmIy-4oZDkws9mdFSw8n8KOGm"),
    "wmt16.ro-en": ("1LWHC56HvTtvs58EMwoYMT6jKByuMW1dB", "1P21nU3u4WdJueEl4nqAY-cwUKAvzPu8A"),
}
"""Verifier and drafter in the table of the upstream README."""

pytestmark = needs_curl


def checkpoint(value: float, zipped: bool = True) -> bytes:
    """A file of torch.save with all that makes it one of fairseq's."""
    state = {"args": None, "cfg": {"model": {}}, "model": {"weight": torch.full((300,), value)}}
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """The variables that name the stand-ins, and OUT."""
    folder = tmp_path / "sources"
    folder.mkdir()
    contents = {"VERIFIER": checkpoint(1.0), "DRAFTER": checkpoint(2.0), "CODES": CODES}
    contents |= dict.fromkeys(["DICT_EN", "DICT_DE", "DICT_RO"], DICTIONARY)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {f"{name}_URL": (folder / name).as_uri() for name in contents} | {"OUT": str(tmp_path / "out")}


def source(sources: dict[str, str], name: str) -> Path:
    return Path(sources[f"{name}_URL"].removeprefix("file://"))


def test_everything_of_a_pair(sources: dict[str, str], tmp_path: Path) -> None:
    result = succeed("get_checkpoints.sh", "wmt14.de-en", **sources)
    out = tmp_path / "out"
    names = ["codes", "dict.de.txt", "dict.en.txt", *MODEL_FILES]
    assert files(out) == sorted([*names, *(f"{name}.sha256" for name in names)])
    assert list(out.glob("*.part")) == []
    for name, role in zip(MODEL_FILES, ["VERIFIER", "DRAFTER"], strict=True):
        assert (out / name).read_bytes() == source(sources, role).read_bytes()
        assert (
            out / f"{name}.sha256"
        ).read_text() == f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n"
    assert (out / "codes").read_bytes() == CODES
    assert result.stdout.splitlines()[-1].startswith(f"for inference.sh: DATA={out} SRC=de TGT=en ")

    # all is there: the sources aren't needed any more
    shutil.rmtree(tmp_path / "sources")
    again = succeed("get_checkpoints.sh", "wmt14.de-en", **sources)
    assert again.stdout.count("there already: ") == len(names)

    # a file that has changed since it was fetched is not taken for what was fetched
    (out / "codes").write_bytes(CODES.replace(b"t h\n", b"h t\n"))
    assert f"{out}/codes is not what it was" in error_line(run("get_checkpoints.sh", "wmt14.de-en", **sources))


def test_romanian_has_no_codes(sources: dict[str, str], tmp_path: Path) -> None:
    del sources["CODES_URL"]
    succeed("get_checkpoints.sh", "wmt16.ro-en", **sources)
    found = [name for name in files(tmp_path / "out") if not name.endswith(".sha256")]
    assert found == ["at-verifier-base.pt", "dict.en.txt", "dict.ro.txt", "nat-drafter-base.pt"]


def test_a_checkpoint_in_the_older_format(tmp_path: Path) -> None:
    problem = runpy.run_path(str(ROOT / "scripts/check_checkpoint.py"))["problem"]
    whole = checkpoint(1.0, zipped=False)
    (tmp_path / "whole.pt").write_bytes(whole)
    (tmp_path / "short.pt").write_bytes(whole[:-200])
    assert problem(tmp_path / "whole.pt") is None
    assert "can't be read as a checkpoint" in problem(tmp_path / "short.pt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("DRAFTER", PAGE, 'answered with a web page "Google Drive - Virus scan warning", not with the file'),
        ("DRAFTER", b"\n <html lang=en>quota exceeded</html>", "answered with a web page, not with the file"),
        ("CODES", PAGE, "answered with a web page"),
        ("DRAFTER", checkpoint(2.0)[:-100], "damaged or cut short"),
        (
            "DRAFTER",
            checkpoint(2.0).replace(torch.full((4,), 2.0).numpy().tobytes(), b"\0" * 16, 1),
            "with a damaged part",
        ),
        ("DRAFTER", b"Not a model, but a longer line of text.", "doesn't begin as a checkpoint"),
        ("DRAFTER", b"", "is empty"),
        ("CODES", b"t h\nth e </w>\n", "no list of BPE merges"),
        ("DICT_EN", b"the 3\nb\n", "no fairseq dictionary"),
    ],
)
def test_what_is_no_model_gets_no_name(
    sources: dict[str, str], tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = source(sources, name)
    path.write_bytes(content)
    line = error_line(run("get_checkpoints.sh", "wmt14.en-de", **sources))
    assert f"{name}_URL" in line and path.as_uri() in line and message in line
    assert not (
        tmp_path / "out" / {"DRAFTER": "nat-drafter-base.pt", "CODES": "codes", "DICT_EN": "dict.en.txt"}[name]
    ).exists()
    assert list((tmp_path / "out").glob("*.part")) == []


def test_checksums(sources: dict[str, str], tmp_path: Path) -> None:
    right = hashlib.sha256(source(sources, "VERIFIER").read_bytes()).hexdigest()
    wrong = right.replace(right[0], "f" if right[0] != "f" else "0")
    line = error_line(run("get_checkpoints.sh", "wmt14.en-de", **sources, VERIFIER_SHA256=wrong))
    assert f"the checksum of {sources['VERIFIER_URL']} is {right}, not {wrong} (VERIFIER_SHA256" in line
    assert "at-verifier-base.pt" not in files(tmp_path / "out")
    succeed("get_checkpoints.sh", "wmt14.en-de", **sources, VERIFIER_SHA256=right.upper())

    # the source of a removed file may not have changed either
    (tmp_path / "out/nat-drafter-base.pt").unlink()
    source(sources, "DRAFTER").write_bytes(checkpoint(3.0))
    assert "nat-drafter-base.pt.sha256 from an earlier run" in error_line(
        run("get_checkpoints.sh", "wmt14.en-de", **sources)
    )
    (tmp_path / "out/nat-drafter-base.pt.sha256").unlink()
    succeed("get_checkpoints.sh", "wmt14.en-de", **sources)


def test_a_broken_transfer_goes_on(sources: dict[str, str], tmp_path: Path) -> None:
    content = source(sources, "VERIFIER").read_bytes()
    with breaking_server(content, breaks=1) as (address, asked):
        sources["VERIFIER_URL"] = address
        succeed("get_checkpoints.sh", "wmt14.en-de", **sources)
    half = len(content) // 2
    assert asked == ["", f"bytes={half}-"]
    assert (tmp_path / "out/at-verifier-base.pt").read_bytes() == content


def test_an_interrupted_run_goes_on(sources: dict[str, str], tmp_path: Path) -> None:
    content = source(sources, "VERIFIER").read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    (out / "at-verifier-base.pt.part").write_bytes(content[:500])
    (out / "nat-drafter-base.pt.part").write_bytes(source(sources, "DRAFTER").read_bytes())
    source(sources, "DRAFTER").unlink()  # whole already
    (out / "codes.part").write_bytes(b"a b\n")  # text isn't resumed: nobody could tell whether it fits together
    with breaking_server(content, breaks=0) as (address, asked):
        sources["VERIFIER_URL"] = address
        succeed("get_checkpoints.sh", "wmt14.en-de", **sources)
    assert asked == ["bytes=500-"]
    assert (out / "at-verifier-base.pt").read_bytes() == content
    assert (out / "codes").read_bytes() == CODES


def with_recorded_curl(
    tmp_path: Path, sources: dict[str, str], pair: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A run on the published addresses with a curl that answers with the stand-ins, and the addresses asked for."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "curl").write_text(
        "#!/bin/bash\n"
        'while [ "$1" != -- ]; do if [ "$1" = --output ]; then out=$2; fi; shift; done\n'
        f'echo "$2" >> "{tmp_path}/asked"\n'
        f"case $2 in *bpe.32000) name=CODES ;; *.txt) name=DICT_EN ;; *) name=VERIFIER ;; esac\n"
        f'cp "{tmp_path}/sources/$name" "$out"\n'
    )
    (binaries / "curl").chmod(0o755)
    variables = environment(OUT=sources["OUT"])
    variables["PATH"] = f"{binaries}:{variables['PATH']}"
    result = subprocess.run(
        [ROOT / "scripts/get_checkpoints.sh", pair], env=variables, capture_output=True, text=True, timeout=60
    )
    return result, (tmp_path / "asked").read_text().split()


def test_published_vocabulary_has_a_known_checksum(sources: dict[str, str], tmp_path: Path) -> None:
    result, asked = with_recorded_curl(tmp_path, sources, "wmt14.en-de")
    assert asked == ["https://raw.githubusercontent.com/hemingkx/SpecDec/main/data/wmt14.en-de/bpe.32000"]
    assert f"is {hashlib.sha256(CODES).hexdigest()}, not 6f4260d3" in error_line(result)
    assert files(tmp_path / "out") == []


@pytest.mark.parametrize("pair", PUBLISHED_IDS)
def test_published_addresses(sources: dict[str, str], tmp_path: Path, shared_dir: Path, pair: str) -> None:
    text = "wmt14.en-de" if pair.startswith("wmt14") else "wmt16.en-ro"
    for name, file in {"CODES": "bpe.32000", "DICT_EN": "dict.en.txt"}.items():
        if (shared_dir / "upstream-data" / text / file).exists():
            shutil.copyfile(shared_dir / "upstream-data" / text / file, source(sources, name))
    result, asked = with_recorded_curl(tmp_path, sources, pair)
    assert result.returncode == 0, result.stderr
    assert asked[-2:] == [
        f"https://drive.usercontent.google.com/download?id={name}&export=download&confirm=t"
        for name in PUBLISHED_IDS[pair]
    ]
    base = f"https://raw.githubusercontent.com/hemingkx/SpecDec/main/data/{text}/"
    names = {"wmt14": ["bpe.32000", "dict.en.txt", "dict.de.txt"], "wmt16": ["dict.en.txt", "dict.ro.txt"]}
    assert asked[:-2] == [base + name for name in names[pair[:5]]]


def test_usage(sources: dict[str, str], tmp_path: Path) -> None:
    assert "not of wmt17.en-zh" in error_line(run("get_checkpoints.sh", "wmt17.en-zh", **sources))
    result = run("get_checkpoints.sh", **sources)
    assert result.returncode == 2 and "scripts/get_checkpoints.sh {wmt14.en-de," in result.stderr
    assert succeed("get_checkpoints.sh", "--help").stdout == result.stderr
    sources["VERIFIER_URL"] = (tmp_path / "nowhere").as_uri()
    line = error_line(run("get_checkpoints.sh", "wmt14.en-de", **sources))
    assert f"VERIFIER_URL: {sources['VERIFIER_URL']} can't be fetched: curl: (37)" in line
