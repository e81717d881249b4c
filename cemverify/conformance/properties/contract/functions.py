"""The functions of an implementation as the contract sees them: what each is asked, and what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.properties.base import Explanation, Over, Property
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.questions.cases import Case, Layer

Check = Callable[["Function", Caller, Case], Evidence]


@dataclass(frozen=True)
class Function:
    """One function of an implementation.

    Attributes:
        name: of FUNCTIONS. layer: of the cases that it is asked.
    """

    name: str
    layer: Layer

    @property
    def is_energy(self) -> bool:
        """Whether it returns one value per token."""
        return self.name.endswith("_energy")

    @property
    def starts_at_the_memory(self) -> bool:
        """Whether the function takes h alone, and starts there."""
        return self.name in ("block", "decode")

    def question(self, case: Case, dtype: torch.dtype) -> Case:
        """The case in float64, on the numbers that the implementation sees in its dtype."""
        case = replace(case, x=case.h) if self.starts_at_the_memory else case
        return case.to(dtype).to(torch.float64)

    def due(self, case: Case) -> Tensor:
        """The right answer: (B, J, D), or (B, J) of an energy."""
        return energies_at(case, case.x) if self.is_energy else golden(case)

    def room(self, case: Case, dtype: torch.dtype) -> Tensor:
        """How far roundoff may lead from it, of the same shape."""
        return energy_budget(case, case.x, dtype) if self.is_energy else output_budget(case, dtype)

    def shape(self, case: Case) -> torch.Size:
        """The shape of the answer to a case: (B, J) of an energy, else (B, J, D)."""
        return case.x.shape[:2] if self.is_energy else case.x.shape

    def moved(self, due: Tensor, case: Case, room: Tensor) -> bool:
        """Whether the right answer is another one than doing nothing gives."""
        return moved(due if self.is_energy else due - case.x, room)


EVERY: Sequence[Function] = tuple(
    Function(name, "block" if name == "block" else "mlp" if name.startswith("mlp") else "attention")
    for name in FUNCTIONS
)


def yes(what: str, *, holds: bool) -> Comparison:
    """A statement that is true or not, as a comparison."""
    one = torch.ones(1)
    return Comparison(f"{what} (1 = yes)", one * holds, one, torch.zeros(1))


def _dtype_of_its_turn(caller: Caller, case: Case) -> torch.dtype:
    """float64 for most questions, one of the others offered for some: many layers have branches for each.

    What is to be asked in another dtype throughout is asked in no other.
    """
    if caller.dtype != torch.float64:
        return caller.dtype
    others = [dtype for name, dtype in _LOWER.items() if f"dtype:{name}" not in caller.subject.not_offered]
    turn = case.turn(4)
    return others[turn] if turn < len(others) else torch.float64


_LOWER = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def contract_property(
    function: Function,
    name: str,
    claim: str,
    explanation: Explanation,
    check: Check,
    premise: str,
    *,
    rows: float = 1.0,
    textures: tuple[str, ...] = (),
    every_dtype: bool = False,
    **more: Any,
) -> Property:
    """A property of one function over mixed options.

    Most of its questions are scattered ones, which cover every pair of options; a few small ones make a violation
    readable.

    Args:
        name: the last part of its id. check: gets the function first. premise: what makes an example telling.
        rows: scattered questions as a multiple of the usual number, 28 where 60 examples are asked for.
        textures: of the arrays, if not all. every_dtype: whether some questions are asked in the lower dtypes.
    """
    space = mixed(function.layer, steps=(1, 2), apart=not function.starts_at_the_memory)
    if textures:
        space = replace(space, textures=textures)

    def checked(caller: Caller, case: Case) -> Evidence:
        if every_dtype:
            caller = caller.at(_dtype_of_its_turn(caller, case))
        return check(function, caller, function.question(case, caller.dtype))

    return Property(
        f"contract/{function.name.replace('_', '-')}/{name}",
        claim,
        "docs/contract.md",
        explanation,
        checked,
        Over(space),
        frozenset({function.name}) | more.pop("needs", frozenset()),
        share=0.1,
        scattered=14 * rows,
        premise=premise,
        **more,
    )
