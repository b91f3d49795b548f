"""Small real objects for the tests of the training side: a binarised corpus, a task, models, a batch."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary, indexed_dataset
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture

from block_plugins.models.block_nat import BlockNATModel
from block_plugins.tasks.translation_lev_modified import TranslationLevModifiedConfig, TranslationLevModifiedTask

WORDS = [f"w{number}" for number in range(28)]
TINY = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_source_positions": 40,
    "max_target_positions": 40,
    "share_all_embeddings": True,
    "src_embedding_copy": True,
    "dropout": 0.1,
}


def dictionary() -> Dictionary:
    """The 28 words behind fairseq's four special symbols."""
    words = Dictionary()
    for word in WORDS:
        words.add_symbol(word)
    return words


def write_split(folder: Path, split: str, source: list[str], target: list[str] | None) -> None:
    """Binarises a split as fairseq-preprocess does, with the target side left out if it is None."""
    words = dictionary()
    for language, lines in (("en", source), ("de", target)):
        if lines is None:
            continue
        prefix = f"{folder}/{split}.en-de.{language}"
        builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(words))
        for line in lines:
            builder.add_item(words.encode_line(line, add_if_not_exist=False).long())
        builder.finalize(f"{prefix}.idx")


def write_data(folder: Path, seed: int = 0) -> Path:
    """A data directory with 24 training and 6 validation pairs of 1 to 9 words; targets are reversed sources."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        dictionary().save(f"{folder}/dict.{language}.txt")
    for split, size in (("train", 24), ("valid", 6)):
        lengths = torch.randint(1, 10, (size,), generator=generator).tolist()
        source = [[WORDS[i] for i in torch.randint(0, 28, (n,), generator=generator).tolist()] for n in lengths]
        write_split(folder, split, [" ".join(s) for s in source], [" ".join(reversed(s)) for s in source])
    return folder


def make_task(folder: Path | None = None, **options: Any) -> TranslationLevModifiedTask:
    """The task on a data directory, or without one on the 28 words."""
    config = TranslationLevModifiedConfig()
    config.dataset_impl, config.required_seq_len_multiple, config.train_subset = None, 1, "train"
    config.source_lang, config.target_lang, config.data = "en", "de", None if folder is None else str(folder)
    for name, value in options.items():
        setattr(config, name, value)
    if folder is None:
        return TranslationLevModifiedTask(config, dictionary(), dictionary())
    return TranslationLevModifiedTask.setup_task(config)


def drafter(task: Any, seed: int = 0, **options: Any) -> BlockNATModel:
    """A tiny block drafter."""
    torch.manual_seed(seed)
    return BlockNATModel.build_model(Namespace(**{**TINY, **options}), task)


def verifier(task: Any, seed: int = 0, **options: Any) -> TransformerModel:
    """A tiny autoregressive Transformer."""
    torch.manual_seed(seed)
    sizes = {name: value for name, value in TINY.items() if name != "src_embedding_copy"}
    return TransformerModel.build_model(Namespace(**{**sizes, **options}), task)


def saved(model: Any, arch: str, **options: Any) -> dict[str, Any]:
    """A checkpoint of a tiny model as fairseq 1.0.0a0 writes it, trained on another machine."""
    flags = Namespace(**{**TINY, **options}, arch=arch, _name=arch, task="translation", data="/elsewhere/bin")
    if arch == "transformer":
        base_architecture(flags)
    return {
        "args": None,
        "cfg": {"model": flags, "task": {"_name": "translation", "data": "/elsewhere/bin"}},
        "model": dict(model.state_dict()),
        "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 9}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
        "last_optimizer_state": None,
    }


def padded(rows: list[list[int]], left: bool = False, pad: int = 1) -> torch.Tensor:
    """Rows of token ids as one padded tensor."""
    width = max(map(len, rows))
    return torch.tensor([[pad] * (width - len(r)) + r if left else r + [pad] * (width - len(r)) for r in rows])


def batch(sources: list[list[int]], targets: list[list[int]]) -> dict[str, Any]:
    """A batch as fairseq's collater makes it, rows given without EOS, in the given order."""
    with_eos = [[*row, 2] for row in targets]
    source = padded([[*row, 2] for row in sources], left=True)
    return {
        "id": torch.arange(len(sources)),
        "nsentences": len(sources),
        "ntokens": sum(map(len, with_eos)),
        "net_input": {
            "src_tokens": source,
            "src_lengths": source.ne(1).sum(1),
            "prev_output_tokens": padded([[2, *row] for row in targets]),
        },
        "target": padded(with_eos),
    }
