"""The loop: draft -> verify -> accept -> commit (Generalized Aggressive Decoding, Xia et al. 2023, algorithm 1)."""

import torch
from torch import Tensor

from block_plugins.decoding.acceptance import accepted_length
from block_plugins.decoding.cached_decoder import DecoderState
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.drafters import DraftState
from block_plugins.decoding.hypotheses import Hypotheses
from block_plugins.decoding.settings import SpeculationSettings
from block_plugins.decoding.statistics import Statistics

History = list[list[Tensor]]


def speculate(
    drafter: DraftState,
    verifier: DecoderState,
    constraints: Constraints,
    hypotheses: Hypotheses,
    settings: SpeculationSettings,
    statistics: Statistics,
) -> tuple[list[int], History]:
    """Fills ``hypotheses``; returns for each sentence its number of iterations and its drafts.

    An iteration sends each row's draft through the verifier in one pass, keeps the longest accepted prefix and adds the
    verifier's own token behind it. Rows have lengths of their own; a finished row leaves the batch with its caches.
    """
    sentences = hypotheses.open
    device = hypotheses.tokens.device
    iterations = [0] * sentences
    history: History = [[] for _ in range(sentences)]

    while hypotheses.open:
        length = hypotheses.length
        rows = hypotheses.rows.tolist()
        with statistics.phase("draft", device):
            draft = drafter.propose(
                hypotheses.prefix(), length, hypotheses.longest, settings.block_size, constraints.max_len - length
            )
            sent = draft.length.tolist()
            k = max(sent)  # nobody needs the columns that no row sends
            tokens = draft.tokens[:, :k]

        with statistics.phase("verify", device):
            logits = verifier.step(
                torch.cat([hypotheses.last().unsqueeze(1), tokens], dim=1), length, hypotheses.longest + k + 1
            )
            scores = constraints.log_probs(logits, length)
            accepted = accepted_length(scores, tokens, draft.length, settings.beta, settings.tau)

        # Behind the accepted tokens comes the verifier's best one: the correction, or one more where all were accepted.
        own = scores.gather(1, accepted[:, None, None].expand(-1, 1, scores.size(2))).squeeze(1).argmax(-1)
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.size(0), 1)], dim=1)
        tokens = tokens.scatter(1, accepted.unsqueeze(1), own.unsqueeze(1))
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2)

        for row, size, drafted in zip(rows, sent, draft.tokens, strict=True):
            iterations[row] += 1
            history[row].append(drafted[:size])
        committed, keep = hypotheses.commit(tokens, chosen, accepted + 1)
        # an accepted EOS ends the row before the verifier's own token
        kept, added = torch.stack([torch.minimum(accepted, committed), committed]).sum(1).tolist()
        statistics.iterations += len(rows)
        statistics.drafted += sum(sent)
        statistics.accepted += kept
        statistics.tokens += added
        if keep is not None:
            drafter.select(keep)
            verifier.select(keep)
            constraints.select(keep)
    return iterations, history
