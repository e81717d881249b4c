"""Small results of every kind, without computing anything: those of studies are stored, others are built here.

`python -m suites.reports.examples` makes the stored ones again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from cemverify.conformance.implementations.origin import Origin, Place
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners.files import as_json
from cemverify.power.findings import Alarms, Detection, Measured, Power, Smallest
from cemverify.power.plan import PowerPlan
from cemverify.results.envelope import Table, read, result
from cemverify.results.provenance import Maker
from synthetic.__main__ import main
from synthetic.studies.engine.readings import readings
from synthetic.studies.recursion.findings import measured

FAMILIES = ("gradient/attention", "descent/mlp", "structure/block")


def made(kind: str, payload: Mapping[str, Any], configuration: Mapping[str, Any]) -> Any:
    """A payload of this kind as a complete result, in the envelope of result files."""
    table = Table("stored", ["name", "figure"], [["a", "1.0"]])
    return result(kind, Maker.now(f"make {kind}", configuration, 0, "cpu"), [table], payload)


def a_property(id_: str, verdict: str = "holds", margin: float | None = 0.25, **more: Any) -> Record:
    """The record of one property."""
    about: dict[str, Any] = {"floor": 0.1, "margin": margin, "seconds": 0.5, **more}
    return Record(id_, f"The statement of {id_}.", "Eq. 1", Verdict(verdict), 60, 40, 1, **about)


def violated(id_: str, reason: str = "got 1, expected 0", **more: Any) -> Record:
    """The record of a property that is violated."""
    config = {"dim": 1, "heads": 1, "head_dim": 1, "temperature": 1.0}
    case = {"layer": "attention", "tokens": 1, "dim": 1, "config": config, "x": [[[0.0]]], "h": [[[1.0]]]}
    case |= {"weights": {"W_Q": [[[0.0]]], "W_K": [[[1.0]]]}}
    comparison = {"claim": "update = -eta P grad", "relation": "equal", "got": [[[1.0]]], "expected": [[[0.0]]]}
    found = {"case": case, "comparison": comparison}
    return a_property(id_, "violated", None, cause="update", reason=reason, counterexample=found, **more)


def a_check(name: str = "mylayer:mine", properties: Sequence[Record] = (), unasked: Sequence[str] = ()) -> Any:
    """A verdict on an implementation; by default all properties hold and the run is complete."""
    listed = properties or [a_property(f"{family}/case-{i}") for family in FAMILIES for i in range(4)]
    origin = Origin("d" * 64, {"attention": Place("mylayer.py", 6)})
    maker = Maker.now("make check", {"properties": [], "examples": 60, "dtype": "float64"}, 0, "cpu")
    return as_json(RunFinished(name, listed, 1.0, origin, unasked=unasked), maker)


FOLDER = Path(__file__).parent / "stored"
_CHAIN = ("--corpus", "hidden", "--symbols", "8", "--states", "4", "--length", "20000", "--corpora", "corpora")
_TINY = ("--dim", "8", "--heads", "2", "--layers", "1", "--batch", "4", "--context", "8", "--device", "cpu")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "recursion": (
        *("recursion", "--preset", "smoke", "--models", "cem", "--steps", "2", "4", "--seeds", "6"),
        *("--train-points", "256"),
    ),
    "language": ("language", "train", "--models", "llama-alibi", "cem-t1", "--steps", "6", *_CHAIN, *_TINY),
    "learning-rate": ("language", "study", "learning-rate", "--seeds", "2", "--steps", "4", *_CHAIN, *_TINY),
}


def _of_today(study: str) -> Any:
    """A stored result, as if made by this commit."""
    content = dict(read(FOLDER / f"{study}.json"))
    content["made_by"]["commit"] = made("check", {}, {})["made_by"]["commit"]
    return content


def a_recursion(factors: Sequence[float] = (1.0,) * 6) -> Any:
    """A study of CEM at T = 2 and T = 4 on six functions; the errors of T = 4 are multiplied by the factors."""
    content = _of_today("recursion")
    deep = next(row for row in content["rows"] if row["name"] == "CEM, T = 4")
    for run, factor in zip(deep["runs"], factors, strict=True):
        run["score"]["expected"] *= factor
    deep["rmse"]["mean"] = sum(run["score"]["expected"] for run in deep["runs"]) / len(deep["runs"])
    return content


def a_language(bits: Mapping[str, float | None] | None = None) -> Any:
    """A training of several models on the same text, with these names and bits; None means diverged."""
    bits = bits or {"Llama RoPE": 2.9, "CEM T=1": 3.0}
    content = _of_today("language")
    template = content["models"][0]
    content["models"] = []
    for name, value in bits.items():
        training = [*template["training_bits_per_token"][:-1], value or 4.0]
        model = {**template, "name": name, "training_bits_per_token": training, "validation_bits_per_byte": value}
        diverged = {"diverged_at": 3, "validation_standard_error": None}
        sound = {"diverged_at": None, "validation_standard_error": 0.04}
        content["models"].append(model | (diverged if value is None else sound))
    return content


def a_power(detected: int = 5) -> Any:
    """A result of `cemverify power` with two mutants."""
    about = {"family": "subtle", "fault": "a sign is wrong", "property": f"{FAMILIES[0]}/case-0", "cause": "update"}
    detections = tuple(Detection(examples, detected, 5, 0.3, 1.0, 3.0, 4.0) for examples in (15, 60))
    mutants: Any = [SimpleNamespace(id=f"mutant-{i}", **about) for i in range(2)]
    sizes = (("gradient", "float64", 1e-9), ("gradient", "float32", 1e-4), ("structure", "float64", None))
    smallest = [Smallest(family, dtype, epsilon, "p", "last feature") for family, dtype, epsilon in sizes]
    measured = [Measured(mutant, detections) for mutant in mutants]
    power = Power(PowerPlan(), measured, [Alarms("right", 5, 100, 0, 0)], smallest)
    return made("power", power.describe(), {})


def a_claims() -> Any:
    """A result of `cemverify claims` with one statement of the paper."""
    told = ["version", "section", "quote", "statement", "formula", "told", "condition", "finding", "advice", "study"]
    claim: dict[str, Any] = {**dict.fromkeys(told, "words"), "id": "1-gradient", "kind": "paper", "known": "sentence"}
    claim |= {"verdict": "holds", "arguments": []}
    return made("claims", {"counts": {"paper": {"holds": 1}}, "claims": [claim]}, {})


def a_readings(ratio: float = 0.9) -> Any:
    """The published ratio of T = 4 to T = 2, set to this value."""
    figures = measured(a_recursion())
    interval = [ratio - 0.02, ratio + 0.02]
    figures["ratios"][0] |= {"mean": ratio, "interval95": interval, "interval90": interval}
    return readings(Maker.now("make readings", {}, 0, "cpu"), "Errors of one depth over another's", figures)


def a_benchmark(slower: float = 1.0) -> Any:
    """Attention at one length, timed five times."""
    row = {"tokens": 512, "batch": 4, "dim": 64, "heads": 4, "attention": "T=1", "path": "tiles", "failure": None}
    row |= {"flop_ratio": 1.1, "flops": 1e5, "baseline_flops": 1e5, "peak_bytes": None, "baseline_peak_bytes": None}
    row |= {"seconds": [slower * s for s in (1.0, 1.01, 0.99, 1.02, 1.0)], "error_over_budget": 0.4}
    row |= {"baseline_seconds": [1.0, 1.0, 1.01, 1.0, 0.99]}
    return made("benchmarks", {"benchmarks": {"attention": {"rows": [row]}}, "load": 0.1}, {})


# a result of each kind
MAKERS: Mapping[str, Callable[[], Any]] = {
    "check": a_check,
    "recursion": a_recursion,
    "language": a_language,
    "study": lambda: _of_today("learning-rate"),  # its models have five rates each
    "power": a_power,
    "claims": a_claims,
    "readings": a_readings,
    "benchmarks": a_benchmark,
}

if __name__ == "__main__":
    for study, command in COMMANDS.items():
        with TemporaryDirectory() as scratch, chdir(scratch):
            store = ("--store", "store") if study != "language" else ()
            assert main([*command, "--workers", "0", *store, "--output", f"{study}.json"]) in (0, 1)
            shutil.copy(f"{study}.json", FOLDER)
