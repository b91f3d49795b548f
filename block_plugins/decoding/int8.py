"""A linear layer with weights and activations in 8 bits, for drafts: they may be approximate, for they are verified."""

import torch
from torch import Tensor, nn


class Int8Linear:
    """``x W^T + b`` by torch's dynamic quantisation (CPU): a scale for each row of W, one for all of x."""

    def __init__(self, linear: nn.Linear) -> None:
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=1e-12) / 127
        zero = torch.zeros_like(scale, dtype=torch.long)
        quantised = torch.quantize_per_channel(weight, scale.double(), zero, axis=0, dtype=torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``, float32."""
        # Activations in 7 bits: on processors without VNNI sums of products of 8 bits would overflow.
        product: Tensor = torch.ops.quantized.linear_dynamic(x.float(), self.packed, True)
        return product
