"""Small results of every kind, made without computing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker

FAMILIES = ("gradient/attention", "descent/mlp", "structure/block")


def made(
    kind: str, payload: Mapping[str, Any], configuration: Mapping[str, Any], tables: Sequence[Table] = ()
) -> Any:
    """A result in its envelope."""
    table = Table("stored", ["name", "figure"], [["a", "1.0"]])
    return result(kind, Maker.now(f"make {kind}", configuration, 0, "cpu"), tables or [table], payload)


def a_property(id_: str, verdict: str = "holds", margin: float | None = 0.25, **more: Any) -> dict[str, Any]:
    """The record of one property."""
    return {
        "id": id_,
        "verdict": verdict,
        "claim": f"The statement of {id_}.",
        "source": "Eq. 1",
        "examples": 60,
        "telling": 40,
        "share_telling": 0.67,
        "floor": 0.1,
        "discarded": 1,
        "margin": margin,
        "seconds": 0.5,
        **more,
    }


def violated(id_: str, reason: str = "got 1, expected 0") -> dict[str, Any]:
    """The record of a property that is violated."""
    case = {
        "layer": "attention",
        "tokens": 1,
        "dim": 1,
        "config": {"dim": 1, "heads": 1, "head_dim": 1, "temperature": 1.0},
        "x": [[[0.0]]],
        "h": [[[1.0]]],
        "weights": {"W_Q": [[[0.0]]], "W_K": [[[1.0]]]},
    }
    comparison = {"claim": "update = -eta P grad", "relation": "equal", "got": [[[1.0]]], "expected": [[[0.0]]]}
    more = {"cause": "update", "reason": reason, "counterexample": {"case": case, "comparison": comparison}}
    return a_property(id_, "violated", None, **more)


def a_check(name: str = "mylayer:mine", properties: Sequence[Mapping[str, Any]] = (), each: int = 4) -> Any:
    """A verdict on an implementation; all properties hold unless others are given."""
    listed = list(properties) or [a_property(f"{family}/case-{i}") for family in FAMILIES for i in range(each)]
    verdicts = [entry["verdict"] for entry in listed]
    counts = {
        "applicable": len(listed),
        "run": len(listed) - verdicts.count("not offered"),
        "known": 0,
        "not_enforced": 0,
        **{v.replace(" ", "_"): verdicts.count(v) for v in
           ("holds", "violated", "inconclusive", "not offered", "suite error")},
    }  # fmt: skip
    headline = next((entry["id"] for entry in listed if entry["verdict"] == "violated"), None)
    configuration = {"properties": [], "examples": 60, "dtype": "float64"}
    payload = {"implementation": name, "counts": counts, "headline": headline, "properties": listed}
    payload |= {"catalogue": {"version": "2026.11", "pinned": None}}
    payload |= {"source": {"digest": "d" * 64, "functions": {"attention": {"file": "mylayer.py", "line": 6}}}}
    return made("check", payload, configuration)


def a_recursion(errors: Mapping[int, Sequence[float]] | None = None) -> Any:
    """A study of one prior: CEM at several depths, a baseline and the floor."""
    errors = errors or {1: (0.2, 0.21, 0.19), 2: (0.15, 0.16, 0.14), 4: (0.14, 0.15, 0.135)}
    n = len(next(iter(errors.values())))
    rows = [_reference("ridge", 0.4, n)]
    for depth, values in errors.items():
        ratio = {"mean": 0.8, "low": 0.7, "high": 0.9} if depth > 1 else None
        rows.append(
            {
                **_reference(f"CEM, T = {depth}", sum(values) / n, n),
                "contender": {"family": "CEM", "spec": {"steps": depth}, "draw": 0},
                "learning_rate": 0.01,
                "cost": {
                    "parameters": 100,
                    "inference": {"matmul": 200 * depth, "elementwise": 1},
                    "training": {"matmul": 600 * depth, "elementwise": 3},
                },
                "depth": depth,
                "runs": [
                    {
                        "score": {"expected": v, "observed": v, "excess": v / 2},
                        "at_depth": [v * abs(i - depth) + v for i in range(8)],
                        "energies": [0.3 - i for i in range(depth + 1)],
                        "norms": [1.0] * (depth + 1),
                        "falls": [1.0] * depth,
                        "diverged_at": None,
                    }
                    for v in values
                ],
                "deeper": {"ratio": ratio, "n": n, "holm": None, "conclusion": "better"} if ratio else None,
            }
        )
    rows.append(_reference("exact GP (floor)", 0.06, n))
    payload = {"tasks": [], "rows": rows, "statements": [], "notes": []}
    return made("recursion", payload, {"seed": 0, "noise": 0.1, "train_points": 64, "recipe": {"steps": 10}})


def _reference(name: str, error: float, n: int) -> dict[str, Any]:
    spread = {"mean": error, "std": 0.01, "n": n}
    return {
        "prior": "rbf(lengthscale=2)",
        "name": name,
        "contender": None,
        "learning_rate": None,
        "at_edge": False,
        "cost": None,
        "runs": [],
        "diverged": 0,
        "rmse": spread,
        "observed": spread,
        "excess": spread,
        "gap_closed": spread,
        "deeper": None,
        "same_depth": None,
        "depth": None,
    }


def a_language(bits: Mapping[str, float | None] | None = None) -> Any:
    """A training of several models on the same text."""
    bits = bits or {"Llama RoPE": 2.9, "CEM T=1": 3.0}
    models = [
        {
            "name": name,
            "parameters": 1000 + 10 * i,
            "flops_per_token": {"forward": 1e6 * (i + 1), "training": 3e6 * (i + 1)},
            "tokens_per_second": 1000.0,
            "utilisation": 0.3,
            "peak_bytes": 10**6,
            "training_bits_per_token": [8.0, 5.0, 4.0, value or 4.0],
            "diverged_at": 3 if value is None else None,
            "diverged_where": None,
            "validation_bits_per_byte": value,
            "validation_standard_error": None if value is None else 0.04,
            "layers": [],
        }
        for i, (name, value) in enumerate(bits.items())
    ]
    corpus = {
        "source": "text",
        "digest": "d",
        "unit": "byte",
        "bits_per_byte": {"uniform": 8.0, "bigram": 3.3},
        "floor_bits_per_byte": None,
    }
    verdict = {"pass": True, "reasons": [], "band": 1.15}
    return made("language", {"corpus": corpus, "models": models, "verdict": verdict}, {"recipe": {"steps": 4}})


def a_power(detected: int = 5, budget: int = 60) -> Any:
    """The detection of two faults."""
    mutants = [
        {
            "id": f"mutant-{i}",
            "family": "subtle",
            "fault": "a sign is wrong",
            "property": "gradient/attention/case-0",
            "cause": "update",
            "killed": detected == 5,
            "detection": detected / 5,
            "budgets": [
                {
                    "examples": examples,
                    "detected": detected,
                    "seeds": 5,
                    "probability": detected / 5,
                    "low": 0.3,
                    "high": 1.0,
                    "median": 3.0,
                    "mean": 4.0,
                }
                for examples in (budget // 4, budget)
            ],
        }
        for i in range(2)
    ]
    payload = {
        "killed": 2 if detected == 5 else 0,
        "total": 2,
        "false_alarms": 0,
        "false_alarm_runs": 100,
        "false_alarm_bound": 0.03,
        "not_applicable": [],
        "families": [{"family": "subtle", "killed": 2, "total": 2}],
        "mutants": mutants,
        "correct_implementations": [],
        "smallest": [
            {"family": "gradient", "dtype": "float64", "epsilon": 1e-9, "property": "p", "place": "last feature"},
            {"family": "gradient", "dtype": "float32", "epsilon": 1e-4, "property": "p", "place": "last feature"},
            {"family": "structure", "dtype": "float64", "epsilon": None, "property": "p", "place": "last feature"},
        ],
    }
    return made("power", payload, {})


def a_claims(verdict: str = "holds") -> Any:
    """One statement of the paper."""
    claim = {
        **dict.fromkeys(("version", "section", "quote", "statement", "formula", "told", "condition"), "words"),
        **dict.fromkeys(("finding", "advice", "study"), "words"),
        "id": "1-gradient",
        "kind": "paper",
        "known": "sentence",
        "verdict": verdict,
        "arguments": [],
    }
    return made("claims", {"counts": {"paper": {verdict: 1}}, "claims": [claim]}, {})


def a_readings(ratio: float = 0.9) -> Any:
    """One published ratio."""
    interval = [ratio - 0.02, ratio + 0.02]
    read = {"model": "T = 2", "baseline": "T = 1", "on": "rbf", "mean": ratio}
    ratios = [{**read, "interval95": interval, "interval90": interval}]
    payload = {
        **dict.fromkeys(("study", "size", "seen", "recipe", "figure", "replicates"), "recursion"),
        "parameters": 10,
        "margin": 0.02,
        "ratios": ratios,
        "best_rates": [],
    }
    return made("readings", payload, {})


def a_benchmark(slower: float = 1.0) -> Any:
    """Attention at one length, timed five times."""
    row = {
        "tokens": 512,
        "batch": 4,
        "dim": 64,
        "heads": 4,
        "attention": "T=1",
        "path": "tiles",
        "seconds": [slower * s for s in (1.0, 1.01, 0.99, 1.02, 1.0)],
        "baseline_seconds": [1.0, 1.0, 1.01, 1.0, 0.99],
        "flop_ratio": 1.1,
        "flops": 1e5,
        "baseline_flops": 1e5,
        "peak_bytes": None,
        "baseline_peak_bytes": None,
        "failure": None,
        "error_over_budget": 0.4,
    }
    return made("benchmarks", {"benchmarks": {"attention": {"rows": [row]}}, "load": 0.1}, {})
