"""scripts/get_data.sh on small archives with the layout of the published ones."""

# ruff: noqa: RUF001 - curly quotes and long dashes are what tokenising is about

import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from downloads import PAGE, ROOT, archive, breaking_server, environment, files, needs_curl, run, succeed
from fairseq.data import Dictionary, indexed_dataset
from fairseq_tools import error_line

CODES = b"t h\ne </w>\nth e</w>\nT h\nTh e</w>\nD a\ns </w>\nDa s</w>\ni s\nt </w>\nis t</w>\n"
"""In the format without a version, as the published ones: the end of a word is a symbol of its own."""

# raw, as tokenised for the published dictionaries, as the recipe tokenises
SPECIAL = [
    ("A well-known “house” isn’t new.", "A well-known “ house ” isn ’ t new .",
     "A well @-@ known &quot; house &quot; isn &apos;t new ."),
    ("One\u2028two\x85three\rfour.", "One two three four .", "One two three four ."),
    ("A soft\u00adhyphen & <x>.", "A soft \u00ad hyphen &amp; &lt; x &gt; .", "A soft hyphen &amp; &lt; x &gt; ."),
]  # fmt: skip
SPECIAL_DE = [
    ("Ein ganz „neuer“ Alt-Bau – neu.", "Ein ganz „ neuer “ Alt-Bau – neu .",
     "Ein ganz &quot; neuer &quot; Alt @-@ Bau - neu ."),
    ("Eins zwei drei vier.", "Eins zwei drei vier .", "Eins zwei drei vier ."),
    ("Ein Strich & <x>.", "Ein Strich &amp; &lt; x &gt; .", "Ein Strich &amp; &lt; x &gt; ."),
]  # fmt: skip
HELD_OUT_DE = "ßß hier"
HELD_OUT_UNKNOWN = frozenset({"ß@@", "ß"})
"""These symbols are in no other line, and not in the dictionary."""

NEWSTEST = [("Poor’s &amp; the rest.", "Poor &apos;s &amp; the rest ."), ("The end.", "The end .")]
NEWSTEST_DE = [("Das &quot;ist&quot; so.", "Das &quot; ist &quot; so ."), ("Das Ende.", "Das Ende .")]

Text = list[tuple[str, str, str]]


def plain(template: str, numbers: range) -> Text:
    return [(template.format(number) + ".", *[template.format(number) + " ."] * 2) for number in numbers]


def corpora() -> dict[str, tuple[Text, Text]]:
    """Three corpora of 120, 90 and 100 pairs; the first has pairs that cleaning leaves out."""
    english, german = plain("The house {} is old", range(120)), plain("Das Haus {} ist alt", range(120))
    english[3:6], german[3:6] = SPECIAL, SPECIAL_DE
    english[7] = ("", "", "")
    english[8] = plain("yes", range(1))[0]  # against a longer one
    english[9] = german[9] = ("x" + " x" * 250,) * 3
    english[10] = german[10] = ("x" + " x" * 249,) * 3  # not too long
    english[99] = ("held out", "held out", "held out")
    german[99] = (HELD_OUT_DE,) * 3
    return {
        "europarl": (english, german),
        "commoncrawl": (plain("A garden has {} trees", range(90)), plain("Ein Garten hat {} Bäume", range(90))),
        "news-commentary": (plain("The year {} was long", range(100)), plain("Das Jahr {} war lang", range(100))),
    }


def joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def sgm(segments: list[tuple[str, str]]) -> bytes:
    lines = [f'<seg id="{number}"> {raw} </seg>' for number, (raw, _) in enumerate(segments, start=1)]
    return joined(
        ['<srcset setid="newstest2014" srclang="any">', '<doc docid="1">', "<p>", *lines, "</p>", "</doc>", "</srcset>"]
    )


def brute_force_bpe(word: str, codes: bytes) -> list[str]:
    """The merges of the codes, best first, on one word."""
    merges = [tuple(line.split(" ")) for line in codes.decode().splitlines()]
    symbols = [*word, "</w>"]
    if merges[0][0] == "#version:":
        del merges[0]
        symbols[-2:] = [symbols[-2] + "</w>"]
    while pairs := [pair for pair in pairwise(symbols) if pair in merges]:
        best, at = min(pairs, key=merges.index), 0
        while at < len(symbols) - 1:
            if (symbols[at], symbols[at + 1]) == best:
                symbols[at : at + 2] = ["".join(best)]
            at += 1
    symbols = [*symbols[:-1], symbols[-1].removesuffix("</w>")]
    if not symbols[-1]:
        symbols.pop()
    return [f"{symbol}@@" for symbol in symbols[:-1]] + symbols[-1:]


def encoded(line: str, codes: bytes) -> str:
    return " ".join(piece for word in line.split(" ") if word for piece in brute_force_bpe(word, codes))


def kept(pair: tuple[str, str]) -> bool:
    """The recipe's limits: 1 to 250 subwords, neither side more than 1.5 times as long."""
    source, target = (len(side.split()) for side in pair)
    return 1 <= source <= 250 and 1 <= target <= 250 and source <= 1.5 * target and target <= 1.5 * source


def expected(column: int, codes: bytes) -> dict[str, list[tuple[str, str]]]:
    """The encoded pairs of each set, without those left out. ``column``: how it is tokenised, as in ``SPECIAL``."""
    pairs = [
        (s[column], t[column]) for english, german in corpora().values() for s, t in zip(english, german, strict=True)
    ]
    test = [(s[1], t[1]) for s, t in zip(NEWSTEST, NEWSTEST_DE, strict=True)]
    sets = {
        "train": [pair for number, pair in enumerate(pairs, start=1) if number % 100 != 0],
        "valid": [pairs[99], pairs[199], pairs[299]],
        "test": test,
    }
    result = {name: [(encoded(s, codes), encoded(t, codes)) for s, t in text] for name, text in sets.items()}
    return {name: text if name == "test" else list(filter(kept, text)) for name, text in result.items()}


def read_pairs(prefix: Path, source: str, target: str) -> list[tuple[str, str]]:
    sides = (
        (prefix.with_name(f"{prefix.name}.{lang}")).read_text(encoding="utf-8").splitlines()
        for lang in (source, target)
    )
    return list(zip(*sides, strict=True))


def binarised(folder: Path, source: str, target: str, split: str) -> list[tuple[str, str]]:
    """The text of a set that fairseq-preprocess wrote."""
    sides = []
    for lang in (source, target):
        symbols = Dictionary.load(str(folder / f"dict.{lang}.txt"))
        data = indexed_dataset.make_dataset(str(folder / f"{split}.{source}-{target}.{lang}"), "mmap")
        sides.append([symbols.string(row) for row in data])
    return list(zip(*sides, strict=True))


def dictionary_of(pairs: list[tuple[str, str]], without: frozenset[str] = frozenset()) -> bytes:
    """A dictionary of the symbols of a text, in an order that counting wouldn't give."""
    symbols = sorted({symbol for pair in pairs for side in pair for symbol in side.split()} - without)
    random.Random(1).shuffle(symbols)
    return joined([f"{symbol} {count}" for count, symbol in enumerate(symbols)])


def wmt14(folder: Path) -> dict[str, str]:
    """The sources of wmt14.en-de in a folder, as variables. The dictionary lacks the letter ß."""
    folder.mkdir()
    texts = corpora()
    members = {
        "europarl": "training/europarl-v7.de-en.{}",
        "commoncrawl": "commoncrawl.de-en.{}",
        "news-commentary": "training/news-commentary-v12.de-en.{}",
    }
    variables = {"OUT": str(folder.parent / "out")}
    for name, member in members.items():
        english, german = ([raw for raw, *_ in side] for side in texts[name])
        contents = {
            member.replace("de-en", "fr-en").format("en"): b"another pair\n",
            member.format("de"): joined(german),
            member.format("en"): joined(english),
        }
        variables[f"{name.upper().replace('-', '_')}_URL"] = archive(folder / f"{name}.tgz", contents)
    contents = {
        "test-full/newstest2014-deen-ref.en.sgm": sgm(NEWSTEST[:1]),  # of the other direction
        "test-full/newstest2014-deen-src.en.sgm": sgm(NEWSTEST),
        "test-full/newstest2014-deen-ref.de.sgm": sgm(NEWSTEST_DE),
    }
    variables["NEWSTEST_URL"] = archive(folder / "test-full.tgz", contents)
    dictionary = dictionary_of(
        [pair for text in expected(1, CODES).values() for pair in text], without=HELD_OUT_UNKNOWN
    )
    for name, content in {"CODES": CODES, "DICT_EN": dictionary, "DICT_DE": dictionary}.items():
        (folder / name).write_bytes(content)
        variables[f"{name}_URL"] = (folder / name).as_uri()
    return variables


ENRO = {
    "train/corpus": (["the house is@@ n &apos;t ne@@ w", "a\rtree", "yes"], ["casa nu e no@@ uă", "un copac", "da"]),
    "dev/dev": (["the house", "a tree"], ["casa", "un copac"]),
    "test/test": (["a house"], ["o casă"]),
}


def wmt16(folder: Path, text: dict[str, tuple[list[str], list[str]]] = ENRO) -> dict[str, str]:
    """The sources of wmt16.en-ro. Their dictionary lacks two symbols: "o" and "casă"."""
    folder.mkdir()
    members = {
        f"wmt16/en-ro/{name}.bpe.{lang}": joined(side)
        for name, sides in text.items()
        for lang, side in zip(("en", "ro"), sides, strict=True)
    }
    dictionary = dictionary_of(
        [pair for name, sides in ENRO.items() if name != "test/test" for pair in zip(*sides, strict=True)]
    )
    (folder / "dict").write_bytes(dictionary)
    address = (folder / "dict").as_uri()
    return {
        "ENRO_URL": archive(folder / "wmt16.tar.gz", members),
        "DICT_EN_URL": address,
        "DICT_RO_URL": address,
        "OUT": str(folder.parent / "out"),
    }


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    return wmt14(tmp_path / "sources")


@pytest.fixture
def romanian(tmp_path: Path) -> dict[str, str]:
    return wmt16(tmp_path / "sources")


# --- the whole way
# ------------------------------------------------------------------------------------------------------------


@needs_curl
def test_wmt14_with_the_published_dictionary(sources: dict[str, str], tmp_path: Path) -> None:
    sources["WORKERS"] = "2"
    result = succeed("get_data.sh", "wmt14.en-de", **sources)
    out = tmp_path / "out"
    wanted = expected(1, CODES)
    assert [len(wanted[name]) for name in ("train", "valid", "test")] == [
        304,
        3,
        2,
    ]  # 310 pairs, three of them left out
    for split, pairs in wanted.items():
        assert read_pairs(out / "bpe" / split, "en", "de") == pairs
        known = [(source, target.replace("ß@@ ß ", "<unk> <unk> ")) for source, target in pairs]
        assert binarised(out / "bin", "en", "de", split) == known
    # in the validation set two symbols of so many, ends of sentences counted
    symbols = sum(len(german.split()) + 1 for _, german in wanted["valid"])
    assert result.stderr == (
        f"warning: {200 / symbols:.3} % of the symbols of {out}/bpe/valid.de are unknown: the BPE codes and the "
        f"dictionary don't belong together ({out}/codes, {out}/dict.de.txt)\n"
    )
    for lang in ("en", "de"):  # fairseq adds only what makes the size a multiple of eight, or nothing
        published = (tmp_path / "sources/DICT_EN").read_text(encoding="utf-8")
        assert (out / f"bin/dict.{lang}.txt").read_text(encoding="utf-8").startswith(published)
    assert read_pairs(out / "tok/valid", "en", "de")[0] == ("held out", HELD_OUT_DE)
    assert list(out.rglob("*.part")) == []

    # again: nothing is fetched, nothing is made
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    shutil.rmtree(tmp_path / "sources")
    succeed("get_data.sh", "wmt14.en-de", **sources)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@needs_curl
def test_wmt14_with_a_new_dictionary(sources: dict[str, str], tmp_path: Path) -> None:
    for name in ("CODES_URL", "DICT_EN_URL", "DICT_DE_URL"):
        del sources[name]
    # fairseq's part, which takes seconds to start, is seen in the test above; here, what it is asked for
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/fairseq-preprocess"
    stub.write_text(f'#!/bin/sh\necho "$*" > "{tmp_path}/asked"\nmkdir "{tmp_path}/out/new-dict/bin.part"\n')
    stub.chmod(0o755)
    sources["PATH"] = f"{tmp_path}/bin:{environment()['PATH']}"
    succeed("get_data.sh", "wmt14.en-de", "--new-dict", **sources, BPE_SYMBOLS="20")
    out = tmp_path / "out/new-dict"
    codes = (out / "codes").read_bytes()
    merges = codes.splitlines()
    assert merges[0].startswith(b"#version") and len(merges) == 21
    # the most frequent pair of neighbouring symbols in the training text is the first merge
    assert merges[1].decode() == most_frequent_pair(
        [side for split in ("train",) for pair in read_pairs(out / "tok" / split, "en", "de") for side in pair]
    )
    wanted = expected(2, codes)
    for split, pairs in wanted.items():
        assert read_pairs(out / "bpe" / split, "en", "de") == pairs
    asked = (tmp_path / "asked").read_text()
    assert "--joined-dictionary" in asked and "--srcdict" not in asked and f"--trainpref {out}/bpe/train " in asked
    assert (out / "bin").is_dir()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"archives", "raw", "new-dict"}


def most_frequent_pair(lines: list[str]) -> str:
    counts: dict[tuple[str, str], int] = {}
    for word in " ".join(lines).split():
        for pair in pairwise([*word[:-1], word[-1] + "</w>"]):
            counts[pair] = counts.get(pair, 0) + 1
    return " ".join(max(counts, key=lambda pair: (counts[pair], pair)))


@needs_curl
def test_wmt16_and_a_dictionary_that_does_not_fit(romanian: dict[str, str], tmp_path: Path) -> None:
    result = succeed("get_data.sh", "wmt16.en-ro", **romanian)
    out = tmp_path / "out"
    for split, sides in zip(("train", "valid", "test"), ENRO.values(), strict=True):
        pairs = [(source.replace("\r", " "), target) for source, target in zip(*sides, strict=True)]
        assert read_pairs(out / "bpe" / split, "en", "ro") == pairs
        if split != "test":
            assert binarised(out / "bin", "en", "ro", split) == pairs
    assert binarised(out / "bin", "en", "ro", "test") == [("a house", "<unk> <unk>")]
    # two unknown symbols and the end of the sentence
    assert result.stderr.splitlines() == [
        f"warning: 66.7 % of the symbols of {out}/bpe/test.ro are unknown: the BPE codes and the dictionary don't "
        f"belong together ({out}/archives/wmt16.tar.gz, {out}/dict.ro.txt)"
    ]


# --- what can go wrong
# ------------------------------------------------------------------------------------------------------------


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def web_page(path: Path) -> None:
    path.write_bytes(PAGE)


def no_archive(path: Path) -> None:
    path.write_bytes(b"this is text\n" * 20)


@needs_curl
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            cut_short,
            "is damaged or cut short ({} bytes): not a whole .tar.gz archive (gzip: stdin: unexpected end of file)",
        ),
        (
            no_archive,
            "is damaged or cut short ({} bytes): not a whole .tar.gz archive (gzip: stdin: not in gzip format)",
        ),
        (web_page, 'answered with a web page "Google Drive - Virus scan warning"'),
    ],
)
def test_a_spoilt_archive(sources: dict[str, str], tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "sources/commoncrawl.tgz"
    whole = path.read_bytes()
    spoil(path)
    line = error_line(run("get_data.sh", "wmt14.en-de", **sources))
    assert f"COMMONCRAWL_URL: {path.as_uri()} " + message.format(path.stat().st_size) in line
    archives = tmp_path / "out/archives"
    assert sorted(path.name for path in archives.iterdir()) == ["europarl.tgz", "europarl.tgz.sha256"]

    # and the same command works when the source is whole; the rest of the way isn't of interest here
    path.write_bytes(whole)
    sources["NEWS_COMMENTARY_URL"] = "file:///nowhere"
    assert "NEWS_COMMENTARY_URL: file:///nowhere can't be fetched: curl: (37)" in error_line(
        run("get_data.sh", "wmt14.en-de", **sources)
    )
    assert (archives / "commoncrawl.tgz").read_bytes() == whole


@needs_curl
def test_checksums(romanian: dict[str, str], tmp_path: Path) -> None:
    content = (tmp_path / "sources/wmt16.tar.gz").read_bytes()
    line = error_line(run("get_data.sh", "wmt16.en-ro", **romanian, ENRO_SHA256="0" * 64))
    assert (
        f"ENRO_URL: the checksum of {romanian['ENRO_URL']} is {hashlib.sha256(content).hexdigest()}, not 0000" in line
    )
    assert not (tmp_path / "out/archives/wmt16.tar.gz").exists()

    # an MD5 is known by its length
    line = error_line(run("get_data.sh", "wmt16.en-ro", **romanian, ENRO_SHA256="0" * 32))
    assert f"is {hashlib.md5(content).hexdigest()}, not 0000" in line

    # that of the first download holds for later runs
    archives = tmp_path / "out/archives"
    (archives / "wmt16.tar.gz").write_bytes(content)
    (archives / "wmt16.tar.gz.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  wmt16.tar.gz\n")
    (archives / "wmt16.tar.gz").write_bytes(content + b"\0")
    assert f"{archives}/wmt16.tar.gz is not what it was" in error_line(run("get_data.sh", "wmt16.en-ro", **romanian))
    assert not (tmp_path / "out/bin").exists()


@needs_curl
def test_a_broken_transfer_goes_on_or_gives_up(romanian: dict[str, str], tmp_path: Path) -> None:
    archive(tmp_path / "sources/wmt16.tar.gz", {"wmt16/en-ro/train/corpus.bpe.en": b"the rest isn't there\n"})
    content = (tmp_path / "sources/wmt16.tar.gz").read_bytes()
    fetched = tmp_path / "out/archives/wmt16.tar.gz"
    half = len(content) // 2
    quarter = (len(content) - half) // 2
    with breaking_server(content, breaks=2) as (address, asked):
        romanian["ENRO_URL"] = address
        line = error_line(run("get_data.sh", "wmt16.en-ro", **romanian, TRIES="2"))
        assert f"ENRO_URL: {address} broke off 2 times (curl: (18)" in line
        assert not fetched.exists()
        assert fetched.with_name("wmt16.tar.gz.part").read_bytes() == content[: half + quarter]
        assert "can't be unpacked" in error_line(run("get_data.sh", "wmt16.en-ro", **romanian))
    assert asked == ["", f"bytes={half}-", f"bytes={half + quarter}-"]
    assert fetched.read_bytes() == content


@needs_curl
@pytest.mark.parametrize("lang", ["en", "ro"])
def test_differing_line_counts(tmp_path: Path, lang: str) -> None:
    text = {name: (list(english), list(romanian)) for name, (english, romanian) in ENRO.items()}
    text["dev/dev"][lang == "ro"].append("one too many")
    line = error_line(run("get_data.sh", "wmt16.en-ro", **wmt16(tmp_path / "sources", text)))
    counts = "3 and 2" if lang == "en" else "2 and 3"
    assert line == (
        "error: wmt16/en-ro/dev/dev.bpe.en and wmt16/en-ro/dev/dev.bpe.ro of "
        f"{tmp_path}/out/archives/wmt16.tar.gz differ in their number of lines: {counts}"
    )
    made = [name for name in files(tmp_path / "out") if name.startswith("bpe")]
    assert made == ["bpe/train.en", "bpe/train.ro"]


@needs_curl
def test_an_archive_without_the_text(romanian: dict[str, str], tmp_path: Path) -> None:
    archive(tmp_path / "sources/wmt16.tar.gz", {"wmt16/en-ro/train/corpus.bpe.en": b"a\n"})
    line = error_line(run("get_data.sh", "wmt16.en-ro", **romanian))
    assert f"wmt16/en-ro/train/corpus.bpe.ro of {tmp_path}/out/archives/wmt16.tar.gz can't be unpacked: " in line
    assert "Not found in archive" in line


@needs_curl
def test_codes_of_ones_own(sources: dict[str, str], tmp_path: Path) -> None:
    sources["EUROPARL_URL"] = "file:///nowhere"  # the rest of the way isn't of interest
    assert "EUROPARL_URL" in error_line(run("get_data.sh", "wmt14.en-de", "--new-dict", **sources))
    assert files(tmp_path / "out") == ["new-dict/codes", "new-dict/codes.sha256"]
    assert (tmp_path / "out/new-dict/codes").read_bytes() == CODES


def noise(size: int) -> bytes:
    """Text that doesn't compress well."""
    return random.Random(3).randbytes(size // 2).hex().encode()


def limit_of(size: int) -> Callable[[], None]:
    """Lets a process write files of this size at most."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@needs_curl
def test_a_quota_while_fetching(romanian: dict[str, str], tmp_path: Path) -> None:
    members = {"wmt16/en-ro/train/corpus.bpe.en": noise(100_000)}
    content_url = archive(tmp_path / "sources/wmt16.tar.gz", members)
    line = error_line(run("get_data.sh", "wmt16.en-ro", before=limit_of(20_000), **romanian))
    archives = tmp_path / "out/archives"
    assert f"{archives}/wmt16.tar.gz.part can't be written: the disk is full, or a quota is reached" in line
    assert [(path.name, path.stat().st_size) for path in archives.iterdir()] == [("wmt16.tar.gz.part", 20_000)]
    # with room, it goes on from there (and stops for want of the other texts)
    assert "can't be unpacked" in error_line(run("get_data.sh", "wmt16.en-ro", **romanian))
    assert (archives / "wmt16.tar.gz").read_bytes() == Path(content_url.removeprefix("file://")).read_bytes()


@needs_curl
def test_a_quota_while_unpacking(sources: dict[str, str], tmp_path: Path) -> None:
    text = joined(["hut " * 25] * 300)
    archive(tmp_path / "sources/europarl.tgz", {f"training/europarl-v7.de-en.{lang}": text for lang in ("en", "de")})
    line = error_line(run("get_data.sh", "wmt14.en-de", before=limit_of(20_000), **sources))
    assert line.startswith("error: training/europarl-v7.de-en.en of ") and line.endswith("File too large")
    assert [name for name in files(tmp_path / "out") if name.startswith("raw")] == []


@needs_curl
def test_a_quota_while_encoding(sources: dict[str, str], tmp_path: Path) -> None:
    tok = tmp_path / "out/tok"  # made by an earlier run
    tok.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        for lang in ("en", "de"):
            (tok / f"{name}.{lang}").write_bytes(joined(["hut " * 25] * 300))
    line = error_line(run("get_data.sh", "wmt14.en-de", before=limit_of(40_000), **sources))
    assert line == "error: encoding train: File too large"
    assert [name for name in files(tmp_path / "out") if name.startswith(("bpe", "bin"))] == []


@needs_curl
def test_a_full_disk(romanian: dict[str, str], tmp_path: Path) -> None:
    """OUT on a small file system of its own, in a name space where one may be mounted."""
    archive(tmp_path / "sources/wmt16.tar.gz", {"wmt16/en-ro/train/corpus.bpe.en": noise(400_000)})
    (tmp_path / "out").mkdir()
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    prepare = f"mount -t tmpfs -o size=100k tmpfs '{tmp_path}/out'"
    try:
        possible = subprocess.run([*mount, prepare], capture_output=True).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("no file system can be mounted here (unshare, mount -t tmpfs)")
    script = (
        f"{prepare} && '{ROOT}/scripts/get_data.sh' wmt16.en-ro; status=$?; "
        f"cd '{tmp_path}/out' && find . -type f; exit $status"
    )
    result = subprocess.run([*mount, script], env=environment(**romanian), capture_output=True, text=True, timeout=60)
    assert "out/archives/wmt16.tar.gz.part can't be written: the disk is full" in error_line(result)
    kept_files = {name.removeprefix("./") for name in result.stdout.splitlines() if name.startswith("./")}
    assert kept_files == {
        "dict.en.txt", "dict.en.txt.sha256", "dict.ro.txt", "dict.ro.txt.sha256", "archives/wmt16.tar.gz.part",
    }  # fmt: skip


@needs_curl
def test_interrupted(romanian: dict[str, str], tmp_path: Path) -> None:
    pipe = tmp_path / "endless"
    os.mkfifo(pipe)
    romanian["ENRO_URL"] = pipe.as_uri()
    with subprocess.Popen(
        [ROOT / "scripts/get_data.sh", "wmt16.en-ro"], env=environment(**romanian), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test runner may ignore it
    ) as process:  # fmt: skip
        end = pipe.open("wb")  # opens when curl does
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        end.close()
    assert process.returncode == 130
    assert errors == "get_data.sh: interrupted; the same command goes on from here\n"
    assert not (tmp_path / "out/archives/wmt16.tar.gz").exists()


def test_without_curl(sources: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "env", "dirname", "mktemp", "rm", "nproc"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    sources["PATH"] = str(tmp_path / "bin")
    for script, pair in (("get_data.sh", "wmt14.en-de"), ("get_checkpoints.sh", "wmt14.en-de")):
        line = error_line(run(script, pair, **sources))
        assert "curl is not on the PATH: install it (on Debian and Ubuntu: apt-get install curl)" in line
    assert not (tmp_path / "out").exists()


def test_usage(sources: dict[str, str]) -> None:
    def error(*arguments: str, **variables: str) -> str:
        return error_line(run("get_data.sh", *arguments, **{**sources, **variables}))

    assert "must be wmt14.en-de or wmt16.en-ro, not wmt17" in error("wmt17")
    assert "there is no option --newdict" in error("wmt14.en-de", "--newdict")
    assert "one data set at a time" in error("wmt14.en-de", "wmt16.en-ro")
    assert "WORKERS must be" in error("wmt14.en-de", WORKERS="0")
    assert "BPE_SYMBOLS must be" in error("wmt14.en-de", BPE_SYMBOLS="many")
    result = run("get_data.sh")
    assert result.returncode == 2 and "scripts/get_data.sh {wmt14.en-de,wmt16.en-ro} [--new-dict]" in result.stderr
