"""Known violations: a new one fails, a listed one passes, a stale entry fails."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from cemverify.conformance.gate.accepting import Acceptance, update_known, updated
from cemverify.conformance.gate.known_violations import (
    EntryStanding,
    Settled,
    parse_known,
    read_known,
    settle,
)
from cemverify.conformance.judging.verdicts import Record, Verdict, counts, exit_code
from cemverify.results.envelope import ResultError

MINE = "mypkg.cem:mine"
TODAY = date(2027, 1, 10)
PLAIN, ALIBI, MLP = "gradient/attention/plain", "gradient/attention/alibi", "gradient/mlp/tanh"


def entry(property_: str, cause: str = "wrong sign", expires: str = "2027-02-19", implementation: str = MINE) -> str:
    return (
        f'[[violation]]\nimplementation = "{implementation}"\nproperty = "{property_}"\ncause = "{cause}"\n'
        f'reason = "because"\nexpires = {expires}\n'
    )


def record(property_: str, verdict: Verdict = Verdict.VIOLATED, cause: str | None = "wrong sign") -> Record:
    return Record(property_, "", "", verdict, cause=cause if verdict == Verdict.VIOLATED else None, reason="why")


def settled(text: str, *records: Record, today: date = TODAY) -> tuple[list[Record], Settled]:
    return settle(MINE, records, parse_known(text, "known.toml"), "known.toml", today)


def code(text: str, *records: Record, today: date = TODAY) -> int:
    """The exit code of `cemverify check`, put together as it is there."""
    judged, outcome = settled(text, *records, today=today)
    return 1 if outcome.failed else exit_code(judged)


# --- judging ------------------------------------------------------------------------------------


def test_a_listed_violation_passes_with_its_reason_and_stays_counted() -> None:
    judged, outcome = settled(entry(PLAIN), record(PLAIN))
    assert [r.known for r in judged] == ["because"]
    assert [o.standing for o in outcome.outcomes] == [EntryStanding.ACCEPTED]
    tally = counts(judged)
    assert (tally["violated"], tally["known"]) == (1, 1)
    assert exit_code(judged) == 0
    assert judged[0].describe()["known"] == "because"


def test_a_new_violation_fails_beside_a_listed_one() -> None:
    assert code(entry(PLAIN), record(PLAIN), record(ALIBI)) == 1


def test_a_violation_for_another_cause_is_new() -> None:
    judged, outcome = settled(entry(PLAIN), record(PLAIN, cause="raised"))
    assert judged[0].known is None
    assert exit_code(judged) == 1
    assert "another cause than line 1 accepts: raised" in outcome.outcomes[0].sentence


@pytest.mark.parametrize("pattern", ["wrong sign", "wrong*", "*", "wrong [s]ign"])
def test_a_cause_is_exact_or_a_pattern(pattern: str) -> None:
    assert code(entry(PLAIN, cause=pattern), record(PLAIN)) == 0


def test_a_cause_with_brackets_matches_itself() -> None:
    assert code(entry(PLAIN, cause="f[x] = 0"), record(PLAIN, cause="f[x] = 0")) == 0


@pytest.mark.parametrize("verdict", [Verdict.HOLDS, Verdict.NOT_OFFERED])
def test_an_entry_that_excuses_nothing_any_more_fails_with_its_line(verdict: Verdict) -> None:
    text = "# why\n\n" + entry(PLAIN)
    _, outcome = settled(text, record(PLAIN, verdict))
    assert outcome.failed
    assert "delete the entry on line 3" in outcome.outcomes[0].sentence


def test_an_entry_is_accepted_on_its_last_day_and_not_after() -> None:
    assert code(entry(PLAIN), record(PLAIN), today=date(2027, 2, 19)) == 0
    assert code(entry(PLAIN), record(PLAIN), today=date(2027, 2, 20)) == 1
    judged, _ = settled(entry(PLAIN), record(PLAIN), today=date(2027, 2, 20))
    assert judged[0].known is None


def test_an_expired_entry_fails_even_if_its_property_was_not_asked() -> None:
    assert code(entry(PLAIN), record(ALIBI, Verdict.HOLDS)) == 0
    assert code(entry(PLAIN), record(ALIBI, Verdict.HOLDS), today=date(2028, 1, 1)) == 1


def test_a_property_that_could_not_be_judged_leaves_its_entry_alone() -> None:
    _, outcome = settled(entry(PLAIN), record(PLAIN, Verdict.INCONCLUSIVE))
    assert [o.standing for o in outcome.outcomes] == [EntryStanding.UNDECIDED]
    assert code(entry(PLAIN), record(PLAIN, Verdict.INCONCLUSIVE)) == 2


def test_entries_for_other_implementations_excuse_nothing() -> None:
    text = entry(PLAIN, implementation="theirs:theirs")
    _, outcome = settled(text, record(PLAIN))
    assert (list(outcome.outcomes), outcome.elsewhere) == ([], 1)
    assert code(text, record(PLAIN)) == 1


# --- reading ------------------------------------------------------------------------------------


def test_the_line_of_an_entry_is_where_its_header_stands() -> None:
    tricky = entry(PLAIN).replace('"because"', '"""\n[[violation]]\nbecause"""')
    text = f"# a comment\n{tricky}\n\n  [[ violation ]] # indented\n" + entry(ALIBI).partition("\n")[2]
    assert [e.line for e in parse_known(text, "f")] == [2, 12]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[violation]", "known.toml is not TOML"),
        ("[violation]\nreason = 'x'\n", "known.toml: start every entry on a line of its own with [[violation]]"),
        ("violation = [{}]\n", "known.toml: start every entry"),
        ("[[violations]]\n", "known.toml: unknown key 'violations'"),
        (entry(PLAIN) + entry("gradient/attention/plian"), "line 7: there is no property 'gradient/attention/plian'"),
        (entry("gradient/attention/plian"), "did you mean gradient/attention/plain?"),
        (entry(PLAIN, expires='"2027-02-19"'), "line 1: expires must be a date without quotes"),
        (entry(PLAIN, expires="2027-02-19T10:00:00"), "line 1: expires must be a date without quotes"),
        (entry(PLAIN, expires="2027"), "line 1: expires must be a date"),
        (entry(PLAIN, expires="2027-02-30"), "known.toml is not TOML"),
        (entry(PLAIN).replace("expires", "until"), "line 1: unknown key 'until'"),
        (
            "\n" + entry(PLAIN).partition("expires")[0],
            "line 2: expires must be a date without quotes, like 2027-02-19",
        ),
        (entry(PLAIN).replace('reason = "because"\n', ""), "line 1: the entry lacks 'reason'"),
        (entry(PLAIN).replace('"because"', '" "'), "line 1: reason must be a non-empty string"),
        (entry(PLAIN) + entry(PLAIN, cause="*"), f"line 7: {PLAIN} of {MINE} is already listed on line 1"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_the_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"known\.toml") as raised:
        read_known(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="--update-known creates it"):
        read_known(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ResultError, match="is not UTF-8"):
        read_known(tmp_path / "latin.toml")


# --- writing ------------------------------------------------------------------------------------


def accept(text: str, *records: Record, reason: str = "accepted", today: date = TODAY) -> str:
    return updated(text, "known.toml", MINE, records, Acceptance(reason, date(2027, 4, 1)), today)


@pytest.mark.parametrize("reason", ["plain", 'with "quotes" and \\ and\nlines', "é ⟨χ⟩ [[violation]]"])
def test_what_an_update_writes_makes_the_same_run_pass(reason: str) -> None:
    records = [record(PLAIN, cause='a "cause" [x]'), record(ALIBI, Verdict.HOLDS), record(MLP)]
    text = accept("", *records, reason=reason)
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


def test_an_update_without_news_changes_nothing() -> None:
    assert accept(LISTED, record(ALIBI), record(PLAIN)) == LISTED


def test_an_entry_whose_property_holds_again_goes_with_its_comment_and_the_rest_stays() -> None:
    text = accept(LISTED, record(ALIBI), record(PLAIN, Verdict.HOLDS))
    assert "right above plain" not in text
    assert "see the notes" not in text
    assert text == LISTED.replace(f"# right above plain\n{NOTED}\n\n", "")


def test_an_expired_entry_is_renewed_in_its_place() -> None:
    text = accept(LISTED, record(ALIBI), record(PLAIN), today=date(2027, 3, 1))
    assert [(e.property, e.reason, e.expires) for e in parse_known(text, "f")][:2] == [
        (ALIBI, "accepted", date(2027, 4, 1)),
        (PLAIN, "accepted", date(2027, 4, 1)),
    ]
    assert all(comment in text for comment in ("# Ours.", "# about alibi", "# right above plain", "# see the notes"))
    assert text.endswith("# the end\n")


def test_another_cause_replaces_the_one_that_was_accepted() -> None:
    text = accept(entry(PLAIN), record(PLAIN, cause="raised"))
    assert [(e.cause, e.reason) for e in parse_known(text, "f")] == [("raised", "accepted")]


def test_deleting_several_entries_leaves_their_neighbours_whole() -> None:
    records = [record(ALIBI, Verdict.HOLDS), record(PLAIN, Verdict.HOLDS), record(MLP)]
    assert [e.implementation for e in parse_known(accept(LISTED, *records), "f")] == ["theirs:theirs", MINE]
    expired = [record(ALIBI), record(PLAIN, Verdict.HOLDS)]
    text = accept(LISTED, *expired, today=date(2027, 3, 1))
    assert [(e.property, e.reason) for e in parse_known(text, "f")] == [(ALIBI, "accepted"), (MLP, "because")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"# ours\n\n# about it\n{entry(PLAIN)}# below\n\n", "# ours\n\n# below\n"),
        (f"# about it\n{entry(PLAIN)}\n# below\n\n{entry(ALIBI)}", f"# below\n\n{entry(ALIBI)}"),
        (f"{entry(ALIBI)}\n{entry(PLAIN)}".rstrip(), entry(ALIBI)),
    ],
    ids=["the only entry", "the first entry", "the last entry, without a newline"],
)
def test_only_the_comment_above_a_deleted_entry_goes_with_it(before: str, after: str) -> None:
    assert accept(before, record(PLAIN, Verdict.HOLDS)) == after


def test_where_nothing_is_left_stands_what_the_file_is_for() -> None:
    text = accept(entry(PLAIN), record(PLAIN, Verdict.HOLDS))
    assert text.startswith("# Violations that are accepted for now")
    assert parse_known(text, "f") == ()


def test_what_was_not_judged_stays_listed() -> None:
    assert accept(LISTED, record(PLAIN, Verdict.INCONCLUSIVE)) == LISTED


def test_a_file_is_made_where_there_is_none_and_a_bad_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "known.toml"
    update_known(path, MINE, [record(PLAIN)], Acceptance("so", TODAY), TODAY)
    assert [e.property for e in read_known(path)] == [PLAIN]
    path.write_text("[[violation]]\n")
    with pytest.raises(ValueError, match="lacks"):
        update_known(path, MINE, [record(PLAIN)], Acceptance("so", TODAY), TODAY)
    assert path.read_text() == "[[violation]]\n"
