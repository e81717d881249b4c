"""The gate fails for results worse than a baseline, new violations, stale entries, and what a pin enforces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cemverify._version import VERSION
from cemverify.api import Check, UnderTest
from cemverify.catalogue import versions
from cemverify.catalogue.versions import current, introduced
from cemverify.conformance import properties
from cemverify.conformance.gate import baselines
from cemverify.conformance.gate.accepting import Acceptance, update_known, updated
from cemverify.conformance.gate.baselines import Baseline, Change, Conditions, check_comparable, compare
from cemverify.conformance.gate.known_violations import EntryStanding, Settled, parse_known, read_known, settle
from cemverify.conformance.implementations.contract import implementation
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, exit_code, pin, violations
from cemverify.conformance.listeners import files, terminal
from cemverify.results import envelope
from cemverify.results.envelope import ResultError, result, write
from cemverify.results.provenance import Maker
from suites.kit.commands import Told
from suites.kit.examples import known

CONDITIONS = Conditions("m:mine", "float64", "cpu", 60, 0)


def held(id_: str, margin: float = 0.1) -> Record:
    return Record(id_, "", "", Verdict.HOLDS, margin=margin)


def record(property_: str, verdict: Verdict = Verdict.VIOLATED, cause: str | None = "wrong sign") -> Record:
    return Record(property_, "", "", verdict, cause=cause if verdict == Verdict.VIOLATED else None, reason="why")


def stored(path: Path, records: Sequence[Record], unasked: Sequence[str] = ()) -> Baseline:
    """The records, written as `cemverify check --json` writes them, and read again."""
    maker = Maker.now("cemverify check m:mine", {"properties": [], "examples": 60, "dtype": "float64"}, 0, "cpu")
    write(path, files.as_json(RunFinished("m:mine", records, 1.0, unasked=unasked), maker))
    return baselines.read_baseline(path)


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    return stored(tmp_path / "b.json", SAME)


def changes(differences: Sequence[baselines.Difference]) -> list[tuple[str | None, Change, bool]]:
    return [(f.property, f.change, f.regression) for f in differences]


SAME = [held("a/b"), held("c/d"), record("e/f")]
LOST, GONE = ("a/b", Change.LOST, True), ("a/b", Change.MISSING, True)


@pytest.mark.parametrize(
    ("now", "properties", "unasked", "expected"),
    [
        (SAME, (), (), []),
        (SAME[:1], (), (), [("c/d", Change.MISSING, True)]),
        (SAME[:1], (), ["c/d"], []),
        *(([replace(SAME[0], verdict=verdict), *SAME[1:]], (), (), [LOST]) for verdict in list(Verdict)[1:]),
        (SAME[1:], (), (), [GONE]),
        (SAME[1:], ["c", "e"], (), []),
        ([replace(record("a/b"), known="so"), *SAME[1:]], (), (), [("a/b", Change.LOST, False)]),  # a known violation
        ([held("n/n"), held("e/f"), record("a/b"), held("c/d")], (), (),
         [LOST, ("n/n", Change.NEW, False), ("e/f", Change.GAINED, False)]),
    ],
)  # fmt: skip
def test_what_held_and_does_not_is_a_regression_unless_known_or_not_asked(
    baseline: Baseline, now: Sequence[Record], properties: Sequence[str], unasked: Sequence[str], expected: object
) -> None:
    assert changes(compare(baseline, now, properties, VERSION, unasked)) == expected


FLOOR, FAR, TOGETHER, MANY = baselines.FLOOR, baselines.GROWTH, baselines.MEDIAN_GROWTH, baselines.FEWEST


@pytest.mark.parametrize(
    ("margins", "before", "after", "regression"),
    [
        (1, 0.1, FLOOR, []),  # grew sixfold, as noise can
        (1, 0.1, FLOOR + 0.01, [("a/0", Change.MARGIN, True)]),
        (1, 0.3, FAR * 0.3, []),
        (1, 0.3, FAR * 0.3 + 0.01, [("a/0", Change.MARGIN, True)]),
        (1, 0.5, 0.99, []),
        (MANY, 0.01, 0.01 * (TOGETHER + 0.01), [(None, Change.MARGINS, True)]),
        (MANY, 0.01, 0.01 * (TOGETHER - 0.01), []),
        (MANY - 1, 0.01, 0.029, []),
    ],
)
def test_a_margin_regresses_that_grows_far_and_close_to_the_budget_or_with_many_others(
    tmp_path: Path, margins: int, before: float, after: float, regression: object
) -> None:
    baseline = stored(tmp_path / "b.json", [held(f"a/{i}", before) for i in range(margins)])
    assert changes(compare(baseline, [held(f"a/{i}", after) for i in range(margins)], (), VERSION)) == regression


def test_a_baseline_of_another_version_is_compared_and_only_a_strict_comparison_fails(baseline: Baseline) -> None:
    differences = compare(replace(baseline, suite_version="0.0.1"), SAME, (), VERSION)
    assert changes(differences) == [(None, Change.VERSION, False)]
    differences = compare(baseline, [record("a/b"), *SAME[1:]], (), VERSION)
    for found, strict, failed in ((differences, False, False), (differences, True, True), ([], True, False)):
        assert baselines.BaselineComparison(baseline.path, found, strict=strict).failed == failed


@pytest.mark.parametrize(
    ("field", "value"),
    [("implementation", "m:other"), ("dtype", "float32"), ("device", "cuda"), ("examples", 500), ("seed", 1)],
)
def test_a_baseline_of_other_conditions_is_refused(baseline: Baseline, field: str, value: Any) -> None:
    check_comparable(baseline, CONDITIONS)
    words = f"with {field} {getattr(CONDITIONS, field)}, this run has {value}, so their margins cannot be compared"
    with pytest.raises(ValueError, match=words):
        check_comparable(baseline, replace(CONDITIONS, **{field: value}))


def test_what_is_no_result_of_a_whole_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="leave 2 of 3 properties unguarded; write one without --first"):
        stored(tmp_path / "q.json", [held("a/b")], unasked=["c/d", "e/f"])
    path = tmp_path / "b.json"
    maker = Maker.now("c", {}, 0, "cpu")
    write(path, result("check", maker, [], {}))
    with pytest.raises(ResultError, match="is damaged: 'implementation' is a required property"):
        baselines.read_baseline(path)
    write(path, {**result("check", maker, [], {}), "suite_version": "0.3.0"})
    with pytest.raises(ResultError, match=r"written by cemverify 0\.3\.0 and cannot be read: 'implementation' is"):
        baselines.read_baseline(path)


MINE = "mypkg.cem:mine"
TODAY = date(2027, 1, 10)
PLAIN, ALIBI, MLP = "gradient/attention/plain", "gradient/attention/alibi", "gradient/mlp/tanh"


entry = partial(known, cause="wrong sign", expires="2027-02-19")


def settled(text: str, *records: Record, today: date = TODAY) -> tuple[list[Record], Settled]:
    return settle(MINE, records, parse_known(text, "known.toml"), "known.toml", today)


def code(text: str, *records: Record, today: date = TODAY) -> int:
    """The exit code of `cemverify check`, computed as there."""
    judged, outcome = settled(text, *records, today=today)
    return 1 if outcome.failed else exit_code(judged)


HELD = record(ALIBI, Verdict.HOLDS)
LAST, AFTER = date(2027, 2, 19), date(2027, 2, 20)  # days of an entry


@pytest.mark.parametrize(
    ("text", "records", "today", "expected"),
    [
        (entry(PLAIN), [record(PLAIN), record(ALIBI)], TODAY, 1),
        *((entry(PLAIN, cause=pattern), [record(PLAIN)], TODAY, 0)
          for pattern in ("wrong sign", "wrong*", "*", "wrong [s]ign")),
        (entry(PLAIN, cause="f[x] = 0"), [record(PLAIN, cause="f[x] = 0")], TODAY, 0),
        # what causes of 1.0 said
        (entry(PLAIN, cause="cached = golden"), [record(PLAIN, cause="cached = right output")], TODAY, 0),
        (entry(PLAIN, cause="*= golden*"), [record(PLAIN, cause="first answer of mlp = right answer")], TODAY, 0),
        (entry(PLAIN), [record(PLAIN)], LAST, 0),
        (entry(PLAIN), [record(PLAIN)], AFTER, 1),
        (entry(PLAIN), [HELD], TODAY, 0),  # its property was not tested
        (entry(PLAIN), [HELD], AFTER, 1),
        (entry(PLAIN), [record(PLAIN, Verdict.INCONCLUSIVE)], TODAY, 2),
        (entry(PLAIN, implementation="theirs:theirs"), [record(PLAIN)], TODAY, 1),
        (entry(PLAIN, implementation="theirs:theirs"), [record(PLAIN, Verdict.HOLDS)], TODAY, 0),
        (entry(PLAIN), [record(PLAIN, cause="raised")], TODAY, 1),
        # it no longer excuses anything
        *((entry(PLAIN), [record(PLAIN, v), HELD], TODAY, 1) for v in (Verdict.HOLDS, Verdict.NOT_OFFERED)),
    ],
)  # fmt: skip
def test_what_is_listed_for_this_cause_until_this_day_passes(
    text: str, records: list[Record], today: date, expected: int
) -> None:
    assert code(text, *records, today=today) == expected


def test_a_retired_property_is_excused_missed_by_no_baseline_and_leaves_the_list(tmp_path: Path) -> None:
    old = "sequences/mlp/changing-steps"
    judged, outcome = settled(entry(old), record(ALIBI, Verdict.HOLDS))
    assert [o.standing for o in outcome.outcomes] == [EntryStanding.RETIRED]
    assert not outcome.failed
    assert exit_code(judged) == 0
    assert old not in updated(entry(old), "f", MINE, judged, Acceptance("so", LAST), TODAY)
    baseline = stored(tmp_path / "b.json", [held(old), held(ALIBI)])
    assert changes(compare(baseline, [held(ALIBI)], (), VERSION)) == [(old, Change.RETIRED, False)]


def test_the_line_of_an_entry_is_where_its_header_stands() -> None:
    tricky = entry(PLAIN).replace('"because"', '"""\n[[violation]]\nbecause"""')
    text = f"# a comment\n{tricky}\n\n  [[ violation ]] # indented\n" + entry(ALIBI).partition("\n")[2]
    assert [e.line for e in parse_known(text, "f")] == [2, 12]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "--update-known creates it"),
        ("[[violation]", "known.toml is not TOML"),
        ("[violation]\nreason = 'x'\n", "known.toml: start every entry on a line of its own with [[violation]]"),
        ("[[violations]]\n", "known.toml: unknown key 'violations'"),
        (entry(PLAIN) + entry("gradient/attention/plian"), "line 7: there is no property 'gradient/attention/plian'"),
        (entry("structure/mlp/windows"), "it is contract/mlp/windows now"),
        (entry("gradient/*"), "no patterns here: name one property, not 'gradient/*'"),
        (entry(PLAIN, expires='"2027-02-19"'), "line 1: expires must be a date without quotes"),
        (entry(PLAIN).replace("expires", "until"), "line 1: unknown key 'until'"),
        (entry(PLAIN).replace('reason = "because"\n', ""), "line 1: the entry lacks 'reason'"),
        (entry(PLAIN).replace('"because"', '" "'), "line 1: reason must be a non-empty string"),
        (entry(PLAIN) + entry(PLAIN, cause="*"), f"line 7: {PLAIN} of {MINE} is already listed on line 1"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_the_line_and_none_says_how_it_is_made(
    text: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "known.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises((ValueError, ResultError), match=r"known\.toml") as raised:
        read_known(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def accept(text: str, *records: Record, reason: str = "accepted", today: date = TODAY) -> str:
    return updated(text, "known.toml", MINE, records, Acceptance(reason, date(2027, 4, 1)), today)


@pytest.mark.parametrize("reason", ["plain", 'with "quotes" and \\ and\nlines', "é ⟨χ⟩ [[violation]]"])
def test_what_an_update_writes_makes_the_same_run_pass(reason: str) -> None:
    records = [record(PLAIN, cause='a "cause" [x]'), record(ALIBI, Verdict.HOLDS), record(MLP)]
    text = accept("", *records, reason=reason)
    assert "key =" not in text, "the records have none"
    assert code(text, *records) == 0
    assert {(e.property, e.reason) for e in parse_known(text, "f")} == {(PLAIN, reason), (MLP, reason)}
    assert accept(text, *records, reason="another") == text


NOTED = entry(PLAIN).replace('"because"', '"because" # see the notes')
LISTED = f"""\
# Ours.

# about alibi
{entry(ALIBI)}\
# right above plain
{NOTED}

{entry(MLP, implementation="theirs:theirs")}
# the end
"""
GOOD = record(PLAIN, Verdict.HOLDS)


def test_expired_entries_are_renewed_other_causes_replaced_and_neighbours_of_what_goes_left_whole() -> None:
    text = accept(LISTED, record(ALIBI), record(PLAIN), today=date(2027, 3, 1))
    first, second, _ = ((e.property, e.reason, e.expires) for e in parse_known(text, "f"))
    assert (first, second) == tuple((id_, "accepted", date(2027, 4, 1)) for id_ in (ALIBI, PLAIN))
    assert all(comment in text for comment in ("# Ours.", "# about alibi", "# right above plain", "# see the notes"))
    assert text.endswith("# the end\n")
    text = accept(entry(PLAIN), record(PLAIN, cause="raised"))
    assert [(e.cause, e.reason) for e in parse_known(text, "f")] == [("raised", "accepted")]
    records = [record(ALIBI, Verdict.HOLDS), record(PLAIN, Verdict.HOLDS), record(MLP)]
    assert [e.implementation for e in parse_known(accept(LISTED, *records), "f")] == ["theirs:theirs", MINE]


@pytest.mark.parametrize(
    ("before", "records", "after"),
    [
        (f"# ours\n\n# about it\n{entry(PLAIN)}# below\n\n", [GOOD], "# ours\n\n# below\n"),
        (f"# about it\n{entry(PLAIN)}\n# below\n\n{entry(ALIBI)}", [GOOD], f"# below\n\n{entry(ALIBI)}"),
        (f"{entry(ALIBI)}\n{entry(PLAIN)}".rstrip(), [GOOD], entry(ALIBI)),
        (LISTED, [record(ALIBI), GOOD], LISTED.replace(f"# right above plain\n{NOTED}\n\n", "")),
        (LISTED, [record(PLAIN, Verdict.INCONCLUSIVE)], LISTED),
    ],
    ids=["the only entry", "the first", "the last, without a newline", "one of several", "none was judged"],
)
def test_an_entry_that_holds_again_goes_with_the_comment_above_it(
    before: str, records: Sequence[Record], after: str
) -> None:
    assert accept(before, *records) == after


def test_a_file_is_made_where_there_is_none_says_what_it_is_for_and_a_bad_one_is_left_alone(tmp_path: Path) -> None:
    text = accept(entry(PLAIN), record(PLAIN, Verdict.HOLDS))
    assert text.startswith("# Violations that are accepted for now")
    assert parse_known(text, "f") == ()
    path = tmp_path / "deep" / "known.toml"
    update_known(path, MINE, [record(PLAIN)], Acceptance("so", TODAY), TODAY)
    assert [e.property for e in read_known(path)] == [PLAIN]
    path.write_text("[[violation]]\n")
    with pytest.raises(ValueError, match="lacks"):
        update_known(path, MINE, [record(PLAIN)], Acceptance("so", TODAY), TODAY)
    assert path.read_text() == "[[violation]]\n"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue with one more version, which introduced one property."""
    table = dict(sorted({**introduced(), ALIBI: "2027.02"}.items(), key=lambda item: item[::-1]))
    monkeypatch.setattr(versions, "introduced", lambda: table)


def test_every_property_has_a_version_which_is_a_month_and_those_of_a_trained_layer_have_one_too() -> None:
    assert {id_ for id_ in introduced() if id_.startswith("trained/")} == {
        f"trained/{name}" for name in ("update", "slope", "whole-step", "preconditioner", "symmetry", "precision")
    }
    assert all(re.fullmatch(r"\d{4}\.(0[1-9]|1[0-2])", version) for version in versions.versions())
    assert list(versions.versions()) == sorted(versions.versions())


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("old", "new", "pinned", "code"),
    [
        ("holds", "violated", None, 1),
        ("holds", "violated", "2027.02", 1),
        ("holds", "violated", "2026.11", 0),
        ("holds", "inconclusive", "2026.11", 0),
        ("violated", "violated", "2026.11", 1),
        ("not offered", "holds", "2026.11", 2),  # no enforced property was run
    ],
)
def test_only_what_the_pin_enforces_decides_the_exit_code(old: str, new: str, pinned: str | None, code: int) -> None:
    assert exit_code(pin([record(PLAIN, Verdict(old)), record(ALIBI, Verdict(new))], pinned)) == code


@pytest.mark.usefixtures("later")
def test_what_is_not_enforced_is_reported_all_the_same_and_said_to_be_so(tmp_path: Path) -> None:
    records = pin([record(PLAIN, Verdict.HOLDS), record(ALIBI, Verdict.VIOLATED)], "2026.11")
    finished = RunFinished("mypkg:mine", records, 1.0)
    text = terminal.report(finished)
    for words in (
        f"NOT ENFORCED {ALIBI}",
        "came with catalogue 2027.02, and this run is pinned to 2026.11",
        "1 violated, 0 inconclusive, 0 suite errors (1 of these not enforced)",
    ):
        assert words in text
    assert violations(finished.records) == []
    suite = ElementTree.fromstring(files.as_junit(finished, "2026.11"))[0]  # noqa: S314
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    facts = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert facts == {"catalogue": "2027.02", "catalogue enforced": "2026.11"}
    (skipped,) = suite.iter("skipped")
    assert "came with catalogue 2027.02" in str(skipped.get("message"))
    envelope.write(tmp_path / "r.json", files.as_json(finished, Maker.now("c", {}, 0, "cpu"), pinned="2026.11"))
    content = envelope.read(tmp_path / "r.json")
    assert content["catalogue"] == {"version": "2027.02", "pinned": "2026.11"}
    assert (content["counts"]["not_enforced"], content["headline"]) == (1, None)
    enforced = [(p["introduced"], p.get("newer_than")) for p in content["properties"]]
    assert enforced == [("2026.11", None), ("2027.02", "2026.11")]


@pytest.mark.usefixtures("later")
def test_a_baseline_notes_it_as_no_regression(tmp_path: Path) -> None:
    baseline, lost = stored(tmp_path / "b.json", [held(PLAIN), held(ALIBI)]), [record(PLAIN), record(ALIBI)]
    for pinned, regressions in ((None, [PLAIN, ALIBI]), ("2026.11", [PLAIN])):
        found = compare(baseline, pin(lost, pinned), (), VERSION)
        assert [d.property for d in found if d.regression] == regressions


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("id_", "pinned", "outcome"),
    [
        (ALIBI, "2026.11", pytest.xfail.Exception),
        (ALIBI, "2027.02", pytest.fail.Exception),
        (PLAIN, "2026.11", pytest.fail.Exception),
    ],
)
def test_pytest_expects_what_is_not_enforced_to_fail(id_: str, pinned: str, outcome: type[BaseException]) -> None:
    idle = implementation(attention=lambda x, h, weights, config: x)
    with pytest.raises(outcome):
        Check(properties.by_id(id_), UnderTest(idle, Effort(examples=3, shrink=False), pinned=pinned))()


@pytest.mark.usefixtures("later")
def test_what_is_newer_than_a_pin_is_listed(told: Told) -> None:
    output = told("cemverify list gradient --newer-than 2026.12").out
    assert ALIBI in output
    assert "1 property, catalogue 2027.02" in output
    refusal = told("cemverify list --newer-than 2027.02", 2).err
    assert "none of these properties is newer than catalogue 2027.02" in refusal


def test_the_version_says_which_catalogue_there_is(told: Told) -> None:
    assert told("cemverify --version").out.strip().endswith(f", catalogue {current()}")
