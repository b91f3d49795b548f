"""The loop: draft -> look ahead -> verify -> accept -> commit.

Generalized Aggressive Decoding (Xia et al. 2023, algorithm 1), with a lookahead between draft and verification. Models
and scores live on the device, the bookkeeping on the host: each iteration brings its few numbers over in one copy.
"""

import time

import numpy as np
import torch
from torch import Tensor

from block_plugins.decoding.acceptance import accepted_length, judge, judge_exactly
from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafters import Draft, DraftState
from block_plugins.decoding.host import Array, through_first
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.left_to_right import next_tokens
from block_plugins.decoding.lookahead import Lookahead
from block_plugins.decoding.sampling import judge_by_chance
from block_plugins.decoding.settings import SpeculationSettings
from block_plugins.decoding.statistics import Statistics
from block_plugins.decoding.trace import Recorder, Trace

History = list[list[Array]]


def speculate(
    drafter: DraftState,
    verifier: DecoderState,
    constraints: Constraints,
    hypotheses: Hypotheses,
    lookahead: Lookahead,
    settings: SpeculationSettings,
    statistics: Statistics,
) -> tuple[list[int], History, list[Trace]]:
    """Fills ``hypotheses``; returns for each sentence its number of verifier passes, its drafts and its trace, the last
    two empty where ``settings`` don't ask for them.

    An iteration sends each row's draft through the verifier in one pass, keeps the longest accepted prefix and adds the
    verifier's own token behind it. Rows have lengths of their own; a finished row leaves the batch with its caches.
    """
    device = verifier.device
    passes = np.zeros(hypotheses.open, dtype=np.int64)
    history: History = [[] for _ in passes]
    recorder = Recorder(hypotheses.open, statistics)
    lookahead.start(hypotheses.open)
    newest = 0  # the most tokens that a row can have got since the last draft
    while hypotheses.open:
        begin = time.perf_counter()
        rows, length = hypotheses.rows, hypotheses.length
        lengths = lookahead.choose()
        k = width = int(lengths.max())
        draft: Draft | None = None
        if k == 0:
            with statistics.phase("verify", device):
                tokens, scores = next_tokens(verifier, constraints, hypotheses, settings.sampling)
            sent = accepted = lengths
            statistics.undrafted += len(rows)
        else:
            with statistics.phase("draft", device):
                draft = drafter.propose(hypotheses.prefix(), length, newest, settings.block_size, k, lookahead.goes_on)
                limit = np.minimum(draft.length, lengths)
                width = int(limit.max())
                drafted = draft.tokens[:, :width]
            newest = 0
            # what is beyond the length limit can never be committed, nor what stands behind a drafted EOS
            limit = np.minimum(limit, constraints.max_len - length)

            with statistics.phase("verify", device):
                last = torch.from_numpy(hypotheses.last()).to(device).unsqueeze(1)  # [b, 1]: new to the verifier
                logits = verifier.step(torch.cat([last, drafted], dim=1), length)  # [b, width + 1, V]
                log_probs = constraints.log_probs(logits, length, hypotheses.prefix, drafted)
                if settings.sampling is None and settings.beta == 1:
                    verdict = judge_exactly(log_probs, drafted)
                else:
                    valid = _valid(drafted, limit, hypotheses.eos)
                    if settings.sampling is None:
                        verdict = judge(log_probs, drafted, valid, settings.beta, settings.tau)
                    else:
                        probs = None if draft.probs is None else draft.probs[:, :width]
                        verdict = judge_by_chance(log_probs, drafted, probs, valid, settings.sampling)
                tokens, scores = verdict.tokens, verdict.scores
                sent = accepted = limit
                if width > 0:
                    sent = through_first(verdict.draft == hypotheses.eos).clip(max=limit)
                    accepted = accepted_length(verdict.kept, sent)

        committed, keep = hypotheses.commit(tokens, scores, accepted + 1)
        newest += width + 1
        passes[rows] += 1
        statistics.tokens += int(committed.sum())
        if k > 0:
            accepted = np.minimum(accepted, committed)  # an accepted EOS ends the row before the verifier's own token
            statistics.iterations += len(rows)
            statistics.drafted += int(sent.sum())
            statistics.accepted += int(accepted.sum())
            if settings.keep_drafts:
                for row, of_row, count in zip(rows, verdict.draft, sent, strict=True):
                    history[row].append(of_row[:count].copy())
        lookahead.record(sent, accepted, committed, width, time.perf_counter() - begin)
        if settings.trace:
            recorder.add(rows, draft, sent, accepted, committed, tokens)
        if keep is not None:
            lookahead.select(keep)
            staying = torch.from_numpy(keep).to(device)
            drafter.select(staying)
            verifier.select(staying)
            constraints.select(staying)
    return passes.tolist(), history, recorder.traces


def _valid(drafted: Tensor, limit: Array, eos: int) -> Tensor:
    """Which tokens of ``drafted`` ``[b, n]`` count: the first ``limit`` ``[b]``, and none behind an EOS, ``[b, n]``."""
    ends = drafted == eos
    ended = ends.cumsum(1) - ends.long() > 0
    place = torch.arange(drafted.size(1), device=drafted.device)
    return (place < torch.from_numpy(limit).to(drafted.device).unsqueeze(1)) & ~ended
