"""A linear layer with weights in 8 bits, for drafts: they may be approximate, for they are verified."""

import torch
from torch import Tensor, nn

from block_plugins.decoding import cpu_kernels

_FEW = 2
"""Rows up to which it takes less time to multiply x as it is."""


class Int8Linear:
    """``x W^T + b`` on a CPU, with a factor for each row of W.

    One or two rows of x are multiplied as they are; more are rounded as well (torch's dynamic quantisation, with
    one factor for all of x), for then it is arithmetic that takes the time.
    """

    def __init__(self, linear: nn.Linear) -> None:
        weight = linear.weight.detach().float()
        self.weight, self.scale = cpu_kernels.quantised(weight)
        bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()
        self.bias = bias.numpy()
        zero = torch.zeros(len(weight), dtype=torch.long)
        scale = torch.from_numpy(self.scale).double()
        packed = torch.quantize_per_channel(weight, scale, zero, axis=0, dtype=torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(packed, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``, float32."""
        x = x.float()
        if x.numel() <= _FEW * x.size(-1):
            return cpu_kernels.product(x, self.weight, self.scale, self.bias)
        # Activations in 7 bits: on processors without VNNI sums of products of 8 bits would overflow.
        product: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, True)
        return product
