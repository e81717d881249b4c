"""Faults of incremental decoding."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, PreconditionerConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("decoding")


@ZOO.killed_by(
    "The cache lacks the newest token from the second one on.",
    "structure/decode/cached-equals-uncached-plain",
    "cached = uncached",
    also=("structure/decode/cached-*",),
)
class StaleCache(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        return torch.cat((h[:, :i], h[:, i - 1 : i]), 1) if i else h[:, :1]


@ZOO.killed_by(
    "Incremental decoding forgets the norm inside.",
    "structure/decode/cached-equals-uncached-any-options",
    "cached = uncached",
    needs=("norm:channel",),
)
class DecodesWithoutNorm(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, norm="none"))


@ZOO.killed_by(
    "The cache holds three tokens, and drops the oldest.",
    "structure/decode/cached-equals-uncached-plain",
    "cached = uncached",
)
class CacheForgetsTheOldest(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        return h[:, max(0, i - 2) : i + 1]


@ZOO.killed_by(
    "The newest token is appended to a cache that already contains it.",
    "structure/decode/cached-equals-uncached-plain",
    "cached = uncached",
)
class CacheHoldsTheNewestTwice(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        return torch.cat((h[:, : i + 1], h[:, i : i + 1]), 1)


@ZOO.killed_by(
    "Incremental decoding takes one step, whatever T is.",
    "structure/decode/cached-equals-uncached-any-options",
    "cached = uncached",
    needs=("steps",),
)
class DecodesOneStep(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, steps=1))


@ZOO.killed_by(
    "Incremental decoding forgets the preconditioner.",
    "structure/decode/cached-equals-uncached-any-options",
    "cached = uncached",
    needs=("preconditioner:diagonal",),
)
class DecodesWithoutPreconditioner(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, preconditioner=PreconditionerConfig()))


@ZOO.killed_by(
    "Incremental decoding forgets the diagonal.",
    "structure/decode/cached-equals-uncached-diagonal-shared",
    "cached = uncached",
)
class DecodesWithoutDiagonal(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, diagonal="none"))


@ZOO.killed_by(
    "Incremental decoding does not rotate.", "structure/decode/cached-equals-uncached-rotary", "cached = uncached"
)
class DecodesUnrotated(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, position="none") if c.position == "rotary" else c)


@ZOO.killed_by(
    "All rows of a batch decode from the first row's cache.",
    "structure/decode/cached-equals-uncached-plain",
    "cached = uncached",
)
class CacheOfTheFirstRow(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        memory = super().cached(h, i)
        return memory[:1].expand_as(memory)


@ZOO.killed_by("The cache is kept in bfloat16.", "structure/decode/cached-equals-uncached-plain", "cached = uncached")
class CacheInBfloat16(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        return super().cached(h, i).bfloat16().to(h.dtype)
