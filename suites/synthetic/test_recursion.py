"""The recursion study: paired, repeatable and resumable."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cemverify.console.errors import UsageError
from cemverify.results.envelope import read, tables_of
from cemverify.runs.plain import plain
from synthetic.__main__ import main
from synthetic.studies.recursion.cells import ModelCell, TaskCell, compute_model, compute_task, read_runs, read_task
from synthetic.studies.recursion.contenders import FAMILIES, Contender
from synthetic.studies.recursion.ensembles import Recipe
from synthetic.studies.recursion.findings import admit
from synthetic.studies.recursion.presets import PRESETS, RecursionConfig
from synthetic.studies.recursion.references import REFERENCES
from synthetic.studies.recursion.regressors import CEMSpec

TINY = RecursionConfig(depths=(1, 2), seeds=3, train_points=256, test_points=128, recipe=Recipe(steps=60))
(RBF,) = TINY.priors
cem, reused = FAMILIES["cem"].contenders, FAMILIES["reused"].contenders


def runs(contender: Contender, config: RecursionConfig = TINY) -> list[Any]:
    payload = compute_model(ModelCell(config.replicates(RBF), contender, config.recipe))
    return [*read_runs(json.loads(json.dumps(payload, allow_nan=False)))]


def test_a_cell_repeats_bit_for_bit() -> None:
    (_, deep) = cem((1, 2))
    assert runs(deep) == runs(deep)


def test_another_draw_has_other_weights_on_the_same_functions() -> None:
    (first,) = cem((1,))
    assert runs(first) != runs(replace(first, draw=1))


@pytest.mark.slow
def test_the_model_beats_ridge_clearly_and_stays_above_the_floor() -> None:
    config = replace(PRESETS["smoke"].config, seeds=1)
    task = read_task(compute_task(config.task_cells(RBF)[0]))
    (run,) = runs(cem((2,))[0], config)
    assert task.floor < run.score.expected < 0.75 * task.scores["ridge"].expected
    assert task.scores["exact GP (floor)"].expected == pytest.approx(task.floor)
    assert task.scores["GP, fitted"].expected < 1.1 * task.floor


def test_the_energy_falls_on_the_way_down_and_is_reported_for_every_step() -> None:
    (_, deep) = cem((1, 2))
    for run in runs(deep):
        assert (len(run.energies), len(run.norms), len(run.falls)) == (3, 3, 2)
        assert all(0 <= share <= 1 for share in run.falls)
        # a mean cannot rise where every energy falls
        assert all(b < a for a, b, f in zip(run.energies, run.energies[1:], run.falls, strict=False) if f == 1)


def test_a_model_without_an_energy_reports_none() -> None:
    (record, *_) = runs(reused((2,))[0])
    assert record.energies is record.norms is record.falls is None
    assert record.score is not None


def test_at_its_own_depth_the_test_time_error_is_the_error() -> None:
    (_, deep) = cem((1, 2))
    for run in runs(deep):
        assert run.at_depth[1] == run.score.expected


def test_points_that_stop_by_energy_are_scored_with_the_steps_they_took() -> None:
    (_, deep) = cem((1, 2))
    cell = ModelCell(TINY.replicates(RBF), deep, TINY.recipe)
    assert "stops" not in plain(cell)
    assert all("at_stops" not in run for run in compute_model(cell)["runs"])
    for run, unstopped in zip(
        read_runs(json.loads(json.dumps(compute_model(replace(cell, stops=(1.0, 1e-9)))))), runs(deep), strict=True
    ):
        early, late = run.at_stops
        assert replace(run, at_stops=()) == unstopped
        assert 2 <= early.steps < late.steps <= 16  # a first step that falls is never the last
        assert early.figure is not None
        assert early.figure not in run.at_depth  # points stop at different steps
        assert late.least_fall == 1e-9


def test_a_model_without_an_energy_never_stops() -> None:
    (shallow,) = reused((1,))
    cell = ModelCell(TINY.replicates(RBF), shallow, TINY.recipe, (0.5,))
    assert [run.at_stops for run in read_runs(compute_model(cell))] == [()] * TINY.seeds


@pytest.mark.parametrize("preconditioner", ["diagonal", "low-rank"])
def test_a_preconditioner_that_is_positive_by_construction_is_reported_positive(preconditioner: str) -> None:
    spec = CEMSpec(width=12, hidden=16, preconditioner=preconditioner, step_size="learned")  # type: ignore[arg-type]
    for run in runs(Contender("test", spec)):
        assert run.smallest_eigenvalue > 0
        assert run.step_size > 0


def test_training_that_blows_up_is_reported_with_its_step_and_every_other_figure_left_out() -> None:
    wild = replace(TINY, recipe=Recipe(steps=60, learning_rate=1e4))
    for run in runs(cem((8,))[0], wild):
        assert run.diverged_at is not None
        assert (run.score, run.train_rmse, run.energies) == (None, None, None)
        assert set(run.at_depth) == {None}


def test_a_task_is_scored_by_every_reference_and_none_is_below_the_floor() -> None:
    task = read_task(compute_task(TaskCell(TINY.replicates(RBF)[0])))
    first, *_, last = task.scores
    assert (first, last) == ("prior mean", "exact GP (floor)")
    assert all(score.expected >= task.floor for score in task.scores.values())
    assert all(math.isfinite(score.observed) for score in task.scores.values())


@pytest.mark.gpu
def test_training_on_a_gpu_finds_about_the_same_errors() -> None:
    (shallow,) = cem((1,))
    for here, there in zip(
        runs(shallow), runs(shallow, replace(TINY, recipe=Recipe(60, device="cuda"))), strict=True
    ):
        assert there.score.expected == pytest.approx(here.score.expected, rel=0.05)


def test_a_prior_with_nothing_to_learn_is_refused_and_a_declared_negative_control_is_not() -> None:
    def record(floor: float, linear: float) -> dict[str, Any]:
        score = {"expected": linear, "observed": linear, "excess": 0.0}
        scores = dict.fromkeys(REFERENCES, score)
        return {"floor": floor, "prior_std": 1.0, "jitter": 0.0, "sampling": "exact", "scores": scores}

    def cells(config: RecursionConfig) -> list[TaskCell]:
        return [cell for prior in config.priors for cell in config.task_cells(prior)]

    admit(TINY, dict.fromkeys(cells(TINY), record(0.3, 0.9)))
    with pytest.raises(UsageError, match="nothing to learn"):
        admit(TINY, dict.fromkeys(cells(TINY), record(0.85, 0.9)))
    with pytest.raises(UsageError, match="nothing beyond linear"):
        admit(TINY, dict.fromkeys(cells(TINY), record(0.01, 0.09)))
    admit(
        replace(TINY, priors=("matern12",)),
        dict.fromkeys(cells(replace(TINY, priors=("matern12",))), record(0.85, 0.9)),
    )


# --- the command --------------------------------------------------------------------------------


SMALL = ("recursion", "--preset", "smoke", "--train-points", "256", "--prior", "warped", "--models", "cem", "again")


@pytest.mark.slow
def test_the_same_command_gives_the_same_tables_and_page_with_any_workers_and_from_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, results, pages = [], [], []
    for number, (store, workers) in enumerate((("a", "0"), ("b", "2"), ("b", "2"))):
        page, output = tmp_path / str(number) / "recursion.md", tmp_path / f"{number}.json"
        places = ("--store", str(tmp_path / store), "--output", str(output), "--page", str(page))
        assert main([*SMALL, "--workers", workers, *places]) == 0
        texts.append(capsys.readouterr().out.replace(str(page), ""))
        results.append(read(output))
        beside = [path for path in page.parent.iterdir() if path.suffix != ".json"]  # which says when it was made
        told = {path.name: path.read_text() for path in beside}
        again = tmp_path / "again" / f"{number}.md"
        for file in (page.with_suffix(".json"), output):
            assert main(["recursion", "--report", str(file), "--page", str(again.with_name("recursion.md"))]) == 0
            assert {name: (again.parent / name).read_text() for name in told} == told
        capsys.readouterr()
        told["recursion.md"] = told["recursion.md"].replace(str(page), "").replace(str(tmp_path / store), "")
        pages.append({**told, "ratios": json.dumps(read(page.with_suffix(".json"))["ratios"])})
    assert texts[0] == texts[1] == texts[2]
    assert pages[0] == pages[1] == pages[2]
    for other in results[1:]:
        assert tables_of(other) == tables_of(results[0])
        for key in ("tasks", "rows", "statements"):
            assert other[key] == results[0][key]
    cells = [{p.name: p.read_bytes() for p in (tmp_path / store).glob("??/*.json")} for store in ("a", "b")]
    assert cells[0] == cells[1]
    assert all(task["floor"] < task["scores"]["ridge"]["expected"] for task in results[0]["tasks"])
    text = pages[0]["recursion.md"]
    assert "T = 2 usually improves on T = 1" in text
    assert {"model": "T = 2", "baseline": "T = 1"}.items() <= json.loads(pages[0]["ratios"])[0].items()
    for figure in ("ratios", "costs", "test-time"):
        assert f"(recursion-{figure}.svg)" in text
        assert pages[0][f"recursion-{figure}.svg"].startswith("<?xml")


def test_a_page_is_made_again_of_files_that_have_the_rows_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = Path(__file__).parents[2] / "docs" / "results" / "dial-mlp.json"
    page = tmp_path / "page.md"
    for words, sentence in (
        (["--report", str(published), "--page", str(page)], "has no rows of a recursion study"),
        (["--report", str(published)], "name the page with --page"),
        (["--report", str(page), "--page", str(page)], "would be overwritten"),
    ):
        assert main(["recursion", *words]) == 2
        assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
