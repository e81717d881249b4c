"""The recursion study: paired, repeatable, honest about divergence, and plain about bad input."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cemverify.cem.layers import MLPConfig
from cemverify.cem.models import Regressor, RegressorConfig
from cemverify.results import read, tables_of
from synthetic.__main__ import main
from synthetic.errors import UsageError
from synthetic.recursion import RecursionConfig, notes, smoke
from synthetic.recursion_runs import Run, RunRecord, at_depth, energy_falls, measure_size, record_task, train
from synthetic.recursion_summary import summarise_depth, summarise_references, table
from synthetic.statistics import paired_ratio, spread
from synthetic.streams import Stream
from synthetic.training import TrainingConfig, fit
from synthetic.workers import run_all

TINY = RecursionConfig(
    steps=(1, 2),
    seeds=3,
    train_points=256,
    test_points=128,
    regressor=RegressorConfig(10, MLPConfig(dim=12, hidden=16, init_std=0.05)),
    training=TrainingConfig(steps=60),
)


def runs_at(depth: int, config: RecursionConfig = TINY) -> list[RunRecord]:
    return [train(Run(r, depth, config.regressor, config.training)) for r in config.replicates("rbf")]


def test_depths_share_their_initial_weights_and_batches() -> None:
    streams = TINY.replicates("rbf")[0].streams
    shallow, deep = (Regressor(at_depth(TINY.regressor, T), streams.generator(Stream.WEIGHTS)) for T in (1, 8))
    assert deep.mlp.config.steps == 8
    for name, weight in shallow.state_dict().items():
        assert torch.equal(weight, deep.state_dict()[name]), name


def test_a_run_repeats_bit_for_bit_and_another_seed_differs() -> None:
    first, second = runs_at(2)[0], runs_at(2)[0]
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert runs_at(2)[1].score != first.score


@pytest.mark.slow
def test_the_model_beats_ridge_clearly_and_stays_above_the_floor() -> None:
    config = replace(smoke(), seeds=1)
    replicate = config.replicates("rbf")[0]
    task = record_task(replicate)
    record = train(Run(replicate, 1, config.regressor, config.training))
    assert record.score is not None
    assert task.floor < record.score.expected < 0.75 * task.ridge.expected
    assert task.floor < task.ridge.expected < task.prior_mean.expected


def test_flops_are_those_of_the_formula_and_linear_in_depth() -> None:
    d, D, M = 10, 32, 128
    regressor = RegressorConfig(d, MLPConfig(dim=D, hidden=M))
    for T in (1, 2, 4, 8):
        size = measure_size(regressor, T)
        assert size.forward == 2 * d * D + 2 * D * M * (1 + 2 * T)
        assert size.parameters == d * D + 2 * D * M + D + 1
    training = [measure_size(regressor, T).training for T in (1, 2, 3)]
    assert training[2] - training[1] == training[1] - training[0] > 0


def test_the_energy_falls_everywhere_under_small_steps_but_not_under_wild_ones() -> None:
    inputs = torch.randn(64, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mlp = MLPConfig(dim=12, hidden=16, init_std=0.3, steps=3, step_size=1e-3)
    model = Regressor(RegressorConfig(10, mlp), torch.Generator().manual_seed(1)).double()
    assert energy_falls(model, inputs) == (1.0, 1.0, 1.0)
    wild = Regressor(RegressorConfig(10, replace(mlp, step_size=1e3)), torch.Generator().manual_seed(1)).double()
    assert min(energy_falls(wild, inputs)) < 1.0


def test_training_that_blows_up_is_reported_with_its_step() -> None:
    wild = replace(TINY, training=TrainingConfig(steps=60, learning_rate=1e6))
    record = runs_at(2, wild)[0]
    assert record.score is None
    assert record.energy_falls is None
    assert record.diverged_at is not None
    assert 0 < record.diverged_at <= 60


def test_a_diverged_run_is_named_in_the_table_and_not_averaged_away() -> None:
    tasks = [record_task(replicate) for replicate in TINY.replicates("rbf")]
    shallow, deep = runs_at(1), runs_at(2)
    deep[1] = replace(deep[1], score=None, train_rmse=None, energy_falls=None, diverged_at=7)
    rows = [summarise_depth(tasks, runs, shallow, measure_size(TINY.regressor, 1)) for runs in (shallow, deep)]
    cells = dict(zip(table(tasks, rows).columns, table(tasks, rows).rows[1], strict=True))
    assert cells["expected RMSE"] == "diverged 1/3"
    assert {cells[name] for name in ("observed RMSE", "excess", "gap closed", "ratio to T = 1")} == {"–"}
    # nor does a ratio to a diverged depth mean anything
    ratio = summarise_depth(tasks, runs_at(2), deep, measure_size(TINY.regressor, 2)).ratio
    assert ratio is None


def test_the_weights_kept_are_those_best_on_the_points_held_out() -> None:
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.nn.Parameter(torch.tensor(0.0))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.value.expand(len(inputs))

    # trained towards 1, judged against 0.5, which it passes on the way
    targets = torch.cat([torch.ones(7), torch.full((1,), 0.5)])
    model = Constant()
    config = TrainingConfig(steps=100, batch=7, learning_rate=0.05, weight_decay=0.0, check_every=1)
    ended = fit(model, torch.zeros(8, 1), targets, config, torch.Generator().manual_seed(0))
    assert ended.diverged_at is None
    assert 0 < ended.best_step < 100
    assert model.value.item() == pytest.approx(0.5, abs=0.05)


def test_the_last_rows_are_the_references() -> None:
    tasks = [record_task(replicate) for replicate in TINY.replicates("rbf")]
    rows = {row.predictor: row for row in summarise_references(tasks)}
    assert rows["ridge"].gap_closed == spread([0.0] * 3)
    assert rows["Bayes-optimal floor"].gap_closed is not None
    assert rows["Bayes-optimal floor"].gap_closed.mean == pytest.approx(1.0, rel=1e-12)


def test_a_task_with_nothing_to_learn_is_noted_and_one_with_much_is_not() -> None:
    # a linear fit is all that 256 points can tell of so rough a function
    (note,) = notes([record_task(replicate) for replicate in TINY.replicates("matern12")])
    assert note.startswith("on matern12 a linear fit is within 10 % of the floor")
    assert notes([record_task(replicate) for replicate in TINY.replicates("rbf")]) == []


def test_a_spread_divides_by_n_minus_one_and_says_nothing_at_n_one() -> None:
    assert spread([1.0, 2.0, 3.0]).std == 1.0
    assert spread([1.0]).std is None


def test_a_paired_ratio_covers_the_truth_as_often_as_it_says() -> None:
    # 2000 triples of log-normal ratios around 0.9: the 95 % interval misses 5 % of them, give or take 0.5 % (1 sd)
    generator = torch.Generator().manual_seed(0)
    logs = math.log(0.9) + 0.3 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    missed = 0
    for triple in logs.exp().tolist():
        ratio = paired_ratio(triple, [1.0, 1.0, 1.0])
        assert ratio.low is not None
        assert ratio.high is not None
        missed += not ratio.low <= 0.9 <= ratio.high
    assert missed / 2000 == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 2000))


def test_a_ratio_of_one_pair_has_no_interval_and_unpaired_values_are_refused() -> None:
    assert paired_ratio([2.0], [1.0]).low is None
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([2.0, 1.0], [1.0])


def _refuse(job: int) -> int:
    raise UsageError(f"no job {job}")


@pytest.mark.slow
def test_what_a_worker_refuses_reaches_the_caller() -> None:
    with pytest.raises(UsageError, match="no job 1"):
        run_all(_refuse, [1], 1, cost=float, report=print, describe=str)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "synthetic", *words], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow
def test_the_same_command_gives_the_same_table_with_any_number_of_workers(tmp_path: Path) -> None:
    arguments = ("recursion", "--preset", "smoke", "--train-points", "256", "--prior", "warped", "--steps", "1", "2")
    outputs = []
    for workers in ("1", "2"):
        path = tmp_path / f"{workers}.json"
        done = command(*arguments, "--workers", workers, "--output", str(path))
        assert done.returncode == 0, done.stderr
        outputs.append((done.stdout, read(path)))
    (text, first), (text_again, again) = outputs
    assert text == text_again
    assert tables_of(first) == tables_of(again)
    for key in ("tasks", "summary"):
        assert first[key] == again[key]
    assert len(first["cells"]) == 4
    assert {key: first[key] for key in ("schema", "schema_version", "kind")} == {
        "schema": "cemverify.result",
        "schema_version": 1,
        "kind": "recursion",
    }
    assert all(task["floor"] < task["ridge"]["expected"] for task in first["tasks"])
    assert {"command", "configuration", "seed"} <= first["made_by"].keys()
    json.dumps(first, allow_nan=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--prior", "rfb"], "no prior 'rfb'; there are: rbf, matern12"),
        (["--prior", "rbf", "rbf"], "prior rbf is given twice"),
        (["--steps", "1", "0"], "a descent takes T >= 1 steps, not 0"),
        (["--steps", "two"], "invalid int value: 'two'"),
        (["--steps"], "expected at least one argument"),
        (["--seeds", "0"], "at least one seed"),
        (["--seed", "-1"], "the root seed must be at least 0, not -1"),
        (["--noise", "-0.1"], "the noise must be a positive number, not -0.1"),
        (["--lengthscale", "inf"], "the lengthscale must be a positive number, not inf"),
        (["--train-points", "1"], "train points must be at least 2, not 1"),
        (["--workers", "0"], "at least one worker is needed, not 0"),
        (["--preset", "quik"], "choose from"),
        (["--stepz", "1"], "unrecognized arguments: --stepz"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recursion", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert sentence in told.err


@pytest.mark.parametrize("place", ["", "file.txt/result.json"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("in the way")
    assert main(["recursion", "--output", str(tmp_path / place)]) == 2
    assert capsys.readouterr().err.startswith("error: cannot write ")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_an_unknown_study_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recursoin"]) == 2
    assert "choose from 'recursion', 'language'" in capsys.readouterr().err
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_of_the_bench_imports_no_study() -> None:
    script = (
        "import sys, synthetic.__main__ as m\ntry: m.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "recursion" in done.stdout
