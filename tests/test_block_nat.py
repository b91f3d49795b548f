"""The block drafter's network: parity with the published code, and a slow re-implementation from the definition."""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
import tiny
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from tiny_training import TINY, drafter, make_task, padded
from torch import Tensor

from block_plugins import noise
from block_plugins.errors import UserError
from block_plugins.models.block_nat import BlockNATConfig, BlockNATModel
from block_plugins.tasks.translation_lev_modified import TranslationLevModifiedTask

PAD, EOS, UNK = 1, 2, 3
SOURCES = [[10, 11, 12, 13, EOS], [14, EOS], [15, 16, 17, EOS]]
SEEN = [[20, UNK, UNK, UNK], [21, 22, 23, UNK, UNK, UNK], [UNK]]


def run(model: BlockNATModel, sources: Tensor, seen: Tensor) -> Tensor:
    """Logits ``[B, T, V]`` the way decoding gets them."""
    with torch.no_grad():
        encoder_out = model.encoder(sources, src_lengths=sources.ne(PAD).sum(1))
        return model.decoder.output_layer(model.decoder.extract_features(seen, encoder_out)[0])


# ---- the published code


def test_logits_of_a_checkpoint_of_the_published_code(shared_dir: Path) -> None:
    reference = shared_dir / "reference"
    task = make_task(reference)
    (model,), _ = checkpoint_utils.load_model_ensemble([str(reference / "drafter.pt")], task=task)
    model = model.float().eval()
    cases = json.loads((reference / "expected" / "logits.json").read_text())
    assert len(cases) == 6
    for case in cases:
        block = case["block_size"]
        seen = torch.tensor([case["prefix"] + [UNK] * block])
        logits = run(model, torch.tensor([case["src"]]), seen)[0, -block:]
        assert logits.argmax(dim=-1).tolist() == case["drafter_argmax"]
        assert torch.allclose(logits[:, :100], torch.tensor(case["drafter_logits_first_100"]), atol=1e-4)
        assert torch.allclose(logits.logsumexp(dim=-1), torch.tensor(case["drafter_logsumexp"]), atol=1e-4)


# ---- a slow implementation of one sentence from the definition


def attend(query: Tensor, key: Tensor, weights: dict[str, Tensor], heads: int) -> Tensor:
    """Multi-head attention of ``[T, d]`` over ``[S, d]``, one head and one position after the other."""
    project = {name: (weights[f"{name}_proj.weight"], weights[f"{name}_proj.bias"]) for name in ("q", "k", "v", "out")}
    q, k, v = (x @ project[name][0].T + project[name][1] for x, name in ((query, "q"), (key, "k"), (key, "v")))
    size = q.size(1) // heads
    rows = []
    for position in range(len(q)):
        mixed = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = [float(q[position, part] @ k[j, part]) / size**0.5 for j in range(len(k))]
            shares = torch.tensor(scores, dtype=q.dtype).softmax(dim=0)
            mixed.append(sum(shares[j] * v[j, part] for j in range(len(k))))
        rows.append(torch.cat(mixed) @ project["out"][0].T + project["out"][1])
    return torch.stack(rows)


def norm(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    spread = (centred**2).mean(dim=-1, keepdim=True)
    return centred / (spread + 1e-5).sqrt() * weights["weight"] + weights["bias"]


def feed_forward(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    inner = x @ weights["fc1.weight"].T + weights["fc1.bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))  # gelu
    return inner @ weights["fc2.weight"].T + weights["fc2.bias"]


def below(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: value for name, value in weights.items() if name.startswith(prefix + ".")}


def slow_logits(weights: dict[str, Tensor], source: list[int], seen: list[int], layers: int, heads: int) -> Tensor:
    """Post-norm network with copied source embeddings; positions are counted from pad + 1."""
    embeddings = weights["encoder.embed_tokens.weight"]
    source_positions = weights["encoder.embed_positions.weight"][PAD + 1 :]
    target_positions = weights["decoder.embed_positions.weight"][PAD + 1 :]

    x = torch.stack([embeddings[token] + source_positions[i] for i, token in enumerate(source)])
    for number in range(layers):
        layer = below(weights, f"encoder.layers.{number}")
        x = norm(x + attend(x, x, below(layer, "self_attn"), heads), below(layer, "self_attn_layer_norm"))
        x = norm(x + feed_forward(x, layer), below(layer, "final_layer_norm"))
    memory = x

    rows = []
    for position, token in enumerate(seen):
        if token != UNK:
            rows.append(embeddings[token])
            continue
        query = weights["decoder.copy_attn.weight"] @ target_positions[position]
        scores = [query @ (embeddings[s] + source_positions[j]) for j, s in enumerate(source)]
        shares = torch.stack(scores).softmax(dim=0)
        rows.append(sum(share * embeddings[s] for share, s in zip(shares, source, strict=True)))
    x = torch.stack(rows)
    for number in range(layers):
        layer = below(weights, f"decoder.layers.{number}")
        x = x + target_positions[: len(seen)]
        x = norm(x + attend(x, x, below(layer, "self_attn"), heads), below(layer, "self_attn_layer_norm"))
        x = norm(x + attend(x, memory, below(layer, "encoder_attn"), heads), below(layer, "encoder_attn_layer_norm"))
        x = norm(x + feed_forward(x, layer), below(layer, "final_layer_norm"))
    return x @ weights["decoder.output_projection.weight"].T


def test_batched_logits_are_those_of_the_slow_implementation_row_by_row() -> None:
    model = drafter(make_task()).double().eval()
    logits = run(model, padded(SOURCES), padded(SEEN))
    for row, (source, seen) in enumerate(zip(SOURCES, SEEN, strict=True)):
        expected = slow_logits(model.state_dict(), source, seen, layers=2, heads=2)
        assert torch.allclose(logits[row, : len(seen)], expected, atol=1e-12)


def test_left_padded_sources_and_reordered_rows_change_nothing() -> None:
    model = drafter(make_task()).double().eval()
    expected = run(model, padded(SOURCES), padded(SEEN))
    left = run(model, padded(SOURCES, left=True), padded(SEEN))
    order = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        encoder_out = model.encoder(padded(SOURCES))
        reordered = model.encoder.reorder_encoder_out(encoder_out, order)
        features, _ = model.decoder.extract_features(padded(SEEN)[order], reordered)
    real = padded(SEEN).ne(PAD)
    assert torch.allclose(left[real], expected[real], atol=1e-12)
    assert torch.allclose(model.decoder.output_layer(features)[real[order]], expected[order][real[order]], atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"decoder_normalize_before": True}, {"scale_fc": True}])
def test_the_last_layer_can_be_computed_at_some_positions_alone(options: dict[str, object]) -> None:
    symbols = tiny.dictionary(12)
    model = tiny.drafter(symbols, 3, decoder_layers=2, **options)
    sample = tiny.sample(symbols, [5, 2, 7], 1)["net_input"]
    tokens = torch.tensor([[5, 3, 3, 3, 1], [3, 3, 1, 1, 1], [6, 7, 8, 3, 3]])
    among = tokens.eq(symbols.unk())
    wanted = among.clone()
    wanted[0, 2] = wanted[2, 3] = False
    with torch.no_grad():
        encoder_out = model.encoder(**sample)
        expected = model.decoder(tokens, encoder_out)[0][wanted]
        found = model.decoder.logits_at(tokens, encoder_out, wanted, among)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"decoder_normalize_before": True, "decoder_learned_pos": False, "src_embedding_copy": False}]
)
def test_blocks_of_a_sentence_taken_together_are_what_they_are_alone(options: dict[str, object]) -> None:
    symbols = tiny.dictionary(12)
    model = tiny.drafter(symbols, 3, dropout=0.0, **options).train()
    sample = tiny.sample(symbols, [5, 2, 7], 1)["net_input"]
    generator = torch.Generator().manual_seed(2)
    target = torch.tensor([[5, 6, UNK, 8, 9, EOS], [4, EOS, 1, 1, 1, 1], [9, 8, 7, EOS, 1, 1]])
    noisy = noise.block_mask(target.repeat_interleave(4, 0), 3, pad=PAD, unk=UNK, max_length=7, generator=generator)
    length = noisy.prefix_length
    assert len(set(length.tolist())) > 3
    together = model(**sample, prev_output_tokens=noisy.prev_output_tokens, target=noisy.target, prefix_length=length)
    whole = model(**sample, prev_output_tokens=noisy.prev_output_tokens)[0]  # every row by itself
    scored = noisy.target.ne(PAD)
    torch.testing.assert_close(together.logits, whole[scored], rtol=0, atol=1e-12)
    assert together.target.tolist() == noisy.target[scored].tolist()
    # some of the blocks' tokens revealed, and so not wanted
    wanted = scored & (torch.rand(scored.shape, generator=generator) < 0.6)
    revealed = torch.where(scored & ~wanted, noisy.target, noisy.prev_output_tokens)
    found = model.decoder.logits_at(revealed, model.encoder(**sample), wanted, scored, length)
    whole = model(**sample, prev_output_tokens=revealed)[0]
    torch.testing.assert_close(found, whole[wanted], rtol=0, atol=1e-12)


def test_padded_source_positions_enter_the_encoder_as_zeros() -> None:
    model = drafter(make_task()).eval()
    entered: list[Tensor] = []
    model.encoder.layers[0].register_forward_pre_hook(lambda _layer, inputs: entered.append(inputs[0]))
    model.encoder(padded(SOURCES))
    padding = padded(SOURCES).eq(PAD)
    assert entered[0].transpose(0, 1)[padding].eq(0).all()
    assert entered[0].transpose(0, 1)[~padding].ne(0).any(dim=-1).all()


def test_without_source_copy_a_masked_position_has_the_embedding_of_unk() -> None:
    task = make_task()
    plain = drafter(task, src_embedding_copy=False).eval()
    assert "decoder.copy_attn.weight" not in plain.state_dict()
    before = run(plain, padded(SOURCES), padded(SEEN))
    with torch.no_grad():
        plain.decoder.embed_tokens.weight[UNK] += 1.0
    assert not torch.allclose(run(plain, padded(SOURCES), padded(SEEN))[..., 5:], before[..., 5:])


def test_with_source_copy_the_embedding_of_unk_is_not_used() -> None:
    model = drafter(make_task()).eval()
    before = run(model, padded(SOURCES), padded(SEEN))
    with torch.no_grad():
        model.decoder.embed_tokens.weight[UNK] += 1.0  # also the output layer's row, so leave that column out
    after = run(model, padded(SOURCES), padded(SEEN))
    real = padded(SEEN).ne(PAD)
    assert torch.equal(after[..., 4:][real], before[..., 4:][real])


# ---- configuration


def model_options(*flags: str) -> Namespace:
    """What fairseq makes of a training command, up to the model's options in its configuration."""
    parser: ArgumentParser = options.get_training_parser()
    arguments = options.parse_args_and_arch(parser, ["data", "--task", "translation_lev_modified", *flags])
    return convert_namespace_to_omegaconf(arguments)


@pytest.mark.parametrize("architecture", ["block", "block_base", "block_6e6d512"])
def test_an_architecture_is_6_plus_6_layers_of_512(architecture: str) -> None:
    configuration = model_options("--arch", architecture)
    assert configuration.model._name == architecture
    model = build_model(configuration.model, make_task())
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (6, 6)
    for layer in (model.encoder.layers[5], model.decoder.layers[5]):
        assert layer.fc1.weight.shape == (2048, 512)
        assert layer.self_attn.num_heads == 8
        assert layer.activation_fn.__name__ == "gelu"
    assert model.decoder.embed_positions.weight.requires_grad
    assert model.max_positions() == (1024, 1024)


@pytest.mark.parametrize("architecture", ["block", "block_6e6d512"])
def test_flags_win_over_the_architecture_and_other_sizes_follow(architecture: str) -> None:
    flags = "--encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 128 --activation-fn relu --src-embedding-copy"
    more = "--encoder-learned-pos --decoder-learned-pos --share-all-embeddings --decoder-ffn-embed-dim 96"
    configuration = model_options("--arch", architecture, *flags.split(), *more.split())
    model = build_model(configuration.model, make_task())
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (1, 2)
    assert model.encoder.layers[0].fc1.weight.shape == (512, 128)
    assert model.decoder.layers[0].fc1.weight.shape == (96, 128)
    assert model.decoder.layers[0].self_attn.num_heads == 2
    assert model.encoder.layers[0].activation_fn.__name__ == "relu"
    assert model.decoder.copy_attn.weight.shape == (128, 128)
    assert "embed_positions.weight" in dict(model.encoder.named_parameters())
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


def test_checkpoints_rebuild_from_a_namespace_and_from_a_configuration(tmp_path: Path) -> None:
    task: TranslationLevModifiedTask = make_task()
    model = drafter(task)
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in TINY.items()]
    from_flags = model_options("--arch", "block_base", *flags).model
    as_namespace = Namespace(**{**TINY, "_name": "block", "arch": "block", "unknown_to_us": 10})
    for number, saved in enumerate((as_namespace, from_flags)):
        path = str(tmp_path / f"{number}.pt")
        state = {
            "args": None,
            "cfg": {"model": saved},
            "model": model.state_dict(),
            "optimizer_history": [
                {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
            ],
            "extra_state": {"train_iterator": {"epoch": 1}},
        }
        torch.save(state, path)
        (loaded,), _ = checkpoint_utils.load_model_ensemble([path], task=task)
        assert loaded.state_dict().keys() == model.state_dict().keys()
        assert torch.equal(
            run(loaded.eval(), padded(SOURCES), padded(SEEN)), run(model.eval(), padded(SOURCES), padded(SEEN))
        )


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--adaptive-softmax-cutoff", {"adaptive_softmax_cutoff": [10]}),
        ("--no-token-positional-embeddings", {"no_token_positional_embeddings": True}),
        ("--src-embedding-copy", {"decoder_embed_dim": 32, "share_all_embeddings": False}),
        ("--encoder-attention-heads", {"encoder_attention_heads": 3}),
        ("--share-all-embeddings", {"src_embedding_copy": False, "decoder_embed_dim": 32}),
    ],
)
def test_options_that_cannot_work_are_named(flag: str, wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=flag):
        drafter(make_task(), **wrong)


def test_bert_initialisation_draws_all_weights_with_the_same_spread() -> None:
    model = drafter(make_task(), apply_bert_init=True, encoder_embed_dim=64, encoder_ffn_embed_dim=256)
    for weight in (
        model.encoder.layers[0].fc1.weight,
        model.decoder.copy_attn.weight,
        model.decoder.layers[1].fc2.weight,
    ):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.encoder.layers[0].fc1.bias.eq(0).all()


def test_the_model_takes_no_part_in_the_configuration_of_others() -> None:
    before = BlockNATConfig()
    drafter(make_task(), encoder_layers=1)
    assert BlockNATConfig() == before
