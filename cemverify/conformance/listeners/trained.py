"""A trained layer's numbers as a table, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cemverify.conformance.trained.checkpoint import Weights
from cemverify.conformance.trained.measuring import Share
from cemverify.conformance.trained.records import Findings
from cemverify.results.envelope import Table


def table(found: Findings) -> Table:
    """What was measured of a trained layer, one row for each of its steps."""
    B, J = found.trained.tokens.ids.shape
    rows = [
        (
            str(t),
            *_shares(step.slope),
            *_shares(step.whole),
            _number(step.change),
            _number(step.size),
            _number(step.asymmetry),
            _number(step.margin),
        )
        for t, step in enumerate(found.steps, start=1)
    ]
    columns = (
        "step", "slope < 0", "slope > 0", "energy falls", "energy rises", "mean change", "|update| / |x|",
        "asymmetry", "margin",
    )  # fmt: skip
    return Table(f"{found.trained.name} on {B} x {J} tokens", columns, rows)


def summary(found: Findings, weights: Weights) -> str:
    """Where the weights and states are from, and what does not depend on the step."""
    dtype = str(found.trained.dtype).removeprefix("torch.")
    stored = ", ".join(weights.dtypes)
    lines = [
        f"weights: {weights.tensors} tensors, {weights.numbers:,} numbers of {stored}, from {weights.path}",
        f"states: {found.trained.tokens.origin}",
        f"smallest eigenvalue of P: {_number(found.smallest_eigenvalue) or 'not known'}",
    ]
    if found.largest_logit is not None:
        lines.append(f"largest logit: {_number(found.largest_logit)}")
    if found.precision is not None:
        lines.append(f"margin in {dtype}: {_number(found.precision)}")
    return "\n".join(lines)


def as_json(found: Findings, weights: Weights) -> dict[str, Any]:
    """The numbers, None where something cannot be said."""
    return {
        "layer": found.trained.name,
        "weights": {
            "file": str(weights.path),
            "tensors": weights.tensors,
            "numbers": weights.numbers,
            "dtypes": list(weights.dtypes),
        },
        "tokens": {"shape": list(found.trained.tokens.ids.shape), "from": found.trained.tokens.origin},
        "dtype": str(found.trained.dtype).removeprefix("torch."),
        "smallest_eigenvalue": found.smallest_eigenvalue,
        "largest_logit": found.largest_logit,
        "margin_in_dtype": found.precision,
        "steps": [asdict(step) for step in found.steps],
    }


def _shares(share: Share | None) -> tuple[str, str]:
    return ("", "") if share is None else (_percent(share.falls), _percent(share.rises))


def _percent(share: float) -> str:
    # 100 % means all of them
    shown = f"{100 * share:.1f}"
    if share < 1 and shown == "100.0":
        shown = "99.9"
    if share > 0 and shown == "0.0":
        shown = "0.1"
    return f"{shown} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
