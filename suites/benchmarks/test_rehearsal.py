"""A GPU that is not there: a part of its paths, in a process of their own, since the stand-in comes before torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.rehearsal import absent_gpu
from suites.kit.source import ROOT

# both ways, and what stands in one step of the smallest models
PART = "fault or path or 86M and (llama or t2)"

pytestmark = pytest.mark.skipif(absent_gpu.missing() is not None, reason=str(absent_gpu.missing()))


@pytest.mark.thorough
def test_a_sample_of_the_paths_would_run_on_a_gpu_and_the_formula_knows_its_memory() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "benchmarks/rehearsal", "--each", "9", "-k", PART]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
