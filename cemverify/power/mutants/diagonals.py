"""Faults of the diagonal in A_k."""

from __future__ import annotations

from dataclasses import replace

import torch

from cemverify.power.mutants.base import Zoo

ZOO = Zoo("diagonals")


ZOO += [
    ZOO.but("diagonal-reads-the-own-token", "The diagonal's values are the token's own memory, not the attended one.",
        "gradient/attention/diagonal-shared", diagonal_value=lambda usual, a, h, w, c:
            0.0 if c.diagonal == "none"
            else torch.einsum("kd,bid->bkid", usual.diagonal(w, c), h[:, -a.shape[-2] :])),
    ZOO.but("rotary-loses-the-diagonal", "A diagonal per head is ignored if positions are rotary.",
        "gradient/attention/any-options", needs=("position:rotary", "diagonal:per-head"), diagonal=lambda usual, w, c:
            usual.diagonal(w, c) * (0.0 if (c.position == "rotary" and c.diagonal == "per-head") else 1.0)),
    ZOO.but("diagonal-twice-in-the-scores", "The diagonal enters the scores twice.",
        "gradient/attention/diagonal-shared", scores=lambda usual, q, k, x, h, w, c:
            2 * usual.scores(q, k, x, h, w, c) - usual.scores(q, k, x, h, w, replace(c, diagonal="none"))),
    ZOO.but("score-only-diagonal", "The diagonal enters the scores but not the values, as Algorithm 1 prints it.",
        "gradient/attention/diagonal-shared", diagonal_value=lambda _, a, h, w, c: 0.0),
    ZOO.but("diagonal-of-the-first-head", "Every head uses the first head's diagonal.",
        "gradient/attention/diagonal-per-head",
        diagonal=lambda usual, w, c: usual.diagonal(w, c)[:1].expand(c.heads, -1)),
    ZOO.but("value-only-diagonal", "The diagonal enters the values but not the scores.",
        "gradient/attention/diagonal-shared",
        scores=lambda usual, q, k, x, h, w, c: usual.scores(q, k, x, h, w, replace(c, diagonal="none"))),
    ZOO.but("diagonal-twice-in-the-values", "The diagonal enters the values twice.",
        "gradient/attention/diagonal-shared", also=("gradient/attention/rotary-with-shared-diagonal",),
        diagonal_value=lambda usual, a, h, w, c: 2 * usual.diagonal_value(a, h, w, c)),
    ZOO.but("diagonal-once-for-all-heads", "A shared diagonal is divided by the number of heads.",
        "gradient/attention/diagonal-per-head", diagonal=lambda usual, w, c: usual.diagonal(w, c) / c.heads),
    ZOO.but("averaged-diagonal", "Every head uses the mean of the diagonals.",
        "gradient/attention/diagonal-per-head",
        diagonal=lambda usual, w, c: usual.diagonal(w, c).mean(0, keepdim=True).expand(c.heads, -1)),
]  # fmt: skip
