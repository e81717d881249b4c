"""Faults of incremental decoding."""

from __future__ import annotations

from dataclasses import replace

import torch

from cemverify.cem.layers import PreconditionerConfig
from cemverify.power.mutants.base import After, Zoo

ZOO = Zoo("decoding")


ZOO += [
    ZOO.but("stale-cache", "The cache lacks the newest token from the second one on.",
        "structure/decode/cached-equals-uncached-plain", also=("structure/decode/cached-*",),
        cached=lambda _, h, i: torch.cat((h[:, :i], h[:, i - 1 : i]), 1) if i else h[:, :1]),
    ZOO.but("decodes-without-preconditioner", "Incremental decoding forgets the preconditioner.",
        "structure/decode/cached-equals-uncached-any-options",
        needs=("preconditioner:diagonal",),
        decode=lambda usual, h, w, c: usual.decode(h, w, replace(c, preconditioner=PreconditionerConfig()))),
    ZOO.but("decodes-without-diagonal", "Incremental decoding forgets the diagonal.",
        "structure/decode/cached-equals-uncached-diagonal-shared",
        decode=lambda usual, h, w, c: usual.decode(h, w, replace(c, diagonal="none"))),
    ZOO.but("decodes-unrotated", "Incremental decoding does not rotate.",
        "structure/decode/cached-equals-uncached-rotary", decode=lambda usual, h, w, c:
            usual.decode(h, w, replace(c, position="none") if c.position == "rotary" else c)),
    ZOO.but("cache-of-the-first-row", "All rows of a batch decode from the first row's cache.",
        "structure/decode/cached-equals-uncached-plain",
        cached=After(lambda memory, h, i: memory[:1].expand_as(memory))),
]  # fmt: skip
