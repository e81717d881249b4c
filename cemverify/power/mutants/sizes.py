"""Faults that begin beyond the sizes of small cases: long rows, many rows, heads, features, units and steps."""

from __future__ import annotations

import torch
from torch import Tensor

from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.power.mutants.base import ANSWER, After, Zoo, plain_but
from cemverify.power.mutants.preconditioners import of_ranks

ZOO = Zoo("sizes")

# texts in `Plain`: positions of rotary and of ALiBi, and the dtype of the layer
_ROWS, _DISTANCE, _OWN = "rows.to(exact.dtype)[:, None]", "* distance", 'w["W_Q"].dtype'
_TOKENS = "sizes/attention/tokens-float64"
_WIDTHS = "sizes/attention/widths"


# --- tokens -----------------------------------------------------------------------------------------


_FORGETFUL = plain_but({"cached": lambda usual, h, i: usual.cached(h, i) if i < 512 else h[:, i - 511 : i + 1]})


ZOO += [
    ZOO.but("cache-of-five-hundred-and-twelve", "The cache holds the newest 512 tokens.",
        "sizes/decode/tokens", decode=lambda _, h, w, c: _FORGETFUL.decode(h, w, c)),
    ZOO.made("cache-of-five-hundred-and-twelve-alone",
        "Nothing but decoding is offered, and its cache holds the newest 512 tokens.", "sizes/decode/tokens", ANSWER,
        lambda: implementation(decode=_FORGETFUL.decode, not_offered=("validation",)),
        original=lambda: Plain().subject()),
    ZOO.but("last-token-of-a-tile-forgotten",
        "Where a last tile of 1024 tokens holds a single token, that token is not updated.",
        _TOKENS, attention=After(lambda after, x, h, w, c:
            torch.cat((after[:, :-1], x[:, -1:]), 1) if x.shape[1] > 1024 and x.shape[1] % 1024 == 1 else after)),
    ZOO.but("cache-of-five-hundred-and-twelve-beside-slopes",
        "With ALiBi, which fades what is far, the cache holds the newest 512 tokens.",
        "sizes/decode/tokens", needs=("position:alibi",), decode=lambda usual, h, w, c:
            (_FORGETFUL if c.position == "alibi" else usual).decode(h, w, c)),
    ZOO.but("keys-end-at-two-thousand-and-forty-eight",
        "Of the keys beyond the first 2048 none is read, not even a token's own.",
        _TOKENS, hidden=lambda usual, i, j: usual.hidden(i, j) | (j >= 2048)),
    ZOO.but("rotary-table-of-two-thousand-and-forty-eight",
        "Angles are read from a table of 2048 positions; all later positions use the last one.",
        _TOKENS, needs=("position:rotary",),
        rotate=lambda usual, x, rows, c, sign: usual.rotate(x, rows.clamp(max=2047), c, sign)),
    ZOO.calling("energy-of-a-thousand-tokens",
        "The attention energy of rows of more than 1024 tokens is too large by one part in a million.",
        "sizes/attention/energy", ANSWER, of="attention_energy",
        answer=lambda call, x, *arguments: call(x, *arguments) * (1 - 1e-6 * (x.shape[1] > 1024))),
    ZOO.calling("energy-of-two-thousand-tokens-alone",
        "Only the attention energy is offered; beyond 2000 tokens it is too large by one part in a million.",
        "sizes/attention/energy", ANSWER, of="attention_energy",
        original=lambda: implementation(attention_energy=reference.attention_energy),
        answer=lambda call, x, *arguments: call(x, *arguments) * (1 - 1e-6 * (x.shape[1] > 2000))),
    ZOO.calling("energy-of-a-thousand-units",
        "The MLP's energy leaves out one part in a million if there are more than 1024 hidden units.",
        "sizes/mlp/energy", ANSWER, of="mlp_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) * (1 - 1e-6 * (c.hidden > 1024))),
]  # fmt: skip


# --- the other axes -----------------------------------------------------------------------------------


ZOO += [
    ZOO.but("batches-of-thirty-two",
        "In batches of more than 32 rows, the rows beyond read the memory of the first ones.",
        _WIDTHS, also=("block",), attention=lambda usual, x, h, w, c:
            usual.attention(x, h[torch.arange(h.shape[0], device=h.device) % 32], w, c)),
    ZOO.but("sixteen-heads", "Of more than sixteen heads the sixteen first are used.",
        _WIDTHS, sum_heads=lambda _, heads: heads[:, :16].sum(1)),
    ZOO.but("diagonals-of-thirty-two-heads", "Of more than 32 heads every one beyond uses the diagonal of the 32nd.",
        _WIDTHS, diagonal=lambda usual, w, c: usual.diagonal(w, c)[torch.arange(c.heads).clamp(max=31)]),
    ZOO.but("a-thousand-and-twenty-four-features", "Features beyond the first 1024 are not updated.",
        _WIDTHS, also=("mlp",), advance=lambda usual, x, heads, w, c:
            torch.cat((usual.advance(x, heads, w, c)[..., :1024], x[..., 1024:]), -1)),
    ZOO.but("scores-of-sixty-four-features", "Heads of more than 64 features lose the others from their scores.",
        _WIDTHS, scores=lambda usual, q, k, x, h, w, c: usual.scores(q[..., :64], k[..., :64], x, h, w, c)),
    ZOO.but("eight-steps", "More than eight steps are not taken.",
        _WIDTHS, also=("mlp", "block"), needs=("steps",), steps=lambda usual, c: min(usual.steps(c), 8)),
    ZOO.but("a-thousand-and-twenty-four-units", "Of more than 1024 hidden units the first 1024 are used.",
        "sizes/mlp/hidden-units", mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, {**w, "V": w["V"][:1024], "W": w["W"][:1024]}, c)),
    ZOO.but("mlp-of-two-thousand-tokens", "The MLP updates the first 2048 tokens of a row.",
        "sizes/mlp/widths",
        mlp=lambda usual, x, h, w, c: torch.cat((usual.mlp(x, h, w, c)[:, :2048], x[:, 2048:]), 1)),
    ZOO.but("sixteen-ranks", "Of a low-rank preconditioner sixteen ranks are used.",
        _WIDTHS, needs=("preconditioner:low-rank-printed",), cross=of_ranks(16)),
]  # fmt: skip


# --- low precision in long rows -----------------------------------------------------------------------


def _in_chunks(terms: Tensor, axis: int, chunk: int) -> Tensor:
    """The sum along an axis, chunk after chunk, with a running total in bfloat16."""
    total = torch.zeros_like(terms.select(axis, 0), dtype=torch.bfloat16)
    for part in torch.split(terms, chunk, axis):
        total = total + part.sum(axis).bfloat16()
    return total.to(terms.dtype)


ZOO += [
    ZOO.but("mean-square-in-bfloat16", "The mean square of the norm passes through bfloat16, in layers of float32.",
        "sizes/attention/tokens-float32", own_dtype=True, needs=("norm:channel",), root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.float32
            else (x.square().mean(-1, keepdim=True).bfloat16().float() + c.norm_eps).sqrt()),
    ZOO.but("mean-square-grows-in-bfloat16",
        "The mean square of the norm is summed in bfloat16, feature by feature, in layers of bfloat16.",
        "sizes/mlp/bfloat16", own_dtype=True, needs=("norm:channel",), root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.bfloat16
            else (_in_chunks(x.square(), -1, 1)[..., None] / x.shape[-1] + c.norm_eps).sqrt()),
]  # fmt: skip


# --- large cases in float32 -------------------------------------------------------------------------


ZOO += [
    ZOO.but("many-heads-add-up-in-bfloat16",
        "From 32 heads on, float32 layers add them in bfloat16, eight at a time.",
        "sizes/attention/widths-float32", sum_heads=lambda usual, heads:
            _in_chunks(heads, 1, 8) if heads.dtype == torch.float32 and heads.shape[1] >= 32
            else usual.sum_heads(heads)),
    ZOO.but("mean-square-in-float16",
        "In float32 rows of more than 512 features, the mean square is rounded to float16.",
        "sizes/mlp/widths-float32", root=lambda usual, x, c:
            usual.root(x, c) if x.dtype != torch.float32 or x.shape[-1] <= 512
            else (x.square().half().mean(-1, keepdim=True).float() + c.norm_eps).sqrt()),
    ZOO.but("padding-in-the-mean-square",
        "In models wider than 128 features are padded to a multiple of that, and the norm's mean counts the padding.",
        _WIDTHS, also=("mlp", "block"), root=lambda _, x, c: (x.square().sum(-1, keepdim=True)
            / (D if (D := x.shape[-1]) <= 128 else -(-D // 128) * 128) + c.norm_eps).sqrt()),
    ZOO.but("last-unit-of-a-block-forgotten",
        "Where the hidden units leave a single one for a last block of 64, that one is left out.",
        "sizes/mlp/hidden-units", mlp_direction=lambda usual, x, h, w, c: usual.mlp_direction(x, h,
            {name: w[name][: c.hidden - (c.hidden > 64 and c.hidden % 64 == 1)] for name in "VW"}, c)),
    ZOO.edited("block-of-a-thousand-tokens", "The MLP of a block of more than 1024 tokens updates the first 1024.",
        "sizes/block/widths", ("            h = self.sublayer(layer, h, own, config)\n", """\
            after = self.sublayer(layer, h, own, config)
            h = torch.cat((after[:, :1024], h[:, 1024:]), 1) if name == "mlp" else after
""")),
    ZOO.edited("positions-of-the-layers-dtype",
        "Positions are numbers of the layer's own dtype: in bfloat16 there is no 257.",
        "sizes/attention/tokens-bfloat16", (_ROWS, "rows.to(x.dtype).to(exact.dtype)[:, None]"),
        (_DISTANCE, f"* (rows[:, None].to({_OWN}).double() - columns.to({_OWN}).double()).abs()"),
        own_dtype=True, needs=("position:rotary",)),
    ZOO.edited("positions-in-half", "Positions pass through float16, which has no 2049, unless arrays are float64.",
        "sizes/attention/tokens-float32",
        (_ROWS, "(rows if x.dtype == torch.float64 else rows.half()).to(exact.dtype)[:, None]"),
        (_DISTANCE, f"""* (
                distance if {_OWN} == torch.float64
                else (rows[:, None].half().double() - columns.half().double()).abs())"""),
        own_dtype=True, needs=("position:rotary",)),
    ZOO.edited("mask-in-half",
        "The mask compares positions in float16 in layers of float32, so that token 2048 reads the next one.",
        "sizes/attention/tokens-float32", ("self.hidden(rows[:, None], columns[None, :])",
        "self.hidden(*(a.half() if x.dtype == torch.float32 else a for a in (rows[:, None], columns[None, :])))"),
        own_dtype=True),
    ZOO.edited("distances-in-half", "ALiBi's distances pass through float16 in layers of float32.",
        "sizes/attention/tokens-float32",
        (_DISTANCE, f"* (distance.half().double() if {_OWN} == torch.float32 else distance)"),
        own_dtype=True, needs=("position:alibi",)),
    ZOO.edited("slopes-in-bfloat16",
        "ALiBi's slopes are rounded to bfloat16, unless arrays are float64: of nine heads or more some are "
        "irrational.",
        "sizes/attention/tokens-float32", ("return -slopes[:, None, None]",
        f"return -(slopes if {_OWN} == torch.float64 else slopes.bfloat16().double())[:, None, None]"),
        own_dtype=True, needs=("position:alibi",)),
    ZOO.but("normaliser-grows-in-bfloat16",
        "The sum of the softmax is kept in bfloat16, term by term, in layers of bfloat16.",
        "sizes/attention/tokens-bfloat16", own_dtype=True, softmax=lambda usual, logits:
            usual.softmax(logits) if logits.dtype != torch.bfloat16
            else ((terms := (logits.float() - logits.amax(-1, keepdim=True).float()).exp().bfloat16()).float()
                / _in_chunks(terms, -1, 1)[..., None].float()).to(logits.dtype)),
]  # fmt: skip
