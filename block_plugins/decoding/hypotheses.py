"""The outputs of a batch while they grow: tokens, scores, and which rows are still open.

All of it is on the host: an iteration brings a handful of numbers for each row, and hands a handful back.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from block_plugins.decoding.host import Array, through_first

Hypothesis = dict[str, Any]


def hypothesis(tokens: Tensor, score: Tensor, positional_scores: Tensor, steps: int = 0) -> Hypothesis:
    """A hypothesis as fairseq's tools want it, without attention and alignment; ``steps`` is what ``--print-step``
    prints. Its ``trace`` is filled where iterations are recorded.
    """
    return {
        "tokens": tokens,
        "score": score,
        "positional_scores": positional_scores,
        "attention": torch.empty(0),
        "alignment": torch.empty(0),
        "steps": steps,
        "history": [],
        "trace": [],
    }


class Hypotheses:
    """Committed tokens with their log-probabilities, one row for each sentence, in input order.

    Only open rows take part in decoding: ``rows`` ``[b]`` maps them to the sentences, ``length`` ``[b]`` is how many
    tokens they have. ``final_length`` ``[B]`` is the length of each sentence at the end.
    """

    def __init__(self, rows: int, max_len: int, eos: int, most: int = 1) -> None:
        """At most ``most`` tokens can be committed at once."""
        self.eos = eos
        # Column 0 is the EOS that begins every decoder input. What stands behind a row's length means nothing.
        self.buffer = np.full((rows, 1 + max_len + 1 + most), eos, dtype=np.int64)
        self.scores = np.zeros(self.buffer.shape)
        self.rows = np.arange(rows)
        self.length = np.zeros(rows, dtype=np.int64)
        self.final_length = np.zeros(rows, dtype=np.int64)

    @property
    def open(self) -> int:
        """How many rows are not finished."""
        return len(self.rows)

    def prefix(self) -> Array:
        """The open rows' tokens ``[b, T]``, T the greatest length; what stands behind a row's length means nothing."""
        return self.buffer[self.rows, 1 : 1 + self.length.max()]

    def last(self) -> Array:
        """The last committed token of each open row ``[b]``, EOS where there is none."""
        return self.buffer[self.rows, self.length]

    def commit(self, tokens: Array, scores: Array, count: Array) -> tuple[Array, Array | None]:
        """Appends the first ``count`` ``[b]`` of ``tokens`` ``[b, n]`` to the open rows, up to and including an EOS.

        Returns how many tokens each row got, ``[b]``, and the indices ``[b']`` of the rows that stay open, or None
        where all do. A caller that gets indices has to keep just these rows of its own state.
        """
        through_eos = through_first(tokens == self.eos)
        finished = through_eos <= count
        count = np.minimum(count, through_eos)
        at = self.rows[:, None], self.length[:, None] + np.arange(1, tokens.shape[1] + 1)
        self.buffer[at] = tokens
        self.scores[at] = scores
        self.length = self.length + count
        if not finished.any():
            return count, None
        self.final_length[self.rows[finished]] = self.length[finished]
        keep = np.flatnonzero(~finished)
        self.rows, self.length = self.rows[keep], self.length[keep]
        return count, keep

    def finish(
        self, length_penalty: float, normalize_scores: bool, device: torch.device, dtype: torch.dtype
    ) -> list[list[Hypothesis]]:
        """One fairseq hypothesis for each sentence: tokens with EOS, score (natural log) and positional scores."""
        all_tokens = torch.from_numpy(self.buffer).to(device)
        all_scores = torch.from_numpy(self.scores).to(device=device, dtype=dtype)
        output: list[list[Hypothesis]] = []
        for row, length in enumerate(self.final_length.tolist()):
            scores = all_scores[row, 1 : 1 + length].clone()
            total = scores.sum()
            score = total / length**length_penalty if normalize_scores else total
            output.append([hypothesis(all_tokens[row, 1 : 1 + length], score, scores)])
        return output
