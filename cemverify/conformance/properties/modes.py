"""Functions executed in other ways: compiled, mapped, without gradients, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import answered_compiled
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.budgets import underflow
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.functions import Function
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import Check, Offer, Over, Property, case_property, statement
from cemverify.conformance.properties.explanations import COMPILED, MAPPED, ON_CUDA, UNRECORDED
from cemverify.conformance.properties.function_calls import cuda_is_cpu, gradients_change_no_answer, mapped_is_looped
from cemverify.conformance.properties.functions import FunctionCall
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.contexts import ANY_OPTIONS, NUMBERS, Context, InContext, with_large_d
from cemverify.conformance.questions.spaces import mixed, scattered_case


@dataclass(frozen=True)
class OfEveryDtype(Over):
    """Cases of a space, each for a dtype: consecutive seeds go through all dtypes."""

    def scattered(self, offer: Offer, seed: int) -> InContext:
        offered = [mode for mode, (name, _) in _MODES.items() if f"dtype:{name}" not in offer.absent]
        context = Context(offered[seed % len(offered)])
        return InContext(scattered_case(offer.within(self.space), seed), context)

    def smaller(self, offer: Offer, question: InContext) -> Iterator[InContext]:
        return (replace(question, case=case) for case in super().smaller(offer, question.case))


_DRAWS = 2  # draws of numbers of each kind
# kinds of numbers that need no other options, for which it would be compiled anew
_NUMBERS = {name: NUMBERS[name] for name in NUMBERS if name != ANY_OPTIONS} | {"entries of d up to 48": with_large_d}
_MODES: Mapping[str, tuple[str, torch.dtype]] = {
    "in float64": ("float64", torch.float64),
    "in float32": ("float32", torch.float32),
    "in bfloat16": ("bfloat16", torch.bfloat16),
}


def _compiled(layer: Layer, check: Check) -> Property:
    space = mixed(layer, steps=(1, 2), textures=("plain", "non-contiguous"))
    return Property(
        f"modes/{layer}/compiled",
        claim="Compiling changes no output, of numbers of any size, in any dtype (permuted attention: in inductor's "
        "form).",
        source="contract",
        **COMPILED,
        check=check,
        questions=OfEveryDtype(space),
        needs=space.features() | {"compile"},
        dtype=torch.float64,
        # each takes half a second for attention: one for each dtype, and for the MLP another with other options
        premise="the update is not zero",
    )


# not the block, which is the two one after the other, at twice the time
@statement(lambda check: [_compiled("attention", check), _compiled("mlp", check)])
def compiled_is_eager(caller: Caller, question: InContext) -> Evidence:
    """The compiled function returns what the function returns, for all kinds of numbers in one shape and options.

    The backend traces the function, in float64 rewrites permuted attention as inductor does, and generates no code.
    """
    where = question.context.mode
    caller = caller.at(_MODES[where][1])
    cases = [
        (numbers, dressed(question.case, np.random.default_rng(draw)).to(caller.dtype).to(torch.float64))
        for numbers, dressed in _NUMBERS.items()
        for draw in range(_DRAWS)
    ]
    compared, telling = [], False
    eager = [caller.output(case) for _, case in cases]  # first, because users call a layer before they compile it
    compiled = answered_compiled(caller, [case for _, case in cases])
    for (numbers, case), expected, got in zip(cases, eager, compiled, strict=True):
        tolerance = 2 * (relation_budget(case, expected, caller.dtype) + underflow(case))
        with suppress(Discard):  # the other numbers are better conditioned
            compared.append(Comparison(f"compiled = eager {where}, numbers {numbers}", got, expected, tolerance))
            telling |= moved(expected - case.x, tolerance)
    return replace(Evidence.of(*compared, telling=telling), case=question.case)


def properties() -> Iterator[Property]:
    """Each layer mapped, without gradients and on a CUDA device."""
    layers: tuple[Layer, ...] = ("attention", "mlp", "block")
    for layer in layers:
        for name, feature, claim, explanation, check in (
            ("vmap", "vmap", "Mapping over an additional axis gives what a loop gives.",
             MAPPED, mapped_is_looped),
            ("no-gradients", "gradients", "Recording gradients changes no output.",
             UNRECORDED, gradients_change_no_answer),
            ("cuda", "cuda", "On a CUDA device the output is that on the CPU.", ON_CUDA, cuda_is_cpu),
        ):  # fmt: skip
            yield case_property(
                f"modes/{layer}/{name}",
                claim=claim,
                source="contract",
                **explanation,
                check=partial(_of_call, check),
                space=mixed(layer, steps=(1, 2), apart=layer != "block"),
                needs={feature},
                dtype=torch.float64,
                premise="the update is not zero",
                controls=frozenset({"random"}) if name == "vmap" else frozenset(),
            )


def _of_call(check: Callable[[Sequence[FunctionCall]], Evidence], caller: Caller, case: Case) -> Evidence:
    """What a check of calls finds for one call of the layer of a case."""
    function = Function(case.layer, case.layer)
    return check([FunctionCall(function, caller, case.to(caller.dtype).to(torch.float64))])
