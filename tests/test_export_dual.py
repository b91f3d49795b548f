"""scripts/export_dual.py: each component as an ordinary checkpoint, in fairseq's tools and in CTranslate2."""

import importlib.util
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import ctranslate2
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_tools import PLUGIN, REPOSITORY, column, here
from test_dual_translation import greedy_by_hand
from tiny_dual import SIZES, make_model, make_task
from tiny_training import WORDS, batch, dictionary, write_data

from block_plugins import checkpoints
from block_plugins.errors import UserError
from block_plugins.models.dual_transformer import COMPONENTS, DualTransformerConfig

SAMPLE = batch([[10, 11, 12], [13], [14, 15, 16, 17, 18]], [[20, 21, 22, 23], [24], [25, 26, 27]])


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export_dual", REPOSITORY / "scripts" / "export_dual.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(folder: Path, data: Path | None = None, **options: Any) -> tuple[Any, str]:
    """A model, and a checkpoint of it with what fairseq-train writes, as far as the script reads it."""
    task = make_task(data)
    model = make_model(task, **options).eval()
    config = {
        **asdict(DualTransformerConfig()),
        **SIZES,
        **options,
        "_name": "dual_transformer",
        "arch": "dual_transformer",
    }
    state = {
        "args": None,
        "cfg": {"model": config, "task": {**asdict(task.cfg), "_name": "dual_translation"}},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 9}],
        "task_state": task.state_dict(),
    }
    torch.save(state, folder / "dual.pt")
    return model, str(folder / "dual.pt")


@pytest.mark.parametrize("kind", ["ar", "block"])
@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("component", COMPONENTS)
def test_an_exported_component_has_the_same_logits(tmp_path: Path, kind: str, width: int, component: str) -> None:
    model, path = save(tmp_path, drafter_kind=kind, drafter_embed_dim=width)
    script().main([path, "--component", component.replace("_", "-")])
    out = tmp_path / f"{component.replace('_', '-')}.pt"
    (loaded,), _ = checkpoint_utils.load_model_ensemble([str(out)], task=make_task())
    expected = model({"it": (component, SAMPLE["net_input"])})["it"]
    torch.testing.assert_close(loaded.eval()(**SAMPLE["net_input"])[0], expected)
    state = torch.load(out, weights_only=True)
    is_block = kind == "block" and component.endswith("drafter")
    assert checkpoints.is_block(state) == is_block
    names = set(state["model"])
    assert not any("projection" in name and "output_projection" not in name for name in names)
    assert "decoder.project_in_dim.weight" not in names
    languages = [state["cfg"]["task"][f"{side}_lang"] for side in ("source", "target")]
    assert languages == (["en", "de"] if component.startswith("forward") else ["de", "en"])
    assert state["task_state"]["dictionaries"]["source"] == dictionary().symbols
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize("kind", ["ar", "block"])
def test_fairseq_generate_loads_what_was_exported(tmp_path: Path, kind: str) -> None:
    data = write_data(tmp_path / "data")
    model, path = save(tmp_path, data, drafter_kind=kind)
    for component in ("forward-verifier", "forward-drafter", "backward-verifier"):
        script().main([path, "--component", component, "--out", str(tmp_path / f"my-{component}.pt")])
    common = [
        "--gen-subset",
        "valid",
        "--cpu",
        "--beam",
        "1",
        "--max-len-b",
        "12",
        "--required-batch-size-multiple",
        "1",
    ]
    gad = ["--strategy", "gad", "--path", tmp_path / "my-forward-drafter.pt", "--block-size", "3"]
    pair = ["-s", "en", "-t", "de"]
    here_gad = here(
        "generate", data, *PLUGIN, *common, *pair, *gad, "--AR-path", tmp_path / "my-forward-verifier.pt", cwd=tmp_path
    )
    plain = [*PLUGIN[:2], "--task", "translation"]
    backwards = here(
        "generate", data, *plain, *common, "-s", "de", "-t", "en", "--path", tmp_path / "my-backward-verifier.pt",
        cwd=tmp_path,
    )  # fmt: skip
    words = {word: number for number, word in enumerate(dictionary().symbols)}
    for output, network in ((here_gad, model.forward_verifier), (backwards, model.backward_verifier)):
        sources, found = column(output, "S"), column(output, "H")
        assert len(sources) == 6
        for number, (source,) in sources.items():
            ids = [words[word] for word in source.split()]
            assert found[number][1] == dictionary().string(torch.tensor(greedy_by_hand(network, ids, 12)))
        assert len({text for _, text in found.values()}) > 1


def test_ctranslate2_converts_an_exported_drafter(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    model, path = save(tmp_path, data)
    script().main([path, "--component", "backward-drafter"])
    converter = ctranslate2.converters.FairseqConverter(
        str(tmp_path / "backward-drafter.pt"), str(data), user_dir=str(REPOSITORY / "block_plugins")
    )
    converter.convert(str(tmp_path / "converted"))
    translator = ctranslate2.Translator(str(tmp_path / "converted"), intra_threads=1)
    sources = [[10, 11, 12], [13], [14, 15, 16, 17, 18]]
    tokens = [[WORDS[number - 4] for number in source] for source in sources]
    found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=12)
    for result, source in zip(found, sources, strict=True):
        expected = greedy_by_hand(model.ordinary("backward_drafter"), source, 12)
        assert result.hypotheses[0] == [dictionary().symbols[number] for number in expected]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"CHECKPOINT: there is no checkpoint .*absent\.pt"):
        script().main([str(tmp_path / "absent.pt"), "--component", "forward-drafter"])
    torch.save({"model": {}, "cfg": {"model": Namespace(arch="transformer")}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="holds a model of --arch transformer"):
        script().main([str(tmp_path / "other.pt"), "--component", "forward-drafter"])
    _, path = save(tmp_path)
    with pytest.raises(UserError, match="--out: there is no folder"):
        script().main([path, "--component", "forward-drafter", "--out", str(tmp_path / "absent" / "x.pt")])
    state = torch.load(path, weights_only=True)
    torch.save({**state, "task_state": {}}, path)
    with pytest.raises(UserError, match="has no dictionary"):
        script().main([path, "--component", "forward-drafter"])
