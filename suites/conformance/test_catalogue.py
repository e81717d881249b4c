"""Every property of the catalogue, asked of --implementation (the reference by default)."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import torch

from cemverify.api import Check
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import implementation, kind_of, load
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import applicable
from cemverify.conformance.properties import catalogue, select
from cemverify.conformance.properties.base import CONTROLS
from cemverify.conformance.questions.cases import dense_case
from suites.devices import device_of_worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per property, so that workers share them and each can be named."""
    option = metafunc.config.getoption
    if "check" not in metafunc.fixturenames:
        return
    subject = load(option("--implementation"))
    explore = hypothesis.settings.default is hypothesis.settings.get_profile("explore")
    effort = Effort(
        examples=option("--examples") or (300 if explore else 60 if option("--thorough") else 15),
        seed=int(os.environ.get("CEMVERIFY_SEED", "0")),
        dtype=getattr(torch, option("--dtype")),
        device=device_of_worker(option("--device")),
    )
    checks = [Check(subject, property_, effort) for property_ in applicable(kind_of(subject), catalogue())]
    metafunc.parametrize("check", checks, ids=[check.property.id for check in checks])


def test_the_property_holds(check: Check) -> None:
    check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prefix", ["gradient/attention", "gradient/mlp", "recursion", "structure", "precision"])
def test_the_reference_holds_on_cuda(prefix: str, dtype: torch.dtype) -> None:
    subject = load("cemverify:reference")
    effort = Effort(examples=20, dtype=dtype, device=device_of_worker("cuda"))
    for property_ in applicable(kind_of(subject), catalogue()):
        if property_.id.startswith(prefix):
            Check(subject, property_, effort)()


def test_a_property_is_named_once_and_states_its_source_premise_and_controls() -> None:
    ids = [p.id for p in catalogue()]
    assert len(ids) == len(set(ids))
    for p in catalogue():
        assert p.id.count("/") == 2, p.id
        assert p.source, p.id
        assert p.claim.endswith("."), p.id
        assert p.premise, p.id
        assert 0 < p.floor <= 1, p.id
        assert p.controls <= CONTROLS.keys(), p.id
        if p.kind == "energy layer":
            assert not p.controls & {"detached", "shuffled"}, p.id


def test_an_example_tells_only_where_the_rival_shows() -> None:
    """Positions cannot matter to a single token: a run of such cases is vacuous, and says so by its count."""
    (property_,) = select(["gradient/attention/alibi"])
    config = AttentionConfig(4, 2, position="alibi", temperature=1.0)
    one, several = (dense_case(config, 1, tokens, seed=0) for tokens in (1, 4))
    caller = Caller(load("cemverify:reference"))
    assert not property_.check(caller, one).telling
    assert property_.check(caller, several).telling


def test_a_product_that_jax_pulls_back_is_judged_too() -> None:
    jax = pytest.importorskip("jax", reason="the jax extra is not installed")

    def mlp(x: Any, h: Any, weights: Any, config: Any) -> Any:
        for _ in range(config.steps):
            gate = jax.nn.silu(x @ weights["V"].T) * (h @ weights["W"].T)
            x = x + config.step_size * gate @ weights["V"]
        return x

    absent = ("norm", "preconditioner", "validation")
    sound = implementation(mlp=mlp, arrays="jax", not_offered=absent)
    stopped = implementation(
        mlp=lambda x, h, weights, config: mlp(jax.lax.stop_gradient(x), h, weights, config),
        arrays="jax",
        not_offered=absent,
    )
    (property_,) = select(["training/mlp/silu"])
    case = dense_case(MLPConfig(3, 4, steps=2), 1, 2, seed=0)
    assert property_.check(Caller(sound), case).worst.margin <= 1
    assert property_.check(Caller(stopped), case).worst.claim == "vector-Jacobian product with respect to x"
