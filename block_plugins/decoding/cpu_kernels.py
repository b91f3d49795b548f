"""Decoder layers for a handful of rows on a CPU, compiled by Numba.

A decoding step multiplies one to a dozen rows with every weight matrix of the decoder. Reading the weights is then what
takes the time, and should take it once, however many rows there are. General matrix products spend more on arranging
their operands than on the product; ``_columns`` reads the weights once, as fast as the memory gives them.
"""

import logging
import math
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from block_plugins.decoding.host import Array

# Rows are copied element by element: assigning whole rows makes Numba compile what names shapes that don't agree, which
# takes it longer than all the rest.

# Numba logs every bytecode it reads where the root logger is open to that, as fairseq's tools leave it.
logging.getLogger("numba").setLevel(logging.WARNING)

# Sums may be taken in any order (that is what makes them vectors), but infinities and nan keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_RELU, _GELU = 0, 1
ACTIVATIONS = {"relu": _RELU, "gelu": _GELU}
"""The activation functions that the kernels know, by fairseq's names."""

_PARALLEL = 800_000
"""Bytes of weights, times rows, from which a product is worth a second thread."""


_MANY = 6
"""Rows from which attention is worth a second thread."""


class LayerWeights(NamedTuple):
    """The weights of all layers of a decoder, stacked: matrices ``[layers, out, in]``, and the factors of their rows,
    biases and norms ``[layers, out]``. Matrices may be int8.
    """

    qkv: Array
    qkv_scale: Array
    qkv_bias: Array
    self_out: Array
    self_out_scale: Array
    self_out_bias: Array
    cross_query: Array
    cross_query_scale: Array
    cross_query_bias: Array
    cross_out: Array
    cross_out_scale: Array
    cross_out_bias: Array
    fc1: Array
    fc1_scale: Array
    fc1_bias: Array
    fc2: Array
    fc2_scale: Array
    fc2_bias: Array
    self_norm: Array
    self_norm_bias: Array
    cross_norm: Array
    cross_norm_bias: Array
    final_norm: Array
    final_norm_bias: Array


class Layers(NamedTuple):
    """A decoder's layers on the caches of a batch, ``[layers, B, heads, capacity, head_dim]``, those of the
    cross-attention with a row for each source.

    ``visible [B, S]`` says which source positions count, and is empty where all do.
    """

    weights: LayerWeights
    pre_norm: bool
    activation: int
    epsilon: float
    self_keys: Array
    self_values: Array
    cross_keys: Array
    cross_values: Array
    visible: Array


_own_threads = (0, 0)  # for so many threads of torch's, so many were set


def threads() -> int:
    """How many threads the kernels use: torch's number, as far as Numba has started as many."""
    global _own_threads
    count = torch.get_num_threads()
    if _own_threads[0] != count:
        own = min(count, numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(own)
        if torch.get_num_threads() != count:
            # Numba has just started its threads, and in passing set OpenMP's number, which is torch's too
            torch.set_num_threads(count)
        _own_threads = count, own
    return _own_threads[1]


def product(x: Tensor, weight: Array, scale: Array, bias: Array) -> Tensor:
    """``x [..., in]`` times ``weight [out, in]``, times ``scale [out]``, plus ``bias [out]``: ``[..., out]``."""
    y = x.new_empty(*x.shape[:-1], len(weight))
    # whatever isn't contiguous would be compiled for itself
    rows, out = x.reshape(-1, x.size(-1)).contiguous().numpy(), y.view(-1, len(weight)).numpy()
    _linear(rows, weight, scale, bias, out, threads())
    return y


def quantised(weight: Tensor) -> tuple[Array, Array]:
    """``weight [out, in]`` as int8, and the factor of each of its rows ``[out]`` in float32."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    return (weight / scale).round().to(torch.int8).numpy(), scale.squeeze(1).float().numpy()


@numba.njit(cache=True, fastmath=_FAST)
def _columns(x: Array, weight: Array, scale: Array, bias: Array, y: Array, first: int, last: int) -> None:
    """Fills the columns ``first ... last - 1`` of ``y [R, out]``, the product of ``x [R, in]`` and ``weight``, whose
    rows have the factors ``scale``.

    Four rows of the weights are read side by side, far apart in memory: the CPU fetches four streams ahead where it
    fetches only one of neighbouring rows. Each number that is read serves three rows of ``x``. Where two are left the
    last is computed twice: that costs hardly more.
    """
    rows, width = x.shape
    kind = bias.dtype.type  # the input's type is that of all sums: float32 times an integer would be float64
    zero = kind(0)
    quarter = (last - first) // 4
    for o in range(first, first + quarter):
        o1, o2, o3 = o + quarter, o + 2 * quarter, o + 3 * quarter
        w0, w1, w2, w3 = weight[o], weight[o1], weight[o2], weight[o3]
        r = 0
        while r + 1 < rows:
            r2 = min(r + 2, rows - 1)
            x0, x1, x2 = x[r], x[r + 1], x[r2]
            sum00 = sum01 = sum02 = sum10 = sum11 = sum12 = zero  # of the weights' row and the input's row
            sum20 = sum21 = sum22 = sum30 = sum31 = sum32 = zero
            for i in range(width):  # a row of weights after the other: in another order registers run short
                value = kind(w0[i])
                sum00 += value * x0[i]
                sum01 += value * x1[i]
                sum02 += value * x2[i]
                value = kind(w1[i])
                sum10 += value * x0[i]
                sum11 += value * x1[i]
                sum12 += value * x2[i]
                value = kind(w2[i])
                sum20 += value * x0[i]
                sum21 += value * x1[i]
                sum22 += value * x2[i]
                value = kind(w3[i])
                sum30 += value * x0[i]
                sum31 += value * x1[i]
                sum32 += value * x2[i]
            y[r, o], y[r, o1], y[r, o2], y[r, o3] = sum00, sum10, sum20, sum30
            y[r + 1, o], y[r + 1, o1], y[r + 1, o2], y[r + 1, o3] = sum01, sum11, sum21, sum31
            y[r2, o], y[r2, o1], y[r2, o2], y[r2, o3] = sum02, sum12, sum22, sum32
            r += 3
        if r < rows:
            x0 = x[r]
            sum00 = sum10 = sum20 = sum30 = zero
            for i in range(width):
                sum00 += kind(w0[i]) * x0[i]
                sum10 += kind(w1[i]) * x0[i]
                sum20 += kind(w2[i]) * x0[i]
                sum30 += kind(w3[i]) * x0[i]
            y[r, o], y[r, o1], y[r, o2], y[r, o3] = sum00, sum10, sum20, sum30
    for o in range(first + 4 * quarter, last):
        w0 = weight[o]
        for r in range(rows):
            x0 = x[r]
            sum00 = zero
            for i in range(width):
                sum00 += kind(w0[i]) * x0[i]
            y[r, o] = sum00
    for r in range(rows):
        for o in range(first, last):
            y[r, o] = y[r, o] * scale[o] + bias[o]


@numba.njit(cache=True, parallel=True)
def _columns_in_parts(x: Array, weight: Array, scale: Array, bias: Array, y: Array, parts: int) -> None:
    width = weight.shape[0]
    for part in numba.prange(parts):
        _columns(x, weight, scale, bias, y, width * part // parts, width * (part + 1) // parts)


@numba.njit(cache=True)
def _linear(x: Array, weight: Array, scale: Array, bias: Array, y: Array, parts: int) -> None:
    if parts > 1 and x.shape[0] * weight.size * weight.itemsize > _PARALLEL:
        _columns_in_parts(x, weight, scale, bias, y, parts)
    else:
        _columns(x, weight, scale, bias, y, np.int64(0), weight.shape[0])  # a literal 0 would be compiled for itself


@numba.njit(cache=True, fastmath=_FAST)
def _layer_norm(x: Array, weight: Array, bias: Array, epsilon: float, y: Array) -> None:
    """``y [R, d]``: the rows of ``x``, normalised."""
    rows, width = x.shape
    numbers = np.array([1.0 / width, epsilon, 0.0, 1.0]).astype(x.dtype)
    share, small, zero, one = numbers[0], numbers[1], numbers[2], numbers[3]
    for r in range(rows):
        row = x[r]
        mean = zero
        for i in range(width):
            mean += row[i] * share
        variance = zero
        for i in range(width):
            variance += (row[i] - mean) * (row[i] - mean) * share
        scale = one / math.sqrt(variance + small)
        for i in range(width):
            y[r, i] = (row[i] - mean) * scale * weight[i] + bias[i]


@numba.njit(cache=True, fastmath=_FAST)
def _erf(x: Any) -> Any:
    """The error function to float32's precision, in arithmetic that becomes vector instructions: an odd polynomial over
    an even one on [-4, 4], beyond which it is 1. The coefficients are those of Eigen's single-precision erf.
    """
    x = min(max(np.float32(x), np.float32(-4.0)), np.float32(4.0))
    square = x * x
    odd = np.float32(-2.72614225801306e-10)
    odd = odd * square + np.float32(2.77068142495902e-08)
    odd = odd * square + np.float32(-2.10102402082508e-06)
    odd = odd * square + np.float32(-5.69250639462346e-05)
    odd = odd * square + np.float32(-7.34990630326855e-04)
    odd = odd * square + np.float32(-2.95459980854025e-03)
    odd = odd * square + np.float32(-1.60960333262415e-02)
    even = np.float32(-1.45660718464996e-05)
    even = even * square + np.float32(-2.13374055278905e-04)
    even = even * square + np.float32(-1.68282697438203e-03)
    even = even * square + np.float32(-7.37332916720468e-03)
    even = even * square + np.float32(-1.42647390514189e-02)
    return x * odd / even


@numba.njit(cache=True, fastmath=_FAST)
def _activate(x: Array, activation: int) -> None:
    """Applies an activation function to ``x [R, d]`` in place; gelu is computed in float32, as fairseq does."""
    rows, width = x.shape
    half, scale, one = np.float32(0.5), np.float32(math.sqrt(0.5)), np.float32(1.0)
    for r in range(rows):
        row = x[r]
        if activation == _RELU:
            for i in range(width):
                row[i] = max(row[i], row[i] - row[i])
        else:
            for i in range(width):
                row[i] = half * row[i] * (one + _erf(row[i] * scale))


@numba.njit(cache=True, fastmath=_FAST)
def _attend(
    query: Array,
    keys: Array,
    values: Array,
    batch: Array,
    seen: Array,
    visible: Array,
    y: Array,
    first: int,
    last: int,
) -> None:
    """Attention of the rows ``first ... last - 1``: ``query [R, d]`` over the first ``seen[r]`` keys of the batch row
    ``batch[r]``.

    ``keys`` and ``values`` are ``[B, heads, capacity, head_dim]``; ``visible [B, S]`` says which of them count, and is
    empty where all do. ``y [R, d]`` is the mix of values.
    """
    heads, head_dim = keys.shape[1], keys.shape[3]
    numbers = np.array([head_dim**-0.5, -math.inf, 0.0]).astype(query.dtype)
    scale, least, zero = numbers[0], numbers[1], numbers[2]
    scores = np.empty(keys.shape[2], dtype=query.dtype)
    for r in range(first, last):
        b = batch[r]
        count = seen[r]
        for h in range(heads):
            q = query[r, h * head_dim : (h + 1) * head_dim]
            best = least
            for s in range(count):
                key = keys[b, h, s]
                score = zero
                for i in range(head_dim):
                    score += q[i] * key[i]
                scores[s] = score * scale
                if visible.size > 0 and not visible[b, s]:
                    scores[s] = least
                best = max(best, scores[s])
            total = zero
            for s in range(count):
                scores[s] = math.exp(scores[s] - best)
                total += scores[s]
            out = y[r, h * head_dim : (h + 1) * head_dim]
            for i in range(head_dim):
                out[i] = zero
            for s in range(count):
                weight = scores[s] / total
                value = values[b, h, s]
                for i in range(head_dim):
                    out[i] += weight * value[i]


@numba.njit(cache=True, parallel=True)
def _attend_in_parts(
    query: Array, keys: Array, values: Array, batch: Array, seen: Array, visible: Array, y: Array, parts: int
) -> None:
    rows = query.shape[0]
    for part in numba.prange(parts):
        _attend(query, keys, values, batch, seen, visible, y, rows * part // parts, rows * (part + 1) // parts)


@numba.njit(cache=True)
def _mix(
    query: Array, keys: Array, values: Array, batch: Array, seen: Array, visible: Array, y: Array, parts: int
) -> None:
    """``_attend`` for all rows."""
    rows = query.shape[0]
    if parts > 1 and rows >= _MANY:
        _attend_in_parts(query, keys, values, batch, seen, visible, y, parts)
    else:
        _attend(query, keys, values, batch, seen, visible, y, np.int64(0), rows)


@numba.njit(cache=True)
def _enter(x: Array, norm: Array, norm_bias: Array, layers: Layers, y: Array) -> None:
    """``y [R, d]``: what a sublayer reads of the residual stream ``x``, normalised where its norm stands before it."""
    if layers.pre_norm:
        _layer_norm(x, norm, norm_bias, layers.epsilon, y)
    else:
        for r in range(x.shape[0]):
            for i in range(x.shape[1]):
                y[r, i] = x[r, i]


@numba.njit(cache=True)
def _leave(x: Array, norm: Array, norm_bias: Array, layers: Layers, y: Array) -> None:
    """Adds what a sublayer found, ``y [R, d]``, to the residual stream ``x``, in place."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[r, i] += y[r, i]
    if not layers.pre_norm:
        _layer_norm(x, norm, norm_bias, layers.epsilon, x)


@numba.njit(cache=True)
def _remember(both: Array, layer: int, batch: Array, positions: Array, layers: Layers) -> None:
    """Writes keys and values, side by side in ``both [R, 2d]``, into a layer's self-attention cache."""
    heads, head_dim = layers.self_keys.shape[2], layers.self_keys.shape[4]
    width = heads * head_dim
    for r in range(both.shape[0]):
        for h in range(heads):
            for i in range(head_dim):
                at = h * head_dim + i
                layers.self_keys[layer, batch[r], h, positions[r], i] = both[r, at]
                layers.self_values[layer, batch[r], h, positions[r], i] = both[r, width + at]


@numba.njit(cache=True)
def run_layers(x: Array, batch: Array, positions: Array, seen: Array, stored: int, layers: Layers, parts: int) -> None:
    """All layers of a decoder, in place on ``x [R, d]``, with ``parts`` threads.

    Row r belongs to the batch row ``batch[r]``, stands at ``positions[r]`` of the self-attention's cache and sees its
    first ``seen[r]`` positions. Of the first ``stored`` rows only the first layer's keys and values are computed.

    This is the one large kernel: what a caller of its own would compile once more is passed in instead.
    """
    width = x.shape[1]
    weights = layers.weights
    if stored > 0:
        normed = np.empty((stored, width), dtype=x.dtype)
        _enter(x[:stored], weights.self_norm[0], weights.self_norm_bias[0], layers, normed)
        both = np.empty((stored, 2 * width), dtype=x.dtype)
        _linear(normed, weights.qkv[0, width:], weights.qkv_scale[0, width:], weights.qkv_bias[0, width:], both, parts)
        _remember(both, np.int64(0), batch, positions, layers)
        x, batch, positions, seen = x[stored:], batch[stored:], positions[stored:], seen[stored:]
    rows = x.shape[0]
    source = batch // (layers.self_keys.shape[1] // layers.cross_keys.shape[1])  # beams share theirs
    sources = np.full(rows, layers.cross_keys.shape[3])
    unmasked = np.zeros((0, 0), dtype=layers.visible.dtype)
    normed = np.empty_like(x)
    query = np.empty_like(x)
    both = np.empty((rows, 2 * width), dtype=x.dtype)
    mixed = np.empty_like(x)
    inner = np.empty((rows, weights.fc1.shape[1]), dtype=x.dtype)
    for i in range(layers.self_keys.shape[0]):
        _enter(x, weights.self_norm[i], weights.self_norm_bias[i], layers, normed)
        _linear(normed, weights.qkv[i, :width], weights.qkv_scale[i, :width], weights.qkv_bias[i, :width], query, parts)
        _linear(normed, weights.qkv[i, width:], weights.qkv_scale[i, width:], weights.qkv_bias[i, width:], both, parts)
        _remember(both, i, batch, positions, layers)
        _mix(query, layers.self_keys[i], layers.self_values[i], batch, seen, unmasked, mixed, parts)
        _linear(mixed, weights.self_out[i], weights.self_out_scale[i], weights.self_out_bias[i], normed, parts)
        _leave(x, weights.self_norm[i], weights.self_norm_bias[i], layers, normed)

        _enter(x, weights.cross_norm[i], weights.cross_norm_bias[i], layers, normed)
        _linear(normed, weights.cross_query[i], weights.cross_query_scale[i], weights.cross_query_bias[i], query, parts)
        _mix(query, layers.cross_keys[i], layers.cross_values[i], source, sources, layers.visible, mixed, parts)
        _linear(mixed, weights.cross_out[i], weights.cross_out_scale[i], weights.cross_out_bias[i], normed, parts)
        _leave(x, weights.cross_norm[i], weights.cross_norm_bias[i], layers, normed)

        _enter(x, weights.final_norm[i], weights.final_norm_bias[i], layers, normed)
        _linear(normed, weights.fc1[i], weights.fc1_scale[i], weights.fc1_bias[i], inner, parts)
        _activate(inner, layers.activation)
        _linear(inner, weights.fc2[i], weights.fc2_scale[i], weights.fc2_bias[i], normed, parts)
        _leave(x, weights.final_norm[i], weights.final_norm_bias[i], layers, normed)


@numba.njit(cache=True)
def token_inputs(
    tokens: Array, start: Array, capacity: int, table: Array, scale: float, position_table: Array
) -> tuple[Array, Array, Array]:
    """``run_layers``' ``x [B * n, d]``, ``batch`` and ``positions`` for ``tokens [B, n]`` from ``start [B]`` on.

    Embeddings are the rows of ``table [V, d]`` times ``scale``, plus those of ``position_table [P, d]`` where there are
    any. Tokens beyond ``capacity`` go into the cache's last slot.
    """
    rows, n = tokens.shape
    width = table.shape[1]
    x = np.empty((rows * n, width), dtype=table.dtype)
    batch = np.empty(rows * n, dtype=np.int64)
    positions = np.empty(rows * n, dtype=np.int64)
    factor = np.full(1, scale).astype(table.dtype)[0]
    for b in range(rows):
        for i in range(n):
            r = b * n + i
            batch[r] = b
            positions[r] = min(start[b] + i, capacity)
            for j in range(width):
                x[r, j] = table[tokens[b, i], j] * factor
            if position_table.shape[0] > 0:
                at = min(positions[r], position_table.shape[0] - 1)
                for j in range(width):
                    x[r, j] += position_table[at, j]
    return x, batch, positions


@numba.njit(cache=True)
def block_inputs(
    prefix: Array,
    length: Array,
    newest: int,
    room: Array,
    k: int,
    capacity: int,
    mask_symbol: int,
    table: Array,
    position_table: Array,
    masks: Array,
) -> tuple[Array, Array, Array, Array, int]:
    """``run_layers``' ``x``, ``batch``, ``positions``, ``seen`` and ``stored`` for a one-layer block drafter.

    To be stored are the ``newest`` last of the first ``length [B]`` tokens of ``prefix [B, T]``; then come the ``k``
    masks behind each prefix. ``masks [B, P, d]`` is the layer's input at masked positions; ``room [B]`` is how many
    masks a row has positions for. The cache's last slot, ``capacity``, is for what nobody sees.
    """
    rows, width = length.shape[0], table.shape[1]
    x = np.empty((rows * (newest + k), width), dtype=table.dtype)
    batch = np.empty(x.shape[0], dtype=np.int64)
    positions = np.empty(x.shape[0], dtype=np.int64)
    seen = np.zeros(x.shape[0], dtype=np.int64)
    stored = 0
    for b in range(rows):
        for at in range(max(0, length[b] - newest), min(length[b], capacity)):
            batch[stored], positions[stored] = b, at
            masked = prefix[b, at] == mask_symbol  # a real unk is read as masked
            for j in range(width):
                x[stored, j] = masks[b, at, j] if masked else table[prefix[b, at], j] + position_table[at, j]
            stored += 1
    r = stored
    for b in range(rows):
        for i in range(k):
            batch[r] = b
            positions[r] = length[b] + i if i < room[b] else capacity
            seen[r] = max(1, min(length[b] + room[b], capacity))
            at = min(length[b] + i, masks.shape[1] - 1)
            for j in range(width):
                x[r, j] = masks[b, at, j]
            r += 1
    return x[:r], batch[:r], positions[:r], seen[:r], stored
