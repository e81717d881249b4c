"""A second implementation of CEM, written from the formulas alone: plain einsum, no energies, no descents.

It is correct and as different from the reference as possible, so it checks the verifier for false alarms. It is also
the base of the mutants, each of which overrides one method, so that the fault is easy to see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.implementations.contract import Implementation, implementation

Weights = Mapping[str, Tensor]

_SIGMA = {
    "silu": lambda z: z * torch.sigmoid(z),
    "gelu": lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2,
    "gelu-tanh": lambda z: z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
    "relu": lambda z: z.clamp(min=0),
    "relu2": lambda z: z.clamp(min=0) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "identity": lambda z: z,
}


class Plain:
    """CEM attention, gated MLP and block. Every part of the formulas is a method."""

    not_offered: tuple[str, ...] = ("attention_energy", "mlp_energy", "validation")

    def subject(self) -> Implementation:
        """This layer, or the mutant derived from it, as an implementation to judge."""
        return implementation(
            attention=self.attention,
            mlp=self.mlp,
            block=self.block,
            decode=self.decode,
            prefill=self.prefill,
            not_offered=self.not_offered,
            offers=("dtype:float16",),
        )

    # --- layers ---------------------------------------------------------------------------------

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for _ in range(self.steps(c)):
            x = self.advance(x, self.attention_direction(self.norm(x, w, c), h, w, c), w, c)
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for _ in range(self.steps(c)):
            x = self.advance(x, self.mlp_direction(self.norm(x, w, c), h, w, c)[:, None], w, c)
        return x

    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        for name, layer, config in (("attention", self.attention, c.attention), ("mlp", self.mlp, c.mlp)):
            own = {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}
            h = self.sublayer(layer, h, own, config)
        return h

    def sublayer(self, layer: Any, h: Tensor, w: Weights, c: Any) -> Tensor:
        output: Tensor = layer(h, self.norm(h, w, c), w, c)
        return output

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        """Each token by itself, with all tokens up to it as its memory."""
        rows = []
        for i in range(h.shape[1]):
            x = h[:, i : i + 1]
            for _ in range(self.steps(c)):
                heads = self.attention_direction(self.norm(x, w, c), self.cached(h, i), w, c)
                x = self.advance(x, heads, w, c)
            rows.append(x)
        return torch.cat(rows, 1)

    def cached(self, h: Tensor, i: int) -> Tensor:
        return h[:, : i + 1]

    def prefill(self, h: Tensor, cache: Any, w: Weights, c: AttentionConfig) -> tuple[Tensor, Any]:
        """The tokens of a row that follow those in the cache, which holds them."""
        at, row = h, self.lengthened(cache, h)
        for _ in range(self.steps(c)):
            at = self.advance(at, self.attention_direction(self.norm(at, w, c), row, w, c), w, c)
        return at, row

    def lengthened(self, cache: Any, h: Tensor) -> Tensor:
        return h if cache is None else torch.cat((cache, h), 1)

    # --- the recursion ------------------------------------------------------------------------------

    def steps(self, c: Any) -> int:
        return int(c.steps)

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        """x + eta sum_k P_k G d_k, d_k the direction of head k: heads (B, K, J, D)."""
        if c.norm == "folded":
            heads = heads * w["gain"]
        step: Tensor = c.step_size * self.sum_heads(self.precondition(heads, w, c))
        return x + step

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.sum(1)

    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        if c.norm == "none":
            return x
        return x / self.root(x, c) * self.gain(w)

    def root(self, x: Tensor, c: Any) -> Tensor:
        root: Tensor = (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt()
        return root

    def gain(self, w: Weights) -> Tensor:
        return w["gain"]

    def precondition(self, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if c.preconditioner.kind == "identity":
            return heads
        P = self.preconditioner(w, c).to(heads.dtype)
        if P.dim() == 2:
            P = P[None]
        return torch.einsum("kde,bkje->bkjd", P.expand(heads.shape[1], -1, -1), heads)

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        """The preconditioner P as a dense matrix, (D, D) or (K, D, D)."""
        d = w["P_d"]
        S = torch.diag_embed(self.positive(d))
        if c.preconditioner.kind == "diagonal":
            return S
        cross = self.cross(w)
        if c.preconditioner.kind == "low-rank-printed":
            return S + cross
        root = torch.diag_embed(torch.diagonal(S, dim1=-2, dim2=-1).sqrt())
        eye = torch.eye(d.shape[-1], dtype=d.dtype, device=d.device)
        return root @ (eye + self.shrink(w)[..., None, None] * cross) @ root

    def positive(self, d: Tensor) -> Tensor:
        return torch.logaddexp(d, torch.zeros_like(d))

    def cross(self, w: Weights) -> Tensor:
        return w["P_U"] @ w["P_V"].mT + w["P_V"] @ w["P_U"].mT

    def shrink(self, w: Weights) -> Tensor:
        squared = 4 * w["P_U"].square().sum((-2, -1)) * w["P_V"].square().sum((-2, -1))
        # the clamp is far below where it matters, and keeps away from zero, where the root has no gradient
        return (0.99 / squared.clamp(min=0.5).sqrt()).clamp(max=1.0)

    # --- attention ------------------------------------------------------------------------------------

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        """sum_j a_kij beta_kj per head, (B, K, J, D)."""
        keys = self.keys(h, w, c)
        rows = torch.arange(h.shape[1] - x.shape[1], h.shape[1], device=x.device)
        queries = self.queries(x, rows, w, c)
        logits = self.scaled(self.scores(queries, keys, x, h, w, c), c)
        logits = logits + self.bias(rows, h.shape[1], w, c).to(x.dtype)
        columns = torch.arange(h.shape[1], device=x.device)
        a = self.attend(logits, self.hidden(rows[:, None], columns[None, :]))
        attended = self.unrotate(a @ self.values(keys, h, w, c), rows, c)
        return torch.einsum("bkjr,krd->bkjd", attended, self.output(w)) + self.diagonal_value(a, h, w, c)

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        keys = torch.einsum("bjd,krd->bkjr", h, w["W_K"])
        return self.rotate(keys, torch.arange(h.shape[1], device=h.device), c, 1.0)

    def queries(self, x: Tensor, rows: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return self.rotate(torch.einsum("bjd,krd->bkjr", x, w["W_Q"]), rows, c, 1.0)

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return keys

    def output(self, w: Weights) -> Tensor:
        return w["W_Q"]

    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        scores = q @ k.mT
        if c.diagonal == "none":
            return scores
        return scores + torch.einsum("bid,kd,bjd->bkij", x, self.diagonal(w, c), h)

    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        """The diagonal of the scores, one for each head: (K, D)."""
        return w["diagonal"].expand(c.heads, -1)

    def diagonal_value(self, a: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor | float:
        if c.diagonal == "none":
            return 0.0
        return torch.einsum("kd,bkij,bjd->bkid", self.diagonal(w, c), a, h)

    def scaled(self, scores: Tensor, c: AttentionConfig) -> Tensor:
        return scores / self.temperature(c)

    def temperature(self, c: AttentionConfig) -> float:
        return c.tau

    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        """The attention weights a_kij, (B, K, J, S)."""
        return self.softmax(logits.masked_fill(hidden, -math.inf))

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j > i

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1)

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        """What is added to the scores, (K, J, S), or zero."""
        columns = torch.arange(length, device=rows.device)
        distance = (rows[:, None] - columns[None, :]).abs().double()
        if c.position == "alibi":
            slopes = torch.tensor(self.slopes(c.heads), dtype=torch.float64, device=rows.device)
            return -slopes[:, None, None] * distance
        if c.position == "self-cross":
            own, other = w["to_self"][:, None, None], w["to_others"][:, None, None]
            return torch.where(distance == 0, own, other)
        return torch.zeros((), device=rows.device)

    def slopes(self, heads: int) -> list[float]:
        """Press's: a geometric sequence for powers of two, filled up from the next one otherwise."""
        power = 1
        while 2 * power <= heads:
            power *= 2
        slopes = [2 ** (-8.0 * (k + 1) / power) for k in range(power)]
        return slopes + [2 ** (-8.0 * (2 * k + 1) / (2 * power)) for k in range(heads - power)]

    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        """Complex multiplication by exp(i sign angle) of feature r and r + R/2."""
        if c.position != "rotary":
            return x
        half = x.shape[-1] // 2
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        plane = torch.arange(half, dtype=exact.dtype, device=x.device)
        angle = sign * rows.to(exact.dtype)[:, None] / 10000 ** (plane / half)
        turned = torch.complex(exact[..., :half], exact[..., half:]) * torch.complex(angle.cos(), angle.sin())
        return torch.cat((turned.real, turned.imag), -1).to(x.dtype)

    def unrotate(self, attended: Tensor, rows: Tensor, c: AttentionConfig) -> Tensor:
        return self.rotate(attended, rows, c, -1.0)

    # --- MLP --------------------------------------------------------------------------------------------

    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        """V^T ((W h) sigma(V x)), (B, J, D)."""
        return F.linear(self.gated(F.linear(x, w["V"]), F.linear(h, w["W"]), c), w["V"].T)

    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return self.sigma(activated, c) * linear

    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        value: Tensor = _SIGMA[c.activation](z)  # type: ignore[no-untyped-call]
        return value
