"""Functions executed in other ways: compiled, mapped, without gradients, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.properties.base import Explanation, Over, Property
from cemverify.conformance.properties.contract.functions import Function, FunctionCall
from cemverify.conformance.properties.function_calls import (
    compiled_is_eager,
    cuda_is_cpu,
    gradients_change_no_answer,
    mapped_is_looped,
)
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space


def _of_call(check: Callable[[Sequence[FunctionCall]], Evidence]) -> Callable[[Caller, Case], Evidence]:
    """A check of calls as a check of a layer's function."""

    def checked(caller: Caller, case: Case) -> Evidence:
        case = case.to(caller.dtype).to(torch.float64)
        return check([FunctionCall(Function(case.layer, case.layer), caller, case)])

    return checked


COMPILED = Explanation(
    "torch.compile(F)(x, h) = F(x, h)",
    "Code that branches on values, or edits what it was given, compiles into something else.",
)
MAPPED = Explanation(
    "vmap(F)(xs, hs) = [F(x, h) for x, h]",
    "In-place writes and fixed ranks break when an axis is added.",
)
UNRECORDED = Explanation(
    "F while gradients are recorded = F without",
    "Many layers choose a faster path in evaluation; it has to be the same layer.",
)
ON_CUDA = Explanation(
    "F on CUDA = F on the CPU",
    "Kernels differ between devices, and so do their mistakes.",
)


def properties() -> Iterator[Property]:
    """Each layer mapped, without gradients, on a CUDA device and compiled."""
    layers: tuple[tuple[Layer, Space], ...] = (
        ("attention", mixed("attention", steps=(1, 2))),
        ("mlp", mixed("mlp", steps=(1, 2))),
        ("block", mixed("block", steps=(1, 2), apart=False)),
    )
    for layer, space in layers:
        for name, feature, claim, explanation, check, share in (
            ("vmap", "vmap", "Mapping over an additional axis gives what a loop gives.",
             MAPPED, _of_call(mapped_is_looped), 0.3),
            ("no-gradients", "gradients", "Recording gradients changes no output.",
             UNRECORDED, _of_call(gradients_change_no_answer), 0.3),
            ("cuda", "cuda", "On a CUDA device the output is that on the CPU.", ON_CUDA, _of_call(cuda_is_cpu), 0.5),
            ("compiled", "compile", "Compiling changes no output.", COMPILED, _of_call(compiled_is_eager), 0.05),
        ):  # fmt: skip
            if name == "compiled":
                if layer == "block":
                    continue  # the two others one after the other, at twice the time
                space = mixed(layer, steps=(1, 2), textures=("plain", "non-contiguous"))
            yield Property(
                f"modes/{layer}/{name}",
                f"{claim[:-1]} ({layer}).",
                "contract",
                explanation,
                check,
                Over(space),
                space.features() | {feature},
                dtype=torch.float64,
                share=share,
                # each takes a second to compile: rows in which all pairs of options take turns
                sources=() if name == "compiled" else ("small", "dense"),
                scattered=2.0 if name == "compiled" else 1.0,
                premise="the update is not zero",
                floor=0.1,
                controls=frozenset({"random"}) if name == "vmap" else frozenset(),
            )
