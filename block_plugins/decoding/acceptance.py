"""Which draft tokens are kept: the top-beta/tau rule of Generalized Aggressive Decoding (Xia et al. 2023, section 3.2).

With beta 1 it is exact match with the verifier's best token, so the output is the verifier's greedy output.
"""

import torch
from torch import Tensor


def accepted_length(scores: Tensor, best: Tensor, draft: Tensor, draft_length: Tensor, beta: int, tau: float) -> Tensor:
    """How many leading draft tokens of each row are kept, ``[B]``.

    ``scores`` ``[B, k + 1, V]`` are the verifier's constrained log-probabilities, ``best`` ``[B, k + 1]`` its best
    tokens, ``draft`` ``[B, k]`` the draft, of which the first ``draft_length`` ``[B]`` tokens count. A token is kept
    while it is among the ``beta`` best at its position, its score is within ``tau`` of the best one (log-probabilities
    differ as logits do), it isn't forbidden, and all before it were kept.
    """
    k = draft.size(1)
    scores = scores[:, :k]
    if beta == 1:
        kept = draft == best[:, :k]
    else:
        top, candidates = scores.topk(min(beta, scores.size(-1)), dim=-1)  # [B, k, beta]
        own = scores.gather(2, draft.unsqueeze(2))  # [B, k, 1]
        near = (top[..., :1] - own <= tau) & own.isfinite()
        kept = ((candidates == draft.unsqueeze(2)).any(-1, keepdim=True) & near).squeeze(2)
    # the first position that isn't kept, or the draft's end
    first_wrong = torch.where(kept, k, torch.arange(k, device=draft.device)).amin(1)
    return torch.minimum(first_wrong, draft_length)
