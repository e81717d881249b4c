"""The interaction energy, whose gradient step is weight-tied multi-head attention (Eq. 1, App. A).

    eps(x_i | h_1:i) = -tau sum_k log sum_{j<=i} exp(beta_kj . x_i / tau + b_ijk),   beta_kj = A_k h_j
    A_k = W_Q,k^T W_K,k [+ diag(d_k)]

The memory h is fixed while x moves: beta does not depend on x, so eps is concave in x, and
`-grad eps = sum_k sum_j a_kij beta_kj`, attention that uses its keys as values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.energies import features
from cemverify.cem.energies.curvature import Curvature
from cemverify.cem.energies.features import FeaturedKeys
from cemverify.cem.growing import Spare, append
from cemverify.cem.positions import Alibi, Bias, Rotary
from cemverify.cem.precision import for_products


@dataclass(frozen=True, eq=False)
class InteractionMemory:
    """The memory of the interaction energy: one tensor that serves as keys and as values.

    Attributes:
        keys: W_K h, rotated if positions are rotary, (B, K, S, R).
        states: h itself, (B, S, D), in the dtype of products, kept only if a diagonal needs it.
        ahead: how many of the tokens remembered come after the last query; 0 except in a window on a part of them.
        spare: the room behind the keys and behind the states, for later tokens.
        featured: the keys with ALiBi as features, if fused attention takes it that way.
    """

    keys: Tensor
    states: Tensor | None = None
    ahead: int = 0
    spare: tuple[Spare | None, Spare | None] = field(default=(None, None), repr=False, compare=False)
    featured: FeaturedKeys | None = field(default=None, repr=False, compare=False)

    @property
    def length(self) -> int:
        """The number S of tokens remembered."""
        return self.keys.shape[2]


@dataclass(frozen=True, eq=False)
class Interaction:
    """The interaction energy of one attention layer.

    Attributes:
        W_Q: (K, R, D). W_K: (K, R, D).
        temperature: tau > 0; sqrt(R) gives the scale of Vaswani et al.
        diagonal: d, absent, (D,) shared by the heads, or (K, D).
        bias: an additive bias on the scores.
        rotary: rotary positions.
        causal: whether token i sees only the memory of tokens up to i.
    """

    W_Q: Tensor
    W_K: Tensor
    temperature: float
    diagonal: Tensor | None = None
    bias: Bias | None = field(default=None, repr=False)
    rotary: Rotary | None = None
    causal: bool = True

    def __call__(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """The energy of every token, unreduced: x (B, J, D) -> (B, J)."""
        return -self.temperature * torch.logsumexp(self.scores(x, memory), dim=-1).sum(dim=1)

    def of_heads(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """Each head's share of the energy of every token, (B, K, J); their sum is the energy."""
        return -self.temperature * torch.logsumexp(self.scores(x, memory), dim=-1)

    def remember(self, h: Tensor, past: InteractionMemory | None = None) -> InteractionMemory:
        """The memory of h (B, J, D), appended to `past` when decoding incrementally."""
        h = for_products(h)
        keys = torch.einsum("bjd,krd->bkjr", h, self.W_K)
        if self.rotary is not None:
            start = 0 if past is None else past.length
            keys = self.rotary.rotate(keys, torch.arange(start, start + h.shape[1], device=h.device))
        memory = InteractionMemory(keys, h if self.diagonal is not None else None)
        if past is None and self.diagonal is None and self.causal and isinstance(self.bias, Alibi):
            featured = features.featured(keys, self.bias, self.temperature) if features.fits(keys) else None
            return replace(memory, featured=featured)
        if past is None:
            return memory
        states, behind_states = None, None
        if past.states is not None and memory.states is not None:
            states, behind_states = append(past.states, memory.states, 1, past.spare[1])
        keys, behind_keys = append(past.keys, keys, 2, past.spare[0])
        return InteractionMemory(keys, states, spare=(behind_keys, behind_states))

    def window(self, memory: InteractionMemory, tokens: int, _start: int, stop: int) -> InteractionMemory:
        """The memory that the queries up to stop see, as views: up to the last of them if causal, otherwise all.

        Args:
            tokens: J, the number of queries; they are the last of the tokens remembered.
        """
        ahead = memory.ahead + tokens - stop
        if not self.causal:
            return replace(memory, ahead=ahead)
        earlier = memory.length - ahead
        states = None if memory.states is None else memory.states[:, :earlier]
        featured = memory.featured and replace(memory.featured, keys=memory.featured.keys[:, :, :earlier])
        return InteractionMemory(memory.keys[:, :, :earlier], states, featured=featured)

    def gradient(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """grad_x eps in closed form, first-order operations only: x (B, J, D) -> (B, J, D)."""
        if self.diagonal is None:
            return -torch.einsum("bkjr,krd->bjd", self._attended_keys(x, memory), self.W_Q)
        weights = self.attention_weights(x, memory)  # (B, K, J, S)
        low_rank = torch.einsum("bkjr,krd->bjd", self._unrotate(weights @ memory.keys, memory), self.W_Q)
        assert memory.states is not None
        if self.diagonal.dim() == 1:
            return -low_rank - self.diagonal * (weights.sum(dim=1) @ memory.states)
        # in two steps, because the order in which einsum contracts three factors depends on installed packages
        context = weights @ memory.states[:, None]  # (B, K, J, D)
        return -low_rank - (self.diagonal[:, None] * context).sum(dim=1)

    def head_gradients(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """The gradient of each head's share of the energy, (B, K, J, D); their sum is `gradient`."""
        if self.diagonal is None:
            return -torch.einsum("bkjr,krd->bkjd", self._attended_keys(x, memory), self.W_Q)
        weights = self.attention_weights(x, memory)
        low_rank = torch.einsum("bkjr,krd->bkjd", self._unrotate(weights @ memory.keys, memory), self.W_Q)
        assert memory.states is not None
        diagonal = self.diagonal.expand(self.heads, -1)
        return -low_rank - diagonal[:, None, :] * (weights @ memory.states[:, None])

    def curvature(self, memory: InteractionMemory) -> Curvature:
        """Concave: minus a log-sum-exp of functions affine in x, so any step size descends."""
        return Curvature(torch.zeros((), dtype=memory.keys.dtype, device=memory.keys.device))

    def is_fused(self, x: Tensor, memory: InteractionMemory) -> bool:
        """Whether torch's own attention takes it without a mask: no diagonal, rows aligned, any bias as features."""
        if self.diagonal is not None or not self.causal or x.shape[1] != memory.length:
            return False
        featured = memory.featured
        return self.bias is None if featured is None else featured.temperature == self.temperature

    @property
    def heads(self) -> int:
        """The number of attention heads, K."""
        return self.W_Q.shape[0]

    # --- the parts of the formula ---------------------------------------------------------------

    def _positions(self, queries: int, memory: InteractionMemory) -> tuple[Tensor, Tensor]:
        """Query and key positions: the J queries are the last of the S tokens remembered, except for those ahead."""
        columns = torch.arange(memory.length, device=memory.keys.device)
        stop = memory.length - memory.ahead
        return columns[stop - queries : stop], columns

    def _queries(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        queries = torch.einsum("bjd,krd->bkjr", x, self.W_Q)
        if self.rotary is None:
            return queries
        return self.rotary.rotate(queries, self._positions(x.shape[1], memory)[0])

    def _unrotate(self, output: Tensor, memory: InteractionMemory) -> Tensor:
        """R(i)^T o_i: (B, K, J, R)."""
        if self.rotary is None:
            return output
        return self.rotary.rotate(output, self._positions(output.shape[2], memory)[0], inverse=True)

    def _mask(self, queries: int, memory: InteractionMemory) -> Tensor | None:
        """bias with -inf where a token may not look, (K, J, S) or (J, S); None if there is nothing to add."""
        mask = None if self.bias is None else self.bias(*self._positions(queries, memory)).to(memory.keys.dtype)
        if self.causal and queries > 1:  # a single query is the last token, which sees all
            everywhere = memory.keys.new_full((queries, memory.length), -math.inf)
            later = everywhere.triu_(memory.length - memory.ahead - queries + 1)
            mask = later if mask is None else mask + later
        return mask

    def scores(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """beta_kj . x_i / tau + b_ijk: (B, K, J, S)."""
        scores = self._queries(x, memory) @ memory.keys.mT
        if self.diagonal is not None:
            assert memory.states is not None
            if self.diagonal.dim() == 1:
                scores = scores + ((x * self.diagonal) @ memory.states.mT)[:, None]
            else:
                scores = scores + (x[:, None] * self.diagonal[:, None]) @ memory.states.mT[:, None]
        scores = scores / self.temperature
        mask = self._mask(x.shape[1], memory)
        return scores if mask is None else scores + mask

    def attention_weights(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """The attention weights a_kij at x, (B, K, J, S): softmax over the memory's S tokens."""
        return torch.softmax(self.scores(x, memory), dim=-1)

    def _attended_keys(self, x: Tensor, memory: InteractionMemory) -> Tensor:
        """sum_j a_kij (W_K h_j), un-rotated if positions are rotary: (B, K, J, R)."""
        queries, keys = self._queries(x, memory), memory.keys
        scale = 1.0 / self.temperature
        if queries.shape[-1] == 1 and queries.is_cuda:
            # padded to eight in half precision, by strides that may look channels-last; fused attention refuses these
            queries, keys = (array.clone(memory_format=torch.contiguous_format) for array in (queries, keys))
        # Never a mask and is_causal together; is_causal aligns rows at the start, so it is right only for J = S.
        if self.is_fused(x, memory) and memory.featured is not None:
            attended = features.attention(queries, memory.featured)
        elif self.is_fused(x, memory):
            attended = F.scaled_dot_product_attention(queries, keys, keys, is_causal=True, scale=scale)
        else:
            mask = self._mask(x.shape[1], memory)
            if mask is not None and mask.dim() == 3 and not torch.is_grad_enabled():
                # torch's fused attention takes masks of four axes, or copies the keys; it has no second derivative
                mask = mask[None]
            attended = F.scaled_dot_product_attention(queries, keys, keys, attn_mask=mask, scale=scale)
        return self._unrotate(attended, memory)
