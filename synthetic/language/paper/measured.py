"""What a language study measured, for the claims ledger: ratios of bits per byte at equal tokens, and best rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cemverify.results.statistics import spread
from synthetic.language.paper.rates import Optimum, tuned
from synthetic.language.paper.statements import EXPECTATIONS
from synthetic.language.paper.studies import ALIBI, FULL, ROTARY, StudyPlan
from synthetic.language.paper.summary import MARGIN, Row
from synthetic.measured import measured_ratio


def payload(plan: StudyPlan, corpus: str, unit: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of a study, and at what scale; see docs/result-files.md."""
    named = {row.name: row for row in rows}
    optima = {name: tuned(named, name) for name in (FULL, ROTARY, ALIBI)} if plan.study == "learning-rate" else {}
    pairs = dict.fromkeys(_pairs(plan.study, rows))
    ratios = [
        measured_ratio(model, baseline, named[model].finals, named[baseline].finals)
        for model, baseline in pairs
        if model in named and baseline in named and not (named[model].diverged or named[baseline].diverged)
    ]
    for base in (ROTARY, ALIBI):
        found, based = optima.get(FULL), optima.get(base)
        if found and based:
            bits, reference = [o.bits for o in found], [o.bits for o in based]
            ratios.append(measured_ratio(f"{FULL}, tuned", f"{base}, tuned", bits, reference))
    tokens = plan.recipe.tokens / 1e6
    return {
        "study": f"language-{plan.study}",
        "size": plan.size,
        "parameters": max(row.records[0].parameters for row in rows),
        "seen": f"{tokens:.3g}M tokens",
        "replicates": f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}",
        "recipe": f"{plan.recipe.steps:,} steps on {corpus}, AdamW with the settings of Table 2",
        "figure": f"bits per {unit} at equal tokens",
        "margin": MARGIN,
        "ratios": ratios,
        "best_rates": [_best(name, found) for name, found in optima.items() if found],
    }


def _pairs(study: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Every comparison that a statement makes, and every row's with its baseline."""
    for _, expectations in EXPECTATIONS.get(study, ()):
        yield from ((e.name, e.base) for e in expectations)
    yield from ((row.name, row.variant.against) for row in rows if row.variant.against is not None)


def _best(name: str, optima: Sequence[Optimum]) -> dict[str, Any]:
    return {
        "model": name,
        "rate": spread([o.rate for o in optima]).mean,
        "at_edge": any(o.at_edge for o in optima),
    }
