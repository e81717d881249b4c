"""Models: their sizes, their initial weights, and decoding token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import AttentionConfig, DiagonalKind, MLPConfig, PositionKind, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.presets import full_cem, llama
from suites.cem.helpers import ROUNDING, generator, randomised, relative_error

# --- the sizes of Table 1 -----------------------------------------------------------------------------


def variant(
    name: str, attention: PreconditionerConfig, mlp: PreconditionerConfig, diagonal: DiagonalKind
) -> LanguageModelConfig:
    """Full CEM of that size with other preconditioners."""
    config = full_cem(name)
    assert isinstance(config.block.attention, AttentionConfig)
    assert isinstance(config.block.mlp, MLPConfig)
    block = BlockConfig(
        replace(config.block.attention, preconditioner=attention, diagonal=diagonal),
        replace(config.block.mlp, preconditioner=mlp),
    )
    return replace(config, block=block)


def shared_in_attention(name: str) -> LanguageModelConfig:
    low_rank = PreconditionerConfig("low-rank-printed", rank=4)
    return variant(name, low_rank, replace(low_rank, rank=16), "shared")


def diagonal_only(name: str) -> LanguageModelConfig:
    diagonal = PreconditionerConfig("diagonal")
    return variant(name, replace(diagonal, per_head=True), diagonal, "shared")


def tied_only(name: str) -> LanguageModelConfig:
    return variant(name, PreconditionerConfig(), PreconditionerConfig(), "none")


COUNTS = {  # of Llama, full CEM, and full CEM with P shared by the heads, diagonal, and with tied weights alone
    "86M": (86_371_488, 70_082_208, 69_743_520, 69_566_112, 69_512_352),
    "108M": (108_052_896, 83_909_280, 83_110_944, 82_877_088, 82_764_192),
    "134M": (134_105_856, 102_384_384, 101_472_000, 101_204_736, 101_075_712),
    "162M": (162_813_024, 122_481_504, 121_455_072, 121_154_400, 121_009_248),
}


def parameter_count(config: LanguageModelConfig) -> int:
    with torch.device("meta"):
        model = LanguageModel(config, generator(0))
    assert all(p.is_meta for p in model.parameters())
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_the_models_have_the_parameters_of_table_1(name: str) -> None:
    builders = (llama, full_cem, shared_in_attention, diagonal_only, tied_only)
    assert tuple(parameter_count(build(name)) for build in builders) == COUNTS[name]


# --- language models ----------------------------------------------------------------------------------

VOCABULARY = 11


def tiny(block: BlockConfig) -> LanguageModelConfig:
    return LanguageModelConfig(VOCABULARY, 2, block)


def tiny_cem(position: PositionKind, diagonal: DiagonalKind = "shared", **beyond: Any) -> LanguageModelConfig:
    low_rank = PreconditionerConfig("low-rank", rank=2)
    attention = AttentionConfig(
        8,
        2,
        diagonal=diagonal,
        position=position,
        preconditioner=replace(low_rank, per_head=True),
        steps=2,
        norm="channel",
        **beyond,
    )
    return tiny(BlockConfig(attention, MLPConfig(8, 12, preconditioner=low_rank, steps=2, norm="channel", **beyond)))


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


# --- initial weights ----------------------------------------------------------------------------------


@each_model
def test_the_initial_weights_depend_on_the_generator_alone_and_leave_the_global_seed(
    config: LanguageModelConfig,
) -> None:
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
