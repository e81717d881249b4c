"""The page of detection power says what was measured: every table, number by number, of a made-up measurement."""

from __future__ import annotations

from dataclasses import replace

from cemverify.power.findings import Alarms, Detection, Measured, Power, Smallest
from cemverify.power.mutants import mutants
from cemverify.power.pages import alarms_table, as_markdown, families_table, mutants_table, smallest_table, summary
from cemverify.power.plan import PowerPlan

ASCENT, OTHER = mutants()[0], next(m for m in mutants() if m.family == "mlp")
KILLED = Measured(ASCENT, (Detection(15, 15, 20, 0.51, 0.91, 4.0, 4.5), Detection(60, 20, 20, 0.83, 1.0, 2.0, 2.5)))
SELDOM = (Detection(15, 0, 20, 0.0, 0.17, None, None), Detection(60, 1, 20, 0.0, 0.25, 7.0, 7.0))
SURVIVED = Measured(OTHER, SELDOM, "no")
ABSENT = Measured(mutants()[1], (), inapplicable="not offered: norm")
POWER = Power(
    PowerPlan(seeds=20),
    [KILLED, SURVIVED, ABSENT],
    [Alarms("one", 10, 200, 0, 1, "p, seed 3: inconclusive"), Alarms("two", 5, 100, 2, 0)],
    [Smallest("gradient", "float64", 2e-14, "p", "feature"), Smallest("tying", "float32", None)],
)


def test_the_score_is_the_share_of_all_that_were_killed() -> None:
    assert families_table(POWER).rows == [(ASCENT.family, 1, 1, "100%"), ("mlp", 1, 0, "0%"), ("all", 2, 1, "50%")]


def test_a_mutant_has_a_share_for_each_budget_and_the_interval_and_median_of_the_last() -> None:
    first = (ASCENT.id, ASCENT.property, "75%", "100%", "0.83 … 1.00", "2")
    second = (OTHER.id, OTHER.property, "0%", "5%", "0.00 … 0.25", "7")
    assert mutants_table(POWER, POWER.applicable, "Mutants").rows == [first, second]


def test_false_alarms_and_smallest_faults_are_told_as_they_are() -> None:
    one, two = ("one", "10", "200", "0", "1", "p, seed 3: inconclusive"), ("two", "5", "100", "2", "0", "")
    assert alarms_table(POWER).rows == [one, two]
    assert smallest_table(POWER).rows == [("gradient", "2e-14", "–"), ("tying", "–", "–")]
    assert POWER.runs_without_fault == 300
    assert not POWER.sound
    assert replace(POWER, mutants=[KILLED], alarms=POWER.alarms[:1]).sound


def test_the_page_begins_with_the_figures_and_lists_what_could_not_be_measured() -> None:
    page = as_markdown(POWER, "cemverify power")
    assert summary(POWER) in page
    assert "1 of 2 mutants" in summary(POWER)
    assert "False alarms in 300 runs of a property on correct implementations: 2." in summary(POWER)
    assert f"* {ABSENT.mutant.id}: not offered: norm" in page
    assert "By the median of the seeds, half of the faults take at most 4.5 examples." in page
    assert f"* **{ASCENT.id}** (75%): {ASCENT.fault}\n" in page
    assert f"* **{OTHER.id}** (0%): {OTHER.fault} **Survived**: no." in page
    assert f"| {OTHER.id} " in page.split("## Mutation score")[1].split("<details>")[0]  # what survived comes first
