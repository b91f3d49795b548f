"""Safe loading of what fairseq pickles into its checkpoints."""

from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tiny_training import drafter, make_task, padded, saved, verifier

from block_plugins import checkpoints
from block_plugins.errors import UserError


class Harmful:
    pass


def test_what_fairseq_checkpoints_hold_can_be_read_safely(tmp_path: Path) -> None:
    config = OmegaConf.create({"model": {"arch": "transformer", "layers": [1, 2], "dropout": 0.1, "deep": {"x": None}}})
    state = {
        "cfg": config,
        "args": Namespace(lr=[0.1], arch="transformer"),
        "model": {"weight": torch.ones(2)},
        "extra_state": {
            "best": np.float64(1.5),
            "steps": np.int64(3),
            "flag": np.bool_(True),
            "array": np.arange(3, dtype=np.int32),
            "meters": OrderedDict(a=1.0),
        },
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    found = checkpoints.read(str(path), "--path")
    assert found["args"] == state["args"]
    assert found["cfg"] == config
    assert found["extra_state"]["best"] == 1.5
    assert found["extra_state"]["array"].tolist() == [0, 1, 2]
    assert found["extra_state"]["meters"]["a"] == 1.0


def test_a_class_that_is_not_on_the_list_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "cfg": {}, "extra": Harmful()}, path)
    with pytest.raises(UserError, match=r"--path: .*checkpoint.pt can't be read as a checkpoint .*Harmful"):
        checkpoints.read(str(path), "--path")


def test_files_in_torchs_old_format_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    state = {"model": {"weight": torch.ones(2)}, "cfg": None, "args": Namespace(arch="block_base")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    found = checkpoints.read(str(path), "--path")
    assert found["model"]["weight"].tolist() == [1.0, 1.0]
    assert checkpoints.is_block(found)


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"args": Namespace(arch="block_base"), "cfg": None}, "block_base"),
        ({"args": None, "cfg": {"model": Namespace(arch="transformer")}}, "transformer"),
        ({"cfg": {"model": {"_name": "block"}}}, "block"),
        ({"cfg": OmegaConf.create({"model": {"_name": "transformer", "arch": "transformer_iwslt_de_en"}})},
         "transformer_iwslt_de_en"),
    ],
)  # fmt: skip
def test_the_architecture_is_found_wherever_fairseq_puts_it(state: dict[str, object], name: str) -> None:
    assert checkpoints.architecture(state) == name
    assert checkpoints.is_block(state) == name.startswith("block")


def test_weights_only_false_appears_nowhere() -> None:
    repository = Path(__file__).resolve().parents[1]
    forbidden = "weights_only" + "=False"
    files = [*repository.glob("block_plugins/**/*.py"), *repository.glob("scripts/**/*.py"), *repository.glob("*.py"),
             *repository.glob("tests/**/*.py"), *repository.glob("benchmarks/**/*.py")]  # fmt: skip
    assert len(files) > 20
    assert [str(file) for file in files if forbidden in file.read_text(encoding="utf-8")] == []


# Checkpoints of the authors' fairseq, each of a kind made by rewriting one.

MODELS = {"drafter": (drafter, "block"), "verifier": (verifier, "transformer")}
SHARED = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"]
SOURCE = padded([[10, 11, 12, 13, 2]])
SEEN = padded([[2, 20, 21, 3, 3]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        encoder_out = model.encoder(SOURCE, src_lengths=torch.tensor([5]))
        return model.decoder.output_layer(model.decoder.extract_features(SEEN, encoder_out)[0])


def as_namespace(state: dict[str, Any]) -> None:
    state["args"], state["cfg"] = state["cfg"]["model"], None


def as_plain_dictionary(state: dict[str, Any]) -> None:
    state["cfg"]["model"] = vars(state["cfg"]["model"])


def as_omegaconf(state: dict[str, Any]) -> None:
    state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})


def without_versions(state: dict[str, Any]) -> None:
    del state["model"]["encoder.version"], state["model"]["decoder.version"]


def of_version_1(state: dict[str, Any]) -> None:
    state["model"]["encoder.version"] = state["model"]["decoder.version"] = torch.tensor([1.0])


def with_extra_bookkeeping(state: dict[str, Any]) -> None:
    state["model"]["encoder.embed_positions._float_tensor"] = torch.zeros(1)


def with_a_length_predictor(state: dict[str, Any]) -> None:
    state["model"]["decoder.embed_length.weight"] = torch.zeros(256, 16)


def with_shared_weights_once(state: dict[str, Any]) -> None:
    for name in SHARED[1:]:
        del state["model"][name]


def without_optimizer(state: dict[str, Any]) -> None:
    del state["last_optimizer_state"], state["task_state"]


REWRITINGS = [
    as_namespace, as_plain_dictionary, as_omegaconf, without_versions, of_version_1, with_extra_bookkeeping,
    with_a_length_predictor, with_shared_weights_once, without_optimizer,
]  # fmt: skip


@pytest.fixture
def load(tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    """Writes a checkpoint, looks at it as decoding does before it loads anything, and loads it."""

    def loaded(state: dict[str, Any]) -> Any:
        path = str(tmp_path / "model.pt")
        torch.save(state, path)
        found = checkpoints.read(path, "--path")
        checkpoints.check_whole(found, path, "--path")
        checkpoints.check_vocabulary(found, path, "--path", 32, 32)
        return checkpoints.load_model(path, "--path", make_task())

    return loaded


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_rewritten_checkpoints_give_the_same_model(
    kind: str, pre_norm: bool, load: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    build, arch = MODELS[kind]
    norms = {"encoder_normalize_before": pre_norm, "decoder_normalize_before": pre_norm}
    activation = {"activation_fn": "relu"}
    model = build(make_task(), seed=3, **norms, **activation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # which are otherwise what a new model has anyway
                parameter += 0.3 * torch.randn_like(parameter)
    expected = logits(model.eval())
    for rewrite in [without_versions, of_version_1] if pre_norm else REWRITINGS:
        state = saved(model, arch, **norms, **activation)
        rewrite(state)
        caplog.clear()
        torch.testing.assert_close(logits(load(state)), expected, rtol=0, atol=0, msg=rewrite.__name__)
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        told = rewrite is with_a_length_predictor
        assert [text.split(": ")[-1] for text in warned if "no use" in text] == told * [
            "the model has no use for decoder.embed_length.weight"
        ]


@pytest.mark.parametrize("kind", MODELS)
def test_half_precision_weights_are_loaded_into_float32(kind: str, load: Callable[..., Any]) -> None:
    build, arch = MODELS[kind]
    model = build(make_task(), seed=3, activation_fn="relu").eval()
    state = saved(model, arch, activation_fn="relu")
    state["model"] = {name: weight.half() for name, weight in state["model"].items()}
    found = load(state)
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    torch.testing.assert_close(logits(found), logits(model), rtol=0, atol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_do_not_fit_are_named(kind: str, load: Callable[..., Any]) -> None:
    build, arch = MODELS[kind]

    def error(change: Callable[[dict[str, Any]], Any]) -> str:
        state = saved(build(make_task()), arch)
        change(state)
        with pytest.raises(UserError) as caught:
            load(state)
        message = str(caught.value)
        assert message.startswith("error: --path: ") and len(message.splitlines()) == 1
        return message

    weight = "decoder.layers.1.fc1.weight"
    assert f"model.pt: the checkpoint lacks {weight}" in error(lambda state: state["model"].pop(weight))
    assert "lacks encoder.embed_tokens.weight, decoder" in error(
        lambda state: [state["model"].pop(name) for name in SHARED]
    )
    extra = "decoder.layers.2.fc1.weight"
    assert f"holds {extra}, of which" in error(lambda state: state["model"].update({extra: torch.zeros(32, 16)}))
    assert "holds encoder.layer_norm.weight, of which" in error(
        lambda state: state["model"].update({"encoder.layer_norm.weight": torch.ones(16)})
    )
    assert f"{weight} is of size [4, 16], but by the checkpoint's own configuration it would be [32, 16]" in error(
        lambda state: state["model"].update({weight: torch.zeros(4, 16)})
    )
    assert "has no optimizer_history" in error(lambda state: state.pop("optimizer_history"))
    assert "has no extra_state and no cfg.task" in error(
        lambda state: [state.pop("extra_state"), state["cfg"].pop("task")]
    )
