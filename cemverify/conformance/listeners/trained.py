"""A trained layer's numbers, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cemverify.conformance.trained.checkpoint import Weights
from cemverify.conformance.trained.measuring import Share
from cemverify.conformance.trained.records import TrainedFindings
from cemverify.results.envelope import Table


def table(findings: TrainedFindings) -> Table:
    """What was measured in a trained layer, one row for each of its steps."""
    B, J = findings.trained.tokens.ids.shape
    numbers = ("change", "size", "asymmetry", "margin")
    rows = [
        (str(t), *_shares(step.slope), *_shares(step.whole), *(_number(getattr(step, name)) for name in numbers))
        for t, step in enumerate(findings.steps, start=1)
    ]
    columns = (
        "step", "slope < 0", "slope > 0", "energy falls", "energy rises", "mean change", "|update| / |x|",
        "asymmetry", "margin",
    )  # fmt: skip
    return Table(f"{findings.trained.name} on {B} x {J} tokens", columns, rows)


def summary(findings: TrainedFindings, weights: Weights) -> str:
    """Where the weights and states come from, and what does not depend on the step."""
    dtype = str(findings.trained.dtype).removeprefix("torch.")
    stored = ", ".join(weights.dtypes)
    lines = [
        f"weights: {weights.tensors} tensors, {weights.numbers:,} numbers of {stored}, from {weights.path}",
        f"states: {findings.trained.tokens.origin}",
        f"smallest eigenvalue of P: {_number(findings.smallest_eigenvalue) or 'not known'}",
    ]
    if findings.largest_logit is not None:
        lines.append(f"largest logit: {_number(findings.largest_logit)}")
    if findings.precision is not None:
        lines.append(f"margin in {dtype}: {_number(findings.precision)}")
    return "\n".join(lines)


def as_json(findings: TrainedFindings, weights: Weights) -> dict[str, Any]:
    """The numbers; None where there is none to give."""
    return {
        "layer": findings.trained.name,
        "weights": {
            "file": str(weights.path),
            "tensors": weights.tensors,
            "numbers": weights.numbers,
            "dtypes": list(weights.dtypes),
        },
        "tokens": {"shape": list(findings.trained.tokens.ids.shape), "from": findings.trained.tokens.origin},
        "dtype": str(findings.trained.dtype).removeprefix("torch."),
        "smallest_eigenvalue": findings.smallest_eigenvalue,
        "largest_logit": findings.largest_logit,
        "margin_in_dtype": findings.precision,
        "steps": [asdict(step) for step in findings.steps],
    }


def _shares(share: Share | None) -> tuple[str, str]:
    return ("", "") if share is None else (_percent(share.falls), _percent(share.rises))


def _percent(share: float) -> str:
    # 100 % means all, and 0 % none
    text = f"{100 * share:.1f}"
    if share < 1 and text == "100.0":
        text = "99.9"
    if share > 0 and text == "0.0":
        text = "0.1"
    return f"{text} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
