"""A GPU that is not there: a part of its paths, in a process of their own, since the stand-in comes before torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rehearsal import absent_gpu

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(absent_gpu.missing() is not None, reason=str(absent_gpu.missing()))


def rehearsed(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "rehearsal.json"
    command = [sys.executable, "-m", "benchmarks.rehearsal", *options, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert file.exists(), done.stderr
    return done.returncode, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("each", ["40", pytest.param("9", marks=pytest.mark.thorough)])
def test_a_sample_of_the_paths_would_run_on_a_gpu_and_the_formula_knows_its_memory(tmp_path: Path, each: str) -> None:
    code, found = rehearsed(tmp_path, "--each", each, "--sizes", "86M", "--steps", "2", "--plans")
    assert [path for path in found["paths"] if path["faults"]] == []
    assert {path["area"] for path in found["paths"]} >= {"attention", "mlp", "decoding", "training", "contract"}
    for model in found["memory"]:
        for part, counted in model["counted"].items():
            assert model["formula"][part] == pytest.approx(counted, rel=0.1), (model["size"], model["steps"], part)
    assert code == 0


@pytest.mark.slow
def test_eight_processes_share_the_weights_or_send_every_gradient_once(tmp_path: Path) -> None:
    _, found = rehearsed(tmp_path, "--areas", "blocks", "--each", "9", "--sizes", "--plans", "86M")
    layers = 8
    for planned in found["plans"]:
        weights = planned["weights"]
        if planned["way"] == "FSDP2":
            assert weights / 8 <= planned["own"] < weights / 7
            # each block is gathered forwards and backwards, what is left once; each sends its gradients
            assert planned["calls"] == {"all-gather": 2 * layers + 1, "reduce-scatter": layers + 1}
            assert weights <= planned["sent"]["reduce-scatter"] <= 8 * planned["own"]
        else:
            assert planned["own"] == planned["sent"]["all-reduce"] == weights
    assert [(p["steps"], p["way"]) for p in found["plans"]] == [
        (None, "FSDP2"),
        (None, "DDP"),
        (2, "FSDP2"),
        (2, "DDP"),
    ]


WRONG = """
from benchmarks.rehearsal.absent_gpu import stand_in
stand_in()
import torch
from benchmarks.rehearsal.paths import Path, take

def two_devices(watch):
    return [torch.ones(2) + torch.ones(2, device="cpu")]

def on_the_cpu(watch):
    return [torch.ones(2, device="cpu")]

def reads(watch):
    x = torch.ones(2)
    return [x * x.sum().item()]

def follows_values(watch):
    x = torch.ones(2)
    return [x[x > 0]]

def from_a_list(watch):
    return [torch.ones(2).new_tensor([1.0, 2.0])]

def wide(watch):
    with torch.autocast("cuda", torch.bfloat16):
        with torch.autocast("cuda", enabled=False):
            return [torch.ones(2, 2) @ torch.ones(2, 2)]

for run in (two_devices, on_the_cpu, reads, follows_values, from_a_list, wide):
    print(run.__name__, *take(Path("wrong", run.__name__, run, narrow=True)).faults, sep=": ")
"""


@pytest.mark.slow
def test_what_a_gpu_refuses_or_waits_for_is_found() -> None:
    """Six paths, each with one fault: without them the test above could not fail."""
    done = subprocess.run([sys.executable, "-c", WRONG], cwd=ROOT, capture_output=True, text=True)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    for name, words in {
        "two_devices": "cuda:0 and cpu",
        "on_the_cpu": "its result is on the cpu",
        "reads": "reads a value",
        "follows_values": "DynamicOutputShapeException",
        "from_a_list": "copies between CPU and GPU",
        "wide": "products in float32, 1 times",
    }.items():
        assert words in said[name], (done.stdout, done.stderr)
