"""Small arrays on the host: what an iteration brings back from the device."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]


def through_first(found: Array) -> Array:
    """For each row of ``found`` ``[b, n]`` the columns up to and including the first true one, n + 1 where none is."""
    if found.shape[1] == 0:
        return np.ones(len(found), dtype=np.int64)
    return np.where(found.any(1), found.argmax(1), found.shape[1]) + 1


def best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest of ``scores`` ``[..., V]`` and where it stands, ``[...]`` each."""
    at = argbest(scores)
    return scores.gather(-1, at.unsqueeze(-1)).squeeze(-1), at


def argbest(scores: Tensor) -> Tensor:
    """Where the greatest of ``scores`` ``[..., V]`` stands, ``[...]``.

    On a CPU NumPy finds it ten times faster than torch does.
    """
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return scores.argmax(-1)
    return torch.from_numpy(scores.detach().numpy().argmax(-1))


def to_host(*tensors: Tensor) -> list[Array]:
    """Tensors ``[b, n]``, n of each its own, as arrays; from a GPU all of them in a single copy."""
    if tensors[0].device.type == "cpu":
        return [tensor.detach().numpy() for tensor in tensors]
    joined = torch.cat([tensor.double() for tensor in tensors], dim=1).cpu().numpy()  # holds ids and float32 exactly
    parts = np.split(joined, np.cumsum([tensor.size(1) for tensor in tensors])[:-1], axis=1)
    return [
        part if tensor.is_floating_point() else part.astype(bool if tensor.dtype == torch.bool else np.int64)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
