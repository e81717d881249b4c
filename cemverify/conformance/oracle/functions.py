"""The functions of an implementation: the question that each is asked, and its right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.questions.cases import Case, Layer


@dataclass(frozen=True)
class Function:
    """One function of an implementation."""

    name: str  # one of FUNCTIONS
    layer: Layer  # the layer of the cases that it is asked about

    @property
    def is_energy(self) -> bool:
        """Whether it returns one value per token."""
        return self.name.endswith("_energy")

    @property
    def starts_at_the_memory(self) -> bool:
        """Whether the function takes h alone, and starts there."""
        return self.name in ("block", "decode")

    def question(self, case: Case, dtype: torch.dtype) -> Case:
        """The case in float64, with numbers as the implementation sees them in its dtype."""
        case = replace(case, x=case.h) if self.starts_at_the_memory else case
        return case.to(dtype).to(torch.float64)

    def expected(self, case: Case) -> Tensor:
        """The right answer: (B, J, D), or (B, J) for an energy."""
        return energies_at(case, case.x) if self.is_energy else golden(case)

    def tolerance(self, case: Case, dtype: torch.dtype) -> Tensor:
        """How far roundoff may move the answer: of the answer's shape."""
        return energy_budget(case, case.x, dtype) if self.is_energy else output_budget(case, dtype)

    def start(self, case: Case) -> Tensor:
        """The answer without any update: the state, or zeros for an energy."""
        return torch.zeros(case.x.shape[:2], dtype=case.x.dtype) if self.is_energy else case.x

    def shape(self, case: Case) -> torch.Size:
        """The shape of the answer to a case: (B, J) for an energy, otherwise (B, J, D)."""
        return case.x.shape[:2] if self.is_energy else case.x.shape

    def moved(self, expected: Tensor, case: Case, tolerance: Tensor) -> bool:
        """Whether the right answer differs from that of a layer that does nothing."""
        return moved(expected - self.start(case), tolerance)

    def evidence(self, claim: str, answer: Tensor, case: Case, dtype: torch.dtype) -> Evidence:
        """An answer compared with the right one; telling if the right one differs from doing nothing."""
        expected, tolerance = self.expected(case), self.tolerance(case, dtype)
        return Evidence.of(
            Comparison(claim, answer, expected, tolerance), telling=self.moved(expected, case, tolerance)
        )


def function_of(name: str) -> Function:
    """The function of that name."""
    return Function(name, "block" if name == "block" else "mlp" if name.startswith("mlp") else "attention")


EVERY: Sequence[Function] = tuple(map(function_of, FUNCTIONS))
