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
from cemverify.power.mutants.base import After, Zoo, fault, plain_but
from cemverify.power.mutants.preconditioners import of_ranks

ZOO = Zoo("sizes")

_LARGE = "answer*"
_TOKENS = "sizes/attention/tokens-float64"
_WIDTHS = "sizes/attention/widths"


# --- tokens -----------------------------------------------------------------------------------------


_FORGETFUL = plain_but({"cached": lambda usual, h, i: usual.cached(h, i) if i < 512 else h[:, i - 511 : i + 1]})


def _an_energy_alone() -> Implementation:
    return implementation(attention_energy=reference.attention_energy)


ZOO += [
    ZOO.but("cache-of-five-hundred-and-twelve", "The cache holds the newest 512 tokens.",
        "sizes/decode/tokens", _LARGE, decode=lambda _, h, w, c: _FORGETFUL.decode(h, w, c)),
    ZOO.made("cache-of-five-hundred-and-twelve-alone",
        "Nothing but decoding is offered, and its cache holds the newest 512 tokens.", "sizes/decode/tokens", _LARGE,
        lambda: implementation(decode=_FORGETFUL.decode, not_offered=("validation",)),
        original=lambda: Plain().subject()),
    ZOO.but("last-token-of-a-tile-forgotten",
        "Where a last tile of 1024 tokens holds a single token, that token is not updated.",
        _TOKENS, _LARGE, attention=After(lambda after, x, h, w, c:
            torch.cat((after[:, :-1], x[:, -1:]), 1) if x.shape[1] > 1024 and x.shape[1] % 1024 == 1 else after)),
    ZOO.but("cache-of-five-hundred-and-twelve-beside-slopes",
        "With ALiBi, which fades what is far, the cache holds the newest 512 tokens.",
        "sizes/decode/tokens", _LARGE, needs=("position:alibi",), decode=lambda usual, h, w, c:
            (_FORGETFUL if c.position == "alibi" else usual).decode(h, w, c)),
    ZOO.but("keys-end-at-two-thousand-and-forty-eight",
        "Of the keys beyond the first 2048 none is read, not even a token's own.",
        _TOKENS, _LARGE, hidden=lambda usual, i, j: usual.hidden(i, j) | (j >= 2048)),
    ZOO.but("rotary-table-of-two-thousand-and-forty-eight",
        "Angles are read from a table of 2048 positions; all later positions use the last one.",
        _TOKENS, _LARGE, needs=("position:rotary",),
        rotate=lambda usual, x, rows, c, sign: usual.rotate(x, rows.clamp(max=2047), c, sign)),
    ZOO.calling("energy-of-a-thousand-tokens",
        "The attention energy of rows of more than 1024 tokens is too large by one part in a million.",
        "sizes/attention/energy", "answer*", of="attention_energy",
        answer=lambda call, x, *arguments: call(x, *arguments) * (1 - 1e-6 * (x.shape[1] > 1024))),
    ZOO.calling("energy-of-two-thousand-tokens-alone",
        "Only the attention energy is offered; beyond 2000 tokens it is too large by one part in a million.",
        "sizes/attention/energy", "answer*", of="attention_energy", original=_an_energy_alone,
        answer=lambda call, x, *arguments: call(x, *arguments) * (1 - 1e-6 * (x.shape[1] > 2000))),
    ZOO.calling("energy-of-a-thousand-units",
        "The MLP's energy leaves out one part in a million if there are more than 1024 hidden units.",
        "sizes/mlp/energy", "answer*", of="mlp_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) * (1 - 1e-6 * (c.hidden > 1024))),
]  # fmt: skip


# --- the other axes -----------------------------------------------------------------------------------


@ZOO.part("root", _WIDTHS, _LARGE, also=("mlp", "block"))
@fault("In models wider than 128 features are padded to a multiple of that, and the norm's mean counts the padding.")
def padding_in_the_mean_square(usual: Plain, x: Tensor, c: Any) -> Tensor:
    D = x.shape[-1]
    padded = D if D <= 128 else -(-D // 128) * 128
    root: Tensor = (x.square().sum(-1, keepdim=True) / padded + c.norm_eps).sqrt()
    return root


@ZOO.part("mlp_direction", "sizes/mlp/hidden-units", _LARGE)
@fault("Where the hidden units leave a single one for a last block of 64, that one is left out.")
def last_unit_of_a_block_forgotten(usual: Plain, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
    units = slice(None, -1 if c.hidden > 64 and c.hidden % 64 == 1 else None)
    return usual.mlp_direction(x, h, {**w, "V": w["V"][units], "W": w["W"][units]}, c)


@ZOO.part("block", "sizes/block/widths", _LARGE)
@fault("The MLP of a block of more than 1024 tokens updates the first 1024.")
def block_of_a_thousand_tokens(usual: Plain, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
    after = usual.block(h, w, c)
    if h.shape[1] <= 1024:
        return after
    assert isinstance(c.mlp, MLPConfig)
    still = usual.block(h, w, replace(c, mlp=replace(c.mlp, steps=1, step_size=1e-30)))
    return torch.cat((after[:, :1024], still[:, 1024:]), 1)


ZOO += [
    ZOO.but("batches-of-thirty-two",
        "In batches of more than 32 rows, the rows beyond read the memory of the first ones.",
        _WIDTHS, _LARGE, also=("block",), attention=lambda usual, x, h, w, c:
            usual.attention(x, h[torch.arange(h.shape[0], device=h.device) % 32], w, c)),
    ZOO.but("sixteen-heads", "Of more than sixteen heads the sixteen first are used.",
        _WIDTHS, _LARGE, sum_heads=lambda _, heads: heads[:, :16].sum(1)),
    ZOO.but("diagonals-of-thirty-two-heads", "Of more than 32 heads every one beyond uses the diagonal of the 32nd.",
        _WIDTHS, _LARGE, diagonal=lambda usual, w, c: usual.diagonal(w, c)[torch.arange(c.heads).clamp(max=31)]),
    ZOO.but("a-thousand-and-twenty-four-features", "Features beyond the first 1024 are not updated.",
        _WIDTHS, _LARGE, also=("mlp",), advance=lambda usual, x, heads, w, c:
            torch.cat((usual.advance(x, heads, w, c)[..., :1024], x[..., 1024:]), -1)),
    ZOO.but("scores-of-sixty-four-features", "Heads of more than 64 features lose the others from their scores.",
        _WIDTHS, _LARGE, scores=lambda usual, q, k, x, h, w, c: usual.scores(q[..., :64], k[..., :64], x, h, w, c)),
    ZOO.but("eight-steps", "More than eight steps are not taken.",
        _WIDTHS, _LARGE, also=("mlp", "block"), needs=("steps",), steps=lambda usual, c: min(usual.steps(c), 8)),
    ZOO.but("a-thousand-and-twenty-four-units", "Of more than 1024 hidden units the first 1024 are used.",
        "sizes/mlp/hidden-units", _LARGE, mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, {**w, "V": w["V"][:1024], "W": w["W"][:1024]}, c)),
    ZOO.but("mlp-of-two-thousand-tokens", "The MLP updates the first 2048 tokens of a row.",
        "sizes/mlp/widths", _LARGE,
        mlp=lambda usual, x, h, w, c: torch.cat((usual.mlp(x, h, w, c)[:, :2048], x[:, 2048:]), 1)),
    ZOO.but("sixteen-ranks", "Of a low-rank preconditioner sixteen ranks are used.",
        _WIDTHS, _LARGE, needs=("preconditioner:low-rank-printed",), cross=of_ranks(16)),
]  # fmt: skip


# --- low precision in long rows -----------------------------------------------------------------------


class _Positions(Plain):
    """Where positions pass through another dtype before angles and distances are computed from them."""

    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows

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


@ZOO.killed_by("sizes/attention/tokens-bfloat16", _LARGE, own_dtype=True, needs=("position:rotary",))
@fault("Positions are numbers of the layer's own dtype: in bfloat16 there is no 257.")
class PositionsOfTheLayersDtype(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows.to(dtype)


@ZOO.killed_by("sizes/attention/tokens-float32", _LARGE, own_dtype=True, needs=("position:rotary",))
@fault("Positions pass through float16, which has no 2049, unless arrays are float64.")
class PositionsInHalf(_Positions):
    def through(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows if dtype == torch.float64 else rows.half()


@ZOO.killed_by("sizes/attention/tokens-float32", _LARGE, own_dtype=True)
@fault("The mask compares positions in float16 in layers of float32, so that token 2048 reads the next one.")
class MaskInHalf(_Positions):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i.half(), j.half()) if self.dtype == torch.float32 else super().hidden(i, j)


@ZOO.killed_by("sizes/attention/tokens-float32", _LARGE, own_dtype=True, needs=("position:alibi",))
@fault("ALiBi's distances pass through float16 in layers of float32.")
class DistancesInHalf(_Positions):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        if c.position != "alibi" or self.dtype != torch.float32:
            return bias
        slopes = torch.tensor(self.slopes(c.heads), dtype=torch.float64, device=rows.device)[:, None, None]
        return (bias / slopes).half().double() * slopes


@ZOO.killed_by("sizes/attention/tokens-float32", _LARGE, own_dtype=True, needs=("position:alibi",))
@fault(
    "ALiBi's slopes are rounded to bfloat16, unless arrays are float64: of nine heads or more some are irrational."
)
class SlopesInBfloat16(_Positions):
    def slopes(self, heads: int) -> list[float]:
        exact = super().slopes(heads)
        if self.dtype == torch.float64:
            return exact
        return [float(torch.tensor(slope, dtype=torch.bfloat16)) for slope in exact]


def _in_chunks(terms: Tensor, axis: int, chunk: int) -> Tensor:
    """The sum along an axis, chunk after chunk, with a running total in bfloat16."""
    total = torch.zeros_like(terms.select(axis, 0), dtype=torch.bfloat16)
    for part in torch.split(terms, chunk, axis):
        total = total + part.sum(axis).bfloat16()
    return total.to(terms.dtype)


@ZOO.part("softmax", "sizes/attention/tokens-bfloat16", _LARGE, own_dtype=True)
@fault("The sum of the softmax is kept in bfloat16, term by term, in layers of bfloat16.")
def normaliser_grows_in_bfloat16(usual: Plain, logits: Tensor) -> Tensor:
    if logits.dtype != torch.bfloat16:
        return usual.softmax(logits)
    terms = (logits.float() - logits.amax(-1, keepdim=True).float()).exp().bfloat16()
    return (terms.float() / _in_chunks(terms, -1, 1)[..., None].float()).to(logits.dtype)


ZOO += [
    ZOO.but("slopes-from-a-rounded-base",
        "ALiBi's slopes are powers of a base that is rounded to bfloat16 first, for more than eight heads.",
        "gradient/attention/alibi", slopes=After(lambda exact, heads:
            exact if heads <= 8 else [*exact[:-1], float(torch.tensor(exact[-1], dtype=torch.bfloat16))])),
    ZOO.but("mean-square-in-bfloat16", "The mean square of the norm passes through bfloat16, in layers of float32.",
        "sizes/attention/tokens-float32", _LARGE, own_dtype=True, needs=("norm:channel",), root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.float32
            else (x.square().mean(-1, keepdim=True).bfloat16().float() + c.norm_eps).sqrt()),
    ZOO.but("mean-square-grows-in-bfloat16",
        "The mean square of the norm is summed in bfloat16, feature by feature, in layers of bfloat16.",
        "sizes/mlp/bfloat16", _LARGE, own_dtype=True, needs=("norm:channel",), root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.bfloat16
            else (_in_chunks(x.square(), -1, 1)[..., None] / x.shape[-1] + c.norm_eps).sqrt()),
]  # fmt: skip


# --- large cases in float32 -------------------------------------------------------------------------


ZOO += [
    ZOO.but("many-heads-add-up-in-bfloat16",
        "From 32 heads on, float32 layers add them in bfloat16, eight at a time.",
        "sizes/attention/widths-float32", _LARGE, sum_heads=lambda usual, heads:
            _in_chunks(heads, 1, 8) if heads.dtype == torch.float32 and heads.shape[1] >= 32
            else usual.sum_heads(heads)),
    ZOO.but("mean-square-in-float16",
        "In float32 rows of more than 512 features, the mean square is rounded to float16.",
        "sizes/mlp/widths-float32", _LARGE, root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.float32 or x.shape[-1] <= 512
            else (x.square().half().mean(-1, keepdim=True).float() + c.norm_eps).sqrt()),
]  # fmt: skip
