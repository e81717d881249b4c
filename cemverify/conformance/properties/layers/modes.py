"""An energy layer executed in other ways: compiled, mapped, on another device, in lower precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Box, flat
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite
from cemverify.conformance.oracle.evidence import Evidence, moved
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.explanations import BOUNDED, COMPILED, MAPPED, ON_CUDA
from cemverify.conformance.properties.function_calls import cuda_is_cpu, mapped_is_looped, unchanged
from cemverify.conformance.properties.layers.base import Cases, Check, energy_layer_property, states
from cemverify.conformance.properties.layers.calls import BoxCall, OfCalls
from cemverify.conformance.properties.layers.oracle import along, compared, nudged, rounding, solved
from cemverify.conformance.properties.layers.products import cotangents, gradients_of_update, products_are_equal
from cemverify.conformance.questions.black_boxes import Named, Question

_ROUNDINGS = 8
_LONG = 64  # tokens


def compiled_is_eager(calls: Sequence[BoxCall]) -> Evidence:
    """The compiled update is the update. The backend traces, and rewrites permuted attention as inductor does."""
    return unchanged(calls, lambda call: {"compiled = eager": call.compiled()})


def _in(dtype: torch.dtype, **more: Any) -> Callable[[Check], Check]:
    name, is_wide = str(dtype).removeprefix("torch."), dtype == torch.float32
    return states(
        f"precision/layer/{name}",
        claim=f"In {name}, the update is as close to the float64 one as the dtype allows.",
        **BOUNDED,
        premise="the update differs from zero by more than the roundoff of the dtype",
        dtype=dtype,
        # faint: an epsilon of a dtype's spacing shows; beyond 256 tokens, positions show, which bfloat16 cannot
        # count and float32 can
        cases=Cases(
            texture="plain", plain=True, sometimes=("faint",), tokens=150 if is_wide else 600, spread=is_wide
        ),
        source="a plain evaluation of the gradient in the same dtype",
        **more,
    )


@_in(torch.float16, since="2026.12")
@_in(torch.bfloat16)
@_in(torch.float32)
def low_precision_is_close(box: Box, q: Question) -> Evidence:
    """In its dtype the update is as near to the float64 one as a plain evaluation in that dtype."""
    exact = box.at(torch.float64)
    expected = exact.displacement(q)
    got = box.displacement(q)
    tolerance = _rounded_once(box, exact, q, expected)
    if box.caller.dtype == torch.float32 and q.sizes.get("J", 0) > _LONG:
        tolerance = tolerance + rounding(box, q, expected)  # of sums along the row, of which differences are taken
    layer = box.layer
    if (
        layer.energy is not None
        and layer.step.kind in ("gradient", "proximal")
        and "autograd" not in layer.not_offered
    ):
        with suppress(Fault):  # the energy may be stated for float64 only
            tolerance = tolerance + _plain_error(box, exact, q, expected)
    claim = "update in lower precision = in float64"
    return Evidence.of(
        *compared(claim, got, expected, tolerance), telling=moved(flat(expected), along(tolerance, flat(expected)))
    )


@states(
    "precision/layer/float32-gradients",
    claim="In float32, gradients of the update are those in float64, as close as the dtype allows.",
    formula="v^T du/dw in float32 = in float64",
    why="A weight that is masked after its exponential is infinite in float32 long before it is in float64. The loss "
    "is right then, and its gradient NaN.",
    premise="some gradient is not zero",
    needs={"gradients"},
    dtype=torch.float32,
    cases=Cases(long=2, plain=True, sometimes=("zero-memory",)),
    source="the layer's own gradients in float64",
    since="2026.12",
)
def low_precision_gradients_are_close(box: Box, q: Question) -> Evidence:
    """Products with the Jacobian in float32 are as near to those in float64 as roundoff of their size allows."""
    q = box.rounded(q)
    cotangent = cotangents(q)
    try:
        expected = gradients_of_update(box.at(torch.float64), q, cotangent, of_parameters=False)
    except NotFinite:
        raise Discard("the gradient is not finite in float64 either") from None
    got = gradients_of_update(box, q, cotangent, of_parameters=False)
    got, expected = (box.along_all(q, part) for part in (got, expected))
    claim = "gradient with respect to {name} in float32 = in float64"
    return products_are_equal(box, q, claim, got, expected, *cotangent, slack=solved(box))


def _plain_error(box: Box, exact: Box, q: Question, expected: Named) -> Tensor:
    """Four times the relative error of dE/dg itself in that dtype, at each step: (B,)."""
    g = exact.mapped(q.x, q.memory)
    narrow, wide = box.gradient(g, q.memory)[0], exact.gradient(g, q.memory)[0]
    size = flat(wide).abs().amax(1)
    relative = (flat(narrow) - flat(wide)).abs().amax(1) / torch.where(size == 0, 1.0, size)
    return 4 * len(box.layer.step.sizes) * relative * flat(expected).abs().amax(1)


def _rounded_once(box: Box, exact: Box, q: Question, expected: Named) -> Tensor:
    """What one rounding of the arguments and a few of the answer do to the float64 update: (B,)."""
    shift = torch.zeros(q.batch, dtype=torch.float64)
    for seed in range(2):
        moved_a_little = exact.displacement(nudged(box, q, box.eps, seed))
        shift = torch.maximum(shift, (flat(moved_a_little) - flat(expected)).abs().amax(1))
    size, state = flat(expected).abs().amax(1), flat(q.x).abs().amax(1)
    # a difference may be the last state minus the first: each step rounds the state once
    rounded = _ROUNDINGS if box.layer.step.returns == "next state" else len(box.layer.step.sizes)
    return _ROUNDINGS * (shift + box.eps * size) + rounded * box.eps * state


def properties() -> Iterator[Property]:
    """An energy layer compiled, mapped, and on a CUDA device."""
    plain = "the update is not zero"
    yield energy_layer_property(
        "modes/layer/compiled", claim="Compiling changes no output (permuted attention: in inductor's form).",
        **COMPILED,
        check=OfCalls(compiled_is_eager, update_alone=True), premise=plain,
        needs={"compile"}, source="contract", cases=Cases(few=True, plain=True),
    )  # fmt: skip
    yield energy_layer_property(
        "modes/layer/vmap", claim="Mapping over an additional axis gives what a loop gives.", **MAPPED,
        check=OfCalls(mapped_is_looped, update_alone=True), premise=plain,
        needs={"vmap"}, source="contract", controls={"random"}, cases=Cases(plain=True),
    )  # fmt: skip
    yield energy_layer_property(
        "modes/layer/cuda", claim="On a CUDA device the output is that on the CPU.", **ON_CUDA,
        check=OfCalls(cuda_is_cpu, update_alone=True), premise=plain,
        needs={"cuda", "torch"}, source="contract",
    )  # fmt: skip
