"""The outputs of a batch while they grow: tokens, scores, and which rows are still open.

All of it is on the host: an iteration brings a handful of numbers for each row, and hands a handful back.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Hypothesis = dict[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]


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
            output.append(
                [
                    {
                        "tokens": all_tokens[row, 1 : 1 + length],
                        "score": total / length**length_penalty if normalize_scores else total,
                        "positional_scores": scores,
                        "attention": torch.empty(0),
                        "alignment": torch.empty(0),
                    }
                ]
            )
        return output


def through_first(found: Array) -> Array:
    """For each row of ``found`` ``[b, n]`` the columns up to and including the first true one, n + 1 where none is."""
    return np.where(found.any(1), found.argmax(1), found.shape[1]) + 1


def to_host(*tensors: Tensor) -> list[Array]:
    """Tensors ``[b, n]``, n of each its own, as arrays; from a GPU all of them in a single copy."""
    if tensors[0].device.type == "cpu":
        return [tensor.detach().numpy() for tensor in tensors]
    joined = torch.cat([tensor.double() for tensor in tensors], dim=1).cpu().numpy()  # holds ids and float32 exactly
    parts = np.split(joined, np.cumsum([tensor.size(1) for tensor in tensors])[:-1], axis=1)
    return [
        part if tensor.is_floating_point() else part.astype(bool if tensor.dtype == torch.bool else np.int64)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
