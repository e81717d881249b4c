"""Faults of gradients: answers are right, but training goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from cemverify.power.mutants.base import Part, Zoo, in_both
from cemverify.power.mutants.contexts import Backwards, first_are_trained

ZOO = Zoo("training")

_PRODUCT = "product*"


class _LastProduct(torch.autograd.Function):
    """A product whose backward pass reads the factors of the most recent forward pass."""

    factors: ClassVar[tuple[Tensor, ...]] = ()

    @staticmethod
    def forward(_: Any, a: Tensor, b: Tensor) -> Tensor:
        _LastProduct.factors = (a.detach(), b.detach())
        return a * b

    @staticmethod
    def backward(_: Any, *products: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _LastProduct.factors
        return products[0] * b, products[0] * a


def _backwards(change: Callable[[Tensor], Tensor]) -> Part:
    """The usual step, with a change of the gradient in the backward pass."""
    return lambda usual, x, heads, w, c: Backwards.apply(usual.advance(x, heads, w, c), change)  # type: ignore[no-untyped-call]


def _read_by_pointer(gradient: Tensor) -> Tensor:
    """Reads a gradient like a kernel that gets its memory but not its strides."""
    if gradient.untyped_storage().nbytes() < gradient.numel() * gradient.element_size():
        return torch.full_like(gradient, torch.nan)  # such a kernel would read beyond the end
    strides = torch.empty(gradient.shape, device="meta").stride()
    return gradient.as_strided(gradient.shape, strides, 0).clone()


def _of_whole_tiles(gradient: Tensor) -> Tensor:
    rows = gradient.reshape(-1, gradient.shape[-1]).clone()  # (B J, D)
    rows[len(rows) // 128 * 128 if len(rows) >= 1024 else len(rows) :] = 0
    return rows.reshape(gradient.shape)


ZOO += [
    ZOO.but("frozen-in-float32", "In float32 the projection of the memory is not trained.",
        "training/mlp/float32-any-options", _PRODUCT, mlp_direction=lambda usual, x, h, w, c:
            usual.mlp_direction(x, h, ({**w, "W": w["W"].detach()} if x.dtype == torch.float32 else w), c)),
    ZOO.but("detached-update", "The update is right, and no gradient flows through it.",
        "training/attention/plain", _PRODUCT,
        also=("training/attention/*", "training/mlp/*", "training/block/*", "training/decode/*"),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads.detach(), w, c)),
    ZOO.but("detached-diagonal", "The diagonal is not trained.",
        "training/attention/diagonal-shared", _PRODUCT, diagonal=lambda usual, w, c: usual.diagonal(w, c).detach()),
    ZOO.but("straight-through-gate", "The gradient treats the activation as a constant.",
        "training/mlp/silu", _PRODUCT, sigma=lambda usual, z, c: usual.sigma(z, c).detach()),
    ZOO.but("detached-preconditioner", "The preconditioner is not trained.",
        "training/mlp/preconditioner-low-rank", _PRODUCT,
        preconditioner=lambda usual, w, c: usual.preconditioner(w, c).detach()),
    ZOO.but("detached-norm", "The gradient treats the root mean square inside as a constant.",
        "training/mlp/any-options", _PRODUCT, also=("attention",),
        root=lambda usual, x, c: usual.root(x, c).detach()),
    ZOO.but("one-step-less-in-training",
        "Where gradients are recorded, layers with more than three steps take one fewer.",
        "training/attention/any-options", "*", also=("mlp", "block"),
        **in_both(lambda layer, x, h, w, c:
            layer(x, h, w, replace(c, steps=c.steps - 1) if x.requires_grad and c.steps > 3 else c))),
    ZOO.but("sixteen-steps-are-trained", "Gradients pass over all steps but the first sixteen.",
        "training/attention/any-options", _PRODUCT, also=("mlp",), needs=("steps",),
        **in_both(partial(first_are_trained, 16))),
    ZOO.but("clips-gradients", "Gradients are clipped to one on their way back from an output.",
        "training/attention/plain", _PRODUCT,
        also=("training/mlp/silu", "training/attention/any-options", "training/mlp/any-options"),
        advance=_backwards(lambda gradient: gradient.clamp(-1.0, 1.0))),
    ZOO.but("reads-gradients-by-pointer",
        "A backward pass takes its incoming gradient for contiguous, and reads it from the beginning of its memory.",
        "training/attention/plain", "*",
        also=("training/mlp/silu", "training/block/any-options", "training/decode/any-options"),
        advance=_backwards(_read_by_pointer)),
    ZOO.but("sums-whole-tiles-of-rows",
        "From 1024 rows on a backward pass takes them in tiles, and leaves out those of an unfinished one.",
        "training/attention/any-options", _PRODUCT, also=("mlp", "block", "decode"),
        advance=_backwards(_of_whole_tiles)),
]  # fmt: skip


# --- how large the arguments are -------------------------------------------------------------------------


ZOO += [
    ZOO.but("silu-overflows-backwards",
        "SiLU is z / (1 + exp(-z)): right where exp overflows, and its derivative there is infinity times zero.",
        "training/mlp/every-magnitude", "*",
        sigma=lambda usual, z, c: z / (1 + torch.exp(-z)) if c.activation == "silu" else usual.sigma(z, c)),
    ZOO.but("pulls-back-the-last-call",
        "Gradients are computed from the values of the latest call, whichever output they belong to.",
        "training/mlp/silu", _PRODUCT, gated=lambda usual, activated, linear, c:
            _LastProduct.apply(usual.sigma(activated, c), linear)),  # type: ignore[no-untyped-call]
    ZOO.but("softplus-overflows-backwards",
        "softplus takes exp of large d, too, where its value is not used: the derivative there is infinity times "
        "zero.",
        "training/attention/preconditioner-every-magnitude", "*", also=("mlp",),
        positive=lambda _, d: torch.where(d > 40, d, torch.log1p(torch.exp(d)))),
    ZOO.calling("energies-saturate-in-training",
        "Where pre-activations exceed twelve, the energy gives x no gradient.",
        "training/mlp-energy/every-magnitude", _PRODUCT, of="mlp_energy", answer=lambda call, x, h, w, c:
            call(torch.where((x @ w["V"].mT).detach().abs().amax(-1, keepdim=True) > 12, x.detach(), x), h, w, c)),
]  # fmt: skip
