"""The budgets of a few dozen fixed cases, stored in a file: `python -m suites.conformance.signed_budgets` updates it.

A budget that grew unnoticed would let faults pass. So a change of a budget changes this file too, where reviewers see
by how much. For every budget, the file has its sum and its largest component with 17 digits. Other processors round
matrix products differently, so they are compared to one part in a billion, far less than the effect of any constant
in the derivation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.oracle.perturbation import TRIALS, allowance, distances
from cemverify.conformance.questions.cases import Case, Config, dense_case

FILE = Path(__file__).with_name("budgets.json")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
Figures = dict[str, float | None]


def _attention(**options: object) -> AttentionConfig:
    return AttentionConfig(5, 3, head_dim=4, temperature=1.7, step_size=0.3, **options)  # type: ignore[arg-type]


def _mlp(activation: str = "silu", **options: object) -> MLPConfig:
    return MLPConfig(5, 4, activation=activation, step_size=0.3, **options)  # type: ignore[arg-type]


def _configs() -> Iterator[tuple[str, Config]]:
    yield "attention", _attention()
    yield "attention, one head", AttentionConfig(5, 1, temperature=1.7)
    yield "attention, T = 3", _attention(steps=3, norm="channel")
    for diagonal in ("shared", "per-head"):
        yield f"attention, diagonal {diagonal}", _attention(diagonal=diagonal)
    for position in ("alibi", "self-cross", "rotary"):
        yield f"attention, {position}", _attention(position=position)
    kinds = ("diagonal", "low-rank", "low-rank-printed")
    for norm in ("scalar", "channel", "folded"):
        yield f"attention, norm {norm}", _attention(norm=norm)
        yield f"MLP, norm {norm}", _mlp(norm=norm)
    for kind in kinds:
        shared, per_head = (PreconditionerConfig(kind, rank=2, per_head=own) for own in (False, True))  # type: ignore[arg-type]
        yield f"attention, {kind}", _attention(preconditioner=shared)
        yield f"attention, {kind} per head", _attention(preconditioner=per_head)
        yield f"MLP, {kind}", _mlp(preconditioner=shared)
        for position in ("alibi", "self-cross"):
            options = {"diagonal": "per-head", "position": position, "norm": "folded", "preconditioner": per_head}
            yield f"attention, {kind} per head, {position}, with a norm and diagonals", _attention(**options)
    for activation in ACTIVATIONS:
        yield f"MLP, {activation}", _mlp(activation)
    yield "MLP, T = 3", _mlp(steps=3, norm="scalar")
    yield "block", BlockConfig(_attention(norm="channel"), _mlp(norm="channel"))


def cases() -> Iterator[tuple[str, Case]]:
    """The fixed cases, by name."""
    for name, config in _configs():
        case = dense_case(config, 1, 4, seed=13)
        yield name, replace(case, x=case.h) if name == "block" else case  # a block has one state argument
    row = dense_case(_attention(position="rotary"), 1, 4, seed=13)
    yield "attention, rotary, the last token of four", replace(row, x=row.x[:, -1:])
    far = dense_case(_mlp("softplus", preconditioner=PreconditionerConfig("diagonal")), 1, 4, seed=13)
    weights = {**far.weights, "V": 40 * far.weights["V"], "P_d": 40 * far.weights["P_d"]}
    yield "MLP, softplus far from zero", Case(far.config, far.x, far.h, weights)


def figures() -> dict[str, Figures]:
    """Every budget in the file, computed anew: by case and dtype, its sum and largest component; null: unbounded."""
    budgets: dict[str, Figures] = {}
    for name, case in cases():
        for dtype_name, dtype in DTYPES.items():
            rounded = case.to(dtype).to(torch.float64)
            budgets[f"output, {name}, {dtype_name}"] = _figures(output_budget(rounded, dtype))
            # norms, preconditioners and steps are not part of an energy
            others = ("norm", "T =", "low-rank", "diagonal per head", "MLP, diagonal")
            if case.layer != "block" and not any(word in name for word in others):
                budgets[f"energy, {name}, {dtype_name}"] = _figures(energy_budget(rounded, rounded.x, dtype))
    for terms in (1, 7):
        for dtype_name in ("float64", "float32"):
            budgets[f"measured, {terms} terms, {dtype_name}"] = _measured(terms, DTYPES[dtype_name])
    return budgets


def _measured(terms: int, dtype: torch.dtype) -> Figures:
    case = dense_case(_attention(), 1, 4, seed=13)
    exact = {"output": golden(case)}
    trials = [distances(lambda: {"output": golden(case)}, exact, trial) for trial in range(TRIALS)]
    (bound,) = allowance(exact, trials, dict.fromkeys(exact, terms), torch.finfo(dtype).eps / 2).values()
    return _figures(bound)


def _figures(budget: Tensor) -> Figures:
    if not bool(budget.isfinite().all()):
        return {"sum": None, "largest": None}
    return {"sum": float(budget.sum()), "largest": float(budget.max())}


def on_file() -> Mapping[str, Figures]:
    """The budgets in budgets.json, by the name of the case."""
    signed: Mapping[str, Figures] = json.loads(FILE.read_text())
    return signed


def main() -> None:
    """Writes the file, and says how its budgets changed."""
    before, after = on_file() if FILE.exists() else {}, figures()
    FILE.write_text(json.dumps(after, indent=1) + "\n")
    changed = [name for name in after if name in before and before[name] != after[name]]
    for name in changed:
        was, is_ = before[name]["sum"], after[name]["sum"]
        print(f"{name}: {is_ / was:.6g} times what it was" if was and is_ else f"{name}: {is_}, was {was}")
    print(f"{len(after)} budgets signed, {len(changed)} of them changed, {len(after.keys() - before.keys())} new")


if __name__ == "__main__":
    main()
