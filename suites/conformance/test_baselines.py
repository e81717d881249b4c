"""A run beside its baseline: what got worse is named, what is only noise is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify._version import VERSION
from cemverify.conformance.gate.baselines import (
    FEWEST,
    FLOOR,
    GROWTH,
    MEDIAN_GROWTH,
    Baseline,
    BaselineComparison,
    Change,
    Conditions,
    Difference,
    check_comparable,
    compare,
    read_baseline,
)
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners.files import as_json
from cemverify.results.envelope import ResultError, result, write
from cemverify.results.provenance import Maker

CONDITIONS = Conditions("m:mine", "float64", "cpu", 60, 0)


def held(id_: str, margin: float = 0.1) -> Record:
    return Record(id_, "", "", Verdict.HOLDS, margin=margin)


def violated(id_: str, reason: str | None = None) -> Record:
    return Record(id_, "", "", Verdict.VIOLATED, margin=7.0, cause="c", reason="r", known=reason)


def stored(path: Path, records: Sequence[Record], properties: Sequence[str] = ()) -> Baseline:
    """The records written as `cemverify check --json` does, and read again."""
    configuration = {"properties": list(properties), "examples": 60, "dtype": "float64"}
    maker = Maker.now("cemverify check m:mine", configuration, 0, "cpu")
    write(path, as_json(RunFinished("m:mine", records, 1.0), maker))
    return read_baseline(path)


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    return stored(tmp_path / "b.json", [held("a/b"), held("c/d"), violated("e/f")])


def changes(differences: Sequence[Difference]) -> list[tuple[str | None, Change, bool]]:
    return [(f.property, f.change, f.regression) for f in differences]


def test_the_same_run_again_differs_in_nothing(baseline: Baseline) -> None:
    assert compare(baseline, [held("a/b"), held("c/d"), violated("e/f")], (), VERSION) == []


def test_what_a_run_that_ended_early_did_not_ask_is_not_missing(baseline: Baseline) -> None:
    assert changes(compare(baseline, [held("a/b")], (), VERSION)) == [("c/d", Change.MISSING, True)]
    assert compare(baseline, [held("a/b")], (), VERSION, ["c/d"]) == []


def test_a_run_that_ended_early_is_no_baseline(tmp_path: Path) -> None:
    maker = Maker.now("cemverify check m:mine --quick", {}, 0, "cpu")
    write(tmp_path / "q.json", as_json(RunFinished("m:mine", [held("a/b")], 1.0, unasked=["c/d", "e/f"]), maker))
    with pytest.raises(ResultError, match="leave 2 of 3 properties unguarded; write one without --first"):
        read_baseline(tmp_path / "q.json")


@pytest.mark.parametrize(
    "verdict", [Verdict.VIOLATED, Verdict.INCONCLUSIVE, Verdict.NOT_OFFERED, Verdict.SUITE_ERROR]
)
def test_what_held_and_does_not_is_a_regression(baseline: Baseline, verdict: Verdict) -> None:
    now = [replace(held("a/b"), verdict=verdict), held("c/d"), violated("e/f")]
    assert changes(compare(baseline, now, (), VERSION)) == [("a/b", Change.LOST, True)]


def test_what_held_and_is_gone_is_a_regression_unless_fewer_were_asked(baseline: Baseline) -> None:
    now = [held("c/d"), violated("e/f")]
    assert changes(compare(baseline, now, (), VERSION)) == [("a/b", Change.MISSING, True)]
    assert compare(baseline, now, ["c", "e"], VERSION) == []


def test_a_known_violation_is_noted_and_no_regression(baseline: Baseline) -> None:
    now = [violated("a/b", reason="so"), held("c/d"), violated("e/f")]
    assert changes(compare(baseline, now, (), VERSION)) == [("a/b", Change.LOST, False)]


def test_new_and_repaired_properties_are_noted_after_the_regressions(baseline: Baseline) -> None:
    now = [held("n/n"), held("e/f"), violated("a/b"), held("c/d")]
    assert changes(compare(baseline, now, (), VERSION)) == [
        ("a/b", Change.LOST, True),
        ("n/n", Change.NEW, False),
        ("e/f", Change.GAINED, False),
    ]


@pytest.mark.parametrize(
    ("before", "after", "regression"),
    [
        (0.1, FLOOR, False),  # grew sixfold, as noise does
        (0.1, FLOOR + 0.01, True),
        (0.0, 0.7, True),
        (0.3, GROWTH * 0.3, False),
        (0.3, GROWTH * 0.3 + 0.01, True),
        (0.5, 0.99, False),
        (0.9, 0.1, False),
    ],
)
def test_a_margin_regresses_when_it_grows_far_and_close_to_the_budget(
    tmp_path: Path, before: float, after: float, regression: bool
) -> None:
    differences = compare(stored(tmp_path / "b.json", [held("a/b", before)]), [held("a/b", after)], (), VERSION)
    assert changes(differences) == ([("a/b", Change.MARGIN, True)] if regression else [])


@pytest.mark.parametrize(
    ("margins", "factor", "regression"),
    [(FEWEST, MEDIAN_GROWTH + 0.01, True), (FEWEST, MEDIAN_GROWTH - 0.01, False), (FEWEST - 1, 2.9, False)],
)
def test_many_small_margins_that_grow_together_are_a_regression(
    tmp_path: Path, margins: int, factor: float, regression: bool
) -> None:
    baseline = stored(tmp_path / "b.json", [held(f"a/{i}", 0.01) for i in range(margins)])
    now = [held(f"a/{i}", 0.01 * factor) for i in range(margins)]
    assert changes(compare(baseline, now, (), VERSION)) == ([(None, Change.MARGINS, True)] if regression else [])


def test_a_baseline_of_another_version_is_compared_and_said(baseline: Baseline) -> None:
    now = [held("a/b"), held("c/d"), violated("e/f")]
    differences = compare(replace(baseline, suite_version="0.0.1"), now, (), VERSION)
    assert changes(differences) == [(None, Change.VERSION, False)]


def test_only_a_strict_comparison_fails(baseline: Baseline) -> None:
    differences = compare(baseline, [violated("a/b"), held("c/d"), violated("e/f")], (), VERSION)
    assert not BaselineComparison(baseline.path, differences, strict=False).failed
    assert BaselineComparison(baseline.path, differences, strict=True).failed
    assert not BaselineComparison(baseline.path, [], strict=True).failed


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (replace(CONDITIONS, implementation="m:other"), "with implementation m:mine, this run has m:other"),
        (replace(CONDITIONS, dtype="float32"), "with dtype float64, this run has float32"),
        (replace(CONDITIONS, device="cuda"), "with device cpu, this run has cuda"),
        (replace(CONDITIONS, examples=500), "with examples 60, this run has 500"),
        (replace(CONDITIONS, seed=1), "with seed 0, this run has 1"),
    ],
)
def test_a_baseline_of_other_conditions_is_refused(baseline: Baseline, now: Conditions, words: str) -> None:
    check_comparable(baseline, CONDITIONS)
    with pytest.raises(ValueError, match="cannot be compared") as raised:
        check_comparable(baseline, now)
    assert words in str(raised.value)


def test_what_is_no_result_of_a_check_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    maker = Maker.now("c", {}, 0, "cpu")
    write(path, result("atlas", maker, [], {}))
    with pytest.raises(ResultError, match="of kind 'atlas'; a baseline is written by `cemverify check --json`"):
        read_baseline(path)
    write(path, result("check", maker, [], {}))
    with pytest.raises(ResultError, match="is damaged: 'implementation' is a required property"):
        read_baseline(path)
