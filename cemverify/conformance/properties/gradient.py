"""Updates equal energy gradients, and the field they form is conservative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.budgets import energy_budget, output_budget
from cemverify.conformance.calls import Caller
from cemverify.conformance.cases import Case, Layer
from cemverify.conformance.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.golden import energies_at, golden
from cemverify.conformance.properties.base import Over, Property
from cemverify.conformance.properties.jacobian import jacobian
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.spaces import Space


def update_is_gradient(caller: Caller, case: Case) -> Evidence:
    """x^(T) - x^(0) against float64 autograd of the scalar energy, step by step."""
    case = case.to(caller.dtype).to(torch.float64)
    expected, budget = golden(case), output_budget(case, caller.dtype)
    got = caller.output(case)
    what = "update = -eta P grad energy, T times"
    update = expected - case.x
    return judge(Comparison(what, got - case.x, update, budget), telling=moved(update, budget))


def field_is_conservative(caller: Caller, case: Case) -> Evidence:
    """The Jacobian of the update in x, memory fixed, is symmetric: P = I, one step.

    An output turned by a fixed matrix, as an untied output projection would turn it, must break that: the
    example tells only if it does.
    """
    case = case.to(torch.float64)
    J, error = jacobian(caller, case)
    got, expected, budget = J, J.mT, error + error.mT
    turned = untied(case.x.shape[1:].numel()) @ J
    telling = moved(turned - turned.mT, budget.max().expand_as(turned) * J.shape[-1])
    return judge(Comparison("the Jacobian equals its transpose", got, expected, budget), telling=telling)


def energy_is_stated(caller: Caller, case: Case) -> Evidence:
    """The implementation's energy against the reference's."""
    case = case.to(caller.dtype).to(torch.float64)
    expected, budget = energies_at(case, case.x), energy_budget(case, case.x, caller.dtype)
    comparison = Comparison("stated energy = energy", caller.energy(case), expected, budget)
    return judge(comparison, telling=moved(expected, budget))


def properties() -> Iterator[Property]:
    """The family."""
    for name, source, options, preconditioner in _attention_options():
        yield _equality("attention", name, source, Space("attention", options, preconditioner))
    for activation in ACTIVATIONS:
        space = Space("mlp", {"activation": activation})
        yield _equality("mlp", activation, "Eq. 7, 11; docs/mathematics.md §2", space)
    for name, source, options, preconditioner in _mlp_options():
        yield _equality("mlp", name, source, Space("mlp", options, preconditioner))
    layers: tuple[tuple[Layer, str], ...] = (
        ("attention", "Eq. 12, Algorithm 1"),
        ("mlp", "Eq. 13, Algorithm 1"),
        ("block", "Algorithm 1; docs/mathematics.md §7d"),
    )
    for layer, source in layers:
        space = mixed(layer, steps=(1, 2, 3, 6) if layer != "block" else (1, 2, 3), apart=layer != "block")
        yield Property(
            f"gradient/{layer}/any-options",
            f"T steps of the {layer} are reference steps down the energy's gradient, whatever options meet.",
            source,
            update_is_gradient,
            Over(space),
            space.features(),
            share=2.0,
        )
    for layer, source in (("attention", "Eq. 1; docs/mathematics.md §4"), ("mlp", "Eq. 7; docs/mathematics.md §2")):
        space = Space(layer, step_sizes=(1.0,), textures=("plain", "repeated-tokens", "non-contiguous"))
        yield Property(
            f"gradient/{layer}/conservative-field",
            "With the memory fixed, the update's Jacobian in x is symmetric, and untying the output breaks that.",
            source,
            field_is_conservative,
            Over(space),
            space.features() | {"start"},
            dtype=torch.float64,
            share=0.5,
        )
        for name, options in _energy_options(layer):
            space = Space(layer, options)
            yield Property(
                f"gradient/{layer}/stated-energy-{name}",
                f"The energy that the implementation states is the paper's ({name}).",
                source,
                energy_is_stated,
                Over(space),
                space.features() - {layer} | {f"{layer}_energy", "start"},
            )
        space = mixed(layer)
        yield Property(
            f"gradient/{layer}/stated-energy-any-options",
            "The energy that the implementation states is the paper's, whatever options meet.",
            source,
            energy_is_stated,
            Over(space),
            frozenset({f"{layer}_energy", "start"}),
        )


_PER_HEAD = "Eq. 12; docs/mathematics.md §5"
_INSIDE = "Algorithm 1; docs/mathematics.md §7c"
_IDENTITY = PreconditionerConfig()
_Option = tuple[str, str, dict[str, Any], PreconditionerConfig]


def _attention_options() -> Iterator[_Option]:
    yield "plain", "Eq. 1, 5; docs/mathematics.md §1", {}, _IDENTITY
    for diagonal in ("shared", "per-head"):
        source = "Sec. 2.3; docs/mathematics.md §14"
        yield f"diagonal-{diagonal}", source, {"diagonal": diagonal}, _IDENTITY
    yield "alibi", "App. A; docs/mathematics.md §8", {"position": "alibi"}, _IDENTITY
    yield "self-cross-bias", "Sec. 2.3; docs/mathematics.md §8", {"position": "self-cross"}, _IDENTITY
    yield "rotary", "docs/mathematics.md §13", {"position": "rotary"}, _IDENTITY
    both = {"position": "rotary", "diagonal": "shared"}
    yield "rotary-with-shared-diagonal", "docs/mathematics.md §13, §14", both, _IDENTITY
    for kind in ("diagonal", "low-rank-printed", "low-rank"):
        source = f"Eq. 12; docs/mathematics.md §6{'(c)' if kind == 'low-rank' else ''}"
        shared = PreconditionerConfig(kind)
        yield f"preconditioner-{kind}", source, {}, shared
        yield f"preconditioner-{kind}-per-head", _PER_HEAD, {}, replace(shared, per_head=True)
    for norm in ("scalar", "channel", "folded"):
        yield f"norm-{norm}", _INSIDE, {"norm": norm}, _IDENTITY
    full = {"diagonal": "shared", "position": "alibi", "norm": "channel"}
    yield "full-cem", "Algorithm 1, App. C.4", full, PreconditionerConfig("low-rank-printed", per_head=True)


def _mlp_options() -> Iterator[_Option]:
    for kind in ("diagonal", "low-rank-printed", "low-rank"):
        source = f"Eq. 13; docs/mathematics.md §6{'(c)' if kind == 'low-rank' else ''}"
        yield f"preconditioner-{kind}", source, {}, PreconditionerConfig(kind)
    for norm in ("scalar", "channel", "folded"):
        yield f"norm-{norm}", _INSIDE, {"norm": norm}, _IDENTITY
    yield "full-cem", "Algorithm 1, App. C.4", {"norm": "channel"}, PreconditionerConfig("low-rank-printed")


def _energy_options(layer: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if layer == "attention":
        yield "plain", {}
        yield "diagonal-shared", {"diagonal": "shared"}
        yield "alibi", {"position": "alibi"}
    else:
        yield "silu", {"activation": "silu"}
        yield "gelu", {"activation": "gelu"}


def _equality(layer: str, name: str, source: str, space: Space) -> Property:
    claim = f"The {layer} update ({name}) is -eta P times the gradient of the energy at x, memory fixed."
    return Property(f"gradient/{layer}/{name}", claim, source, update_is_gradient, Over(space), space.features())


def untied(n: int) -> Tensor:
    """A fixed matrix far from symmetric, which stands for an output projection of its own."""
    return torch.eye(n, dtype=torch.float64) + torch.diag(torch.arange(1.0, n, dtype=torch.float64), 1)
