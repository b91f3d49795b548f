"""Greedy decoding and sampling, one token a step, on the cached decoder."""

import numpy as np
import torch

from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.host import Array, best, to_host
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.sampling import distribution, draw
from block_plugins.decoding.settings import SamplingSettings
from block_plugins.decoding.statistics import Statistics


def next_tokens(
    verifier: DecoderState, constraints: Constraints, hypotheses: Hypotheses, sampling: SamplingSettings | None = None
) -> tuple[Array, Array]:
    """The verifier's best token for each open row, or one drawn from its distribution where there is ``sampling``, and
    its log-probability, ``[b, 1]`` each.
    """
    last = torch.from_numpy(hypotheses.last()).to(verifier.device)
    logits = verifier.step(last.unsqueeze(1), hypotheses.length)
    log_probs = constraints.log_probs(logits, hypotheses.length, hypotheses.prefix)  # [b, 1, V]
    if sampling is None:
        scores, tokens = best(log_probs)
    else:
        tokens = draw(distribution(log_probs, sampling))
        scores = log_probs.gather(2, tokens.unsqueeze(2)).squeeze(2)
    on_host, scores_on_host = to_host(tokens, scores)
    return on_host, scores_on_host


def greedy(
    verifier: DecoderState,
    constraints: Constraints,
    hypotheses: Hypotheses,
    statistics: Statistics,
    sampling: SamplingSettings | None = None,
) -> list[int]:
    """Fills ``hypotheses`` with ``next_tokens``, one at a step; returns each sentence's number of steps."""
    device = verifier.device
    while hypotheses.open:
        with statistics.phase("verify", device):
            tokens, scores = next_tokens(verifier, constraints, hypotheses, sampling)
        statistics.tokens += hypotheses.open
        _, keep = hypotheses.commit(tokens, scores, np.ones(hypotheses.open, dtype=np.int64))
        if keep is not None:
            rows = torch.from_numpy(keep).to(device)
            verifier.select(rows)
            constraints.select(rows)
    steps: list[int] = hypotheses.final_length.tolist()
    statistics.iterations += sum(steps)
    return steps
