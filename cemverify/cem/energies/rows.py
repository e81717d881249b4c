"""Attention with a diagonal that heads share: everything done to weights between products, in our own kernels.

    a_kij = softmax_j(scale (S_kij + C_ij) + m_k (j - i)),   W_ij = sum_k a_kij                                forward
    dS_kij = scale a_kij (g_kij - sum_j a_kij g_kij),   g_kij = dP_kij + dW_ij,   dC_ij = sum_k dS_kij        backward

S = q k^T and C = (d x) h^T are products, as are the sums over j, and torch's own library is best at them. One program
has one row of one sequence and loops over its heads, so that what they share is read once and summed in registers.
Each number is read once and written once, in place. With the products this moves 8 bytes per weight forward and 18
backward in bfloat16; torch's operations move about 130.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cemverify.cem.precision import add_product

# Triton reads annotations, and knows only its own. Rows are loaded up to their end, not to the last column seen: if
# they begin and end at multiples of 16, a load is then one of 16 bytes.


@triton.jit
def _load(tensor, start, columns, length):
    """A row as float32."""
    return tl.load(tensor + start + columns, mask=columns < length, other=0.0).to(tl.float32)


@triton.jit
def _store(tensor, start, columns, length, row):
    tl.store(tensor + start + columns, row.to(tensor.dtype.element_ty), mask=columns < length)


@triton.jit
def _softmax(own, common, slope, columns, last):
    """a_kij of a row that sees the columns up to the last."""
    total = tl.where(columns <= last, own + common + slope * (columns - last), float("-inf"))
    weights = tl.exp(total - tl.max(total, 0))
    return weights / tl.sum(weights, 0)


@triton.jit
def _forward(scores, shared, slopes, scale, past, length, K: tl.constexpr, N: tl.constexpr):
    """In place: S becomes a, and C becomes W."""
    i, b, rows = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns, last = tl.arange(0, N), past + i
    at = (b * rows + i) * length
    common = scale * _load(shared, at, columns, length)
    over_heads = tl.full([N], 0.0, tl.float32)
    for k in range(K):
        start = ((b * K + k) * rows + i) * length
        own = scale * _load(scores, start, columns, length)
        weights = _softmax(own, common, tl.load(slopes + k), columns, last)
        _store(scores, start, columns, length, weights)
        over_heads += weights
    _store(shared, at, columns, length, over_heads)


@triton.jit
def _backward(scores, shared, slopes, scale, past, length, K: tl.constexpr, N: tl.constexpr):
    """In place: [S; dP] becomes [dS; a], and [C; dW] becomes [dC; W]."""
    i, b, rows = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    columns, last, below = tl.arange(0, N), past + i, rows * length
    at = (b * 2 * rows + i) * length
    common = scale * _load(shared, at, columns, length)
    d_common = _load(shared, at + below, columns, length)
    over_heads, d_over_heads = tl.full([N], 0.0, tl.float32), tl.full([N], 0.0, tl.float32)
    for k in range(K):
        start = ((b * K + k) * 2 * rows + i) * length
        own = scale * _load(scores, start, columns, length)
        weights = _softmax(own, common, tl.load(slopes + k), columns, last)
        g = tl.where(columns <= last, d_common + _load(scores, start + below, columns, length), 0.0)
        d_scores = scale * weights * (g - tl.sum(weights * g, 0))
        _store(scores, start, columns, length, d_scores)
        _store(scores, start + below, columns, length, weights)
        over_heads += weights
        d_over_heads += d_scores
    _store(shared, at, columns, length, d_over_heads)
    _store(shared, at + below, columns, length, over_heads)


_SCHEMA = "(Tensor(a!) scores, Tensor(b!) shared, Tensor slopes, float scale, int past) -> ()"


@torch.library.custom_op("cemverify::softmax_rows", mutates_args=("scores", "shared"), schema=_SCHEMA)
def softmax_rows(scores: Tensor, shared: Tensor, slopes: Tensor, scale: float, past: int) -> None:
    """S (B K, r, s) and C (B, r, s) become the weights and their sums over heads; row 0 sees `past` more columns."""
    _launch(_forward, scores.shape[1], scores, shared, slopes, scale, past)


@torch.library.custom_op("cemverify::softmax_rows_backward", mutates_args=("scores", "shared"), schema=_SCHEMA)
def softmax_rows_backward(scores: Tensor, shared: Tensor, slopes: Tensor, scale: float, past: int) -> None:
    """[S; dP] (B K, 2 r, s) becomes [dS; a], and [C; dW] (B, 2 r, s) becomes [dC; W]."""
    _launch(_backward, scores.shape[1] // 2, scores, shared, slopes, scale, past)


def _launch(kernel: Any, rows: int, scores: Tensor, shared: Tensor, slopes: Tensor, scale: float, past: int) -> None:
    length = scores.shape[2]
    N = triton.next_power_of_2(length)
    warps = min(16, max(1, N // 256))  # eight numbers of a row to a thread, up to 4,096 columns
    kernel[rows, shared.shape[0]](
        scores, shared, slopes, scale, past, length, scores.shape[0] // shared.shape[0], N, num_warps=warps
    )


Operands = tuple[Tensor, Tensor, Tensor, Tensor]  # queries (B K, J, R), keys (B K, S, R), d x (B, J, D), h (B, S, D)
Tiles = Iterable[tuple[int, int, int]]  # first row, row after the last, and columns of each


def read(operands: Operands, slopes: Tensor, tiles: Tiles, scale: float, out: tuple[Tensor, Tensor]) -> None:
    """sum_j a_kij k_j, (B K, J, R), and sum_kj a_kij h_j, (B, J, D), written to out; slopes: m (K,) of float32."""
    q, k, w, h = operands
    for a, b, s in tiles:
        scores, shared = q[:, a:b] @ k[:, :s].mT, w[:, a:b] @ h[:, :s].mT
        softmax_rows(scores, shared, slopes, scale, s - b + a)
        out[0][:, a:b].baddbmm_(scores, k[:, :s], beta=0)
        out[1][:, a:b].baddbmm_(shared, h[:, :s], beta=0)


def derivative(
    operands: Operands, slopes: Tensor, tiles: Tiles, scale: float, d_out: tuple[Tensor, Tensor], into: Operands
) -> None:
    """Derivatives of the operands from those of what was read: of q and w written, of k and h added."""
    q, k, w, h = operands
    d_q, d_k, d_w, d_h = into
    for a, b, s in tiles:
        own = torch.cat((q[:, a:b], d_out[0][:, a:b]), 1)  # (B K, 2 r, R)
        common = torch.cat((w[:, a:b], d_out[1][:, a:b]), 1)  # (B, 2 r, D)
        scores, shared = own @ k[:, :s].mT, common @ h[:, :s].mT
        softmax_rows_backward(scores, shared, slopes, scale, s - b + a)
        d_q[:, a:b].baddbmm_(scores[:, : b - a], k[:, :s], beta=0)
        d_w[:, a:b].baddbmm_(shared[:, : b - a], h[:, :s], beta=0)
        add_product(d_k[:, :s], scores.mT, own)
        add_product(d_h[:, :s], shared.mT, common)
