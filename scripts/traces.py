"""Reads the file that --trace-path writes; block_plugins/decoding/trace.py describes its lines."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Token:
    """A token as the dictionary spells it, with the drafter's confidence where it is a drafter's and has one."""

    text: str
    confidence: float | None = None


@dataclass(frozen=True)
class Iteration:
    """One verifier pass of one sentence; fields as in the file."""

    draft: list[Token]
    lookahead: int
    accepted: int
    correction: Token | None
    draft_seconds: float
    verify_seconds: float

    @property
    def committed(self) -> list[Token]:
        """What it brought: the accepted draft tokens, and the verifier's own token where there is one."""
        return self.draft[: self.accepted] + ([] if self.correction is None else [self.correction])


@dataclass(frozen=True)
class Sentence:
    """One line of the file."""

    id: int
    source: str
    source_lang: str
    target_lang: str
    batch: int
    batch_size: int
    batch_seconds: float
    iterations: list[Iteration]

    @property
    def output(self) -> list[Token]:
        """The translation, with its EOS."""
        return [token for iteration in self.iterations for token in iteration.committed]


@dataclass
class Summary:
    """The figures of a file, by the names and the definitions of the statistics that a decode reports.

    ``per_iteration`` counts iterations with a draft by the tokens that they brought, the verifier's own included.
    """

    sentences: int = 0
    tokens: int = 0
    iterations: int = 0
    drafted: int = 0
    accepted: int = 0
    undrafted: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    per_iteration: Counter[int] = field(default_factory=Counter)

    @property
    def tokens_per_iteration(self) -> float | None:
        """Of the iterations with a draft; None where there are none."""
        return (self.tokens - self.undrafted) / self.iterations if self.iterations else None

    @property
    def alpha(self) -> float | None:
        """The share of accepted draft tokens; None where there are none."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the whole time of all batches; None where that wasn't measured."""
        return self.tokens / self.seconds if self.seconds else None


def read(path: Path) -> tuple[list[Sentence], bool]:
    """The sentences of a trace file by their numbers, and whether the file is whole: a last line without an end, of a
    run that was killed while it wrote, is left out.

    Raises ``ValueError`` that says what is wrong with which line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise ValueError(f"it can't be read ({error.strerror})") from error
    *lines, rest = text.split("\n")
    sentences = []
    for number, line in enumerate(lines, start=1):
        try:
            sentences.append(_sentence(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is none of a trace that --trace-path wrote ({error!r})") from error
    if not sentences:
        raise ValueError("there is no sentence in it: give a file that --trace-path wrote")
    return sorted(sentences, key=lambda sentence: sentence.id), not rest


def summarise(sentences: list[Sentence]) -> Summary:
    """The figures of all sentences of a file. What a batch took together counts once."""
    result = Summary(sentences=len(sentences))
    batches: dict[int, float] = {}
    passes: dict[tuple[int, int], Iteration] = {}
    for sentence in sentences:
        batches[sentence.batch] = sentence.batch_seconds
        for number, iteration in enumerate(sentence.iterations):
            passes[sentence.batch, number] = iteration
            brought = len(iteration.committed)
            result.tokens += brought
            if not iteration.draft:
                result.undrafted += 1
                continue
            result.iterations += 1
            result.drafted += iteration.lookahead
            result.accepted += iteration.accepted
            result.per_iteration[brought] += 1
    result.seconds = sum(batches.values())
    result.draft_seconds = sum(iteration.draft_seconds for iteration in passes.values())
    result.verify_seconds = sum(iteration.verify_seconds for iteration in passes.values())
    return result


def _sentence(line: dict[str, Any]) -> Sentence:
    return Sentence(
        **{name: line[name] for name in Sentence.__dataclass_fields__ if name != "iterations"},
        iterations=[_iteration(iteration) for iteration in line["iterations"]],
    )


def _iteration(found: dict[str, Any]) -> Iteration:
    own = found["correction"]
    return Iteration(
        draft=[Token(token["token"], token["confidence"]) for token in found["draft"]],
        lookahead=found["lookahead"],
        accepted=found["accepted"],
        correction=None if own is None else Token(own["token"]),
        draft_seconds=found["draft_seconds"],
        verify_seconds=found["verify_seconds"],
    )
