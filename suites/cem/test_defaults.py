"""What a configuration leaves out: every default, and the least that every size may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

from cemverify import cem
from cemverify.cem.beyond import Beyond
from cemverify.cem.descent import Descent, Own
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, RMSNorm, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.presets import full_cem, llama, size
from suites.cem.helpers import generator

# Weights start at a standard deviation of 0.02 and norms add 1e-5, as Llama's do.
_LAYER = {
    "preconditioner": PreconditionerConfig("identity", rank=4, per_head=False, init="paper"),
    "steps": 1,
    "step_size": 1.0,
    "step": "fixed",
    "norm": "none",
    "norm_eps": 1e-5,
    "init_std": 0.02,
    "beyond": Beyond(momentum=0.0, learn_momentum=False, own_steps=False, own_preconditioners=False, cooling=1.0),
}


UNKNOWN: Any = "no"
SELF_CROSS: Any = "self-cross"


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        (PreconditionerConfig, {"kind": "identity", "rank": 4, "per_head": False, "init": "paper"}),
        (
            AttentionConfig,
            _LAYER | {"head_dim": None, "temperature": None, "diagonal": "none", "position": "none", "causal": True},
        ),
        (MLPConfig, _LAYER | {"activation": "silu"}),
        (LlamaAttentionConfig, {"position": "rotary", "norm_eps": 1e-5, "init_std": 0.02}),
        (SwiGLUConfig, {"norm_eps": 1e-5, "init_std": 0.02}),
        (BlockConfig, {"rounds": 1}),
        (LanguageModelConfig, {"init_std": 0.02, "embedding_std": None, "head_std": None}),
    ],
)
def test_the_defaults_of_a_configuration_are_these(config: Any, defaults: dict[str, Any]) -> None:
    constants = {f.name: f.default for f in fields(config) if f.default is not MISSING}
    made = {f.name: f.default_factory() for f in fields(config) if callable(f.default_factory)}
    assert constants | made == defaults


def test_a_layer_as_small_as_can_be_is_built() -> None:
    assert AttentionConfig(1, 1).tau == 1.0
    assert AttentionConfig(5, 3, head_dim=1).R == 1
    assert AttentionConfig(5, 3, head_dim=4).tau == 2.0  # which need not divide the model's dimension
    assert MLPConfig(1, 1).steps == 1
    assert PreconditionerConfig("low-rank", rank=1).rank == 1
    block = BlockConfig(LlamaAttentionConfig(1, 1, "none"), SwiGLUConfig(1, 1))
    assert LanguageModel(LanguageModelConfig(1, 1, block), generator(0)).embedding.shape == (1, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AttentionConfig(0, 1, head_dim=1), "dim and heads must be positive, not 0 and 1"),
        (lambda: AttentionConfig(1, 0, head_dim=1), "dim and heads must be positive, not 1 and 0"),
        (lambda: AttentionConfig(1, 1, head_dim=0), "the head dimension must be positive, .* not 0"),
        (lambda: AttentionConfig(2, 2, position="rotary"), "even for rotary positions, not 1"),
        (lambda: AttentionConfig(1, 1, steps=0), "T must be at least 1, not 0"),
        (lambda: MLPConfig(0, 1), "dim and hidden must be positive, not 0 and 1"),
        (lambda: MLPConfig(1, 0), "dim and hidden must be positive, not 1 and 0"),
        (lambda: MLPConfig(1, 1, steps=0), "T must be at least 1, not 0"),
        (lambda: MLPConfig(1, 1, step_size=0.0), "the step size must be positive and finite, not 0.0"),
        (lambda: MLPConfig(1, 1, step_size=float("inf")), "the step size must be positive and finite, not inf"),
        (lambda: PreconditionerConfig("low-rank", rank=0), "must be at least 1, not 0"),
        (lambda: LlamaAttentionConfig(0, 1), "dim and heads must be positive, not 0 and 1"),
        (lambda: LlamaAttentionConfig(1, 0), "dim and heads must be positive, not 1 and 0"),
        (lambda: SwiGLUConfig(0, 1), "dim and hidden must be positive, not 0 and 1"),
        (lambda: SwiGLUConfig(1, 0), "dim and hidden must be positive, not 1 and 0"),
        (lambda: AttentionConfig(6, 4), "dim 6 is not a multiple of heads 4; give head_dim"),
        (lambda: AttentionConfig(4, 2, temperature=0.0), "must be positive and finite, not 0.0"),
        (lambda: AttentionConfig(4, 2, temperature=float("inf")), "must be positive and finite, not inf"),
        (lambda: AttentionConfig(4, 2, position=UNKNOWN), "unknown position 'no'; choose from none, alibi"),
        (lambda: AttentionConfig(4, 2, diagonal=UNKNOWN), "unknown diagonal 'no'; choose from none, shared"),
        (lambda: AttentionConfig(4, 2, norm=UNKNOWN), "unknown norm 'no'; choose from none, scalar, channel"),
        (lambda: MLPConfig(4, 4, norm=UNKNOWN), "unknown norm 'no'; choose from none, scalar, channel"),
        (lambda: MLPConfig(4, 4, preconditioner=PreconditionerConfig("diagonal", per_head=True)), "has no heads"),
        (lambda: PreconditionerConfig(UNKNOWN), "unknown preconditioner 'no'; choose from identity, diagonal"),
        (lambda: PreconditionerConfig(init=UNKNOWN), "unknown init 'no'; choose from paper, identity"),
        (lambda: LlamaAttentionConfig(6, 4), "dim 6 is not a multiple of heads 4"),
        (lambda: LlamaAttentionConfig(6, 2, UNKNOWN), "unknown position 'no'; choose from none, rotary"),
        # CEM's alone
        (lambda: LlamaAttentionConfig(6, 2, SELF_CROSS), "unknown position 'self-cross'; choose from none, rotary"),
        # of a block
        (lambda: BlockConfig(AttentionConfig(8, 2), SwiGLUConfig(6, 12)), "must have the same dim, not 8 and 6"),
        (lambda: BlockConfig(AttentionConfig(4, 2), MLPConfig(4, 4), 0), "take turns at least once, not 0 times"),
        (lambda: BlockConfig(LlamaAttentionConfig(4, 2), MLPConfig(4, 4), 2), "Llama's go one round"),
        (lambda: BlockConfig(AttentionConfig(4, 2), SwiGLUConfig(4, 4), 2), "Llama's go one round"),
        # beyond the paper
        (lambda: Beyond(momentum=1.0), "momentum must be at least 0 and less than 1, not 1.0"),
        (lambda: Beyond(momentum=float("nan")), "momentum must be"),
        (lambda: Beyond(cooling=0.0), "cooling must be positive and finite, not 0.0"),
        (lambda: MLPConfig(4, 4, beyond=Beyond(cooling=0.5)), "an MLP has no temperature"),
        (lambda: Beyond(signs=UNKNOWN), "unknown signs 'no'; choose from ignored, moved"),
        (lambda: AttentionConfig(4, 2, beyond=Beyond(signs="moved")), "attention has no gates"),
        (lambda: MLPConfig(4, 4, beyond=Beyond(own_steps=True)), 'give step="learned"'),
        (lambda: MLPConfig(4, 4, beyond=Beyond(own_preconditioners=True)), "identity preconditioner is the same in"),
        (lambda: Descent(3, own=(Own(), Own())), "3 steps cannot have what 2 steps have for themselves"),
        (lambda: Descent(3, least_fall=1.5), "the least fall is a share of the first one, from 0 to 1, not 1.5"),
        # a descent
        (lambda: Descent(0), "T >= 1 steps, not 0"),
        (lambda: Descent(-1), "T >= 1 steps, not -1"),
        *((partial(Descent, 1, eta), "the step size must be positive") for eta in (0.0, -0.5, float("nan"), -1)),
        # a model of the paper's
        *((partial(build, "7B"), "unknown model size '7B'; choose from 86M") for build in (size, llama, full_cem)),
    ],
)
def test_a_configuration_that_cannot_be_built_says_why(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_norm_adds_the_epsilon_of_its_configuration() -> None:
    assert RMSNorm(3).eps == 1e-5
    block = BlockConfig(LlamaAttentionConfig(2, 1, norm_eps=1e-3), SwiGLUConfig(2, 3, norm_eps=1e-2))
    model = LanguageModel(LanguageModelConfig(4, 1, block), generator(0))
    (only,) = model.blocks
    assert isinstance(only, Block)
    assert (only.attention.norm.eps, only.mlp.norm.eps, model.norm.eps) == (1e-3, 1e-2, 1e-5)


def test_what_holds_tensors_is_not_compared_by_them() -> None:
    """Tensors have no one truth to compare by, and torch 2.11 cannot compile what hashes its fields."""
    modules = [import_module(name) for _, name, _ in walk_packages(cem.__path__, "cemverify.cem.")]
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type) and is_dataclass(c)}
    holding = [c for c in classes if any(str(f.type).startswith("Tensor") for f in fields(c))]
    assert len(holding) > 10
    assert [c.__name__ for c in holding if c.__eq__ is not object.__eq__] == []
