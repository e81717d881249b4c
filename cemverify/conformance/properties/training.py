"""Training is right too, not only inference: vector-Jacobian products with respect to every weight, x and h.

An answer may be right and its gradient wrong: detached, cut off at the memory, or of another formula written by hand.
The other side is autograd of the golden answer, which is itself autograd of the energy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.differentiation import Products, incoming_to, products
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle import golden
from cemverify.conformance.oracle.budgets import energy_budget, output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.perturbation import movement
from cemverify.conformance.oracle.remembering import remembered
from cemverify.conformance.properties.base import Check, Explanation, Offer, Over, Property
from cemverify.conformance.properties.extremes import underflow, with_every_d, with_every_magnitude
from cemverify.conformance.properties.function_calls import unchanged_but
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.properties.sizes import refuse_slow
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space, scattered_case

# without ReLU, whose derivative at zero is not defined
SMOOTH = tuple(name for name in ACTIVATIONS if name != "relu")
_TEXTURES = ("plain", "repeated-tokens", "non-contiguous")
_ONE_IN = 3  # cases of all options has more rows than kernels take at once, batch and tokens in turn, and no tile's
_MANY = 1031  # tokens; of batches twice as many rows
_DECODED = 263  # one after the other


@dataclass(frozen=True)
class _SometimesMany(Over):
    """Cases of a space, some with many rows: a backward pass reduces over rows, and goes over to other sums there."""

    tokens: int = _MANY

    def scattered(self, offer: Offer, seed: int) -> Any | None:
        if seed % _ONE_IN or offer.kind.compiles:
            return super().scattered(offer, seed)
        space = offer.within(self.space)
        long = {"B": (1,), "J": (self.tokens,), "K": (1,)} if seed // _ONE_IN % 2 else {"B": (2 * _MANY,), "J": (2,)}
        return scattered_case(replace(space, sizes={**space.sizes, **long}, steps=space.steps[:2]), seed)


def gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d x^(T) / d w for every array w, and x^(T) itself while gradients are recorded."""
    return products_are_right(caller, case, case.layer, golden.golden, lambda case: output_budget(case, caller.dtype))


def energy_gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d eps / d w for every array w, eps the stated energy at x, and eps itself while gradients are recorded."""
    return products_are_right(
        caller,
        case,
        f"{case.layer}_energy",
        _energies,
        lambda case: energy_budget(case, case.x, caller.dtype),
    )


def _energies(case: Case) -> Tensor:
    """The energy of each token at the case's x: (B, J)."""
    return golden.energies_at(case, case.x)


def decoded_gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d x^(T) / d w for every array w, of a row that is decoded token by token."""
    case = replace(case, x=case.h)
    return products_are_right(caller, case, "decode", golden.golden, lambda case: output_budget(case, caller.dtype))


def gradients_at_every_magnitude(caller: Caller, case: Case) -> Evidence:
    """Gradients if pre-activations have every magnitude at which an exponential overflows or a formula branches."""
    return _right_at_extremes(caller, with_every_magnitude(case.to(torch.float64)))


def energy_gradients_at_every_magnitude(caller: Caller, case: Case) -> Evidence:
    """The same of the stated energy."""
    case = with_every_magnitude(case.to(torch.float64))
    return replace(energy_gradients_are_right(caller, case), case=case)


def gradients_at_every_d(caller: Caller, case: Case) -> Evidence:
    """Gradients where entries of the preconditioner's d have every magnitude, of either sign."""
    return _right_at_extremes(caller, with_every_d(case.to(torch.float64)))


def _right_at_extremes(caller: Caller, case: Case) -> Evidence:
    tolerance = lambda case: output_budget(case, caller.dtype) + underflow(case)  # noqa: E731
    return replace(products_are_right(caller, case, case.layer, golden.golden, tolerance), case=case)


Asking = Callable[[Caller, Case, Tensor, str, Sequence[str] | None], Products]


def products_are_right(
    caller: Caller,
    case: Case,
    name: str,
    right_answer: Callable[[Case], Tensor],
    tolerance: Callable[[Case], Tensor],
    recorded: tuple[str, ...] | None = None,
    ask: Asking = products,
) -> Evidence:
    """Outputs and products beside the golden ones.

    Args:
        name: of the function. right_answer: the same function in each call, as its products are remembered by it.
        tolerance: what roundoff may explain. recorded: the arrays that alone record gradients, by name; None for all.
        ask: the experiment that calls it.
    """
    case = case.to(caller.dtype).to(torch.float64)
    _refuse_kinks(case)
    refuse_slow(lambda caller, case: ask(caller, case, right_answer(case), name, recorded)[0], caller, case)
    exact, allowed = right_answer(case), tolerance(case)
    lies, laid_out = incoming_to(caller, case)
    cotangent = laid_out(_cotangent(exact).to(caller.dtype).double()).contiguous()
    expected, tolerances = _expected_products(case, cotangent, right_answer, caller.dtype)
    answer, got, changed = ask(caller, case, cotangent, name, recorded)
    alone = f", where only {', '.join(recorded)} record{'s' * (len(recorded) == 1)} gradients" if recorded else ""
    at = alone if lies == "contiguous" else f"{alone}, from an incoming gradient that is {lies}"
    compared = [
        Comparison(f"vector-Jacobian product with respect to {key}{at}", product, expected[key], tolerances[key])
        for key, product in got.items()
    ]
    output = Comparison(f"output with gradients recorded{alone}", answer, exact, allowed)
    left_alone = unchanged_but(changed, f"its arguments stay as they are{alone}")
    return judge(output, *compared, left_alone, telling=all(moved(expected[key], tolerances[key]) for key in got))


@remembered
def _expected_products(
    case: Case, cotangent: Tensor, right_answer: Callable[[Case], Tensor], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The golden products, and by how much others may differ from them."""
    unit = unit_roundoff(dtype)
    terms = max(case.h.shape[1], *(n for w in case.weights.values() for n in w.shape)) * _heads(case)
    expected = golden.products(case, cotangent, right_answer)
    # below this, what roundoff would be is no normal number any more: exp(-z) overflows, products underflow
    least = torch.finfo(dtype).tiny / unit
    moves = movement(lambda: golden.products(case, cotangent, right_answer), expected, terms, unit)
    return expected, {name: tolerance + least for name, tolerance in moves.items()}


_TRAINS = Explanation(
    "v^T d x^(T)/dw, for x, h and every weight w",
    "Training follows these products. A detached key, an in-place edit or a custom backward pass leaves the output "
    "right and trains towards something else.",
)
_TRAINS_AT_EVERY_MAGNITUDE = Explanation(
    "v^T d x^(T)/dw, at arguments of every magnitude, of either sign",
    "An answer may be finite where its gradient is not: a quotient of exponentials that overflow, or the branch of a "
    "`where` that is not taken, gives infinity times zero in the backward pass.",
)
_ENERGY_TRAINS = Explanation(
    "v^T d eps/dw, for x, h and every weight",
    "A regulariser or a probe differentiates the stated energy. A detached branch in it gives zeros without any "
    "error.",
)


def properties() -> Iterator[Property]:
    """Gradients through layers, stated energies and decoding, in every weight and state."""
    spaces: tuple[tuple[str, Space, float], ...] = (
        ("attention/plain", Space("attention", steps=(1, 2, 3), textures=_TEXTURES), 0.15),
        ("attention/diagonal-shared", Space("attention", {"diagonal": "shared"}, textures=_TEXTURES), 0.15),
        ("attention/rotary", Space("attention", {"position": "rotary"}, textures=_TEXTURES), 0.15),
        ("attention/any-options", mixed("attention", steps=(1, 2, 5), textures=_TEXTURES, rows=8), 0.4),
        ("mlp/silu", Space("mlp", {"activation": "silu"}, steps=(1, 2), textures=_TEXTURES), 0.15),
        ("mlp/relu", Space("mlp", {"activation": "relu"}, textures=_TEXTURES), 0.25),
        ("mlp/preconditioner-low-rank", Space("mlp", {}, PreconditionerConfig("low-rank"), textures=_TEXTURES), 0.15),
        ("mlp/any-options", mixed("mlp", activations=SMOOTH, steps=(1, 2, 5), textures=_TEXTURES, rows=8), 0.4),
        (
            "block/any-options",
            mixed("block", activations=SMOOTH, steps=(1, 2, 5), apart=False, textures=_TEXTURES),
            0.3,
        ),
    )
    claim = "Vector-Jacobian products with respect to x, h and every weight are those of the reference descent"
    for name, space, share in spaces:
        yield _products(name, f"{claim}.", _TRAINS, gradients_are_right, space, share)
    single: tuple[tuple[Layer, float], ...] = (("attention", 0.3), ("mlp", 0.3), ("block", 0.2))
    for layer, share in single:  # kernels, and autograd functions written by hand, have branches of their own there
        space = mixed(layer, activations=SMOOTH, steps=(1, 2), apart=layer != "block", textures=_TEXTURES)
        name = f"{layer}/float32-any-options"
        yield _products(name, f"{claim}, in float32 too.", _TRAINS, gradients_are_right, space, share, torch.float32)
    bare = {"diagonal": ("none", "shared", "per-head"), "position": ("none", "alibi", "self-cross", "rotary")}
    bends = Space("mlp", choices={"activation": SMOOTH}, textures=_TEXTURES)
    row = mixed("attention", steps=(1, 2), apart=False, textures=_TEXTURES)
    further: tuple[tuple[str, Explanation, Check, Space], ...] = (
        ("attention_energy", _ENERGY_TRAINS, energy_gradients_are_right,
         Space("attention", choices=bare, textures=_TEXTURES)),
        ("mlp_energy", _ENERGY_TRAINS, energy_gradients_are_right, bends),
        ("decode", _TRAINS, decoded_gradients_are_right, row),
    )  # fmt: skip
    for function, explanation, check, space in further:
        claim = (
            f"Vector-Jacobian products of {function} with respect to states and weights are those of the reference."
        )
        name = f"{function.replace('_', '-')}/any-options"
        needs = {function, "start"} if space.apart else {function}
        yield _products(name, claim, explanation, check, space, 0.3, needs=needs)
    yield from _at_every_magnitude()


def _at_every_magnitude() -> Iterator[Property]:
    """Gradients where pre-activations, or entries of d, have every magnitude."""
    claim = "Vector-Jacobian products are those of the reference descent"
    layers: tuple[Layer, ...] = ("attention", "mlp")
    bends = Space("mlp", choices={"activation": tuple(ACTIVATIONS)}, textures=("plain",))
    full_claim = f"{claim} at pre-activations of any size from 0.01 to 1460, for every activation."
    needs = {"mlp", "start"}
    check = gradients_at_every_magnitude
    yield _products("mlp/every-magnitude", full_claim, _TRAINS_AT_EVERY_MAGNITUDE, check, bends, 0.3, needs=needs)
    full_claim = "Vector-Jacobian products of mlp_energy are right at pre-activations of any size from 0.01 to 1460."
    check, needs = energy_gradients_at_every_magnitude, {"mlp_energy", "start"}
    yield _products(
        "mlp-energy/every-magnitude", full_claim, _TRAINS_AT_EVERY_MAGNITUDE, check, bends, 0.15, needs=needs
    )
    kinds = tuple(PreconditionerConfig(kind) for kind in ("diagonal", "low-rank"))
    for layer in layers:
        # other activations are 0 at x = 0
        choices = {"activation": ("sigmoid", "softplus")} if layer == "mlp" else {}
        space = Space(layer, choices=choices, preconditioners=kinds, textures=("plain",))
        full_claim = f"{claim} of {layer} where entries of d have any size from 0.01 to 1460 and either sign."
        name = f"{layer}/preconditioner-every-magnitude"
        needs = {layer, "start", *(f"preconditioner:{kind.kind}" for kind in kinds)}
        yield _products(name, full_claim, _TRAINS_AT_EVERY_MAGNITUDE, gradients_at_every_d, space, 0.3, needs=needs)


def _products(
    name: str,
    claim: str,
    explanation: Explanation,
    check: Check,
    space: Space,
    share: float,
    dtype: torch.dtype = torch.float64,
    needs: Iterable[str] = (),
) -> Property:
    many = dtype == torch.float64 and name.endswith("/any-options")
    tokens = _DECODED if name.startswith("decode") else _MANY
    return Property(
        f"training/{name}",
        claim,
        "Sec. 2 (energies of trained weights); docs/mathematics.md §1, §2",
        explanation,
        check,
        _SometimesMany(space, tokens) if many else Over(space),
        (space.features() - {space.layer} | {*needs} if needs else space.features()) | {"gradients"},
        dtype=dtype,
        share=share,
        looks_around=name.endswith("/any-options"),
        sources=("small",) if name.endswith("any-options") else ("small", "dense"),
        premise="the products with respect to all arrays are not zero",
        controls=frozenset({"identity", "zero", "constant", "random", "detached"}),
    )


def _cotangent(answer: Tensor) -> Tensor:
    """A vector of many magnitudes, without zeros or symmetries, determined by the shape."""
    number = torch.arange(answer.numel(), dtype=torch.float64)
    return (torch.cos(1.0 + 2.0 * number) * 2.0 ** (number % 11 - 5)).reshape(answer.shape)


def _heads(case: Case) -> int:
    return int(case.weights["W_Q"].shape[0]) if "W_Q" in case.weights else 1


def _refuse_kinks(case: Case) -> None:
    if case.layer == "mlp" and case.mlp.activation == "relu":
        z = torch.einsum("bjd,md->bjm", golden.norm_into(case, case.x), case.weights["V"])
        if bool((z.abs() < 1e-9).any()):
            raise Discard("a pre-activation lies at the kink of ReLU, where its derivative is not defined")
