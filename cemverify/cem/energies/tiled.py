"""The gradient of the interaction energy a tile of attention weights at a time: the same sums, in less memory.

`Interaction` is the formula; this is how it is evaluated on many tokens. A tile is a few rows of the weights a_kij
with the columns that these rows see and no others, which for causal attention are half of all. What `Interaction`
does in a pass of its own over all weights is done here inside a product, or not at all: the temperature divides
the queries, a shared diagonal is read once for all heads, and a bias that falls by the distance is one number for
each column, since a softmax does not see what its row has in common.

The derivative is written out, since autograd would keep every pass. It can be taken once: `cemverify.cem.blocked`
hands second derivatives to the formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cemverify.cem.energies.interaction import Interaction, InteractionMemory
from cemverify.cem.positions import Alibi

Context = Literal["none", "summed", "per-head"]


@dataclass(frozen=True)
class TiledInteraction(Interaction):
    """An interaction energy whose gradient is evaluated in tiles.

    Attributes:
        tile: rows in a tile.
    """

    tile: int = 64

    @classmethod
    def of(cls, energy: Interaction, tile: int) -> TiledInteraction:
        """The same energy, evaluated in tiles."""
        e = energy
        return cls(e.W_Q, e.W_K, e.temperature, e.diagonal, e.bias, e.rotary, e.causal, tile)

    @property
    def formula(self) -> Interaction:
        """The same energy, evaluated as it is written."""
        return Interaction(self.W_Q, self.W_K, self.temperature, self.diagonal, self.bias, self.rotary, self.causal)

    def gradient(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """grad_x eps: x (B, J, D) -> (B, J, D)."""
        per_head = self.diagonal is not None and self.diagonal.dim() == 2
        kind: Context = "none" if self.diagonal is None else "per-head" if per_head else "summed"
        attended, context = self._attend(x, memory, kind)
        low_rank = torch.einsum("bkjr,krd->bjd", self._unrotate(attended, memory), self.W_Q)
        if self.diagonal is None:
            return -low_rank
        if per_head:
            return -low_rank - (self.diagonal[:, None] * context).sum(dim=1)
        return -low_rank - self.diagonal * context

    def head_gradients(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """The gradient of each head's share of the energy, (B, K, J, D)."""
        attended, context = self._attend(x, memory, "none" if self.diagonal is None else "per-head")
        low_rank = torch.einsum("bkjr,krd->bkjd", self._unrotate(attended, memory), self.W_Q)
        if self.diagonal is None:
            return -low_rank
        return -low_rank - self.diagonal.expand(self.heads, -1)[:, None, :] * context

    def _attend(self, x: Tensor, memory: InteractionMemory, kind: Context) -> tuple[Tensor, Tensor]:
        """sum_j a_kij (W_K h_j), rotated if positions are, (B, K, J, R), and sum_j a_kij h_j as its kind says."""
        rows = x.shape[1]
        queries = self._queries(x, memory) / self.temperature
        weighted = None  # what meets the states in the scores: (B, J, D) or (B, K, J, D)
        if self.diagonal is not None:
            shared = self.diagonal.dim() == 1
            weighted = (x if shared else x[:, None]) * (self.diagonal if shared else self.diagonal[:, None])
            weighted = weighted / self.temperature
        bias = self._tile_bias(rows, memory)
        how = _How(self.tile, memory.length - memory.ahead - rows if self.causal else None, kind)
        apply: Any = _Attended.apply
        attended, context = apply(queries, memory.keys, weighted, memory.states, bias, how)
        return attended, context

    def _tile_bias(self, rows: int, memory: InteractionMemory) -> Tensor | None:
        """The bias, (K, J, S), or (K, 1, S) where it is one number for each column and another for each row."""
        if self.bias is None:
            return None
        exact = torch.promote_types(memory.keys.dtype, torch.float32)
        own, columns = self._positions(rows, memory)
        if self.causal and isinstance(self.bias, Alibi):
            # -m (i - j) and not -m |i - j|, which in the past is the same; relative to the last row, so small where
            # the weights are large
            return self.bias.sign * self.bias.slopes[:, None, None].to(exact) * (own[-1:] - columns)[None, None]
        return self.bias(own, columns).to(exact)


@dataclass(frozen=True)
class _How:
    """How the weights are cut.

    Attributes:
        tile: rows of a tile. past: what row 0 sees beside itself; None if every row sees all. context: see `Context`.
    """

    tile: int
    past: int | None
    context: Context

    def tiles(self, rows: int, length: int) -> Iterator[tuple[int, int, int]]:
        """First row, row after the last, and columns of each tile."""
        for a in range(0, rows, self.tile):
            b = min(a + self.tile, rows)
            yield a, b, length if self.past is None else self.past + b


class _Attended(torch.autograd.Function):
    """Softmax of scores times keys and times states, by tiles."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        weighted: Tensor | None,
        states: Tensor | None,
        bias: Tensor | None,
        how: _How,
    ) -> tuple[Tensor, Tensor | None]:
        B, K, J, R = queries.shape
        with torch.autocast(queries.device.type, enabled=False):
            q, k, w, h = _contiguous(queries, keys, weighted, states)
            attended = torch.empty(B, K, J, R, dtype=q.dtype, device=q.device)
            context = _empty_context(how.context, q, h)
            kept = []
            for a, b, s in how.tiles(J, k.shape[2]):
                p = _weights(q[:, :, a:b], k[:, :, :s], None if w is None else w[..., a:b, :], h, bias, a, b, s, how)
                attended[:, :, a:b] = (p.flatten(0, 1) @ k.flatten(0, 1)[:, :s]).view(B, K, b - a, R)
                if how.context == "summed":
                    assert h is not None
                    assert context is not None
                    context[:, a:b] = p.sum(1) @ h[:, :s]
                elif how.context == "per-head":
                    assert h is not None
                    assert context is not None
                    context[:, :, a:b] = (p.flatten(1, 2) @ h[:, :s]).view(B, K, b - a, -1)
                if any(ctx.needs_input_grad):
                    kept.append(p)
        ctx.how, ctx.shared = how, weighted is not None and weighted.dim() == 3
        ctx.save_for_backward(q, k, w, h, bias, *kept)
        ctx.dtypes = [None if t is None else t.dtype for t in (queries, keys, weighted, states, bias)]
        return attended, context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor | None) -> Any:
        q, k, w, h, bias, *kept = ctx.saved_tensors
        how: _How = ctx.how
        B, K, J, R = q.shape
        S = k.shape[2]
        with torch.autocast(q.device.type, enabled=False):
            d_attended = outputs[0]
            assert d_attended is not None
            d_o = d_attended.to(q.dtype).contiguous()
            d_c = None if outputs[1] is None or h is None else outputs[1].to(q.dtype).contiguous()
            exact = torch.promote_types(q.dtype, torch.float32)
            d_q = torch.empty_like(q)
            d_k = torch.zeros(B * K, S, R, dtype=exact, device=q.device)
            d_w = None if w is None else torch.empty_like(w)
            d_h = None if h is None else torch.zeros(B, S, h.shape[2], dtype=exact, device=q.device)
            d_bias = None if bias is None or not ctx.needs_input_grad[4] else torch.zeros_like(bias)
            flat_k = k.flatten(0, 1)
            for (a, b, s), p in zip(how.tiles(J, S), kept, strict=True):
                d_o_tile = d_o[:, :, a:b].flatten(0, 1)  # (B K, r, R)
                q_tile = q[:, :, a:b].flatten(0, 1)
                d_p = torch.bmm(d_o_tile, flat_k[:, :s].mT).view(B, K, b - a, s)
                add_product(d_k[:, :s], p.flatten(0, 1).mT, d_o_tile)
                if d_c is not None and how.context == "summed":
                    assert d_h is not None
                    d_p += (d_c[:, a:b] @ h[:, :s].mT)[:, None]
                    add_product(d_h[:, :s], p.sum(1).mT, d_c[:, a:b])
                elif d_c is not None:
                    assert d_h is not None
                    d_c_tile = d_c[:, :, a:b].flatten(1, 2)  # (B, K r, D)
                    d_p.flatten(1, 2).baddbmm_(d_c_tile, h[:, :s].mT)
                    add_product(d_h[:, :s], p.flatten(1, 2).mT, d_c_tile)
                d_s = torch._softmax_backward_data(d_p.to(p.dtype), p, -1, p.dtype)  # (B, K, r, s)
                if d_bias is not None:
                    _add_bias(d_bias, d_s, a, b, s)
                d_s_flat = d_s.flatten(0, 1)
                d_q[:, :, a:b] = torch.bmm(d_s_flat, flat_k[:, :s]).view(B, K, b - a, R)
                add_product(d_k[:, :s], d_s_flat.mT, q_tile)
                if w is not None:
                    assert d_w is not None
                    assert d_h is not None
                    if ctx.shared:
                        summed = d_s.sum(1)  # (B, r, s)
                        d_w[:, a:b] = summed @ h[:, :s]
                        add_product(d_h[:, :s], summed.mT, w[:, a:b])
                    else:
                        rows = d_s.flatten(1, 2)  # (B, K r, s)
                        d_w[:, :, a:b] = (rows @ h[:, :s]).view(B, K, b - a, -1)
                        add_product(d_h[:, :s], rows.mT, w[:, :, a:b].flatten(1, 2))
            found = (d_q, d_k.view(B, K, S, R), d_w, d_h, d_bias)
            return *(g if g is None else g.to(t) for g, t in zip(found, ctx.dtypes, strict=True)), None


def _weights(
    q: Tensor,
    k: Tensor,
    w: Tensor | None,
    h: Tensor | None,
    bias: Tensor | None,
    a: int,
    b: int,
    s: int,
    how: _How,
) -> Tensor:
    """a_kij of the rows a to b on the columns up to s, (B, K, r, s), of q's dtype."""
    B, K, rows, _ = q.shape
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(B, K, rows, s)
    if w is not None:
        assert h is not None
        if w.dim() == 3:
            scores += (w @ h[:, :s].mT)[:, None]
        else:
            scores.flatten(1, 2).baddbmm_(w.flatten(1, 2), h[:, :s].mT)
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    if bias is not None:
        scores += bias[:, :, :s] if bias.shape[1] == 1 else bias[:, a:b, :s]
    if how.past is not None:
        future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu_(1)
        scores[..., s - rows :].masked_fill_(future, -math.inf)
    p = torch.softmax(scores, -1)
    if bias is not None and p.device.type == "cpu":
        # products with numbers too small for the exponent are many times slower on a CPU; next to 1 they are nothing
        limits = torch.finfo(p.dtype)
        torch.threshold_(p, limits.tiny / limits.eps, 0.0)
    return p.to(q.dtype)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b for stacks of matrices, in the precision of the total."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b)
    else:
        total += torch.bmm(a, b)


def _add_bias(total: Tensor, d_scores: Tensor, a: int, b: int, s: int) -> None:
    summed = d_scores.to(total.dtype).sum(0)  # (K, r, s)
    if total.shape[1] == 1:
        total[:, :, :s] += summed.sum(1, keepdim=True)
    else:
        total[:, a:b, :s] += summed


def _contiguous(q: Tensor, *others: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """All of the queries' dtype, laid out for products of stacks."""
    k, w, h = (None if t is None else t.to(q.dtype).contiguous() for t in others)
    assert k is not None
    return q.contiguous(), k, w, h


def _empty_context(kind: Context, q: Tensor, h: Tensor | None) -> Tensor | None:
    B, K, J, _ = q.shape
    if kind == "none" or h is None:
        return None
    shape = (B, J, h.shape[2]) if kind == "summed" else (B, K, J, h.shape[2])
    return torch.empty(shape, dtype=q.dtype, device=q.device)
