"""The drafter's loss under a verifier's distributions, against a hand computation."""

import logging
import math
import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from fairseq_tools import PLUGIN, here
from tiny_training import TINY, batch, drafter, make_task, saved, verifier, write_data

from block_plugins.criterions.kd_loss import KDLoss
from block_plugins.errors import UserError
from block_plugins.models.transformer_drafter import TransformerDrafterModel

EOS = 2
SOURCES = [[10, 11, 12], [13], [14, 15, 16, 17, 18]]
TARGETS = [[20, 21, 22, 23], [24], [25, 26, 27]]


def ar_drafter(task: Any, seed: int = 1, **options: Any) -> TransformerDrafterModel:
    torch.manual_seed(seed)
    sizes = {name: value for name, value in TINY.items() if name != "src_embedding_copy"}
    return TransformerDrafterModel.build_model(Namespace(**{**sizes, "dropout": 0.0, **options}), task)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """The checkpoint of a tiny verifier."""
    path = tmp_path / "verifier.pt"
    torch.save(saved(verifier(make_task()), "transformer"), path)
    return path


def test_loss_and_gradient_are_those_of_the_formula(teacher: Path) -> None:
    task = make_task()
    model = ar_drafter(task).double().train()
    criterion = KDLoss(task, str(teacher), 2.0)
    loss, size, log = criterion(model, batch(SOURCES, TARGETS))
    found = torch.autograd.grad(loss, list(model.parameters()))

    judge = verifier(task).double().eval()
    by_hand, agreeing = torch.zeros((), dtype=torch.float64), 0
    for source, target in zip(SOURCES, TARGETS, strict=True):  # a sentence at a time, so without padding
        seen = batch([source], [target])["net_input"]
        for p, q in zip(judge(**seen)[0][0].detach(), model(**seen)[0][0], strict=True):
            agreeing += int(p.argmax() == q.argmax())
            p, q = (p / 2.0).softmax(-1), (q / 2.0).softmax(-1)
            by_hand = by_hand + 2.0**2 * (p * (p / q).log()).sum()
    wanted = torch.autograd.grad(by_hand, list(model.parameters()))

    torch.testing.assert_close(loss, by_hand)
    for gradient, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-6)  # fairseq has some softmaxes in float32
    assert size == 5 + 2 + 4
    assert log["agreeing"] == agreeing


def test_the_verifier_is_neither_trained_nor_saved_and_draws_nothing(teacher: Path) -> None:
    task = make_task()
    torch.manual_seed(3)
    criterion = KDLoss(task, str(teacher), 1.0)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert not list(criterion.parameters()) and not criterion.state_dict()
    model = ar_drafter(task).train()
    criterion(model, batch(SOURCES, TARGETS))[0].backward()
    (judge,) = criterion.verifier
    assert not judge.training
    assert all(weight.grad is None for weight in judge.parameters())


def test_what_is_logged_is_averaged_over_tokens_of_all_workers() -> None:
    logs = [{"loss": torch.tensor(3.0 * math.log(2)), "agreeing": torch.tensor(2), "sample_size": 4}]
    logs += [{"loss": torch.tensor(9.0 * math.log(2)), "agreeing": torch.tensor(1), "sample_size": 2}]
    with metrics.aggregate() as meters:
        KDLoss.reduce_metrics(logs)
    assert meters.get_smoothed_values() == {"loss": 2.0, "agreement": 0.5}


def test_what_cannot_work_is_told(teacher: Path, tmp_path: Path) -> None:
    task = make_task()
    with pytest.raises(UserError, match="kd_loss learns from a verifier: give its checkpoint with --kd-AR-path"):
        KDLoss(task, None, 1.0)
    with pytest.raises(UserError, match="--kd-temperature must be more than 0, not 0"):
        KDLoss(task, str(teacher), 0.0)
    with pytest.raises(UserError, match="--kd-AR-path: there is no checkpoint nowhere"):
        KDLoss(task, "nowhere.pt", 1.0)
    torch.save(saved(drafter(task), "block"), tmp_path / "block.pt")
    with pytest.raises(UserError, match=r"--kd-AR-path: .*\.pt is a block drafter"):
        KDLoss(task, str(tmp_path / "block.pt"), 1.0)

    criterion, sample = KDLoss(task, str(teacher), 1.0), batch(SOURCES, TARGETS)
    with pytest.raises(UserError, match="kd_loss trains autoregressive drafters"):
        criterion(drafter(task), sample)
    with pytest.raises(UserError, match="40 target positions, but the drafter 50: give --max-target-positions 40"):
        criterion(ar_drafter(task, max_target_positions=50), sample)


# ---- as fairseq-train runs it


def losses(caplog: pytest.LogCaptureFixture, teacher: Path, cwd: Path, *flags: object) -> list[dict[str, float]]:
    """Loss and agreement of each validation, one after every eighth update."""
    words = f"""-s en -t de --cpu --noise no_noise --criterion kd_loss --kd-AR-path {teacher} --arch transformer_drafter
    --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --share-all-embeddings
    --encoder-attention-heads 2 --decoder-attention-heads 2 --max-source-positions 40 --max-target-positions 40
    --dropout 0 --optimizer adam --lr 0.01 --max-tokens 60 --max-update 24 --validate-interval-updates 8
    --no-epoch-checkpoints --no-save --log-format simple --seed 3"""
    write_data(cwd / "data")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        here("train", cwd / "data", *PLUGIN, *shlex.split(words), *flags, cwd=cwd)
    lines = re.findall(r"valid on 'valid' subset \| loss ([\d.]+) \| agreement ([\d.]+) ", caplog.text)
    return [{"loss": float(loss), "agreement": float(agreement)} for loss, agreement in lines]


def test_training_brings_the_drafter_to_its_verifier(
    teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    validations = losses(caplog, teacher, tmp_path)
    assert validations[-1]["loss"] < validations[0]["loss"] > 0
    (only,) = losses(caplog, teacher, tmp_path, "--finetune-from-model", teacher, "--max-update", 1, "--lr", 0)
    assert only == {"loss": 0.0, "agreement": 1.0}  # it began as the verifier, and learned nothing
