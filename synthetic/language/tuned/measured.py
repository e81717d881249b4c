"""What the study measured, for the claims ledger and the result file: scale, seeds, recipe, ratios, verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from synthetic.language.paper.summary import MARGIN
from synthetic.language.tuned.designs import LAYERS, LLAMA, WIDER, parameters
from synthetic.language.tuned.halving import rate
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.language.tuned.study import State
from synthetic.language.tuned.summary import Summary
from synthetic.measured import measured_ratio


def payload(plan: SecondStepPlan, corpus: str, unit: str, found: State, summary: Summary) -> dict[str, Any]:
    """The figures of a study, and at what scale; see docs/result-files.md."""
    rows = {tuned.row.name: tuned for tuned in found.rows}
    compared = [pair for pair in summary.pairs if pair.seeds and not pair.diverged]
    return {
        "study": f"second-step-{plan.replaced}",
        "layers": LAYERS[plan.replaced],
        "size": plan.size,
        # of CEM; a control may be wider
        "parameters": max(parameters(row.design) for row in plan.rows if row.name not in (WIDER, LLAMA)),
        "seen": f"{plan.recipe.tokens / 1e6:.3g}M tokens",
        "replicates": f"{found.seeds} seed{'' if found.seeds == 1 else 's'}",
        "recipe": (
            f"{plan.recipe.steps:,} steps on {corpus}, embeddings N(0, 1), each row at its own learning rate, tuned"
            " on other seeds and another half of the validation part"
            f"{', through torch.compile' if plan.compiled else ''}"
        ),
        "figure": f"bits per {unit} at equal tokens",
        "margin": MARGIN,
        "ratios": [
            measured_ratio(
                pair.model,
                pair.base,
                [rows[pair.model].finals[s] for s in pair.seeds],
                [rows[pair.base].finals[s] for s in pair.seeds],
            )
            | {"verdict": pair.verdict}
            for pair in compared
        ],
        "best_rates": [
            {"model": tuned.row.name, "rate": tuned.rate, "at_edge": False}
            for tuned in found.rows
            if tuned.rate is not None
        ],
        "verdict": {"word": summary.verdict, "why": summary.why},
    }


def everything(found: State, summary: Summary) -> dict[str, Any]:
    """What the result file has beside the figures: every training, and every comparison in full."""
    return {
        "missing": len(found.todo),
        "rows": [
            {
                "name": tuned.row.name,
                "design": asdict(tuned.row.design),
                "rate": tuned.rate,
                "tuning": [
                    {"share": c.share, "rates": [rate(k) for k in c.bits], "bits": list(c.bits.values())}
                    for c in tuned.curves
                ],
                "judged": {str(seed): None if r is None else asdict(r) for seed, r in tuned.judged.items()},
            }
            for tuned in found.rows
        ],
        "pairs": [asdict(pair) for pair in summary.pairs],
        "beyond": [asdict(answer) for answer in summary.beyond],
    }
