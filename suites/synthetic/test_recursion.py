"""The recursion study: paired, repeatable, resumable, and what it concludes from its cells."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import CEMGatedMLP, MLPConfig
from cemverify.console.errors import UsageError
from cemverify.results.envelope import Table, read, tables_of
from cemverify.results.statistics import compare
from cemverify.runs.plain import plain
from suites.kit.commands import Told
from synthetic.figures.sheets import plain as as_table
from synthetic.gp.tasks import Score, Stream, Streams
from synthetic.studies.engine.conduct import WantedCells, follow
from synthetic.studies.engine.rates import HIGHEST, rate
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.recursion import findings, pictures
from synthetic.studies.recursion.cells import (
    TEST_DEPTHS,
    ModelCell,
    RunRecord,
    TaskCell,
    TaskRecord,
    compute_model,
    compute_task,
    read_runs,
    read_task,
)
from synthetic.studies.recursion.contenders import CEM, FAMILIES, Contender, cost_of, family, stack
from synthetic.studies.recursion.ensembles import Recipe, Stack, fit
from synthetic.studies.recursion.findings import Predictor, admit, choose_rate, entry, summarise
from synthetic.studies.recursion.own import OwnSpec, _loaded, specs
from synthetic.studies.recursion.page import page_of
from synthetic.studies.recursion.presets import PRESETS, RecursionConfig
from synthetic.studies.recursion.references import REFERENCES
from synthetic.studies.recursion.regressors import CEMSpec, DrawnSpec, GatedMLPSpec, RegressorStack, Spec
from synthetic.studies.recursion.rows import by_depth, errors, far_above
from synthetic.studies.recursion.tables import headline, sheets
from synthetic.studies.recursion.worth import exponent, sentences, worth

TINY = RecursionConfig(depths=(1, 2), seeds=3, train_points=256, test_points=128, recipe=Recipe(steps=60))
(RBF,) = TINY.priors
OWN = "suites.synthetic.own_models"


def runs(contender: Contender, config: RecursionConfig = TINY) -> list[Any]:
    payload = compute_model(ModelCell(config.replicates(RBF), contender, config.recipe))
    return [*read_runs(json.loads(json.dumps(payload, allow_nan=False)))]


def test_a_cell_repeats_bit_for_bit_and_another_draw_has_other_weights_on_the_same_functions() -> None:
    (_, deep) = cem((1, 2))
    assert (first := runs(deep)) == runs(deep)
    assert first != runs(replace(deep, draw=1))


@pytest.mark.slow
def test_the_model_beats_ridge_clearly_and_stays_above_the_floor() -> None:
    config = replace(PRESETS["smoke"].config, seeds=1)
    task = read_task(compute_task(config.task_cells(RBF)[0]))
    (run,) = runs(cem((2,))[0], config)
    assert task.floor < run.score.expected < 0.75 * task.scores["ridge"].expected
    assert task.scores["exact GP (floor)"].expected == pytest.approx(task.floor)
    assert task.scores["GP, fitted"].expected < 1.1 * task.floor


def test_the_energy_falls_with_every_step_and_the_error_at_a_models_own_depth_is_its_error() -> None:
    (_, deep) = cem((1, 2))
    for run in runs(deep):
        assert run.at_depth[1] == run.score.expected
        assert (len(run.energies), len(run.norms), len(run.falls)) == (3, 3, 2)
        assert all(0 <= share <= 1 for share in run.falls)
        # a mean cannot rise where every energy falls
        assert all(b < a for a, b, f in zip(run.energies, run.energies[1:], run.falls, strict=False) if f == 1)


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
        assert 2 <= early.steps < late.steps <= 16  # a first step that lowers the energy is never the last
        assert early.figure is not None
        assert early.figure not in run.at_depth  # points stop at different steps
        assert late.least_fall == 1e-9


def test_a_model_without_an_energy_reports_none_and_never_stops() -> None:
    records = read_runs(compute_model(ModelCell(TINY.replicates(RBF), reused((2,))[0], TINY.recipe, (0.5,))))
    assert [(r.energies, r.norms, r.falls, r.at_stops) for r in records] == [(None, None, None, ())] * TINY.seeds
    assert None not in [r.score for r in records]


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


@pytest.mark.parametrize(
    ("prior", "floor", "linear", "refusal"),
    [
        ("rbf", 0.3, 0.9, None),
        ("rbf", 0.85, 0.9, "nothing to learn"),
        ("rbf", 0.01, 0.09, "nothing beyond linear"),
        ("matern12", 0.85, 0.9, None),  # a declared negative control
    ],
)
def test_a_prior_with_nothing_to_learn_is_refused(
    prior: str, floor: float, linear: float, refusal: str | None
) -> None:
    score = {"expected": linear, "observed": linear, "excess": 0.0}
    scores = dict.fromkeys(REFERENCES, score)
    record = {"floor": floor, "prior_std": 1.0, "jitter": 0.0, "sampling": "exact", "scores": scores}
    config = replace(TINY, priors=(prior,))
    cells = config.task_cells(config.priors[0])
    with nullcontext() if refusal is None else pytest.raises(UsageError, match=refusal):
        admit(config, dict.fromkeys(cells, record))


# --- the command --------------------------------------------------------------------------------


SMALL = "synthetic recursion --preset smoke --train-points 64 --prior warped --models cem"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words", "figures"),
    [
        (SMALL, "T = 2 usually improves on T = 1", ("ratios", "costs", "test-time")),
        pytest.param(
            "synthetic recursion --preset context-smoke --models block llama-layers",
            *("RMSE after n points of a function", ("points", "ratios", "costs")),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["functions", "functions from context"],
)
def test_the_same_command_gives_the_same_tables_and_page_from_workers_and_from_the_store(
    line: str, words: str, figures: Sequence[str], tmp_path: Path, told: Told
) -> None:
    made = []
    for number, (store, workers) in enumerate((("a", "0"), ("a", "0"), ("b", "2"))):
        page, output = tmp_path / str(number) / "recursion.md", tmp_path / f"{number}.json"
        printed = told(f"{line} --workers {workers} --store {tmp_path / store} --output {output} --page {page}")
        assert f"python -m reports pictures {output}\n" in printed.err
        files = {path.name: path.read_text() for path in page.parent.iterdir() if path.suffix != ".json"}
        again = tmp_path / "again" / str(number) / "recursion.md"
        for file in (page.with_suffix(".json"), output) if number == 0 else ():
            told(f"synthetic recursion --report {file} --page {again}")
            assert {name: (again.parent / name).read_text() for name in files} == files
        # the paths are part of the command on the page
        files["recursion.md"] = files["recursion.md"].replace(str(page), "").replace(str(tmp_path / store), "")
        content, readings = read(output), read(page.with_suffix(".json"))
        whole = [content[key] for key in ("tasks", "rows", "statements")]
        made.append((printed.out.replace(str(page), ""), files, readings["ratios"], tables_of(content), whole))
    assert made[1] == made[0]
    assert made[2] == made[0]
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / store).glob("??/*.json")} for store in "ab")
    assert a == b
    _, files, ratios, _, (tasks, _, _) = made[0]
    assert all(task["floor"] < task["scores"]["ridge"]["expected"] for task in tasks)
    assert words in files["recursion.md"]
    assert {"model": "T = 2", "baseline": "T = 1"}.items() <= ratios[0].items()
    assert set(files) == {"recursion.md", *(f"recursion-{figure}.svg" for figure in figures)}
    for figure in figures:
        assert f"(recursion-{figure}.svg)" in files["recursion.md"]
        assert files[f"recursion-{figure}.svg"].startswith("<?xml")


# --- conclusions: rates chosen on held-out points, nothing averaged away ------------------------------


SEEDS = 8
cem, again, narrow, reused, untied = (
    FAMILIES[name].contenders for name in ("cem", "again", "narrow", "reused", "untied")
)


def score(error: float) -> Score:
    return Score(error, error * 1.01, error * 0.9)


FACTORS = {"prior mean": 10, "ridge": 4, "exact GP": 1}  # ratios of the error to the floor of a task
TASKS = [
    TaskRecord(floor, 1.0, 0.0, "exact", {name: score(floor * factor) for name, factor in FACTORS.items()})
    for floor in (0.1 + 0.01 * seed for seed in range(SEEDS))
]


def run(error: float, held_out: float | None = None, diverged_at: int | None = None) -> RunRecord:
    sound = diverged_at is None
    return RunRecord(
        score=score(error) if sound else None,
        train_rmse=error,
        held_out_rmse=error if held_out is None else held_out,
        best_step=100,
        diverged_at=diverged_at,
        at_depth=tuple(error if sound else None for _ in TEST_DEPTHS),
        energies=(0.0, -1.0),
        norms=(1.0, 2.0),
        falls=(1.0,),
        smallest_eigenvalue=None,
        step_size=None,
    )


def runs_of(factor: float, wobble: float = 0.004) -> list[RunRecord]:
    """Errors at a multiple of each task's floor, with small variations that differ between factors."""
    wobbles = [1 + wobble * ((7 * i + int(1000 * factor)) % 5 - 2) for i in range(SEEDS)]
    return [run(2 * task.floor * factor * w) for task, w in zip(TASKS, wobbles, strict=True)]


def rows_of(factors: dict[Contender, float], tasks: Sequence[TaskRecord] = TASKS) -> list[Any]:
    records = {contender: {1e-2: runs_of(factor)[: len(tasks)]} for contender, factor in factors.items()}
    return summarise(tasks, records)


def content_of(rows: Sequence[Predictor], prior: str = "rbf(lengthscale=2)") -> dict[str, Any]:
    """The rows as in a result file."""
    entries: list[dict[str, Any]] = json.loads(json.dumps([entry(prior, row) for row in rows]))
    made = {"configuration": {"noise": 0.1, "rates": [1e-2], "train_points": 64, "test_points": 64}}
    return {"rows": entries, "tasks": [{"prior": prior, "sampling": "exact"}], "made_by": made}


def tables_of_rows(rows: Sequence[Predictor]) -> dict[str, Table]:
    """The tables of the rows, by their names."""
    return {sheet.name: as_table(sheet) for sheet in sheets(content_of(rows))}


def by_name(rows: Sequence[Predictor]) -> dict[str, Any]:
    return {row.name: row for row in rows}


def test_a_rate_at_which_a_run_diverged_is_not_chosen() -> None:
    assert choose_rate({1e-2: [run(0.5), run(0.5)], 1e-1: [run(0.1), run(0.1, diverged_at=3)]}) == 1e-2


@pytest.mark.parametrize(
    ("best", "given", "tried", "at_edge"),
    [
        (1e-2, (), [4e-3, 8e-3, 1.6e-2, 3.2e-2], False),
        (1e-3, (), [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2], False),
        (5e-2, (), [4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128], False),
        (1e9, (), [rate(k) for k in range(1, HIGHEST + 1)], True),
        (1e-2, (1e-3, 1e-2), [1e-3, 1e-2], True),
    ],
)
def test_rates_double_until_the_best_has_a_worse_one_on_both_sides(
    best: float, given: tuple[float, ...], tried: list[float], at_edge: bool
) -> None:
    """On held-out points the rate nearest to `best` wins; on test points, which choose nothing, the lowest does."""
    config = replace(TINY, depths=(1,), seeds=SEEDS, rates=given)

    def look(wanted: WantedCells) -> list[Any]:
        rates = [cell.spec["recipe"]["learning_rate"] if "recipe" in cell.spec else None for cell in wanted.cells]
        octaves = {r: abs(math.log2(r / best)) for r in rates if r}
        found = [[run(1 + r, held_out=1 + octaves[r]) for _ in TASKS] if r else None for r in rates]
        tasks = iter([replace(task, scores=dict.fromkeys(REFERENCES, score(0.5))) for task in TASKS])
        return [asdict(next(tasks)) if runs is None else {"runs": list(map(asdict, runs))} for runs in found]

    (row,) = (r for r in follow(findings.study(config), look).result["rows"] if r["contender"])
    assert [r for r, _ in row["tried"]] == tried
    assert (row["learning_rate"], row["at_edge"]) == (min(tried, key=lambda r: abs(math.log2(r / best))), at_edge)


def test_an_estimate_counts_trainings_and_trains_nothing(tmp_path: Path, told: Told) -> None:
    text = told(f"{SMALL} --rates 0.01 0.02 --estimate --store {tmp_path / 'store'}").out
    line = next(line.split() for line in text.splitlines() if line.startswith("warped"))
    assert (line[-5:-2], line[-1], "a search taken to try" in text) == (["2", "2", "4"], "s", False)
    assert not (tmp_path / "store").exists()


def test_the_page_of_one_model_for_all_depths_begins_with_that_model() -> None:
    drawn = FAMILIES["drawn"].contenders((1, 2))[0]
    page = page_of({**content_of(rows_of({cem((1,))[0]: 1.0, drawn: 0.9})), "statements": []})
    assert str(page.blocks[0]).startswith("- **rbf.** The best of the models for all T (*T drawn*) has an error of")


def test_a_contender_of_which_a_run_diverged_has_no_mean_and_says_how_many_did() -> None:
    contender = cem((1,))[0]
    broken = [*runs_of(1.0)[:-1], run(1.0, diverged_at=7)]
    rows = summarise(TASKS, {contender: {1e-2: broken}})
    row = by_name(rows)["CEM, T = 1"]
    assert (row.diverged, row.rmse, row.gap_closed) == (1, None, None)
    table = tables_of_rows(rows)["errors"]
    assert any("diverged 1/8" in str(cell) for line in table.rows for cell in line)


def test_every_depth_is_compared_with_its_familys_smallest_and_with_cem_at_its_own() -> None:
    shallow, deep = cem((1, 2))
    once, twice = reused((1, 2))
    (aa,) = again((1, 2))  # a family of one
    rows = by_name(rows_of({shallow: 1.0, deep: 0.9, once: 1.1, twice: 1.21, aa: 1.0}))
    assert rows[aa.name].deeper.conclusion == "equivalent"
    assert rows["CEM, T = 1"].deeper is None
    deeper = rows["CEM, T = 2"].deeper
    assert deeper.conclusion == "better"
    assert deeper.ratio.mean == pytest.approx(0.9, abs=0.01)
    reuse = rows["MLP reused, T = 2"]
    assert reuse.deeper.ratio.mean == pytest.approx(1.1, abs=0.01)
    assert reuse.same_depth.ratio.mean == pytest.approx(1.21 / 0.9, abs=0.01)
    assert reuse.deeper.holm >= reuse.deeper.t_test


def test_a_first_layer_is_not_trained_again_beside_the_first_step_that_it_is() -> None:
    alone, beside = (replace(TINY, families=names).contenders(RBF) for names in (("layers",), ("cem", "layers")))
    assert [c.name for c in alone] == ["CEM, T layers, T = 1", "CEM, T layers, T = 2"]
    assert [c.name for c in beside] == ["CEM, T = 1", "CEM, T = 2", "CEM, T layers, T = 2"]
    rows = rows_of(dict(zip(beside, (1.0, 0.9, 0.8), strict=True)))
    assert by_name(rows)["CEM, T layers, T = 2"].deeper.ratio.mean == pytest.approx(0.8, abs=0.01)
    assert list(by_depth(content_of(rows)["rows"], "CEM, T layers")) == [1, 2]


def test_an_own_model_is_counted_trained_and_judged_like_the_rest() -> None:
    (mlp,), (once, twice) = (family(f"{OWN}:{name}").contenders((1, 2)) for name in ("mlp", "looped"))
    rows = rows_of({cem((1,))[0]: 1.0, mlp: 0.9, once: 1.1, twice: 1.21})
    named = by_name(rows)
    cost, same = named[f"{OWN}:mlp"].cost, named[f"{OWN}:mlp"].same_depth
    assert (cost.parameters, cost.inference.matmul, same) == (10 * 8 + 8 + 8 + 1, 2 * (10 * 8 + 8), None)
    assert named[mlp.name].deeper.ratio.mean == pytest.approx(0.9, abs=0.01)
    assert named[f"{OWN}:looped, T = 2"].deeper.ratio.mean == pytest.approx(1.1, abs=0.01)
    (first, *_) = found = runs(mlp)
    assert found == runs(mlp)  # although the dropout draws random numbers
    assert first.score.expected < read_task(compute_task(TINY.task_cells(RBF)[0])).prior_std
    assert (first.at_depth, first.energies) == ((), None)


def test_an_edited_own_model_is_trained_again_and_not_taken_for_the_old_one(here: Path) -> None:
    found: list[OwnSpec] = []
    for words in ("as it was", "edited"):
        text = f"from torch import nn\n\nmodel = lambda dim: nn.Linear(dim, 1)  # {words}\n"
        (here / "edited_model.py").write_text(text)
        _loaded.cache_clear()
        specs.cache_clear()
        found += specs("edited_model:model", (1, 2), 10)
    assert found[0] != found[1]
    with pytest.raises(UsageError, match="not the one that the study began with"):
        stack(found[0], 10, streams(0))


def test_references_stand_first_and_the_floor_last_with_its_gap_closed() -> None:
    rows = rows_of({cem((1,))[0]: 1.5})
    assert [row.name for row in rows] == ["prior mean", "ridge", "CEM, T = 1", "exact GP"]
    assert rows[-1].gap_closed.mean == pytest.approx(1.0)


def test_sizes_are_matched_exactly() -> None:
    at = {T: cost_of(contender.spec) for T, contender in zip((1, 8), cem((1, 8)), strict=True)}
    assert at[8].inference.matmul - at[1].inference.matmul == 7 * 4 * CEM.width * CEM.hidden
    assert 2.5 * at[1].inference.matmul < at[1].training.matmul <= 3 * at[1].inference.matmul
    assert at[1].parameters == at[8].parameters
    same, parameters, flops = (cost_of(contender.spec) for contender in untied((1, 8)))
    assert same.inference.matmul == at[1].inference.matmul
    assert parameters.parameters == at[1].parameters
    assert flops.inference.matmul == at[8].inference.matmul
    assert cost_of(narrow((1, 8))[0].spec).inference.matmul == at[1].inference.matmul


WARPED = "warped(rbf(lengthscale=2))"


@pytest.mark.parametrize(
    ("statement", "factors", "reading", "prior"),
    [
        (0, (1.0, 0.9), "agrees", "rbf"),
        (0, (1.0, 1.1), "disagrees", "rbf"),
        (0, (1.0, 1.0), "undecided", "rbf"),
        (0, (1.0,), "not asked", WARPED),
        (1, (1.0, 0.9, 0.8, 0.85), "agrees", "rbf"),
        (1, (1.0, 0.7, 0.8, 0.9), "disagrees", "rbf"),
        (1, (1.0, 0.9, 0.8, 0.8), "undecided", "rbf"),
        (1, (1.0, 0.9, 0.8), "undecided", "rbf"),
        (1, (1.0, 0.7, 0.8, 0.9), "undecided", WARPED),  # a prior that is not the paper's, and cannot refute it
        (1, (1.0,), "not asked", WARPED),
    ],
)
def test_the_statements_on_the_second_step_and_the_best_depth_are_read_by_their_rules(
    statement: int, factors: tuple[float, ...], reading: str, prior: str
) -> None:
    studied = rows_of(dict(zip(cem((1, 2, 4, 8)[: len(factors)]), factors, strict=True)))
    content = content_of(studied, "rbf(lengthscale=2)" if prior == "rbf" else prior)
    found = findings.read(content)[statement]
    assert (found.reading, "T = 8 was not run" in found.found) == (reading, len(factors) == 3)
    tie = statement == 1 and factors.count(min(factors)) > 1
    assert ("smallest geometric mean at T" in found.found) == tie


def test_priors_of_one_kernel_are_told_apart_and_a_sum_is_no_process_of_the_papers() -> None:
    studied = ["rbf(lengthscale=2)", "rbf(lengthscale=4)", f"{WARPED} + 0.1*linear"]
    rows = rows_of(dict(zip(cem((1, 2)), (1.0, 0.9), strict=True)))
    content = content_of(rows) | {"rows": [row for prior in studied for row in content_of(rows, prior)["rows"]]}
    second, *best = findings.read(content)
    assert re.findall("On (.*?)(?:, CEM's RMSE.*?)?: ", headline(content)) == studied
    assert [part.partition(": ")[0] for part in second.found.split("; ")] == studied
    assert [statement.found.partition(": ")[0] for statement in best] == studied[:2]


def test_a_statement_reads_the_verdict_that_the_table_beside_it_shows() -> None:
    """A single test would call this difference significant; among the many rows of the table it is not."""
    rivals = [c for name in ("unlifted", "normed", "diagonal", "reused") for c in FAMILIES[name].contenders((1, 2))]
    records = {contender: {1e-2: runs_of(1.0)} for contender in [*cem((1, 2)), *rivals]}
    shallow, deep = cem((1, 2))
    errors = [0.95 * (1 + 0.05 * (-1) ** seed) * r.score.expected for seed, r in enumerate(runs_of(1.0)) if r.score]
    records[deep] = {1e-2: [run(error) for error in errors]}
    rows = by_name(summarise(TASKS, records))
    assert compare(rows[deep.name].errors, rows[shallow.name].errors).conclusion == "better"
    assert entry("rbf", rows[deep.name])["deeper"]["conclusion"] == "inconclusive"
    content = content_of(list(rows.values()))
    assert re.search(r"that at T = 1: 0\.\d+ \[0\.\d+, 0\.\d+\] at T = 2, inconclusive", headline(content))
    statement = findings.read(content)[0]
    assert statement.found.endswith("inconclusive")
    assert statement.reading == "undecided"


def test_layers_of_their_own_have_their_weights_and_begin_as_one_step_does() -> None:
    one, two = (cast(Any, RegressorStack(replace(CEM, layers=n), 10, streams(0, 1))) for n in (1, 2))
    points = torch.randn(2, 5, 10, generator=torch.Generator().manual_seed(0))
    assert "layers" not in plain(CEM)  # so that stored cells keep their names
    assert torch.equal(one(points), RegressorStack(CEM, 10, streams(0, 1))(points))
    (second,) = two.further
    assert not torch.equal(second.V, two.core.V)
    with torch.no_grad():
        second.V.zero_()  # then its energy is constant
    assert torch.equal(two(points), one(points))
    stacked, deep = (cost_of(c.spec) for c in (FAMILIES["layers"].contenders((4,))[0], cem((4,))[0]))
    assert stacked.parameters - deep.parameters == 3 * 2 * CEM.width * CEM.hidden
    assert stacked.inference.matmul - deep.inference.matmul == 3 * 2 * CEM.width * CEM.hidden
    assert all(r.at_depth == () and r.energies is None for r in runs(FAMILIES["layers"].contenders((2,))[0]))


def curves(exponents: dict[int, float], seed: int, functions: int = 10) -> dict[int, list[float]]:
    """Errors on functions of different difficulty: n^-exponent, with noise of 2 %."""
    noise = torch.Generator().manual_seed(seed)
    levels = 0.3 * torch.randn(functions, generator=torch.Generator().manual_seed(0))
    at = {n: levels - e * math.log(n) + 0.02 * torch.randn(functions, generator=noise) for n, e in exponents.items()}
    return {n: logs.exp().tolist() for n, logs in at.items()}


DEPTHS = (1, 2, 4, 8)
SEARCHED: dict[str, Any] = {"made_by": {"configuration": {"rates": ()}}}


def test_intervals_of_worth_and_exponent_cover_the_truth_in_95_of_100_studies() -> None:
    covered, fitted, total = [0, 0], 0, 200
    for seed in range(total):
        stacks, steps = (curves(dict.fromkeys(DEPTHS, e), 2 * seed + i) for i, e in enumerate((0.3, 0.15)))
        fit: Any = exponent(steps, stacks)
        for i, (found, truth) in enumerate(((worth(steps[4], stacks), 2.0), (fit[0], 0.5))):
            covered[i] += found.low <= truth <= found.high
        fitted += fit[1] >= 0.05
    # 5 of 100 miss, within four standard deviations
    assert all(abs(count / total - 0.95) < 4 * math.sqrt(0.05 * 0.95 / total) for count in (*covered, fitted))


def test_steps_beyond_the_stacks_have_a_bound_and_what_is_no_power_of_t_has_no_exponent() -> None:
    stacks = curves(dict.fromkeys(DEPTHS, 0.3), 0)
    better, worse = ([e * factor for e in stacks[1]] for factor in (0.1, 1.5))
    assert worth(better, stacks).shown("1", "8") == "> 8 [> 8, > 8]"
    assert worth(worse, stacks).shown("1", "8") == "< 1 [< 1, < 1]"
    flat = curves({1: 0.0, 2: 0.3, 4: 0.15, 8: 0.0}, 1)  # worth 2, 2, 1
    (none,) = sentences(SEARCHED, content_rows(flat, stacks))
    test = r"worth = T\^phi does not fit \(Hotelling's test, p < 0.001\)"
    assert re.fullmatch(rf"CEM: 2 steps are worth [12]\.\d+ \[.*\] layers; .*; {test}\.", none)
    (power,) = sentences(SEARCHED, content_rows(curves(dict.fromkeys(DEPTHS, 0.15), 1), stacks))
    assert re.search(r"; worth = T\^phi with phi = 0\.\d\d \[0\.\d\d, 0\.\d\d\]\.$", power)


def test_worth_is_told_only_where_stacks_improve_and_functions_are_enough() -> None:
    steps = curves(dict.fromkeys(DEPTHS, 0.2), 1)  # worth 1.6, 2.5 and 4 layers, if more layers help
    (short,) = sentences(SEARCHED, content_rows(steps, curves({1: 0.3, 2: 0.3, 4: 0.1, 8: 0.0}, 0), at_edge=True))
    expected = r"CEM: 2 steps are worth 1\.\d+ \[.*\] layers; 4 .* > 2 \[> 2, > 2\] layers; 8 .* > 2 .* layers"
    assert re.fullmatch(rf"{expected}; worth is not defined beyond 2 layers: more are no better \(edge\)\.", short)
    (flat,) = sentences(SEARCHED, content_rows(steps, curves(dict.fromkeys(DEPTHS, -0.1), 0)))
    assert flat == "CEM: what steps are worth is not defined: more layers are no better than one."
    (few,) = sentences(
        SEARCHED, content_rows(*(curves(dict.fromkeys(DEPTHS, e), 0, 5) for e in (0.2, 0.3)), at_edge=True)
    )
    assert few == "CEM: what steps are worth: too few functions (6 needed)."


def content_rows(
    steps: dict[int, list[float]], stacks: dict[int, list[float]], *, at_edge: bool = False
) -> list[dict[str, Any]]:
    """Rows as `worth` reads them."""
    return [
        {
            "at_edge": at_edge,
            "contender": {"family": name},
            "depth": n,
            "diverged": 0,
            "runs": [{"score": {"expected": e}} for e in found],
        }
        for name, curve in (("CEM", steps), ("CEM, T layers", stacks))
        for n, found in curve.items()
    ]


def test_the_page_says_what_may_be_one_of_training_and_what_other_models_do() -> None:
    shallow, deep, *layers = [*cem((1, 2)), *FAMILIES["layers"].contenders((2,))]
    found = json.loads(json.dumps(content_of(rows_of({shallow: 1.0, deep: 0.95, layers[0]: 0.7}))))
    failed, sound = (row for row in found["rows"] if row["depth"] == 2)
    assert (far_above(errors(failed)), far_above(errors(sound)), far_above(errors(failed)[:5])) == (0, 0, 0)
    for run in failed["runs"][:2]:
        run["score"]["expected"] *= 4
    ridge = next(row for row in found["rows"] if row["name"] == "ridge")
    ridge["rmse"]["mean"] = 0.01
    found["made_by"]["configuration"] |= {"recipe": {"steps": 100}, "rates": [], "tuning": 2}
    failed["runs"][0]["best_step"] = 90
    of_models, of_training = page_of({**found, "statements": []}).blocks[:2]
    told = f"{of_models} {of_training}".replace("\n  ", " ").replace("\n", " ")
    for words in (
        r"Other models that differ most from T = 1: \*CEM, T layers, T = 2\*: 0\.70",
        r"Smallest mean RMSE of the models: \*CEM, T layers, T = 2\* \(0\.\d+\); smaller: .*\*ridge\* \(0\.010\)",
        r"Each of the 3 learning rates was found between two worse ones, on 2 of the 8 functions\.",
        r"Trainings that ended far above the others of their model: 2 of 8 of \*CEM, T = 2\* \(rbf\)\.",
        r"23 of 24 models still improved when training ended\.",
    ):
        assert re.search(words, told), told


def test_rows_are_found_whatever_their_titles_say() -> None:
    rivals = [c for name in ("reused", "untied", "again") for c in FAMILIES[name].contenders((1, 2, 4, 8))]
    factors = {c: 1.0 - 0.01 * i for i, c in enumerate([*cem((1, 2, 4, 8)), *rivals])}
    content = content_of(rows_of(factors))
    other = json.loads(json.dumps(content))
    for i, row in enumerate(row for row in other["rows"] if row["contender"]):
        row["name"] = f"nonsense {i}"
    assert findings.read(other) == findings.read(content)
    drawn = [str(pictures.panels(pictures.costs, made)) for made in (other, content)]
    assert (headline(other), drawn[0]) == (headline(content), drawn[1])


def test_tables_have_p_values_only_where_there_are_enough_functions() -> None:
    rows = rows_of(dict(zip(cem((1, 2)), (1.0, 0.9), strict=True)))
    assert "p (Holm)" in tables_of_rows(rows)["errors"].columns
    few = rows_of(dict.fromkeys(cem((1, 2)), 1.0), TASKS[:3])
    assert "p (Holm)" not in tables_of_rows(few)["errors"].columns


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_complete_and_every_family_can_be_built(name: str) -> None:
    config = PRESETS[name].config
    for prior in config.priors:
        assert len(config.task_cells(prior)) == config.seeds
        cells = config.model_cells(prior)
        assert len({(cell.contender, cell.recipe) for cell in cells}) == len(cells)
        # only one model for all depths has it
        assert {cell.stops for cell in cells} == ({STOPS} if name in ("dial", "paper") else {()})


def test_steps_that_sum_to_1_go_as_far_however_many_they_are() -> None:
    points = torch.randn(2, 5, 10, generator=torch.Generator().manual_seed(0))
    spec = CEMSpec(width=16, hidden=24, step_size="1/T")
    with torch.no_grad():
        shared, plain = (
            [RegressorStack(s, 10, streams(0, 1))(points, T) for T in (1, 2, 4, 64, 128)]
            for s in (spec, replace(spec, step_size="fixed"))
        )
    assert torch.equal(shared[0], plain[0])
    gaps = [float((b - a).norm()) for a, b in pairwise(shared)]
    assert gaps[-1] < 0.1 * gaps[0]  # the scheme converges to the flow
    assert float((plain[-1] - plain[-2]).norm()) > 10 * gaps[-1]


def test_a_drawn_depth_trains_one_model_for_all_of_them() -> None:
    spec = DrawnSpec(width=16, hidden=24, steps=4, step_size="1/T")
    points = torch.randn(2, 64, 10, generator=torch.Generator().manual_seed(0))
    targets = points.sum(-1).sin()
    seen: list[int | None] = []
    model = RegressorStack(spec, 10, streams(0, 1))
    forward = model.forward

    def watched(inputs: torch.Tensor, steps: int | None = None) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(steps)
        return forward(inputs, steps)

    model.forward = watched  # type: ignore[method-assign]
    recipe = Recipe(steps=40, batch=16, check_every=20)
    fit(model, points, targets, recipe, [torch.Generator().manual_seed(s) for s in range(2)])
    assert set(seen) == {1, 2, 3, 4}
    again = RegressorStack(spec, 10, streams(0, 1))
    fit(again, points, targets, recipe, [torch.Generator().manual_seed(s) for s in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_stops_are_told_as_means_over_functions() -> None:
    (shallow,) = cem((1,))
    stopped = [
        replace(r, at_stops=tuple(AtStop(q, 4 + i % 2, 0.1 * (i + 1)) for q in STOPS))
        for i, r in enumerate(runs_of(1.0))
    ]
    (row,) = (r for r in summarise(TASKS, {shallow: {1e-2: stopped}}) if r.runs)
    assert tables_of_rows([row])["stops"].rows[0][2] == "0.4500 (4.5)"
    assert "stops" not in tables_of_rows(rows_of({shallow: 1.0}))


# --- replicates that are trained together are trained as if each were alone ---------------------------


RECIPE = Recipe(steps=60, batch=32, check_every=10)
SPECS: tuple[Spec | OwnSpec, ...] = (
    CEMSpec(width=12, hidden=16, steps=1),
    CEMSpec(width=12, hidden=16, steps=4, norm="scalar"),
    CEMSpec(width=5, hidden=16, steps=2, preconditioner="low-rank", norm="folded", step_size="learned"),
    CEMSpec(width=12, hidden=16, steps=2, preconditioner="low-rank-printed", norm="channel"),
    CEMSpec(width=12, hidden=16, steps=3, preconditioner="diagonal"),
    GatedMLPSpec(width=12, hidden=16, reuse=2),
    *specs(f"{OWN}:looped", (2,), 5),
)


def streams(*seeds: int) -> list[Streams]:
    return [Streams(0, "test", seed) for seed in seeds]


def data(*seeds: int) -> tuple[Tensor, Tensor]:
    """Points and values, (S, 256, 5) and (S, 256)."""
    drawn = [torch.rand(256, 5, generator=s.generator(Stream.INPUTS), dtype=torch.float64) for s in streams(*seeds)]
    inputs = 2 * torch.stack(drawn) - 1
    return inputs, torch.sin(3 * inputs.sum(-1))


def train(spec: Spec | OwnSpec, *seeds: int, recipe: Recipe = RECIPE) -> tuple[Any, list[float]]:
    model: Stack = stack(spec, 5, streams(*seeds)).double()
    fits = fit(model, *data(*seeds), recipe, [s.generator(Stream.BATCHES) for s in streams(*seeds)])
    return model, [f.held_out_rmse for f in fits]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_three_at_once_are_the_same_as_one_by_one(spec: Spec | OwnSpec) -> None:
    together, errors = train(spec, 0, 1, 2)
    for seed in range(3):
        alone, (error,) = train(spec, seed)
        assert error == pytest.approx(errors[seed], rel=1e-10)
        for stacked, single in zip(together.parameters(), alone.parameters(), strict=True):
            # 60 optimiser steps amplify roundoff of 1e-16 slightly
            torch.testing.assert_close(stacked[seed], single[0], rtol=1e-9, atol=1e-11)


def test_a_stacked_regressor_predicts_what_the_reference_predicts() -> None:
    stacked: Any = RegressorStack(CEMSpec(width=12, hidden=16, steps=3), 5, streams(0)).double()
    mlp = CEMGatedMLP(MLPConfig(dim=12, hidden=16, steps=3), torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        mlp.V.copy_(stacked.core.V[0])
        mlp.W.copy_(stacked.core.W[0])
    inputs, _ = data(0)
    expected = mlp(inputs[0] @ stacked.lift[0].mT) @ stacked.readout[0, :, 0]  # the first intercept is 0
    torch.testing.assert_close(stacked(inputs)[0], expected, rtol=1e-13, atol=1e-13)


def test_models_that_share_a_parameter_start_with_the_same_values_in_it() -> None:
    shallow: Any = RegressorStack(CEMSpec(width=12, hidden=16, steps=1), 5, streams(0))
    deep: Any = RegressorStack(CEMSpec(width=12, hidden=16, steps=8, preconditioner="diagonal"), 5, streams(0))
    untied = RegressorStack(GatedMLPSpec(width=12, hidden=16), 5, streams(0))
    inputs = data(0)[0].float()
    assert torch.equal(shallow.core.V, deep.core.V)
    assert torch.equal(shallow.readout, deep.readout)
    # the untied MLP starts like the tied one
    torch.testing.assert_close(untied(inputs), shallow(inputs))


def test_a_replicate_that_diverges_is_reported_and_disturbs_no_other() -> None:
    spec = CEMSpec(width=12, hidden=16, steps=2)
    inputs, targets = data(0, 1)
    inputs[0] *= 1e200  # its energy overflows at the first step
    model = RegressorStack(spec, 5, streams(0, 1)).double()
    broken, sound = fit(model, inputs, targets, RECIPE, [s.generator(Stream.BATCHES) for s in streams(0, 1)])
    alone, (error,) = train(spec, 1)
    assert broken.diverged_at == 0
    assert broken.held_out_rmse == math.inf
    assert sound.diverged_at is None
    assert sound.held_out_rmse == pytest.approx(error, rel=1e-10)
    torch.testing.assert_close(model.readout[1], alone.readout[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[-1]], ids=["plain", "with a batch norm's buffers"])
def test_the_weights_kept_are_those_that_were_best_on_the_points_held_out(spec: Spec | OwnSpec) -> None:
    model, (error,) = train(spec, 0)
    inputs, targets = data(0)
    n = 256 - 32
    with torch.no_grad():
        again = (model(inputs[:, n:]) - targets[:, n:]).square().mean().sqrt()
    assert float(again) == pytest.approx(error, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_the_compiled_training_finds_the_same_weights(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    spec = CEMSpec(width=12, hidden=16, steps=2)
    eager, (error,) = train(spec, 0)
    compiled, (compiled_error,) = train(spec, 0, recipe=Recipe(60, 32, check_every=10, compiled=True))
    assert compiled_error == pytest.approx(error, rel=1e-9)
    torch.testing.assert_close(compiled.readout, eager.readout, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (RecursionConfig, {"depths": (1, 1)}, "T 1 is given twice; name each once"),
        (lambda depths: narrow(depths), {"depths": (1, 2)}, "not whole"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**options)
