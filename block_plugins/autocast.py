"""Mixed precision on the CPU: matrix products in bfloat16, parameters and checkpoints in float32.

Besides the products this mends what else a profile of a training step shows: on the CPU torch's fused attention has a
slow backward pass in bfloat16, and its dropout draws a random number for every element.
"""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from math import prod

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CHOICES = ("none", "bf16")
_LEVELS = 1 << 16


def cpu_autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context for a forward pass on `device` in one of ``CHOICES``; it has no effect on devices but the CPU."""
    if precision == "none" or device.type != "cpu":
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    return stack


class FrugalDropout(FairseqDropout):
    """Dropout that takes 16 random bits for an element on the CPU; elsewhere it is fairseq's.

    The probability is rounded to a multiple of 2 ** -16, and the scale that makes up for it goes with the rounded one.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        dropped = round(self.p * _LEVELS)
        if x.device.type != "cpu" or dropped == 0 or not (self.training or self.apply_during_inference):
            return super().forward(x, inplace)
        words = torch.empty((prod(x.shape) + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        draws = words.view(torch.int16)[: prod(x.shape)].view(x.shape)  # uniform on -2 ** 15 .. 2 ** 15 - 1
        keep = draws.gt(dropped - 1 - _LEVELS // 2).to(x.dtype)
        return x * keep.mul_(_LEVELS / max(1, _LEVELS - dropped))


def make_dropout_frugal(model: nn.Module) -> None:
    """Puts ``FrugalDropout`` in place of every dropout module of a fairseq model."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, FrugalDropout(child.p, module_name=child.module_name))
