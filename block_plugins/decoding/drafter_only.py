"""The drafter's own output, block by block, with no verifier: fast, and as good or bad as the drafter is."""

from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafters import DraftState
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.statistics import Statistics


def draft_all(
    drafter: DraftState, constraints: Constraints, hypotheses: Hypotheses, block_size: int, statistics: Statistics
) -> list[int]:
    """Fills ``hypotheses``; returns the number of blocks of each sentence. ``max_len`` must fit the drafter's
    positions.
    """
    device = hypotheses.rows.device
    blocks = [0] * hypotheses.open
    while hypotheses.open:
        length = hypotheses.length
        rows = hypotheses.sentences
        with statistics.phase("draft", device):
            shortest, longest = min(hypotheses.lengths), max(hypotheses.lengths)
            budget = constraints.max_len - length
            draft = drafter.propose(hypotheses.prefix(), length, hypotheses.lengths, block_size, block_size, budget)
            scores, tokens = constraints.log_probs(draft.logits, length, shortest, longest).max(-1)  # [b, k] each
        lengths = hypotheses.lengths
        keep, _ = hypotheses.commit(tokens, scores, length.new_full((len(rows),), block_size))
        for row in rows:
            blocks[row] += 1
        statistics.iterations += len(rows)
        statistics.tokens += sum(hypotheses.reached) - sum(lengths)
        if keep is not None:
            drafter.select(keep)
            constraints.select(keep)
    return blocks
