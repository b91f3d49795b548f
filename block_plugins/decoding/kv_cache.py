"""A static key/value cache: allocated once, written in place, each row at a position of its own."""

import math

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all attention layers of a decoder, ``[layers, B, heads, capacity, head_dim]`` each.

    What lies behind the last position that a row attends to is never read, so rejected positions are simply
    overwritten.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.filled: int | None = None  # positions from here on hold nothing of worth; None where nobody keeps count
        self.zero = True  # whether they hold zeros

    @classmethod
    def empty(cls, layers: int, rows: int, heads: int, capacity: int, head_dim: int, like: Tensor) -> "KVCache":
        """A cache for ``capacity`` positions of ``rows`` rows with the device and dtype of ``like``."""
        shape = (layers, rows, heads, capacity, head_dim)
        # Zeros, not uninitialised memory: a masked position has weight 0, and 0 * nan would still be nan.
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    def write(self, layer: int, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Stores ``keys`` and ``values`` ``[B, n, heads, head_dim]`` of a layer at ``positions`` ``[B, n]``."""
        rows = torch.arange(keys.size(0), device=keys.device).unsqueeze(1)
        self.keys[layer][rows, :, positions] = keys
        self.values[layer][rows, :, positions] = values

    def reach(self, count: int) -> None:
        """The first ``count`` positions are going to be read, in rows that may not have written all of them."""
        filled = self.filled or 0
        if count > filled:
            if not self.zero:
                self.keys[:, :, :, filled:count] = 0
                self.values[:, :, :, filled:count] = 0
            self.filled = count

    def select(self, rows: Tensor) -> None:
        """Keeps (or reorders to, or repeats) the given rows ``[B']``; only the ``filled`` positions are copied."""
        within = self.filled is not None and len(rows) <= self.keys.size(1)
        self.keys, self.values = (self._rows(stored, rows, within) for stored in (self.keys, self.values))
        self.zero = self.zero and not within

    def _rows(self, stored: Tensor, rows: Tensor, within: bool) -> Tensor:
        """``stored`` with the given rows, ``within`` the memory that it has: new memory takes longer than the copy."""
        if self.filled is None:
            return stored.index_select(1, rows)
        layers, _, heads, capacity, head_dim = stored.shape
        shape = (layers, len(rows), heads, capacity, head_dim)
        copied = stored[:, :, :, : self.filled].index_select(1, rows)
        kept = stored.view(-1)[: math.prod(shape)].view(shape) if within else stored.new_zeros(shape)
        kept[:, :, :, : self.filled] = copied
        return kept

    def reorder(self, rows: Tensor, filled: int) -> None:
        """As ``select`` with as many rows as there are, in place; only the first ``filled`` positions are kept."""
        for stored in (self.keys, self.values):
            stored[:, :, :, :filled] = stored[:, :, :, :filled].index_select(1, rows)
