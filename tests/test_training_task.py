"""The task in training: noise, curriculum, validation, autocast, dictionaries, bad input, the real command line."""

import logging
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.modules import FairseqDropout
from fairseq_tools import PLUGIN, here, run
from tiny_training import TINY, batch, dictionary, drafter, make_task, padded, verifier, write_data, write_split
from torch.utils._python_dispatch import TorchDispatchMode

from block_plugins import dictionaries
from block_plugins.autocast import FrugalDropout
from block_plugins.criterions.glat_loss import GlatLoss
from block_plugins.errors import UserError
from block_plugins.glancing import choose_revealed
from block_plugins.noise import full_mask, random_mask

PAD, EOS, UNK = 1, 2, 3
SOURCES = [[10, 11, 12], [13], [14, 15, 16, 17, 18]]
TARGETS = [[20, 21, 22, 23], [24], [25, 26, 27]]


def optimizer(before_backward: Callable[[], None] = lambda: None) -> SimpleNamespace:
    """What a task's training step needs of fairseq's optimizer."""

    def backward(loss: torch.Tensor) -> None:
        before_backward()
        loss.backward()

    return SimpleNamespace(backward=backward)


# ---- curriculum and noise


def test_the_glancing_share_falls_linearly_and_then_stays() -> None:
    task = make_task(start_p=0.5, minus_p=0.2, total_up=1000)
    shares = [task.context_p(update) for update in (0, 250, 1000, 5000)]
    assert shares == pytest.approx([0.5, 0.45, 0.3, 0.3])


@pytest.mark.parametrize("noise", ["block_mask", "full_mask", "random_mask", "random_delete", "no_noise"])
def test_a_training_step_with_each_noise_has_a_finite_loss_and_gradient(noise: str) -> None:
    task = make_task(noise=noise, block_size=3)
    model, sample = drafter(task), batch(SOURCES, TARGETS)
    clean = sample["net_input"]["prev_output_tokens"].clone(), sample["target"].clone()
    loss, sample_size, log = task.train_step(sample, model, GlatLoss(task, 0.1), optimizer(), update_num=0)
    assert torch.isfinite(loss) and sample_size > 0
    assert sum(p.grad.abs().sum() for p in model.parameters() if p.grad is not None) > 0
    assert log["glat_passes"] == (noise in ("block_mask", "full_mask", "random_mask"))
    assert torch.equal(sample["net_input"]["prev_output_tokens"], clean[0])
    assert torch.equal(sample["target"], clean[1])


def test_the_curriculum_reaches_the_criterion() -> None:
    task = make_task(noise="full_mask", start_p=0.6, minus_p=0.4, total_up=100)
    model, sample = drafter(task), batch(SOURCES, TARGETS)
    for update, share in ((0, 0.6), (50, 0.4), (100, 0.2)):
        _, _, log = task.train_step(sample, model, GlatLoss(task, 0.1), optimizer(), update_num=update)
        assert log["glat_context_p"] == pytest.approx(share)
        assert log["glat_masked"].item() == 11


def test_masks_never_reach_beyond_the_decoders_positions() -> None:
    task = make_task(noise="block_mask", block_size=30)
    model = drafter(task, max_target_positions=33)
    sample = batch([[5]], [[20] * 30])
    seen: list[torch.Tensor] = []
    extract = model.decoder.extract_features
    model.decoder.extract_features = lambda tokens, *rest: (seen.append(tokens), extract(tokens, *rest))[1]
    for update in range(10):
        task.train_step(sample, model, GlatLoss(task, 0.1), optimizer(), update_num=update)
    assert max(tokens.size(1) for tokens in seen) == 33


def test_several_blocks_of_a_sentence_train_as_so_many_copies_of_it() -> None:
    task = make_task(noise="block_mask", block_size=2, blocks_per_sentence=3)
    model = drafter(task, dropout=0.0)
    sample = batch(SOURCES, TARGETS)
    _, size, _ = task.train_step(sample, model, GlatLoss(task, 0.0), optimizer(), update_num=0)
    assert size <= 3 * 2 * len(SOURCES)
    corrupted = task.corrupted(sample, 99, None)
    assert corrupted["target"].size(0) == 3 * len(SOURCES)
    copies = {name: sample["net_input"][name].repeat_interleave(3, 0) for name in ("src_tokens", "src_lengths")}
    model.eval()
    with torch.no_grad():
        found = model(**corrupted["net_input"], target=corrupted["target"])
        expected = model(**{**corrupted["net_input"], **copies}, target=corrupted["target"])
    torch.testing.assert_close(found.logits, expected.logits)
    validation = task.corrupted(sample, 99, torch.Generator().manual_seed(1))
    assert validation["target"].size(0) == len(SOURCES)


def test_a_frozen_encoder_neither_learns_nor_drops() -> None:
    task = make_task(noise="block_mask")
    model = drafter(task, dropout=0.5, freeze_encoder=True, share_all_embeddings=True)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    sample = batch(SOURCES, TARGETS)
    expected = model.eval().encoder(**{k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"})
    model.train()
    loss, _, _ = GlatLoss(task, 0.1)(model, {**task.corrupted(sample, 99, None), "context_p": 0.5})
    loss.backward()
    adam.step()
    found = model.encoder(**{k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"})
    assert torch.equal(found["encoder_out"][0], expected["encoder_out"][0])
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and not any(name.startswith("encoder.") for name in changed)
    assert "decoder.output_projection.weight" not in changed  # shared with the encoder's embeddings


def test_noise_is_for_drafters_only() -> None:
    task = make_task(noise="block_mask")
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    with pytest.raises(UserError, match="--noise no_noise"):
        task.train_step(batch(SOURCES, TARGETS), verifier(task), criterion, optimizer(), update_num=0)


def test_without_noise_a_verifier_trains_as_in_fairseqs_own_task() -> None:
    task = make_task(noise="no_noise")
    model, sample = verifier(task, dropout=0.0), batch(SOURCES, TARGETS)
    criterion = task.build_criterion(
        SimpleNamespace(_name="label_smoothed_cross_entropy", label_smoothing=0.1, sentence_avg=False)
    )
    original = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    assert type(criterion) is not type(original) and type(criterion).__name__ == type(original).__name__
    results = []
    for one in (criterion, original):
        model.zero_grad()
        loss, size, log = task.train_step(sample, model, one, optimizer(), update_num=0)
        results.append((loss, log["nll_loss"], torch.cat([p.grad.flatten() for p in model.parameters()])))
        assert size == log["ntokens"] == 11
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("noise", "blocks"), [("block_mask", 1), ("block_mask", 3), ("random_mask", 1), ("random_delete", 1)]
)
def test_a_step_has_as_many_operations_for_many_sentences_as_for_few(noise: str, blocks: int) -> None:
    """So there is no loop over rows, and no row whose numbers the host waits for."""
    task = make_task(noise=noise, block_size=3, blocks_per_sentence=blocks)
    model, criterion = drafter(task, decoder_layers=1), GlatLoss(task, 0.1)
    found = []
    for times in (1, 20):
        model.zero_grad()
        with Operations() as operations:
            task.train_step(batch(SOURCES * times, TARGETS * times), model, criterion, optimizer(), update_num=0)
        found.append(operations.counts)
    few, many = found
    # numbers that the host reads, and masks as indices, whose size it must know
    for name in ("aten._local_scalar_dense.default", "aten.index.Tensor", "aten.index_put_.default"):
        assert few[name] == many[name] <= 16
    assert sum(few.values()) > 300
    assert abs(sum(few.values()) - sum(many.values())) < 20  # torch pads some masks to a multiple of their size


def test_noise_and_glancing_stay_on_the_device_of_their_input() -> None:
    """Seen on a device that knows shapes only: a tensor of the CPU among them would be refused."""
    target = padded([[*row, EOS] for row in TARGETS]).to("meta")
    for result in (full_mask(target, pad=PAD, unk=UNK), random_mask(target, pad=PAD, unk=UNK)):
        assert {part.device.type for part in result if part is not None} == {"meta"}
    masked = torch.ones(3, 5, dtype=torch.bool, device="meta")
    revealed = choose_revealed(~masked, masked, 0.5, torch.rand(3, 5, device="meta"))
    assert (revealed.device.type, revealed.shape) == ("meta", (3, 5))


def test_what_is_drawn_for_a_batch_depends_on_seed_update_and_sentences_only() -> None:
    task = make_task(noise="block_mask", block_size=2)
    model, sample = drafter(task, dropout=0.3).train(), batch(SOURCES * 3, TARGETS * 3)

    def loss(update: int, first: int, before: int) -> float:
        torch.manual_seed(before)  # as other batches of the update leave it
        renumbered = {**sample, "id": sample["id"] + first}
        return float(task.train_step(renumbered, model, GlatLoss(task, 0.1), optimizer(), update_num=update)[0])

    assert loss(4, 7, before=1) == loss(4, 7, before=2)
    task.seed += 1
    other = loss(4, 7, before=1)
    task.seed -= 1
    assert len({loss(4, 7, before=1), loss(5, 7, before=1), loss(4, 8, before=1), other}) == 4


# ---- validation


def test_validation_repeats_its_noise_and_leaves_the_training_generator_alone() -> None:
    task = make_task(noise="block_mask", block_size=2)
    model, criterion = drafter(task), GlatLoss(task, 0.1)
    sample = batch(SOURCES * 3, TARGETS * 3)
    before = torch.get_rng_state()
    first = task.valid_step(sample, model, criterion)
    torch.testing.assert_close(torch.get_rng_state(), before)
    torch.rand(7)
    second = task.valid_step(sample, model, criterion)
    assert torch.equal(first[0], second[0]) and first[1] == second[1]
    assert first[2]["glat_passes"] == 0
    other = task.valid_step({**sample, "id": sample["id"] + 100}, model, criterion)
    assert not torch.equal(first[0], other[0])


# ---- autocast


@pytest.mark.parametrize(("precision", "expected"), [("none", torch.float32), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("kind", ["drafter", "verifier"])
def test_matrix_products_run_in_the_precision_asked_for(precision: str, expected: torch.dtype, kind: str) -> None:
    task = make_task(noise="block_mask" if kind == "drafter" else "no_noise", block_size=3, cpu_autocast=precision)
    model = drafter(task) if kind == "drafter" else verifier(task)
    criterion = GlatLoss(task, 0.1) if kind == "drafter" else LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    dtypes: set[torch.dtype] = set()
    model.decoder.output_projection.register_forward_hook(lambda _m, _i, output: dtypes.add(output.dtype))
    in_backward: list[bool] = []
    stepper = optimizer(lambda: in_backward.append(torch.is_autocast_enabled("cpu")))
    loss, _, _ = task.train_step(batch(SOURCES, TARGETS), model, criterion, stepper, update_num=0)
    task.valid_step(batch(SOURCES, TARGETS), model, criterion)
    assert dtypes == {expected}
    assert in_backward == [False]
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frugal_dropout_zeroes_and_scales_as_dropout_does(p: float, dtype: torch.dtype) -> None:
    x = torch.ones(251, 403, dtype=dtype, requires_grad=True)
    dropout = FrugalDropout(p)
    out = dropout(x)
    out.sum().backward()
    kept = out.ne(0)
    spread = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) <= 5 * spread
    assert torch.allclose(out[kept], torch.full_like(out[kept], 1 / (1 - p) if p < 1 else 0.0), rtol=1e-2)
    assert torch.equal(x.grad, out.detach())  # the same mask and scale as in the forward pass
    for lag in (1, 2, 3, 4, 403):  # neighbours that share a random word are independent too
        a, b = kept.flatten()[:-lag].float(), kept.flatten()[lag:].float()
        assert abs((a * b).mean().item() - (1 - p) ** 2) < 0.01
    assert torch.equal(dropout.eval()(x), x)


def test_autocast_comes_with_frugal_dropout_and_without_it_nothing_changes() -> None:
    for precision, expected in (("none", FairseqDropout), ("bf16", FrugalDropout)):
        model = make_task(cpu_autocast=precision).build_model(Namespace(**TINY, _name="block", arch="block"))
        assert {type(m) for m in model.modules() if isinstance(m, FairseqDropout)} == {expected}


def test_autocast_changes_the_loss_by_rounding_only() -> None:
    losses = {}
    for precision in ("none", "bf16"):
        task = make_task(noise="full_mask", cpu_autocast=precision)
        losses[precision] = task.valid_step(batch(SOURCES, TARGETS), drafter(task), GlatLoss(task, 0.1))[0].item()
    assert losses["none"] != losses["bf16"]
    assert losses["bf16"] == pytest.approx(losses["none"], rel=0.01)


# ---- dictionaries in checkpoints


def test_first_difference_of_symbols() -> None:
    assert dictionaries.first_difference(["a", "b"], ["a", "b"]) is None
    assert dictionaries.first_difference(["a", "b"], ["a", "c"]) == "symbol 1 is 'b' in the first and 'c' in the second"
    only = dictionaries.first_difference(["a"], ["a", "c"])
    assert only == "symbol 1 ('c') is in the second only (1 and 2 symbols)"


def test_a_checkpoint_knows_its_dictionaries() -> None:
    state = make_task().state_dict()
    assert state["dictionaries"]["source"][:5] == ["<s>", "<pad>", "</s>", "<unk>", "w0"]
    make_task().load_state_dict(state)
    make_task().load_state_dict({})  # of a checkpoint that another task wrote
    other = make_task()
    other.tgt_dict.symbols[7] = "strange"
    with pytest.raises(UserError, match=r"target dictionary.*symbol 7 is 'w3' in the first and 'strange'"):
        other.load_state_dict(state)


# ---- bad input


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--block-size", {"block_size": 0}),
        ("--start-p", {"start_p": 1.5}),
        ("--start-p", {"start_p": 0.1, "minus_p": 0.2}),
        ("--total-up", {"total_up": 0}),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, message: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        make_task(write_data(tmp_path), **options)


def test_a_block_longer_than_the_drafters_positions_is_refused_before_training() -> None:
    task = make_task(noise="block_mask", block_size=41)
    with pytest.raises(UserError, match=r"--block-size 41 is beyond the drafter's 40 positions"):
        task.build_model(Namespace(**TINY, _name="block", arch="block"))


def test_data_directories_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        make_task(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="has no dictionaries"):
        make_task(empty)
    with pytest.raises(UserError, match="give --source-lang and --target-lang"):
        make_task(empty, source_lang=None)
    (empty / "dict.en.txt").write_text("w0 1\n")
    with pytest.raises(UserError, match=r"monolingual.*dict\.de\.txt"):
        make_task(empty)


def test_a_split_that_is_missing_or_has_one_side_only(tmp_path: Path) -> None:
    task = make_task(write_data(tmp_path), noise="no_noise")
    with pytest.raises(UserError, match="no split 'test'"):
        task.load_dataset("test")
    write_split(tmp_path, "test", ["w1 w2"], None)
    task.load_dataset("test")  # decoding needs no target
    assert task.datasets["test"].tgt is None
    task.build_criterion(SimpleNamespace(_name="label_smoothed_cross_entropy", label_smoothing=0.1, sentence_avg=False))
    with pytest.raises(UserError, match="monolingual"):
        task.load_dataset("test")


def test_left_padded_targets_and_noise_do_not_go_together() -> None:
    task = make_task(noise="block_mask", left_pad_target=True)
    with pytest.raises(UserError, match="--left-pad-target"):
        task.build_criterion(SimpleNamespace(_name="glat_loss", label_smoothing=0.1))


# ---- the command line


def train_options(folder: Path, save: Path, *flags: str) -> list[str]:
    """What fairseq-train is told."""
    sizes = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32"
    common = (
        f"-s en -t de --cpu {sizes} "
        "--max-source-positions 40 --max-target-positions 40 --encoder-learned-pos --decoder-learned-pos "
        "--optimizer adam --lr 1e-3 --max-tokens 40 --update-freq 2 --num-workers 0 --log-format simple "
        "--log-interval 1 --share-all-embeddings --label-smoothing 0.1 --seed 3 --no-epoch-checkpoints"
    )
    return [str(folder), "--save-dir", str(save), *PLUGIN, *common.split(), *flags]


DRAFTER = [
    "--arch",
    "block",
    "--src-embedding-copy",
    "--criterion",
    "glat_loss",
    "--noise",
    "block_mask",
    "--block-size",
    "4",
    "--total-up",
    "6",
]


def test_interrupted_training_goes_on_where_it_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = write_data(tmp_path / "data")
    first = run(
        "train", *train_options(data, tmp_path / "drafter", *DRAFTER, "--max-update", "3", "--eval-bleu"), cwd=tmp_path
    )
    assert first.returncode == 0, first.stdout + first.stderr
    log = first.stdout + first.stderr
    for word in ("glat_accu", "word_ins", "nll_loss", "ppl", "valid on 'valid' subset", "| bleu "):
        assert word in log
    with caplog.at_level(logging.INFO):
        here("train", *train_options(data, tmp_path / "drafter", *DRAFTER, "--max-update", "5"), cwd=tmp_path)
    updates = re.findall(r"glat_context_p=([\d.]+),.*num_updates=(\d+)", log + caplog.text)
    assert updates == [("0.5", "1"), ("0.467", "2"), ("0.433", "3"), ("0.4", "4"), ("0.367", "5")]  # 0.5 - 0.2 * n / 6
    state = torch.load(tmp_path / "drafter" / "checkpoint_last.pt", weights_only=True)
    assert {entry["step"] for entry in state["last_optimizer_state"]["state"].values()} == {5}
    assert state["task_state"]["dictionaries"]["source"] == dictionaries.symbols(dictionary())


def test_a_verifier_trains_under_autocast_and_is_saved_in_float32(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    flags = [
        "--arch",
        "transformer",
        "--criterion",
        "label_smoothed_cross_entropy",
        "--noise",
        "no_noise",
        "--cpu-autocast",
        "bf16",
    ]
    here("train", *train_options(data, tmp_path / "verifier", *flags, "--max-update", "2"), cwd=tmp_path)
    state = torch.load(tmp_path / "verifier" / "checkpoint_last.pt", weights_only=True)
    assert {value.dtype for value in state["model"].values()} == {torch.float32}


def test_a_mistake_is_told_in_one_line(tmp_path: Path) -> None:
    result = run("train", *train_options(tmp_path / "absent", tmp_path / "save", *DRAFTER), cwd=tmp_path)
    output = result.stdout + result.stderr
    assert result.returncode == 1 and "Traceback" not in output
    assert output.splitlines()[-1].startswith(f"error: data directory {tmp_path}/absent does not exist")
