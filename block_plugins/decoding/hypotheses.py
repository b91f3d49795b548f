"""The outputs of a batch while they grow: tokens, scores, and which rows are still open."""

from typing import Any

import torch
from torch import Tensor

Hypothesis = dict[str, Any]


class Hypotheses:
    """Committed tokens with their log-probabilities, one row for each sentence, in input order.

    Only open rows take part in decoding: ``rows`` ``[b]`` maps them to the sentences, ``length`` ``[b]`` is how many
    tokens they have; ``sentences`` and ``lengths`` are the same on the host. ``reached`` are the lengths right after
    the last commit, those of rows that it finished included; ``final_lengths`` are those of all sentences at the end.
    """

    def __init__(
        self, rows: int, max_len: int, eos: int, device: torch.device, dtype: torch.dtype, most: int = 1
    ) -> None:
        """At most ``most`` tokens can be committed at once."""
        self.eos = eos
        # Column 0 is the EOS that begins every decoder input. What stands behind a row's length means nothing.
        self.buffer = torch.full((rows, 1 + max_len + 1 + most), eos, dtype=torch.long, device=device)
        self.scores = torch.zeros(rows, self.buffer.size(1), dtype=dtype, device=device)
        self.final_lengths = [0] * rows
        self.rows = torch.arange(rows, device=device)
        self.sentences = list(range(rows))
        self.length = torch.zeros(rows, dtype=torch.long, device=device)
        self.lengths = self.reached = [0] * rows
        self.column = torch.arange(most, device=device)

    @property
    def open(self) -> int:
        """How many rows are not finished."""
        return len(self.sentences)

    def prefix(self) -> Tensor:
        """The open rows' tokens ``[b, T]``, T the greatest length, but at least 1; what stands behind a row's length
        means nothing.
        """
        return self.buffer[:, 1 : 1 + max(1, *self.lengths)].index_select(0, self.rows)

    def last(self) -> Tensor:
        """The last committed token of each open row ``[b]``, EOS where there is none."""
        return self.buffer[self.rows, self.length]

    def commit(
        self, tokens: Tensor, scores: Tensor, count: Tensor, *others: Tensor
    ) -> tuple[Tensor | None, list[list[int]]]:
        """Appends the first ``count`` ``[b]`` of ``tokens`` ``[b, n]`` to the open rows, up to and including an EOS.

        Returns the indices ``[b']`` of the rows that stay open, or None where all do; a caller that gets indices has to
        keep just these rows of its own state. With that come ``others`` ``[b]`` as lists, for there is but one wait for
        the device in an iteration, and it is here.
        """
        n = tokens.size(1)
        column = self.column[:n]
        through_eos = torch.where(tokens == self.eos, column, n).amin(1) + 1
        finished = through_eos <= count
        count = torch.minimum(count, through_eos)

        at = (self.rows.unsqueeze(1), self.length.unsqueeze(1) + (column + 1))
        self.buffer[at] = tokens
        self.scores[at] = scores
        self.length = self.length + count

        done, self.reached, *lists = torch.stack([finished.long(), self.length, *others]).tolist()
        if not any(done):
            self.lengths = self.reached
            return None, lists
        for index, ended in enumerate(done):
            if ended:
                self.final_lengths[self.sentences[index]] = self.reached[index]
        still_open = [index for index, ended in enumerate(done) if not ended]
        self.sentences = [self.sentences[index] for index in still_open]
        self.lengths = [self.reached[index] for index in still_open]
        keep = torch.tensor(still_open, dtype=torch.long, device=tokens.device)
        self.rows = self.rows.index_select(0, keep)
        self.length = self.length.index_select(0, keep)
        return keep, lists

    def finish(self, length_penalty: float, normalize_scores: bool) -> list[list[Hypothesis]]:
        """One fairseq hypothesis for each sentence: tokens with EOS, score (natural log) and positional scores."""
        output: list[list[Hypothesis]] = []
        for tokens, scores, length in zip(self.buffer[:, 1:], self.scores[:, 1:], self.final_lengths, strict=True):
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
