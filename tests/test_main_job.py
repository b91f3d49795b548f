"""The main job through fairseq's own tools: preprocess, train, generate, interactive, score; and every error on the
way.
"""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq_tools import PLUGIN, column, here, run, succeed

from block_plugins import checkpoints, generation
from block_plugins.errors import UserError

SOURCE = """the cat sees a dog
a dog sees the cat
the small bird sings in the tree
in the tree sings a small bird
we open the file and close the window
close the window and open the file
the file is in the small folder
a folder holds the small file
the bird and the cat see the tree
you see the dog in the window
the dog sleeps
a cat sleeps in the folder"""
TARGET = """die Katze sieht einen Hund
ein Hund sieht die Katze
der kleine Vogel singt im Baum
im Baum singt ein kleiner Vogel
wir oeffnen die Datei und schliessen das Fenster
schliesse das Fenster und oeffne die Datei
die Datei ist im kleinen Ordner
ein Ordner enthaelt die kleine Datei
der Vogel und die Katze sehen den Baum
du siehst den Hund im Fenster
der Hund schlaeft
eine Katze schlaeft im Ordner"""
SMALL = shlex.split("""
--encoder-embed-dim 48 --encoder-ffn-embed-dim 96 --encoder-layers 1 --decoder-layers 1
--encoder-attention-heads 2 --decoder-attention-heads 2 --max-source-positions 30 --max-target-positions 30
--share-all-embeddings --dropout 0 --optimizer adam --lr 4e-3 --lr-scheduler fixed --max-tokens 500 --cpu --seed 1
--log-format simple --disable-validation --no-epoch-checkpoints --clip-norm 1.0""")


class Job:
    """What the job has made: a data directory, a verifier, a drafter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "bin"
        self.verifier = folder / "verifier" / "checkpoint_last.pt"
        self.drafter = folder / "drafter" / "checkpoint_last.pt"
        self.common = [self.data, "-s", "en", "-t", "de", *PLUGIN, "--cpu"]

    def gad(self, *options: object) -> list[object]:
        return [*self.common, "--strategy", "gad", "--path", self.drafter, "--AR-path", self.verifier,
                "--block-size", 8, *options]  # fmt: skip

    def alone(self, strategy: str, *options: object) -> list[object]:
        path = self.drafter if strategy == "drafter" else self.verifier
        return [*self.common, "--strategy", strategy, "--path", path, "--block-size", 8, *options]


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Trains both models until they know twelve sentences by heart."""
    result = Job(tmp_path_factory.mktemp("job"))
    for split in ("train", "valid", "test"):
        (result.folder / f"{split}.en").write_text(SOURCE + "\n", encoding="utf-8")
        (result.folder / f"{split}.de").write_text(TARGET + "\n", encoding="utf-8")
    elsewhere = result.folder / "elsewhere"
    elsewhere.mkdir()
    prefixes = [f"--{split}pref={result.folder / split}" for split in ("train", "valid", "test")]
    languages = ["-s", "en", "-t", "de"]
    succeed("preprocess", *languages, "--joined-dictionary", *prefixes, "--destdir", result.data, cwd=elsewhere)
    shared = [result.data, *languages, *PLUGIN, *SMALL, "--save-dir"]
    here("train", *shared, result.verifier.parent, "--arch", "transformer", "--noise", "no_noise", "--criterion",
         "label_smoothed_cross_entropy", "--max-update", 120, cwd=elsewhere)  # fmt: skip
    succeed("train", *shared, result.drafter.parent, "--arch", "block", "--noise", "block_mask", "--block-size", 8,
            "--src-embedding-copy", "--criterion", "glat_loss", "--max-update", 300, "--total-up", 300,
            cwd=elsewhere)  # fmt: skip
    return result


def test_a_model_that_knows_its_text_accepts_whole_blocks(job: Job, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    greedy = column(here("generate", *job.alone("fairseq"), "--beam", 1, cwd=tmp_path), "H")
    options = job.gad("--stats-path", stats, "--print-step", "--retain-iter-history", "--lookahead", "constant")
    result = run("generate", *options, cwd=tmp_path)
    output = result.stdout
    found = column(output, "H")
    assert {n: fields[1] for n, fields in found.items()} == {n: fields[1] for n, fields in greedy.items()}
    assert [found[n][1] for n in range(12)] == TARGET.splitlines()
    for n, fields in found.items():
        assert float(fields[0]) == pytest.approx(float(greedy[n][0]), abs=1e-4)
    figures = json.loads(stats.read_text(encoding="utf-8"))
    lengths = [len(line.split()) + 1 for line in TARGET.splitlines()]
    assert figures["sentences"] == 12
    assert figures["tokens"] == sum(lengths)
    assert figures["accepted_per_iteration"] > 5
    assert f"sentences 12, tokens {sum(lengths)}" in result.stdout + result.stderr  # the log line at the end
    steps = column(output, "I")
    assert sum(int(fields[0]) for fields in steps.values()) == figures["iterations"]
    drafts = [line for line in output.splitlines() if line.startswith("E-")]
    assert len(drafts) == figures["iterations"]


def test_approximate_drafters_and_every_lookahead_give_the_same_text(job: Job, tmp_path: Path) -> None:
    for dtype, lookahead in (
        ("fp32", "constant"), ("bf16", "auto"), ("int8", "heuristic"), ("int8", "confidence"), ("fp32", "adaptive")
    ):  # fmt: skip
        words = job.gad("--drafter-dtype", dtype, "--lookahead", lookahead, "--batch-size", 3)
        found = column(here("generate", *words, cwd=tmp_path), "H")
        assert [found[n][1] for n in range(12)] == TARGET.splitlines()


def test_an_autoregressive_drafter(job: Job, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    words = job.gad("--path", job.verifier, "--num-draft-tokens", 3, "--stats-path", stats, "--drafter-dtype", "int8")
    found = column(here("generate", *words, "--batch-size", 5, "--lookahead", "constant", cwd=tmp_path), "H")
    assert [found[n][1] for n in range(12)] == TARGET.splitlines()
    assert json.loads(stats.read_text(encoding="utf-8"))["accepted_per_iteration"] > 3
    alone = column(here("generate", *job.alone("drafter", "--path", job.verifier), cwd=tmp_path), "H")
    assert [alone[n][1] for n in range(12)] == TARGET.splitlines()


def test_sampling_is_repeatable_by_its_seed(job: Job, tmp_path: Path) -> None:
    def drawn(options: list[object], seed: int) -> list[str]:
        words = [*options, "--sampling", "--beam", 1, "--temperature", 3, "--seed", seed, "--max-len-b", 12]
        found = column(here("generate", *words, cwd=tmp_path), "H")
        return [found[n][1] for n in range(12)]

    for options in (
        job.alone("AR", "--sampling-topk", 20),
        job.gad("--draft-temperature", 1, "--sampling-topp", 0.95),
        job.gad("--path", job.verifier),
    ):
        first = drawn(options, 1)
        assert first == drawn(options, 1)
        assert first != drawn(options, 2)
        assert first != TARGET.splitlines()


def test_left_to_right_with_one_beam_and_with_several(job: Job, tmp_path: Path) -> None:
    greedy = column(here("generate", *job.alone("AR"), cwd=tmp_path), "H")
    assert column(here("generate", *job.alone("left2right"), "--beam", 1, cwd=tmp_path), "H") == greedy
    output = here("generate", *job.alone("left2right"), "--beam", 3, "--nbest", 2, cwd=tmp_path)
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("H-")]
    assert len(lines) == 24
    for n in range(12):
        (best, text), (second, other) = [fields[1:] for fields in lines if fields[0] == f"H-{n}"]
        assert text == TARGET.splitlines()[n] != other
        assert float(best) >= float(second)


def test_results_path_sharding_and_length_options(job: Job, tmp_path: Path) -> None:
    whole = column(here("generate", *job.alone("fairseq"), "--beam", 1, "--max-len-b", 3, cwd=tmp_path), "H")
    halves: dict[int, list[str]] = {}
    for shard in (0, 1):
        here("generate", *job.gad("--max-len-b", 3, "--batch-size", 2, "--num-shards", 2, "--shard-id", shard,
                                  "--gen-subset", "test", "--results-path", tmp_path / str(shard)),
             cwd=tmp_path)  # fmt: skip
        text = (tmp_path / str(shard) / "generate-test.txt").read_text(encoding="utf-8")
        shard_lines = column(text, "H")
        assert len(shard_lines) == 6
        assert not shard_lines.keys() & halves.keys()
        halves |= shard_lines
    assert {n: fields[1] for n, fields in halves.items()} == {n: fields[1] for n, fields in whole.items()}


def test_interactive_keeps_order_and_gives_a_line_for_every_line(job: Job, tmp_path: Path) -> None:
    """Empty lines, blank ones, such of nothing but unknown characters, and the longest that fits, among others."""
    words = "the dog sleeps||the cat sees a dog|unheard words here|a|\u2603 \u200b \u96ea\u4eba|\u3000|the|\u0001"
    lines = [*words.split("|"), "the bird and the cat see the tree", "the " * 28 + "dog"]
    stdin = "\n".join(lines) + "\n"

    def translated(tool: Callable[..., str], options: list[object]) -> dict[int, str]:
        output = tool("interactive", *options, "--buffer-size", 8, "--batch-size", 3, cwd=tmp_path, stdin=stdin)
        found = column(output, "H")
        assert sorted(found) == list(range(len(lines)))
        assert found[1][1] == found[6][1] == ""
        return {n: fields[1] for n, fields in found.items()}

    expected = translated(here, job.alone("fairseq", "--beam", 1))
    assert expected[0] == "der Hund schlaeft"
    assert expected[2] == "die Katze sieht einen Hund"
    assert expected == translated(succeed, job.gad())
    for strategy in (job.gad("--beta", 10**9), job.alone("AR", "--print-step"), job.alone("left2right", "--beam", 1)):
        assert expected == translated(here, strategy)
    beams = translated(here, job.alone("left2right", "--beam", 5))
    assert [beams[n] for n in (0, 2, 9)] == [expected[n] for n in (0, 2, 9)]
    translated(here, job.alone("drafter"))


@pytest.mark.parametrize("strategy", ["gad", "AR", "left2right", "fairseq"])
def test_an_empty_file_has_an_empty_translation(job: Job, tmp_path: Path, strategy: str) -> None:
    options = job.gad() if strategy == "gad" else job.alone(strategy)
    assert here("interactive", *options, cwd=tmp_path) == ""


def test_drafter_alone_and_score(job: Job, tmp_path: Path) -> None:
    found = column(here("generate", *job.alone("drafter"), cwd=tmp_path), "H")
    (tmp_path / "hyp").write_text("".join(found[n][1] + "\n" for n in range(12)), encoding="utf-8")
    (tmp_path / "ref").write_text(TARGET + "\n", encoding="utf-8")
    output = succeed("score", "--sys", tmp_path / "hyp", "--ref", tmp_path / "ref", cwd=tmp_path)
    assert float(output.split("BLEU4 = ")[1].split(",")[0]) > 50


def test_an_interrupted_decode_keeps_its_statistics(job: Job, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    too_long = " ".join(["dog"] * 40)
    result = run("interactive", *job.gad("--stats-path", stats), cwd=tmp_path, stdin=f"the dog sleeps\n{too_long}\n")
    assert result.returncode == 1
    assert column(result.stdout, "H")[0][1] == "der Hund schlaeft"
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: line 2 is too long: 41 tokens")
    assert "Traceback" not in result.stderr
    assert json.loads(stats.read_text(encoding="utf-8"))["sentences"] == 1


def test_too_long_lines_are_skipped_where_asked_for(job: Job, tmp_path: Path) -> None:
    stdin = f"the dog sleeps\n{' '.join(['dog'] * 40)}\nthe dog sleeps\n"
    output = here("interactive", *job.gad("--skip-invalid-size-inputs-valid-test"), cwd=tmp_path, stdin=stdin)
    assert sorted(column(output, "H")) == [0, 2]


@pytest.mark.parametrize("strategy", ["gad", "fairseq"])
def test_bfloat16_is_honoured(job: Job, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = generation.build_generator

    def checked(task: Any, models: list[Any], *rest: Any) -> Any:
        assert next(models[0].parameters()).dtype == torch.bfloat16
        return built(task, models, *rest)

    monkeypatch.setattr(generation, "build_generator", checked)
    options = job.gad() if strategy == "gad" else job.alone(strategy, "--beam", 1)
    found = column(here("generate", *options, "--bf16", cwd=tmp_path), "H")
    assert [found[n][1] for n in range(12)] == TARGET.splitlines()


# Errors. They are raised before or while a tool runs, so the tool can run in this process, which saves its start.


@pytest.fixture
def fails(tmp_path: Path) -> Callable[..., str]:
    """Runs fairseq-generate (or another tool) in this process and gives the one line that it ends with."""

    def check(*arguments: object, tool: str = "generate") -> str:
        with pytest.raises(UserError) as caught:
            here(tool, *arguments, cwd=tmp_path)
        message = str(caught.value)
        assert message.startswith("error: ")
        assert len(message.splitlines()) == 1
        return message

    return check


def test_gad_without_verifier(job: Job, fails: Callable[..., str]) -> None:
    assert "--AR-path" in fails(*job.common, "--strategy", "gad", "--path", job.drafter)


def test_options_of_beams_and_drafters_that_mean_nothing(job: Job, fails: Callable[..., str]) -> None:
    beams = job.alone("left2right", "--beam", 3)
    assert "--nbest 4 is more than --beam 3" in fails(*beams, "--nbest", 4)
    assert "--lenpen" in fails(*beams, "--lenpen", 2)
    assert "--beam-min 9 is more than --beam-max 3" in fails(*beams, "--beam-min", 9, "--beam-max", 3)
    assert "--beam-start" in fails(*beams, "--beam-start", -1)
    assert "--drafter-dtype" in fails(*beams, "--drafter-dtype", "int8")


def test_verifier_path_without_gad(job: Job, fails: Callable[..., str]) -> None:
    assert "--AR-path" in fails(*job.alone("AR", "--AR-path", job.verifier))


def test_missing_checkpoints(job: Job, fails: Callable[..., str], tmp_path: Path) -> None:
    missing = tmp_path / "nothing.pt"
    assert f"--path: there is no checkpoint {missing}" in fails(*job.gad("--path", missing))
    assert f"--AR-path: there is no checkpoint {missing}" in fails(*job.gad("--AR-path", missing))


def test_unreadable_checkpoints(job: Job, fails: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "text.pt"
    text.write_text("not a checkpoint", encoding="utf-8")
    assert f"--path: {text} can't be read as a checkpoint" in fails(*job.gad("--path", text))
    cut = tmp_path / "cut.pt"
    cut.write_bytes(job.verifier.read_bytes()[:20000])
    assert f"--AR-path: {cut} can't be read as a checkpoint" in fails(*job.gad("--AR-path", cut))


def test_checkpoint_of_another_program(job: Job, fails: Callable[..., str], tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    torch.save({"state_dict": {}}, other)
    assert f"--path: {other} is not a fairseq checkpoint" in fails(*job.gad("--path", other))


TOOLS = ["generate", "interactive"]


@pytest.mark.parametrize("tool", TOOLS)
def test_drafter_and_verifier_swapped(job: Job, fails: Callable[..., str], tmp_path: Path, tool: str) -> None:
    right = "give the drafter with --path and the verifier, which is autoregressive, with --AR-path"
    swapped = "are a verifier and a drafter, swapped"
    message = fails(*job.gad("--path", job.verifier, "--AR-path", job.drafter), tool=tool)
    assert f"--path {job.verifier} and --AR-path {job.drafter} {swapped}: {right}" in message
    message = fails(*job.gad("--AR-path", job.drafter), tool=tool)
    assert "are two drafters" in message and right in message
    small = tmp_path / "small.pt"  # an autoregressive drafter
    state = checkpoints.read(str(job.verifier), "--path")
    state["cfg"]["model"].arch = "transformer_drafter"
    torch.save(state, small)
    assert f"--AR-path {small} {swapped}: {right}" in fails(
        *job.gad("--path", job.verifier, "--AR-path", small), tool=tool
    )


@pytest.mark.parametrize("strategy", ["AR", "fairseq"])
def test_a_block_drafter_alone_is_no_verifier(job: Job, fails: Callable[..., str], strategy: str) -> None:
    assert "is a block drafter" in fails(*job.alone(strategy, "--path", job.drafter))


@pytest.mark.parametrize("which", ["--path", "--AR-path"])
def test_other_dictionary_than_the_checkpoints(job: Job, fails: Callable[..., str], tmp_path: Path, which: str) -> None:
    data = shutil.copytree(job.data, tmp_path / "bin")
    for language in ("en", "de"):
        file = data / f"dict.{language}.txt"
        lines = file.read_text(encoding="utf-8").splitlines()
        lines[2] = "changed 1"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = job.gad()
    options[0] = data
    if which == "--AR-path":  # a drafter without a record of its dictionaries has only its size to be checked
        state = checkpoints.read(str(job.drafter), "--path")
        state["task_state"] = {}
        torch.save(state, tmp_path / "drafter.pt")
        options += ["--path", tmp_path / "drafter.pt"]
    message = fails(*options)
    assert which in message
    assert "'changed'" in message


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("which", "language"), [("--path", "en"), ("--AR-path", "de")])
def test_dictionary_of_another_size(
    job: Job, fails: Callable[..., str], tmp_path: Path, tool: str, which: str, language: str
) -> None:
    """Checkpoints of other programs than this plugin have no record of their dictionaries."""
    data = shutil.copytree(job.data, tmp_path / "bin")
    with (data / f"dict.{language}.txt").open("a", encoding="utf-8") as file:
        file.write("added 1\n")
    options = [data, *job.gad()[1:]]
    for option, given in (("--path", job.drafter), ("--AR-path", job.verifier)):
        state = checkpoints.read(str(given), option)
        state["task_state"] = {}
        symbols = state["model"]["decoder.embed_tokens.weight"].size(0)
        if option != which:  # this one would fit
            name = f"{'encoder' if language == 'en' else 'decoder'}.embed_tokens.weight"
            state["model"][name] = torch.zeros(symbols + 1, 48)
        path = tmp_path / f"{option[2:]}.pt"
        torch.save(state, path)
        options += [option, path]
    side = "source" if language == "en" else "target"
    assert fails(*options, tool=tool).startswith(
        f"error: {which}: {tmp_path / which[2:]}.pt was trained with {symbols} {side} symbols, but the data's {side} "
        f"dictionary has {symbols + 1} "
    )


def test_numbers_out_of_range(job: Job, fails: Callable[..., str]) -> None:
    assert "--num-draft-tokens must be at least 1, not 0" in fails(*job.gad("--num-draft-tokens", 0))
    assert "--confidence-threshold must be from 0 to 1" in fails(*job.gad("--confidence-threshold", 1.5))
    assert "--lookahead heuristic" in fails(*job.gad("--lookahead", "heuristic", "--beta", 2))
    assert "--repetition-penalty must be at least 1" in fails(*job.gad("--repetition-penalty", 0.9))
    assert "--repetition-penalty" in fails(*job.alone("left2right", "--repetition-penalty", 2))
    assert "--no-repeat-ngram-size" in fails(*job.gad("--no-repeat-ngram-size", 1))
    assert "--no-repeat-ngram-size" in fails(*job.alone("left2right", "--no-repeat-ngram-size", 3))
    assert "--beta" in fails(*job.gad("--beta", 0))
    assert "--tau" in fails(*job.gad("--tau", -0.5))
    assert "--tau" in fails(*job.gad("--tau", "nan"))
    for strategy in (job.gad, lambda *options: job.alone("drafter", *options)):
        assert "--block-size must be at least 1, not 0" in fails(*strategy("--block-size", 0))
        message = fails(*strategy("--block-size", 31))
        assert "--block-size 31" in message
        assert "30 positions" in message
    assert "--min-len 9" in fails(*job.gad("--min-len", 9, "--max-len-b", 8))
    assert "--stats-path" in fails(*job.gad("--stats-path", "/nowhere/at/all.json"))
    assert "--shard-id" in fails(*job.gad("--num-shards", 2, "--shard-id", 2))
    assert "--beam must be at least 1, not 0" in fails(*job.alone("left2right", "--beam", 0))
    assert "--temperature must be more than 0, not 0.0" in fails(*job.alone("fairseq", "--temperature", 0))


def test_what_needs_a_gpu(job: Job, fails: Callable[..., str]) -> None:
    assert "--fp16 needs a GPU" in fails(*job.gad("--fp16"))
    assert "--cuda-graphs needs a GPU: leave it out on the CPU" in fails(*job.gad("--cuda-graphs"))
    assert "--cuda-graphs: --strategy fairseq" in fails(*job.alone("fairseq", "--cuda-graphs"))


@pytest.mark.parametrize(
    "flags",
    [
        "--nbest 2",
        "--print-alignment",
        "--constraints",
        "--lm-path lm.pt",
        "--diverse-beam-groups 2",
        "--match-source-len",
        "--score-reference",
        "--retain-dropout",
        "--iter-decode-max-iter 3",
        "--replace-unk --dataset-impl raw",
    ],
)
def test_what_is_not_honoured_is_refused_by_name(job: Job, fails: Callable[..., str], flags: str) -> None:
    words = flags.split()
    for strategy in (job.gad(*words), job.alone("AR", *words), job.alone("drafter", *words)):
        assert words[0] in fails(*strategy)


def test_options_of_sampling_that_do_not_go_together(job: Job, fails: Callable[..., str]) -> None:
    sampling = ["--sampling", "--beam", 1]
    for strategy in (job.alone("drafter", *sampling), job.alone("left2right", *sampling)):
        assert "--sampling" in fails(*strategy)
    assert "--beta 5" in fails(*job.gad(*sampling, "--beta", 5, "--tau", 1))
    assert "--temperature" in fails(*job.gad(*sampling, "--temperature", 0))
    assert "--draft-temperature must not be negative" in fails(*job.gad(*sampling, "--draft-temperature", -1))
    assert "--draft-temperature" in fails(*job.alone("AR", *sampling, "--draft-temperature", 1))
    assert "--draft-temperature is for --sampling" in fails(*job.gad("--draft-temperature", 1))
    assert "--sampling-topk is for --sampling" in fails(*job.gad("--sampling-topk", 5))


def test_what_fairseq_asserts_is_told_in_one_line(job: Job, tmp_path: Path) -> None:
    result = run("generate", *job.gad("--sampling"), cwd=tmp_path)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: --sampling requires --nbest to be equal to --beam: give --beam 1"]
    assert "Traceback" not in result.stderr


def test_ensembles_are_refused(job: Job, fails: Callable[..., str]) -> None:
    assert "--path" in fails(*job.gad("--path", f"{job.drafter}:{job.drafter}"))


def test_iterations_of_fairseqs_search_are_refused(job: Job, fails: Callable[..., str]) -> None:
    assert "--print-step" in fails(*job.alone("fairseq", "--print-step"))


STRATEGIES = ["gad", "AR", "left2right --beam 1", "left2right --beam 5", "drafter", "fairseq"]


def options_of(job: Job, strategy: str, *more: object) -> list[object]:
    name, *words = strategy.split()
    return job.gad(*words, *more) if name == "gad" else job.alone(name, *words, *more)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_line_longer_than_the_models_positions(
    job: Job, fails: Callable[..., str], tmp_path: Path, strategy: str
) -> None:
    file = tmp_path / "in"
    file.write_text("the dog sleeps\na dog\n" + "dog " * 30 + "\n", encoding="utf-8")
    options = options_of(job, strategy, "--input", file, "--buffer-size", 2, "--batch-size", 2)
    message = fails(*options, tool="interactive")
    assert "line 3 is too long: 31 tokens (at most 30 and 30 fit)" in message
    assert "--skip-invalid-size-inputs-valid-test" in message


def with_source_positions(checkpoint: Path, positions: int, out: Path) -> Path:
    """A copy of a checkpoint whose encoder has so many positions."""
    state = checkpoints.read(str(checkpoint), "--path")
    model = state["cfg"]["model"]
    if isinstance(model, dict):
        model["max_source_positions"] = positions
    else:
        model.max_source_positions = positions
    learned = state["model"].get("encoder.embed_positions.weight")
    if learned is not None:
        state["model"]["encoder.embed_positions.weight"] = learned[: positions + 2].clone()  # two more for padding
    torch.save(state, out)
    return out


@pytest.mark.parametrize("shorter", ["--path", "--AR-path"])
def test_a_line_must_fit_the_drafter_and_the_verifier(
    job: Job, fails: Callable[..., str], tmp_path: Path, shorter: str
) -> None:
    whole = job.drafter if shorter == "--path" else job.verifier
    short = job.gad(shorter, with_source_positions(whole, 8, tmp_path / "short.pt"))
    # the fifth line of the test set is the first of those with nine tokens
    message = fails(*short)
    assert "line 5 is too long: 9 source and 9 target tokens (at most 8 and 30 fit)" in message
    output = here("generate", *short, "--skip-invalid-size-inputs-valid-test", cwd=tmp_path)
    fitting = [n for n, line in enumerate(SOURCE.splitlines()) if len(line.split()) < 8]
    assert 2 in fitting and len(fitting) < 12  # line 3 just fits
    found = {n: fields[1] for n, fields in column(output, "H").items()}
    assert found == {n: TARGET.splitlines()[n] for n in fitting}


def test_data_directories_that_cannot_work(job: Job, fails: Callable[..., str], tmp_path: Path) -> None:
    def with_data(folder: Path) -> str:
        options = job.gad()
        options[0] = folder
        return fails(*options)

    assert f"{tmp_path / 'nowhere'} does not exist" in with_data(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no dictionaries" in with_data(tmp_path / "empty")
    one_sided = shutil.copytree(job.data, tmp_path / "bin")
    (one_sided / "dict.de.txt").unlink()
    assert "monolingual" in with_data(one_sided)
    no_split = shutil.copytree(job.data, tmp_path / "split")
    for file in no_split.glob("test.*"):
        file.unlink()
    assert "no split 'test'" in with_data(no_split)
