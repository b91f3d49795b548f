"""Traces against a plain loop, against the output and the statistics of the same run, and through fairseq's tools."""

import copy
import functools
import json
import math
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_training
import torch
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq_tools import PLUGIN, column, here
from torch import Tensor

from block_plugins.decoding import generator, trace
from block_plugins.decoding.settings import SamplingSettings, SpeculationSettings
from block_plugins.decoding.statistics import Statistics
from block_plugins.decoding.trace import Trace
from block_plugins.errors import UserError

SYMBOLS = tiny.dictionary(8)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()
LENGTHS = [4, 9, 1, 6, 3, 2]
K, MAX_LEN = 4, 12


@functools.cache
def verifier() -> Any:
    return tiny.verifier(SYMBOLS, 23)


@functools.cache
def drafter(kind: str) -> Any:
    """A block model, or the verifier with some noise on its weights."""
    if kind == "block":
        return tiny.drafter(SYMBOLS, 3)
    model = copy.deepcopy(verifier())
    noise = torch.Generator().manual_seed(5)
    for parameter in model.decoder.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
    return model


def decoded(
    kind: str, lengths: list[int], repeat: int = 1, **options: Any
) -> tuple[list[list[int]], list[Trace], Statistics, list[Tensor]]:
    """Outputs, traces and sources of batches of these source lengths, and the statistics of all."""
    search = tiny.settings(SYMBOLS, max_len_b=MAX_LEN)
    options = {"block_size": K, "trace": True, **options}
    model = verifier()
    temperature = 0.8 if options.get("sampling") else 0.0
    proposing = generator.open_drafter(drafter(kind), search, model, temperature=temperature)
    whole = generator.Generator(generator.gad(proposing, model, search, SpeculationSettings(**options)), PAD, EOS)
    outputs, traces, sources = [], [], []
    for seed in range(repeat):
        sample = tiny.sample(SYMBOLS, lengths, seed)
        for (found,), row in zip(whole.generate([], sample), sample["net_input"]["src_tokens"], strict=True):
            outputs.append(found["tokens"].tolist())
            traces.append(found["trace"])
            sources.append(row[row != PAD].unsqueeze(0))
    return outputs, traces, whole.statistics, sources


# --- from the definition: one sentence, no cache, one token at a time


@torch.no_grad()
def logits(model: Any, source: Tensor, inputs: list[int]) -> Tensor:
    """A model's own forward pass, ``[T, V]``, without pad."""
    scores: Tensor = model(source, torch.tensor([source.size(1)]), torch.tensor([inputs]))[0][0].clone()
    scores[:, PAD] = -math.inf
    return scores


def drafter_law(kind: str, source: Tensor, output: list[int], draft: list[int], temperature: float = 1.0) -> Tensor:
    """The drafter's probabilities of the token behind ``output`` and ``draft``."""
    if kind == "block":
        scores = logits(drafter(kind), source, output + [UNK] * K)[len(output) + len(draft)]
    else:
        scores = logits(drafter(kind), source, [EOS, *output, *draft])[-1]
    return (scores / temperature).softmax(-1)


def plain_loop(kind: str, source: Tensor, beta: int, tau: float) -> list[tuple[Any, ...]]:
    """What should be in each iteration: draft, confidence, lookahead, accepted, correction."""

    def verifier_scores(tokens: list[int]) -> list[float]:
        values: list[float] = logits(verifier(), source, [EOS, *tokens])[-1].tolist()
        if not tokens:
            values[EOS] = -math.inf  # --min-len 1
        if len(tokens) == MAX_LEN:
            values = [value if token == EOS else -math.inf for token, value in enumerate(values)]
        return values

    output: list[int] = []
    found = []
    while EOS not in output:
        draft: list[int] = []
        sure: list[float] = []
        for _ in range(K):
            law = drafter_law(kind, source, output, draft)
            sure.append(float(law.max()))
            draft.append(int(law.argmax()))
        verified = draft[: draft.index(EOS) + 1] if EOS in draft else draft
        verified = verified[: MAX_LEN - len(output)]
        accepted = 0
        for token in verified:
            values = verifier_scores(output)
            better = sum(value > values[token] for value in values)
            if better >= beta or max(values) - values[token] > tau:
                break
            output.append(token)
            accepted += 1
        own = None
        if EOS not in output:
            values = verifier_scores(output)
            own = values.index(max(values))
            output.append(own)
        found.append((draft, pytest.approx(sure, abs=1e-6), len(verified), accepted, own))
    return found


@pytest.mark.parametrize("lengths", [[5], LENGTHS])
@pytest.mark.parametrize(("beta", "tau"), [(1, 0.0), (3, 2.0)])
@pytest.mark.parametrize("kind", ["block", "ar"])
def test_a_trace_as_computed_by_hand(kind: str, beta: int, tau: float, lengths: list[int]) -> None:
    outputs, traces, _, sources = decoded(kind, lengths, beta=beta, tau=tau)
    seen: Counter[str] = Counter()
    for source, found in zip(sources, traces, strict=True):
        fields = [(one.draft, one.confidence, one.lookahead, one.accepted, one.correction) for one in found]
        assert fields == plain_loop(kind, source, beta, tau)
        seen["accepted"] += sum(one.accepted for one in found)
        seen["rejected"] += sum(one.accepted < one.lookahead for one in found)
        seen["unverified"] += sum(one.lookahead < K for one in found)
    if len(lengths) > 1:  # else there is too little to have everything in it
        assert len(set(map(len, outputs))) > 1
        assert min(seen[what] for what in ("accepted", "rejected", "unverified")) > 0


# --- against the run's own output and statistics


def check_sums(outputs: list[list[int]], traces: list[Trace], statistics: Statistics) -> None:
    for output, found in zip(outputs, traces, strict=True):
        joined: list[int] = []
        for one in found:
            assert 0 <= one.accepted <= one.lookahead <= len(one.draft) == len(one.confidence)
            joined += one.draft[: one.accepted] + ([] if one.correction is None else [one.correction])
        assert joined == output
    iterations = [one for found in traces for one in found]
    assert sum(one.lookahead for one in iterations) == statistics.drafted
    assert sum(one.accepted for one in iterations) == statistics.accepted
    assert sum(bool(one.draft) for one in iterations) == statistics.iterations
    assert sum(not one.draft for one in iterations) == statistics.undrafted


@pytest.mark.parametrize("lookahead", ["constant", "heuristic", "adaptive", "confidence", "auto"])
@pytest.mark.parametrize("kind", ["block", "ar"])
def test_sums_of_every_lookahead(kind: str, lookahead: str) -> None:
    for lengths in ([5], LENGTHS):
        outputs, traces, statistics, _ = decoded(kind, lengths, repeat=4, lookahead=lookahead)
        check_sums(outputs, traces, statistics)
    if lookahead == "auto":  # it begins with steps without a draft
        assert not traces[0][0].draft and traces[0][0].correction == outputs[0][0]
        assert statistics.undrafted > 0 and statistics.iterations > 0
    if lookahead == "confidence":  # a draft ends with the first token in which the drafter isn't confident
        some = [one for found in traces for one in found if one.lookahead < len(one.draft)]
        assert some
        for one in (one for found in traces for one in found):
            assert all(sure >= 0.4 for sure in one.confidence[: max(0, one.lookahead - 1)])


@pytest.mark.parametrize("lookahead", ["constant", "confidence"])
@pytest.mark.parametrize("kind", ["block", "ar"])
def test_sampling(kind: str, lookahead: str) -> None:
    outputs, traces, statistics, sources = decoded(kind, LENGTHS, lookahead=lookahead, sampling=SamplingSettings())
    check_sums(outputs, traces, statistics)
    assert 0 < statistics.accepted < statistics.drafted
    for source, output, found in zip(sources[:4], outputs, traces, strict=False):
        begin = 0
        for one in found:
            for at, token in enumerate(one.draft):
                law = drafter_law(kind, source, output[:begin], one.draft[:at], temperature=0.8)
                assert one.confidence[at] == pytest.approx(float(law[token]), abs=1e-6)
            begin += one.accepted + 1


def test_the_sentences_of_a_batch_share_the_times_of_their_iterations() -> None:
    _, traces, statistics, _ = decoded("ar", LENGTHS)
    longest = max(traces, key=len)
    for found in traces:
        for one, other in zip(found, longest, strict=False):
            assert (one.draft_seconds, one.verify_seconds) == (other.draft_seconds, other.verify_seconds)
    assert min(one.draft_seconds for one in longest) > 0 and min(one.verify_seconds for one in longest) > 0
    assert sum(one.draft_seconds for one in longest) == pytest.approx(statistics.phases["draft"])
    # encoding counts as verification as well, but belongs to no iteration
    assert sum(one.verify_seconds for one in longest) < statistics.phases["verify"]


@pytest.mark.parametrize("sampling", [None, SamplingSettings()])
def test_a_trace_changes_nothing_and_without_one_nothing_is_done_for_it(
    monkeypatch: pytest.MonkeyPatch, sampling: SamplingSettings | None
) -> None:
    torch.manual_seed(3)
    traced, _, _, _ = decoded("ar", LENGTHS, repeat=2, sampling=sampling)
    monkeypatch.setattr(trace.Recorder, "add", lambda *_: pytest.fail("something was recorded"))
    torch.manual_seed(3)
    untraced, nothing, _, _ = decoded("ar", LENGTHS, repeat=2, sampling=sampling, trace=False)
    assert untraced == traced
    assert not any(nothing)


def test_a_confidence_that_overflowed_is_null() -> None:
    one = trace.Iteration([4, 5], [math.nan, 0.123456], 2, 2, None, 0.0, 0.1234567)
    assert one.as_dict(SYMBOLS.symbols) == {
        "draft": [{"token": "w0", "id": 4, "confidence": None}, {"token": "w1", "id": 5, "confidence": 0.1235}],
        "lookahead": 2,
        "accepted": 2,
        "correction": None,
        "draft_seconds": 0.0,
        "verify_seconds": 0.123457,
    }


# --- through fairseq's tools


def save(model: Any, arch: str, path: Path) -> Path:
    """A checkpoint as far as decoding reads it."""
    settings = Namespace(**tiny_training.TINY, _name=arch, arch=arch)
    if arch == "transformer":
        base_architecture(settings)  # as fairseq's command line does
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 1}
    state = {
        "args": None,
        "cfg": {"model": settings, "task": settings},
        "model": model.state_dict(),
        "optimizer_history": [history],
    }
    torch.save({**state, "extra_state": {"train_iterator": {"epoch": 1}}}, path)
    return path


class Models:
    """A data folder with six sentences, and random models: a verifier, one much like it, and a block drafter."""

    def __init__(self, folder: Path) -> None:
        self.data = tiny_training.write_data(folder / "bin")
        task = tiny_training.make_task(self.data)
        verifier = tiny_training.verifier(task)
        self.verifier = save(verifier, "transformer", folder / "verifier.pt")
        for parameter in verifier.decoder.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
        self.drafters = {
            "ar": save(verifier, "transformer", folder / "ar.pt"),
            "block": save(tiny_training.drafter(task, 1), "block", folder / "block.pt"),
        }
        self.common = [self.data, "-s", "en", "-t", "de", *PLUGIN, "--cpu", "--max-len-b", 12]

    def gad(self, kind: str, *options: object) -> list[object]:
        return [*self.common, "--strategy", "gad", "--path", self.drafters[kind], "--AR-path", self.verifier,
                "--block-size", 3, "--num-draft-tokens", 3, *options]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    torch.manual_seed(0)
    return Models(tmp_path_factory.mktemp("models"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_file(path: Path, stats: Path, output: str) -> list[dict[str, Any]]:
    """The file's lines by their numbers, after a look at what the tool printed and at the statistics."""
    lines = lines_of(path)
    found = {line["id"]: line for line in lines}
    assert len(found) == len(lines)
    sources, targets = column(output, "S"), column(output, "H")
    assert found.keys() == targets.keys()
    symbols = tiny_training.dictionary()
    for number, line in found.items():
        assert line["source"] == sources[number][0]
        assert (line["source_lang"], line["target_lang"]) == ("en", "de")
        tokens = []
        for one in line["iterations"]:
            own = [] if one["correction"] is None else [one["correction"]]
            assert all(symbols[token["id"]] == token["token"] for token in one["draft"] + own)
            tokens += [token["token"] for token in one["draft"][: one["accepted"]] + own]
        assert " ".join(token for token in tokens if token not in ("<s>", "</s>")) == targets[number][1]
    figures = json.loads(stats.read_text(encoding="utf-8"))
    iterations = [one for line in lines for one in line["iterations"]]
    assert figures["drafted"] == sum(one["lookahead"] for one in iterations)
    assert figures["accepted"] == sum(one["accepted"] for one in iterations)
    assert figures["iterations"] + figures["undrafted"] == len(iterations)
    assert figures["sentences"] == len(lines)
    batches = {line["batch"]: line for line in lines}
    assert list(batches) == list(range(len(batches)))
    assert Counter(line["batch"] for line in lines) == {n: line["batch_size"] for n, line in batches.items()}
    seconds = sum(line["batch_seconds"] for line in batches.values())
    assert seconds == pytest.approx(figures["seconds"], abs=1e-5)
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("block", ("--batch-size", 1, "--lookahead", "constant", "--beta", 6, "--tau", 9)),
        ("ar", ("--batch-size", 4, "--lookahead", "auto")),
        ("ar", ("--batch-size", 3, "--sampling", "--beam", 1, "--lookahead", "confidence")),
    ],
)
def test_generate(models: Models, tmp_path: Path, kind: str, options: tuple[object, ...]) -> None:
    path, stats = tmp_path / "trace.jsonl", tmp_path / "stats.json"
    words = models.gad(kind, "--gen-subset", "valid", "--stats-path", stats, *options)
    torch.manual_seed(1)
    output = here("generate", *words, "--trace-path", path, cwd=tmp_path)
    found = check_file(path, stats, output)
    assert [line["id"] for line in found] == list(range(6))
    assert sum(one["accepted"] for line in found for one in line["iterations"]) > 0
    again = here("generate", *words, cwd=tmp_path)
    assert column(again, "H") == column(output, "H")


def test_interactive_numbers_its_lines_through_all_buffers(models: Models, tmp_path: Path) -> None:
    """Of several lengths, so that batches are in another order than lines, with equal lines and one of nothing."""
    lines = ["w1 w2 w3 w4 w5 w6", "w7", "w1 w2 w3", "", "w8 w9", "w7", "w7 w1 w1 w2 w5", "w3 w3"]
    path, stats = tmp_path / "trace.jsonl", tmp_path / "stats.json"
    path.write_text("of an earlier run\n", encoding="utf-8")
    words = models.gad("ar", "--buffer-size", 5, "--batch-size", 2, "--lookahead", "heuristic", "--stats-path", stats)
    stdin = "\n".join(lines) + "\n"
    # drawn, so that equal lines have outputs of their own
    chance = ["--sampling", "--beam", 1, "--temperature", 3]
    output = here("interactive", *words, *chance, "--trace-path", path, cwd=tmp_path, stdin=stdin)
    found = check_file(path, stats, output)
    assert [line["source"] for line in found] == lines
    assert found[3]["iterations"] == []
    assert column(output, "H")[1] != column(output, "H")[5]
    assert [line["id"] for line in lines_of(path)] != list(range(8))


def test_what_was_decoded_before_an_error_is_in_the_file(models: Models, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    words = models.gad("block", "--buffer-size", 2, "--trace-path", path)
    with pytest.raises(UserError, match="line 4 is too long"):
        here("interactive", *words, cwd=tmp_path, stdin="w1\nw2 w3\nw4\n" + "w5 " * 60 + "\n")
    assert sorted(line["id"] for line in lines_of(path)) == [0, 1]


def test_what_cannot_be_traced(models: Models, tmp_path: Path) -> None:
    def refused(*words: object) -> str:
        with pytest.raises(UserError) as caught:
            here("generate", *words, "--gen-subset", "valid", cwd=tmp_path)
        return str(caught.value)

    path = tmp_path / "trace.jsonl"
    for strategy in ("fairseq", "AR", "left2right", "drafter"):
        with pytest.raises(UserError, match=f"--trace-path: --strategy {strategy} has no iterations"):
            tiny_training.make_task(models.data, strategy=strategy, trace_path=str(path))
    alone = [*models.common, "--strategy", "AR", "--path", models.verifier, "--trace-path", path]
    assert "--trace-path: --strategy AR has no iterations" in refused(*alone)
    assert not path.exists()
    assert "--trace-path: there is no folder" in refused(*models.gad("ar", "--trace-path", tmp_path / "no" / "file"))
    same = ["--trace-path", path, "--stats-path", path]
    assert f"--trace-path and --stats-path are both {path}" in refused(*models.gad("ar", *same))
    assert f"--trace-path: {tmp_path} can't be written" in refused(*models.gad("ar", "--trace-path", tmp_path))
