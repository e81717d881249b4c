"""Energies fall: by how much, and up to which step size.

The attention energy is concave in x, so "it fell" proves almost nothing. The properties assert the stronger
inequality, with the golden gradient: the energy falls by at least eta g.Pg.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import (
    energies_at,
    energy_of,
    golden_update,
    gradient,
    norm_into,
    preconditioner_matrix,
)
from cemverify.conformance.properties.base import states
from cemverify.conformance.properties.explanations import Explanation
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space

_ANY_STEP = tuple(10.0**k for k in range(-4, 7))
_ATTENTION = Explanation(
    formula="eps(x - eta P g) <= eps(x) - eta g.P g, for every eta > 0",
    why="The attention energy is concave, so a right step lowers it by at least this much. That the energy falls at "
    "all would prove little: it falls for almost any update.",
)
_MLP = Explanation(
    formula="xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max(P) / 2) g.P g,  eta < 2 / (L lambda_max(P))",
    why="The element-wise energy bends, so only steps up to a known size are safe. Where the bound fails, the update "
    "is not this energy's, or the step is longer than it says.",
)


_descends = partial(
    states,
    needs={"step-size"},
    dtype=torch.float64,
    premise="the energy must fall by more than roundoff",
    controls=frozenset({"identity", "random"}),
)
_KINDS = {kind: PreconditionerConfig(kind) for kind in ("identity", "diagonal", "low-rank")}


@_descends(
    "descent/attention/any-step-size-with-diagonal-and-bias",
    claim="The attention energy is concave with a diagonal in A_k and with a bias too: it falls for every step size.",
    source="docs/mathematics.md §4",
    **_ATTENTION,
    spaces={"": Space("attention", {"diagonal": "shared", "position": "alibi"}, step_sizes=_ANY_STEP)},
)
@_descends(
    "descent/attention/any-step-size-{}",
    claim="The attention energy falls by at least eta g.Pg for every step size from 1e-4 to 1e6.",
    source="docs/mathematics.md §4 (concavity)",
    **_ATTENTION,
    spaces={name: Space("attention", {}, kind, step_sizes=_ANY_STEP) for name, kind in _KINDS.items()},
)
def attention_falls_by_the_stronger_inequality(caller: Caller, case: Case) -> Evidence:
    """eps(x - eta P g) <= eps(x) - eta g.Pg, at any step size."""
    case = case.to(torch.float64)
    return _stronger(case, case.x, caller.output(case), output_budget(case, torch.float64))


@_descends(
    "descent/attention/along-steps",
    claim="Over T steps with the memory fixed, each step lowers the energy by at least eta g.Pg.",
    source="Eq. 3; docs/mathematics.md §4",
    **_ATTENTION,
    spaces={"": Space("attention", steps=(2, 3), step_sizes=(1.0, 0.25))},
    needs=(),
)
def attention_falls_along_steps(caller: Caller, case: Case) -> Evidence:
    """eps(x^(t+1)) <= eps(x^(t)) - eta g.Pg between consecutive states, t = 0 ... T - 1, g taken at x^(t)."""
    case = case.to(torch.float64)
    states = [case.x] + [caller.output(case.having(steps=t)) for t in range(1, case.attention.steps + 1)]
    evidence = []
    for t, (x, y) in enumerate(pairwise(states), 1):
        # y carries the roundoff of t steps, and x that of t - 1; the golden gradient is taken at this x
        evidence.append(_stronger(case, x, y, 2 * output_budget(case.having(steps=t), torch.float64)))
    return Evidence([c for e in evidence for c in e.comparisons], any(e.telling for e in evidence))


@_descends(
    "descent/mlp/safe-step-{}",
    claim="Up to the safe step size, the element-wise energy falls by at least eta (1 - eta L lambda_max / 2) g.Pg.",
    source="docs/mathematics.md §9",
    **_MLP,
    spaces={name: Space("mlp", {}, kind, step_sizes=(0.001, 0.1, 0.5, 0.9, 0.999)) for name, kind in _KINDS.items()},
)
def mlp_falls_up_to_the_safe_step(caller: Caller, case: Case) -> Evidence:
    """xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max / 2) g.Pg for eta < 2 / (L lambda_max).

    The case's step size is read as a share of the safe one.
    """
    case = case.to(torch.float64)
    energy = energy_of(case)
    curvature = energy.curvature(energy.remember(case.h))
    largest = float(torch.linalg.eigvalsh(preconditioner_matrix(case)).amax())
    safe = float(curvature.safe_step(largest).amin())
    if not 0 < safe < 1e12:
        safe = 1.0  # no curvature: every step is safe
    share = case.mlp.step_size
    case = case.having(step_size=share * safe)
    factor = 1 - case.mlp.step_size * curvature.upper * largest / 2  # (B, J), in [1 - share, 1]
    evidence = _stronger(case, case.x, caller.output(case), output_budget(case, torch.float64), factor)
    return replace(evidence, case=case)


@_descends(
    "descent/mlp/along-steps",
    claim="Over T steps of nine tenths of the safe size, the element-wise energy never rises.",
    source="docs/mathematics.md §9",
    **_MLP,
    spaces={"": Space("mlp", steps=(2, 3))},
    premise="the energy falls by more than roundoff",
    controls=frozenset({"random"}),
)
def mlp_falls_along_steps(caller: Caller, case: Case) -> Evidence:
    """The energy never rises from one of T safe steps to the next."""
    case = case.to(torch.float64)
    energy = energy_of(case)
    safe = float(energy.curvature(energy.remember(case.h)).safe_step().amin())
    case = case.having(step_size=0.9 * (safe if 0 < safe < 1e12 else 1.0))
    states = [case.x] + [caller.output(case.having(steps=t)) for t in range(1, case.mlp.steps + 1)]
    comparisons = []
    for t, (x, y) in enumerate(pairwise(states), 1):
        budget = 2 * output_budget(case.having(steps=t), torch.float64)
        before, after = energies_at(case, x), energies_at(case, y)
        tolerance = _energy_tolerance(case, x, y, budget)
        comparisons.append(Comparison(f"energy after step {t} <= before", after, before, tolerance, "at most"))
    fell = comparisons[0].expected - comparisons[0].got
    return replace(Evidence.of(*comparisons, telling=moved(fell, comparisons[0].budget)), case=case)


@_descends(
    "descent/attention/norm-{}-any-step-size",
    claim="With RMSNorm and a positive scalar gain inside the recursion, or a gain per channel folded into both "
    "paths, the energy at N(x) falls for every step size.",
    source="docs/mathematics.md §7c",
    formula="eps(N(x')) <= eps(N(x)), for every eta > 0",
    why="With a positive scalar gain, or with the gain folded into both paths, the energy at N(x) falls however "
    "long the step is. With one gain per channel, as printed, it can rise.",
    spaces={norm: Space("attention", {"norm": norm}, step_sizes=_ANY_STEP[:9]) for norm in ("scalar", "folded")},
    premise="N(x) moves down the gradient by more than roundoff",
    controls=frozenset({"random"}),
)
def attention_is_monotone_under_norm(caller: Caller, case: Case) -> Evidence:
    """RMSNorm inside: F.(N(x') - N(x)) >= 0, so eps(N(x')) <= eps(N(x)), for any step size.

    A scalar gain must be positive: with a negative one N(x) moves against x. Folded into both paths it enters twice,
    and its sign cancels.
    """
    case = case.to(torch.float64)
    gain = case.weights["gain"].abs()
    case = replace(case, weights={**case.weights, "gain": torch.where(gain == 0, 1.0, gain)})
    x, y = case.x, caller.output(case)
    before, after = norm_into(case, x), norm_into(case, y)
    g = gradient(case, before)
    slope = (g * (after - before)).sum(-1)  # -F.(N(x') - N(x)), at most 0
    jitter = output_budget(case, torch.float64)
    # N is Lipschitz: |dN| <= |G| |dy| / r(y)
    r = ((y**2).mean(-1, keepdim=True) + case.attention.norm_eps).sqrt()
    moved_by = case.weights["gain"].abs() * (jitter + jitter.norm(dim=-1, keepdim=True)) / r
    unit = torch.finfo(torch.float64).eps
    tolerance = (g.abs() * (moved_by + 16 * unit * (before.abs() + after.abs()))).sum(-1)
    unit_energy = energy_budget(case, before, torch.float64) + energy_budget(case, after, torch.float64)
    evidence = Evidence.of(
        Comparison(Compared.SLOPE("g.(N(x') - N(x)) <= 0"), slope, torch.zeros_like(slope), tolerance, "at most"),
        Comparison(
            "energy at N(x') <= energy at N(x)",
            energies_at(case, after),
            energies_at(case, before),
            unit_energy + tolerance,
            "at most",
        ),
        telling=moved(slope, tolerance),
    )
    return replace(evidence, case=case)


def _stronger(case: Case, x: Tensor, y: Tensor, y_budget: Tensor, factor: Tensor | float = 1.0) -> Evidence:
    """energy(y) <= energy(x) - factor eta g.Pg, up to the roundoff of y and of the two energies."""
    one_step = case.having(steps=1)
    step = golden_update(one_step, x)  # -eta P g
    g = gradient(case, x)
    drop = -(g * step).sum(-1)  # eta g.Pg
    bound = energies_at(case, x) - factor * drop
    of_drop = 32 * torch.finfo(torch.float64).eps * (g * step).abs().sum(-1)
    tolerance = _energy_tolerance(case, x, y, y_budget) + of_drop
    claim = "energy(x - eta P g) <= energy(x) - eta g.Pg"
    comparison = Comparison(claim, energies_at(case, y), bound, tolerance, "at most")
    return Evidence.of(comparison, telling=moved(factor * drop, tolerance))


def _energy_tolerance(case: Case, x: Tensor, y: Tensor, y_budget: Tensor) -> Tensor:
    """How much of energy(y) - energy(x) may be roundoff: that of y, through the gradient, and of both values."""
    through_y = (gradient(case, y).abs() * y_budget).sum(-1)
    if case.layer == "mlp":
        # the energy may curve upwards: |dy|^2 times half its curvature
        energy = energy_of(case)
        through_y = through_y + energy.curvature(energy.remember(case.h)).upper * (y_budget**2).sum(-1) / 2
    values = energy_budget(case, x, torch.float64) + energy_budget(case, y, torch.float64)
    return through_y + values
