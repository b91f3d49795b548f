"""Fixtures that several test modules share."""

from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with optional reference material beside the checkout; the test is skipped where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "reference").is_dir():
        pytest.skip(f"the reference checkpoints are not there ({folder}/reference)")
    return folder


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
