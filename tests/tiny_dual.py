"""A tiny dual model, its task and criterion, for the tests of dual training."""

from pathlib import Path
from typing import Any

import torch
from tiny_training import dictionary

from block_plugins.criterions.dual_reconstruction_loss import DualReconstructionLoss
from block_plugins.models.dual_transformer import DualTransformerConfig, DualTransformerModel
from block_plugins.tasks.dual_translation import DualTranslationConfig, DualTranslationTask

SIZES = {
    "verifier_embed_dim": 16,
    "verifier_ffn_embed_dim": 32,
    "verifier_encoder_layers": 1,
    "verifier_decoder_layers": 2,
    "verifier_attention_heads": 2,
    "drafter_embed_dim": 8,
    "drafter_encoder_layers": 1,
    "drafter_decoder_layers": 1,
    "drafter_attention_heads": 2,
    "max_source_positions": 40,
    "max_target_positions": 40,
}


def make_task(folder: Path | None = None, **options: Any) -> DualTranslationTask:
    """The task on a data directory, or without one on the 28 words."""
    config = DualTranslationConfig()
    config.dataset_impl, config.required_seq_len_multiple, config.train_subset = None, 1, "train"
    config.source_lang, config.target_lang, config.data = "en", "de", None if folder is None else str(folder)
    for name, value in {"dual_warmup_updates": 0, "rec_max_len_a": 1.0, "rec_max_len_b": 2, **options}.items():
        setattr(config, name, value)
    if folder is None:
        return DualTranslationTask(config, dictionary(), dictionary())
    return DualTranslationTask.setup_task(config)


def make_model(task: Any, seed: int = 0, **options: Any) -> DualTransformerModel:
    """A tiny model with weights large enough that its outputs differ from sentence to sentence."""
    torch.manual_seed(seed)
    config = DualTransformerConfig()
    for name, value in {**SIZES, "dropout": 0.0, **options}.items():
        setattr(config, name, value)
    model = DualTransformerModel.build_model(config, task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
        for name, parameter in model.named_parameters():
            if name.endswith("verifier.encoder.embed_tokens.weight"):
                parameter[task.search.pad] = 0.0
    return model


def make_criterion(task: Any, label_smoothing: float = 0.1, kd_temperature: float = 1.0) -> DualReconstructionLoss:
    """The criterion with its default options."""
    return DualReconstructionLoss(task, label_smoothing, kd_temperature)
