"""What the recursion study concludes from its cells: rates chosen on held-out points, nothing averaged away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from cemverify.console.errors import UsageError
from cemverify.results.envelope import Table
from cemverify.results.recursion import shallowest
from cemverify.results.statistics import compare
from reports.kinds.recursion import sheets
from reports.sheets import plain
from synthetic.gp.tasks import Score, Streams
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.recursion import findings
from synthetic.studies.recursion.cells import TEST_DEPTHS, RunRecord, TaskRecord
from synthetic.studies.recursion.contenders import CEM, FAMILIES, Contender, cost_of
from synthetic.studies.recursion.ensembles import Recipe, fit
from synthetic.studies.recursion.findings import Predictor, choose_rate, entry, summarise
from synthetic.studies.recursion.presets import PRESETS, RecursionConfig
from synthetic.studies.recursion.regressors import CEMSpec, DrawnSpec, RegressorStack

SEEDS = 8
cem, again, narrow, reused, untied = (
    FAMILIES[name].contenders for name in ("cem", "again", "narrow", "reused", "untied")
)


def score(error: float) -> Score:
    return Score(error, error * 1.01, error * 0.9)


def task(difficulty: float) -> TaskRecord:
    scores = {"prior mean": score(difficulty * 10), "ridge": score(difficulty * 4), "exact GP": score(difficulty)}
    return TaskRecord(difficulty, 1.0, 0.0, "exact", scores)


TASKS = [task(0.1 + 0.01 * seed) for seed in range(SEEDS)]


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


def runs(factor: float, wobble: float = 0.004) -> list[RunRecord]:
    """Errors that are so many times each task's own, give or take a little that no two factors share."""
    wobbles = [1 + wobble * ((7 * i + int(1000 * factor)) % 5 - 2) for i in range(SEEDS)]
    return [run(2 * task.floor * factor * w) for task, w in zip(TASKS, wobbles, strict=True)]


def rows_of(factors: dict[Contender, float]) -> list[Any]:
    records = {contender: {1e-2: runs(factor)} for contender, factor in factors.items()}
    return summarise(TASKS, records, {contender: cost_of(contender.spec) for contender in factors})


def content_of(rows: Sequence[Predictor], prior: str = "rbf(lengthscale=2)") -> dict[str, Any]:
    """What a result file says of the rows."""
    entries: list[dict[str, Any]] = json.loads(json.dumps([entry(prior, row) for row in rows]))
    made = {"configuration": {"noise": 0.1, "train_points": 64, "test_points": 64}}
    return {"rows": entries, "tasks": [{"prior": prior, "sampling": "exact"}], "made_by": made}


def tables_of(rows: Sequence[Predictor]) -> dict[str, Table]:
    """The tables of the rows, by a word of their titles."""
    tables = [plain(sheet) for sheet in sheets(content_of(rows))]
    words = ("mean ± std", "against CEM", "root mean square", "with T' steps", "stop by energy")
    return {word: table for word in words for table in tables if word in table.title}


def by_name(rows: Sequence[Predictor]) -> dict[str, Any]:
    return {row.name: row for row in rows}


def test_the_rate_is_chosen_on_the_points_held_out_among_those_at_which_no_run_diverged() -> None:
    assert choose_rate({1e-3: [run(0.1, held_out=0.3)], 1e-2: [run(0.2, held_out=0.2)]}) == 1e-2
    assert choose_rate({1e-2: [run(0.5), run(0.5)], 1e-1: [run(0.1), run(0.1, diverged_at=3)]}) == 1e-2


def test_a_rate_at_the_edge_of_those_tried_is_marked() -> None:
    contender = cem((1,))[0]
    rates = {1e-3: runs(3.0), 1e-2: runs(2.0), 1e-1: runs(1.0)}
    (row,) = [r for r in summarise(TASKS, {contender: rates}, {contender: cost_of(contender.spec)}) if r.contender]
    assert row.learning_rate == 1e-1
    assert row.at_edge


def test_a_contender_of_which_a_run_diverged_has_no_mean_and_says_how_many_did() -> None:
    contender = cem((1,))[0]
    broken = [*runs(1.0)[:-1], run(1.0, diverged_at=7)]
    rows = summarise(TASKS, {contender: {1e-2: broken}}, {contender: cost_of(contender.spec)})
    row = by_name(rows)["CEM, T = 1"]
    assert (row.diverged, row.rmse, row.gap_closed) == (1, None, None)
    table = tables_of(rows)["mean ± std"]
    assert any("diverged 1/8" in str(cell) for line in table.rows for cell in line)


def test_every_depth_is_compared_with_its_familys_smallest_and_with_cem_at_its_own() -> None:
    shallow, deep = cem((1, 2))
    once, twice = reused((1, 2))
    rows = by_name(rows_of({shallow: 1.0, deep: 0.9, once: 1.1, twice: 1.21}))
    assert rows["CEM, T = 1"].deeper is None
    deeper = rows["CEM, T = 2"].deeper
    assert deeper.conclusion == "better"
    assert deeper.ratio.mean == pytest.approx(0.9, abs=0.01)
    reuse = rows["MLP reused, T = 2"]
    assert reuse.deeper.ratio.mean == pytest.approx(1.1, abs=0.01)
    assert reuse.same_depth.ratio.mean == pytest.approx(1.21 / 0.9, abs=0.01)
    assert reuse.deeper.holm >= reuse.deeper.t_test


def test_a_family_of_one_is_compared_with_cem_at_the_smallest_depth() -> None:
    aa = again((1, 2))[0]
    row = by_name(rows_of({cem((1,))[0]: 1.0, aa: 1.0}))[aa.name]
    assert row.deeper.conclusion == "equivalent"


def test_references_stand_first_and_the_floor_last_with_its_gap_closed() -> None:
    rows = rows_of({cem((1,))[0]: 1.5})
    assert [row.name for row in rows] == ["prior mean", "ridge", "CEM, T = 1", "exact GP"]
    assert rows[-1].gap_closed.mean == pytest.approx(1.0)


def test_sizes_are_matched_exactly() -> None:
    at = {T: cost_of(contender.spec) for T, contender in zip((1, 8), cem((1, 8)), strict=True)}
    same, parameters, flops = (cost_of(contender.spec) for contender in untied((1, 8)))
    assert same.inference.matmul == at[1].inference.matmul
    assert parameters.parameters == at[1].parameters
    assert flops.inference.matmul == at[8].inference.matmul
    assert cost_of(narrow((1, 8))[0].spec).inference.matmul == at[1].inference.matmul


def test_flops_of_inference_and_training_are_linear_in_depth() -> None:
    one, two, three = (cost_of(contender.spec) for contender in cem((1, 2, 3)))
    for cost in ("inference", "training"):
        for kind in ("matmul", "elementwise"):
            a, b, c = (getattr(getattr(size, cost), kind) for size in (one, two, three))
            # a training step's element-wise count is shared out over a batch and rounded down
            assert abs((c - b) - (b - a)) <= 1
    D, M = CEM.width, CEM.hidden
    assert two.inference.matmul - one.inference.matmul == 4 * D * M
    assert one.parameters == two.parameters


def test_no_matched_size_that_is_not_whole() -> None:
    with pytest.raises(UsageError, match="not whole"):
        narrow((1, 2))


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
        (1, (1.0, 0.7, 0.8, 0.9), "undecided", WARPED),  # which is not the paper's, and cannot refute it
        (1, (1.0,), "not asked", WARPED),
    ],
)
def test_the_statements_on_the_second_step_and_the_best_depth_are_read_by_their_rules(
    statement: int, factors: tuple[float, ...], reading: str, prior: str
) -> None:
    studied = rows_of(dict(zip(cem((1, 2, 4, 8)[: len(factors)]), factors, strict=True)))
    content = content_of(studied, "rbf(lengthscale=2)" if prior == "rbf" else prior)
    assert findings.read(content)[statement].reading == reading


def test_a_statement_reads_the_verdict_that_the_table_beside_it_shows() -> None:
    """One test alone would call this difference real; among the many rows of the table it is not."""
    rivals = [c for name in ("unlifted", "normed", "diagonal", "reused") for c in FAMILIES[name].contenders((1, 2))]
    records = {contender: {1e-2: runs(1.0)} for contender in [*cem((1, 2)), *rivals]}
    shallow, deep = cem((1, 2))
    errors = [0.95 * (1 + 0.05 * (-1) ** seed) * r.score.expected for seed, r in enumerate(runs(1.0)) if r.score]
    records[deep] = {1e-2: [run(error) for error in errors]}
    rows = by_name(summarise(TASKS, records, {contender: cost_of(contender.spec) for contender in records}))
    assert compare(rows[deep.name].errors, rows[shallow.name].errors).conclusion == "better"
    assert entry("rbf", rows[deep.name])["deeper"]["conclusion"] == "inconclusive"
    statement = findings.read(content_of(list(rows.values())))[0]
    assert statement.found.endswith("inconclusive")
    assert statement.reading == "undecided"


def test_ratios_are_named_after_the_smallest_depth_of_the_study() -> None:
    rows = rows_of(dict(zip([*cem((2, 4)), untied((8,))[0]], (1.0, 0.9, 1.1), strict=True)))
    assert "ratio to T = 2" in tables_of(rows)["mean ± std"].columns
    assert shallowest(content_of(rows)["rows"]) == 2


def test_tables_have_p_values_only_where_there_are_enough_functions() -> None:
    rows = rows_of(dict(zip(cem((1, 2)), (1.0, 0.9), strict=True)))
    assert "p (Holm)" in tables_of(rows)["mean ± std"].columns
    few = summarise(
        TASKS[:3],
        {contender: {1e-2: runs(1.0)[:3]} for contender in cem((1, 2))},
        {contender: cost_of(contender.spec) for contender in cem((1, 2))},
    )
    assert "p (Holm)" not in tables_of(few)["mean ± std"].columns


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_complete_and_every_family_can_be_built(name: str) -> None:
    config = PRESETS[name].config
    for prior in config.priors:
        assert len(config.task_cells(prior)) == config.seeds
        cells = config.model_cells(prior)
        assert len({(cell.contender, cell.recipe) for cell in cells}) == len(cells)
        # of one model for all depths, and of no other
        assert {cell.stops for cell in cells} == ({STOPS} if name in ("dial", "paper") else {()})


def test_the_published_presets_run_every_family_somewhere() -> None:
    configs = [PRESETS[name].config for name in ("standard", "step-sizes", "dial")]
    assert {name for c in configs for name in (*c.families, *c.more_families)} == set(FAMILIES)


def test_step_sizes_are_studied_at_five_rates_with_a_norm_inside_and_without() -> None:
    config = PRESETS["step-sizes"].config
    specs = [c.spec for prior in config.priors for c in config.contenders(prior) if isinstance(c.spec, CEMSpec)]
    kinds = {(s.step_size, s.norm, s.steps) for s in specs}
    assert kinds == {(e, n, T) for e in ("fixed", "1/T", "learned") for n in ("none", "scalar") for T in (1, 2, 4, 8)}
    assert len(config.rates) == 5


def stack(spec: CEMSpec) -> RegressorStack:
    return RegressorStack(spec, 10, [Streams(0, "t", 0), Streams(0, "t", 1)])


def test_steps_that_sum_to_1_go_as_far_however_many_they_are() -> None:
    points = torch.randn(2, 5, 10, generator=torch.Generator().manual_seed(0))
    spec = CEMSpec(width=16, hidden=24, step_size="1/T")
    once = replace(spec, step_size="fixed")
    assert torch.equal(stack(spec)(points, 1), stack(once)(points, 1))
    with torch.no_grad():
        shared, plain = ([stack(s)(points, T) for T in (1, 2, 4, 64, 128)] for s in (spec, once))
    gaps = [float((b - a).norm()) for a, b in pairwise(shared)]
    assert gaps[-1] < 0.1 * gaps[0]  # the scheme converges to the flow
    assert float((plain[-1] - plain[-2]).norm()) > 10 * gaps[-1]


def test_a_drawn_depth_trains_one_model_for_all_of_them() -> None:
    spec = DrawnSpec(width=16, hidden=24, steps=4, step_size="1/T")
    points = torch.randn(2, 64, 10, generator=torch.Generator().manual_seed(0))
    targets = points.sum(-1).sin()
    seen: list[int | None] = []
    model = stack(spec)
    forward = model.forward

    def watched(inputs: torch.Tensor, steps: int | None = None) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(steps)
        return forward(inputs, steps)

    model.forward = watched  # type: ignore[method-assign]
    recipe = Recipe(steps=40, batch=16, check_every=20)
    fit(model, points, targets, recipe, [torch.Generator().manual_seed(s) for s in range(2)])
    assert set(seen) == {1, 2, 3, 4}
    again = stack(spec)
    fit(again, points, targets, recipe, [torch.Generator().manual_seed(s) for s in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_stops_are_told_as_means_over_functions() -> None:
    (shallow,) = cem((1,))
    stopped = [
        replace(r, at_stops=tuple(AtStop(q, 4 + i % 2, 0.1 * (i + 1)) for q in STOPS))
        for i, r in enumerate(runs(1.0))
    ]
    (row,) = (r for r in summarise(TASKS, {shallow: {1e-2: stopped}}, {shallow: cost_of(shallow.spec)}) if r.runs)
    assert tables_of([row])["stop by energy"].rows[0][2] == "0.4500 (4.5)"
    assert "stop by energy" not in tables_of(rows_of({shallow: 1.0}))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depths": (1, 0)}, "a descent needs T >= 1 steps, not 0"),
        ({"depths": ()}, "at least one T is needed"),
        ({"seeds": 0}, "at least one seed"),
        ({"seed": -1}, "must be at least 0, not -1"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        replace(RecursionConfig(), **options)  # type: ignore[arg-type]
