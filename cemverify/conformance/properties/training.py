"""Training is right, not only inference: vector-Jacobian products with respect to every weight, x and h.

An answer may be right and its gradient wrong: detached, cut off at the memory, or of another formula written by hand.
The other side is autograd of the golden answer, which is itself autograd of the energy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance import golden
from cemverify.conformance.budgets import output_budget, unit_roundoff
from cemverify.conformance.calls import Caller
from cemverify.conformance.cases import Case, Layer
from cemverify.conformance.differentiation import products
from cemverify.conformance.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.faults import Discard
from cemverify.conformance.perturbation import movement
from cemverify.conformance.properties.base import Over, Property
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.spaces import Space

# the derivative of ReLU at zero is anybody's choice
_SMOOTH = tuple(name for name in ACTIVATIONS if name != "relu")
# 1 + erf and 1 + tanh cancel on the far left, which at float32's roundoff begins at -5
_WITHOUT_TAILS = tuple(name for name in _SMOOTH if not name.startswith("gelu"))
_TEXTURES = ("plain", "repeated-tokens", "non-contiguous")


def gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d x^(T) / d w for every array w, and x^(T) itself while gradients are recorded."""
    case = case.to(caller.dtype).to(torch.float64)
    _refuse_kinks(case)
    cotangent = _cotangent(case).to(caller.dtype).double()
    answer, got = products(caller, case, cotangent)
    if case.x is case.h and "x" in got:  # one array walks in twice
        got["h"] = got["h"] + got.pop("x")
    terms = max(case.h.shape[1], *(n for w in case.weights.values() for n in w.shape)) * _heads(case)
    expected = golden.products(case, cotangent)
    rooms = movement(lambda: golden.products(case, cotangent), terms, unit_roundoff(caller.dtype))
    recorded = Comparison(
        "output with gradients recorded", answer, golden.golden(case), output_budget(case, caller.dtype)
    )
    pulled = [
        Comparison(f"vector-Jacobian product with respect to {name}", got[name], product, rooms[name])
        for name, product in expected.items()
    ]
    return judge(recorded, *pulled, telling=all(moved(product, rooms[name]) for name, product in expected.items()))


def properties() -> Iterator[Property]:
    """The family."""
    spaces: tuple[tuple[str, Space, float], ...] = (
        ("attention/plain", Space("attention", steps=(1, 2), textures=_TEXTURES), 0.3),
        ("attention/diagonal-shared", Space("attention", {"diagonal": "shared"}, textures=_TEXTURES), 0.25),
        ("attention/rotary", Space("attention", {"position": "rotary"}, textures=_TEXTURES), 0.25),
        ("attention/any-options", mixed("attention", steps=(1, 2), textures=_TEXTURES), 0.4),
        ("mlp/silu", Space("mlp", {"activation": "silu"}, steps=(1, 2), textures=_TEXTURES), 0.3),
        ("mlp/relu", Space("mlp", {"activation": "relu"}, textures=_TEXTURES), 0.25),
        ("mlp/preconditioner-low-rank", Space("mlp", {}, PreconditionerConfig("low-rank"), textures=_TEXTURES), 0.25),
        ("mlp/any-options", mixed("mlp", activations=_SMOOTH, steps=(1, 2), textures=_TEXTURES), 0.4),
        (
            "block/any-options",
            mixed("block", activations=_SMOOTH, steps=(1, 2), apart=False, textures=_TEXTURES),
            0.3,
        ),
    )
    for name, space, share in spaces:
        yield _products(name, space, share, torch.float64)
    single: tuple[tuple[Layer, float], ...] = (("attention", 0.3), ("mlp", 0.3), ("block", 0.2))
    for layer, share in single:
        space = mixed(layer, activations=_WITHOUT_TAILS, steps=(1, 2), apart=layer != "block", textures=_TEXTURES)
        yield _products(f"{layer}/float32-any-options", space, share, torch.float32)


def _products(name: str, space: Space, share: float, dtype: torch.dtype) -> Property:
    """In float32 kernels, and autograd functions written by hand, have branches of their own."""
    claim = "Vector-Jacobian products with respect to x, h and every weight are those of the energy's descent"
    return Property(
        f"training/{name}",
        f"{claim}, in float32 too." if dtype == torch.float32 else f"{claim}.",
        "Sec. 2 (energies of trained weights); docs/mathematics.md §1, §2",
        gradients_are_right,
        Over(space),
        space.features() | {"gradients"},
        dtype=dtype,
        share=share,
        premise="the product with respect to every array is not zero",
        controls=frozenset({"identity", "zero", "constant", "random", "detached"}),
    )


def _cotangent(case: Case) -> Any:
    """A vector without zeros or symmetries, the same for the same shape: (B, J, D)."""
    n = case.h.numel()
    return torch.cos(1.0 + 2.0 * torch.arange(n, dtype=torch.float64)).reshape(case.h.shape)


def _heads(case: Case) -> int:
    return int(case.weights["W_Q"].shape[0]) if "W_Q" in case.weights else 1


def _refuse_kinks(case: Case) -> None:
    if case.layer == "mlp" and case.mlp.activation == "relu":
        z = torch.einsum("bjd,md->bjm", golden.norm_into(case, case.x), case.weights["V"])
        if bool((z.abs() < 1e-9).any()):
            raise Discard("a pre-activation at the kink of ReLU, where its derivative is anybody's choice")
