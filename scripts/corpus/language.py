"""Is the English side English, and the German side German?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from corpus.pair import Pair
from corpus.report import Report

DOUBT = 0.9


class LanguageCheck:
    """Chooses between the two languages of the corpus only: for short text full of names that is the safer question."""

    def __init__(self, source: str, target: str, doubt: float = DOUBT) -> None:
        self._source, self._target, self._doubt = source, target, doubt
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self._identifier.set_languages([source, target])

    def is_other(self, text: str, expected: str) -> bool:
        """True where the text is of the other language with a probability above the threshold."""
        language, probability = self._identifier.classify(text)
        return bool(language != expected and probability > self._doubt)

    def filter(self, pairs: Iterable[Pair], report: Report) -> Iterator[Pair]:
        """The pairs whose two sides pass."""
        for pair in pairs:
            if self.is_other(pair.source, self._source):
                report.drop(pair.family, f"source is not {self._source}")
            elif self.is_other(pair.target, self._target):
                report.drop(pair.family, f"target is not {self._target}")
            else:
                yield pair
