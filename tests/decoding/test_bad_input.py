"""Lines, lengths and numbers at the edge of what makes sense: each gives the right output, or one clear error.

Every strategy is made from options, as fairseq's tools make it. What is too long for a model's positions, and what the
command line refuses, is in ``test_main_job.py``.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from fairseq.sequence_generator import SequenceGenerator
from test_beam_search import obvious_beam_search
from torch import nn

from block_plugins import generation
from block_plugins.decoding import generator
from block_plugins.decoding.settings import BeamSettings, SpeculationSettings
from block_plugins.errors import UserError
from block_plugins.tasks.translation_lev_modified import TranslationLevModifiedConfig

float64_fairseq = tiny.float64_fairseq

SYMBOLS = tiny.dictionary(12)
PAD, EOS, UNK = SYMBOLS.pad(), SYMBOLS.eos(), SYMBOLS.unk()
STRATEGIES = [("gad", 5), ("AR", 5), ("left2right", 1), ("left2right", 5)]
ALL_STRATEGIES = [*STRATEGIES, ("drafter", 5), ("fairseq", 1)]
ODD_LINES = {
    "unknown characters": [UNK] * 4,
    "one unknown character": [UNK],
    "one token": [7],
    "known and unknown": [UNK, 5, UNK],
    "empty": [],
    "ordinary": [4, 9, 6, 5, 11, 8],
}

Translator = Callable[..., generator.Generator]


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch) -> Translator:
    """Makes a strategy's generator as the task does, for models that are given and not loaded.

    ``search`` are options of fairseq's generation group, all others are the task's.
    """

    def build(
        strategy: str, beam: int, verifier: Any, drafter: Any, *, search: dict[str, Any] | None = None, **options: Any
    ) -> generator.Generator:
        monkeypatch.setattr(generation.checkpoints, "load_model", lambda path, option, task: verifier)
        cfg = TranslationLevModifiedConfig()
        cfg.strategy, cfg.block_size = strategy, 4
        for name, value in options.items():
            setattr(cfg, name, value)
        given = SimpleNamespace(**{"beam": beam, **(search or {})})
        own = None
        if strategy == "fairseq":
            own = SequenceGenerator([verifier], SYMBOLS, beam_size=beam, **(search or {}))
        models = [drafter if strategy in ("gad", "drafter") else verifier]
        return generation.build_generator(
            SimpleNamespace(cfg=cfg, target_dictionary=SYMBOLS, generates=True), models, given, own
        )

    return build


def batch(lines: list[list[int]], left_pad: bool = True) -> dict[str, Any]:
    """The lines, EOS behind each, as fairseq pads them."""
    width = max(map(len, lines)) + 1
    rows = [[PAD] * (width - len(line) - 1) + [*line, EOS] for line in lines]
    if not left_pad:
        rows = [[*line, EOS] + [PAD] * (width - len(line) - 1) for line in lines]
    return {"net_input": {"src_tokens": torch.tensor(rows), "src_lengths": torch.tensor([len(x) + 1 for x in lines])}}


def expected(verifier: Any, line: list[int], strategy: str, beam: int, max_len: int, min_len: int = 1) -> list[int]:
    """The output for one line alone: from fairseq's search with one beam, from the definition with several."""
    sample = batch([line])
    if (strategy, beam) == ("left2right", 5):
        source = sample["net_input"]["src_tokens"]
        return obvious_beam_search(verifier, source, BeamSettings(beam), max_len, 0.0)[0][1]
    search = SequenceGenerator([verifier], SYMBOLS, beam_size=1, max_len_b=max_len, min_len=min_len)
    tokens: list[int] = search.generate([verifier], sample)[0][0]["tokens"].tolist()
    return tokens


def texts(found: list[Any]) -> list[list[int]]:
    return [hypotheses[0]["tokens"].tolist() for hypotheses in found]


def talkative(seed: int, **options: Any) -> Any:
    """A verifier that never ends by itself."""
    model = tiny.verifier(SYMBOLS, seed, **options)
    bias = torch.zeros(len(SYMBOLS), dtype=torch.float64)
    bias[EOS] = -1000.0
    model.decoder.output_projection.bias = nn.Parameter(bias)
    return model


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize(("strategy", "beam"), STRATEGIES)
def test_odd_lines_are_translated_alone_and_among_others(
    float64_fairseq: None, translator: Translator, strategy: str, beam: int, left_pad: bool
) -> None:
    lines, lengths = list(ODD_LINES.values()), set()
    for seed in range(3):
        verifier, drafter = tiny.verifier(SYMBOLS, seed), tiny.drafter(SYMBOLS, seed + 1)
        # with several beams --min-len stays out of the way: the definition doesn't know it
        search = {"max_len_b": 7, "min_len": 0 if beam == 5 and strategy == "left2right" else 1}
        wanted = [expected(verifier, line, strategy, beam, 7) if line else [EOS] for line in lines]
        together = translator(strategy, beam, verifier, drafter, search=search)
        assert texts(together.generate([], batch(lines, left_pad))) == wanted
        assert together.statistics.sentences == len(lines)
        for line, one in zip(lines, wanted, strict=True):
            alone = translator(strategy, beam, verifier, drafter, search=search)
            assert texts(alone.generate([], batch([line], left_pad))) == [one]
        lengths |= {len(one) for one in wanted}
    assert len(lengths) > 2  # the models say something, and not always the same


@pytest.mark.parametrize(("strategy", "beam"), ALL_STRATEGIES)
def test_a_batch_of_nothing_but_padding_gives_empty_translations(
    translator: Translator, strategy: str, beam: int
) -> None:
    verifier, drafter = tiny.verifier(SYMBOLS, 3), tiny.drafter(SYMBOLS, 4)
    for rows, width in ((1, 3), (1, 1), (1, 0), (2, 2)):
        tokens, lengths = torch.full((rows, width), PAD), torch.zeros(rows, dtype=torch.long)
        sample = {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
        for prefix in (None, torch.full((rows, 2), 5)):
            nothing = translator(strategy, beam, verifier, drafter)
            found = nothing.generate([], sample, prefix_tokens=prefix)
            assert texts(found) == [[EOS]] * rows
            assert float(found[0][0]["score"]) == 0.0
            assert nothing.statistics.sentences == rows
            assert "sentences" in str(nothing.statistics)  # no division by the iterations that there weren't


@pytest.mark.parametrize(("max_len_b", "positions"), [(0, 40), (1, 40), (6, 40), (200, 7), (200, 1)])
@pytest.mark.parametrize(("strategy", "beam"), STRATEGIES)
def test_a_target_that_reaches_the_length_limit_ends_there(
    float64_fairseq: None, translator: Translator, strategy: str, beam: int, max_len_b: int, positions: int
) -> None:
    """The limit may be an option's, or the verifier's positions; the drafter's weights are random."""
    verifier = talkative(5, max_target_positions=positions)
    drafter, max_len = tiny.drafter(SYMBOLS, 6), min(max_len_b, positions - 1)
    lines = [line for line in ODD_LINES.values() if line]
    search = {"max_len_b": max_len_b, "min_len": 0}
    found = texts(translator(strategy, beam, verifier, drafter, search=search).generate([], batch(lines)))
    assert found == [expected(verifier, line, strategy, beam, max_len, 0) for line in lines]
    assert all(len(tokens) == max_len + 1 and tokens.index(EOS) == max_len for tokens in found)


@pytest.mark.parametrize("wrong", [EOS, PAD])
@pytest.mark.parametrize("lookahead", ["constant", "auto"])
@pytest.mark.parametrize("block_size", [1, 3, 50])
def test_the_length_limit_is_reached_with_nothing_accepted(
    float64_fairseq: None, block_size: int, lookahead: str, wrong: int
) -> None:
    verifier, sample = talkative(7), batch([[4, 5, 6], [UNK], [8, 9]])
    drafter = tiny.ScriptedDrafter(
        SYMBOLS, {tiny.source(row, SYMBOLS): [] for row in sample["net_input"]["src_tokens"]}, 1.0, wrong
    )
    search = tiny.settings(SYMBOLS, max_len_b=9)
    decode = generator.gad(drafter, verifier, search, SpeculationSettings(block_size, lookahead=lookahead))
    gad = generator.Generator(decode, PAD, EOS)
    assert texts(gad.generate([], sample)) == [expected(verifier, x, "gad", 1, 9) for x in ([4, 5, 6], [UNK], [8, 9])]
    assert gad.statistics.accepted == 0 < gad.statistics.drafted
    assert gad.statistics.tokens == gad.statistics.iterations + gad.statistics.undrafted == 3 * 10


@pytest.mark.parametrize("tau", [0.0, 1.0, float("inf")])
def test_a_beta_beyond_the_vocabulary_means_all_of_it(translator: Translator, tau: float) -> None:
    verifier, drafter, sample = tiny.verifier(SYMBOLS, 3), tiny.drafter(SYMBOLS, 4), batch(list(ODD_LINES.values()))
    found = []
    for beta in (len(SYMBOLS), len(SYMBOLS) + 1, 10**30):
        gad = translator("gad", 5, verifier, drafter, beta=beta, tau=tau, search={"max_len_b": 9, "min_len": 0})
        found.append((texts(gad.generate([], sample)), gad.statistics.drafted, gad.statistics.accepted))
    assert found[0] == found[1] == found[2]
    if tau == float("inf"):  # then everything that may be said at all is good enough
        assert found[0][1] == found[0][2] > 0


@pytest.mark.parametrize("strategy", ["gad", "drafter"])
def test_a_block_fills_the_drafters_positions_but_is_no_longer(
    float64_fairseq: None, translator: Translator, strategy: str
) -> None:
    verifier = tiny.verifier(SYMBOLS, 3, max_target_positions=6)
    drafter, lines = tiny.drafter(SYMBOLS, 4, max_target_positions=9), [x for x in ODD_LINES.values() if x]
    largest = translator(strategy, 5, verifier, drafter, block_size=9).generate([], batch(lines))
    if strategy == "gad":
        assert texts(largest) == [expected(verifier, line, "gad", 5, 5) for line in lines]
    assert all(len(tokens) <= 9 and tokens[-1] == EOS for tokens in texts(largest))
    with pytest.raises(UserError, match=r"--block-size 10 is beyond the drafter's 9 positions: lower it"):
        translator(strategy, 5, verifier, drafter, block_size=10)


@pytest.mark.parametrize(("strategy", "beam"), [*STRATEGIES, ("drafter", 5)])
@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"max_len_b": 3, "min_len": 4}, "--min-len 4 is more than the longest output allowed here, 3 tokens"),
        ({"max_len_b": -2, "min_len": -9}, "--max-len-a 0 --max-len-b -2 allow -2 tokens: raise one of them"),
        ({"temperature": 0.0}, "--temperature must be more than 0, not 0.0"),
        ({"beam": 0}, "--beam must be at least 1, not 0"),
        ({"nbest": 0}, "--nbest must be at least 1, not 0"),
    ],
)
def test_numbers_that_leave_no_output_are_refused(
    translator: Translator, strategy: str, beam: int, search: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        translator(strategy, beam, tiny.verifier(SYMBOLS, 3), tiny.drafter(SYMBOLS, 4), search=search).generate(
            [], batch([[4, 5]])
        )
