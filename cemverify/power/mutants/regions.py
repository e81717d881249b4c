"""Faults in one region that questions must reach: long rows, many heads, far states, the dtype of one function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.power.mutants.base import ANSWER, After, Call, Zoo, fault
from cemverify.power.mutants.block import one_for_both
from cemverify.power.mutants.energies import energy_by_place
from cemverify.power.mutants.positions import distances_capped_at
from cemverify.power.mutants.preconditioners import of_ranks

ZOO = Zoo("regions")

_PRODUCT = "product*"


# --- sizes and options ------------------------------------------------------------------------------


ZOO += [
    ZOO.but("bias-ends", "From the two hundredth token on, a token's own key gets the bias of the other keys.",
        "gradient/attention/long-rows-with-diagonal-and-bias", bias=After(lambda bias, rows, length, w, c:
            bias if c.position != "self-cross"
            else torch.where(rows[:, None] >= 200, w["to_others"][:, None, None], bias))),
    # Wrong only in some cases: updates are too large, by one part in a hundred unless another factor is given.
    ZOO.too_large("wrong-beyond-two-hundred-and-fifty-six-tokens", "Wrong only beyond a block of 256 tokens.",
        "gradient/attention/long-rows", lambda x, _: x.shape[1] > 256, of=AttentionConfig),
    ZOO.too_large("wrong-for-exactly-one-block", "Wrong only for rows of exactly 128 tokens.",
        "gradient/attention/long-rows", lambda x, _: x.shape[1] == 128, of=AttentionConfig),
    ZOO.too_large("wrong-for-wide-models", "Wrong only beyond 128 features.",
        "gradient/attention/wide", lambda _, c: c.dim > 128, of=AttentionConfig),
    ZOO.too_large("wrong-for-wide-heads", "Wrong only in float64 for heads of more than sixteen features.",
        "gradient/attention/wide", lambda x, c: c.R > 16 and x.dtype == torch.float64, of=AttentionConfig),
    ZOO.too_large("wrong-for-four-rows", "Wrong only for a batch of four rows or more.",
        "gradient/attention/any-options", lambda x, _: x.shape[0] >= 4, of=AttentionConfig),
    ZOO.too_large("wrong-for-eight-heads", "Wrong only for eight heads or more.",
        "gradient/attention/any-options", lambda _, c: c.heads >= 8, of=AttentionConfig),
    ZOO.too_large("wrong-at-four-steps", "Wrong only for exactly four steps.",
        "recursion/attention/equals-descent", lambda _, c: c.steps == 4, of=AttentionConfig),
    ZOO.but("distance-capped-at-two-hundred", "ALiBi treats all distances above two hundred alike.",
        "gradient/attention/long-rows-alibi", bias=distances_capped_at(200)),
    ZOO.but("rotary-table-ends",
        "Angles are read from a table of 200 positions; all later positions use the last one.",
        "gradient/attention/long-rows-rotary",
        rotate=lambda usual, x, rows, c, sign: usual.rotate(x, rows.clamp(max=199), c, sign)),
    ZOO.calling("energy-of-long-rows",
        "The attention energy of rows of more than sixteen tokens is too large by one part in a million.",
        "gradient/attention/stated-energy-long-rows", ANSWER, of="attention_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) * (1 + 1e-6 * (x.shape[1] > 16))),
    ZOO.but("cache-of-sixteen", "The cache holds the newest sixteen tokens.",
        "structure/decode/long-rows",
        cached=lambda usual, h, i: usual.cached(h, i) if i < 16 else h[:, i - 15 : i + 1]),
    ZOO.but("epsilon-at-least", "The norm's epsilon is at least 1e-5.",
        "gradient/attention/norm-scalar", also=("mlp",),
        root=lambda usual, x, c: usual.root(x, replace(c, norm_eps=max(c.norm_eps, 1e-5)))),
    ZOO.but("clamped-memory", "The memory of attention is clamped to [-100, 100].",
        "gradient/attention/plain", attention=lambda usual, x, h, w, c: usual.attention(x, h.clamp(-100, 100), w, c)),
    ZOO.but("fourth-rank-forgotten", "Only the first three ranks of a low-rank preconditioner are used.",
        "gradient/attention/any-options", needs=("preconditioner:low-rank",), cross=of_ranks(3)),
]  # fmt: skip


# --- a block's two parts ----------------------------------------------------------------------------


ZOO += [
    ZOO.but("epsilon-of-attention", "The MLP of a block uses attention's epsilon in its norm.",
        "gradient/block/any-options", needs=("norm:scalar",), block=one_for_both("norm_eps")),
]  # fmt: skip


# --- gradients ----------------------------------------------------------------------------------------


ZOO += [
    ZOO.but("detached-cache", "No gradient flows through the cache of incremental decoding.",
        "training/decode/any-options", _PRODUCT, cached=lambda usual, h, i: usual.cached(h, i).detach()),
    ZOO.calling("detached-energies", "The stated energies are right but have no gradient with respect to any weight.",
        "training/attention-energy/any-options", _PRODUCT, of="*_energy", also=("mlp-energy",),
        answer=lambda call, x, h, w, c:
            call(x, h, {key: a.detach() if isinstance(a, Tensor) else a for key, a in w.items()}, c)),
    ZOO.but("off-where-weights-record",
        "If gradients are recorded for the weights and not for x, the direction is a thousandth too large.",
        "modes/attention/no-gradients",
        attention=After(lambda after, x, h, w, c:
            after if x.requires_grad or not w["W_Q"].requires_grad else x + 1.001 * (after - x))),
]  # fmt: skip


# --- dtypes -------------------------------------------------------------------------------------------


ZOO += [
    ZOO.but("no-diagonal-in-bfloat16", "In bfloat16 the diagonal enters the scores but not the values.",
        "precision/attention/bfloat16-any-options", own_dtype=True, diagonal_value=lambda usual, a, h, w, c:
            0.0 if a.dtype == torch.bfloat16 else usual.diagonal_value(a, h, w, c)),
    ZOO.but("no-diagonal-in-float16", "In float16 the diagonal enters the scores but not the values.",
        "precision/attention/float16-any-options", own_dtype=True, diagonal_value=lambda usual, a, h, w, c:
            0.0 if a.dtype == torch.float16 else usual.diagonal_value(a, h, w, c)),
    ZOO.but("half-cache", "In float32 the cache is kept in float16.",
        "precision/decode/float32-any-options", own_dtype=True, cached=After(lambda memory, h, i:
            memory.half().to(memory.dtype) if memory.dtype == torch.float32 else memory)),
    ZOO.calling("energies-in-bfloat16", "In float32 the stated energies pass through bfloat16.",
        "precision/attention-energy/float32-any-options", ANSWER, of="*_energy",
        also=("mlp-energy",), answer=lambda call, *arguments: e.bfloat16().to(e.dtype)
            if isinstance(e := call(*arguments), Tensor) and e.dtype == torch.float32 else e),
]  # fmt: skip


# --- arrays -------------------------------------------------------------------------------------------


@ZOO.calls("contract/attention/edited-arrays", "edited", also=("mlp", "block"))
@fault("Weights are copied once and read again only if they are other arrays, whatever was written into them.")
def weights_by_identity(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    arrays = tuple(weights.values())
    copied = call.memory.get(call.name)
    if copied is None or [*map(id, copied[0])] != [*map(id, arrays)]:
        copied = call.memory[call.name] = arrays, {key: array + 0 for key, array in weights.items()}
    return call(*states, copied[1], config)


ZOO += [
    ZOO.calling("weights-by-place",
        "The first two projections of the mapping are taken for W_Q and W_K, whatever their names.",
        "contract/attention/windows", ANSWER, of="attention", answer=energy_by_place),
    ZOO.but("slopes-in-float32",
        "ALiBi's slopes are rounded to float32, which matters for nine heads or more, "
        "where they are not powers of two.",
        "gradient/attention/alibi",
        slopes=After(lambda slopes, heads: torch.tensor(slopes, dtype=torch.float32).tolist())),
    ZOO.but("rotary-of-two-planes", "Only the first two planes of each head are rotated.",
        "gradient/attention/rotary", needs=("head-dim",), rotate=After(lambda turned, x, *_:
            torch.where(torch.arange(x.shape[-1], device=x.device) % max(1, x.shape[-1] // 2) >= 2, x, turned))),
    ZOO.but("gradient-of-two-steps", "Gradients flow through the last two steps only.",
        "training/attention/plain", _PRODUCT, attention=lambda usual, x, h, w, c: usual.attention(
            usual.attention(x, h, w, replace(c, steps=c.steps - 2)).detach() if c.steps > 2 else x,
            h, w, replace(c, steps=min(c.steps, 2)))),
]  # fmt: skip
