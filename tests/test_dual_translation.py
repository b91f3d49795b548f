"""--task dual_translation and --criterion dual_reconstruction_loss: the loss against one written by hand, where its
gradients go, tags, stages, annealing, validation, bad input, and training as a user starts it.
"""

import logging
import multiprocessing
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
import torch
from fairseq.logging import metrics
from fairseq_tools import REPOSITORY, here
from omegaconf import OmegaConf
from tiny_dual import make_criterion, make_model, make_task
from tiny_training import WORDS, batch, dictionary, verifier, write_data, write_split
from torch.nn.parallel import DistributedDataParallel

from block_plugins import noise, translation_scores
from block_plugins.annealing import Annealing
from block_plugins.distributed import unwrapped
from block_plugins.dual_batches import both_directions, translate
from block_plugins.errors import UserError
from block_plugins.tasks.dual_translation import DRAFT_WEIGHT, DualTranslationTask

PAD, EOS, UNK = 1, 2, 3
SOURCES = [[10, 11, 12], [13], [14, 15, 16, 17, 18]]
TARGETS = [[20, 21, 22, 23], [24], [25, 26, 27]]
TAG = 31  # the last of the 28 words


def weighted(sample: dict[str, Any], rec: float, kd: float) -> dict[str, Any]:
    return {**sample, "rec_weight": rec, "kd_weight": kd}


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# ---- by hand: one sentence at a time, without padding, without a cache


def logits_of(model: Any, source: list[int], fed: list[int]) -> torch.Tensor:
    tokens = torch.tensor([[*source, EOS]])
    output: torch.Tensor = model(tokens, torch.tensor([tokens.size(1)]), torch.tensor([fed]))[0][0]
    return output


@torch.no_grad()
def greedy_by_hand(model: Any, source: list[int], most: int) -> list[int]:
    """At least one token and at most ``most``, EOS not counted."""
    was_training, found = model.training, []
    model.eval()
    while len(found) < most:
        scores = logits_of(model, source, [EOS, *found])[-1].clone()
        scores[PAD] = float("-inf")
        if not found:
            scores[EOS] = float("-inf")
        best = int(scores.argmax())
        if best == EOS:
            break
        found.append(best)
    model.train(was_training)
    return found


def cross_entropy_by_hand(logits: torch.Tensor, target: list[int], smoothing: float) -> torch.Tensor:
    log_probs = logits - logits.exp().sum(1, keepdim=True).log()
    loss = logits.new_zeros(())
    for row, token in zip(log_probs, target, strict=True):
        loss = loss - (1 - smoothing) * row[token] - smoothing * row.sum() / len(row)
    return loss


def divergence_by_hand(teacher: torch.Tensor, student: torch.Tensor, temperature: float) -> torch.Tensor:
    p, q = (torch.softmax(logits / temperature, 1) for logits in (teacher.detach(), student))
    return (p * (p / q).log()).sum() * temperature**2


def loss_by_hand(model: Any, rec: float, kd: float, smoothing: float, temperature: float) -> torch.Tensor:
    loss = torch.zeros((), dtype=torch.float64)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        for one, other, names in ((source, target, ("forward", "backward")), (target, source, ("backward", "forward"))):
            own, opposite = (getattr(model, f"{name}_verifier") for name in names)
            drafter = getattr(model, f"{names[0]}_drafter")
            logits = logits_of(own, one, [EOS, *other])
            loss = loss + cross_entropy_by_hand(logits, [*other, EOS], smoothing)
            pseudo = greedy_by_hand(own, one, len(one) + 1 + 2)  # --rec-max-len-a 1 counts EOS, --rec-max-len-b 2
            again = logits_of(opposite, pseudo, [EOS, *one])
            loss = loss + rec * cross_entropy_by_hand(again, [*one, EOS], smoothing)
            loss = loss + kd * divergence_by_hand(logits, logits_of(drafter, one, [EOS, *other]), temperature)
    return loss


@pytest.mark.parametrize("shared", [False, True])
def test_loss_and_gradient_are_those_of_the_formula(shared: bool) -> None:
    task = make_task()
    model = make_model(task, share_dual_embeddings=shared).double().train()
    criterion = make_criterion(task, label_smoothing=0.1, kd_temperature=2.0)
    loss, size, log = criterion(model, weighted(batch(SOURCES, TARGETS), 0.2, 0.3))
    found = gradients(model, loss)
    by_hand = loss_by_hand(model, 0.2, 0.3, 0.1, 2.0)
    wanted = gradients(model, by_hand)
    torch.testing.assert_close(loss, by_hand)
    assert size == (11 + 12) / 2
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    for name, gradient in wanted.items():
        # fairseq has some softmaxes in float32 always
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert log["ce_fwd_tokens"] == log["rec_bwd_tokens"] == log["kd_fwd_tokens"] == 11
    terms = log["ce_fwd"] + log["ce_bwd"] + 0.2 * (log["rec_fwd"] + log["rec_bwd"])
    torch.testing.assert_close(terms + 0.3 * (log["kd_fwd"] + log["kd_bwd"]), by_hand.detach())


def test_a_block_drafter_is_compared_with_the_verifier_at_its_masks() -> None:
    task = make_task(block_size=2)
    model = make_model(task, drafter_kind="block").double()
    sample = batch(SOURCES, TARGETS)
    torch.manual_seed(5)
    _, _, log = make_criterion(task)(model, weighted(sample, 0.0, 1.0))
    torch.manual_seed(5)
    corrupted = noise.block_mask(
        sample["target"], 2, pad=PAD, unk=UNK, max_length=40
    )  # the forward drafter's, drawn first
    wanted, masks = torch.zeros((), dtype=torch.float64), 0
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        cut = int(corrupted.prefix_length[row])
        predicted = min(2, len(target) + 1 - cut)
        teacher = logits_of(model.forward_verifier, source, [EOS, *target])[cut : cut + predicted]
        student = logits_of(model.forward_drafter, source, [*target[:cut], UNK, UNK])[cut : cut + predicted]
        wanted, masks = wanted + divergence_by_hand(teacher, student, 1.0), masks + predicted
    torch.testing.assert_close(log["kd_fwd"], wanted.detach())
    assert log["kd_fwd_tokens"] == masks


def test_distillation_trains_drafters_alone_and_nothing_else_does() -> None:
    task = make_task()
    model, sample = make_model(task), batch(SOURCES, TARGETS)
    without = gradients(model, make_criterion(task)(model, weighted(sample, 0.2, 0.0))[0])
    with_it = gradients(model, make_criterion(task)(model, weighted(sample, 0.2, 5.0))[0])
    by_references = gradients(model, make_criterion(task)(model, {**sample, "rec_weight": 0.2, "draft_weight": 5.0})[0])
    assert with_it.keys() == by_references.keys() == dict(model.named_parameters()).keys()
    for name in with_it:
        if "drafter" in name:
            assert name not in without and with_it[name].any() and by_references[name].any()
        else:
            assert torch.equal(with_it[name], without[name]) and torch.equal(by_references[name], without[name])


@pytest.mark.parametrize("kind", ["ar", "block"])
def test_drafters_learn_from_the_references_by_cross_entropy(kind: str) -> None:
    task = make_task(block_size=2)
    model, sample = make_model(task, drafter_kind=kind).double(), batch(SOURCES, TARGETS)
    torch.manual_seed(5)
    _, _, log = make_criterion(task, label_smoothing=0.1)(model, {**sample, "draft_weight": 1.0})
    torch.manual_seed(5)
    cuts = noise.block_mask(sample["target"], 2, pad=PAD, unk=UNK, max_length=40).prefix_length  # drawn first
    wanted, tokens = torch.zeros((), dtype=torch.float64), 0
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        if kind == "ar":
            logits, predicted = logits_of(model.forward_drafter, source, [EOS, *target]), [*target, EOS]
        else:
            cut = int(cuts[row])
            predicted = [*target, EOS][cut : cut + 2]
            logits = logits_of(model.forward_drafter, source, [*target[:cut], UNK, UNK])[cut : cut + len(predicted)]
        wanted = wanted + cross_entropy_by_hand(logits, predicted, 0.1)
        tokens += len(predicted)
    torch.testing.assert_close(log["draft_fwd"], wanted.detach())
    assert log["draft_fwd_tokens"] == tokens


def test_padding_changes_nothing() -> None:
    task = make_task()
    model, criterion = make_model(task).double(), make_criterion(task)
    sample = batch(SOURCES, TARGETS)
    wide = {**sample, "target": torch.nn.functional.pad(sample["target"], (0, 3), value=PAD)}
    wide["net_input"] = {
        "src_tokens": torch.nn.functional.pad(sample["net_input"]["src_tokens"], (4, 0), value=PAD),
        "src_lengths": sample["net_input"]["src_lengths"],
        "prev_output_tokens": torch.nn.functional.pad(sample["net_input"]["prev_output_tokens"], (0, 3), value=PAD),
    }
    singles = [batch([s], [t]) for s, t in zip(SOURCES, TARGETS, strict=True)]
    loss, size, _ = criterion(model, weighted(sample, 0.2, 0.1))
    padded_loss, padded_size, _ = criterion(model, weighted(wide, 0.2, 0.1))
    alone = [criterion(model, weighted(single, 0.2, 0.1)) for single in singles]
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(sum(one[0] for one in alone), loss)
    assert padded_size == sum(one[1] for one in alone) == size


# ---- directions, tags, pseudo translations


def test_a_batch_in_both_directions() -> None:
    forward, backward = both_directions(batch([[10, 11], [12]], [[20], [21, 22]]), PAD, EOS)
    assert forward.src_tokens.tolist() == [[10, 11, EOS], [PAD, 12, EOS]]
    assert forward.prev_output_tokens.tolist() == [[EOS, 20, PAD], [EOS, 21, 22]]
    assert forward.target.tolist() == [[20, EOS, PAD], [21, 22, EOS]]
    assert backward.src_tokens.tolist() == [[20, EOS, PAD], [21, 22, EOS]]
    assert backward.prev_output_tokens.tolist() == [[EOS, 10, 11], [EOS, 12, PAD]]
    assert backward.target.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert forward.src_lengths.tolist() == [3, 2] and backward.src_lengths.tolist() == [2, 3]


@pytest.mark.parametrize("side", ["source", "target"])
def test_tagged_pairs_are_not_reconstructed_and_their_tagged_side_is_not_learned(side: str) -> None:
    task = make_task(pseudo_tag=WORDS[-1])
    assert task.tag == TAG
    model, criterion = make_model(task).double(), make_criterion(task)
    tagged = [TAG, 14, 15]
    pair = (tagged, [25, 26]) if side == "source" else ([25, 26], tagged)
    _, _, log = criterion(model, weighted(batch([*SOURCES, pair[0]], [*TARGETS, pair[1]]), 0.2, 0.1))
    _, _, genuine = criterion(model, weighted(batch(SOURCES, TARGETS), 0.2, 0.1))
    _, _, alone = criterion(model, weighted(batch([pair[0]], [pair[1]]), 0.2, 0.1))
    learned, left = ("fwd", "bwd") if side == "source" else ("bwd", "fwd")
    for way in ("fwd", "bwd"):
        torch.testing.assert_close(log[f"rec_{way}"], genuine[f"rec_{way}"])
        assert log[f"rec_{way}_tokens"] == genuine[f"rec_{way}_tokens"] and alone[f"rec_{way}_tokens"] == 0
    for term in ("ce", "kd"):
        torch.testing.assert_close(log[f"{term}_{left}"], genuine[f"{term}_{left}"])
        torch.testing.assert_close(log[f"{term}_{learned}"], genuine[f"{term}_{learned}"] + alone[f"{term}_{learned}"])
        assert (alone[f"{term}_{learned}_tokens"], alone[f"{term}_{left}_tokens"]) == (3, 0)


def test_pseudo_translations_are_greedy_capped_and_leave_no_trace() -> None:
    task = make_task()
    lengths = []
    for seed in range(3):
        model = make_model(task, seed=seed, dropout=0.5).double().train().forward_verifier
        state, net_input = torch.get_rng_state(), batch(SOURCES, TARGETS)["net_input"]
        found = translate(model, net_input["src_tokens"], net_input["src_lengths"], task.search)
        assert model.training and all(module.training for module in model.modules())
        assert torch.equal(torch.get_rng_state(), state) and not found.requires_grad
        for row, source in zip(found, SOURCES, strict=True):
            wanted = greedy_by_hand(model, source, len(source) + 1 + 2)
            assert row[row.ne(PAD)].tolist() == [*wanted, EOS]
            lengths.append((len(wanted), len(source) + 3))
    assert any(length == most for length, most in lengths)  # the cap does cut


# ---- stages and annealing


def stepper() -> SimpleNamespace:
    return SimpleNamespace(backward=lambda loss: loss.backward())


def test_the_first_stage_trains_with_cross_entropy_alone() -> None:
    task = make_task(dual_warmup_updates=3, rec_weight=0.4, kd_weight=0.5)
    model, criterion, sample = make_model(task), make_criterion(task), batch(SOURCES, TARGETS)
    loss, _, log = task.train_step(sample, model, criterion, stepper(), update_num=2)
    drafts = log["draft_fwd"] + log["draft_bwd"]
    torch.testing.assert_close(loss.detach(), log["ce_fwd"] + log["ce_bwd"] + DRAFT_WEIGHT * drafts)
    assert log["rec_fwd_tokens"] == log["kd_fwd_tokens"] == 0
    loss, _, log = task.train_step(sample, model, criterion, stepper(), update_num=3)
    whole = log["ce_fwd"] + log["ce_bwd"] + 0.4 * (log["rec_fwd"] + log["rec_bwd"])
    torch.testing.assert_close(loss.detach(), whole + 0.5 * (log["kd_fwd"] + log["kd_bwd"]))
    assert log["rec_fwd_tokens"] == log["kd_bwd_tokens"] == 12 and log["draft_fwd_tokens"] == 0
    task.cfg.kd_weight = 0.0
    _, _, log = task.train_step(sample, model, criterion, stepper(), update_num=3)
    assert log["rec_fwd_tokens"] == log["draft_bwd_tokens"] == 12 and log["kd_fwd_tokens"] == 0


def test_the_weight_is_halved_at_each_stagnation_down_to_its_least() -> None:
    annealing = Annealing()
    weights = []
    for bleu in (10.0, 12.0, 12.0, 11.0, 12.5, 12.5, 12.4, 12.3, 12.2, 12.1, 12.0, 13.0):
        annealing.half().observe(bleu, patience=2)
        weights.append(annealing.weight(0.2, 0.05))
    assert weights == [0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05]


def test_annealing_counts_after_the_warm_up_the_first_subset_only_and_survives_a_restart() -> None:
    task = make_task(rec_patience=2, dual_warmup_updates=10)
    model = make_model(task)

    def validate(bleu: float, update: int) -> None:
        task.updates = update
        task.begin_valid_epoch(1, model)
        task.post_validate(model, {"bleu": bleu}, None)
        task.post_validate(model, {"bleu": 99.0}, None)  # a second subset

    for update in (5, 6, 7):
        validate(0.0, update)
    for bleu in (7.0, 6.0):
        validate(bleu, 12)
    assert task.rec_weight(model) == 0.2
    saved, model = model.state_dict(), make_model(task, seed=1)
    model.load_state_dict(saved)
    validate(7.0, 14)
    assert task.rec_weight(model) == 0.1
    assert make_task(rec_weight=0.3).rec_weight(model) == 0.15


# ---- validation


def test_validation_reports_sacrebleus_scores_and_the_share_of_accepted_draft_tokens() -> None:
    task = make_task(num_draft_tokens=3, kd_weight=0.1)
    same = {f"drafter_{name}": size for name, size in (("embed_dim", 16), ("ffn_embed_dim", 32), ("decoder_layers", 2))}
    model = make_model(task, **same).double().eval()
    weights = model.forward_verifier.state_dict()  # a drafter that is its verifier
    layers = {name: weight for name, weight in weights.items() if "embed" not in name and "output" not in name}
    model.forward_drafter.load_state_dict(layers, strict=False)
    # EOS, which the verifier may not begin with, would be a draft that is not accepted
    model.forward_verifier.encoder.embed_tokens.weight.data[EOS] = 0.0
    batches = [batch(SOURCES, TARGETS), batch([[5, 6, 7, 8, 9, 10, 11, 12]], [[20, 21, 22, 23, 24, 25]])]
    sides = {"fwd": ([], []), "bwd": ([], [])}
    with metrics.aggregate(new_root=True) as agg:
        for sample in batches:
            _, _, log = task.valid_step(sample, model, make_criterion(task))
            assert log["rec_fwd_tokens"] == log["kd_fwd_tokens"] == 0
            task.reduce_metrics([log], make_criterion(task))
    for pairs in (zip(SOURCES, TARGETS, strict=True), [([5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 25])]):
        for source, target in pairs:
            for way, one, other in (("fwd", source, target), ("bwd", target, source)):
                network = model.forward_verifier if way == "fwd" else model.backward_verifier
                width = max(map(len, SOURCES if way == "fwd" else TARGETS)) if len(source) < 8 else len(one)
                found = greedy_by_hand(network, one, width + 1 + 2)
                sides[way][0].append(task.tgt_dict.string(torch.tensor(found), unk_string="UNKNOWNTOKENINHYP"))
                sides[way][1].append(task.tgt_dict.string(torch.tensor(other)))
    stats = agg.get_smoothed_values()
    for way, (hypotheses, references) in sides.items():
        assert stats[f"bleu_{way}"] == round(sacrebleu.corpus_bleu(hypotheses, [references]).score, 2)
        assert stats[f"chrf_{way}"] == round(sacrebleu.corpus_chrf(hypotheses, [references]).score, 2) > 0
    assert stats["bleu"] == pytest.approx((stats["bleu_fwd"] + stats["bleu_bwd"]) / 2, abs=0.01)
    assert stats["alpha_fwd"] == 1.0 and 0.0 <= stats["alpha_bwd"] < 1.0


def test_signatures_are_sacrebleus() -> None:
    bleu = sacrebleu.metrics.BLEU()
    bleu.corpus_score(["w1"], [["w1"]])
    assert translation_scores.signature("bleu") == f"BLEU|{bleu.get_signature()}"
    assert translation_scores.signature("chrf").startswith("chrF2|nrefs:1|")


# ---- bad input


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--rec-weight must not be negative, but is -0.1", {"rec_weight": -0.1}),
        ("--rec-weight-min must not be negative", {"rec_weight_min": -1.0}),
        ("--kd-weight must not be negative", {"kd_weight": -0.5}),
        ("--kd-weight must not be negative, but is nan", {"kd_weight": float("nan")}),
        ("--rec-weight-min 0.3 is more than --rec-weight 0.2", {"rec_weight_min": 0.3}),
        ("--rec-patience must be at least 1", {"rec_patience": 0}),
        ("--dual-warmup-updates must not be negative", {"dual_warmup_updates": -1}),
        ("allow no token", {"rec_max_len_a": 0.0, "rec_max_len_b": 0}),
        ("--pseudo-tag <PSEUDO>: the dictionaries in .* have no such symbol", {"pseudo_tag": "<PSEUDO>"}),
        ("--left-pad-target", {"left_pad_target": True}),
        ("--eval-bleu", {"eval_bleu": True}),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        make_task(write_data(tmp_path), **options)


def test_data_directories_that_cannot_work(tmp_path: Path) -> None:
    task = make_task(write_data(tmp_path))
    write_split(tmp_path, "test", ["w1 w2"], None)
    with pytest.raises(UserError, match="is monolingual: its split 'test' has no de side"):
        task.load_dataset("test")
    other = dictionary()
    other.symbols[7] = "strange"
    other.save(f"{tmp_path}/dict.de.txt")
    with pytest.raises(
        UserError, match=r"separate dictionaries: symbol 7 is 'w3' in the first and 'strange'.*--joined"
    ):
        make_task(tmp_path)
    (tmp_path / "dict.de.txt").unlink()
    with pytest.raises(UserError, match=r"monolingual: it has no dict\.de\.txt"):
        make_task(tmp_path)


def test_the_parts_belong_together() -> None:
    task = make_task()
    with pytest.raises(UserError, match="--arch dual_transformer"):
        make_criterion(task)(verifier(task), batch(SOURCES, TARGETS))
    with pytest.raises(UserError, match="--task dual_translation"):
        make_criterion(SimpleNamespace(target_dictionary=dictionary()))
    for options, message in (({"label_smoothing": 1.0}, "--label-smoothing"), ({"kd_temperature": 0.0}, "--kd-temp")):
        with pytest.raises(UserError, match=message):
            make_criterion(task, **options)


# ---- the command line

SIZES = (
    "--verifier-embed-dim 16 --verifier-ffn-embed-dim 32 --verifier-encoder-layers 1 --verifier-decoder-layers 1 "
    "--verifier-attention-heads 2 --drafter-embed-dim 8 --drafter-encoder-layers 1 --drafter-decoder-layers 1 "
    "--drafter-attention-heads 2 --max-source-positions 40 --max-target-positions 40 "
    "--rec-max-len-a 1 --rec-max-len-b 2"
)


def train(data: Path, save: Path, *flags: str) -> None:
    """What fairseq-train is told, in this process."""
    common = (
        f"-s en -t de --user-dir {REPOSITORY}/block_plugins --task dual_translation --arch dual_transformer "
        "--criterion dual_reconstruction_loss --cpu --optimizer adam --log-format simple --log-interval 1 "
        f"--no-epoch-checkpoints --seed 3 --save-dir {save} {SIZES}"
    )
    here("train", data, *common.split(), *flags, cwd=data)


def logged(text: str, term: str) -> list[float]:
    return [float(value) for value in re.findall(rf"epoch \d+:.* {term}=([\d.]+),", text)]


def saved_counts(folder: Path) -> list[int]:
    counts: list[int] = torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"][
        "annealing.counts"
    ].tolist()
    return counts


def test_losses_fall_and_training_goes_on_where_it_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, save = write_data(tmp_path / "data"), tmp_path / "save"
    sources = ["w1", "w2", "w3", "w4", "w1 w2", "w3 w4", "w2 w1", "w4 w3"]
    write_split(data, "train", sources, [source.replace("w", "w1") for source in sources])
    flags = "--lr 1e-2 --batch-size 8 --dropout 0 --label-smoothing 0 --dual-warmup-updates 40 --rec-patience 1"
    options = [
        *flags.split(),
        "--drafter-embed-dim",
        "16",
        "--validate-interval-updates",
        "15",
        "--adam-betas",
        "(0.9, 0.9)",
    ]
    with caplog.at_level(logging.INFO):
        train(data, save, *options, "--max-update", "60", "--validate-interval", "99")
    text = caplog.text
    assert len(logged(text, "loss")) == 60 and len(logged(text, "rec_fwd")) == len(logged(text, "kd_fwd")) == 20
    for kind in ("ce", "rec", "draft", "kd"):
        values = [sum(pair) for pair in zip(*(logged(text, f"{kind}_{way}") for way in ("fwd", "bwd")), strict=True)]
        assert sum(values[-6:]) < 0.9 * sum(values[:6]), kind
    for word in ("bleu_fwd", "chrf_bwd", "alpha_fwd", "BLEU|nrefs:1", "chrF2|nrefs:1"):
        assert word in text
    best, _, halvings = counts = saved_counts(save)
    assert best > -1
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train(data, save, *options, "--max-update", "61", "--disable-validation")
    assert logged(caplog.text, "num_updates")[0] == 61
    assert logged(caplog.text, "rec_weight")[0] == max(0.05, 0.2 / 2**halvings) < 0.2
    assert saved_counts(save) == counts
    with pytest.raises(UserError, match=r"sizes are others than .*fc1.weight is \(32, 16\).* and \(48, 16\)"):
        train(data, save, *options, "--max-update", "62", "--verifier-ffn-embed-dim", "48")


def _worker(data: Path, save: Path, flags: list[str], log: Path) -> None:
    sys.stdout = sys.stderr = log.open("w")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True, format="%(message)s")
    train(data, save, *flags)


def losses(tmp_path: Path, name: str, *ranks: list[str]) -> list[list[float]]:
    """The losses and gradient norms that a training logs, which runs in as many processes as there are ``ranks``."""
    context = multiprocessing.get_context("fork")
    logs = [tmp_path / f"{name}{number}.log" for number in range(len(ranks))]
    workers = [
        context.Process(target=_worker, args=(tmp_path / "data", tmp_path / name, flags, log))
        for flags, log in zip(ranks, logs, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker, log in zip(workers, logs, strict=True):
        worker.join()
        assert worker.exitcode == 0, log.read_text()[-2000:]
    text = logs[0].read_text()
    return [logged(text, term) for term in ("loss", "rec_fwd", "kd_bwd", "gnorm")]


def test_two_processes_have_the_losses_of_one_with_twice_the_batch(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    write_split(data, "train", ["w1 w2 w3", "w4 w5", "w6", "w7 w8 w9 w10"], ["w3 w2", "w5 w4 w4", "w6 w7", "w10"])
    flags = "--lr 1e-3 --dropout 0 --dual-warmup-updates 2 --max-update 5 --disable-validation --no-save".split()  # noqa: SIM905
    two = "--batch-size 2 --distributed-world-size 2 --distributed-backend gloo --ddp-backend legacy_ddp"
    address = f"--distributed-no-spawn --distributed-init-method file://{tmp_path}/meeting"
    ranks = [[*flags, *two.split(), *address.split(), "--distributed-rank", str(rank)] for rank in range(2)]
    one = losses(tmp_path, "one", [*flags, "--batch-size", "4"])
    assert [len(values) for values in one] == [5, 3, 3, 5]
    assert losses(tmp_path, "two", *ranks) == one


def test_torchs_wrapper_trains_in_both_stages(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        task = make_task(dual_warmup_updates=1)
        plain = make_model(task)
        model, sample = DistributedDataParallel(plain), batch(SOURCES, TARGETS)
        assert unwrapped(SimpleNamespace(module=model)) is plain
        found = []
        for update in range(3):
            lessons = {"rec_weight": 0.2, "kd_weight": 0.1} if update else {"draft_weight": 1.0}
            loss, _, _ = make_criterion(task)(model, {**sample, **lessons})
            found.append(gradients(model, loss))
        alone = make_model(task)
        wanted = gradients(alone, make_criterion(task)(alone, weighted(sample, 0.2, 0.1))[0])
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[-1][f"module.{name}"], gradient)
    finally:
        torch.distributed.destroy_process_group()


def test_no_sentence_is_left_out_for_the_size_of_its_batch(tmp_path: Path) -> None:
    task = make_task(write_data(tmp_path))
    task.load_dataset("valid")
    batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=4, required_batch_size_multiple=4)
    assert sorted(number for sample in batches.next_epoch_itr() for number in sample["id"].tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("message", "section", "options"),
    [
        ("--fp16 needs a GPU", "common", {"fp16": True, "cpu": True}),
        ("--best-checkpoint-metric bleu_fwd: more is better", "checkpoint", {"best_checkpoint_metric": "bleu_fwd"}),
        ("--store-ema", "ema", {"store_ema": True}),
    ],
)
def test_options_of_training_that_do_not_go_with_the_task(
    tmp_path: Path, message: str, section: str, options: dict[str, Any]
) -> None:
    config = asdict(make_task(write_data(tmp_path)).cfg)
    config["source_lang"] = config["target_lang"] = None
    everything = OmegaConf.create(
        {
            "task": config,
            "common": {"seed": 7, "fp16": False, "cpu": True},
            "checkpoint": {"best_checkpoint_metric": "loss", "maximize_best_checkpoint_metric": False},
            "ema": {"store_ema": False},
        }
    )
    task = DualTranslationTask.setup_task(everything.task)
    assert task.seed == 7
    assert (everything.task.source_lang, everything.task.target_lang) == ("en", "de")  # found in the file names
    everything[section].update(options)
    with pytest.raises(UserError, match=message):
        DualTranslationTask.setup_task(everything.task)
