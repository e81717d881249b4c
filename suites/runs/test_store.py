"""The run store: cells are named by what determines them, stored completely or not at all, and computed once."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from cemverify.console.errors import UsageError
from cemverify.console.parsing import Parser
from cemverify.processes import forkserver
from cemverify.runs import (
    Algorithm,
    Cell,
    Failure,
    Interrupted,
    RunOptions,
    ShardFinished,
    executors,
    payloads,
    run_cells,
)
from cemverify.runs import run as running
from cemverify.runs.arguments import add_run_arguments, parse_shard, run_options
from cemverify.runs.exchange import cells_of
from cemverify.runs.plain import plain, restore
from cemverify.runs.progress import CellProgress
from cemverify.runs.store import CellStore, CorruptCell
from cemverify.runs.work import compute
from suites.kit.processes import soon
from suites.kit.source import ROOT
from suites.runs.light import Trap, Walk, contents, litter, trap, walk, walks
from synthetic.studies.engine.trials import compute_trial

Capture = pytest.CaptureFixture[str]


def here(store: Path, **changes: Any) -> RunOptions:
    """The options of a run that computes in this process and stores its cells in a folder."""
    return replace(RunOptions(store, workers=0), **changes)


@dataclass(frozen=True)
class Circle:
    radius: float


@dataclass(frozen=True)
class Square:
    side: float
    tilt: float | None = None


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Circle | Square, ...]
    origin: tuple[int, float]
    names: Mapping[str, Sequence[int]]
    style: Literal["ink", "chalk"] = "ink"
    frame: Square | None = None


def test_a_specification_survives_json_whatever_it_is_made_of() -> None:
    drawing = Drawing((Circle(1.5), Square(2.0)), (1, 0.1), {"a": (1, 2)}, frame=Square(3.0, 1e-300))
    assert restore(Drawing, json.loads(json.dumps(plain(drawing)))) == drawing


def test_a_field_that_was_added_later_leaves_the_keys_of_specifications_without_it_alone() -> None:
    before = make_dataclass("Path", [("length", int)], frozen=True)
    added = ("bends", int, field(default=1, metadata={"added": True}))
    after = make_dataclass("Path", [("length", int), added], frozen=True)
    assert plain(after(3)) == plain(before(3))
    assert plain(after(3, 2)) == {**plain(before(3)), "bends": 2}
    assert (restore(after, plain(after(3))), restore(after, plain(after(3, 2)))) == (after(3), after(3, 2))


def test_whatever_decides_the_result_changes_the_key_and_nothing_else_does() -> None:
    spec = Walk(0, 3)
    bumped = Algorithm(walk.name, walk.function, {"walk": 2})
    others = [replace(spec, seed=1), replace(spec, steps=4), replace(spec, scale=1.0 + 2**-52)]
    keys = [cell.key for cell in (walk.cell(spec), bumped.cell(spec), *map(walk.cell, others))]
    assert len(set(keys)) == 5
    assert walk.cell(spec, cost=7.0, label="seven").key == keys[0]
    assert walk.cell(replace(spec, scale=2)).key == walk.cell(replace(spec, scale=2.0)).key
    assert plain(Circle(1.0)) != plain(Square(1.0))  # though they have the same fields


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, object(), {1, 2}], ids=["nan", "int key", "object", "set"])
def test_what_json_cannot_hold_is_refused_and_named(value: object) -> None:
    with pytest.raises(TypeError, match="specification"):
        plain(value)


def test_a_second_run_computes_nothing_and_finds_the_same(tmp_path: Path, capsys: Capture) -> None:
    first = payloads(run_cells(walks(5), here(tmp_path)))
    assert "computing 5" in capsys.readouterr().err
    next(tmp_path.glob("??/*.made_by")).unlink()  # no result is lost
    records = run_cells(walks(5), here(tmp_path))
    assert payloads(records) == first
    assert [record.made_by for record in records].count({}) == 1
    assert capsys.readouterr().err == ""


def test_records_come_in_the_order_of_the_cells_though_the_longest_is_computed_first(tmp_path: Path) -> None:
    cells = walks(9)
    asked = [*cells, cells[0]]
    assert [record.key for record in run_cells(asked, here(tmp_path))] == [cell.key for cell in asked]
    made = sorted(tmp_path.glob("??/*.made_by"), key=lambda path: path.stat().st_mtime_ns)
    costs = {cell.key: cell.cost for cell in cells}
    assert [costs[path.stem] for path in made] == sorted(costs.values(), reverse=True)


@pytest.mark.parametrize("said", ["does not match its digest", "holds another cell"])
def test_a_damaged_file_is_named_and_made_again(said: str, tmp_path: Path, capsys: Capture) -> None:
    cells, store = walks(3), CellStore(tmp_path)
    run_cells(cells, here(tmp_path))
    before = contents(tmp_path)
    path, other = (store.path(cell.key) for cell in cells[1:])
    whole = path.read_bytes()
    path.write_bytes(other.read_bytes() if said == "holds another cell" else whole.replace(b'"end": ', b'"end": 1'))
    with pytest.raises(CorruptCell, match=said):
        store.get(cells[1].key)
    capsys.readouterr()
    run_cells(cells, here(tmp_path))
    errors = capsys.readouterr().err
    assert [words for words in ("repaired store", path.name, "computing 1") if words not in errors] == []
    assert contents(tmp_path) == before


def test_what_a_killed_process_left_aside_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.require_writable()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = os.uname().nodename
    names = (f"{host}+{ended.pid}+1", f"{host}+{os.getppid()}+1", "otherhost+1+1", "otherhost+1+2")
    _, alive, elsewhere, old = paths = [tmp_path / "aside" / name for name in names]
    for path in paths:
        path.write_text("{")
    (tmp_path / "aside" / f"{host}+{ended.pid}+2" / "deeper").mkdir(parents=True)  # for whatever reason it is there
    os.utime(old, (0, 0))
    store.sweep()
    assert sorted((tmp_path / "aside").iterdir()) == sorted([alive, elsewhere])


@pytest.mark.parametrize("has_folder", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interrupt_leave_nothing_half_written(
    error: BaseException, has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise error

    store, (cell,) = CellStore(tmp_path), walks(1)
    if has_folder:  # otherwise its name is synced to disk first
        store.path(cell.key).parent.mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fails)  # the cell is synced to disk, its side file is not
    with pytest.raises(UsageError if isinstance(error, OSError) else KeyboardInterrupt, match=r"No space left|^$"):
        store.put(cell, {"end": 1.0})
    assert contents(tmp_path) == {}
    assert litter(tmp_path) == []
    assert list((tmp_path / "aside").iterdir()) == []


def test_a_failure_is_kept_with_its_cause_and_tried_again_on_request_only(tmp_path: Path, capsys: Capture) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    traps = [trap.cell(Trap(how, str(armed)), label="trap") for how in ("raise", "nan")]
    cells, store = [*walks(2), *traps], tmp_path / "store"
    records = run_cells(cells, here(store))
    failure: Any = records[2].failure
    assert failure.cause == "ArithmeticError: the loss is no longer finite"
    assert "in trap" in failure.traceback
    assert "payload['loss'] is nan" in str(records[3].failure)
    with pytest.raises(UsageError, match=r"2 of 4 cells failed, trap with .*no longer finite.*--retry-failed"):
        payloads(records)
    armed.unlink()
    assert run_cells(cells, here(store))[2].failure == failure
    capsys.readouterr()
    assert payloads(run_cells(cells, here(store, retry_failed=True)))[2] == {"survived": True}
    assert "computing 2" in capsys.readouterr().err


def test_cells_of_another_version_than_the_code_and_those_that_were_read_are_not_computed(tmp_path: Path) -> None:
    cell = replace(walks(1)[0], versions={"walk": 7})
    with pytest.raises(UsageError, match="install the same code everywhere"):
        run_cells([cell], here(tmp_path))
    assert contents(tmp_path) == {}
    with pytest.raises(UsageError, match="was read from a file, which does not say where its code is"):
        compute(Cell("planted:payload", {}, {"is": "Walk"}))


def test_computing_all_cells_again_tells_which_are_not_what_they_were(tmp_path: Path, capsys: Capture) -> None:
    cells = walks(2)
    run_cells(cells, here(tmp_path))
    CellStore(tmp_path).put(cells[1], {"end": 0.0})
    capsys.readouterr()
    run_cells(cells, here(tmp_path, resume=False))
    errors = capsys.readouterr().err
    assert "computing 2" in errors
    assert f"cell {cells[1].key[:12]} (walk 1) is not what it was" in errors
    assert cells[0].key[:12] not in errors


def test_shards_share_a_store_and_one_without_a_shard_finds_all_done(tmp_path: Path, capsys: Capture) -> None:
    cells, last = walks(30), ""
    run_cells(cells[:6], here(tmp_path))
    for number in (1, 2, 3):
        capsys.readouterr()
        shard = parse_shard(f"{number}/3")
        with pytest.raises(ShardFinished) as raised:
            run_cells(cells, here(tmp_path, shard=shard))
        if number == 1:
            expected = sum(cell.key in shard for cell in cells[6:])
            assert f"6 of 30 cells in {tmp_path}; computing {expected} (shard 1 of 3)" in capsys.readouterr().err
            assert "still missing" in str(raised.value)
        last = str(raised.value)
    assert "all 30 cells there" in last
    capsys.readouterr()
    run_cells(cells, here(tmp_path))
    assert capsys.readouterr().err == ""


def test_every_cell_belongs_to_just_one_shard_and_shards_are_about_equal() -> None:
    keys = [cell.key for cell in walks(400)]
    sizes = [sum(key in parse_shard(f"{number}/4") for key in keys) for number in (1, 2, 3, 4)]
    assert sum(sizes) == 400
    # binomial: mean 100, standard deviation 8.7
    assert all(abs(size - 100) < 5 * 8.7 for size in sizes)


def test_the_options_of_a_run_are_what_was_asked_for() -> None:
    add_run_arguments(parser := Parser())
    line = "--store s --workers 3 --shard 2/3 --retry-failed --no-resume"
    parsed = run_options(parser.parse_args(line.split()))
    assert parsed == RunOptions(Path("s"), 3, None, parse_shard("2/3"), retry_failed=True, resume=False)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").glob("*.cells.jsonl")), ids=lambda p: p.name)
def test_published_cells_are_those_that_the_code_asks_for_now(path: Path) -> None:
    # the key of each line is the hash of its content, so equal specifications and names have equal keys
    for key, content in cells_of(path):
        assert content["algorithm"] == compute_trial.name
        assert compute_trial.cell(compute_trial.restore(content["spec"])).key == key


def progress(stream: io.StringIO, later: float | None = 0.0, failing: str = "") -> None:
    """Reports that three cells are finished, one every ten seconds."""
    clock = iter((0, 10, 20, 30))
    bar = CellProgress(3, 3.0, stream, lambda: next(clock), later)
    for name in ("a", "b", "c"):
        bar.finished(name, 1.0, "ValueError: no" if name == failing else None)
    bar.close()


@pytest.mark.parametrize(
    ("later", "left"),
    [
        (0.0, ("; about 20 s left", "; about 10 s left", "")),
        (2.0, ("; about 40 s left", "; about 30 s left", "; about 20 s left")),
        (None, ("; about 20 s left of this round", "; about 10 s left of this round", "")),
    ],
)
def test_elsewhere_than_on_a_terminal_progress_is_lines_that_say_how_long(later: float | None, left: Any) -> None:
    progress(stream := io.StringIO(), later, failing="b")
    assert stream.getvalue().splitlines() == [
        f"[1/3] a{left[0]}",
        "failed: b: ValueError: no",
        f"[2/3, 1 failed] b{left[1]}",
        f"[3/3, 1 failed] c{left[2]}",
    ]


def test_on_a_terminal_progress_is_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    progress(stream)
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\033[K")


def test_ten_thousand_cells_are_not_ten_thousand_lines() -> None:
    stream = io.StringIO()
    bar = CellProgress(10_000, 1e4, stream)
    for i in range(10_000):
        bar.finished(f"cell {i}", 1.0)
    assert 100 <= len(stream.getvalue().splitlines()) <= 201


@pytest.mark.slow
def test_a_cell_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    cells = [*walks(8, seconds=0.05), trap.cell(Trap("die", str(armed)), cost=4.5)]
    records = run_cells(cells, RunOptions(tmp_path / "store", workers=2))
    assert [record.failure is None for record in records] == [True] * 8 + [False]
    assert records[-1].failure == Failure("the worker process died, probably because memory ran out")


def test_the_store_and_its_workers_start_without_torch() -> None:
    code = "import sys, suites.runs.light, cemverify.runs.work; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


def start(store: Path, count: int, seconds: float) -> subprocess.Popen[str]:
    """A study of `count` cells on two workers, in a new process group."""
    code = (
        "import sys, pathlib, cemverify.runs as runs; from suites.runs.light import walks\n"
        f"runs.run_cells(walks({count}, {seconds}), runs.RunOptions(pathlib.Path(sys.argv[1]), workers=2))\n"
    )
    words = [sys.executable, "-c", code, str(store)]
    return subprocess.Popen(words, start_new_session=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for(store: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Waits until a store has this many cells."""
    soon(lambda: len(contents(store)) >= count or process.poll() is not None, 60)
    assert len(contents(store)) >= count, "the study ended too soon, or does not get on"


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.thorough)])
def test_killed_many_times_and_resumed_every_file_is_the_same_to_the_byte(tmp_path: Path, times: int) -> None:
    draws, store, killed = Random(0), tmp_path / "killed", 0  # noqa: S311
    while killed < times:
        had = len(contents(store))
        study = start(store, had + 24, seconds=0.0)
        wait_for(store, had + draws.randint(1, 8), study)
        time.sleep(draws.uniform(0, 0.01))  # at any point while it computes, writes or renames
        os.killpg(study.pid, signal.SIGKILL)
        study.communicate()
        killed += study.returncode == -signal.SIGKILL  # if this process was slow, the study may have ended before
    count = len(contents(store)) + 24
    assert start(store, count, seconds=0.0).wait() == 0
    run_cells(walks(count), here(tmp_path / "undisturbed"))
    assert contents(store) == contents(tmp_path / "undisturbed")
    assert litter(store) == []


def test_a_run_begun_anew_is_told_what_it_would_go_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "compute_all", interrupted)
    with pytest.raises(Interrupted, match=r"; 3 of 5 cells .* the command without --no-resume goes on"):
        run_cells(walks(2), here(tmp_path, resume=False), earlier=3)


@pytest.mark.slow
def test_workers_do_not_outlive_a_study_that_is_killed(tmp_path: Path) -> None:
    study = start(tmp_path, 400, seconds=0.05)
    wait_for(tmp_path, 3, study)
    os.kill(study.pid, signal.SIGKILL)
    study.communicate(timeout=20)  # its pipe closes when the last process of the group has ended


@pytest.mark.parametrize(
    ("dask", "sentence"),
    [(True, r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"), (False, r"--cluster needs Dask.*pip install")],
)
def test_a_cluster_that_cannot_be_used_is_one_sentence(
    dask: bool, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dask:
        pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
        monkeypatch.setattr("cemverify.runs.executors.CONNECT_SECONDS", 0.2)
    else:
        monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=sentence):
        run_cells(walks(1), RunOptions(tmp_path, cluster="tcp://127.0.0.1:9"))


@pytest.mark.slow
def test_on_a_cluster_every_cell_is_done_by_its_workers(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    config = pytest.importorskip("dask.config")
    forkserver.ensure_server()
    with (
        config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        records = run_cells(walks(24), RunOptions(tmp_path, cluster=cluster.scheduler_address))
        assert {record.made_by["process"] for record in records} <= {*client.run(os.getpid).values()}
    run_cells(walks(24), here(tmp_path / "undisturbed"))
    assert contents(tmp_path) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("failures", [2, 3])
def test_workers_that_cannot_be_started_cost_time_and_after_three_pools_a_sentence(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [failures]

    class Interrupted(executors._Here):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            if left[0]:
                left[0] -= 1
                raise EOFError  # as if the server that forks workers had been killed
            return super().submit(function, *arguments, **options)

    @contextmanager
    def open_() -> Iterator[Executor]:
        yield Interrupted()

    monkeypatch.setattr(running, "here", lambda: executors.Crew(open_, slots=1))
    options = here(tmp_path)
    if failures == 3:
        with pytest.raises(UsageError, match="worker processes cannot be started"):
            run_cells(walks(3), options)
    assert len(run_cells(walks(3), options)) == 3
