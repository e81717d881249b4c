"""Training is right too, not only inference: vector-Jacobian products with respect to every weight, x and h.

An answer may be right and its gradient wrong: detached, cut off at the memory, or of another formula written by hand.
The other side is autograd of the golden answer, which is itself autograd of the energy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.differentiation import differentiated, products
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle import golden
from cemverify.conformance.oracle.budgets import energy_budget, output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.perturbation import movement
from cemverify.conformance.properties.base import Explanation, Over, Property
from cemverify.conformance.properties.extremes import underflow, with_every_d, with_every_magnitude
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space

# the derivative of ReLU at zero is anybody's choice
SMOOTH = tuple(name for name in ACTIVATIONS if name != "relu")
_TEXTURES = ("plain", "repeated-tokens", "non-contiguous")

Check = Callable[[Caller, Case], Evidence]


def gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d x^(T) / d w for every array w, and x^(T) itself while gradients are recorded."""
    return _right(caller, case, case.layer, golden.golden, lambda case: output_budget(case, caller.dtype))


def energy_gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d eps / d w for every array w, eps the stated energy at x, and eps itself while gradients are recorded."""
    return _right(
        caller,
        case,
        f"{case.layer}_energy",
        lambda case: golden.energies_at(case, case.x),
        lambda case: energy_budget(case, case.x, caller.dtype),
    )


def decoded_gradients_are_right(caller: Caller, case: Case) -> Evidence:
    """v^T d x^(T) / d w for every array w, of a row that is decoded token by token."""
    case = replace(case, x=case.h)
    return _right(caller, case, "decode", golden.golden, lambda case: output_budget(case, caller.dtype))


def gradients_of_some_are_right(caller: Caller, case: Case) -> Evidence:
    """The same where x, h, the weights or one weight alone record gradients, and everything else is frozen.

    Frozen states are what the first layer of a model gets, and frozen weights what an adapter trains beside.
    """
    return _right_of_some(caller, case, case.layer)


def decoded_gradients_of_some_are_right(caller: Caller, case: Case) -> Evidence:
    """The same of a row that is decoded token by token."""
    return _right_of_some(caller, replace(case, x=case.h), "decode")


def gradients_at_every_magnitude(caller: Caller, case: Case) -> Evidence:
    """The same where pre-activations have every magnitude at which an exponential overflows or a formula branches."""
    return _right_at_extremes(caller, with_every_magnitude(case.to(torch.float64)))


def gradients_at_every_d(caller: Caller, case: Case) -> Evidence:
    """The same where entries of the preconditioner's d have every magnitude, of either sign."""
    return _right_at_extremes(caller, with_every_d(case.to(torch.float64)))


def _right_at_extremes(caller: Caller, case: Case) -> Evidence:
    room = lambda case: output_budget(case, caller.dtype) + underflow(case)  # noqa: E731
    return replace(_right(caller, case, case.layer, golden.golden, room), asked=case)


def _right_of_some(caller: Caller, case: Case, name: str) -> Evidence:
    states = [key for key in ("x", "h") if key in differentiated(case, name, None)]
    weights = tuple(case.weights)
    some = [(state,) for state in states] + [weights, (weights[case.turn(len(weights))],)]
    return _right(caller, case, name, golden.golden, lambda case: output_budget(case, caller.dtype), some)


def _right(
    caller: Caller,
    case: Case,
    name: str,
    due: Callable[[Case], Tensor],
    room: Callable[[Case], Tensor],
    some: Sequence[tuple[str, ...]] = (),
) -> Evidence:
    """Outputs and products beside the golden ones.

    Args:
        some: the arrays that alone record gradients, in one call after the other; if none, all do, in one call.
    """
    case = case.to(caller.dtype).to(torch.float64)
    _refuse_kinks(case)
    exact, allowed = due(case), room(case)
    cotangent = _cotangent(exact).to(caller.dtype).double()
    terms = max(case.h.shape[1], *(n for w in case.weights.values() for n in w.shape)) * _heads(case)
    expected = golden.products(case, cotangent, due)
    unit = unit_roundoff(caller.dtype)
    # below this, what roundoff would be is no normal number any more: exp(-z) overflows, products underflow
    least = torch.finfo(caller.dtype).tiny / unit
    moves = movement(lambda: golden.products(case, cotangent, due), expected, terms, unit)
    rooms = {name: room + least for name, room in moves.items()}
    compared = []
    for recorded in some or (None,):
        answer, got = products(caller, case, cotangent, name, recorded)
        alone = f", where only {', '.join(recorded)} record{'s' * (len(recorded) == 1)} gradients" if recorded else ""
        compared.append(Comparison(f"output with gradients recorded{alone}", answer, exact, allowed))
        compared += [
            Comparison(f"vector-Jacobian product with respect to {key}{alone}", product, expected[key], rooms[key])
            for key, product in got.items()
        ]
    return judge(*compared, telling=all(moved(product, rooms[key]) for key, product in expected.items()))


_TRAINS = Explanation(
    "v^T d x^(T)/dw, for x, h and every weight w",
    "Training follows these products. A detached key, an in-place edit or a custom backward pass leaves the output "
    "right and trains towards something else.",
)
_SOME_TRAIN = Explanation(
    "v^T d x^(T)/dw for w among x, h and the weights, while all others are frozen",
    "The first layer of a model gets states that record nothing, and a frozen model weights that record nothing. A "
    "layer that looks at one argument to decide whether gradients are needed loses those of the others.",
)
_ONE_ARRAY_TRAINS = Explanation(
    "v^T d F(h, h)/dh: the product through x and the product through h, added",
    "Self-attention passes one array twice. A layer that detaches or reuses one of the two loses a part of its "
    "gradient, and only there.",
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
        ("attention/any-options", mixed("attention", steps=(1, 2, 5), textures=_TEXTURES), 0.4),
        ("mlp/silu", Space("mlp", {"activation": "silu"}, steps=(1, 2), textures=_TEXTURES), 0.15),
        ("mlp/relu", Space("mlp", {"activation": "relu"}, textures=_TEXTURES), 0.25),
        ("mlp/preconditioner-low-rank", Space("mlp", {}, PreconditionerConfig("low-rank"), textures=_TEXTURES), 0.15),
        ("mlp/any-options", mixed("mlp", activations=SMOOTH, steps=(1, 2, 5), textures=_TEXTURES), 0.4),
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
    others: tuple[tuple[str, Explanation, Check, Space], ...] = (
        ("attention_energy", _ENERGY_TRAINS, energy_gradients_are_right,
         Space("attention", choices=bare, textures=_TEXTURES)),
        ("mlp_energy", _ENERGY_TRAINS, energy_gradients_are_right, bends),
        ("decode", _TRAINS, decoded_gradients_are_right, row),
    )  # fmt: skip
    for function, explanation, check, space in others:
        claim = (
            f"Vector-Jacobian products of {function} with respect to states and weights are those of the reference."
        )
        name = f"{function.replace('_', '-')}/any-options"
        needs = {function, "start"} if space.apart else {function}
        yield _products(name, claim, explanation, check, space, 0.3, needs=needs)
    yield from _in_other_ways()


def _in_other_ways() -> Iterator[Property]:
    """Some arguments alone, one array in two places, and every magnitude."""
    claim = "Vector-Jacobian products are those of the reference descent"
    frozen = "where x, h, the weights or one weight alone record gradients and the others are frozen"
    functions: tuple[tuple[str, Layer], ...] = (
        ("attention", "attention"), ("mlp", "mlp"), ("block", "block"), ("decode", "attention"),
    )  # fmt: skip
    for function, layer in functions:
        apart = function in ("attention", "mlp")
        space = mixed(layer, activations=SMOOTH, steps=(1, 2), apart=apart, textures=("plain",))
        decoded = function == "decode"
        check = decoded_gradients_of_some_are_right if decoded else gradients_of_some_are_right
        name, needs = f"{function}/frozen", {"decode"} if decoded else ()
        yield _products(name, f"{claim} of {function} {frozen}.", _SOME_TRAIN, check, space, 0.15, needs=needs)
    layers: tuple[Layer, ...] = ("attention", "mlp")
    for layer in layers:
        space = mixed(layer, activations=SMOOTH, steps=(1, 2), apart=False, textures=("plain",))
        what = f"{claim} of {layer} where x and h are one array."
        yield _products(f"{layer}/one-array", what, _ONE_ARRAY_TRAINS, gradients_are_right, space, 0.15)
    bends = Space("mlp", choices={"activation": tuple(ACTIVATIONS)}, textures=("plain",))
    what = f"{claim} at pre-activations of any size from 0.01 to 730, for every activation."
    needs = {"mlp", "start"}
    check = gradients_at_every_magnitude
    yield _products("mlp/every-magnitude", what, _TRAINS_AT_EVERY_MAGNITUDE, check, bends, 0.3, needs=needs)
    kinds = tuple(PreconditionerConfig(kind) for kind in ("diagonal", "low-rank"))
    for layer in layers:
        # other activations are 0 at x = 0
        choices = {"activation": ("sigmoid", "softplus")} if layer == "mlp" else {}
        space = Space(layer, choices=choices, preconditioners=kinds, textures=("plain",))
        what = f"{claim} of {layer} where entries of d have any size from 0.01 to 730 and either sign."
        name = f"{layer}/preconditioner-every-magnitude"
        needs = {layer, "start", *(f"preconditioner:{kind.kind}" for kind in kinds)}
        yield _products(name, what, _TRAINS_AT_EVERY_MAGNITUDE, gradients_at_every_d, space, 0.3, needs=needs)


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
    return Property(
        f"training/{name}",
        claim,
        "Sec. 2 (energies of trained weights); docs/mathematics.md §1, §2",
        explanation,
        check,
        Over(space),
        (space.features() - {space.layer} | {*needs} if needs else space.features()) | {"gradients"},
        dtype=dtype,
        share=share,
        looks_around=name.endswith("/any-options"),
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
