"""Detection power: intervals that are exact, sentences for slips, and a page that says what was measured."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import scipy

import cemverify
from cemverify.cli import main
from cemverify.console.errors import UsageError
from cemverify.power import cells
from cemverify.power.cells import DetectionCell, FalseAlarmCell, SmallestFaultCell, cell_of, measure
from cemverify.power.code import ROOMS, Code
from cemverify.power.findings import Alarms, Detection, Measured, Power, Smallest
from cemverify.power.measuring import measure_power
from cemverify.power.mutants import mutants
from cemverify.power.pages import alarms_table, as_markdown, families_table, mutants_table, smallest_table, summary
from cemverify.power.plan import PowerPlan
from cemverify.power.statistics import clopper_pearson, upper_bound
from cemverify.results import envelope
from cemverify.runs import RunOptions
from suites.kit.source import ROOT

_QUICK = "power --families block --seeds 1 --examples 5 --no-bank --no-sweep --workers 0"


@pytest.mark.parametrize(
    ("successes", "trials"),
    [(0, 20), (20, 20), (1, 1), (3, 20), (17, 1000), (2, 21056), (10000, 21056), (21050, 21056)],
)
def test_the_interval_is_the_exact_one(successes: int, trials: int) -> None:
    exact = scipy.stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, trials) == pytest.approx((exact.low, exact.high), rel=1e-8, abs=1e-12)


def test_no_false_alarm_in_n_runs_bounds_the_rate_by_about_three_over_n() -> None:
    assert upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000))


@pytest.mark.parametrize("arguments", [(3, 2, 0.95), (0, 0, 0.95), (-1, 2, 0.95), (1, 2, 1.5)])
def test_an_interval_of_nothing_is_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|not"):
        clopper_pearson(*arguments)


@pytest.mark.parametrize(("mutant", "cause"), [("ascent", "update = -eta P"), ("drops-a-batch-of-one", "shape")])
def test_what_dies_is_killed_whatever_it_dies_of_which_is_kept(mutant: str, cause: str) -> None:
    (run,) = measure(DetectionCell(mutant, "gradient/attention/plain", 15, (0,), None, Code.here(None)))["runs"]
    assert (run["killed"], cause in run["cause"]) == (True, True)


def test_the_smallest_fault_is_bracketed_and_more_work_is_expected_to_take_longer() -> None:
    cell = SmallestFaultCell("gradient/attention/plain", "float64", "feature", 30, (0,), None, Code.here(None))
    assert 1e-16 < measure(cell)["epsilon"] <= 1e-11
    more = replace(cell, seeds=(0, 1, 2))
    assert cell_of(more).cost == pytest.approx(3 * cell_of(cell).cost)
    usual = FalseAlarmCell("cemverify:fast", ("gradient/mlp/silu",), 6, (0,), False, Code.here(None))
    assert cell_of(usual).cost < cell_of(replace(usual, costly=True)).cost


def test_a_measurement_of_other_code_is_refused() -> None:
    """For instance by a cluster worker with another version installed."""
    code = replace(Code.here(None), package="of another version")
    with pytest.raises(UsageError, match=r"different code than the one that was asked for \(package\)"):
        measure(DetectionCell("ascent", "gradient/attention/plain", 15, (0,), None, code))


def test_the_code_of_a_measurement_is_all_that_it_imports_and_a_module_is_judged_without_torchs_compiler() -> None:
    """Importing the compiler takes a second in each process of a check."""
    program = """
import sys
from cemverify.power import cells, mutants
cells.measure(cells.DetectionCell("ascent", "gradient/attention/plain", 15, (0,), None, cells.Code.here(None)))
print(*{name.split(".")[1] for name in sys.modules if name.startswith("cemverify.")})
from cemverify import check_implementation
from examples.attention_module import mine
(record,) = check_implementation(mine, properties=["gradient/attention/plain"], examples=2)
print(record.verdict.value, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    imported, judged = done.stdout.splitlines()
    assert set(imported.split()) - {"_version"} == set(ROOMS)
    assert judged == "holds False"


def test_the_codes_of_a_measurement_and_of_an_implementation_are_digests_of_their_files(here: Path) -> None:
    digest, root = hashlib.sha256(), Path(cemverify.__file__).parent
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    for path in (path for path in files if path != root / "power" / "pages.py"):  # which no measurement uses
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    assert Code.here(None).package == digest.hexdigest()[:16]
    file = here / "mine_for_the_digest.py"
    file.write_text("one = 1\n")
    before = Code.here("mine_for_the_digest:one")
    file.write_text("one = 2\n")
    after = Code.here("mine_for_the_digest:one")
    assert before.implementation != after.implementation
    assert before.package == after.package == Code.here("reference").package
    assert Code.here("reference").implementation == ""


def test_a_failed_measurement_leaves_a_survivor_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(cells, "_judge", failing)
    plan = PowerPlan(seeds=2, budgets=(5,), families=("block",), sweep=False, bank=("cemverify:reference",))
    power = measure_power(plan, RunOptions(tmp_path, workers=0))
    assert power.killed == 0
    assert {m.otherwise for m in power.applicable} == {"seed 0: failed, MemoryError: no memory"}
    (alarms,) = power.alarms
    assert (alarms.alarms, alarms.undecided) == (0, alarms.runs)


def test_a_run_writes_what_the_schema_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_QUICK.split(), "--json", "p.json", "--markdown", "p.md"]) in (0, 1)
    printed = capsys.readouterr().out
    content = envelope.read(here / "p.json")
    assert f"{content['killed']} of {content['total']} mutants were killed" in printed
    assert "## How to read it" in (here / "p.md").read_text()


# --- the page: every table, number by number, for a made-up measurement ---

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


def test_tables_have_scores_shares_by_budget_false_alarms_and_smallest_faults_as_they_were_measured() -> None:
    assert families_table(POWER).rows == [(ASCENT.family, 1, 1, "100%"), ("mlp", 1, 0, "0%"), ("all", 2, 1, "50%")]
    first = (ASCENT.id, ASCENT.property, "75%", "100%", "0.83 … 1.00", "2")
    second = (OTHER.id, OTHER.property, "0%", "5%", "0.00 … 0.25", "7")
    assert mutants_table(POWER, POWER.applicable, "Mutants").rows == [first, second]
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
    assert f"| {OTHER.id} " in page.split("## Mutation score")[1].split("<details>")[0]  # survivors come first
