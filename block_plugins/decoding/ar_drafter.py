"""A small autoregressive model as drafter: its own greedy continuation of the prefix, token by token."""

import numpy as np
import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from block_plugins.decoding.cached_decoder import (
    CachedDecoder,
    DecoderLayers,
    DecoderState,
    EncoderOut,
    open_decoder,
)
from block_plugins.decoding.drafters import Draft, ModelDrafter
from block_plugins.decoding.host import Array, to_host
from block_plugins.decoding.lookahead import GoesOn
from block_plugins.decoding.sampling import confidence, propose_by_chance


class ARDrafter(ModelDrafter):
    """Drafts with an autoregressive model, whose cache goes on from the last token that was accepted."""

    def __init__(
        self,
        model: FairseqEncoderDecoderModel,
        pad: int,
        eos: int,
        verifier: FairseqEncoderDecoderModel | None = None,
        int8: bool = False,
        layers: type[DecoderLayers] = DecoderLayers,
        temperature: float = 0.0,
    ) -> None:
        """``layers`` is how the decoder's layers are run; the others as for ``ModelDrafter``."""
        super().__init__(model, pad, eos, verifier, int8, temperature)
        self.decoder = open_decoder(model.encoder, model.decoder, layers, int8)
        if self.int8 is not None and isinstance(self.decoder, CachedDecoder):
            self.decoder.project = self.int8

    def start(
        self, src_tokens: Tensor, src_lengths: Tensor, capacity: int, verifier_out: EncoderOut | None = None
    ) -> "ARDraftState":
        """See ``Drafter.start``."""
        if not self.shares_encoder or verifier_out is None:
            verifier_out = self.encoder(src_tokens, src_lengths=src_lengths)
        state = self.decoder.start(verifier_out, min(capacity + 1, self.decoder.positions))
        return ARDraftState(self, state, src_tokens.size(0))


class ARDraftState:
    """A batch in decoding. Input position 0 is EOS, position p holds the p-th token of prefix and draft."""

    def __init__(self, owner: ARDrafter, state: DecoderState, rows: int) -> None:
        self.owner = owner
        self.state = state
        self.length = np.full(rows, -1)  # of each prefix at the last draft
        self.drafted = 0  # tokens of that draft

    def propose(
        self, prefix: Array, length: Array, newest: int, size: int, k: int | None = None, goes_on: GoesOn | None = None
    ) -> Draft:
        """See ``DraftState.propose``."""
        k = size if k is None else k
        unread, start = self._unread(prefix, length, newest)
        logits = self.state.step(torch.from_numpy(unread).to(self.state.device), start)
        last = length - start
        if (last == unread.shape[1] - 1).all():
            logits = logits[:, -1:]
        else:
            at = torch.from_numpy(last).to(logits.device)
            logits = logits[torch.arange(len(length), device=logits.device), at].unsqueeze(1)
        drafted: list[Tensor] = []
        scores: list[Tensor] = []
        drawn_from: list[Tensor] = []
        planned = np.zeros_like(length)
        going_on = np.ones(len(length), dtype=bool)
        for step in range(k):
            if step > 0:
                logits = self.state.step(drafted[-1], length + step)
            logits.select(2, self.owner.pad).fill_(float("-inf"))
            tokens, probs = propose_by_chance(logits, self.owner.temperature)
            drafted.append(tokens)
            scores.append(logits)
            if probs is not None:
                drawn_from.append(probs)
            planned += going_on
            if goes_on is not None:
                (sure,) = to_host(confidence(logits, tokens, probs))
                going_on &= goes_on(step, sure[:, 0])
                if not going_on.any():
                    break
        self.length, self.drafted = length.copy(), len(drafted)
        room = np.minimum((self.owner.decoder.positions - length).clip(min=0), planned)
        joined = torch.cat(drawn_from, dim=1) if drawn_from else None
        return Draft(torch.cat(drafted, dim=1), torch.cat(scores, dim=1), room, joined)

    def _unread(self, prefix: Array, length: Array, newest: int) -> tuple[Array, Array]:
        """The inputs that the cache lacks, ``[B, n]``, and the position of the first, ``[B]``.

        Of the last draft all tokens but the last were read, and those that were accepted still stand. Only if nothing
        but that draft was committed since: otherwise only what came before the draft is counted on.
        """
        known = self.length + 1  # inputs
        if newest <= self.drafted + 1:
            known = np.minimum(self.length + max(self.drafted, 1), length)
        count = int((length + 1 - known).max())
        start = (length + 1 - count).clip(min=0)
        at = start[:, None] + np.arange(count)
        # behind a short prefix come inputs that nobody reads, and which the draft overwrites
        within = np.take_along_axis(prefix, (at - 1).clip(0, max(prefix.shape[1] - 1, 0)), 1) if prefix.size else at
        return np.where((at == 0) | (at > length[:, None]), self.owner.eos, within), start

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        self.state.select(rows)
        self.length = self.length[rows.cpu().numpy()]
