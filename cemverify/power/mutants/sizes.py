"""Faults that begin at sizes beyond those of small cases: long rows, many rows, heads, features, units and steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation, implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Function, Zoo, around

ZOO = Zoo("sizes")

_LARGE = "update = -eta P grad energy in a large case"
_TOKENS = "sizes/attention/tokens-float64"
_WIDTHS = "sizes/attention/widths"


# --- tokens -----------------------------------------------------------------------------------------


class _Forgets(Plain):
    """Reads the newest keys only."""

    newest: int

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i, j) | (j <= i - self.newest)


@ZOO.killed_by("Keys 512 tokens back and more are not read.", _TOKENS, _LARGE)
class ReadsFiveHundredAndTwelveTokens(_Forgets):
    newest = 512


@ZOO.killed_by("Keys 1024 tokens back and more are not read.", _TOKENS, _LARGE)
class ReadsAThousandAndTwentyFourTokens(_Forgets):
    newest = 1024


ZOO += [
    ZOO.but("keys-end-at-two-thousand-and-forty-eight",
        "Of the keys beyond the first 2048 none is read, not even a token's own.",
        _TOKENS, _LARGE, hidden=lambda usual, i, j: usual.hidden(i, j) | (j >= 2048)),
]  # fmt: skip


@ZOO.killed_by("Where a last tile of 1024 tokens holds a single token, that token is not updated.", _TOKENS, _LARGE)
class LastTokenOfATileForgotten(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        after = super().attention(x, h, w, c)
        alone = x.shape[1] > 1024 and x.shape[1] % 1024 == 1
        return torch.cat((after[:, :-1], x[:, -1:]), 1) if alone else after


ZOO += [
    ZOO.but("first-key-of-each-tile-missed", "Tiles of 512 rows miss the first key of the tile.",
        _TOKENS, _LARGE, hidden=lambda usual, i, j: usual.hidden(i, j) | ((j > 0) & (j % 512 == 0) & (i > j))),
    ZOO.but("rotary-table-of-two-thousand-and-forty-eight",
        "Angles are read from a table of 2048 positions; all later positions use the last one.",
        _TOKENS, _LARGE, needs=("position:rotary",),
        rotate=lambda usual, x, rows, c, sign: usual.rotate(x, rows.clamp(max=2047), c, sign)),
]  # fmt: skip


@ZOO.killed_by("ALiBi treats all distances above 512 alike.", _TOKENS, _LARGE, needs=("position:alibi",))
class DistanceCappedAtFiveHundredAndTwelve(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        if c.position != "alibi":
            return bias
        slopes = torch.tensor(self.slopes(c.heads), dtype=bias.dtype, device=bias.device)
        return torch.maximum(bias, -512 * slopes[:, None, None])


@ZOO.killed_by("The cache holds the newest 512 tokens.", "sizes/decode/tokens", _LARGE)
class CacheOfFiveHundredAndTwelve(Plain):
    def cached(self, h: Tensor, i: int) -> Tensor:
        return super().cached(h, i) if i < 512 else h[:, i - 511 : i + 1]


@ZOO.killed_by(
    "Nothing but decoding is offered, and its cache holds the newest 512 tokens.", "sizes/decode/tokens", _LARGE
)
class CacheOfFiveHundredAndTwelveAlone(CacheOfFiveHundredAndTwelve):
    def subject(self) -> Implementation:
        return implementation(decode=self.decode, not_offered=("validation",))


@ZOO.killed_by(
    "With ALiBi, which fades what is far, the cache holds the newest 512 tokens.",
    "sizes/decode/tokens",
    _LARGE,
    needs=("position:alibi",),
)
class CacheOfFiveHundredAndTwelveBesideSlopes(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        taken = CacheOfFiveHundredAndTwelve() if c.position == "alibi" else Plain()
        return taken.decode(h, w, c)


@ZOO.wraps(
    "The attention energy of rows of more than 1024 tokens is too large by one part in a million.",
    "sizes/attention/energy",
    "stated energy of a large case",
)
def energy_of_a_thousand_tokens(implementation: Implementation) -> Implementation:
    return _energies_off(implementation, "attention_energy", lambda x, _: x.shape[1] > 1024)


def _an_energy_alone() -> Implementation:
    return implementation(attention_energy=reference.attention_energy)


@ZOO.wraps(
    "Only the attention energy is offered; beyond 2000 tokens it is too large by one part in a million.",
    "sizes/attention/energy",
    "stated energy of a large case",
    original=_an_energy_alone,
)
def energy_of_two_thousand_tokens_alone(alone: Implementation) -> Implementation:
    return _energies_off(alone, "attention_energy", lambda x, _: x.shape[1] > 2000)


@ZOO.wraps(
    "The MLP's energy leaves out one part in a million if there are more than 1024 hidden units.",
    "sizes/mlp/energy",
    "stated energy of a large case",
)
def energy_of_a_thousand_units(implementation: Implementation) -> Implementation:
    return _energies_off(implementation, "mlp_energy", lambda _, c: c.hidden > 1024)


def _energies_off(implementation: Implementation, which: str, where: Any) -> Implementation:
    def change(name: str, function: Function) -> Function:
        if name != which:
            return function
        return lambda x, h, w, c: function(x, h, w, c) * (1 - 1e-6 * where(x, c))

    return around(implementation, change)


# --- the other axes -----------------------------------------------------------------------------------


ZOO += [
    ZOO.but("batches-of-thirty-two",
        "In batches of more than 32 rows, the rows beyond read the memory of the first ones.",
        _WIDTHS, _LARGE, also=("sizes/block/widths",),
        attention=lambda usual, x, h, w, c:
            usual.attention(x, h[torch.arange(h.shape[0], device=h.device) % 32], w, c)),
    ZOO.but("sixteen-heads", "Of more than sixteen heads the sixteen first are used.",
        _WIDTHS, _LARGE, sum_heads=lambda _, heads: heads[:, :16].sum(1)),
    ZOO.but("diagonals-of-thirty-two-heads", "Of more than 32 heads every one beyond uses the diagonal of the 32nd.",
        _WIDTHS, _LARGE, diagonal=lambda usual, w, c: usual.diagonal(w, c)[torch.arange(c.heads).clamp(max=31)]),
]  # fmt: skip


@ZOO.killed_by(
    "In models wider than 128 features are padded to a multiple of that, and the norm's mean counts the padding.",
    _WIDTHS,
    _LARGE,
    also=("sizes/mlp/widths", "sizes/block/widths"),
)
class PaddingInTheMeanSquare(Plain):
    def root(self, x: Tensor, c: Any) -> Tensor:
        D = x.shape[-1]
        padded = D if D <= 128 else -(-D // 128) * 128
        root: Tensor = (x.square().sum(-1, keepdim=True) / padded + c.norm_eps).sqrt()
        return root


ZOO += [
    ZOO.but("athousand-and-twenty-four-features", "Features beyond the first 1024 are not updated.",
        _WIDTHS, _LARGE, also=("sizes/mlp/widths",),
        advance=lambda usual, x, heads, w, c:
            torch.cat((usual.advance(x, heads, w, c)[..., :1024], x[..., 1024:]), -1)),
    ZOO.but("scores-of-sixty-four-features", "Heads of more than 64 features lose the others from their scores.",
        _WIDTHS, _LARGE, scores=lambda usual, q, k, x, h, w, c: usual.scores(q[..., :64], k[..., :64], x, h, w, c)),
]  # fmt: skip


@ZOO.killed_by(
    "Of a low-rank preconditioner sixteen ranks are used.",
    _WIDTHS,
    _LARGE,
    needs=("preconditioner:low-rank-printed",),
)
class SixteenRanks(Plain):
    def cross(self, w: Weights) -> Tensor:
        U, V = w["P_U"][..., :16], w["P_V"][..., :16]
        return U @ V.mT + V @ U.mT


ZOO += [
    ZOO.but("eight-steps", "More than eight steps are not taken.",
        _WIDTHS, _LARGE, also=("sizes/mlp/widths", "sizes/block/widths"), needs=("steps",),
        steps=lambda usual, c: min(usual.steps(c), 8)),
    ZOO.but("athousand-and-twenty-four-units", "Of more than 1024 hidden units the first 1024 are used.",
        "sizes/mlp/hidden-units", _LARGE,
        mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, {**w, "V": w["V"][:1024], "W": w["W"][:1024]}, c)),
]  # fmt: skip


@ZOO.killed_by(
    "Where the hidden units leave a single one for a last block of 64, that one is left out.",
    "sizes/mlp/hidden-units",
    _LARGE,
)
class LastUnitOfABlockForgotten(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        kept = slice(None, -1 if c.hidden > 64 and c.hidden % 64 == 1 else None)
        return super().mlp_direction(x, h, {**w, "V": w["V"][kept], "W": w["W"][kept]}, c)


@ZOO.killed_by("The MLP of a block of more than 1024 tokens updates the first 1024.", "sizes/block/widths", _LARGE)
class BlockOfAThousandTokens(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        after = super().block(h, w, c)
        if h.shape[1] <= 1024:
            return after
        assert isinstance(c.mlp, MLPConfig)
        still = super().block(h, w, replace(c, mlp=replace(c.mlp, steps=1, step_size=1e-30)))
        return torch.cat((after[:, :1024], still[:, 1024:]), 1)


ZOO += [
    ZOO.but("mlpof-two-thousand-tokens", "The MLP updates the first 2048 tokens of a row.",
        "sizes/mlp/widths", _LARGE,
        mlp=lambda usual, x, h, w, c: torch.cat((usual.mlp(x, h, w, c)[:, :2048], x[:, 2048:]), 1)),
]  # fmt: skip


# --- low precision in long rows -----------------------------------------------------------------------


class _Positions(Plain):
    """Where positions pass through another dtype before angles and distances are computed from them."""

    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        self.dtype = x.dtype
        return super().attention_direction(x, h, w, c)

    dtype: torch.dtype

    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        return super().rotate(x, self.through(rows, x.dtype).double(), c, sign)

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        if c.position != "alibi":
            return bias
        i, j = (self.through(a, self.dtype).double() for a in (rows, torch.arange(length, device=rows.device)))
        slopes = torch.tensor(self.slopes(c.heads), dtype=torch.float64, device=rows.device)
        return -slopes[:, None, None] * (i[:, None] - j[None, :]).abs()


@ZOO.killed_by(
    "Positions are numbers of the layer's own dtype: in bfloat16 there is no 257.",
    "sizes/attention/tokens-bfloat16",
    _LARGE,
    own_dtype=True,
    needs=("position:rotary",),
)
class PositionsOfTheLayersDtype(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows.to(dtype)


@ZOO.killed_by(
    "Positions pass through float16, which has no 2049, unless arrays are float64.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:rotary",),
)
class PositionsInHalf(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows if dtype == torch.float64 else rows.half()


@ZOO.killed_by(
    "The mask compares positions in float16 in layers of float32, so that token 2048 reads the next one.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
)
class MaskInHalf(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i.half(), j.half()) if self.dtype == torch.float32 else super().hidden(i, j)


@ZOO.killed_by(
    "ALiBi's distances pass through float16 in layers of float32.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:alibi",),
)
class DistancesInHalf(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        if c.position != "alibi" or self.dtype != torch.float32:
            return bias
        slopes = torch.tensor(self.slopes(c.heads), dtype=torch.float64, device=rows.device)[:, None, None]
        return (bias / slopes).half().double() * slopes


@ZOO.killed_by(
    "The rotation of token 2i is that of token i squared, in the precision of float32 layers.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:rotary",),
)
class RotationsAreSquared(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary" or x.dtype != torch.float32:
            return super().rotate(x, rows, c, sign)
        half = x.shape[-1] // 2
        angle = 10000 ** -(torch.arange(half, dtype=torch.float64) / half)
        once = torch.polar(torch.ones_like(angle), sign * angle).to(torch.complex64)
        turns = torch.ones_like(once)[None]  # (tokens, R/2)
        while len(turns) <= int(rows.max()):
            turns = torch.stack((turns * turns, turns * turns * once), 1).flatten(0, 1)
        turned = torch.complex(x[..., :half], x[..., half:]) * turns[rows]
        return torch.cat((turned.real, turned.imag), -1)


@ZOO.killed_by(
    "ALiBi's slopes are rounded to bfloat16, unless arrays are float64: of nine heads or more some are irrational.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:alibi",),
)
class SlopesInBfloat16(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows

    def slopes(self, heads: int) -> list[float]:
        exact = super().slopes(heads)
        if self.dtype == torch.float64:
            return exact
        return [float(torch.tensor(slope, dtype=torch.bfloat16)) for slope in exact]


@ZOO.killed_by(
    "ALiBi's slopes are powers of a base that is rounded to bfloat16 first, for more than eight heads.",
    "gradient/attention/alibi",
)
class SlopesFromARoundedBase(Plain):
    def slopes(self, heads: int) -> list[float]:
        exact = super().slopes(heads)
        base = float(torch.tensor(exact[-1], dtype=torch.bfloat16))
        return exact if heads <= 8 else [*exact[:-1], base]


class _Frequencies(Plain):
    """Rotary positions whose inverse frequencies are rounded."""

    def rounded(self, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary" or x.dtype == torch.float64:
            return super().rotate(x, rows, c, sign)
        half = x.shape[-1] // 2
        plane = torch.arange(half, dtype=torch.float64, device=x.device)
        angle = sign * rows[:, None] * self.rounded(10000 ** (-plane / half), x.dtype)
        first, second = x.double().chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


@ZOO.killed_by(
    "Rotary's inverse frequencies pass through bfloat16, unless arrays are float64.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:rotary",),
)
class FrequenciesInBfloat16(_Frequencies):
    def rounded(self, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
        return frequencies.bfloat16().double()


@ZOO.killed_by(
    "Rotary's inverse frequencies pass through float16, unless arrays are float64.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("position:rotary",),
)
class FrequenciesInHalf(_Frequencies):
    def rounded(self, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
        return frequencies.half().double()


@ZOO.killed_by(
    "The sum of the softmax is kept in bfloat16, term by term, in layers of bfloat16.",
    "sizes/attention/tokens-bfloat16",
    _LARGE,
    own_dtype=True,
)
class NormaliserGrowsInBfloat16(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        if logits.dtype != torch.bfloat16:
            return super().softmax(logits)
        terms = (logits.float() - logits.amax(-1, keepdim=True).float()).exp().bfloat16()
        total = torch.zeros_like(terms[..., 0])
        for term in terms.unbind(-1):
            total = total + term
        return (terms.float() / total[..., None].float()).to(logits.dtype)


@ZOO.killed_by(
    "The softmax's normaliser passes through bfloat16, in layers of float32.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
)
class NormaliserInBfloat16(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        if logits.dtype != torch.float32:
            return super().softmax(logits)
        terms = (logits - logits.amax(-1, keepdim=True)).exp()
        return terms / terms.sum(-1, keepdim=True).bfloat16().float()


@ZOO.killed_by(
    "The mean square of the norm passes through bfloat16, in layers of float32.",
    "sizes/attention/tokens-float32",
    _LARGE,
    own_dtype=True,
    needs=("norm:channel",),
)
class MeanSquareInBfloat16(Plain):
    def root(self, x: Tensor, c: Any) -> Tensor:
        if x.dtype != torch.float32:
            return super().root(x, c)
        root: Tensor = (x.square().mean(-1, keepdim=True).bfloat16().float() + c.norm_eps).sqrt()
        return root


@ZOO.killed_by(
    "The mean square of the norm is summed in bfloat16, feature by feature, in layers of bfloat16.",
    "sizes/mlp/bfloat16",
    _LARGE,
    own_dtype=True,
    needs=("norm:channel",),
)
class MeanSquareGrowsInBfloat16(Plain):
    def root(self, x: Tensor, c: Any) -> Tensor:
        if x.dtype != torch.bfloat16:
            return super().root(x, c)
        total = torch.zeros_like(x[..., :1])
        for value in x.square().unbind(-1):
            total = total + value[..., None]
        root: Tensor = (total / x.shape[-1] + c.norm_eps).sqrt()
        return root


# --- large cases in float32 -------------------------------------------------------------------------


def _in_chunks(terms: Tensor, axis: int, chunk: int) -> Tensor:
    """The sum along an axis, chunk after chunk, with a running total in bfloat16."""
    total = torch.zeros_like(terms.select(axis, 0), dtype=torch.bfloat16)
    for part in torch.split(terms, chunk, axis):
        total = total + part.sum(axis).bfloat16()
    return total.to(terms.dtype)


@ZOO.killed_by(
    "From 1024 hidden units on, float32 layers add them in bfloat16, a chunk at a time.",
    "sizes/mlp/widths-float32",
    _LARGE,
)
class ManyUnitsAddUpInBfloat16(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        if x.dtype != torch.float32 or w["V"].shape[0] < 1024:
            return super().mlp_direction(x, h, w, c)
        gated = self.gated(x @ w["V"].mT, h @ w["W"].mT, c)  # (B, J, M)
        return _in_chunks(gated[..., None] * w["V"], 2, 16)


@ZOO.killed_by(
    "From 32 heads on, float32 layers add them in bfloat16, eight at a time.",
    "sizes/attention/widths-float32",
    _LARGE,
)
class ManyHeadsAddUpInBfloat16(Plain):
    def sum_heads(self, heads: Tensor) -> Tensor:
        if heads.dtype == torch.float32 and heads.shape[1] >= 32:
            return _in_chunks(heads, 1, 8)
        return super().sum_heads(heads)


@ZOO.killed_by(
    "In float32 rows of more than 512 features, the mean square is rounded to float16.",
    "sizes/mlp/widths-float32",
    _LARGE,
)
class MeanSquareInFloat16(Plain):
    def root(self, x: Tensor, c: Any) -> Tensor:
        if x.dtype != torch.float32 or x.shape[-1] <= 512:
            return super().root(x, c)
        square = x.square().half().mean(-1, keepdim=True).float()
        root: Tensor = (square + c.norm_eps).sqrt()
        return root
