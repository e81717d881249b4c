"""Models: their sizes, their initial weights, and decoding token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from cemverify import cem
from cemverify.cem.activations import activation
from cemverify.cem.beyond import Beyond
from cemverify.cem.descent import Descent, Own
from cemverify.cem.layers import AttentionConfig, DiagonalKind, MLPConfig, PositionKind, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, RMSNorm, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.positions import Rotary, alibi_slopes
from cemverify.cem.presets import full_cem, llama, size
from suites.cem.helpers import ROUNDING, generator, randomised, relative_error

COUNTS = {  # of Llama and full CEM
    "86M": (86_371_488, 70_082_208),
    "108M": (108_052_896, 83_909_280),
    "134M": (134_105_856, 102_384_384),
    "162M": (162_813_024, 122_481_504),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_models_have_the_parameters_of_table_1(name: str) -> None:
    counts = []
    for config in (llama(name), full_cem(name)):
        with torch.device("meta"):
            model = LanguageModel(config, generator(0))
        assert all(p.is_meta for p in model.parameters())
        counts.append(sum(p.numel() for p in model.parameters()))
    assert tuple(counts) == COUNTS[name]


VOCABULARY = 11


def tiny(block: BlockConfig) -> LanguageModelConfig:
    return LanguageModelConfig(VOCABULARY, 2, block)


def tiny_cem(position: PositionKind, diagonal: DiagonalKind = "shared", **beyond: Any) -> LanguageModelConfig:
    low_rank = PreconditionerConfig("low-rank", rank=2)
    both: dict[str, Any] = {"steps": 2, "norm": "channel", **beyond}
    per_head = replace(low_rank, per_head=True)
    attention = AttentionConfig(8, 2, diagonal=diagonal, position=position, preconditioner=per_head, **both)
    return tiny(BlockConfig(attention, MLPConfig(8, 12, preconditioner=low_rank, **both)))


# each step has an eta and a P of its own
OWN = Beyond(momentum=0.4, learn_momentum=True, own_steps=True, own_preconditioners=True)


MODELS = {
    "llama-rotary": tiny(BlockConfig(LlamaAttentionConfig(8, 2, "rotary"), SwiGLUConfig(8, 12))),
    "llama-alibi": tiny(BlockConfig(LlamaAttentionConfig(8, 2, "alibi"), SwiGLUConfig(8, 12))),
    "cem-alibi": tiny_cem("alibi"),
    "cem-rotary": tiny_cem("rotary"),
    "cem-self-cross": tiny_cem("self-cross", diagonal="per-head"),
    "cem-beyond": tiny_cem("alibi", step="learned", beyond=OWN),
    "cem-joint": tiny(BlockConfig(AttentionConfig(8, 2, position="alibi-printed"), MLPConfig(8, 12), rounds=2)),
    "cem-attention-llama-mlp": tiny(BlockConfig(AttentionConfig(8, 2, norm="channel"), SwiGLUConfig(8, 12))),
    "llama-attention-cem-mlp": tiny(BlockConfig(LlamaAttentionConfig(8, 2), MLPConfig(8, 12, norm="channel"))),
}
each_model = pytest.mark.parametrize("config", MODELS.values(), ids=list(MODELS))


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2, 6), generator=generator(1))


def language_model(config: LanguageModelConfig) -> LanguageModel:
    return randomised(LanguageModel(config, generator(0)), 0, scale=0.3)


@each_model
@pytest.mark.parametrize("pieces", [(1,) * 6, (1, 5), (3, 3), (5, 1)], ids=str)
def test_decoding_piece_by_piece_is_the_full_pass(config: LanguageModelConfig, pieces: tuple[int, ...]) -> None:
    model, text = language_model(config), tokens()
    logits, cache = [], None
    for piece in text.split(pieces, dim=1):  # type: ignore[no-untyped-call]
        step, cache = model.decode(piece, cache)
        logits.append(step)
    # two blocks of two sublayers of at most two steps
    assert relative_error(torch.cat(logits, dim=1), model(text)) <= 8 * ROUNDING


def test_a_cache_of_another_model_is_refused() -> None:
    model = language_model(MODELS["cem-alibi"])
    _, cache = model.decode(tokens())
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        model.decode(tokens(), cache[:1])


@each_model
def test_the_initial_weights_depend_on_the_generator_alone_and_leave_the_seed(config: LanguageModelConfig) -> None:
    before = torch.random.get_rng_state()
    first, other = (LanguageModel(config, generator(seed)).state_dict() for seed in (7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        second = LanguageModel(config, generator(7)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["embedding"], other["embedding"])


@each_model
def test_every_parameter_is_trained_from_the_start_but_the_u_beside_a_v_of_zero(config: LanguageModelConfig) -> None:
    model = LanguageModel(config, generator(0)).double()
    loss = torch.nn.functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    names, parameters = zip(*model.named_parameters(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        assert gradient.isfinite().all()
        assert bool(gradient.any()) == (not name.endswith(".U")), name


def test_the_defaults_of_a_configuration_are_these() -> None:
    P = PreconditionerConfig("identity", rank=4, per_head=False, init="paper")
    paper = Beyond(
        0.0, learn_momentum=False, own_steps=False, own_preconditioners=False, cooling=1.0, signs="ignored"
    )
    # weights start at a standard deviation of 0.02 and norms add 1e-5, as Llama's do
    steps: dict[str, Any] = {"preconditioner": P, "steps": 1, "step_size": 1.0, "step": "fixed", "beyond": paper}
    norm: dict[str, Any] = {"norm": "none", "norm_eps": 1e-5, "init_std": 0.02}
    heads: dict[str, Any] = {"head_dim": None, "temperature": None, "diagonal": "none", "position": "none"}
    attention = AttentionConfig(4, heads=2, causal=True, **steps, **norm, **heads)
    mlp = MLPConfig(4, hidden=3, activation="silu", **steps, **norm)
    llama = LlamaAttentionConfig(4, 2, "rotary", norm_eps=1e-5, init_std=0.02)
    swiglu = SwiGLUConfig(4, 3, norm_eps=1e-5, init_std=0.02)
    made = (AttentionConfig(4, heads=2), MLPConfig(4, hidden=3), LlamaAttentionConfig(4, 2), SwiGLUConfig(4, 3))
    assert made == (attention, mlp, llama, swiglu)
    block = BlockConfig(attention, mlp, rounds=1)
    assert BlockConfig(attention, mlp) == block
    assert LanguageModelConfig(9, 2, block) == LanguageModelConfig(9, 2, block, 0.02, None, None)


def test_a_layer_as_small_as_can_be_is_built() -> None:
    assert AttentionConfig(1, 1).tau == 1.0
    assert AttentionConfig(5, 3, head_dim=1).R == 1
    assert AttentionConfig(5, 3, head_dim=4).tau == 2.0  # heads need not divide the model's dimension
    assert MLPConfig(1, 1).steps == 1
    assert PreconditionerConfig("low-rank", rank=1).rank == 1
    block = BlockConfig(LlamaAttentionConfig(1, 1, "none"), SwiGLUConfig(1, 1))
    assert LanguageModel(LanguageModelConfig(1, 1, block), generator(0)).embedding.shape == (1, 1)


UNKNOWN: Any = "no"
SELF_CROSS: Any = "self-cross"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *((partial(config, *sizes), f"dim and {what} must be positive, not {sizes[0]} and {sizes[1]}")
          for config, what in ((AttentionConfig, "heads"), (LlamaAttentionConfig, "heads"),
                               (MLPConfig, "hidden"), (SwiGLUConfig, "hidden"))
          for sizes in ((0, 1), (1, 0))),
        (lambda: AttentionConfig(1, 1, head_dim=0), "the head dimension must be positive, .* not 0"),
        (lambda: AttentionConfig(2, 2, position="rotary"), "even for rotary positions, not 1"),
        (lambda: AttentionConfig(1, 1, steps=0), "T must be at least 1, not 0"),
        (lambda: MLPConfig(1, 1, step_size=0.0), "the step size must be positive and finite, not 0.0"),
        (lambda: MLPConfig(1, 1, step_size=float("inf")), "the step size must be positive and finite, not inf"),
        (lambda: PreconditionerConfig("low-rank", rank=0), "must be at least 1, not 0"),
        (lambda: AttentionConfig(6, 4), "dim 6 is not a multiple of heads 4; give head_dim"),
        (lambda: AttentionConfig(4, 2, temperature=0.0), "must be positive and finite, not 0.0"),
        (lambda: AttentionConfig(4, 2, temperature=float("inf")), "must be positive and finite, not inf"),
        (lambda: AttentionConfig(4, 2, position=UNKNOWN), "unknown position 'no'; choose from none, alibi"),
        (lambda: AttentionConfig(4, 2, diagonal=UNKNOWN), "unknown diagonal 'no'; choose from none, shared"),
        (lambda: AttentionConfig(4, 2, norm=UNKNOWN), "unknown norm 'no'; choose from none, scalar, channel"),
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
        *((partial(Descent, 1, eta), "the step size must be positive") for eta in (0.0, float("nan"))),
        # what they are made of
        (lambda: alibi_slopes(0), "at least one head, not 0"),
        (lambda: Rotary().rotate(torch.zeros(1, 3), torch.tensor([0])), "the head dimension is 3, which is odd"),
        (lambda: activation("swish"), "unknown activation 'swish'; choose from silu, gelu, gelu-tanh, relu"),
        # a model of the paper's
        *((partial(build, "7B"), "unknown model size '7B'; choose from 86M") for build in (size, llama, full_cem)),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_built_says_why(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_norm_adds_the_epsilon_of_its_configuration() -> None:
    assert RMSNorm(3).eps == 1e-5
    block = BlockConfig(LlamaAttentionConfig(2, 1, norm_eps=1e-3), SwiGLUConfig(2, 3, norm_eps=1e-2))
    model = LanguageModel(LanguageModelConfig(4, 1, block), generator(0))
    (only,) = cast(Any, model.blocks)
    assert (only.attention.norm.eps, only.mlp.norm.eps, model.norm.eps) == (1e-3, 1e-2, 1e-5)


def test_what_holds_tensors_is_not_compared_by_them() -> None:
    """Comparing tensors gives no single truth value, and torch 2.11 cannot compile a class that hashes its fields."""
    names = {name for _, name, _ in walk_packages(cem.__path__, "cemverify.cem.")}
    modules = map(import_module, names - {"cemverify.cem.energies.rows"})  # it needs Triton, and has no class
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type) and is_dataclass(c)}
    holding = [c for c in classes if any(str(f.type).startswith("Tensor") for f in fields(c))]
    assert len(holding) > 10
    assert [c.__name__ for c in holding if c.__eq__ is not object.__eq__] == []
