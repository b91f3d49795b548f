"""What fairseq's search does to the scores before it picks a token, for many positions at once."""

import math
from dataclasses import dataclass

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

    def log_probs(self, logits: Tensor, start: Array) -> Tensor:
        """Log-probabilities ``[B, n, V]``, at least float32, with every forbidden token at -inf.

        ``logits[b, i]`` (natural scale, ``[B, n, V]``) scores the output token number ``start[b] + i``, counted from 0;
        ``start`` ``[B]`` is on the host, so that rules that can't hold yet, or no longer, cost nothing.
        """
        settings = self.settings
        n = logits.size(1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if settings.temperature != 1.0:
            logits = logits / settings.temperature
        scores = F.log_softmax(logits, dim=-1)
        first = scores.select(-1, 0)  # one nan or infinite logit makes all of its row nan
        if scores.is_cuda or np.isnan(first.detach().numpy()).any():
            scores = scores.masked_fill_(first.isnan().unsqueeze(-1), -math.inf)
        scores.select(-1, settings.pad).fill_(-math.inf)
        if settings.unk_penalty != 0:
            scores[..., settings.unk] -= settings.unk_penalty

        may_end = int(start.max()) + n > self.max_len
        may_be_too_short = int(start.min()) < settings.min_len
        if not (may_end or may_be_too_short or self.prefix is not None):
            return scores
        step = torch.from_numpy(start).to(logits.device).unsqueeze(1) + torch.arange(n, device=logits.device)  # [B, n]
        at_limit = step >= self.max_len
        if may_end:
            not_eos = torch.ones(logits.size(2), dtype=torch.bool, device=logits.device)
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
