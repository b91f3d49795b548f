"""Which draft tokens are kept: the top-beta/tau rule of Generalized Aggressive Decoding (Xia et al. 2023, section 3.2).

With beta 1 it is exact match with the verifier's best token, so the output is the verifier's greedy output.
"""

from torch import Tensor

from block_plugins.decoding.host import Array, through_first


def acceptable(scores: Tensor, draft: Tensor, beta: int, tau: float) -> tuple[Tensor, Tensor]:
    """Which tokens of ``draft`` ``[B, k]`` may be kept, and their scores, both ``[B, k]``.

    ``scores`` ``[B, k + 1, V]`` are the verifier's constrained log-probabilities. A token may be kept that is among the
    ``beta`` best at its position, whose score is within ``tau`` of the best one (log-probabilities differ as logits
    do), and that isn't forbidden.
    """
    scores = scores[:, : draft.size(1)]
    top, candidates = scores.topk(min(beta, scores.size(-1)), dim=-1)  # [B, k, beta]
    own = scores.gather(2, draft.unsqueeze(2))  # [B, k, 1]
    near = (top[..., :1] - own <= tau) & own.isfinite()
    return ((candidates == draft.unsqueeze(2)).any(-1, keepdim=True) & near).squeeze(2), own.squeeze(2)


def accepted_length(kept: Array, draft_length: Array) -> Array:
    """How many leading tokens are kept, ``[B]``: up to the first that may not be (``kept`` ``[B, k]``), at most
    ``draft_length`` ``[B]``.
    """
    length: Array = (through_first(~kept) - 1).clip(max=draft_length)
    return length
