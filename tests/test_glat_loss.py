"""Glancing and the training loss, against loops and hand computations."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from tiny_training import batch, drafter, make_task, padded, verifier
from torch import Tensor

from block_plugins import smoothed_cross_entropy as module
from block_plugins.criterions.glat_loss import GlatLoss
from block_plugins.errors import UserError
from block_plugins.glancing import choose_revealed, glance
from block_plugins.smoothed_cross_entropy import smoothed_cross_entropy

PAD, EOS, UNK = 1, 2, 3
SOURCES = [[10, 11, 12], [13], [14, 15, 16, 17, 18]]
TARGETS = [[20, 21, 22, 23], [24], [25, 26, 27]]


def masked_batch(sources: list[list[int]] = SOURCES, targets: list[list[int]] = TARGETS) -> dict[str, Any]:
    """A batch in which everything but the first token of each row is to be predicted, with two masks behind EOS."""
    sample = batch(sources, targets)
    seen = padded([row[:1] + [UNK] * (len(row) + 2) for row in targets])
    wanted = padded([[PAD, *row[1:], EOS, PAD, PAD] for row in targets])
    return {**sample, "net_input": {**sample["net_input"], "prev_output_tokens": seen}, "target": wanted}


# ---- the choice of revealed positions


@pytest.mark.parametrize("context_p", [0.0, 0.29, 0.5, 1.0])
def test_revealed_positions_are_the_lowest_scores_among_the_masked(context_p: float) -> None:
    generator = torch.Generator().manual_seed(1)
    correct = torch.rand(50, 12, generator=generator) < 0.3
    masked = torch.rand(50, 12, generator=generator) < 0.6
    scores = torch.rand(50, 12, generator=generator)
    revealed = choose_revealed(correct, masked, context_p, scores)
    for row in range(50):
        candidates = [i for i in range(12) if masked[row, i]]
        wrong = sum(not correct[row, i] for i in candidates)
        count = math.floor(wrong * context_p)
        expected = sorted(candidates, key=lambda i: scores[row, i].item())[:count]
        assert revealed[row].nonzero().flatten().tolist() == sorted(expected)


def test_every_set_of_masked_positions_is_as_likely_as_any_other() -> None:
    rows = 15000
    masked = torch.tensor([[False, True, True, True, True, False]]).expand(rows, -1)
    correct = torch.zeros_like(masked)
    revealed = choose_revealed(correct, masked, 0.5, torch.rand(rows, 6))
    counts = Counter(tuple(row.nonzero().flatten().tolist()) for row in revealed)
    expected = rows / math.comb(4, 2)
    assert len(counts) == 6
    assert all(len(pair) == 2 and abs(n - expected) < 5 * expected**0.5 for pair, n in counts.items())


# ---- the glancing pass


def dropout_masks(model: Any) -> list[Tensor]:
    """Collects which elements each call of the decoder's dropouts sets to zero."""
    masks: list[Tensor] = []
    for part in (model.decoder, *model.decoder.layers):
        part.dropout_module.register_forward_hook(lambda _module, _inputs, output: masks.append(output.eq(0)))
    return masks


def test_both_passes_drop_the_same_units_and_later_ones_others() -> None:
    model = drafter(make_task(), dropout=0.5).train()
    masks = dropout_masks(model)
    sample = masked_batch()
    for _ in range(2):
        model(**sample["net_input"], target=sample["target"], context_p=0.5)
    calls = len(masks) // 4
    assert calls == 4 * len(model.decoder.layers)  # the decoder's own, and three inside of each layer
    first, second, third = masks[:calls], masks[calls : 2 * calls], masks[2 * calls : 3 * calls]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, third, strict=True))


def test_glance_counts_reveals_and_keeps_the_rest() -> None:
    model = drafter(make_task()).eval()
    sample = masked_batch()
    seen, target = sample["net_input"]["prev_output_tokens"], sample["target"]
    masked = target.ne(PAD)
    with torch.no_grad():
        encoder_out = model.encoder(sample["net_input"]["src_tokens"])
        predicted = model.decoder(seen, encoder_out)[0].argmax(dim=-1)
    target = torch.where(masked & (torch.arange(target.size(1)) == 2), predicted, target)  # right at one position
    result = glance(model.decoder, seen, target, masked, encoder_out, 0.6)
    right = (predicted.eq(target) & masked).sum(dim=1)
    assert result.correct.item() == right.sum().item() > 0
    assert result.glanced.item() == masked.sum().item()
    for row in range(len(seen)):
        revealed = [i for i in range(seen.size(1)) if masked[row, i] and not result.masked[row, i]]
        assert len(revealed) == math.floor((masked[row].sum().item() - right[row].item()) * 0.6)
        for i in range(seen.size(1)):
            expected = target[row, i] if i in revealed else seen[row, i]
            assert result.prev_output_tokens[row, i] == expected


def test_the_loss_is_taken_where_tokens_are_still_masked() -> None:
    model = drafter(make_task(), dropout=0.0).train()
    seen_by_decoder: list[Tensor] = []
    extract = model.decoder.extract_features
    model.decoder.extract_features = lambda tokens, *rest: (seen_by_decoder.append(tokens), extract(tokens, *rest))[1]
    sample = masked_batch()
    output = model(**sample["net_input"], target=sample["target"], context_p=0.9)
    second = seen_by_decoder[1]
    still_masked = second.eq(UNK) & sample["target"].ne(PAD)
    assert 0 < still_masked.sum() < sample["target"].ne(PAD).sum()
    assert torch.equal(output.target, sample["target"][still_masked])
    logits = model.decoder(second, model.encoder(sample["net_input"]["src_tokens"]))[0]
    assert torch.allclose(output.logits, logits[still_masked], atol=1e-6)


def test_no_glancing_outside_of_training() -> None:
    model = drafter(make_task()).eval()
    sample = masked_batch()
    output = model(**sample["net_input"], target=sample["target"], context_p=0.9)
    assert torch.equal(output.target, sample["target"][sample["target"].ne(PAD)])
    assert output.glanced.item() == 0


# ---- label-smoothed cross entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_cross_entropy_by_hand(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 14)  # two rows at a time
    logits = torch.randn(5, 7, dtype=torch.float64)
    target = torch.tensor([3, 0, 6, 6, 2])
    loss, nll = smoothed_cross_entropy(logits, target, smoothing)
    expected_loss = expected_nll = 0.0
    for row, answer in zip(logits.tolist(), target.tolist(), strict=True):
        total = sum(math.exp(value) for value in row)
        log_p = [value - math.log(total) for value in row]
        expected_nll -= log_p[answer]
        expected_loss -= (1 - smoothing) * log_p[answer] + smoothing * sum(log_p) / 7
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)
    assert nll.item() == pytest.approx(expected_nll, rel=1e-12)


def test_smoothed_cross_entropy_has_the_gradient_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 14)
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([3, 0, 6, 6, 2])
    assert torch.autograd.gradcheck(lambda x: 3 * smoothed_cross_entropy(x, target, 0.1)[0], (logits,))


def test_smoothed_cross_entropy_of_no_rows_is_zero_with_a_gradient() -> None:
    logits = torch.zeros(0, 7, requires_grad=True)
    loss, nll = smoothed_cross_entropy(logits, torch.zeros(0, dtype=torch.long), 0.1)
    loss.backward()
    assert loss.item() == nll.item() == 0.0
    assert logits.grad is not None and logits.grad.shape == (0, 7)


def test_smoothed_cross_entropy_of_bfloat16_is_computed_in_float32() -> None:
    logits = torch.randn(64, 50).bfloat16().requires_grad_()
    target = torch.randint(0, 50, (64,))
    loss, _ = smoothed_cross_entropy(logits, target, 0.1)
    loss.backward()
    exact = logits.detach().double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(exact, target, label_smoothing=0.1, reduction="sum")
    wanted.backward()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert logits.grad.dtype == torch.bfloat16
    assert torch.allclose(logits.grad.double(), exact.grad, atol=4e-3)


# ---- the criterion


def test_criterion_sums_the_loss_over_scored_tokens() -> None:
    task = make_task()
    model, sample = drafter(task).eval(), masked_batch()
    loss, sample_size, log = GlatLoss(task, 0.1)(model, sample)
    logits, _ = model(**sample["net_input"])
    scored = sample["target"].ne(PAD)
    log_p = logits.log_softmax(dim=-1)[scored]
    nll = -log_p.gather(1, sample["target"][scored].unsqueeze(1)).sum()
    expected = 0.9 * nll - 0.1 * log_p.mean(dim=-1).sum()
    assert sample_size == scored.sum().item() == 8
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert log["nll_loss"].item() == pytest.approx(nll.item(), rel=1e-5)
    assert (log["ntokens"], log["nsentences"], log["sample_size"]) == (11, 3, 8)


def test_parts_of_a_batch_add_up_to_its_gradient_and_its_log() -> None:
    task = make_task()
    model, criterion = drafter(task, dropout=0.0).double().train(), GlatLoss(task, 0.1)

    def gradient(parts: list[dict[str, Any]]) -> tuple[Tensor, list[dict[str, Any]]]:
        model.zero_grad()
        results = [criterion(model, part) for part in parts]
        (sum(loss for loss, _, _ in results) / sum(size for _, size, _ in results)).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()]), [log for _, _, log in results]

    whole, whole_log = gradient([masked_batch()])
    split, split_logs = gradient([masked_batch(SOURCES[:2], TARGETS[:2]), masked_batch(SOURCES[2:], TARGETS[2:])])
    assert torch.allclose(whole, split, atol=1e-12)
    with metrics.aggregate(new_root=True) as one:
        GlatLoss.reduce_metrics(whole_log)
    with metrics.aggregate(new_root=True) as two:
        GlatLoss.reduce_metrics(split_logs)
    assert one.get_smoothed_values() == two.get_smoothed_values()


def test_metrics_are_averages_over_all_workers() -> None:
    logs = [
        {"loss": 8.0, "nll_loss": 6.0, "sample_size": 2, "glat_correct": 1, "glat_masked": 4, "glat_context_p": 0.5},
        {"loss": 4.0, "nll_loss": 3.0, "sample_size": 4, "glat_correct": 5, "glat_masked": 6, "glat_context_p": 0.3},
    ]
    logs = [{**log, "glat_passes": 1} for log in logs]
    summed = [{key: sum(log[key] for log in logs) for key in logs[0]}]  # what fairseq's fast path hands over
    assert GlatLoss.logging_outputs_can_be_summed()
    for outputs in (logs, summed):
        with metrics.aggregate(new_root=True) as meters:
            GlatLoss.reduce_metrics(outputs)
        values = meters.get_smoothed_values()
        assert values["loss"] == values["word_ins"] == round(12 / 6 / math.log(2), 3)
        assert values["nll_loss"] == round(9 / 6 / math.log(2), 3)
        assert values["ppl"] == pytest.approx(math.exp(1.5), abs=0.01)
        assert values["glat_accu"] == 0.6
        assert values["glat_context_p"] == 0.4


def test_criterion_refuses_other_models_and_impossible_smoothing() -> None:
    task = make_task()
    with pytest.raises(UserError, match="--arch block"):
        GlatLoss(task, 0.1)(verifier(task), masked_batch())
    with pytest.raises(UserError, match="--label-smoothing"):
        GlatLoss(task, 1.0)
