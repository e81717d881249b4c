"""The bench for experiments: it calls the implementation, and knows the right answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.judging.verdicts import TWO_ANSWERS
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.golden import golden, norm_into
from cemverify.conformance.questions.cases import Case, Config, dense_case, weight_shapes

_SEEDS = (1, 2, 3)
_EXPERIMENTS = 400  # calls at most


@dataclass(frozen=True)
class WrongPart:
    """The part that is wrong."""

    name: str  # as "diagonal, value path"
    because: str  # the sub-identity that shows it, as a sentence


class Undecided(Exception):
    """No conclusion: too many calls, or two identical calls gave different outputs."""


@dataclass
class Bench:
    """Calls the implementation, and knows the right answers."""

    caller: Caller
    calls: int = 0  # how many calls were made

    def offers(self, *features: str) -> bool:
        """Whether the implementation has all of these features."""
        absent = self.caller.subject.not_offered.keys()
        return not set(features) & absent and not ("start" in features and self.decodes_only)

    @property
    def decodes_only(self) -> bool:
        """Whether it decodes and has no attention: then decoding stands in for attention with x = h."""
        return {"attention"} <= self.caller.subject.not_offered.keys() and "decode" in self.caller.functions

    def got(self, case: Case) -> Tensor | None:
        """The layer's update, x^(T) - x^(0), (B, J, D); None if there was no answer.

        Raises:
            Undecided: too many calls were made.
        """
        self.calls += 1
        if self.calls > _EXPERIMENTS:
            raise Undecided
        try:
            return self.answer(case) - case.x
        except Fault:
            return None

    def answer(self, case: Case) -> Tensor:
        """The layer's output, (B, J, D)."""
        alone = case.layer == "attention" and self.decodes_only
        return self.caller.decoded(case) if alone else self.caller.output(case)

    def undefined(self, case: Case) -> Tensor | None:
        """The layer's update, in which values are NaN or infinite: (B, J, D); None if there is none."""
        try:
            return with_undefined(self.caller, case) - case.x
        except Fault:
            return None

    def wrong(self, case: Case) -> bool:
        """Whether its output is wrong. A case, or tokens, too ill-conditioned to judge count as right."""
        case = self.rounded(case)
        budget = output_budget(case, self.caller.dtype)
        if not bool(budget.isfinite().any()):
            return False
        got = self.got(case)
        return got is None or bool(((got - expected_update(case)).abs() > budget).any())

    def explained(self, case: Case, other: Case) -> bool:
        """Whether its output for a case would be right for another case."""
        return equal(self.got(case), expected_update(other), self.tolerance(case) + self.tolerance(other))

    def tolerance(self, case: Case) -> Tensor:
        """How far roundoff may move the output, (B, J, D)."""
        return output_budget(self.rounded(case), self.caller.dtype)

    def rounded(self, case: Case) -> Case:
        """The case in float64, on the numbers that the implementation sees in its dtype."""
        return case.to(self.caller.dtype).to(torch.float64)

    def dense(self, config: Config, tokens: int = 4, batch: int = 1) -> Iterator[Case]:
        """Well-conditioned cases with that configuration."""
        for seed in _SEEDS:
            case = dense_case(config, batch, tokens, seed)
            yield self.rounded(case if self.offers("start") else replace(case, x=case.h))


@dataclass
class Half(Bench):
    """Calls a block for one of its layers alone: the other has zero weights, and takes no step."""

    config: BlockConfig = field(kw_only=True)

    def offers(self, *features: str) -> bool:
        return "start" not in features and super().offers(*features)

    @property
    def decodes_only(self) -> bool:
        return False

    def answer(self, case: Case) -> Tensor:
        D, own = case.layer_config.dim, self.config.mlp
        assert isinstance(own, MLPConfig)
        attention = case.attention if case.layer == "attention" else AttentionConfig(D, 1)
        mlp = case.mlp if case.layer == "mlp" else MLPConfig(D, 1, activation=own.activation)
        block = BlockConfig(attention, mlp)
        weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in weight_shapes(block).items()}
        weights |= {f"{case.layer}.{name}": W for name, W in case.weights.items()}
        return super().answer(Case(block, case.x, case.x, weights))

    def undefined(self, case: Case) -> Tensor | None:  # noqa: ARG002
        return None

    def rounded(self, case: Case) -> Case:
        case = super().rounded(case)
        return replace(case, h=norm_into(case, case.x))


@experiment(lambda arguments: arguments.case.x.shape, finite=False)
def with_undefined(caller: Caller, case: Case) -> Tensor:
    """What the layer returns, even if it is NaN: (B, J, D)."""
    with caller.guarded():
        return as_tensor(caller.bound(case.layer, case)(), case.x.shape)


def expected_update(case: Case) -> Tensor:
    """The right update, x^(T) - x^(0), (B, J, D)."""
    return golden(case) - case.x


def equal(got: Tensor | None, expected: Tensor, tolerance: Tensor) -> bool:
    """Whether an output, if there is one, is within twice the budget of the expected one."""
    return got is not None and bool(((got - expected).abs() <= 2 * tolerance).all())


def two_answers(before: Tensor, now: Tensor, tolerance: Tensor) -> WrongPart | None:
    """Whether the same arrays get a different answer than before, by more than the order of sums explains."""
    moved = (now - before).abs()
    if not bool((moved > tolerance).any()):
        return None
    because = (
        f"the answer to the same arrays changes from call to call, by up to {float(moved.max()):.2g}. "
        "If dropout or another random layer is in training mode, call eval() on the module first; in eval mode, no "
        "call may change a buffer, as a power iteration does, and no parameter in free= may be random"
    )
    return WrongPart(TWO_ANSWERS, because)


# --- cases made from a case -------------------------------------------------------------------------


def with_weights(case: Case, weights: Mapping[str, Tensor]) -> Case:
    """The case with some of its weights replaced."""
    return replace(case, weights={**case.weights, **weights})


def only_rows(case: Case, rows: list[int]) -> Case:
    """The case with some of its batch rows."""
    return replace(case, x=case.x[rows], h=case.h[rows])


def each_token(case: Case) -> Iterator[Case]:
    """Each of its tokens alone, so that its attention weight is 1."""
    for j in range(case.x.shape[1]):
        yield replace(case, x=case.x[:, j : j + 1], h=case.h[:, j : j + 1])


def at_zero(case: Case) -> Case:
    """The case at x = 0, where every score is 0."""
    return replace(case, x=torch.zeros_like(case.x))


def with_logits(case: Case, size: float) -> Case:
    """The case with states so large that the largest score, without bias and diagonal, has that size."""
    factor = size / max(largest_logit(case), 1e-300)
    if case.x is case.h or torch.equal(case.x, case.h):
        both = case.h * math.sqrt(factor)
        return replace(case, x=both, h=both)
    return replace(case, x=case.x * factor)


def largest_logit(case: Case) -> float:
    """The size of the largest score of the first step, without bias and diagonal."""
    queries, keys = (torch.einsum("krd,bjd->bkjr", case.weights[W], s) for W, s in (("W_Q", case.x), ("W_K", case.h)))
    return float((queries @ keys.mT).abs().max()) / case.attention.tau


def with_one_memory(case: Case) -> Case:
    """The case with a memory whose tokens all equal the first."""
    h = case.h[:, :1].expand_as(case.h).contiguous()
    return replace(case, h=h, x=h if torch.equal(case.x, case.h) else case.x)
