#!/usr/bin/env python3
"""Every option that the plugin adds to fairseq's tools, as the table in docs/options.md.

scripts/options_table.py > docs/options.md
"""

import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq.tasks.translation import TranslationConfig

from block_plugins.criterions.dual_reconstruction_loss import DualReconstructionLossConfig
from block_plugins.criterions.glat_loss import GlatLossConfig
from block_plugins.criterions.kd_loss import KDLossConfig
from block_plugins.models.block_nat import BlockNATConfig
from block_plugins.models.dual_transformer import DualTransformerConfig
from block_plugins.models.transformer_drafter import TransformerDrafterConfig
from block_plugins.tasks.dual_translation import DualTranslationConfig
from block_plugins.tasks.translation_lev_modified import TranslationLevModifiedConfig

HEAD = """# Options

What the plugin adds to fairseq's command line tools (`--user-dir block_plugins`). All of fairseq's own options are
there besides. The scripts have their variables explained on top of each (`./train.sh --help`, `./inference.sh --help`).
This page is printed by `scripts/options_table.py`.
"""

PARTS: dict[str, tuple[type, type | None]] = {
    "`--task translation_lev_modified`: training of drafters and verifiers, all decoding": (
        TranslationLevModifiedConfig,
        TranslationConfig,
    ),
    "`--criterion glat_loss`": (GlatLossConfig, None),
    "`--criterion kd_loss`": (KDLossConfig, None),
    "`--arch block`, `block_base`, `block_6e6d512`: besides those of fairseq's Transformer": (BlockNATConfig, None),
    "`--arch transformer_drafter`: besides those of fairseq's Transformer": (TransformerDrafterConfig, None),
    "`--task dual_translation`": (DualTranslationConfig, TranslationConfig),
    "`--arch dual_transformer`": (DualTransformerConfig, None),
    "`--criterion dual_reconstruction_loss`": (DualReconstructionLossConfig, None),
}
"""The parts of the table: what adds the options, its configuration, and the one it inherits from fairseq."""

GAD = "Xia et al. 2023"
GLAT = "Qian et al. 2021"
SPECULATIVE = "Leviathan et al. 2023"
BIGBIRD = "BigBird, Pegasus"
SOURCES = {
    **dict.fromkeys(("noise", "block_size", "strategy", "AR_path", "beta", "tau", "src_embedding_copy"), GAD),
    **dict.fromkeys(("start_p", "minus_p", "total_up"), GLAT),
    **dict.fromkeys(("num_draft_tokens", "draft_temperature"), SPECULATIVE),
    **dict.fromkeys(("beam_start", "beam_alpha", "beam_min", "beam_max"), BIGBIRD),
    "repetition_penalty": "Keskar et al. 2019",
    "confidence_threshold": "DISCO, arXiv 2405.04304",
    "apply_bert_init": "fairseq",
    "label_smoothing": "Szegedy et al. 2016",
    "kd_AR_path": "Kim and Rush 2016",
    "kd_temperature": "Hinton et al. 2015",
    "kd_weight": "Hinton et al. 2015",
    "pseudo_tag": "Caswell et al. 2019",
}
"""Where an option comes from; this project, unless named."""


def own_options(config: type, inherited: type | None) -> Iterator[Field[Any]]:
    """The fields that a configuration adds itself."""
    theirs = {item.name for item in fields(inherited)} if inherited is not None else set()
    own = vars(config).get("__annotations__", {})
    return (
        item for item in fields(config) if item.name in own and item.name not in theirs and item.metadata.get("help")
    )


def default(item: Field[Any]) -> str:
    """How a default is written in the table."""
    if item.default is MISSING or item.default is None or str(item.default).startswith("${"):
        return ""
    return "off" if item.default is False else f"`{item.default}`"


def lines() -> Iterator[str]:
    """The page."""
    yield HEAD
    for title, (config, inherited) in PARTS.items():
        yield f"\n## {title}\n\n| option | default | meaning | source |\n| --- | --- | --- | --- |\n"
        for item in own_options(config, inherited):
            flag, text = f"--{item.name.replace('_', '-')}", str(item.metadata["help"]).replace("|", "\\|")
            yield f"| `{flag}` | {default(item)} | {text} | {SOURCES.get(item.name, 'this project')} |\n"


if __name__ == "__main__":
    sys.stdout.writelines(lines())
