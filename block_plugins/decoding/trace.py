"""What happened in each iteration, for people and for plots.

A trace file holds one JSON object a line, each about one sentence, in the order of decoding:

    id              the sentence's number, as in the S-, H- and D- lines of fairseq's tools
    source          its tokens as the source dictionary spells them, separated by spaces, without EOS
    source_lang, target_lang
                    the languages of both sides
    batch           the number of the batch that the sentence was decoded in, from 0
    batch_size      how many sentences that batch has
    batch_seconds   how long the whole batch took, with encoding and everything else
    iterations      a list with an object for each verifier pass:
        draft           the tokens that the drafter proposed: a list of {"token": as the target dictionary spells it,
                        "id": its number there, "confidence": the drafter's probability of it, at the temperature that
                        it was drawn at; null where the drafter's numbers overflowed}. Empty for a step without a draft.
        lookahead       how many of them, from the first on, were sent to verification. The others are behind a drafted
                        EOS, beyond the greatest length, or beyond what --lookahead thought worth it.
        accepted        how many of these were accepted, from the first on
        correction      the verifier's own token behind them, {"token", "id"}; null where an accepted EOS ends the
                        sentence
        draft_seconds, verify_seconds
                        how long drafting and verification took, for the whole batch at once: the sentences of a batch
                        share their iterations, the first with the first, and so on

The accepted draft tokens and the corrections, one after the other, are the output with its EOS. Of all sentences
together, ``lookahead`` and ``accepted`` add up to the statistics "drafted" and "accepted", objects with a draft are
their "iterations", and those without are their "undrafted". A sentence without a token has no iterations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from block_plugins.decoding.drafters import Draft
from block_plugins.decoding.host import Array, to_host
from block_plugins.decoding.sampling import confidence
from block_plugins.decoding.statistics import Statistics


@dataclass(frozen=True)
class Iteration:
    """One verifier pass of one sentence. Fields as in the file, tokens as ids: ``draft`` and ``confidence`` are equally
    long, and ``correction`` is None where there is none.
    """

    draft: list[int]
    confidence: list[float]
    lookahead: int
    accepted: int
    correction: int | None
    draft_seconds: float
    verify_seconds: float

    def as_dict(self, symbols: Sequence[str]) -> dict[str, Any]:
        """The object in the file; ``symbols`` spells the target dictionary's ids."""
        own = self.correction
        return {
            "draft": [
                {"token": symbols[token], "id": token, "confidence": None if math.isnan(sure) else round(sure, 4)}
                for token, sure in zip(self.draft, self.confidence, strict=True)
            ],
            "lookahead": self.lookahead,
            "accepted": self.accepted,
            "correction": None if own is None else {"token": symbols[own], "id": own},
            "draft_seconds": round(self.draft_seconds, 6),
            "verify_seconds": round(self.verify_seconds, 6),
        }


Trace = list[Iteration]
"""The iterations of one sentence."""


class Recorder:
    """Writes down the iterations of a batch, a trace for each sentence."""

    def __init__(self, rows: int, statistics: Statistics) -> None:
        self.traces: list[Trace] = [[] for _ in range(rows)]
        self.statistics = statistics
        self.before = dict(statistics.phases)

    def add(
        self, rows: Array, draft: Draft | None, sent: Array, accepted: Array, committed: Array, tokens: Array
    ) -> None:
        """An iteration of the sentences ``rows`` ``[b]``.

        ``draft`` is None where there wasn't one. Of it, ``sent`` ``[b]`` tokens were verified and ``accepted`` ``[b]``
        kept; of ``tokens`` ``[b, n]`` the first ``committed`` ``[b]`` became output.
        """
        drafted, sure = np.zeros((len(rows), 0), dtype=np.int64), np.zeros((len(rows), 0))
        if draft is not None:
            drafted, sure = to_host(draft.tokens, confidence(draft.logits, draft.tokens, draft.probs))
        phases, before = dict(self.statistics.phases), self.before
        self.before = phases
        for at, row in enumerate(rows):
            kept = int(accepted[at])
            self.traces[row].append(
                Iteration(
                    draft=drafted[at].tolist(),
                    confidence=sure[at].tolist(),
                    lookahead=int(sent[at]),
                    accepted=kept,
                    correction=int(tokens[at, kept]) if committed[at] > kept else None,
                    draft_seconds=phases["draft"] - before["draft"],
                    verify_seconds=phases["verify"] - before["verify"],
                )
            )
