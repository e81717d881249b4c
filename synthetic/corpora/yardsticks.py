"""What simpler models achieve on the same tokens that the study's models predict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from synthetic.corpora.tokens import Tokens

COUNTED = 2**26  # the most training tokens that are counted


@dataclass(frozen=True)
class Yardsticks:
    """Bits per token of simpler models on the same validation tokens."""

    uniform: float  # of V equally likely tokens
    # unigram, bigram: cross-entropies of counts on the training part, smoothed: uniform counts that sum to one token
    # are added to the first, unigram counts that sum to one to each row of the second
    unigram: float
    bigram: float


def yardsticks(train: Tokens, vocabulary: int, windows: Tensor) -> Yardsticks:
    """What simpler models reach on validation windows (W, J+1), predicting all but each window's first token."""
    previous, following = windows[:, :-1].numpy(), windows[:, 1:].numpy()
    codes = train.head(COUNTED)
    singles, firsts = (np.bincount(part, minlength=vocabulary) for part in (codes, codes[:-1]))
    # sparse, because V^2 may exceed 10^9
    pairs, counts = np.unique(codes[:-1].astype(np.int64) * vocabulary + codes[1:], return_counts=True)
    asked = previous * vocabulary + following
    places = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    seen = np.where(pairs[places] == asked, counts[places], 0)
    unigram = (singles[following] + 1 / vocabulary) / (len(codes) + 1)
    bigram = (seen + unigram) / (firsts[previous] + 1)
    return Yardsticks(math.log2(vocabulary), *(float(-np.log2(p).mean()) for p in (unigram, bigram)))
