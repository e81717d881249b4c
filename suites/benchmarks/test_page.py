"""The CPU benchmarks print only what was measured, and nothing that missed its error budget."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import decoding, harvest, page
from benchmarks.__main__ import main
from benchmarks.attention import Kind, Shape, flops, kinds, measure, table
from benchmarks.harvest import Setting, Stage
from benchmarks.measuring import Findings, in_turn
from benchmarks.rehearsal import absent_gpu
from cemverify.cem import blocked
from cemverify.cem.layers import CEMAttention
from cemverify.results import envelope
from cemverify.results.envelope import Table
from cemverify.results.statistics import paired_ratio
from suites.kit.commands import Told
from suites.kit.source import ROOT
from synthetic.flops import matmul_flops
from synthetic.training.machine import peak_memory


def test_tasks_are_run_in_turn_and_the_first_round_warms_up() -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[[], object]:
        return lambda: order.append(name)

    timings = in_turn({"a": noting("a"), "b": noting("b")}, "cpu", rounds=3, seconds=60)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert [len(t.seconds) for t in timings.values()] == [3, 3]


def test_a_ratio_knows_what_took_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def work(seconds: float) -> Callable[[], object]:
        return lambda: spent.append(spent.pop() + seconds)

    monkeypatch.setattr("benchmarks.measuring.time.process_time", lambda: spent[0])
    timings = in_turn({"once": work(0.25), "twice": work(0.5)}, "cpu", rounds=3, seconds=60)
    assert paired_ratio(timings["twice"].seconds, timings["once"].seconds).mean == pytest.approx(2.0)


def test_a_token_is_compared_with_llamas_of_the_same_context_and_batch() -> None:
    times = [(name, batch, factor * batch) for batch in (1, 16) for name, factor in (("Llama", 1), ("CEM", 2))]
    decoded = [decoding.Decoded(name, 64, batch, [seconds], 8) for name, batch, seconds in times]
    assert [row[4] for row in decoding.table("t", decoded).rows] == ["1.00", "2.00", "1.00", "2.00"]


def test_no_time_is_printed_for_a_path_that_misses_its_error_budget() -> None:
    shape, kind, dtype = Shape(1, 64, 16, 2), Kind("T=1, shared diagonal, ALiBi", 1, "shared", "alibi"), torch.float32
    (row,) = measure(shape, [kind], device="cpu", dtype=dtype, paths=("tiles",), rounds=3, seconds=1.0)
    (good,) = table("t", [row]).rows
    (bad,) = table("t", [replace(row, budget=replace(row.budget, margin=1.5, name="output"))]).rows
    assert str(good[3])[0].isdigit()
    assert bad[3] == "error budget missed: output"
    assert bad[5] == ""


@pytest.mark.parametrize("kind", kinds((1, 3)), ids=lambda kind: kind.name)
def test_flops_are_those_that_torch_counts_but_for_the_causal_half(kind: Kind) -> None:
    shape = Shape(1, 48, 16, 2)
    layer = CEMAttention(kind.config(shape.dim, shape.heads), torch.Generator().manual_seed(0))
    with blocked.using("formula"):
        dense = matmul_flops(layer.to("meta"), torch.zeros(1, 48, 16, device="meta")) / 48
    # torch does not count products of single numbers, and counts every pair of tokens
    assert dense == pytest.approx(flops(kind, replace(shape, tokens=95)), rel=0.06)


def test_a_benchmark_writes_a_result_a_page_and_a_picture(
    here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    for name, value in (("HEADS", 2), ("DIM", 16), ("LENGTHS", ((1, 32), (1, 64)))):
        monkeypatch.setattr(page, name, value)
    assert "time / FLOPs" in told("benchmarks attention --seconds 1 --output b.json --page b.md").out
    assert envelope.read(here / "b.json")["kind"] == "benchmarks"
    assert "b-roofline.svg" in (here / "b.md").read_text()
    assert (here / "b-roofline.svg").read_text().startswith("<?xml")


def test_the_page_says_nothing_of_what_was_not_measured() -> None:
    timed = {"failure": None, "seconds": [2.0, 2.0], "baseline_seconds": [1.0, 1.0], "attention": "T=1"}
    sentence = page.conclusion({"benchmarks": {"attention": {"rows": [timed, timed | {"attention": "T=8, ALiBi"}]}}})
    assert "takes 2.00 to 2.00 (T = 1) times as long" in sentence
    assert page.conclusion({"benchmarks": {}}) == ""


def test_the_peak_of_memory_is_that_of_this_program() -> None:
    statm, before = Path("/proc/self/statm"), peak_memory("cpu")
    now = 4096 * int(statm.read_text().split()[1]) if statm.exists() else 0
    held = bytearray(before - now + 2**27)  # more than ever before, and every page is written to
    held[::4096] = b"1" * len(held[::4096])
    assert before + 2**26 <= peak_memory("cpu") < before + 2**28


# --- the harvest of a GPU: complete without one, resumable, honest about what is owed -----------------


def run(folder: Path, *options: str) -> int:
    return main(["gpu", "--device", "cpu", "--folder", str(folder), *options])


def test_the_result_says_what_is_owed_without_a_gpu_and_a_finished_stage_is_not_done_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "gpu.md"
    assert run(tmp_path, "--only", "suites", "--page", str(page)) == 0
    printed = capfd.readouterr()
    assert "suites: skipped, no CUDA device" in printed.err
    assert "owed, to be run on a GPU" in printed.out
    result = envelope.read(tmp_path / "gpu.json")
    assert result["owed"] == [stage.owed for stage in harvest.STAGES if stage.owed]
    assert "Owed, since no GPU was at hand" in page.read_text()
    assert run(tmp_path, "--only", "suites") == 0
    assert "not done again" in capfd.readouterr().err


def test_the_small_stages_that_need_no_process_of_their_own_work_on_a_cpu(tmp_path: Path) -> None:
    for name in ("device", "decoding"):
        harvest.perform(name, "cpu", tmp_path, 5.0)
        stage = harvest.read_stage(tmp_path, name) or {}
        assert stage["finished"]
        assert stage["tables"][0]["rows"]


def test_what_a_stage_found_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(setting: Setting) -> Iterator[Findings]:
        yield Findings([Table("t", ("said",), [["half"]])], {"said": "half"})
        raise RuntimeError("the device is on fire")

    only: Sequence[Stage] = (Stage("breaks", breaks, 10, "how it burns"),)
    monkeypatch.setattr(harvest, "STAGES", only)
    with pytest.raises(RuntimeError, match="on fire"):
        harvest.perform("breaks", "cpu", tmp_path, 5.0)
    stage = harvest.read_stage(tmp_path, "breaks") or {}
    assert (stage["finished"], stage["data"]) == (False, {"said": "half"})


def test_a_stage_on_a_gpu_is_no_longer_owed(tmp_path: Path) -> None:
    harvest.perform("device", "cpu", tmp_path, 5.0)
    file = tmp_path / "stage-device.json"
    content = json.loads(file.read_text())
    content["device"] = {**content["device"], "type": "cuda", "name": "a GPU"}
    file.write_text(json.dumps(content))
    assert run(tmp_path, "--report", "--page", str(tmp_path / "gpu.md")) == 0
    result = envelope.read(tmp_path / "gpu.json")
    assert "the speed of a GPU" not in result["owed"]
    assert "on a GPU" in (tmp_path / "gpu.md").read_text()


# --- a simulated GPU: some of its paths, in a new process, because the stand-in is loaded before torch ---


@pytest.mark.thorough
@pytest.mark.skipif(absent_gpu.missing() is not None, reason=str(absent_gpu.missing()))
def test_a_sample_of_the_paths_would_run_on_a_gpu_and_the_formula_knows_its_memory() -> None:
    part = "fault or path or 86M and (llama or t2)"  # plain and compiled, and the smallest models' traffic
    command = [sys.executable, "-m", "pytest", "-q", "benchmarks/rehearsal", "--each", "9", "-k", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
