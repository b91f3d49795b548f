"""Speed at the published size: 6 + 6 layers of 512 dimensions, 32 thousand symbols, random weights.

    python benchmarks/published_size.py [--output RESULTS.md]

Nobody can train such a pair in passing, so the drafter runs, at its full cost, but its tokens are replaced: by the
verifier's own output, each token of which is wrong with a given probability. That probability is set so that as many
tokens are committed per iteration as the paper reports (about 3.6 with beta 1, 6 with beta 5 and tau 3). Every sentence
has 25 source and 30 target tokens. Two drafters are run: the published one (6 decoder layers, which read the whole
prefix for each draft) and one with a single decoder layer on the verifier's encoder, whose output projection is int8.
CTranslate2 (extra "bench"), where it is installed, translates with the converted verifier; "floor" is the encoder and
one verifier pass over the finished output.

All strategies take turns, ``--passes`` times; speeds are medians over the passes.
"""

import argparse
import statistics
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_legacy import base_architecture
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peers
import plots
import report

from block_plugins.decoding import generator
from block_plugins.decoding.drafters import BlockDrafter, Draft
from block_plugins.decoding.lookahead import GoesOn, planned_length
from block_plugins.decoding.settings import BeamSettings, SearchSettings, SpeculationSettings
from block_plugins.models.block_nat import BlockNATModel

SOURCE_TOKENS, TARGET_TOKENS = 25, 30


class ReplacedDrafter:
    """A drafter that runs, and whose tokens are then replaced by ``outputs`` with errors at the rate ``errors``."""

    def __init__(self, drafter: BlockDrafter, errors: float) -> None:
        self.drafter = drafter
        self.errors = errors
        self.outputs = torch.empty(0)

    def start(self, src_tokens: Tensor, src_lengths: Tensor, capacity: int, verifier_out: Any = None) -> Any:
        """See ``Drafter.start``."""
        return ReplacedState(self, self.drafter.start(src_tokens, src_lengths, capacity, verifier_out))


class ReplacedState:
    """See ``ReplacedDrafter``."""

    def __init__(self, owner: ReplacedDrafter, state: Any) -> None:
        self.owner, self.state = owner, state
        self.outputs = owner.outputs  # [B, T]
        self.generator = torch.Generator().manual_seed(1)

    def propose(
        self,
        prefix: np.ndarray,
        length: np.ndarray,
        newest: int,
        size: int,
        k: int | None = None,
        goes_on: GoesOn | None = None,
    ) -> Draft:
        """See ``DraftState.propose``. A random network's confidence means nothing: it is computed, and in its place
        comes the share of right tokens.
        """
        anything = None if goes_on is None else lambda at, confidence: np.ones(len(confidence), dtype=bool)
        real = self.state.propose(prefix, length, newest, size, k, anything)
        count = real.tokens.size(1)
        at = (torch.from_numpy(length).unsqueeze(1) + torch.arange(count)).clamp(max=self.outputs.size(1) - 1)
        right = self.outputs.gather(1, at)
        wrong = torch.rand(right.shape, generator=self.generator) < self.owner.errors
        others = (right + 1) % real.logits.size(2)
        planned = real.length
        if goes_on is not None:
            confidence = np.full((len(length), count), 1 - self.owner.errors)
            planned = np.minimum(planned, planned_length(confidence, goes_on))
        return Draft(torch.where(wrong, others, right), real.logits, planned)

    def select(self, rows: Tensor) -> None:
        """See ``DraftState.select``."""
        self.outputs = self.outputs.index_select(0, rows)
        self.state.select(rows)


def dictionary(size: int) -> Dictionary:
    """``size`` symbols."""
    symbols = Dictionary()
    for index in range(len(symbols), size):
        symbols.add_symbol(f"symbol{index}")
    return symbols


def verifier_options(arguments: Any) -> dict[str, Any]:
    """fairseq's flags for the verifier."""
    return {
        "encoder_layers": arguments.layers,
        "decoder_layers": arguments.layers,
        "encoder_embed_dim": arguments.width,
        "decoder_embed_dim": arguments.width,
        "decoder_input_dim": arguments.width,
        "decoder_output_dim": arguments.width,
        "encoder_ffn_embed_dim": 4 * arguments.width,
        "decoder_ffn_embed_dim": 4 * arguments.width,
        "encoder_attention_heads": arguments.width // 64,
        "decoder_attention_heads": arguments.width // 64,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "activation_fn": "gelu",
        "share_all_embeddings": True,
        "no_scale_embedding": True,
        "max_source_positions": 1000,
        "max_target_positions": 1000,
    }


def models(symbols: Dictionary, arguments: Any) -> tuple[Any, Any, Any]:
    """The verifier, the published drafter, and one with a single decoder layer and the verifier's encoder."""
    torch.manual_seed(1)
    options = verifier_options(arguments)
    task: Any = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    verifier = TransformerModelBase.build_model(TransformerConfig.from_namespace(Namespace(**options)), task).eval()
    options |= {"src_embedding_copy": True}
    published = BlockNATModel.build_model(Namespace(**options), task).eval()
    options |= {"decoder_layers": 1}
    shallow = BlockNATModel.build_model(Namespace(**options), task).eval()
    shallow.encoder.load_state_dict(verifier.encoder.state_dict())
    return verifier, published, shallow


def save(verifier: Any, symbols: Dictionary, arguments: Any, folder: str) -> str:
    """The verifier as a checkpoint, and its dictionaries, for CTranslate2's converter."""
    options = Namespace(**verifier_options(arguments), arch="transformer", task="translation")
    options.source_lang, options.target_lang = "en", "de"
    base_architecture(options)  # as fairseq's command line does
    for language in ("en", "de"):
        symbols.save(f"{folder}/dict.{language}.txt")
    torch.save({"args": options, "model": verifier.state_dict()}, f"{folder}/verifier.pt")
    return f"{folder}/verifier.pt"


def sources(batch: int, seed: int, symbols: Dictionary) -> dict[str, Any]:
    """A batch of random sentences."""
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(symbols.nspecial, len(symbols), (batch, SOURCE_TOKENS), generator=random)
    tokens = torch.cat([words, torch.full((batch, 1), symbols.eos())], dim=1)
    return {"net_input": {"src_tokens": tokens, "src_lengths": torch.full((batch,), SOURCE_TOKENS + 1)}}


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The table's rows."""
    symbols = dictionary(arguments.symbols)
    verifier, published, shallow = models(symbols, arguments)
    special = (symbols.pad(), symbols.eos(), symbols.unk())
    limits = {"max_len_b": TARGET_TOKENS - 1, "min_len": TARGET_TOKENS - 1}
    search = SearchSettings(*special, **limits)
    pad, eos, unk = special
    drafters = {
        "published drafter": BlockDrafter(published, pad, unk, eos, verifier),
        "shallow drafter": BlockDrafter(shallow, pad, unk, eos, verifier, int8=True),
    }

    def fairseq_beam(size: int) -> Any:
        return generator.fairseq_search(SequenceGenerator([verifier], symbols, beam_size=size, **limits))

    greedy_outputs: dict[tuple[int, ...], list[int]] = {}
    others: dict[str, Any] = {"floor": peers.floor(verifier, search, greedy_outputs)}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = save(verifier, symbols, arguments, folder)
        for compute_type, beam in (("float32", 1), ("int8", 1), ("float32", 5), ("int8", 5)):
            peer = peers.ctranslate2(checkpoint, folder, symbols, compute_type, beam, search)
            if peer is not None:
                others[f"CTranslate2 {compute_type} beam {beam}"] = peer

    table = []
    for batch in arguments.batch:
        samples = [sources(batch, seed, symbols) for seed in range(max(1, arguments.sentences // batch))]
        decoders: dict[str, Any] = {
            "fairseq beam 5": fairseq_beam(5),
            "fairseq beam 1": fairseq_beam(1),
            "left2right beam 5": generator.left_to_right_beam(verifier, search, BeamSettings(5)),
            "AR": generator.autoregressive(verifier, search),
        }
        replaced: dict[str, ReplacedDrafter] = {}
        for name, drafter in drafters.items():
            for beta, tau, errors in ((1, 0.0, arguments.errors[0]), (5, 3.0, arguments.errors[1])):
                label = f"GAD at the rate of beta {beta}{f' tau {tau:g}' if tau else ''}, {name}"
                replaced[label] = ReplacedDrafter(drafter, errors)
                # beta stays 1: the tokens that are replaced are the verifier's best ones
                speculation = SpeculationSettings(arguments.block_size, lookahead=arguments.lookahead)
                decoders[label] = generator.gad(replaced[label], verifier, search, speculation)
        greedy = generator.Generator(decoders["AR"], pad, eos)
        outputs = [torch.stack([row[0]["tokens"] for row in greedy.generate([], sample)]) for sample in samples]
        for sample, output in zip(samples, outputs, strict=True):
            for row, tokens in zip(sample["net_input"]["src_tokens"], output.tolist(), strict=True):
                greedy_outputs[peers.source_key(row, pad)] = tokens
        decoders |= others
        speeds: dict[str, list[float]] = {name: [] for name in decoders}
        figures: dict[str, dict[str, Any]] = {}
        for passed in range(arguments.passes + 1):
            for name, decode in decoders.items():
                timed = generator.Generator(decode, pad, eos)
                for sample, output in zip(samples, outputs, strict=True):
                    if name in replaced:
                        replaced[name].outputs = output
                    timed.generate([], sample)
                if passed > 0:  # the first is the warm-up
                    speeds[name].append(timed.statistics.sentences / timed.statistics.seconds)
                    figures[name] = timed.statistics.as_dict()
        base = statistics.median(speeds["fairseq beam 1"])
        for name, values in speeds.items():
            speed = statistics.median(values)
            table.append(
                {
                    "strategy": name,
                    "batch": batch,
                    "accepted_per_iteration": figures[name]["accepted_per_iteration"] if name in replaced else None,
                    "undrafted": figures[name]["undrafted"] / figures[name]["tokens"] if name in replaced else None,
                    "sentences_per_second": speed,
                    "pass_speeds": values,
                    "speedup": speed / base,
                }
            )
            print(f"batch {batch}: {name}: {speed:.2f} sentences/s, {speed / base:.2f} x", flush=True)
    return table


def markdown(table: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """The table and what it was measured with."""
    lines = [
        "| strategy | batch | tokens/iteration | without a draft | sentences/s | from-to | speed-up |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        rate, undrafted = row["accepted_per_iteration"], row["undrafted"]
        lines.append(
            f"| {row['strategy']} | {row['batch']} | {'' if rate is None else f'{rate:.2f}'} | "
            f"{'' if undrafted is None else f'{100 * undrafted:.0f} %'} | {row['sentences_per_second']:.2f} | "
            f"{min(row['pass_speeds']):.2f} - {max(row['pass_speeds']):.2f} | {row['speedup']:.2f} x |"
        )
    lines += [
        "",
        f"{report.circumstances()}. Random weights, {arguments.layers} + {arguments.layers} layers of "
        f"{arguments.width}, {arguments.symbols} symbols, {TARGET_TOKENS} target tokens; the drafters run, but their "
        f"tokens are replaced by the verifier's, wrong at rates of {arguments.errors[0]:g} and "
        f"{arguments.errors[1]:g}; block size {arguments.block_size}, lookahead {arguments.lookahead}; "
        f"medians of {arguments.passes} interleaved passes over {arguments.sentences} sentences, after a warm-up.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--symbols", type=int, default=32000)
    parser.add_argument("--block-size", type=int, default=25)
    parser.add_argument("--errors", type=float, nargs=2, default=[0.28, 0.165], help="rates of wrong tokens")
    parser.add_argument("--lookahead", choices=("constant", "auto"), default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--sentences", type=int, default=8, help="sentences of a pass")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", help="Markdown file to write; its JSON and its plot (SVG) go beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = run(arguments)
    plot = report.save(arguments.output, markdown(table, arguments), {"rows": table})
    if plot is not None:
        plots.speedups(table, "fairseq beam 1", plot)


if __name__ == "__main__":
    main()
