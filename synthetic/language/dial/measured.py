"""What the study measured, for the claims ledger and the result file: see docs/result-files.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from synthetic.language.dial.plan import TEST_DEPTHS, DialPlan, own
from synthetic.language.dial.summary import DialSummary
from synthetic.language.paper.summary import MARGIN
from synthetic.language.tuned.designs import LAYERS, parameters
from synthetic.language.tuned.study import State
from synthetic.measured import measured_ratio


def payload(
    plan: DialPlan, corpus: str, unit: str, floor: float | None, found: State, summary: DialSummary
) -> dict[str, Any]:
    """The figures of a study, and at what scale."""
    ratios = [
        measured_ratio(f"{a.model}, with {a.steps}", own(a.steps), a.values, a.references)
        | {"verdict": a.comparison.conclusion}
        for a in summary.against
    ]
    return {
        "study": f"dial-{plan.replaced}",
        "layers": LAYERS[plan.replaced],
        "size": plan.size,
        "parameters": max(parameters(row.design) for row in plan.rows),
        "seen": f"{plan.recipe.tokens / 1e6:.3g}M tokens",
        "replicates": f"{found.seeds} seed{'' if found.seeds == 1 else 's'}",
        "recipe": (
            f"{plan.recipe.steps:,} steps on {corpus}, embeddings N(0, 1), each row at its own learning rate"
            f"{', through torch.compile' if plan.compiled else ''}"
        ),
        "figure": f"bits per {unit}",
        "margin": MARGIN,
        "ratios": ratios,
        "best_rates": [
            {"model": tuned.row.name, "rate": tuned.rate, "at_edge": False}
            for tuned in found.rows
            if tuned.rate is not None
        ],
        "source_bits": floor,
        "at_depths": [
            {"model": name, "steps": list(TEST_DEPTHS), "bits": list(bits)} for name, bits in summary.bits.items()
        ],
        "at_stops": [
            {"model": name, "stops": [asdict(stop) for stop in stops]} for name, stops in summary.stopped.items()
        ],
        "falls_up_to": [{"model": name, "steps": reached} for name, reached in summary.falls.items()],
    }
