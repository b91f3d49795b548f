"""A decoder's layers as CUDA graphs: each pass is recorded once for its shapes, and launched as a whole from then on.

On a GPU a pass over a few tokens takes less time than launching its hundred kernels one by one. A graph launches them
all at once, but always on the same addresses and shapes. So inputs and caches live in buffers that stay from batch to
batch, and shapes are rounded up: what is added (rows, slots of the cache, source positions) is masked, or left out of
the result. Only ``capture`` needs a GPU.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from block_plugins.decoding.cached_decoder import DecoderLayers, EncoderOut, LayersState, project_memory
from block_plugins.decoding.kv_cache import KVCache

_WARM_UP = 3
"""Passes before a recording, in which libraries choose their algorithms and take their workspaces."""

_SLOTS = 64
"""The fewest slots of the cache that a pass looks at."""

_SOURCES = 16
"""The fewest source positions."""

_WIDTH = 32
"""A drafter that reads its whole input anew reads a multiple of so many tokens."""


def capture(function: Callable[[], Tensor], pool: Any) -> Callable[[], Tensor]:
    """Records the kernels that ``function`` launches; the result launches them again and returns the same tensor.

    ``function`` runs a few times before: running it again must change nothing. Recordings with the same ``pool`` share
    the memory of what they compute in between.
    """
    here, aside = torch.cuda.current_stream(), _side_stream(torch.cuda.current_device())
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UP):
            function()
    here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=aside):
        output = function()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Where recordings are made: always the same stream, for each gets workspaces of its own."""
    return torch.cuda.Stream(device)


def rounded(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``count`` and ``least``."""
    return 1 << (max(count, least) - 1).bit_length()


class Recording:
    """A function of tensors ``[B, ...]`` that is recorded at its first call, with inputs of ``rows`` rows."""

    def __init__(self, function: Callable[..., Tensor], rows: int, like: tuple[Tensor, ...], pool: Any) -> None:
        # Ones are valid in rows that nobody asked for: as positions, and as numbers of positions that are seen.
        self.inputs = [given.new_ones(rows, *given.shape[1:]) for given in like]
        self.function = partial(function, *self.inputs)
        self.pool = pool
        self.replay: Callable[[], Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The result, with ``rows`` rows; it is overwritten by the next call."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own[: given.size(0)].copy_(given)
        if self.replay is None:
            self.replay = capture(self.function, self.pool)
        return self.replay()


class GraphedLayers(DecoderLayers):
    """``DecoderLayers`` whose passes are recorded. All batches share its buffers, so it decodes one at a time.

    The buffers grow with the largest batch so far; then all that was recorded is forgotten.
    """

    def __init__(self, decoder: TransformerDecoderBase, int8: bool = False) -> None:
        super().__init__(decoder)
        self.kernels = None  # torch's operations alone can be recorded
        self.size = (0, 0, 0)
        self.past: KVCache
        self.cross: KVCache
        self.visible: Tensor  # [1, B, 1, 1, S]: rows where the caches have them
        self.recordings: dict[tuple[str, int, int, int, int], Recording] = {}
        self.pool: Any = None

    def start(self, encoder_out: EncoderOut, capacity: int, beams: int = 1) -> "GraphedState":
        """See ``DecoderLayers.start``. What was started before can't go on."""
        cross, visible = project_memory(self.layers, encoder_out)
        if beams > 1:  # all buffers have the same rows
            cross.select(torch.arange(cross.keys.size(1), device=cross.keys.device).repeat_interleave(beams))
            visible = None if visible is None else visible.repeat_interleave(beams, 0)
        rows, sources = cross.keys.size(1), cross.keys.size(3)
        self.reserve(rows, capacity + 1, sources, cross.keys)
        for buffer in self.buffers():
            buffer.zero_()  # a nan of an earlier batch would get through any mask
        self.cross.keys[:, :rows, :, :sources] = cross.keys
        self.cross.values[:, :rows, :, :sources] = cross.values
        self.visible[:, rows:] = True
        self.visible[0, :rows, ..., :sources] = True if visible is None else visible
        return GraphedState(self, rows, sources)

    def reserve(self, rows: int, slots: int, sources: int, like: Tensor) -> None:
        """Makes the buffers large enough; device, dtype and the cross-attention's heads are those of ``like``
        ``[layers, B, heads, S, head_dim]``. Buffers that are too small are replaced, and what they held is lost.
        """
        needed = (rounded(rows), rounded(slots, _SLOTS), rounded(sources, _SOURCES))
        size = tuple(max(pair) for pair in zip(self.size, needed, strict=True))
        if size == self.size:
            return
        self.size = rows, slots, sources = size[0], size[1], size[2]
        self.recordings.clear()
        self.pool = torch.cuda.graph_pool_handle() if like.is_cuda else None
        layers, _, cross_heads, _, cross_dim = like.shape
        attention = self.layers[0].module.self_attn
        self.past = KVCache.empty(layers, rows, attention.num_heads, slots, attention.head_dim, like)
        self.cross = KVCache.empty(layers, rows, cross_heads, sources, cross_dim, like)
        self.visible = torch.ones(1, rows, 1, 1, sources, dtype=torch.bool, device=like.device)

    def buffers(self) -> list[Tensor]:
        """All buffers, with rows as their second dimension."""
        return [self.past.keys, self.past.values, self.cross.keys, self.cross.values, self.visible]

    def view(self, rows: int, sources: int) -> LayersState:
        """Layers on the first ``rows`` rows and ``sources`` source positions of the buffers."""
        past = KVCache(self.past.keys[:, :rows], self.past.values[:, :rows])
        cross = KVCache(self.cross.keys[:, :rows, :, :sources], self.cross.values[:, :rows, :, :sources])
        return LayersState(self, past, cross, self.visible[0, :rows, ..., :sources])


class GraphedState(LayersState):
    """The batch that is in the buffers' first rows. A pass's result is overwritten by the next pass."""

    owner: GraphedLayers

    def __init__(self, owner: GraphedLayers, rows: int, sources: int) -> None:
        self.rows = rows
        self.sources = sources
        view = owner.view(rows, sources)
        super().__init__(owner, view.past, view.cross, view.visible)

    def run(self, x: Tensor, positions: Tensor, seen: Tensor, longest: int) -> Tensor:
        """See ``LayersState.run``; ``x`` is left as it is."""
        slots = min(rounded(longest, _SLOTS), self.owner.past.keys.size(3))
        return self._replay(
            ("run", x.size(1), slots), lambda layers: partial(layers.run, longest=slots), x, positions, seen
        )

    def reread(self, x: Tensor, added: Tensor, known: Tensor, at: Tensor) -> Tensor:
        """See ``LayersState.reread``."""
        more = -x.size(1) % _WIDTH
        x, added, known = F.pad(x, (0, 0, 0, more)), F.pad(added, (0, 0, 0, more)), F.pad(known, (0, more))
        return self._replay(("reread", x.size(1), at.size(1)), lambda layers: layers.reread, x, added, known, at)

    def _replay(
        self, shape: tuple[str, int, int], function: Callable[[LayersState], Callable[..., Tensor]], *inputs: Tensor
    ) -> Tensor:
        """The result for ``inputs`` ``[B, ...]`` of a function of the layers, recorded for ``shape`` if it is new."""
        rows, sources = rounded(self.rows), rounded(self.sources, _SOURCES)
        key = (*shape, rows, sources)
        if key not in self.owner.recordings:
            layers = self.owner.view(rows, sources)
            self.owner.recordings[key] = Recording(function(layers), rows, inputs, self.owner.pool)
        return self.owner.recordings[key](*inputs)[: self.rows]

    def select(self, rows: Tensor) -> None:
        """Keeps the rows ``[B']`` of the buffers, in place; more than there were make the buffers grow."""
        kept = [buffer.index_select(1, rows) for buffer in self.owner.buffers()]
        self.rows = rows.size(0)
        self.owner.reserve(self.rows, 1, self.sources, kept[2])
        for buffer, rest in zip(self.owner.buffers(), kept, strict=True):
            buffer[:, : self.rows] = rest
        view = self.owner.view(self.rows, self.sources)
        self.past, self.cross, self.visible = view.past, view.cross, view.visible
