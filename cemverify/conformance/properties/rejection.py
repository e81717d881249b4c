"""Bad input raises a clear error from the implementation itself: a ValueError or TypeError with a message.

Returning an output is a violation, and so is any other error that a tensor library raises deep inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.implementations.faults import Raised, words
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties.base import Over, Property
from cemverify.conformance.questions.cases import Case, Layer, unchecked
from cemverify.conformance.questions.spaces import Space

Spoil = Callable[[Case], Case]


def rejects(spoil: Spoil) -> Callable[[Caller, Case], Evidence]:
    """A check that the invalid case is refused and the valid one is not."""

    def check(caller: Caller, case: Case) -> Evidence:
        caller.output(case)
        outcome = _outcome(caller, case.layer, spoil(case))
        refused = torch.tensor([float(outcome == "refused")])
        return judge(
            Comparison(f"bad input is refused (1 = yes): it {outcome}", refused, torch.ones(1), torch.zeros(1))
        )

    return check


@experiment
def _outcome(caller: Caller, name: str, case: Case) -> str:
    """What a call with bad input came to: "refused", or what it did instead."""
    try:
        caller.raw(name, case)
    except Raised as raised:
        error = raised.__cause__
        assert error is not None
        if not isinstance(error, ValueError | TypeError):
            return f"raised {words(error)}, which is not a ValueError or TypeError"
        return "refused" if error.args else f"raised {words(error)} without a message"
    return "accepted it"


def properties() -> Iterator[Property]:
    """The properties of the family."""
    both: tuple[Layer, ...] = ("attention", "mlp")
    for layer in both:
        weight = "W_K" if layer == "attention" else "W"
        spoiled: list[tuple[str, str, Spoil]] = [
            ("wrong-weight-shape", f"{weight} with one feature too many", _wider(weight)),
            ("mismatched-memory", "x and h with different numbers of tokens", _longer_memory),
            ("integer-input", "x with an integer dtype", _integer_x),
            ("nan-input", "NaN in x", _nan_x),
            ("zero-steps", "T = 0", _config(steps=0)),
            ("negative-step-size", "a negative step size", _config(step_size=-1.0)),
        ]
        if layer == "attention":
            spoiled += [
                ("negative-temperature", "a negative temperature", _config(temperature=-1.0)),
                ("zero-temperature", "a temperature of zero", _config(temperature=0.0)),
            ]
        for name, what, spoil in spoiled:
            space = Space(layer, textures=("plain",))
            needs = space.features() | {"validation"}
            if name == "zero-steps":
                needs |= {"steps"}
            if name == "negative-step-size":
                needs |= {"step-size"}
            if name.endswith("-temperature"):
                needs |= {"temperature"}
            if name == "mismatched-memory":
                needs |= {"start"}
            yield Property(
                f"rejection/{layer}/{name}",
                f"{what[0].upper()}{what[1:]} raises a ValueError or TypeError with a message.",
                "contract",
                rejects(spoil),
                Over(space),
                needs,
                share=0.15,
                premise="the valid input is answered",
                floor=1.0,
                controls=frozenset({"identity"}),
            )


def _wider(name: str) -> Spoil:
    def spoil(case: Case) -> Case:
        w = case.weights[name]
        return replace(case, weights={**case.weights, name: torch.cat((w, w[..., :1]), dim=-1)})

    return spoil


def _longer_memory(case: Case) -> Case:
    return replace(case, h=torch.cat((case.h, case.h[:, :1]), dim=1))


def _integer_x(case: Case) -> Case:
    return _with_x(case, case.x.to(torch.int64))


def _nan_x(case: Case) -> Case:
    x: Tensor = case.x.clone()
    x[0, -1, 0] = math.nan
    return _with_x(case, x)


def _with_x(case: Case, x: Tensor) -> Case:
    """Replaces x, and h too if the two are one array, because a layer may read either."""
    return replace(case, x=x, h=x if case.h is case.x else case.h)


def _config(**options: float) -> Spoil:
    return lambda case: replace(case, config=unchecked(case.config, **options))
