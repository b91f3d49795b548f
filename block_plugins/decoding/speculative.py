"""The loop: draft -> verify -> accept -> commit (Generalized Aggressive Decoding, Xia et al. 2023, algorithm 1)."""

import torch
import torch.nn.functional as F
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
    iterations = [0] * hypotheses.open
    history: History = [[] for _ in iterations]
    drafted = kept = added = torch.zeros((), dtype=torch.long, device=hypotheses.rows.device)
    device = drafted.device
    while hypotheses.open:
        sentences, length, shortest, longest = hypotheses.sentences, hypotheses.length, hypotheses.shortest, hypotheses.longest
        with statistics.phase("draft", device):
            draft = drafter.propose(hypotheses.prefix(), length, longest, settings.block_size, constraints.max_len - length)
            tokens = draft.tokens
            k = tokens.size(1)

        with statistics.phase("verify", device):
            logits = verifier.step(torch.cat([hypotheses.last().unsqueeze(1), tokens], dim=1), length, longest + k + 1)
            scores = constraints.log_probs(logits, length, shortest, longest)
            best = scores.argmax(-1)  # [b, k + 1]
            accepted = accepted_length(scores, best, tokens, draft.length, settings.beta, settings.tau)

        # Behind the accepted tokens comes the verifier's best one: the correction, or one more where all were accepted.
        last = accepted.unsqueeze(1)
        tokens = F.pad(tokens, (0, 1)).scatter(1, last, best.gather(1, last))
        chosen = scores.gather(2, tokens.unsqueeze(2)).squeeze(2)

        for row, sentence in enumerate(sentences):
            iterations[sentence] += 1
            if settings.keep_drafts:
                history[sentence].append(draft.tokens[row, : int(draft.length[row])])
        committed, keep = hypotheses.commit(tokens, chosen, accepted + 1)
        drafted = drafted + draft.length.sum()
        # an accepted EOS ends the row before the verifier's own token
        kept = kept + torch.minimum(accepted, committed).sum()
        added = added + committed.sum()
        if keep is not None:
            drafter.select(keep)
            verifier.select(keep)
            constraints.select(keep)
    statistics.iterations += sum(iterations)
    statistics.drafted += int(drafted)
    statistics.accepted += int(kept)
    statistics.tokens += int(added)
    return iterations, history
