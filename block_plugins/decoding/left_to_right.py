"""Greedy decoding, one token a step, on the cached decoder."""

import torch

from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.statistics import Statistics


def greedy(
    verifier: DecoderState, constraints: Constraints, hypotheses: Hypotheses, statistics: Statistics
) -> list[int]:
    """Fills ``hypotheses`` with the verifier's best token at each step; returns each sentence's number of steps."""
    device = hypotheses.rows.device
    while hypotheses.open:
        with statistics.phase("verify", device):
            length, shortest, longest = hypotheses.length, min(hypotheses.lengths), max(hypotheses.lengths)
            logits = verifier.step(hypotheses.last().unsqueeze(1), length, longest + 1)
            scores, tokens = constraints.log_probs(logits, length, shortest, longest).max(-1)  # [b, 1] each
        statistics.tokens += hypotheses.open
        keep, _ = hypotheses.commit(tokens, scores, torch.ones_like(length))
        if keep is not None:
            verifier.select(keep)
            constraints.select(keep)
    statistics.iterations += sum(hypotheses.final_lengths)
    return hypotheses.final_lengths
