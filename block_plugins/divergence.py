"""What word-level distillation minimises: the divergence of a drafter's distributions from its verifier's."""

import torch
import torch.nn.functional as F
from torch import Tensor

from block_plugins.errors import UserError


def check_temperature(temperature: float) -> None:
    """Raises ``UserError`` for a temperature that means nothing."""
    if not temperature > 0.0:
        raise UserError(f"--kd-temperature must be more than 0, not {temperature}")


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """The sum over N positions of KL(teacher || student), in nats, in float32 at least.

    Both are softened by ``temperature`` and the divergence is multiplied by its square, which keeps the size of the
    gradient (Hinton et al., 2015, section 2).

    Args:
        teacher: logits ``[N, V]``, a constant.
        student: logits ``[N, V]``.
        temperature: above 0.
    """
    wanted, got = (
        F.log_softmax(logits / temperature, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        for logits in (teacher.detach(), student)
    )
    return F.kl_div(got, wanted, log_target=True, reduction="sum") * temperature**2
