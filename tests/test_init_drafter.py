"""scripts/init_drafter.py: what is taken from a verifier, and that training starts from it."""

import importlib.util
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq_tools import here
from tiny_training import TINY, drafter, make_task, padded, verifier, write_data

from block_plugins.decoding.drafters import same_encoder
from block_plugins.errors import UserError
from block_plugins.models.transformer_drafter import TransformerDrafterModel

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "init_drafter.py"
SOURCES = padded([[10, 11, 12, 13, 2], [14, 2]])


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("init_drafter", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(model: Any, path: Path, arch: str = "transformer", **options: Any) -> str:
    """A checkpoint as fairseq-train writes it, as far as the script reads it."""
    settings = Namespace(**{**TINY, **options}, _name=arch, arch=arch)
    base_architecture(settings)  # as fairseq's command line does
    state = {
        "args": None,
        "cfg": {"model": settings},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 9}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {"dictionaries": {"source": ["a"], "target": ["a"]}},
    }
    torch.save(state, path)
    return str(path)


def initialised(tmp_path: Path, *flags: str, **options: Any) -> tuple[Any, Any]:
    """A random verifier with `options`, and the drafter that the script makes of it."""
    task = make_task()
    model = verifier(task, seed=5, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that are not at their start
            parameter += 0.05 * torch.randn_like(parameter)
        model.encoder.embed_tokens.weight[1] = 0.0
    source = save(model, tmp_path / "verifier.pt", **options)
    out = str(tmp_path / "new" / "drafter.pt")
    script().main([source, out, *flags] if "--arch" in flags else [source, out, "--src-embedding-copy", *flags])
    (loaded,), _ = checkpoint_utils.load_model_ensemble([out], task=Dictionaryless(task))
    return model, loaded.eval()


class Dictionaryless:
    """The task without its check of dictionaries, which are made up in these tests."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        return self.task.build_model(cfg, from_checkpoint)


def test_all_weights_with_equal_names_and_shapes_are_taken(tmp_path: Path) -> None:
    same = {"encoder_learned_pos": True, "decoder_learned_pos": True, "no_scale_embedding": True}
    model, new = initialised(tmp_path, **same)
    old = model.state_dict()
    random = {name for name, value in new.state_dict().items() if name not in old or not torch.equal(value, old[name])}
    assert random == {"decoder.copy_attn.weight"}


@pytest.mark.parametrize(
    "same", [{"no_scale_embedding": True, "encoder_learned_pos": True, "decoder_learned_pos": True}, {}]
)
def test_an_autoregressive_drafter_of_the_same_size_is_the_verifier(tmp_path: Path, same: dict[str, bool]) -> None:
    model, new = initialised(tmp_path, "--arch", "transformer_drafter", "--freeze-encoder", **same)
    assert isinstance(new, TransformerDrafterModel)
    previous = padded([[2, 10, 11], [2, 12]])
    with torch.no_grad():
        found, expected = (network.double()(SOURCES, None, previous)[0] for network in (new, model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_an_autoregressive_drafter_of_one_layer_on_the_verifiers_encoder(tmp_path: Path) -> None:
    flags = ["--arch", "transformer_drafter", "--freeze-encoder", "--decoder-layers", "1"]
    model, new = initialised(tmp_path, *flags)
    assert len(new.decoder.layers) == 1
    assert torch.equal(new.decoder.layers[0].fc1.weight, model.decoder.layers[0].fc1.weight)
    assert same_encoder(new.encoder, model.encoder)
    new.train()
    assert new.decoder.training and not new.encoder.training
    trained = {name for name, parameter in new.named_parameters() if parameter.requires_grad}
    assert trained and not any(name.startswith("encoder.") or "embed_tokens" in name for name in trained)


def test_parts_encoder_leaves_the_decoder_random(tmp_path: Path) -> None:
    same = {"encoder_learned_pos": True, "decoder_learned_pos": True, "no_scale_embedding": True}
    model, new = initialised(tmp_path, "--parts", "encoder", **same)
    old, state = model.state_dict(), new.state_dict()
    shared = {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    for name, value in state.items():
        if name.startswith("encoder.") or name in shared:
            assert torch.equal(value, old[name])
        elif name.endswith("fc1.weight"):
            assert not torch.equal(value, old[name])


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("normalize_before", [False, True])
def test_the_encoder_computes_the_same_without_scaling_its_embeddings(
    tmp_path: Path, learned: bool, normalize_before: bool
) -> None:
    """The verifier multiplies embeddings by sqrt(16) = 4, the drafter doesn't."""
    model, new = initialised(
        tmp_path, encoder_learned_pos=learned, encoder_normalize_before=normalize_before, encoder_embed_dim=16
    )
    assert (model.encoder.embed_scale, new.encoder.embed_scale) == (4.0, 1.0)
    assert torch.equal(new.encoder.embed_tokens.weight, model.encoder.embed_tokens.weight)
    with torch.no_grad():
        old_out = model.encoder(SOURCES)["encoder_out"][0].transpose(0, 1)
        new_out = new.encoder(SOURCES)["encoder_out"][0].transpose(0, 1)
    real = SOURCES.ne(1)
    # Not exactly: the constant in layer normalisation isn't scaled along.
    assert torch.allclose(new_out[real], old_out[real], atol=2e-3)


def test_flags_override_the_verifiers_sizes_and_what_does_not_fit_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"encoder_learned_pos": True, "decoder_learned_pos": True, "no_scale_embedding": True}
    flags = ["--decoder-layers", "1", "--encoder-ffn-embed-dim", "48", "--max-source-positions", "50"]
    model, new = initialised(tmp_path, *flags, **same)
    assert len(new.decoder.layers) == 1
    assert new.encoder.layers[0].fc1.weight.shape == (48, 16)
    assert torch.equal(new.encoder.embed_positions.weight[:42], model.encoder.embed_positions.weight)
    assert torch.equal(new.encoder.layers[1].self_attn.q_proj.weight, model.encoder.layers[1].self_attn.q_proj.weight)
    report = capsys.readouterr().out.splitlines()
    assert "encoder.layers.0.fc1.weight: random" in report
    assert "decoder.layers.1.fc1.weight: only in the verifier" in report
    assert "encoder.embed_positions.weight: 42 of 52 rows from learned positions" in report


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist|no checkpoint"),
        (b"nonsense", "checkpoint"),
        ({"model": {}, "cfg": {"model": {}}}, "Transformer"),
    ],
)
def test_what_is_not_a_verifier_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "file.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save({"args": None, **content}, path)
    with pytest.raises(UserError, match=message):
        script().main([str(path), str(tmp_path / "out.pt")])


def test_a_drafter_is_refused_as_verifier(tmp_path: Path) -> None:
    path = save(drafter(make_task()), tmp_path / "drafter.pt", arch="block")
    with pytest.raises(UserError, match="block drafter"):
        script().main([path, str(tmp_path / "out.pt")])


def test_training_starts_from_the_file_that_the_script_writes(tmp_path: Path) -> None:
    task = make_task()
    path = save(verifier(task, seed=5), tmp_path / "verifier.pt")
    out = tmp_path / "start.pt"
    result = subprocess.run(
        [sys.executable, str(SCRIPT), path, str(out), "--src-embedding-copy"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    sizes = "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32"
    flags = (
        f"--user-dir {ROOT}/block_plugins --task translation_lev_modified -s en -t de --cpu {sizes} --arch block "
        "--encoder-attention-heads 2 --decoder-attention-heads 2 --share-all-embeddings --src-embedding-copy "
        "--max-source-positions 40 --max-target-positions 40 "
        "--criterion glat_loss --noise block_mask --optimizer adam --lr 0 --max-update 1 --max-tokens 40 "
        f"--num-workers 0 --disable-validation --save-dir {tmp_path}/save --restore-file {out} "
        "--reset-optimizer --reset-dataloader --reset-lr-scheduler --reset-meters"
    )
    data = str(write_data(tmp_path / "data"))
    here("train", data, *flags.split(), cwd=tmp_path)
    start = torch.load(out, weights_only=True)["model"]
    after = torch.load(tmp_path / "save" / "checkpoint_last.pt", weights_only=True)["model"]
    assert start.keys() == after.keys()
    assert all(torch.equal(start[name], after[name]) for name in start)  # learning rate 0
