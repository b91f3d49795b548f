"""What a decode is asked to do, as frozen dataclasses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """What fairseq's search does to the verifier's scores, whatever the strategy. Lengths are in tokens without EOS.

    ``max_len_a * source length + max_len_b`` bounds the output, where the source length is, as in fairseq, the width
    of the padded batch. ``repetition_penalty`` R divides the positive logits of tokens that are in the output already
    by R and multiplies the negative ones (Keskar et al. 2019, arXiv 1909.05858, section 4.1; 1 is off);
    ``no_repeat_ngram`` n rules out what would complete n tokens in a row that are there already (0 is off).
    """

    pad: int
    eos: int
    unk: int
    max_len_a: float = 0.0
    max_len_b: int = 200
    min_len: int = 1
    unk_penalty: float = 0.0
    temperature: float = 1.0
    length_penalty: float = 1.0
    normalize_scores: bool = True
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    @property
    def looks_back(self) -> bool:
        """Whether scores depend on the output so far."""
        return self.repetition_penalty != 1.0 or self.no_repeat_ngram > 0

    def max_len(self, source_width: int, positions: int) -> int:
        """The most tokens before EOS for a batch whose padded source has ``source_width`` columns.

        ``positions`` is how many positions the scoring decoder has.
        """
        return min(int(self.max_len_a * source_width + self.max_len_b), positions - 1)


@dataclass(frozen=True)
class SamplingSettings:
    """Tokens are drawn from the verifier's distribution, of which ``topk`` or ``topp`` (0: off) leave the best ones."""

    topk: int = 0
    topp: float = 0.0


@dataclass(frozen=True)
class SpeculationSettings:
    """How drafts are made and judged: ``block_size`` tokens at once, kept by the top-``beta`` within ``tau`` rule, or
    by chance where there is ``sampling``.

    ``keep_drafts`` records every draft, for ``--retain-iter-history``, and ``trace`` everything about every iteration.
    ``lookahead`` is "constant" (the whole block is verified), "heuristic", "adaptive", "confidence" (a draft ends with
    a token whose probability is below ``threshold``), or "auto" (as much as pays, if the output is the greedy one:
    otherwise the text would depend on measured times).
    """

    block_size: int = 25
    beta: int = 1
    tau: float = 0.0
    keep_drafts: bool = False
    lookahead: str = "constant"
    threshold: float = 0.4
    sampling: SamplingSettings | None = None
    trace: bool = False


@dataclass(frozen=True)
class BeamSettings:
    """Beam search: ``size`` beams, ``nbest`` hypotheses, and how lengths (EOS counted) enter the score.

    A hypothesis of length n scores its log-probability / ((start + n) / (start + 1)) ** alpha; lengths below
    ``shortest`` or above ``longest`` (-1: no bound) are all but ruled out.
    """

    size: int = 5
    nbest: int = 1
    start: float = 5.0
    alpha: float = 0.6
    shortest: int = 0
    longest: int = -1

    def norm(self, length: int) -> float:
        """What the log-probability of a hypothesis is divided by."""
        return float(((self.start + length) / (self.start + 1)) ** self.alpha)
