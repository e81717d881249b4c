"""Whatever every command is given, it keeps the rule of `abuses`; what once broke it does so no more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from suites.entry import test_environments
from suites.fuzzing import ground
from suites.fuzzing.abuses import Abuse, Outcome, as_json, complaints
from suites.fuzzing.generators import SHARES, draw_all
from suites.fuzzing.regressions import regressions
from suites.fuzzing.spoiling import WAYS
from suites.fuzzing.zygote import outcomes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="abuses are watched by means of Linux"),
]

USUAL, AT_LENGTH = 6, 1000  # abuses drawn, beside the regressions and in each test at length: five minutes of a core


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the commands read, made once for all tests of this file."""
    made = tmp_path_factory.mktemp("ground")
    ground.make(made)
    return made


def _broken(pairs: Sequence[tuple[Abuse, Outcome]], kinds: Sequence[str]) -> list[str]:
    chosen = [(abuse, outcome) for abuse, outcome in pairs if abuse.kind in kinds]
    assert {abuse.kind for abuse, _ in chosen} == set(kinds)
    wrong = [(abuse, outcome, why) for abuse, outcome in chosen if (why := complaints(abuse, outcome))]
    return [f"{why}: {as_json(abuse)} -> {outcome.code}, {outcome.stderr[-500:]}" for abuse, outcome, why in wrong]


def test_commands_keep_the_rule_under_abuse_and_each_way_to_break_it_is_seen(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One test, for all abuses are run by one process; what once broke the rule is among them, and real work is."""
    every = 1 if request.config.getoption("--thorough") else 54
    drawn = draw_all(folder, USUAL, int(os.environ.get("CEMVERIFY_SEED", "0")))
    spoiling = [Abuse("spoiling", ("spoil", way), made={"link": "-> right.py"}) for way in WAYS]
    at_work = list(test_environments.rows(test_environments.stored(tmp_path)))[::every]
    abuses = [*spoiling, *list(regressions(folder))[::every], *drawn, *(abuse for abuse, *_ in at_work)]
    pairs = list(outcomes(abuses, folder))
    spoiled = {abuse.words[1]: complaints(abuse, outcome) for abuse, outcome in pairs if abuse.kind == "spoiling"}
    assert [
        way for way, (_, _, complaint) in WAYS.items() if not any(complaint in each for each in spoiled[way])
    ] == []
    assert _broken(pairs, ["regressions", *SHARES]) == []
    assert test_environments.departures(at_work, [outcome for _, outcome in pairs[-len(at_work) :]]) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 21))
def test_commands_keep_the_rule_under_a_thousand_abuses(folder: Path, seed: int) -> None:
    """Twenty thousand in all, in parts that several workers share."""
    assert _broken(list(outcomes(draw_all(folder, AT_LENGTH, seed), folder)), list(SHARES)) == []
