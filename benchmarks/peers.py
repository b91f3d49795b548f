"""What the strategies are compared with, as decode functions: CTranslate2, and the floor."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from block_plugins.decoding.cached_decoder import open_decoder
from block_plugins.decoding.constraints import Constraints
from block_plugins.decoding.generator import Decoded, DecodeFunction
from block_plugins.decoding.hypotheses import Hypothesis, hypothesis
from block_plugins.decoding.settings import SearchSettings
from block_plugins.decoding.statistics import Statistics

_converted: dict[str, Path] = {}


def only_tokens(tokens: Tensor) -> list[Hypothesis]:
    """A hypothesis of which nothing but the tokens is known."""
    return [hypothesis(tokens, torch.zeros(()), torch.zeros(len(tokens)))]


def ctranslate2(
    checkpoint: str, data: str, dictionary: Any, compute_type: str, beam: int, search: SearchSettings
) -> DecodeFunction | None:
    """CTranslate2 with the converted verifier, or None where it isn't installed."""
    try:
        import ctranslate2 as engine
    except ImportError:
        return None
    if checkpoint not in _converted:
        folder = Path(tempfile.mkdtemp()) / "model"
        converter = engine.converters.FairseqConverter(checkpoint, data)
        converter.convert(str(folder), force=True)
        _converted[checkpoint] = folder
    translator = engine.Translator(
        str(_converted[checkpoint]), compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
    )

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        # CTranslate2 appends the EOS to the source itself
        lines = [
            [dictionary[token] for token in row if token not in (search.pad, search.eos)] for row in src_tokens.tolist()
        ]
        results = translator.translate_batch(
            lines,
            beam_size=beam,
            min_decoding_length=max(1, search.min_len),
            max_decoding_length=search.max_len_b,
            length_penalty=1.0,
            max_batch_size=0,
        )
        tokens = [[dictionary.index(word) for word in result.hypotheses[0]] + [search.eos] for result in results]
        statistics.tokens += sum(map(len, tokens))
        return [only_tokens(torch.tensor(row)) for row in tokens]

    return decode


def source_key(row: Tensor, pad: int) -> tuple[int, ...]:
    """A source sentence without its padding."""
    return tuple(row[row != pad].tolist())


def floor(verifier: Any, search: SearchSettings, outputs: dict[tuple[int, ...], list[int]]) -> DecodeFunction:
    """The encoder and one verifier pass over the finished outputs, which ``outputs`` has by source.

    The tokens returned are the verifier's best ones in that pass.
    """
    step_decoder = open_decoder(verifier.encoder, verifier.decoder)

    def decode(src_tokens: Tensor, src_lengths: Tensor, prefix: Tensor | None, statistics: Statistics) -> Decoded:
        known = [torch.tensor(outputs[source_key(row, search.pad)]) for row in src_tokens]
        lengths = [len(tokens) for tokens in known]
        width = max(lengths)
        inputs = torch.nn.utils.rnn.pad_sequence(known, batch_first=True, padding_value=search.eos).roll(1, dims=1)
        inputs[:, 0] = search.eos
        encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
        state = step_decoder.start(encoder_out, width)
        start = np.zeros(len(known), dtype=np.int64)
        logits = state.step(inputs, start)
        max_len = search.max_len(src_tokens.size(1), step_decoder.positions)
        best = Constraints(search, max_len).log_probs(logits, start).argmax(-1)
        statistics.tokens += sum(lengths)
        return [only_tokens(row[:length]) for row, length in zip(best, lengths, strict=True)]

    return decode
