"""Tiny random models, float64 unless told otherwise, and scripted drafters, for tests that compare decoders token by
token.
"""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import Tensor, nn

from block_plugins.decoding.drafters import Draft
from block_plugins.decoding.settings import SearchSettings
from block_plugins.models.block_nat import BlockNATModel


def dictionary(words: int = 10) -> Dictionary:
    """``words`` words behind the four special symbols."""
    result = Dictionary()
    for index in range(words):
        result.add_symbol(f"w{index}")
    return result


def _task(symbols: Dictionary) -> SimpleNamespace:
    return SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols, src_dict=symbols, tgt_dict=symbols)


def sharpen(model: nn.Module, seed: int, scale: float = 1.0) -> nn.Module:
    """Random weights large enough that the outputs differ from step to step and from sentence to sentence."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            fan = parameter.size(1) ** 0.5 if "embed" not in name and "output_projection" not in name else 1.0
            parameter.data.copy_(values * scale / fan)
        elif "bias" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def verifier(
    symbols: Dictionary,
    seed: int = 0,
    *,
    max_target_positions: int = 40,
    dtype: torch.dtype = torch.float64,
    **options: object,
) -> TransformerModelBase:
    """A Transformer of width 16 with one layer a side; ``options`` are flat names of fairseq's flags."""
    flat = verifier_options(max_target_positions=max_target_positions, **options)
    config = TransformerConfig.from_namespace(Namespace(**flat))
    model = TransformerModelBase.build_model(config, _task(symbols)).to(dtype)
    sharpen(model, seed)
    if model.decoder.output_projection is not None:
        # outputs of random weights would hardly ever end by themselves
        model.decoder.output_projection.weight.data[symbols.eos()] *= 1.5
    return model.eval()


def verifier_options(max_target_positions: int = 40, **options: object) -> dict[str, Any]:
    """The options of such a Transformer, as a checkpoint records them."""
    flat = {
        "encoder_embed_dim": 16,
        "decoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 24,
        "decoder_ffn_embed_dim": 24,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_source_positions": 40,
        "max_target_positions": max_target_positions,
        **options,
    }
    flat.setdefault("decoder_input_dim", flat["decoder_embed_dim"])
    flat.setdefault("decoder_output_dim", flat["decoder_embed_dim"])
    return flat


def drafter(
    symbols: Dictionary,
    seed: int = 0,
    *,
    max_target_positions: int = 40,
    dtype: torch.dtype = torch.float64,
    **options: object,
) -> BlockNATModel:
    """A block model of width 16 with one layer a side."""
    flat = drafter_options(max_target_positions=max_target_positions, **options)
    model = BlockNATModel.build_model(Namespace(**flat), _task(symbols)).to(dtype)
    return sharpen(model, seed).eval()


def drafter_options(max_target_positions: int = 40, **options: object) -> dict[str, Any]:
    """The options of such a model, as a checkpoint records them."""
    return {
        "encoder_embed_dim": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_source_positions": 40,
        "max_target_positions": max_target_positions,
        "share_all_embeddings": True,
        "src_embedding_copy": True,
        **options,
    }


def save(model: nn.Module, options: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint, with all that fairseq reads from one."""
    updates = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    state = {"optimizer_history": [updates], "extra_state": {"train_iterator": iterator}, "last_optimizer_state": None}
    named = Namespace(**options, task="translation")  # which is where CTranslate2 looks for the task
    if not isinstance(model, BlockNATModel):
        base_architecture(named)
    config = {"model": named, "task": {"_name": "translation"}}
    torch.save({"args": None, "cfg": config, "model": model.state_dict(), **state}, path)


def sample(
    symbols: Dictionary, lengths: list[int], seed: int = 0, left_pad: bool = True
) -> dict[str, dict[str, Tensor]]:
    """A batch of random sources of the given lengths (EOS not counted), padded as fairseq pads."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths) + 1
    tokens = torch.full((len(lengths), width), symbols.pad())
    for row, length in enumerate(lengths):
        words = torch.randint(symbols.nspecial, len(symbols), (length,), generator=generator)
        sentence = torch.cat([words, torch.tensor([symbols.eos()])])
        if left_pad:
            tokens[row, width - length - 1 :] = sentence
        else:
            tokens[row, : length + 1] = sentence
    return {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor(lengths) + 1}}


def settings(symbols: Dictionary, **options: object) -> SearchSettings:
    """Search settings with the special symbols of a dictionary."""
    return SearchSettings(pad=symbols.pad(), eos=symbols.eos(), unk=symbols.unk(), **options)


class ScriptedDrafter:
    """Proposes, for each sentence, the next tokens of a given script, some of them replaced by wrong ones.

    ``scripts`` maps a source (its tokens without padding) to the output to propose; ``errors`` is the share of tokens
    that are replaced by ``wrong``, or by a random token where that is None. Behind its script's end a drafter proposes
    pad.
    """

    def __init__(
        self,
        symbols: Dictionary,
        scripts: dict[tuple[int, ...], list[int]],
        errors: float = 0.0,
        wrong: int | None = None,
        seed: int = 0,
    ) -> None:
        self.symbols = symbols
        self.scripts = scripts
        self.errors = errors
        self.wrong = wrong
        self.generator = torch.Generator().manual_seed(seed)

    def start(
        self, src_tokens: Tensor, src_lengths: Tensor, capacity: int, verifier_out: object = None
    ) -> "ScriptedState":
        return ScriptedState(self, [self.scripts[source(row, self.symbols)] for row in src_tokens])


class ScriptedState:
    def __init__(self, owner: ScriptedDrafter, scripts: list[list[int]]) -> None:
        self.owner = owner
        self.scripts = scripts

    def propose(
        self, prefix: np.ndarray, length: np.ndarray, newest: int, size: int, k: int | None = None, goes_on: Any = None
    ) -> Draft:
        k = size if k is None else k
        symbols, rows = self.owner.symbols, len(self.scripts)
        assert len(length) == len(prefix) == rows
        tokens = torch.full((rows, k), symbols.pad())
        for row, (script, begin) in enumerate(zip(self.scripts, length.tolist(), strict=True)):
            piece = torch.tensor(script[begin : begin + k], dtype=torch.long)
            tokens[row, : len(piece)] = piece
        wrong = torch.randint(0, len(symbols), (rows, k), generator=self.owner.generator)
        if self.owner.wrong is not None:
            wrong.fill_(self.owner.wrong)
        replaced = torch.rand(rows, k, generator=self.owner.generator) < self.owner.errors
        return Draft(torch.where(replaced, wrong, tokens), torch.empty(0), np.full(rows, k))

    def select(self, rows: Tensor) -> None:
        self.scripts = [self.scripts[row] for row in rows.tolist()]


def source(row: Tensor, symbols: Dictionary) -> tuple[int, ...]:
    """The tokens of a padded source ``[S]``, as a key."""
    return tuple(row[row != symbols.pad()].tolist())


@pytest.fixture
def float64_fairseq(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq computes every softmax in float32, also for float64 models; here it shall not, so that equality can be
    asked for.
    """
    monkeypatch.setattr(utils, "log_softmax", lambda x, dim, onnx_trace=False: F.log_softmax(x, dim=dim))
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: F.softmax(x, dim=dim))
