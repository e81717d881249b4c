"""The harvest of a GPU: complete without one, resumable, and honest about what is owed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import harvest
from benchmarks.__main__ import main
from benchmarks.findings import Findings
from benchmarks.harvest import Setting, Stage
from cemverify.results import envelope
from cemverify.results.envelope import Table


def one(words: str) -> Findings:
    return Findings([Table("t", ("said",), [[words]])], {"said": words})


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
        stage = harvest.read_stage(tmp_path, name)
        assert stage is not None
        assert stage["finished"]
        assert stage["tables"][0]["rows"]


def test_what_a_stage_found_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(setting: Setting) -> Iterator[Findings]:
        yield one("half")
        raise RuntimeError("the device is on fire")

    only: Sequence[Stage] = (Stage("breaks", breaks, 10, "how it burns"),)
    monkeypatch.setattr(harvest, "STAGES", only)
    with pytest.raises(RuntimeError, match="on fire"):
        harvest.perform("breaks", "cpu", tmp_path, 5.0)
    stage = harvest.read_stage(tmp_path, "breaks")
    assert stage is not None
    assert (stage["finished"], stage["data"]) == (False, {"said": "half"})


def test_a_stage_on_a_gpu_is_no_longer_owed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harvest.perform("device", "cpu", tmp_path, 5.0)
    file = tmp_path / "stage-device.json"
    content = json.loads(file.read_text())
    content["device"] = {**content["device"], "type": "cuda", "name": "a GPU"}
    file.write_text(json.dumps(content))
    assert run(tmp_path, "--report", "--page", str(tmp_path / "gpu.md")) == 0
    result = envelope.read(tmp_path / "gpu.json")
    assert "the speed of a GPU" not in result["owed"]
    assert "on a GPU" in (tmp_path / "gpu.md").read_text()


def test_a_report_of_no_stage_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "empty", "--report") == 2
    assert "no stage has left anything" in capfd.readouterr().err
