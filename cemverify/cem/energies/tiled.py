"""The gradient of the interaction energy, one tile of attention weights at a time: the same sums, in less memory.

`Interaction` is the formula; this is how it is evaluated on many tokens. A tile is a few rows of the weights a_kij
with only the columns that these rows see, which for causal attention are half of all. What `Interaction` does in a
pass of its own over all weights happens here inside a product, or not at all: the temperature scales a product, the
causal mask is added to the shared diagonal's scores, and ALiBi is one number for each column, since a term that is
the same in a whole row does not change its softmax.

The derivative is written out, since autograd would keep every pass. A second derivative is that of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from cemverify.cem.energies.interaction import Interaction, InteractionMemory
from cemverify.cem.positions import Alibi
from cemverify.cem.precision import add_product
from cemverify.cem.torch_internals import softmax_backward

Context = Literal["none", "summed", "per-head"]
# What one evaluation has read from the memory: sum_j a_kij (W_K h_j), and sum_j a_kij h_j or None without a diagonal.
Reading = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, eq=False)
class TiledInteraction(Interaction):
    """An interaction energy whose gradient is evaluated in tiles.

    Attributes:
        tile: rows in a tile.
        saves_weights: whether weights are kept for the backward pass, or computed again there.
        note: called with what each evaluation reads from the memory.
        recalled: what an earlier evaluation at the same states has read; only its derivative is computed again.
        sums: to these the gradients of the memory's keys and states are added, instead of going to autograd: one
            sum for all tiles and steps, (B, K, S, R) and (B, S, D) of float32 at least.
        by_rows: whether our kernels make the weights of a tile (`cemverify.cem.energies.rows`), which needs a
            diagonal that the heads share, and no bias except ALiBi.
    """

    tile: int = 64
    saves_weights: bool = False
    note: Callable[[Reading], None] | None = field(default=None, repr=False)
    recalled: Reading | None = field(default=None, repr=False)
    sums: Reading | None = field(default=None, repr=False)
    by_rows: bool = False

    @classmethod
    def of(
        cls, energy: Interaction, tile: int, *, saves_weights: bool = False, by_rows: bool = False
    ) -> TiledInteraction:
        """The given interaction energy, evaluated in tiles."""
        e = energy
        formula = (e.W_Q, e.W_K, e.temperature, e.diagonal, e.bias, e.rotary, e.causal)
        return cls(*formula, tile, saves_weights, by_rows=by_rows)

    @property
    def formula(self) -> Interaction:
        """This energy, evaluated as the formula is written, without tiles."""
        return Interaction(self.W_Q, self.W_K, self.temperature, self.diagonal, self.bias, self.rotary, self.causal)

    def gradient(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """grad_x eps: x (B, J, D) -> (B, J, D)."""
        per_head = self.diagonal is not None and self.diagonal.dim() == 2
        kind: Context = "none" if self.diagonal is None else "per-head" if per_head else "summed"
        attended, context = self._attend(x, memory, kind)
        # the sign goes to the weights, which are fewer than the states
        low_rank = torch.einsum("bkjr,krd->bjd", self._unrotate(attended, memory), -self.W_Q)
        if self.diagonal is None:
            return low_rank
        if per_head:
            return low_rank - (self.diagonal[:, None] * context).sum(dim=1)
        # in the dtype of both; otherwise autocast would widen what was read, and keep it
        return torch.addcmul(low_rank, self.diagonal.to(context.dtype), context, value=-1)

    def head_gradients(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """The gradient of each head's share of the energy, (B, K, J, D)."""
        attended, context = self._attend(x, memory, "none" if self.diagonal is None else "per-head")
        low_rank = torch.einsum("bkjr,krd->bkjd", self._unrotate(attended, memory), -self.W_Q)
        if self.diagonal is None:
            return low_rank
        diagonal = self.diagonal.expand(self.heads, -1)[:, None, :].to(context.dtype)
        return torch.addcmul(low_rank, diagonal, context, value=-1)

    def reading_width(self, *, per_head: bool) -> int:
        """Numbers in a `Reading` for each token, for the gradients of heads or only for their sum."""
        K, R, D = self.W_Q.shape
        if self.diagonal is None:
            return K * R
        return K * R + (K * D if per_head or self.diagonal.dim() == 2 else D)

    def _attend(self, x: Tensor, memory: InteractionMemory, kind: Context) -> tuple[Tensor, Tensor]:
        """sum_j a_kij (W_K h_j), rotated if positions are, (B, K, J, R), and sum_j a_kij h_j of this kind."""
        read: Any = self.recalled
        if self.recalled is None or torch.is_grad_enabled():
            apply: Any = _Attended.apply
            read = apply(*self._operands(x, memory, kind), self.recalled, self.sums)
        if self.note is not None:
            self.note(read)
        return read  # type: ignore[no-any-return]

    def _operands(self, x: Tensor, memory: InteractionMemory, kind: Context) -> tuple[Any, ...]:
        """Queries, keys, weighted states, states and bias, and how weights are cut."""
        rows = x.shape[1]
        weighted = None  # what multiplies the states in the scores: (B, J, D) or (B, K, J, D)
        if self.diagonal is not None:
            shared = self.diagonal.dim() == 1
            weighted = x * self.diagonal if shared else x[:, None] * self.diagonal[:, None]
        kernels = self.by_rows and kind == "summed"
        how = _How(
            scale=1 / self.temperature,
            tile=self.tile,
            past=memory.length - memory.ahead - rows if self.causal else None,
            context=kind,
            heads=self.heads,
            saves_weights=self.saves_weights,
            by_rows=kernels,
        )
        bias = self._slopes(memory) if kernels else self._tile_bias(rows, memory)
        return self._queries(x, memory), memory.keys, weighted, memory.states, bias, how

    def _slopes(self, memory: InteractionMemory) -> Tensor:
        """m of ALiBi's m (j - i), (K,) of float32; zeros without it."""
        if isinstance(self.bias, Alibi):
            return -self.bias.sign * self.bias.slopes.float()
        return torch.zeros(self.heads, device=memory.keys.device)

    def _tile_bias(self, rows: int, memory: InteractionMemory) -> Tensor | None:
        """The bias, (K, J, S), or (K, 1, S) if it is the sum of a number per column and one per row."""
        if self.bias is None:
            return None
        exact = torch.promote_types(memory.keys.dtype, torch.float32)
        own, columns = self._positions(rows, memory)
        if self.causal and isinstance(self.bias, Alibi):
            # m (j - i) in place of m |i - j|, the same in the past; relative to the last row, so that it is small,
            # and exact, where the weights are large
            return -self.bias.sign * self.bias.slopes[:, None, None].to(exact) * (columns - own[-1:])[None, None]
        return self.bias(own, columns).to(exact)


@dataclass(frozen=True)
class _How:
    """How the weights are cut.

    Attributes:
        scale: 1 / tau. tile: rows of a tile. past: how many columns row 0 sees besides its own; None if all see all.
        context: what is read from the states: nothing, one sum for all heads, one for each. heads: K.
        saves_weights: whether weights are kept for the backward pass.
        by_rows: whether our kernels make the weights; the bias is then ALiBi's slopes (K,).
    """

    scale: float
    tile: int
    past: int | None
    context: Context
    heads: int
    saves_weights: bool
    by_rows: bool = False

    def tiles(self, rows: int, length: int) -> Iterator[tuple[int, int, int]]:
        """First row, row after the last, and columns of each tile."""
        for a in range(0, rows, self.tile):
            b = min(a + self.tile, rows)
            yield a, b, length if self.past is None else self.past + b


class _Attended(torch.autograd.Function):
    """Softmax of scores times keys and times states, by tiles; if recalled, only its derivative is computed."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        weighted: Tensor | None,
        states: Tensor | None,
        bias: Tensor | None,
        how: _How,
        recalled: Reading | None,
        sums: Reading | None,
    ) -> Reading:
        saved: list[Tensor] = []
        if recalled is None:
            with torch.autocast(queries.device.type, enabled=False):
                keep = saved.append if how.saves_weights and any(ctx.needs_input_grad) else None
                attended, context = _read(queries, keys, weighted, states, bias, how, keep)
        else:
            attended, context = recalled[0].detach(), None if recalled[1] is None else recalled[1].detach()
        ctx.how, ctx.sums = how, sums
        ctx.save_for_backward(queries, keys, weighted, states, bias, *saved)
        return attended, context

    @staticmethod
    def backward(ctx: Any, d_attended: Tensor, d_context: Tensor | None) -> Any:
        inputs, saved = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        with torch.autocast(d_attended.device.type, enabled=False):
            if torch.is_grad_enabled():
                gradients = _second(inputs, ctx.needs_input_grad, d_attended, d_context, ctx.how)
            else:
                gradients = _first(inputs, saved, ctx.needs_input_grad, d_attended, d_context, ctx.how, ctx.sums)
        return *gradients, None, None, None


def _read(
    queries: Tensor,
    keys: Tensor,
    weighted: Tensor | None,
    states: Tensor | None,
    bias: Tensor | None,
    how: _How,
    keep: Callable[[Tensor], None] | None,
) -> Reading:
    """What the queries (B, K, J, R) read from the memory; `keep` is given the weights of each tile."""
    B, K, J, R = queries.shape
    q, k, w, h = _stacks(queries, keys, weighted, states)
    attended = q.new_empty(B * K, J, R)
    context = None
    if h is not None and how.context != "none":
        context = q.new_empty(B, *((K,) if how.context == "per-head" else ()), J, h.shape[2])
    tiles = how.tiles(J, k.shape[1])
    if how.by_rows:
        _rows().read((q, k, w, h), bias, tiles, how.scale, (attended, context))
        return attended.view(B, K, J, R), context
    added = _Added.of(bias, q, how)
    for a, b, s in tiles:
        p = _weights(q, k, w, h, added, a, b, s, how)  # (B, K, r, s)
        attended[:, a:b].baddbmm_(p.flatten(0, 1), k[:, :s], beta=0)
        if context is not None and h is not None:
            if how.context == "summed":
                context[:, a:b].baddbmm_(p.sum(1), h[:, :s], beta=0)
            else:
                context[:, :, a:b] = (p.flatten(1, 2) @ h[:, :s]).view(B, K, b - a, -1)
        if keep is not None:
            keep(p)
    return attended.view(B, K, J, R), context


def _rows() -> Any:
    """`cemverify.cem.energies.rows`, which needs Triton; importing that takes as long as importing torch."""
    from cemverify.cem.energies import rows

    return rows


def _first(
    inputs: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    wanted: Sequence[bool],
    d_attended: Tensor,
    d_context: Tensor | None,
    how: _How,
    sums: Reading | None,
) -> list[Tensor | None]:
    """The gradients of queries, keys, weighted, states and bias; None for keys and states that are added to sums."""
    queries, keys, weighted, states, bias = inputs
    assert queries is not None
    assert keys is not None
    q, k, w, h = _stacks(queries, keys, weighted, states)
    B, K, J, R = queries.shape
    S = k.shape[1]
    exact = torch.promote_types(q.dtype, torch.float32)
    d_o = d_attended.to(q.dtype).reshape(B * K, J, R)
    d_c = None if d_context is None or how.context == "none" else d_context.to(q.dtype).contiguous()
    d_q = torch.empty_like(q)
    d_w = None if w is None else torch.empty_like(w)
    if sums is None:
        d_k = torch.zeros(B * K, S, R, dtype=exact, device=q.device)
        d_h = None if h is None else torch.zeros(B, S, h.shape[2], dtype=exact, device=q.device)
    else:
        d_k, d_h = sums[0].view(B * K, S, R), sums[1]
    d_bias = torch.zeros_like(bias) if bias is not None and wanted[4] else None
    tiles, added = how.tiles(J, S), _Added(None, None, None)
    if how.by_rows:
        _rows().derivative((q, k, w, h), bias, tiles, how.scale, (d_o, d_c), (d_q, d_k, d_w, d_h))
        tiles = iter(())
    else:
        added = _Added.of(bias, q, how)
    for i, (a, b, s) in enumerate(tiles):
        p = saved[i] if saved else _weights(q, k, w, h, added, a, b, s, how)
        d_p = torch.bmm(d_o[:, a:b], k[:, :s].mT).view(B, K, b - a, s)
        add_product(d_k[:, :s], p.flatten(0, 1).mT, d_o[:, a:b])
        if d_c is not None and h is not None and d_h is not None:
            if how.context == "summed":
                d_p += (d_c[:, a:b] @ h[:, :s].mT)[:, None]
                add_product(d_h[:, :s], p.sum(1).mT, d_c[:, a:b])
            else:
                of_heads = d_c[:, :, a:b].flatten(1, 2)  # (B, K r, D)
                d_p.view(B, -1, s).baddbmm_(of_heads, h[:, :s].mT)
                add_product(d_h[:, :s], p.view(B, -1, s).mT, of_heads)
        d_s = softmax_backward(d_p, p)  # (B, K, r, s)
        if d_bias is not None:
            summed = d_s.to(d_bias.dtype).sum(0)  # (K, r, s)
            if d_bias.shape[1] == 1:
                last = how.past + J if how.past is not None else s
                d_bias[:, :, last - s : last] += summed.sum(1, keepdim=True)
            else:
                d_bias[:, a:b, :s] += summed
        flat = d_s.flatten(0, 1)
        d_q[:, a:b].baddbmm_(flat, k[:, :s], beta=0, alpha=how.scale)
        add_product(d_k[:, :s], flat.mT, q[:, a:b], how.scale)
        if w is not None and d_w is not None and h is not None and d_h is not None:
            if w.dim() == 3:
                over_heads = d_s.sum(1)  # (B, r, s)
                d_w[:, a:b].baddbmm_(over_heads, h[:, :s], beta=0, alpha=how.scale)
                add_product(d_h[:, :s], over_heads.mT, w[:, a:b], how.scale)
            else:
                of_heads = d_s.flatten(1, 2)  # (B, K r, s)
                d_w[:, :, a:b] = (of_heads @ h[:, :s]).view(B, K, b - a, -1).mul_(how.scale)
                add_product(d_h[:, :s], of_heads.mT, w[:, :, a:b].flatten(1, 2), how.scale)
    of_memory = (d_k.view(B, K, S, R), d_h) if sums is None else (None, None)
    gradients = (d_q.view(B, K, J, R), of_memory[0], d_w, of_memory[1], d_bias)
    return [None if g is None or t is None else g.to(t.dtype) for g, t in zip(gradients, inputs, strict=True)]


def _second(
    inputs: Sequence[Tensor | None], wanted: Sequence[bool], d_attended: Tensor, d_context: Tensor | None, how: _How
) -> list[Tensor | None]:
    """The same gradients in operations that can be differentiated again, on all weights at once."""
    # as views of their own; otherwise the queries' dependence on the keys in earlier steps would count twice
    inputs = [None if t is None else t.view_as(t) for t in inputs]
    queries, keys, weighted, states, bias = inputs
    assert queries is not None
    assert keys is not None
    J = queries.shape[2]
    scores = queries @ keys.mT
    if weighted is not None and states is not None:
        scores = scores + (weighted[:, None] if weighted.dim() == 3 else weighted) @ states.mT[:, None]
    scores = scores * how.scale
    columns = torch.arange(keys.shape[2], device=keys.device)
    rows = (how.past or 0) + torch.arange(J, device=keys.device)
    if bias is not None and how.by_rows:
        bias = bias[:, None, None] * (columns - rows[:, None])
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if how.past is not None:
        scores = scores.masked_fill(columns[None, :] > rows[:, None], -math.inf)
    p = torch.softmax(scores, -1)
    outputs, d_outputs = [p @ keys], [d_attended]
    if d_context is not None and how.context != "none" and states is not None:
        outputs.append(p.sum(1) @ states if how.context == "summed" else p @ states[:, None])
        d_outputs.append(d_context)
    sources = [t for t, w in zip(inputs, wanted, strict=False) if w and t is not None]
    gradients = iter(torch.autograd.grad(outputs, sources, d_outputs, create_graph=True, allow_unused=True))
    return [next(gradients) if w and t is not None else None for t, w in zip(inputs, wanted, strict=False)]


@dataclass(frozen=True, eq=False)
class _Added:
    """What is added to the scores of all tiles.

    Attributes:
        columns: (B K, 1, S), if the bias is one number for each column. bias: (K, J, S) or (K, 1, S), if it is not,
            or is added in float32. future: (r, r), -inf where a row of a tile may not look; None if it may look
            everywhere.
    """

    columns: Tensor | None
    bias: Tensor | None
    future: Tensor | None

    @classmethod
    def of(cls, bias: Tensor | None, q: Tensor, how: _How) -> _Added:
        """What is added to all scores, in the layout that queries (B K, J, R) need."""
        future = None
        if how.past is not None:
            rows = min(how.tile, q.shape[1])
            future = torch.full((rows, rows), -math.inf, dtype=q.dtype, device=q.device).triu_(1)
        if bias is not None and bias.shape[1] == 1 and not _is_narrow(q):
            return cls(bias.to(q.dtype).repeat(q.shape[0] // how.heads, 1, 1), None, future)
        return cls(None, bias, future)


def _is_narrow(q: Tensor) -> bool:
    """Whether scores of this dtype are widened to float32."""
    return q.dtype in (torch.bfloat16, torch.float16)


def _weights(
    q: Tensor, k: Tensor, w: Tensor | None, h: Tensor | None, added: _Added, a: int, b: int, s: int, how: _How
) -> Tensor:
    """a_kij of the rows a to b on the columns up to s, (B, K, r, s), of q's dtype."""
    rows, stacks = b - a, q.shape[0]
    batch = stacks // how.heads
    bias = added.bias
    future = None if added.future is None else added.future[:rows, :rows]
    # relative to the tile's own last row: the last row of all would leave early rows few digits
    last = how.past + q.shape[1] if how.past is not None else s
    if added.columns is not None:
        start = added.columns[:, :, last - s : last]
        scores = torch.baddbmm(start, q[:, a:b], k[:, :s].mT, alpha=how.scale)
    else:
        scores = q.new_empty(stacks, rows, s).baddbmm_(q[:, a:b], k[:, :s].mT, beta=0, alpha=how.scale)
    scores = scores.view(batch, how.heads, rows, s)
    if w is not None and h is not None:
        if w.dim() == 3:
            shared = q.new_empty(batch, rows, s).baddbmm_(w[:, a:b], h[:, :s].mT, beta=0, alpha=how.scale)
            if future is not None:
                shared[..., s - rows :] += future
                future = None
            scores += shared[:, None]
        else:
            scores.view(batch, -1, s).baddbmm_(w[:, :, a:b].flatten(1, 2), h[:, :s].mT, alpha=how.scale)
    if _is_narrow(q):
        scores = scores.float()
    if bias is not None:
        scores += bias[:, :, last - s : last] if bias.shape[1] == 1 else bias[:, a:b, :s]
    if future is not None:
        scores[..., s - rows :] += future
    p = torch.softmax(scores, -1).to(q.dtype)
    _flush(p)
    return p


def _flush(p: Tensor) -> None:
    """Sets weights to 0 that are negligible beside 1 and near the smallest numbers, with which a CPU is slow.

    ALiBi makes many of them, and so does a state that several steps have made long. Products with them take up to
    ten times as long; this pass takes two or three percent of the whole.
    """
    if p.device.type == "cpu":
        limits = torch.finfo(p.dtype)
        torch.threshold_(p, limits.tiny / limits.eps, 0.0)


def _stacks(q: Tensor, *operands: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """All in the queries' dtype; queries and keys as stacks of matrices, (B K, J, R) and (B K, S, R)."""
    k, w, h = (None if t is None else t.to(q.dtype).contiguous() for t in operands)
    assert k is not None
    return q.reshape(-1, *q.shape[2:]), k.flatten(0, 1), w, h
