"""What training with several processes asks of task and criterion."""

from typing import Any

import numpy as np
from torch import nn


def unwrapped(model: Any) -> Any:
    """The model itself, out of fairseq's wrappers for distributed training, of which there are two or three."""
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model


def batch_seed(seed: int, update: int, first: int) -> int:
    """A seed for the random numbers of one batch, the same whichever process trains on it.

    fairseq seeds every process alike at each update. Then the processes would draw the same noise and dropout for
    different batches, and what a batch gets would depend on how many batches of the update its process has had before.

    Args:
        seed: of the training.
        update: number of the update.
        first: number of the batch's first sentence in the data set.
    """
    return int(np.random.SeedSequence((seed, update, first)).generate_state(1)[0])
