"""Faults of incremental decoding."""

from __future__ import annotations

from dataclasses import replace

import torch

from cemverify.cem.layers import PreconditionerConfig
from cemverify.power.mutants.base import After, Zoo

ZOO = Zoo("decoding")
_PIECES = "structure/decode/pieces"


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
    ZOO.edited("one-cache-for-all", "All rows are continued from the cache of the row that was read last.", _PIECES,
        ("self.lengthened(cache, h)\n", "self.lengthened(cache if cache is None else self.kept, h)\n"),
        ("        return at, row\n", "        self.kept = row\n        return at, row\n")),
    ZOO.but("piece-sees-ahead", "After a cache, the tokens of a piece read all of that piece.", _PIECES,
        hidden=After(lambda hidden, i, j: hidden & (i.shape[0] == j.shape[1]))),
    ZOO.but("piece-forgets-the-cache", "Of several tokens after a cache, each reads as many as if there were none.",
        _PIECES, hidden=lambda _, i, j: j > (i - i[0] if i.shape[0] > 1 else i)),
    ZOO.but("piece-begins-positions-anew", "Rotary positions of several tokens count from the piece's first one.",
        _PIECES, needs=("position:rotary",), rotate=lambda usual, x, rows, c, sign:
            usual.rotate(x, rows - rows[0] if len(rows) > 1 else rows, c, sign)),
    ZOO.but("cache-lacks-the-last-of-a-piece", "The last token of several is not kept.", _PIECES,
        prefill=After(lambda pair, h, cache, w, c: (pair[0], pair[1][:, :-1] if h.shape[1] > 1 else pair[1]))),
    ZOO.but("cache-in-float32", "The cache is kept in float32.", _PIECES,
        prefill=After(lambda pair, h, cache, w, c: (pair[0], pair[1].float().to(h.dtype)))),
]  # fmt: skip
