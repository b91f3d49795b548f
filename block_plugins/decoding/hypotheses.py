"""The outputs of a batch while they grow: tokens, scores, and which rows are still open."""

from typing import Any

import torch
from torch import Tensor

Hypothesis = dict[str, Any]


class Hypotheses:
    """Committed tokens ``[B, capacity]`` with their log-probabilities, one row for each sentence, in input order.

    Only open rows take part in decoding: ``rows`` ``[b]`` maps them to the sentences, ``length`` ``[b]`` is how many
    tokens they have, and ``longest`` is the greatest of these, known without asking the device.
    """

    def __init__(self, rows: int, max_len: int, eos: int, device: torch.device, dtype: torch.dtype) -> None:
        self.eos = eos
        self.tokens = torch.full((rows, max_len + 1), eos, dtype=torch.long, device=device)
        self.scores = torch.zeros(rows, max_len + 1, dtype=dtype, device=device)
        self.final_length = torch.zeros(rows, dtype=torch.long, device=device)
        self.rows = torch.arange(rows, device=device)
        self.length = torch.zeros(rows, dtype=torch.long, device=device)
        self.longest = 0

    @property
    def open(self) -> int:
        """How many rows are not finished."""
        return self.rows.size(0)

    def prefix(self) -> Tensor:
        """The open rows' tokens ``[b, max(longest, 1)]``; what stands behind a row's length means nothing."""
        return self.tokens[self.rows, : max(self.longest, 1)]

    def last(self) -> Tensor:
        """The last committed token of each open row ``[b]``, EOS where there is none: that begins every decoder
        input.
        """
        return torch.where(self.length == 0, self.eos, self.tokens[self.rows, (self.length - 1).clamp(min=0)])

    def commit(self, tokens: Tensor, scores: Tensor, count: Tensor) -> tuple[Tensor, Tensor | None]:
        """Appends the first ``count`` ``[b]`` of ``tokens`` ``[b, n]`` to the open rows, up to and including an EOS.

        Returns how many tokens each row got, ``[b]``, and the indices ``[b']`` of the rows that stay open, or None
        where all do. A caller that gets indices has to keep just these rows of its own state.
        """
        n = tokens.size(1)
        column = torch.arange(n, device=tokens.device)
        is_eos = tokens.eq(self.eos) & (column < count.unsqueeze(1))
        first_eos = torch.where(is_eos, column, n).min(1).values
        count = torch.minimum(count, first_eos + 1)
        finished = is_eos.any(1)

        mask = column < count.unsqueeze(1)
        row = self.rows.unsqueeze(1).expand(-1, n)[mask]
        at = (self.length.unsqueeze(1) + column)[mask]
        self.tokens[row, at] = tokens[mask]
        self.scores[row, at] = scores[mask]
        self.length = self.length + count
        self.final_length[self.rows] = self.length

        flags = torch.cat([finished.long(), self.length]).tolist()  # the one wait for the device in an iteration
        done, lengths = flags[: self.open], flags[self.open :]
        still_open = [index for index, ended in enumerate(done) if not ended]
        self.longest = max((lengths[index] for index in still_open), default=0)
        if len(still_open) == self.open:
            return count, None
        keep = torch.tensor(still_open, dtype=torch.long, device=tokens.device)
        self.rows = self.rows.index_select(0, keep)
        self.length = self.length.index_select(0, keep)
        return count, keep

    def finish(self, length_penalty: float, normalize_scores: bool) -> list[list[Hypothesis]]:
        """One fairseq hypothesis for each sentence: tokens with EOS, score (natural log) and positional scores."""
        output: list[list[Hypothesis]] = []
        for tokens, scores, length in zip(self.tokens, self.scores, self.final_length.tolist(), strict=True):
            total = scores[:length].sum()
            output.append(
                [
                    {
                        "tokens": tokens[:length],
                        "score": total / length**length_penalty if normalize_scores else total,
                        "positional_scores": scores[:length].clone(),
                        "attention": torch.empty(0),
                        "alignment": torch.empty(0),
                    }
                ]
            )
        return output
