"""What fairseq's search does to the scores before it picks a token, for many positions at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from block_plugins.decoding.host import Array
from block_plugins.decoding.settings import SearchSettings


@dataclass
class Constraints:
    """The rules of one batch: no pad, EOS not before ``min_len`` and forced at ``max_len``, unk penalty, forced
    prefixes.

    ``prefix`` ``[B, P]`` holds the tokens that ``--prefix-size`` forces, padded on the right, or is None.
    """

    settings: SearchSettings
    max_len: int
    prefix: Tensor | None = None

    def log_probs(
        self, logits: Tensor, start: Array, output: Callable[[], Array] | None = None, draft: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities ``[B, n, V]``, at least float32, with every forbidden token at -inf.

        ``logits[b, i]`` (natural scale, ``[B, n, V]``) scores the output token number ``start[b] + i``, counted from 0;
        ``start`` ``[B]`` is on the host, so that rules that can't hold yet, or no longer, cost nothing.

        Rules that look back ask for the ``output`` so far, ``[B, T]`` on the host, of which the first ``start[b]``
        tokens count, and need the ``draft`` behind it, ``[B, n - 1]``: each position sees what stands before it.
        """
        settings = self.settings
        n = logits.size(1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        past: Past | None = None
        if settings.looks_back:
            assert output is not None
            past = Past.of(output(), start, draft, n, settings.eos, logits.device)
            if settings.repetition_penalty != 1.0:
                logits = past.penalise(logits, settings.repetition_penalty)
        if settings.temperature != 1.0:
            logits = logits / settings.temperature
        scores = F.log_softmax(logits, dim=-1)
        first = scores.select(-1, 0)  # one nan or infinite logit makes all of its row nan
        if scores.is_cuda or np.isnan(first.detach().numpy()).any():
            scores = scores.masked_fill_(first.isnan().unsqueeze(-1), -math.inf)
        scores.select(-1, settings.pad).fill_(-math.inf)
        if settings.unk_penalty != 0:
            scores[..., settings.unk] -= settings.unk_penalty

        scores = self._limit_lengths(scores, start)
        if past is not None and settings.no_repeat_ngram > 0:
            scores = past.forbid_repeated(scores, settings.no_repeat_ngram)
        return scores

    def _limit_lengths(self, scores: Tensor, start: Array) -> Tensor:
        """Forced prefixes, no EOS before the least length, and nothing else at the greatest."""
        settings, n = self.settings, scores.size(1)
        may_end = int(start.max()) + n > self.max_len
        may_be_too_short = int(start.min()) < settings.min_len
        if not (may_end or may_be_too_short or self.prefix is not None):
            return scores
        step = torch.from_numpy(start).to(scores.device).unsqueeze(1) + torch.arange(n, device=scores.device)  # [B, n]
        at_limit = step >= self.max_len
        if may_end:
            not_eos = torch.ones(scores.size(2), dtype=torch.bool, device=scores.device)
            not_eos[settings.eos] = False
            scores = scores.masked_fill(at_limit.unsqueeze(2) & not_eos, -math.inf)
        # fairseq applies the minimum length to no row while any row of the batch may still have a prefix token
        unprefixed = torch.ones_like(at_limit)
        if self.prefix is not None:
            unprefixed = (step >= self.prefix.size(1)) | at_limit
            scores = self._force_prefix(scores, step, ~unprefixed)
        if may_be_too_short:
            too_short = unprefixed & (step < settings.min_len)
            scores[..., settings.eos] = scores[..., settings.eos].masked_fill(too_short, -math.inf)
        return scores

    def _force_prefix(self, scores: Tensor, step: Tensor, prefixed: Tensor) -> Tensor:
        """Leaves only the prefix token where ``prefixed`` ``[B, n]`` and the row has a token there."""
        assert self.prefix is not None
        wanted = self.prefix.gather(1, step.clamp(max=self.prefix.size(1) - 1))  # [B, n]
        forced = prefixed & wanted.ne(self.settings.pad)
        kept = scores.gather(2, wanted.unsqueeze(2))
        only = torch.full_like(scores, -math.inf).scatter(2, wanted.unsqueeze(2), kept)
        return torch.where(forced.unsqueeze(2), only, scores)

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']``."""
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, rows)


class Past(NamedTuple):
    """What stands before each of n positions: ``tokens`` ``[B, L]``, of which position i of row b sees the first
    ``seen[b, i]`` ``[B, n]``. The EOS that begins every decoder input comes first.
    """

    tokens: Tensor
    seen: Tensor

    @classmethod
    def of(cls, output: Array, start: Array, draft: Tensor | None, n: int, eos: int, device: torch.device) -> "Past":
        """The ``output`` ``[B, T]``, of which ``start`` ``[B]`` tokens count, with the ``draft`` ``[B, n - 1]`` behind
        it.
        """
        width = int(start.max()) + n
        tokens = torch.full((len(start), width), eos, device=device)
        known = min(output.shape[1], width - 1)
        tokens[:, 1 : 1 + known] = torch.from_numpy(output[:, :known]).to(device)
        first = torch.from_numpy(start).to(device).unsqueeze(1)
        if draft is not None and n > 1:
            tokens.scatter_(1, first + torch.arange(1, n, device=device), draft)
        return cls(tokens, first + torch.arange(1, n + 1, device=device))

    def penalise(self, logits: Tensor, penalty: float) -> Tensor:
        """``logits`` ``[B, n, V]`` with those of the tokens that are in the output already made smaller."""
        place = torch.arange(self.tokens.size(1), device=logits.device)
        counts = ((place < self.seen.unsqueeze(2)) & (place > 0)).to(logits.dtype)  # [B, n, L]; the first EOS is none
        index = self.tokens.unsqueeze(1).expand_as(counts)
        there = torch.zeros_like(logits).scatter_add_(2, index, counts) > 0
        return torch.where(there, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    def forbid_repeated(self, scores: Tensor, size: int) -> Tensor:
        """``scores`` ``[B, n, V]`` without the tokens that would complete ``size`` tokens in a row that are there
        already. As in fairseq, the EOS at the beginning is one of them. (Of fairseq's implementations this follows the
        one for GPUs: the other compares with the end of a buffer where nothing stands yet.)
        """
        before = size - 1
        if self.tokens.size(1) < size:
            return scores
        end = self.seen.unsqueeze(2) + torch.arange(-before, 0, device=scores.device)  # [B, n, before]
        rows = torch.arange(len(end), device=scores.device)[:, None, None]
        last = self.tokens[rows, end.clamp(min=0)]
        windows = self.tokens.unfold(1, size, 1)  # [B, W, size]
        same = (windows[:, None, :, :before] == last.unsqueeze(2)).all(3)  # [B, n, W]
        place = torch.arange(windows.size(1), device=scores.device)
        same &= place + size <= self.seen.unsqueeze(2)
        same &= self.seen.unsqueeze(2) >= before  # too little stands before it otherwise
        counts = torch.zeros_like(scores).scatter_add_(
            2, windows[:, None, :, -1].expand_as(same), same.to(scores.dtype)
        )
        return scores.masked_fill(counts > 0, -math.inf)
