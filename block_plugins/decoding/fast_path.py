"""When and how the compiled CPU kernels are used, with tensors on the outside."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from block_plugins.decoding import cpu_kernels
from block_plugins.decoding.host import Array
from block_plugins.decoding.kv_cache import KVCache

MAX_ROWS = 64
"""Rows up to which the kernels run layers faster than torch does."""

MAX_PRODUCT_ROWS = 12
"""Rows up to which they beat torch in a single product."""

_TYPES = (torch.float32, torch.float64)


def suits(x: Tensor, most: int) -> bool:
    """Whether ``x`` ``[..., d]`` is what the kernels are made for: rows on a CPU, not more than ``most``."""
    return x.numel() <= most * x.size(-1) and x.device.type == "cpu" and x.dtype in _TYPES


class Product:
    """A linear layer ``x W^T + b`` with ``W`` ``[out, in]``, by the fastest way there is for so many rows.

    On a CPU in float32 W is also kept in oneDNN's own layout, which spares it from being rearranged for each product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()
        self.arrays: tuple[Array, Array, Array] | None = None  # as the kernels take them
        if weight.device.type == "cpu" and weight.dtype in _TYPES:
            offset = self.weight.new_zeros(weight.size(0)) if self.bias is None else self.bias
            self.arrays = self.weight.numpy(), torch.ones_like(offset).numpy(), offset.numpy()
        self.packed: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        if self.arrays is not None and suits(x, MAX_PRODUCT_ROWS):
            return cpu_kernels.product(x, *self.arrays)
        if self.packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return product
        return F.linear(x, self.weight, self.bias)


def open_kernels(
    layers: Sequence[TransformerDecoderLayerBase], qkv: Sequence[Product], int8: bool = False
) -> "Kernels | None":
    """Kernels for these layers (``qkv`` are their joined projections), or None where there are none; see ``Kernels``
    for ``int8``.
    """
    weight = layers[0].fc1.weight
    if weight.device.type != "cpu" or weight.dtype not in _TYPES:
        return None
    activation = _activation(layers[0])
    same_width = layers[0].self_attn.num_heads == layers[0].encoder_attn.num_heads
    epsilons = {
        norm.eps
        for layer in layers
        for norm in (layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm)
    }
    if activation is None or not same_width or len(epsilons) > 1:
        return None
    return Kernels(layers, qkv, activation, epsilons.pop(), int8 and weight.dtype == torch.float32)


class Kernels:
    """The weights of a decoder's layers, stacked as the kernels want them, its matrices in 8 bits with ``int8``."""

    def __init__(
        self,
        layers: Sequence[TransformerDecoderLayerBase],
        qkv: Sequence[Product],
        activation: int,
        epsilon: float,
        int8: bool,
    ) -> None:
        def stacked(tensors: Sequence[Tensor | None], width: int) -> Any:
            like = layers[0].fc1.weight
            return torch.stack([like.new_zeros(width) if t is None else t.detach() for t in tensors]).numpy()

        def matrices(modules: Sequence[Any]) -> tuple[Any, Any, Any]:
            bias = stacked([module.bias for module in modules], modules[0].weight.size(0))
            if not int8:
                return stacked([module.weight for module in modules], 0), np.ones_like(bias), bias
            pairs = [cpu_kernels.quantised(module.weight.detach()) for module in modules]
            return np.stack([weight for weight, _ in pairs]), np.stack([scale for _, scale in pairs]), bias

        def norms(modules: Sequence[Any]) -> tuple[Any, Any]:
            return stacked([module.weight for module in modules], 0), stacked([module.bias for module in modules], 0)

        self.weights = cpu_kernels.LayerWeights(
            *matrices(qkv),
            *matrices([layer.self_attn.out_proj for layer in layers]),
            *matrices([layer.encoder_attn.q_proj for layer in layers]),
            *matrices([layer.encoder_attn.out_proj for layer in layers]),
            *matrices([layer.fc1 for layer in layers]),
            *matrices([layer.fc2 for layer in layers]),
            *norms([layer.self_attn_layer_norm for layer in layers]),
            *norms([layer.encoder_attn_layer_norm for layer in layers]),
            *norms([layer.final_layer_norm for layer in layers]),
        )
        self.pre_norm = bool(layers[0].normalize_before)
        self.activation = activation
        self.epsilon = epsilon

    def bind(self, past: KVCache, cross: KVCache, visible: Tensor | None) -> "BoundKernels":
        """The kernels on a batch's caches, which they then read and write in place."""
        return BoundKernels(self, past, cross, visible)


class BoundKernels:
    """Kernels with everything that stays the same from step to step."""

    def __init__(self, kernels: Kernels, past: KVCache, cross: KVCache, visible: Tensor | None) -> None:
        self.batch = np.arange(past.keys.size(1))
        mask = torch.empty(0, 0, dtype=torch.bool) if visible is None else visible[:, 0, 0]
        arrays = (tensor.numpy() for tensor in (past.keys, past.values, cross.keys, cross.values, mask))
        self.layers = cpu_kernels.Layers(
            kernels.weights, kernels.pre_norm, kernels.activation, kernels.epsilon, *arrays
        )

    def run(self, x: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """As ``LayersState.run``, in place on ``x``."""
        x = x.detach().contiguous()
        rows = x.view(-1, x.size(2)).numpy()
        self._run(rows, self.batch.repeat(x.size(1)), positions.numpy().reshape(-1), seen.numpy().reshape(-1))
        return x

    def decode(self, tokens: Tensor, start: Array, capacity: int, embeddings: "Embeddings") -> Tensor:
        """``run`` for ``tokens`` ``[B, n]`` at the positions from ``start`` ``[B]`` on, embedded as well."""
        x, batch, positions = cpu_kernels.token_inputs(
            tokens.contiguous().numpy(), start, capacity, embeddings.table, embeddings.scale, embeddings.positions
        )
        self._run(x, batch, positions, positions + 1)
        return torch.from_numpy(x).view(*tokens.shape, -1)

    def draft(
        self,
        prefix: Array,
        length: Array,
        newest: int,
        room: Array,
        k: int,
        mask_symbol: int,
        embeddings: "Embeddings",
        masks: Tensor,
    ) -> Tensor:
        """What a one-layer block drafter makes of the masks behind each prefix, ``[B, k, d]``; see ``block_inputs``."""
        capacity = self.layers.self_keys.shape[3] - 1
        x, batch, positions, seen, stored = cpu_kernels.block_inputs(
            np.ascontiguousarray(prefix), length, newest, room, k, capacity, mask_symbol,
            embeddings.table, embeddings.positions, masks.numpy(),
        )  # fmt: skip
        self._run(x, batch, positions, seen, stored)
        return torch.from_numpy(x[stored:]).view(len(length), k, -1)

    def _run(self, x: Array, batch: Array, positions: Array, seen: Array, stored: int = 0) -> None:
        cpu_kernels.run_layers(x, batch, positions, seen, stored, self.layers, cpu_kernels.threads())


class Embeddings:
    """The embeddings of a decoder for the kernels: ``table [V, d]`` times ``scale``, plus ``positions [P, d]``."""

    def __init__(self, table: Tensor, scale: float, positions: Tensor | None) -> None:
        self.table = table.detach().numpy()
        self.scale = float(scale)
        if positions is None:
            positions = table.new_empty(0, table.size(1))
        self.positions = positions.detach().contiguous().numpy()


def _activation(layer: TransformerDecoderLayerBase) -> int | None:
    for name, number in cpu_kernels.ACTIVATIONS.items():
        if layer.activation_fn is utils.get_activation_fn(name):
            # fairseq's gelu computes in float32 whatever it is given, so in float64 only its own is exact
            single = layer.fc1.weight.dtype == torch.float32
            return number if single or name != "gelu" else None
    return None
