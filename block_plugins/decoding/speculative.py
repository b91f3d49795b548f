"""The loop: draft -> verify -> accept -> commit (Generalized Aggressive Decoding, Xia et al. 2023, algorithm 1)."""

import time

import torch
from torch import Tensor

from block_plugins.decoding.acceptance import accepted_length
from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafters import DraftState
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.lookahead import Lookahead
from block_plugins.decoding.settings import SpeculationSettings
from block_plugins.decoding.statistics import Statistics

History = list[list[Tensor]]


def speculate(
    drafter: DraftState,
    verifier: DecoderState,
    constraints: Constraints,
    hypotheses: Hypotheses,
    lookahead: Lookahead,
    settings: SpeculationSettings,
    statistics: Statistics,
) -> tuple[list[int], History]:
    """Fills ``hypotheses``; returns for each sentence its number of verifier passes and its drafts.

    An iteration sends each row's draft through the verifier in one pass, keeps the longest accepted prefix and adds the
    verifier's own token behind it. Rows have lengths of their own; a finished row leaves the batch with its caches.
    """
    device = hypotheses.rows.device
    passes = [0] * hypotheses.open
    history: History = [[] for _ in passes]
    newest = 0  # the most tokens that a row can have got since the last draft
    while hypotheses.open:
        begin = time.perf_counter()
        sentences, lengths, length = hypotheses.sentences, hypotheses.lengths, hypotheses.length
        k = lookahead.choose(len(sentences))
        tokens = hypotheses.last().unsqueeze(1)  # [b, 1]: what the verifier hasn't seen yet
        if k > 0:
            with statistics.phase("draft", device):
                budget = constraints.max_len - length
                draft = drafter.propose(hypotheses.prefix(), length, lengths, newest, settings.block_size, budget)
                sent = draft.length.clamp(max=k)
                tokens = torch.cat([tokens, draft.tokens[:, :k]], dim=1)  # [b, k + 1]
            newest = 0

        with statistics.phase("verify", device):
            logits = verifier.step(tokens, length, max(lengths) + k + 1)
            scores = constraints.log_probs(logits, length, min(lengths), max(lengths))
            best = scores.argmax(-1)  # [b, k + 1]
            if k > 0:
                accepted = accepted_length(scores, best, tokens[:, 1:], sent, settings.beta, settings.tau)
            else:
                accepted = sent = torch.zeros_like(length)

        # Behind the accepted tokens comes the verifier's best one: the correction, or one more where all were accepted.
        last = accepted.unsqueeze(1)
        tokens = tokens.roll(-1, dims=1).scatter(1, last, best.gather(1, last))
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2)
        keep, (accepted_counts, sent_counts) = hypotheses.commit(tokens, chosen, accepted + 1, accepted, sent)
        newest += k + 1
        gained = [new - old for new, old in zip(hypotheses.reached, lengths, strict=True)]

        statistics.tokens += sum(gained)
        if k > 0:
            statistics.iterations += len(sentences)
            statistics.drafted += sum(sent_counts)
            # an accepted EOS ends the row before the verifier's own token
            statistics.accepted += sum(map(min, accepted_counts, gained))
        else:
            statistics.undrafted += len(sentences)
        for row, sentence in enumerate(sentences):
            passes[sentence] += 1
            if k > 0 and settings.keep_drafts:
                history[sentence].append(draft.tokens[row, : sent_counts[row]])
        if keep is not None:
            drafter.select(keep)
            verifier.select(keep)
            constraints.select(keep)
        lookahead.record(len(sentences), k, gained, time.perf_counter() - begin)
    return passes, history
