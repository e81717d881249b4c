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
    "structure/decode/cached-equals-uncached-plain", "cached = uncached", also=("structure/decode/cached-*",)
)
class StaleCache(Plain):
    """The cache lacks the newest token from the second one on."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        return torch.cat((h[:, :i], h[:, i - 1 : i]), 1) if i else h[:, :1]


@ZOO.killed_by("structure/decode/cached-equals-uncached-any-options", "cached = uncached", needs=("norm:channel",))
class DecodesWithoutNorm(Plain):
    """Incremental decoding forgets the norm inside."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, norm="none"))


@ZOO.killed_by("structure/decode/cached-equals-uncached-plain", "cached = uncached")
class CacheForgetsTheOldest(Plain):
    """The cache holds three tokens, and drops the oldest."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        return h[:, max(0, i - 2) : i + 1]


@ZOO.killed_by("structure/decode/cached-equals-uncached-plain", "cached = uncached")
class CacheHoldsTheNewestTwice(Plain):
    """The newest token is appended to a cache that holds it already."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        return torch.cat((h[:, : i + 1], h[:, i : i + 1]), 1)


@ZOO.killed_by("structure/decode/cached-equals-uncached-any-options", "cached = uncached", needs=("steps",))
class DecodesOneStep(Plain):
    """Incremental decoding takes one step, whatever T is."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, steps=1))


@ZOO.killed_by(
    "structure/decode/cached-equals-uncached-any-options", "cached = uncached", needs=("preconditioner:diagonal",)
)
class DecodesWithoutPreconditioner(Plain):
    """Incremental decoding forgets the preconditioner."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, preconditioner=PreconditionerConfig()))


@ZOO.killed_by("structure/decode/cached-equals-uncached-diagonal-shared", "cached = uncached")
class DecodesWithoutDiagonal(Plain):
    """Incremental decoding forgets the diagonal."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, diagonal="none"))


@ZOO.killed_by("structure/decode/cached-equals-uncached-rotary", "cached = uncached")
class DecodesUnrotated(Plain):
    """Incremental decoding does not rotate."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, position="none") if c.position == "rotary" else c)


@ZOO.killed_by("structure/decode/cached-equals-uncached-plain", "cached = uncached")
class CacheOfTheFirstRow(Plain):
    """All rows of a batch decode from the first row's cache."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        memory = super().cached(h, i)
        return memory[:1].expand_as(memory)


@ZOO.killed_by("structure/decode/cached-equals-uncached-plain", "cached = uncached")
class CacheInBfloat16(Plain):
    """The cache is kept in bfloat16."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        return super().cached(h, i).bfloat16().to(h.dtype)
