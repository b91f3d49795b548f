"""Beam search with pools of alive and finished hypotheses, on the cached decoder.

The pools and the length normalisation are those of Pegasus (Zhang et al. 2020) and BigBird (Zaheer et al. 2020): each
step takes the 2M best continuations of the M alive hypotheses; those that end compete for the M places of the finished
pool, the M best of the others stay alive. Differences from theirs:

- what fairseq's search does to the scores (``Constraints``) holds here too;
- a hypothesis that the length limit ends is no finished one: it is returned only behind those that ended by themselves;
- a sentence leaves the batch as soon as none of its alive hypotheses can still enter the n best, which is proven by a
  bound, not guessed.

Shapes: B sentences still open, M beams, V tokens, L columns.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.hypotheses import Hypothesis, hypothesis
from block_plugins.decoding.settings import BeamSettings
from block_plugins.decoding.statistics import Statistics

OUT_OF_RANGE = 1e3
"""What a finished hypothesis loses whose length is not within the bounds."""


@dataclass
class Pool:
    """Hypotheses ``[B, M]``: tokens and their log-probabilities ``[B, M, L]``, scores and lengths ``[B, M]``.

    A score of -inf marks an empty place.
    """

    tokens: Tensor
    log_probs: Tensor
    score: Tensor
    length: Tensor

    def best(self, score: Tensor, count: int) -> "Pool":
        """The ``count`` hypotheses with the greatest ``score`` ``[B, M]``, which becomes theirs, best first."""
        score, index = score.topk(min(count, score.size(1)), dim=1)
        return self.at(index, score)

    def at(self, index: Tensor, score: Tensor) -> "Pool":
        """The hypotheses ``index`` ``[B, n]``, with new scores ``[B, n]``."""
        return Pool(_rows(self.tokens, index), _rows(self.log_probs, index), score, self.length.gather(1, index))

    def joined(self, other: "Pool") -> "Pool":
        """Both pools' hypotheses side by side."""
        return Pool(
            *(
                torch.cat([getattr(self, name), getattr(other, name)], dim=1)
                for name in ("tokens", "log_probs", "score", "length")
            )
        )

    def select(self, sentences: Tensor) -> "Pool":
        """The given sentences' hypotheses."""
        return Pool(self.tokens[sentences], self.log_probs[sentences], self.score[sentences], self.length[sentences])


def normalised(total: Tensor, length: int, settings: BeamSettings) -> Tensor:
    """The score of summed log-probabilities ``total`` at a length that counts the EOS (Wu et al. 2016, equation 14)."""
    score = total / settings.norm(length)
    too_long = settings.longest >= 0 and length > settings.longest
    return score - OUT_OF_RANGE if too_long or length < settings.shortest else score


def beam_search(
    verifier: DecoderState, constraints: Constraints, rows: int, settings: BeamSettings, statistics: Statistics
) -> list[list[Hypothesis]]:
    """The ``settings.nbest`` best hypotheses of each of ``rows`` sentences, best first.

    ``verifier`` and ``constraints`` hold M rows for each sentence, side by side.
    """
    search, beams, max_len = constraints.settings, settings.size, constraints.max_len
    device, dtype = verifier.device, torch.promote_types(verifier.dtype, torch.float32)
    # No bound holds where a token can be worth more than probability 1.
    can_stop_early = search.unk_penalty >= 0

    def empty() -> Pool:
        shape = (rows, beams, max_len + 1)
        return Pool(
            torch.full(shape, search.eos, dtype=torch.long, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
            torch.full((rows, beams), -math.inf, dtype=dtype, device=device),
            torch.zeros(rows, beams, dtype=torch.long, device=device),
        )

    alive, finished = empty(), empty()
    alive.score[:, 0] = 0.0  # all beams begin alike, so only the first may be continued
    last = torch.full((rows * beams, 1), search.eos, dtype=torch.long, device=device)
    output: list[list[Hypothesis]] = [[] for _ in range(rows)]
    sentences = list(range(rows))
    for step in range(max_len + 1):
        with statistics.phase("verify", device):
            start = np.full(last.size(0), step)
            scores = constraints.log_probs(verifier.step(last, start), start)  # [B * M, 1, V]
        statistics.iterations += len(sentences)
        candidates, beam = _continue(alive, scores.view(len(sentences), beams, -1), step)
        ends = candidates.tokens[:, :, step] == search.eos
        if step == max_len:  # every candidate ends here, and not by itself
            forced = candidates.best(normalised(candidates.score, step + 1, settings), beams)
            _hand_out(output, sentences, finished, forced, settings.nbest)
            break
        ended = normalised(candidates.score, step + 1, settings).masked_fill(~ends, -math.inf)
        pool = finished.joined(candidates)
        finished = pool.best(torch.cat([finished.score, ended], dim=1), beams)
        going_on, index = candidates.score.masked_fill(ends, -math.inf).topk(beams, dim=1)
        alive = candidates.at(index, going_on)

        # A hypothesis only loses by going on; at best it keeps what it has and is divided by the greatest norm to come.
        bound = going_on[:, 0] / max(settings.norm(length) for length in range(step + 2, max_len + 2))
        worst = finished.score[:, settings.nbest - 1]
        decided = (bound <= worst) & worst.isfinite() if can_stop_early else torch.zeros_like(bound, dtype=torch.bool)
        order = torch.arange(len(sentences), device=device).unsqueeze(1) * beams + beam.gather(1, index)
        last = alive.tokens[:, :, step].reshape(-1, 1)
        done: list[bool] = decided.tolist()
        if not any(done):
            verifier.reorder(order.view(-1), step + 1)
            continue
        leaving = [row for row, is_done in enumerate(done) if is_done]
        _hand_out(output, [sentences[row] for row in leaving], finished.select(decided), None, settings.nbest)
        if all(done):
            break
        stay = ~decided
        sentences = [sentence for sentence, is_done in zip(sentences, done, strict=True) if not is_done]
        alive, finished, last = alive.select(stay), finished.select(stay), last.view(-1, beams)[stay].reshape(-1, 1)
        verifier.select(order[stay].view(-1))
        constraints.select(order[stay].view(-1))
    statistics.tokens += sum(len(hypotheses[0]["tokens"]) for hypotheses in output)
    return output


def _continue(alive: Pool, scores: Tensor, step: int) -> tuple[Pool, Tensor]:
    """The 2M best continuations by ``scores`` ``[B, M, V]``, and the beams they continue, ``[B, 2M]``."""
    _, beams, vocabulary = scores.shape
    totals = (alive.score.unsqueeze(2) + scores).flatten(1)
    total, index = totals.topk(min(2 * beams, totals.size(1)), dim=1)
    beam, token = index // vocabulary, index % vocabulary
    tokens, log_probs = _rows(alive.tokens, beam), _rows(alive.log_probs, beam)
    tokens[:, :, step] = token
    log_probs[:, :, step] = scores.flatten(1).gather(1, index)
    return Pool(tokens, log_probs, total, torch.full_like(token, step + 1)), beam


def _hand_out(
    output: list[list[Hypothesis]], sentences: list[int], finished: Pool, forced: Pool | None, count: int
) -> None:
    """Writes the ``count`` best hypotheses of each sentence: finished ones first, then those the limit ended."""
    pool = finished if forced is None else finished.joined(forced)
    for row, sentence in enumerate(sentences):
        scores, lengths = pool.score[row].tolist(), pool.length[row].tolist()
        places = [place for place, score in enumerate(scores) if score > -math.inf]
        for place in places[:count]:
            length = lengths[place]
            tokens, log_probs = pool.tokens[row, place, :length], pool.log_probs[row, place, :length]
            output[sentence].append(hypothesis(tokens, pool.score[row, place], log_probs, steps=length))


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """The hypotheses ``index`` ``[B, n]`` of ``x`` ``[B, M, L]``."""
    return x.gather(1, index.unsqueeze(2).expand(-1, -1, x.size(2)))
