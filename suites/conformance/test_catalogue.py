"""Every property of the catalogue, asked of --implementation (the reference by default)."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

from cemverify.api import Check
from cemverify.conformance.contract import load
from cemverify.conformance.engine import Effort, applicable
from cemverify.conformance.properties import catalogue
from suites.devices import device_of_worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per property, so that workers share them and each can be named."""
    option = metafunc.config.getoption
    if "check" not in metafunc.fixturenames:
        return
    subject = load(option("--implementation"))
    explore = hypothesis.settings.default is hypothesis.settings.get_profile("explore")
    effort = Effort(
        examples=option("--examples") or (300 if explore else 60),
        seed=int(os.environ.get("CEMVERIFY_SEED", "0")),
        dtype=getattr(torch, option("--dtype")),
        device=device_of_worker(option("--device")),
    )
    checks = [Check(subject, property_, effort) for property_ in applicable(subject, catalogue())]
    metafunc.parametrize("check", checks, ids=[check.property.id for check in checks])


def test_the_property_holds(check: Check) -> None:
    check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prefix", ["gradient/attention", "gradient/mlp", "recursion", "structure", "precision"])
def test_the_reference_holds_on_cuda(prefix: str, dtype: torch.dtype) -> None:
    subject = load("cemverify:reference")
    effort = Effort(examples=20, dtype=dtype, device=device_of_worker("cuda"))
    for property_ in applicable(subject, catalogue()):
        if property_.id.startswith(prefix):
            Check(subject, property_, effort)()
