"""What simpler models achieve on the same tokens that the study's models predict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from synthetic.corpora.tokenisers import Codes
from synthetic.corpora.tokens import Tokens

COUNTED = 2**26  # training tokens that are counted at most

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Yardsticks:
    """Bits per token of simpler models on the same validation tokens."""

    uniform: float  # of V equally likely tokens
    # unigram, bigram: cross-entropies of counts on the training part; smoothed as `Counts` says
    unigram: float
    bigram: float


class Counts:
    """Frequencies of tokens and of pairs of them; pairs are kept sparse, as V^2 may be a thousand million."""

    def __init__(self, train: Codes, vocabulary: int) -> None:
        """Counts the training tokens (N,)."""
        self.vocabulary = vocabulary
        self.singles = np.bincount(train, minlength=vocabulary).astype(np.float64)
        self.firsts = np.bincount(train[:-1], minlength=vocabulary).astype(np.float64)
        codes = train[:-1].astype(np.int64) * vocabulary + train[1:]
        self.pairs, self.pair_counts = np.unique(codes, return_counts=True)

    def unigram(self, tokens: NDArray[np.int64]) -> Floats:
        """p(token), with one token's worth of uniform counts added."""
        smoothed: Floats = (self.singles[tokens] + 1 / self.vocabulary) / (self.singles.sum() + 1)
        return smoothed

    def bigram(self, previous: NDArray[np.int64], following: NDArray[np.int64]) -> Floats:
        """p(following | previous), each row with one token's worth of unigram counts added."""
        codes = previous * self.vocabulary + following
        places = np.searchsorted(self.pairs, codes).clip(max=len(self.pairs) - 1)
        seen = np.where(self.pairs[places] == codes, self.pair_counts[places], 0)
        smoothed: Floats = (seen + self.unigram(following)) / (self.firsts[previous] + 1)
        return smoothed


def yardsticks(train: Tokens, vocabulary: int, windows: Tensor) -> Yardsticks:
    """What simpler models reach on validation windows (W, J+1), predicting all but each window's first token."""
    previous, following = windows[:, :-1].numpy(), windows[:, 1:].numpy()
    counts = Counts(train.head(COUNTED), vocabulary)
    return Yardsticks(
        uniform=math.log2(vocabulary),
        unigram=_bits(counts.unigram(following)),
        bigram=_bits(counts.bigram(previous, following)),
    )


def _bits(probabilities: Floats) -> float:
    return float(-np.log2(probabilities).mean())
