"""Layers whose parameters differ in every process that imports this module."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from suites.kit.commands import Told

module = torch.nn.Linear(3, 3, bias=False).double()
with torch.no_grad():
    module.weight.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(os.getpid())))


def update(x: Tensor) -> Tensor:
    return -2.0 * x @ module.weight.mT @ module.weight


def energy(x: Tensor) -> Tensor:
    return ((x @ module.weight.mT) ** 2).sum(-1) / 2


undeclared = energy_layer(update=update, energy=energy, state=("J", 3), memory=None)
drawn = energy_layer(update=update, energy=energy, state=("J", 3), memory=None, parameters=module)
seeded = energy_layer(update=lambda x: -x, energy=lambda x: (x**2).sum(-1) / 2, state=("J", 3), memory=None)

LAYER = "suites.conformance.test_parameters:drawn"
OPTIONS = "--examples 6 --properties gradient/layer/energy"
MORE = "descent/layer/slope structure/layer/causality"


@pytest.mark.parametrize("layer", [LAYER, "suites.conformance.test_parameters:undeclared"])
def test_parameters_that_differ_between_processes_are_said(layer: str, told: Told) -> None:
    assert (
        "different parameters in each process" in told(f"cemverify check {layer} {OPTIONS} {MORE} --workers 2", 2).err
    )


def test_a_layer_that_is_the_same_in_every_process_is_checked_by_several(told: Told) -> None:
    told(f"cemverify check suites.conformance.test_parameters:seeded {OPTIONS} {MORE} --workers 2")


def test_a_case_is_replayed_with_the_parameters_that_it_was_found_with(tmp_path: Path, told: Told) -> None:
    told(f"cemverify check {LAYER} {OPTIONS} --workers 1 --save-counterexamples {tmp_path}", 1)
    saved = tmp_path / "gradient-layer-energy.json"
    reason = json.loads(saved.read_text())["property"]["reason"]
    for _ in range(2):
        assert reason in told(f"cemverify replay {saved}", 1).flat
    done = subprocess.run([sys.executable, str(saved.with_suffix(".py"))], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    (got, *_) = re.findall(r"got (\S+),", reason)
    assert got[:7] in done.stdout
