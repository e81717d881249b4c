"""Functions executed in other ways: compiled, mapped, without gradients, on a CUDA device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.properties.base import Explanation, Over, Property
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space

_ROWS = 3  # cases that are mapped over at once


def compiled_is_eager(caller: Caller, case: Case) -> Evidence:
    """The compiled function gives the same result. The backend traces the function and generates no code."""
    case = case.to(caller.dtype).to(torch.float64)
    eager, budget = caller.output(case), output_budget(case, caller.dtype)
    compiled = _in_mode(caller, case, "compiled")
    comparison = Comparison("compiled = eager", compiled, eager, 2 * budget)
    return judge(comparison, telling=moved(eager - case.x, budget))


def mapped_is_looped(caller: Caller, case: Case) -> Evidence:
    """Mapped over another axis of x, h and every weight, the function gives what a loop gives."""
    case = case.to(caller.dtype).to(torch.float64)
    cases = [_scaled(case, 1 - i / 4) for i in range(_ROWS)]
    looped = torch.stack([caller.output(one) for one in cases])  # (rows, B, J, D)
    budget = torch.stack([output_budget(one, caller.dtype) for one in cases])
    starts = torch.stack([one.x for one in cases])
    everything = Comparison("mapped = looped", _in_mode(caller, _stacked(cases), "mapped"), looped, 2 * budget)
    # one layer for many states, as an ensemble of inputs asks it
    cases = [replace(one, weights=case.weights) for one in cases]
    shared = replace(_stacked(cases), weights=case.weights)
    states = Comparison(
        "mapped over x and h alone = looped",
        _in_mode(caller, shared, "mapped", axes=(0, None)),
        torch.stack([caller.output(one) for one in cases]),
        2 * torch.stack([output_budget(one, caller.dtype) for one in cases]),
    )
    return judge(everything, states, telling=moved(looped - starts, budget))


def gradients_change_no_answer(caller: Caller, case: Case) -> Evidence:
    """The output is one, with gradients recorded for all arrays, for the states, for the weights, and without."""
    case = case.to(caller.dtype).to(torch.float64)
    budget = output_budget(case, caller.dtype)
    without = _in_mode(caller, case, "unrecorded")
    answers = {
        f"output with gradients recorded{of} = without": _in_mode(caller, case, "recorded", which=which)
        for of, which in _RECORDED.items()
    }
    comparisons = [Comparison(what, recorded, without, 2 * budget) for what, recorded in answers.items()]
    return judge(*comparisons, telling=moved(without - case.x, budget))


def cuda_is_cpu(caller: Caller, case: Case) -> Evidence:
    """The output on the CUDA device equals that on the CPU."""
    case = case.to(caller.dtype).to(torch.float64)
    budget = output_budget(case, caller.dtype)
    on_cpu, on_cuda = (replace(caller, device=device).output(case) for device in ("cpu", "cuda"))
    return judge(
        Comparison("on CUDA = on the CPU", on_cuda, on_cpu, 2 * budget), telling=moved(on_cpu - case.x, budget)
    )


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
             MAPPED, mapped_is_looped, 0.3),
            ("no-gradients", "gradients", "Recording gradients changes no output.",
             UNRECORDED, gradients_change_no_answer, 0.3),
            ("cuda", "cuda", "On a CUDA device the output is that on the CPU.", ON_CUDA, cuda_is_cpu, 0.5),
            ("compiled", "compile", "Compiling changes no output.", COMPILED, compiled_is_eager, 0.05),
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


def _in_mode(caller: Caller, case: Case, mode: str, **options: Any) -> Tensor:
    """The output of the function in a mode: what a method of `ArrayKind` makes of it, with these options."""
    return _answered_in_mode(caller, case, mode, options)


@experiment(lambda asked: asked.case.h.shape)
def _answered_in_mode(caller: Caller, case: Case, mode: str, options: dict[str, Any]) -> Tensor:
    """A block is a function of h alone."""
    x, h, weights = caller.arguments(case)
    states = (h,) if case.layer == "block" else (x, h)
    function = caller.functions[case.layer]

    def layer(states: Any, weights: Any) -> Any:
        return function(*states, weights, case.config)

    with caller.guarded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what compilers and vmap say of their own speed
        return as_tensor(getattr(caller.kind, mode)(layer, **options)(states, weights), case.h.shape)


_RECORDED = {"": (0, 1), " for x and h alone": (0,), " for the weights alone": (1,)}  # of states and weights


def _scaled(case: Case, factor: float) -> Case:
    """Another case of the same shape, scaled by a factor."""
    x = case.x * factor
    h = x if case.h is case.x else case.h * factor
    return replace(case, x=x, h=h, weights={name: w * factor for name, w in case.weights.items()})


def _stacked(cases: list[Case]) -> Case:
    first = cases[0]
    x, h = (torch.stack([getattr(case, name) for case in cases]) for name in ("x", "h"))
    weights = {name: torch.stack([case.weights[name] for case in cases]) for name in first.weights}
    return replace(first, x=x, h=x if first.h is first.x else h, weights=weights)
