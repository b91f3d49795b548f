"""The generator that fairseq's command line tools call: a batch in, hypotheses out, by the strategy asked for."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from block_plugins.decoding.ar_drafter import ARDrafter
from block_plugins.decoding.auto_lookahead import AutoLookahead
from block_plugins.decoding.beam_search import beam_search
from block_plugins.decoding.cached_decoder import DecoderLayers, open_decoder
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafter_only import draft_all
from block_plugins.decoding.drafters import BlockDrafter, Drafter, LateStart
from block_plugins.decoding.hypotheses import Hypotheses, Hypothesis, hypothesis
from block_plugins.decoding.left_to_right import greedy
from block_plugins.decoding.lookahead import (
    AdaptiveLookahead,
    ConfidenceLookahead,
    HeuristicLookahead,
    Lookahead,
    UniformLookahead,
)
from block_plugins.decoding.settings import BeamSettings, SamplingSettings, SearchSettings, SpeculationSettings
from block_plugins.decoding.speculative import History, speculate
from block_plugins.decoding.statistics import Statistics
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel

Decoded = list[list[Hypothesis]]
DecodeFunction = Callable[[Tensor, Tensor, Tensor | None, Statistics], Decoded]


class Generator:
    """Has the interface of fairseq's ``SequenceGenerator``; what differs between strategies is the decode function.

    A sentence without a single source token gets an empty translation, whatever the strategy.
    """

    def __init__(self, decode: DecodeFunction, pad: int, eos: int) -> None:
        self.decode = decode
        self.pad = pad
        self.eos = eos
        self.symbols_to_strip_from_output = {eos}
        self.statistics = Statistics()

    @torch.no_grad()
    def generate(
        self,
        models: Sequence[torch.nn.Module],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> Decoded:
        """One list of hypotheses for each sentence of ``sample``, in its order.

        ``models`` is what fairseq loaded from ``--path``: the decode function holds it already.
        """
        begin = time.perf_counter()
        src_tokens = sample["net_input"]["src_tokens"]
        src_lengths = sample["net_input"]["src_lengths"]
        filled = (src_tokens.ne(self.pad) & src_tokens.ne(self.eos)).any(1)
        if bool(filled.all()):
            hypotheses = self.decode(src_tokens, src_lengths, prefix_tokens, self.statistics)
        else:
            hypotheses = [[self._empty(src_tokens)] for _ in range(src_tokens.size(0))]
            rows = filled.nonzero().squeeze(1)
            if rows.numel() > 0:
                prefix = None if prefix_tokens is None else prefix_tokens[rows]
                decoded = self.decode(src_tokens[rows], src_lengths[rows], prefix, self.statistics)
                for row, of_row in zip(rows.tolist(), decoded, strict=True):
                    hypotheses[row] = of_row
        self.statistics.sentences += src_tokens.size(0)
        self.statistics.seconds += time.perf_counter() - begin
        return hypotheses

    def _empty(self, like: Tensor) -> Hypothesis:
        score = torch.zeros(1, device=like.device)
        return hypothesis(like.new_tensor([self.eos]), score[0], score)


def open_drafter(
    model: Any,
    search: SearchSettings,
    verifier: FairseqEncoderDecoderModel | None,
    int8: bool = False,
    layers: type[DecoderLayers] = DecoderLayers,
    temperature: float = 0.0,
) -> Drafter:
    """The drafter that ``model`` is, a block model or an autoregressive one; the others as for ``BlockDrafter``."""
    if isinstance(model, BlockNATModel):
        return BlockDrafter(model, search.pad, search.unk, search.eos, verifier, int8, layers, temperature)
    return ARDrafter(model, search.pad, search.eos, verifier, int8, layers, temperature)


def open_lookahead(name: str, block_size: int, threshold: float = 0.0) -> Lookahead:
    """The lookahead of that name, for drafts of at most ``block_size`` tokens; ``threshold`` is for "confidence"."""
    if name == "confidence":
        return ConfidenceLookahead(block_size, threshold)
    kinds: dict[str, Callable[[int], Lookahead]] = {
        "heuristic": HeuristicLookahead,
        "adaptive": AdaptiveLookahead,
        "auto": AutoLookahead,
    }
    return kinds.get(name, UniformLookahead)(block_size)


def gad(
    drafter: Drafter,
    verifier: FairseqEncoderDecoderModel,
    search: SearchSettings,
    speculation: SpeculationSettings,
    layers: type[DecoderLayers] = DecoderLayers,
    lookahead: Lookahead | None = None,
) -> DecodeFunction:
    """Block-speculative decoding: the verifier's output (beta 1), or close to it (top-beta within tau).

    A ``lookahead`` takes the place of the one that ``speculation`` names.
    """
    step_decoder = open_decoder(verifier.encoder, verifier.decoder, layers)
    # With beta > 1, and with sampling, the text depends on how much of a draft is verified, and must not depend on
    # measured times.
    greedy_output = speculation.beta == 1 and speculation.sampling is None
    name = speculation.lookahead if greedy_output or speculation.lookahead != "auto" else "constant"
    chosen = open_lookahead(name, speculation.block_size, speculation.threshold) if lookahead is None else lookahead

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        max_len = _max_len(search, src_tokens, step_decoder.positions)
        device = src_tokens.device
        with statistics.phase("verify", device):
            encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
            state = step_decoder.start(encoder_out, max_len + 1)
        capacity = max_len + speculation.block_size
        drafting = LateStart(lambda: drafter.start(src_tokens, src_lengths, capacity, encoder_out))
        hypotheses = Hypotheses(src_tokens.size(0), max_len, search.eos, speculation.block_size + 1)
        passes, history, traces = speculate(
            drafting, state, Constraints(search, max_len, prefix), hypotheses, chosen, speculation, statistics
        )
        output = _with_steps(_finished(hypotheses, search, src_tokens, verifier), passes, history)
        for row, trace in zip(output, traces, strict=True):
            row[0]["trace"] = trace
        return output

    return decode


def autoregressive(
    verifier: FairseqEncoderDecoderModel,
    search: SearchSettings,
    layers: type[DecoderLayers] = DecoderLayers,
    sampling: SamplingSettings | None = None,
) -> DecodeFunction:
    """The verifier's greedy output, or a draw from its distribution, one token a step."""
    step_decoder = open_decoder(verifier.encoder, verifier.decoder, layers)

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        max_len = _max_len(search, src_tokens, step_decoder.positions)
        with statistics.phase("verify", src_tokens.device):
            encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
            state = step_decoder.start(encoder_out, max_len + 1)
        hypotheses = Hypotheses(src_tokens.size(0), max_len, search.eos)
        steps = greedy(state, Constraints(search, max_len, prefix), hypotheses, statistics, sampling)
        return _with_steps(_finished(hypotheses, search, src_tokens, verifier), steps)

    return decode


def left_to_right_beam(
    verifier: FairseqEncoderDecoderModel,
    search: SearchSettings,
    beam: BeamSettings,
    layers: type[DecoderLayers] = DecoderLayers,
) -> DecodeFunction:
    """Beam search with alive and finished pools."""
    step_decoder = open_decoder(verifier.encoder, verifier.decoder, layers)

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        max_len = _max_len(search, src_tokens, step_decoder.positions)
        rows = torch.arange(src_tokens.size(0), device=src_tokens.device).repeat_interleave(beam.size)
        with statistics.phase("verify", src_tokens.device):
            encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
            state = step_decoder.start(encoder_out, max_len + 1, beam.size)
        constraints = Constraints(search, max_len, prefix)
        constraints.select(rows)
        return beam_search(state, constraints, src_tokens.size(0), beam, statistics)

    return decode


def drafter_alone(
    drafter: Drafter, model: FairseqEncoderDecoderModel, search: SearchSettings, block_size: int
) -> DecodeFunction:
    """The drafter's blocks as they are, not verified. ``model`` is the drafter's network."""

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        max_len = _max_len(search, src_tokens, model.decoder.max_positions())
        with statistics.phase("draft", src_tokens.device):
            drafting = drafter.start(src_tokens, src_lengths, max_len + block_size)
        hypotheses = Hypotheses(src_tokens.size(0), max_len, search.eos, block_size)
        blocks = draft_all(
            drafting, Constraints(search, max_len, prefix), hypotheses, block_size, statistics, src_tokens.device
        )
        return _with_steps(_finished(hypotheses, search, src_tokens, model), blocks)

    return decode


def fairseq_search(generator: SequenceGenerator) -> DecodeFunction:
    """fairseq's own search, so that its speed is reported like that of the others."""

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        sample = {"net_input": {"src_tokens": src_tokens, "src_lengths": src_lengths}}
        output: Decoded = generator.generate([], sample, prefix_tokens=prefix)
        statistics.tokens += sum(hypothesis[0]["tokens"].numel() for hypothesis in output)
        return output

    return decode


def _max_len(search: SearchSettings, src_tokens: Tensor, positions: int) -> int:
    max_len = search.max_len(src_tokens.size(1), positions)
    if max_len < 0:
        raise UserError(
            f"--max-len-a {search.max_len_a:g} --max-len-b {search.max_len_b} allow {max_len} tokens: raise one of them"
        )
    if search.min_len > max_len:
        raise UserError(
            f"--min-len {search.min_len} is more than the longest output allowed here, {max_len} tokens: "
            "lower it, or raise --max-len-a or --max-len-b"
        )
    return max_len


def _finished(hypotheses: Hypotheses, search: SearchSettings, like: Tensor, model: torch.nn.Module) -> Decoded:
    """The hypotheses on the device of ``like``, with scores in ``model``'s precision, but at least float32."""
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    return hypotheses.finish(search.length_penalty, search.normalize_scores, like.device, dtype)


def _with_steps(output: Decoded, steps: list[int], history: History | None = None) -> Decoded:
    """The hypotheses with what ``--print-step`` and ``--retain-iter-history`` print."""
    for row, count, drafts in zip(output, steps, history or [[] for _ in output], strict=True):
        row[0]["steps"] = count
        row[0]["history"] = [{"tokens": torch.from_numpy(tokens)} for tokens in drafts]
    return output
