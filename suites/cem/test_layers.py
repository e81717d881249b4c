"""Layers: the Transformer layers they are, how they decode, and how the printed algorithm differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn import functional as F

from cemverify.cem.energies import Interaction, InteractionMemory
from cemverify.cem.layers import (
    AttentionConfig,
    CEMAttention,
    CEMGatedMLP,
    MLPConfig,
    PositionKind,
    PreconditionerConfig,
)
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig, SwiGLU, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig
from cemverify.cem.norms import NoNorm, NormKind, RMSNormFolded, RMSNormInside
from cemverify.cem.preconditioners import Diagonal, Identity, LowRank, LowRankPrinted, PreconditionerKind
from cemverify.cem.printed import PrintedAlgorithm1
from suites.cem.helpers import (
    DIAGONALS,
    POSITIONS,
    ROUNDING,
    generator,
    randn,
    randomised,
    relative_error,
    scalar_interaction,
    token,
    vector,
)

D, K, M = 8, 2, 12

each_diagonal = pytest.mark.parametrize("diagonal", DIAGONALS, ids=lambda d: f"diagonal-{d}")
each_position = pytest.mark.parametrize("position", POSITIONS, ids=lambda p: f"position-{p}")


def attention(seed: int = 0, **options: Any) -> CEMAttention:
    return randomised(CEMAttention(AttentionConfig(D, K, **options), generator(0)), seed)


def mlp(seed: int = 0, **options: Any) -> CEMGatedMLP:
    return randomised(CEMGatedMLP(MLPConfig(D, M, **options), generator(0)), seed)


# --- attention is multi-head attention with tied weights ----------------------------------------------


def torch_attention(layer: CEMAttention, h: Tensor, *, causal: bool) -> Tensor:
    """torch's multi-head attention of h with key = value and output = query projection."""
    module = nn.MultiheadAttention(D, K, bias=False, batch_first=True, dtype=torch.float64)
    W_Q, W_K = layer.W_Q.reshape(D, D), layer.W_K.reshape(D, D)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat((W_Q, W_K, W_K)))
        module.out_proj.weight.copy_(W_Q.mT)
    mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1) if causal else None
    out: Tensor = module(h, h, h, attn_mask=mask, need_weights=False)[0]
    return out


each_mask = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


@each_mask
def test_attention_is_torchs_multihead_attention_with_tied_weights_and_a_residual(causal: bool) -> None:
    layer, h = attention(causal=causal), randn(2, 5, D, seed=1)
    assert relative_error(layer(h), h + torch_attention(layer, h, causal=causal)) <= ROUNDING


def test_at_the_printed_temperature_it_is_not() -> None:
    layer, h = attention(temperature=math.sqrt(D)), randn(2, 5, D, seed=1)
    assert relative_error(layer(h), h + torch_attention(layer, h, causal=True)) > 0.01


def test_the_printed_temperature_is_that_of_attention_for_one_head() -> None:
    assert AttentionConfig(D, 1).tau == math.sqrt(D)


@each_mask
def test_attention_is_scaled_dot_product_attention_at_its_default_scale(causal: bool) -> None:
    layer, h = attention(causal=causal), randn(2, 5, D, seed=1)
    queries, keys = (torch.einsum("bjd,krd->bkjr", h, W) for W in (layer.W_Q, layer.W_K))
    attended = F.scaled_dot_product_attention(queries, keys, keys, is_causal=causal)
    assert relative_error(layer(h), h + torch.einsum("bkjr,krd->bjd", attended, layer.W_Q)) <= ROUNDING


@pytest.mark.parametrize("diagonal", ["shared", "per-head"])
def test_a_diagonal_is_attention_over_keys_that_carry_the_states(diagonal: str) -> None:
    layer, h = attention(diagonal=diagonal), randn(2, 5, D, seed=1)
    assert layer.diagonal is not None
    d = layer.diagonal.expand(K, D)
    eye = torch.eye(D, dtype=torch.float64).expand(K, D, D)
    wide_Q = torch.cat((layer.W_Q, d[:, :, None] * eye), dim=1)  # (K, R + D, D)
    wide_K = torch.cat((layer.W_K, eye), dim=1)
    wide = Interaction(wide_Q, wide_K, layer.config.tau)
    assert relative_error(layer(h), h - wide.gradient(h, wide.remember(h))) <= ROUNDING


def test_cem_attention_is_llama_attention_with_tied_weights() -> None:
    llama, tied = (
        LlamaAttention(LlamaAttentionConfig(D, K, "alibi"), generator(0)).double(),
        attention(position="alibi"),
    )
    with torch.no_grad():
        for name, weight in (("W_Q", tied.W_Q), ("W_O", tied.W_Q), ("W_K", tied.W_K), ("W_V", tied.W_K)):
            llama.get_parameter(name).copy_(weight)
    h = randn(2, 5, D, seed=1)
    assert relative_error(tied(h), h + llama(h)[0]) <= ROUNDING


def test_llama_attention_is_scaled_dot_product_attention_of_turned_queries_and_keys() -> None:
    layer, h = randomised(LlamaAttention(LlamaAttentionConfig(D, K), generator(0)), 0), randn(2, 5, D, seed=1)

    def turned(x: Tensor) -> Tensor:
        """Rotary positions as complex numbers."""
        half = x.shape[-1] // 2
        angle = torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), dim=-1)

    queries, keys, values = (torch.einsum("bjd,krd->bkjr", h, W) for W in (layer.W_Q, layer.W_K, layer.W_V))
    attended = F.scaled_dot_product_attention(turned(queries), turned(keys), values, is_causal=True)
    assert relative_error(layer(h)[0], torch.einsum("bkjr,krd->bjd", attended, layer.W_O)) <= ROUNDING


# --- the MLP is Llama's with tied weights -------------------------------------------------------------

TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def llama_mlp(act: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor, down: Tensor, x: Tensor) -> Tensor:
    return F.linear(act(F.linear(x, gate)) * F.linear(x, up), down)


@pytest.mark.parametrize("name", TORCH)
def test_the_mlp_is_llamas_with_gate_v_up_w_and_down_v_transposed(name: str) -> None:
    layer, x = mlp(activation=name), randn(2, 5, D, seed=1)
    expected = x + llama_mlp(TORCH[name], layer.V, layer.W, layer.V.mT, x)
    assert relative_error(layer(x), expected) <= ROUNDING


@pytest.mark.parametrize("name", TORCH)
def test_with_the_names_of_the_paper_it_is_not(name: str) -> None:
    layer, x = mlp(activation=name), randn(2, 5, D, seed=1)
    assert relative_error(layer(x), x + llama_mlp(TORCH[name], layer.W, layer.V, layer.V.mT, x)) > 0.1


def test_swiglu_is_llamas_mlp() -> None:
    layer, x = randomised(SwiGLU(SwiGLUConfig(D, M), generator(0)), 0), randn(2, 5, D, seed=1)
    assert relative_error(layer(x), llama_mlp(F.silu, layer.gate, layer.up, layer.down, x)) <= ROUNDING


# --- the block is a pre-norm block --------------------------------------------------------------------


def test_a_block_of_one_plain_step_is_the_standard_prenorm_block() -> None:
    config = BlockConfig(AttentionConfig(D, K, norm="channel"), MLPConfig(D, M, norm="channel"))
    block, h = randomised(Block(config, generator(0)), 0), randn(2, 5, D, seed=1)
    assert isinstance(block.attention, CEMAttention)
    assert isinstance(block.mlp, CEMGatedMLP)
    first, second = block.attention.norm.gain, block.mlp.norm.gain
    assert first is not None
    assert second is not None
    middle = h + torch_attention(block.attention, F.rms_norm(h, (D,), first, 1e-5), causal=True)
    u = F.rms_norm(middle, (D,), second, 1e-5)
    expected = middle + llama_mlp(F.silu, block.mlp.V, block.mlp.W, block.mlp.V.mT, u)
    # two sublayers, one after the other
    assert relative_error(block(h)[0], expected) <= 2 * ROUNDING


def test_the_printed_block_is_not_for_it_forgets_the_state_that_it_normalised() -> None:
    layer, h = attention(norm="scalar"), randn(2, 5, D, seed=1, scale=10.0)
    with torch.no_grad():
        layer.W_Q.zero_()
    normalised = layer.norm().into(h)
    assert torch.equal(layer.residual(h)[0], h)  # an update of zero leaves the state
    assert torch.equal(PrintedAlgorithm1(layer)(h), normalised)


def test_the_printed_block_does_not_see_the_scale_of_its_input() -> None:
    layer, h = attention(norm="scalar", norm_eps=0.0), randn(2, 5, D, seed=1)
    printed = PrintedAlgorithm1(layer)
    assert relative_error(printed(8.0 * h), printed(h)) <= ROUNDING
    assert relative_error(layer.residual(8.0 * h)[0], layer.residual(h)[0]) > 0.5


def test_algorithm_1_ascends_as_printed() -> None:
    layer = attention_of_ones()
    h = token(1.0)
    energy = layer.energy
    memory = energy.remember(h)
    printed = PrintedAlgorithm1(layer)(h)
    assert (h.item(), printed.item(), layer(h).item()) == (1.0, 0.0, 2.0)
    assert [energy(x, memory).item() for x in (h, printed, layer(h))] == [-1.0, 0.0, -2.0]


def attention_of_ones() -> CEMAttention:
    """Attention of one head and one dimension, with W_Q = W_K = 1."""
    layer = randomised(CEMAttention(AttentionConfig(1, 1), generator(0)), 0)
    with torch.no_grad():
        layer.W_Q.fill_(1.0)
        layer.W_K.fill_(1.0)
    return layer


@pytest.mark.parametrize("per_head", [False, True], ids=["shared-P", "P-per-head"])
def test_the_printed_block_is_algorithm_1_line_by_line(per_head: bool) -> None:
    P = PreconditionerConfig("low-rank-printed", rank=2, per_head=per_head)
    layer = attention(diagonal="per-head", preconditioner=P, norm="channel", norm_eps=0.0, step_size=0.3, steps=2)
    assert layer.diagonal is not None
    gain, matrices = layer.norm.gain, layer.preconditioner().matrix(D).expand(K, D, D)
    h = F.rms_norm(randn(2, 5, D, seed=1), (D,), gain, 0.0)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    x = h
    for _ in range(2):
        u = F.rms_norm(x, (D,), gain, 0.0)  # the second normalisation
        delta = torch.zeros_like(h)
        for k in range(K):
            keys = h @ layer.W_K[k].mT
            scores = (u @ layer.W_Q[k].mT) @ keys.mT + (u * layer.diagonal[k]) @ h.mT
            weights = (scores / layer.config.tau).masked_fill(future, -math.inf).softmax(-1)
            delta = delta + (weights @ keys) @ layer.W_Q[k] @ matrices[k].mT  # no diagonal in the values
        x = x - 0.3 * delta
    # two steps
    assert relative_error(PrintedAlgorithm1(layer)(randn(2, 5, D, seed=1)), x) <= 2 * ROUNDING


@pytest.mark.parametrize("step_size", [0.001, 0.1])
def test_algorithm_1_raises_the_energy_of_every_token_of_a_random_layer(step_size: float) -> None:
    layer, h = attention(step_size=step_size), randn(2, 5, D, seed=1)
    energy = layer.energy
    memory = energy.remember(h)
    assert (energy(PrintedAlgorithm1(layer)(h), memory) > energy(h, memory)).all()
    assert (energy(layer(h), memory) < energy(h, memory)).all()


# --- a diagonal in the scores alone -------------------------------------------------------------------


def score_only_direction(energy: Interaction, x: Tensor, memory: InteractionMemory) -> Tensor:
    """sum_k W_Q^T sum_j a_kij W_K h_j, as Algorithm 1 prints it; no gradient where there is a diagonal: (B, J, D)."""
    return torch.einsum("bkjr,krd->bjd", energy.attention_weights(x, memory) @ memory.keys, energy.W_Q)


def score_only_jacobian(d: tuple[float, float]) -> Tensor:
    """The Jacobian at x = 0 of the printed field of two memories (1, 1) and (0, 0), W_Q = W_K = (1, 0)."""
    energy = replace(scalar_interaction([[1.0, 0.0]], [[1.0, 0.0]]), diagonal=vector(*d))
    memory = energy.remember(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]], dtype=torch.float64))

    def field(x: Tensor) -> Tensor:
        return score_only_direction(energy, x[None, None], memory)[0, 0]

    jacobian: Tensor = torch.func.jacrev(field)(vector(0.0, 0.0))
    return jacobian


def test_a_diagonal_in_the_scores_but_not_the_values_is_no_gradient() -> None:
    # the Jacobian of a gradient is symmetric
    assert score_only_jacobian((0.0, 1.0)).tolist() == [[0.25, 0.25], [0.0, 0.0]]


def test_without_a_diagonal_the_printed_field_is_a_gradient() -> None:
    jacobian = score_only_jacobian((0.0, 0.0))
    assert torch.equal(jacobian, jacobian.mT)


@pytest.mark.parametrize(("W_Q", "d"), [(1.0, -2.0), (-1.0, 2.0)])
def test_a_diagonal_in_the_scores_alone_can_point_uphill(W_Q: float, d: float) -> None:
    energy, x = replace(scalar_interaction([[W_Q]], [[1.0]]), diagonal=vector(d)), token(1.0)
    memory = energy.remember(x)
    assert score_only_direction(energy, x, memory).item() == W_Q
    assert -energy.gradient(x, memory).item() == W_Q + d == -W_Q


# --- training -----------------------------------------------------------------------------------------


def parameters_have_exact_gradients(module: nn.Module, h: Tensor) -> bool:
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in module.named_parameters()), strict=True)

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))
        return result

    return bool(gradcheck(output, (h.requires_grad_(), *values)))


LEARNED: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("position", ["none", "rotary", "self-cross"])
def test_every_parameter_of_attention_has_the_gradient_of_the_output(
    kind: PreconditionerKind, position: PositionKind
) -> None:
    P = PreconditionerConfig(kind, rank=1, per_head=kind != "identity")
    config = AttentionConfig(4, 2, diagonal="shared", position=position, preconditioner=P, steps=2, norm="channel")
    assert parameters_have_exact_gradients(randomised(CEMAttention(config, generator(0)), 0), randn(1, 3, 4, seed=1))


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("norm", ["none", "scalar", "folded"])
def test_every_parameter_of_the_mlp_has_the_gradient_of_the_output(kind: PreconditionerKind, norm: NormKind) -> None:
    config = MLPConfig(4, 3, preconditioner=PreconditionerConfig(kind, rank=1), steps=2, norm=norm)
    assert parameters_have_exact_gradients(randomised(CEMGatedMLP(config, generator(0)), 0), randn(1, 3, 4, seed=1))


# --- what a configuration builds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "built"),
    [("identity", Identity), ("diagonal", Diagonal), ("low-rank", LowRank), ("low-rank-printed", LowRankPrinted)],
)
def test_a_layer_descends_with_the_preconditioner_it_was_asked_for(kind: PreconditionerKind, built: type) -> None:
    for layer in (
        attention(preconditioner=PreconditionerConfig(kind)),
        mlp(preconditioner=PreconditionerConfig(kind)),
    ):
        assert isinstance(layer.descent.preconditioner, built)


@pytest.mark.parametrize(
    ("kind", "built", "gains"),
    [
        ("none", NoNorm, None),
        ("scalar", RMSNormInside, 1),
        ("channel", RMSNormInside, D),
        ("folded", RMSNormFolded, D),
    ],
)
def test_a_layer_descends_inside_the_norm_it_was_asked_for(kind: NormKind, built: type, gains: int | None) -> None:
    for layer in (attention(norm=kind, norm_eps=0.5), mlp(norm=kind, norm_eps=0.5)):
        norm = layer.descent.norm
        assert isinstance(norm, built)
        if not isinstance(norm, NoNorm):
            assert isinstance(norm, RMSNormInside | RMSNormFolded)
            assert (norm.gain.numel(), norm.eps) == (gains, 0.5)


def test_a_layer_takes_the_depth_and_step_size_it_was_asked_for() -> None:
    for layer in (attention(steps=3, step_size=0.25), mlp(steps=3, step_size=0.25)):
        assert (layer.descent.steps, layer.descent.step_size) == (3, 0.25)


def test_weights_start_with_the_standard_deviation_they_were_asked_for() -> None:
    layer = CEMAttention(AttentionConfig(64, 4, init_std=0.5), generator(0))
    # 4096 numbers: five standard errors of their standard deviation
    assert layer.W_Q.std().item() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2 * 4096))


# --- who sees whom ------------------------------------------------------------------------------------


@each_diagonal
@each_position
def test_a_token_does_not_see_its_future(diagonal: str, position: str) -> None:
    layer, h = attention(diagonal=diagonal, position=position, steps=2), randn(2, 5, D, seed=1)
    other = torch.cat((h[:, :3], randn(2, 2, D, seed=2)), dim=1)
    assert torch.equal(layer(other)[:, :3], layer(h)[:, :3])


def test_a_token_sees_its_future_without_the_mask() -> None:
    layer, h = attention(causal=False), randn(2, 5, D, seed=1)
    other = torch.cat((h[:, :3], randn(2, 2, D, seed=2)), dim=1)
    assert relative_error(layer(other)[:, :3], layer(h)[:, :3]) > 1e-3


@each_diagonal
@each_position
def test_the_rows_of_a_batch_do_not_see_each_other(diagonal: str, position: str) -> None:
    layer, h = attention(diagonal=diagonal, position=position, steps=2), randn(2, 5, D, seed=1)
    other = torch.stack((h[0], randn(5, D, seed=2)))
    assert torch.equal(layer(other)[0], layer(h)[0])


def test_the_tokens_of_the_mlp_do_not_see_each_other() -> None:
    layer, h = mlp(steps=2, preconditioner=PreconditionerConfig("low-rank")), randn(2, 5, D, seed=1)
    other = h.clone()
    other[:, 1:] = randn(2, 4, D, seed=2)
    assert torch.equal(layer(other)[:, 0], layer(h)[:, 0])


# --- decoding -----------------------------------------------------------------------------------------


@each_diagonal
@pytest.mark.parametrize("position", [*POSITIONS, "alibi-printed"], ids=lambda p: f"position-{p}")
@pytest.mark.parametrize("split", range(1, 5))
def test_decoding_from_a_cache_is_the_full_pass_at_every_split(diagonal: str, position: str, split: int) -> None:
    layer, h = attention(diagonal=diagonal, position=position, steps=2, norm="channel"), randn(2, 5, D, seed=1)
    full, _ = layer.residual(h)
    first, past = layer.residual(h[:, :split])
    second, memory = layer.residual(h[:, split:], past)
    assert memory.length == 5
    # two steps
    assert relative_error(torch.cat((first, second), dim=1), full) <= 2 * ROUNDING


@each_position
def test_the_cache_without_a_diagonal_is_one_tensor_half_the_size_of_llamas(position: str) -> None:
    h = randn(2, 5, D, seed=1)
    _, memory = attention(position=position).residual(h)
    _, cache = LlamaAttention(LlamaAttentionConfig(D, K), generator(0)).double().residual(h)
    held = [value for value in (getattr(memory, f.name) for f in fields(memory)) if isinstance(value, torch.Tensor)]
    assert [t.numel() for t in held] == [h.numel()]
    assert cache.keys.numel() + cache.values.numel() == 2 * h.numel()


def test_a_diagonal_keeps_the_states_beside_the_keys() -> None:
    h = randn(2, 5, D, seed=1)
    _, memory = attention(diagonal="shared").residual(h)
    assert memory.states is not None
    assert torch.equal(memory.states, h)


# --- configurations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (AttentionConfig, {"dim": 6, "heads": 4}, "dim 6 is not a multiple of heads 4; give head_dim"),
        (AttentionConfig, {"dim": 0, "heads": 1}, "dim and heads must be positive, not 0 and 1"),
        (AttentionConfig, {"dim": 4, "heads": 2, "temperature": 0.0}, "must be positive and finite, not 0.0"),
        (AttentionConfig, {"dim": 4, "heads": 2, "temperature": math.inf}, "must be positive and finite, not inf"),
        (
            AttentionConfig,
            {"dim": 4, "heads": 2, "position": "rope"},
            "unknown position 'rope'; choose from none, alibi",
        ),
        (
            AttentionConfig,
            {"dim": 4, "heads": 2, "diagonal": "head"},
            "unknown diagonal 'head'; choose from none, shared",
        ),
        (
            AttentionConfig,
            {"dim": 4, "heads": 2, "norm": "rms"},
            "unknown norm 'rms'; choose from none, scalar, channel",
        ),
        (MLPConfig, {"dim": 4, "hidden": 0}, "dim and hidden must be positive, not 4 and 0"),
        (MLPConfig, {"dim": 4, "hidden": 4, "norm": "rms"}, "unknown norm 'rms'; choose from none, scalar, channel"),
        (
            MLPConfig,
            {"dim": 4, "hidden": 4, "preconditioner": PreconditionerConfig("diagonal", per_head=True)},
            "has no heads",
        ),
        (
            PreconditionerConfig,
            {"kind": "lowrank"},
            "unknown preconditioner 'lowrank'; choose from identity, diagonal",
        ),
        (PreconditionerConfig, {"init": "zero"}, "unknown init 'zero'; choose from paper, identity"),
        (LlamaAttentionConfig, {"dim": 6, "heads": 4}, "dim 6 is not a multiple of heads 4"),
        (LlamaAttentionConfig, {"dim": 6, "heads": 0}, "dim and heads must be positive, not 6 and 0"),
        (
            LlamaAttentionConfig,
            {"dim": 6, "heads": 2, "position": "self-cross"},
            "unknown position 'self-cross'; choose from none, rotary",
        ),
    ],
)
def test_a_configuration_that_cannot_be_built_says_why(
    build: Callable[..., object], arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_a_head_dimension_of_its_own_need_not_divide_the_model_dimension() -> None:
    config = AttentionConfig(6, 4, head_dim=3)
    assert CEMAttention(config, generator(0)).W_Q.shape == (4, 3, 6)
    assert config.tau == math.sqrt(3)
