"""Sequences of single steps with changing options: nothing may be left over from an earlier step.

A state machine in miniature. Each step is one call with a step size, a preconditioner, a temperature and a memory of
its own, from where the last call ended; the golden answer follows the implementation's own state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.golden import energies_at, golden, gradient
from cemverify.conformance.properties.base import MORE, Offer, Property
from cemverify.conformance.questions.aims import Questions
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space, cases

_STEP_SIZES = (1.0, 0.5, 0.125, 0.03125)
_TEMPERATURES = (1.0, 2.0, 0.5)
_SAFE = ("identity", "diagonal", "low-rank")  # positive definite, so that the energy falls


@dataclass(frozen=True)
class Move:
    """One step's options."""

    step_size: float  # eta
    kind: str  # of the preconditioner
    temperature: float  # tau
    turned: bool  # whether it reads the other memory


@dataclass(frozen=True, repr=False)
class Journey:
    """Steps from a case, whose weights serve every kind of preconditioner."""

    case: Case  # where it begins
    moves: tuple[Move, ...]  # one after the other

    def __repr__(self) -> str:
        return f"Journey({self.case}, {len(self.moves)} moves)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Hypothesis prints failing arguments, and would print every array of a dataclass."""
        printer.text(repr(self))

    def describe(self) -> dict[str, Any]:
        """The journey as JSON: its case, and the options of each move."""
        return {**self.case.describe(), "moves": [vars(move) for move in self.moves]}

    def step(self, x: Tensor, move: Move) -> Case:
        """The one-step case of a move from x."""
        config = PreconditionerConfig(move.kind, rank=self.case.layer_config.preconditioner.rank)  # type: ignore[arg-type]
        used = {"identity": (), "diagonal": ("P_d",), "low-rank": ("P_d", "P_U", "P_V")}[move.kind]
        weights = {n: w for n, w in self.case.weights.items() if not n.startswith("P_") or n in used}
        h = self.case.h.flip(1) if move.turned else self.case.h
        options: dict[str, Any] = {"step_size": move.step_size, "preconditioner": config}
        if self.case.layer == "attention":
            options["temperature"] = move.temperature
        return Case(self.case.config, x, h, weights).having(**options)


def every_step_is_its_own(caller: Caller, journey: Journey) -> Evidence:
    """Each call equals the golden step from the state that the previous call returned."""
    journey = replace(journey, case=journey.case.to(caller.dtype).to(torch.float64))
    x, got, expected, tolerances = journey.case.x, [], [], []
    comparisons = []
    for move in journey.moves:
        case = journey.step(x, move).to(caller.dtype).to(torch.float64)
        after = caller.output(case)
        step_end = golden(case)
        got.append(after - case.x)
        expected.append(step_end - case.x)
        tolerances.append(output_budget(case, caller.dtype))
        if case.layer == "attention":  # the energy is concave: it falls at every step size
            through = (gradient(case, after).abs() * tolerances[-1]).sum(-1)
            slack = energy_budget(case, case.x, caller.dtype) + energy_budget(case, after, caller.dtype) + through
            before = energies_at(case, case.x)
            comparisons.append(
                Comparison(
                    "energy after a step of a sequence <= before", energies_at(case, after), before, slack, "at most"
                )
            )
        x = after
    claim = "each step of a sequence = its golden step"
    steps = Comparison(claim, torch.stack(got), torch.stack(expected), torch.stack(tolerances))
    changes = len(set(journey.moves)) > 1
    return judge(steps, *comparisons, telling=changes and moved(steps.expected, steps.budget))


def properties() -> Iterator[Property]:
    """Sequences of single steps with changing options, for attention and for the MLP."""
    layers: tuple[Layer, ...] = ("attention", "mlp")
    for layer in layers:
        space = Space(layer, {}, PreconditionerConfig("low-rank"), step_sizes=(1.0,), textures=("plain",))
        yield Property(
            f"sequences/{layer}/changing-steps",
            "In a sequence of single steps with changing options, each step depends on its own arguments only.",
            "Eq. 3 (x <- x - eta P grad energy, memory fixed)",
            "x^(t+1) = F_1(x^(t); h, options_t), the options changing from step to step",
                "A cache that outlives its call, a mask or slopes of an earlier shape say, answers a later call "
                "with the numbers of an earlier one.",
            every_step_is_its_own,
            _Journeys(space),
            space.features() | {"start", "step-size", "preconditioner:diagonal", "preconditioner:low-rank"}
            | ({"temperature"} if layer == "attention" else set()),
            dtype=torch.float64,
            share=0.5,
            small=2 * MORE,
            premise="the options change between steps, and the updates are not zero",
            controls=frozenset({"identity", "zero", "constant", "random"}),
        )  # fmt: skip


@dataclass(frozen=True)
class _Journeys(Questions):
    """Small cases, and how the options change from one step to the next."""

    space: Space

    def search(self, offer: Offer) -> SearchStrategy[Journey]:
        moves = st.builds(
            Move, st.sampled_from(_STEP_SIZES), st.sampled_from(_SAFE), st.sampled_from(_TEMPERATURES), st.booleans()
        )
        return st.builds(Journey, cases(offer.within(self.space)), st.lists(moves, min_size=3, max_size=5).map(tuple))
