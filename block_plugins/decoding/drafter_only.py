"""The drafter's own output, block by block, with no verifier: fast, and as good or bad as the drafter is."""

import numpy as np
import torch

from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafters import DraftState
from block_plugins.decoding.host import best, to_host
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.statistics import Statistics


def draft_all(
    drafter: DraftState,
    constraints: Constraints,
    hypotheses: Hypotheses,
    block_size: int,
    statistics: Statistics,
    device: torch.device,
) -> list[int]:
    """Fills ``hypotheses``; returns the number of blocks of each sentence. ``max_len`` must fit the drafter's
    positions.
    """
    blocks = np.zeros(hypotheses.open, dtype=np.int64)
    while hypotheses.open:
        length = hypotheses.length
        with statistics.phase("draft", device):
            draft = drafter.propose(hypotheses.prefix(), length, block_size, block_size)
            log_probs = constraints.log_probs(draft.logits, length, hypotheses.prefix, draft.tokens[:, :-1])
            scores, own = best(log_probs)  # [b, k] each
            tokens, token_scores = to_host(own, scores)
        blocks[hypotheses.rows] += 1
        statistics.iterations += hypotheses.open
        committed, keep = hypotheses.commit(tokens, token_scores, np.full(hypotheses.open, block_size))
        statistics.tokens += int(committed.sum())
        if keep is not None:
            rows = torch.from_numpy(keep).to(device)
            drafter.select(rows)
            constraints.select(rows)
    return blocks.tolist()
