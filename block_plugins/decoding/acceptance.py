"""Which draft tokens are kept, and what is committed behind them.

A draft token is kept by the top-beta/tau rule of Generalized Aggressive Decoding (Xia et al. 2023, section 3.2). With
beta 1 it is exact match with the verifier's best token, so the output is the verifier's greedy output.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from block_plugins.decoding.host import Array, best, through_first, to_host


class Verdict(NamedTuple):
    """What the verifier says about a draft, on the host; n = k + 1."""

    draft: Array  # [B, k] the draft's tokens
    kept: Array  # [B, k] true where the draft's token may be committed if all before it are
    tokens: Array  # [B, n] what is committed: the draft's token where it is kept, otherwise the verifier's own
    scores: Array  # [B, n] the verifier's log-probabilities of these


def verdict(scores: Tensor, draft: Tensor, kept: Tensor, own: Tensor) -> Verdict:
    """What comes of ``draft`` ``[B, k]`` where ``kept`` ``[B, k]``, and of the verifier's ``own`` ``[B, k + 1]``
    elsewhere; ``scores`` as for ``judge``.
    """
    tokens = torch.cat([torch.where(kept, draft, own[:, :-1]), own[:, -1:]], dim=1)
    return Verdict(*to_host(draft, kept, tokens, scores.gather(2, tokens.unsqueeze(2)).squeeze(2)))


def judge_exactly(scores: Tensor, draft: Tensor) -> Verdict:
    """Exact match of ``draft`` ``[B, k]``, which may have no columns, with the verifier's best tokens; ``scores`` as
    for ``judge``.
    """
    own_scores, own = best(scores)
    drafted, own_tokens, token_scores = to_host(draft, own, own_scores)
    return Verdict(drafted, drafted == own_tokens[:, :-1], own_tokens, token_scores)


def judge(scores: Tensor, draft: Tensor, valid: Tensor, beta: int, tau: float) -> Verdict:
    """Top-beta/tau acceptance of ``draft`` ``[B, k]``, which may have no columns.

    ``scores`` ``[B, k + 1, V]`` are the verifier's constrained log-probabilities. Where ``valid`` ``[B, k]`` is false
    there is no draft, and the token is the verifier's own.
    """
    return verdict(scores, draft, acceptable(scores, draft, beta, tau) & valid, best(scores)[1])


def acceptable(scores: Tensor, draft: Tensor, beta: int, tau: float) -> Tensor:
    """Which tokens of ``draft`` ``[B, k]`` may be kept, ``[B, k]``.

    ``scores`` ``[B, k + 1, V]`` are the verifier's constrained log-probabilities. A token may be kept that is among the
    ``beta`` best at its position, whose score is within ``tau`` of the best one (log-probabilities differ as logits
    do), and that isn't forbidden.
    """
    scores = scores[:, : draft.size(1)]
    top, candidates = scores.topk(min(beta, scores.size(-1)), dim=-1)  # [B, k, beta]
    own = scores.gather(2, draft.unsqueeze(2))  # [B, k, 1]
    near = (top[..., :1] - own <= tau) & own.isfinite()
    return ((candidates == draft.unsqueeze(2)).any(-1, keepdim=True) & near).squeeze(2)


def accepted_length(kept: Array, draft_length: Array) -> Array:
    """How many leading tokens are kept, ``[B]``: up to the first that may not be (``kept`` ``[B, k]``), at most
    ``draft_length`` ``[B]``.
    """
    length: Array = (through_first(~kept) - 1).clip(max=draft_length)
    return length
