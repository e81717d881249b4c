"""Hypothesis by hand: 100 examples of each function against the reference, with sizes, options and numbers drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from benchmarks.peers.cases import ACTIVATIONS, call, case, expected, features, slopes
from benchmarks.peers.gradients import compare_step
from cemverify import EnergyLayer, Implementation
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig

HUNDRED = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,  # so that the page can be made again
    suppress_health_check=list(HealthCheck),
)
SIZES, SEEDS = st.integers(1, 6), st.integers(0, 10**6)
NORMS = ("none", "scalar", "channel", "folded")
KINDS = ("identity", "diagonal", "low-rank", "low-rank-printed")


def test_hundred_examples_of_every_function(layer: Implementation) -> None:
    for name in layer.functions:
        compare(layer, name)


def compare(layer: Implementation, name: str) -> None:
    """Answers, and where they are recorded gradients, against the reference's."""

    @HUNDRED
    @given(
        configs(layer, name), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10**6), st.sampled_from((0, 1, 4))
    )
    def ask(config: Any, batch: int, tokens: int, seed: int, scale: int) -> None:
        asked = case(layer, config, batch, tokens, seed)
        h = scale * asked.h
        asked = replace(asked, x=h if asked.x is asked.h else asked.x, h=h)
        assert_close(call(layer, name, asked), expected(name, asked))
        if layer.arrays == "torch" and "gradients" not in layer.not_offered:
            for slope, right in zip(slopes(layer, name, asked), slopes(None, name, asked), strict=True):
                assert_close(slope, right, rtol=1e-6, atol=1e-6)

    ask()


def configs(layer: Implementation, name: str) -> st.SearchStrategy[Any]:
    """Configurations that the layer has, its options mixed."""
    absent = layer.not_offered

    def some(option: str, *values: str) -> st.SearchStrategy[str]:
        return st.sampled_from([value for value in values if f"{option}:{value}" not in absent])

    shared: dict[str, Any] = {
        "steps": st.just(1) if "steps" in absent else st.integers(1, 3),
        "step_size": st.just(1.0) if "step-size" in absent else st.sampled_from((1.0, 0.3, 1.7)),
        "norm": some("norm", *NORMS),
    }
    plain = st.builds(PreconditionerConfig, some("preconditioner", *KINDS), rank=st.integers(1, 3))

    @st.composite
    def attentions(draw: st.DrawFn) -> AttentionConfig:
        heads, R = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        P = draw(plain)
        per_head = P.kind != "identity" and "preconditioner:per-head" not in absent and draw(st.booleans())
        positions = ("none", "alibi", "self-cross", *(("rotary",) if R % 2 == 0 else ()))
        return AttentionConfig(
            heads * R if "head-dim" in absent else draw(SIZES),
            heads=heads,
            head_dim=R,
            temperature=math.sqrt(R) if "temperature" in absent else draw(st.sampled_from((0.5, 1.0, 3.0))),
            diagonal=draw(some("diagonal", "none", "shared", "per-head")),  # type: ignore[arg-type]
            position=draw(some("position", *positions)),  # type: ignore[arg-type]
            preconditioner=replace(P, per_head=per_head),
            **draw(st.fixed_dictionaries(shared)),
        )

    sigma = some("activation", *ACTIVATIONS)
    mlps = st.builds(MLPConfig, SIZES, hidden=SIZES, activation=sigma, preconditioner=plain, **shared)
    blocks = st.builds(
        lambda one, other: BlockConfig(one, replace(other, dim=one.dim, norm=one.norm)), attentions(), mlps
    )
    drawn: st.SearchStrategy[Any] = {"mlp": mlps, "mlp_energy": mlps, "block": blocks}.get(name, attentions())
    return drawn.filter(lambda config: not features(config) & absent.keys())


def test_energy_layer_hundred_steps(layer: EnergyLayer) -> None:
    @HUNDRED
    @given(st.integers(1, 9), SEEDS)
    def ask(tokens: int, seed: int) -> None:
        compare_step(layer, tokens, seed)

    ask()
