"""Speculative sampling: draft tokens are kept or replaced by chance so that the output follows the verifier's own law.

A token x that was drawn from q is kept with probability min(1, p(x) / q(x)); the first that isn't is replaced by a draw
from max(0, p - q), normalised; where all are kept another one is drawn from p (Leviathan et al. 2023, arXiv 2211.17192,
algorithm 1 and appendix A.1). p is the verifier's distribution with all that changes it: temperature, constraints,
top-k or top-p. Everything is computed in float32 at least.
"""

import torch
from torch import Tensor

from block_plugins.decoding.acceptance import Verdict, verdict
from block_plugins.decoding.host import argbest
from block_plugins.decoding.settings import SamplingSettings


def distribution(scores: Tensor, sampling: SamplingSettings) -> Tensor:
    """Probabilities ``[..., V]`` for constrained log-probabilities ``scores`` ``[..., V]``, at least float32.

    As in fairseq, top-p keeps the fewest best tokens whose probabilities add up to it, and goes before top-k.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sampling.topp > 0:
        ordered, index = scores.softmax(-1).sort(-1, descending=True)
        enough = ordered.cumsum(-1) - ordered >= sampling.topp  # without the token itself
        scores = scores.masked_fill(enough.gather(-1, index.argsort(-1)), float("-inf"))
    elif sampling.topk > 0:
        top, index = scores.topk(min(sampling.topk, scores.size(-1)), dim=-1)
        scores = torch.full_like(scores, float("-inf")).scatter(-1, index, top)
    return scores.softmax(-1)


def draw(weights: Tensor) -> Tensor:
    """A token ``[...]`` for each row of ``weights`` ``[..., V]``, which need not add up to 1."""
    return weights.flatten(0, -2).multinomial(1).view(weights.shape[:-1])


def propose_by_chance(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor | None]:
    """A drafter's tokens ``[B, k]`` for its ``logits`` ``[B, k, V]``, and what they were drawn from, ``[B, k, V]``.

    Temperature 0 takes the best tokens; then there is nothing that they were drawn from.
    """
    if temperature == 0:
        return argbest(logits), None
    probs = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).softmax(-1)
    return draw(probs), probs


def confidence(logits: Tensor, tokens: Tensor, probs: Tensor | None) -> Tensor:
    """The drafter's probability of each drafted token, ``[B, k]``; arguments as for ``propose_by_chance``."""
    at = tokens.unsqueeze(2)
    if probs is not None:
        return probs.gather(2, at).squeeze(2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits.gather(2, at).squeeze(2) - logits.logsumexp(2)).exp()


def judge_by_chance(
    scores: Tensor, draft: Tensor, probs: Tensor | None, valid: Tensor, sampling: SamplingSettings
) -> Verdict:
    """What is kept of ``draft`` ``[B, k]`` (k may be 0), which was drawn from ``probs`` ``[B, k, V]``.

    Without ``probs`` it was no draw: all of q is on the draft's token. ``scores`` ``[B, k + 1, V]`` are the verifier's
    constrained log-probabilities. Where ``valid`` ``[B, k]`` is false there is no draft, and the token comes from p.
    """
    p = distribution(scores, sampling)
    chosen = draft.unsqueeze(2)
    if probs is None:
        probs = torch.zeros_like(p[:, :-1]).scatter(2, chosen, 1.0)
    q = probs.to(p.dtype) * valid.unsqueeze(2)
    at_draft = q.gather(2, chosen).squeeze(2)
    kept = (torch.rand_like(at_draft) * at_draft < p[:, :-1].gather(2, chosen).squeeze(2)) & valid
    residual = (p[:, :-1] - q).clamp(min=0)
    # nothing is left where p and q are the same to the last digit, and there nothing is rejected
    residual = torch.where(residual.sum(2, keepdim=True) > 0, residual, p[:, :-1])
    own = draw(torch.cat([residual, p[:, -1:]], dim=1))
    return verdict(scores, draft, kept, own)
