"""--arch dual_transformer: sizes, shared embeddings, each component as an ordinary model, bad input."""

from typing import Any

import pytest
import torch
from tiny_dual import make_model, make_task
from tiny_training import batch

from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATModel
from block_plugins.models.dual_transformer import COMPONENTS, DualTransformerConfig, component_options

SAMPLE = batch([[10, 11, 12], [13], [14, 15, 16, 17, 18]], [[20, 21, 22, 23], [24], [25, 26, 27]])


def logits(model: Any, component: str) -> torch.Tensor:
    found: torch.Tensor = model({"it": (component, SAMPLE["net_input"])})["it"]
    return found


def test_the_default_sizes() -> None:
    config = DualTransformerConfig()
    config.max_source_positions, config.max_target_positions = 70, 90
    verifier, drafter = (component_options(config, f"forward_{role}") for role in ("verifier", "drafter"))
    for options, width, ffn, layers in ((verifier, 512, 2048, 8), (drafter, 256, 1024, 4)):
        for side in ("encoder", "decoder"):
            assert getattr(options, f"{side}_embed_dim") == width
            assert getattr(options, f"{side}_ffn_embed_dim") == ffn
            assert getattr(options, f"{side}_layers") == layers
            assert getattr(options, f"{side}_attention_heads") == 8
        assert options.dropout == 0.1
        assert (options.max_source_positions, options.max_target_positions) == (70, 90)
    backward = component_options(config, "backward_verifier")
    assert (backward.max_source_positions, backward.max_target_positions) == (90, 70)
    assert not config.share_dual_embeddings and str(config.drafter_kind) == "ar"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["ar", "block"])
@pytest.mark.parametrize("width", [8, 16])
def test_embeddings_are_shared_within_a_direction_or_over_everything(shared: bool, kind: str, width: int) -> None:
    model = make_model(make_task(), share_dual_embeddings=shared, drafter_kind=kind, drafter_embed_dim=width)
    tables = {}
    for direction in ("forward", "backward"):
        verifier, drafter = getattr(model, f"{direction}_verifier"), getattr(model, f"{direction}_drafter")
        tables[direction] = verifier.encoder.embed_tokens.weight
        assert verifier.decoder.embed_tokens.weight is tables[direction]
        assert verifier.decoder.output_projection.weight is tables[direction]
        assert drafter.encoder.embed_tokens is drafter.decoder.embed_tokens
        assert drafter.encoder.embed_tokens.table.weight is tables[direction]
        assert (drafter.encoder.embed_tokens.projection is None) == (width == 16)
        assert isinstance(drafter, BlockNATModel) == (kind == "block")
    assert (tables["forward"] is tables["backward"]) == shared
    own = [name for name, weight in model.named_parameters() if weight.dim() == 2 and weight.size(0) == 32]
    assert sum("embed_tokens" in name or "output" in name for name in own) == (1 if shared else 2)


def test_a_drafter_reads_and_writes_through_its_projection() -> None:
    model = make_model(make_task())
    table, embedding = model.forward_verifier.encoder.embed_tokens.weight, model.forward_drafter.encoder.embed_tokens
    tokens, features = torch.tensor([[5, 9, 1]]), torch.randn(4, 8)
    projected = torch.stack([embedding.projection.weight @ row for row in table])  # [V, 8], one row at a time
    torch.testing.assert_close(embedding(tokens)[0], projected[[5, 9, 1]])
    found = model.forward_drafter.decoder.output_projection(features)
    torch.testing.assert_close(found, features @ projected.T)
    found.sum().backward()
    assert embedding.projection.weight.grad is not None and table.grad is None


@pytest.mark.parametrize("kind", ["ar", "block"])
@pytest.mark.parametrize("width", [8, 16])
def test_each_component_is_an_ordinary_model_with_the_same_logits(kind: str, width: int) -> None:
    model = make_model(make_task(), drafter_kind=kind, drafter_embed_dim=width).double().eval()
    outputs = []
    for component in COMPONENTS:
        ordinary = model.ordinary(component)
        torch.testing.assert_close(ordinary(**SAMPLE["net_input"])[0], logits(model, component))
        assert type(ordinary.encoder.embed_tokens) is torch.nn.Embedding
        assert ordinary.decoder.output_projection.weight is ordinary.encoder.embed_tokens.weight
        outputs.append(logits(model, component))
    assert not torch.allclose(outputs[0], outputs[1]) and not torch.allclose(outputs[2], outputs[3])


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"--drafter-embed-dim 18: .* be wider than --verifier-embed-dim 16", {"drafter_embed_dim": 18}),
        (r"--drafter-attention-heads: 8 dimensions can't be divided among 3 heads", {"drafter_attention_heads": 3}),
        (r"--verifier-attention-heads: 16 dimensions", {"verifier_attention_heads": 0}),
    ],
)
def test_sizes_that_cannot_be(message: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        make_model(make_task(), **options)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (
            r"forward_verifier\S*fc1.weight is \(32, 16\) in the checkpoint and \(24, 16\)",
            {"verifier_ffn_embed_dim": 24},
        ),
        (r"verifier.decoder.layers.1\S* is \(.*\) in the checkpoint and absent by", {"verifier_decoder_layers": 1}),
        (r"verifier.decoder.layers.2\S* is absent in the checkpoint and \(", {"verifier_decoder_layers": 3}),
        (r"forward_drafter\S* is absent in the checkpoint", {"drafter_kind": "block"}),
    ],
)
def test_weights_of_other_sizes_are_refused(message: str, options: dict[str, Any]) -> None:
    task = make_task()
    weights = make_model(task).state_dict()
    make_model(task, seed=3).load_state_dict(dict(weights))
    with pytest.raises(UserError, match=message):
        make_model(task, **options).load_state_dict(weights)


def test_weights_of_another_dictionary_and_tables_of_each_direction_are_refused() -> None:
    task = make_task()
    weights = make_model(task).state_dict()
    with pytest.raises(UserError, match=r"--share-dual-embeddings: the checkpoint has a table .* for each direction"):
        make_model(task, share_dual_embeddings=True).load_state_dict(dict(weights))
    shared = make_model(task, share_dual_embeddings=True).state_dict()
    make_model(task, seed=3, share_dual_embeddings=True).load_state_dict(shared)
    symbols = task.src_dict.symbols
    symbols[10], symbols[11] = symbols[11], symbols[10]  # as many, in another order
    with pytest.raises(UserError, match="the dictionary in the data directory isn't the one"):
        make_model(task).load_state_dict(weights)
