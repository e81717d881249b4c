"""Training is right too, not only inference: vector-Jacobian products with respect to every weight, x and h.

An answer may be right and its gradient wrong: detached, cut off at the memory, or of another formula written by hand.
The gradient is compared with autograd of the golden answer, which is itself autograd of the energy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import underflow
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.oracle.functions import Function, function_of
from cemverify.conformance.properties.base import Check, Offer, Over, Property, case_property
from cemverify.conformance.properties.derivatives import GROWING, LEAST_EXPONENT, SMOOTH, products_are_right
from cemverify.conformance.properties.explanations import Explanation
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.contexts import with_every_d, with_every_magnitude
from cemverify.conformance.questions.spaces import FEW_OF_ALL, GENTLE, Space, mixed, scattered_case

_TEXTURES = ("plain", "repeated-tokens", "non-contiguous")
_MANY = 1031  # tokens; twice as many rows of a batch
_DEEP = 33  # steps; half as many if each is compiled
_DECODED = 263  # one after the other


@dataclass(frozen=True)
class _SometimesMany(Over):
    """Cases of a space, some with many rows or steps, for which a backward pass may use other sums or loops.

    These rows, of batch or tokens in turn, are more than kernels take at once, and no multiple of a tile.

    Attributes:
        tokens: of a long case. every: one in so many has many rows. deep: one in so many, if any, has many steps.
    """

    tokens: int = _MANY
    every: int = 3
    deep: int | None = None

    def scattered(self, offer: Offer, seed: int) -> Any | None:
        space = offer.within(self.space)
        if self.deep and seed % self.deep == 0 and len(space.steps) > 1:
            choices = {name: tuple(v for v in of if v not in GROWING) or of for name, of in space.choices.items()}
            sizes = {axis: named[-1:] for axis, named in FEW_OF_ALL.items()}  # one program if each is compiled
            few = replace(space, choices=choices, sizes=sizes, rows=1)
            depth = (_DEEP + 1) // 2 if offer.kind.compiles else _DEEP
            etas = GENTLE if len(space.step_sizes) > 1 else space.step_sizes
            return scattered_case(replace(few, steps=(depth,), step_sizes=etas), seed)
        if seed % self.every or offer.kind.compiles:
            return super().scattered(offer, seed)
        turn = seed // self.every % 2 and space.layer != "block"  # a block's attention is tested by itself
        long = {"B": (1,), "J": (self.tokens,), "K": (1,)} if turn else {"B": (2 * _MANY,), "J": (2,)}
        steps = space.steps[: 1 if turn else 2]
        return scattered_case(replace(space, sizes={**space.sizes, **long}, steps=steps), seed)


def gradients_at_extremes(function: Function, prepare: Callable[[Case], Case]) -> Check:
    """Gradients for numbers of every magnitude at which an exponential overflows or a formula branches."""

    def check(caller: Caller, case: Case) -> Evidence:
        case = prepare(case.to(torch.float64))
        slack = 0.0 if function.is_energy else underflow(case)
        return replace(products_are_right(caller, case, function, slack=slack), case=case)

    return check


def _with_normal_roots(case: Case) -> Case:
    """Entries of d of every magnitude, but if P has a root of softplus(d), none at which softplus(d) is subnormal.

    Much hardware then takes it for zero, as JAX does, and the root has no derivative there.
    """
    case = with_every_d(case)
    if "P_U" not in case.weights:
        return case
    return replace(case, weights={**case.weights, "P_d": case.weights["P_d"].clamp(min=LEAST_EXPONENT)})


_TRAINS = Explanation(
    formula="v^T d x^(T)/dw, for x, h and every weight w",
    why="Training follows these products. A detached key, an in-place edit or a custom backward pass leaves the "
    "output right and trains towards something else.",
)
_AT_EVERY_MAGNITUDE = Explanation(
    formula="v^T d x^(T)/dw, at arguments of every magnitude, of either sign",
    why="An answer may be finite where its gradient is not: a quotient of exponentials that overflow, or the branch "
    "of a `where` that is not taken, gives infinity times zero in the backward pass.",
)
_ENERGY_TRAINS = Explanation(
    formula="v^T d eps/dw, for x, h and every weight",
    why="A regulariser or a probe differentiates the stated energy. A detached branch in it gives zeros without any "
    "error.",
)


def properties() -> Iterator[Property]:
    """Gradients through layers, stated energies and decoding, with respect to every weight and state."""
    spaces: tuple[tuple[str, Space], ...] = (
        ("plain", Space("attention", steps=(1, 2, 3), textures=_TEXTURES)),
        ("diagonal-shared", Space("attention", {"diagonal": "shared"}, textures=_TEXTURES)),
        ("rotary", Space("attention", {"position": "rotary"}, textures=_TEXTURES)),
        ("any-options", mixed("attention", steps=(1, 2, 5), textures=_TEXTURES, rows=8)),
        ("silu", Space("mlp", {"activation": "silu"}, steps=(1, 2), textures=_TEXTURES)),
        ("relu", Space("mlp", {"activation": "relu"}, textures=_TEXTURES)),
        ("preconditioner-low-rank", Space("mlp", {}, PreconditionerConfig("low-rank"), textures=_TEXTURES)),
        ("any-options", mixed("mlp", activations=SMOOTH, steps=(1, 2, 5), textures=_TEXTURES, rows=8)),
        ("any-options", mixed("block", activations=SMOOTH, steps=(1, 2, 5), apart=False, textures=_TEXTURES)),
    )
    of_functions = "Vector-Jacobian products with respect to states and weights are those of the reference"
    for name, space in spaces:
        yield _products(name, f"{of_functions}.", _TRAINS, space)
    single: tuple[Layer, ...] = ("attention", "mlp", "block")
    for layer in single:  # kernels and hand-written autograd functions have branches of their own for these
        space = mixed(layer, activations=SMOOTH, steps=(1, 2), apart=layer != "block", textures=_TEXTURES)
        claim = f"{of_functions}, in float32 too."
        yield _products("float32-any-options", claim, _TRAINS, space, dtype=torch.float32)
    bare = {"diagonal": ("none", "shared", "per-head"), "position": ("none", "alibi", "self-cross", "rotary")}
    for function, explanation, space in (
        ("attention_energy", _ENERGY_TRAINS, Space("attention", choices=bare, textures=_TEXTURES)),
        ("mlp_energy", _ENERGY_TRAINS, Space("mlp", choices={"activation": SMOOTH}, textures=_TEXTURES)),
        ("decode", _TRAINS, mixed("attention", steps=(1, 2), apart=False, textures=_TEXTURES)),
    ):
        yield _products("any-options", f"{of_functions}.", explanation, space, function)
    bends = Space("mlp", choices={"activation": tuple(ACTIVATIONS)}, textures=("plain",))
    claim = f"{of_functions}, at pre-activations of any size from 0.01 to 1460, for every activation."
    for name in ("mlp", "mlp_energy"):
        check = gradients_at_extremes(function_of(name), with_every_magnitude)
        yield _products("every-magnitude", claim, _AT_EVERY_MAGNITUDE, bends, name, check=check)
    kinds = tuple(PreconditionerConfig(kind) for kind in ("diagonal", "low-rank"))
    layers: tuple[Layer, ...] = ("attention", "mlp")
    for layer in layers:
        # other activations are 0 at x = 0
        choices = {"activation": ("sigmoid", "softplus")} if layer == "mlp" else {}
        space = Space(layer, choices=choices, preconditioners=kinds, textures=("plain",))
        yield _products(
            "preconditioner-every-magnitude",
            f"{of_functions}, where entries of d have any size from 0.01 to 1460 and either sign.",
            _AT_EVERY_MAGNITUDE,
            space,
            check=gradients_at_extremes(function_of(layer), _with_normal_roots),
            needs={f"preconditioner:{kind.kind}" for kind in kinds},
        )


def _products(
    name: str,
    claim: str,
    explanation: Explanation,
    space: Space,
    function: str | None = None,
    *,
    check: Check | None = None,
    needs: Iterable[str] = (),
    dtype: torch.dtype = torch.float64,
) -> Property:
    """A property of a function, the layer's own by default, over the cases of a space."""
    asked = function_of(function or space.layer)
    property_ = case_property(
        f"training/{asked.name.replace('_', '-')}/{name}",
        claim=claim,
        source="Sec. 2 (energies of trained weights); docs/mathematics.md §1, §2",
        **explanation,
        check=partial(products_are_right, function=asked) if check is None else check,
        space=space,
        needs={"gradients", *(("start",) if check is not None else ()), *needs},
        function=function,
        dtype=dtype,
        # roots of zero, and loops that end early
        looks_around=name == "any-options",
        premise="the products with respect to all arrays are not zero",
        controls=frozenset({"identity", "zero", "constant", "random", "detached"}),
    )
    # attention has five times as many cases as others, and they cost the square of their tokens
    tokens, every = _DECODED if asked.name == "decode" else _MANY, 6 if asked.name == "attention" else 3
    deep = {"attention": 12, "mlp": 4}.get(asked.name)  # so that one is deep if each is compiled (then at most 12)
    many = _SometimesMany(space, tokens, every, deep)
    return replace(property_, questions=many) if name == "any-options" else property_
