"""Fixtures that several test modules share."""

from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
LONGEST_FIRST = [
    *(
        "test_docs.py",
        "test_scripts.py",
        "test_main_job.py",
        "test_training_cli.py",
        "test_reference.py",
        "test_lossless.py",
    ),
    *(
        "test_low_resource.py",
        "test_dual_translation.py",
        "test_get_data.py",
        "test_benchmarks.py",
        "test_validation_worth.py",
        "test_translate.py",
        "test_trace.py",
    ),
]
"""Files that take the longest. Where files are shared out among workers, the last one to finish mustn't begin late."""


def pytest_configure(config: pytest.Config) -> None:
    """xdist would hand out first what has the most tests, however short they are."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files in front; all else stays as it is."""
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with optional reference material beside the checkout; the test is skipped where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "reference").is_dir():
        pytest.skip(f"the reference checkpoints are not there ({folder}/reference)")
    return folder


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHON_BIN whose fairseq-train prints its arguments, one a line; in it an empty data folder, bin."""
    folder = tmp_path_factory.mktemp("stand-in")
    program = folder / "fairseq-train"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "bin").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _one_thread_and_a_fixed_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
