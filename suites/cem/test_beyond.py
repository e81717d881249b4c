"""Beyond the paper (docs/mathematics.md §18): momentum; eta, P and temperature per step; stops; turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem import blocked
from cemverify.cem.beyond import Beyond
from cemverify.cem.descent import Descent, Own
from cemverify.cem.energies import Interaction
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, CEMLayer, MLPConfig, PreconditionerConfig
from cemverify.cem.models import Block, BlockConfig
from suites.cem.helpers import ROUNDING, generator, gradients_are_exact, randn, randomised, relative_error, slope

D, K, M = 6, 2, 7
LOW_RANK = PreconditionerConfig("low-rank", rank=2)
PER_HEAD = replace(LOW_RANK, per_head=True)
EVERYTHING: dict[str, Any] = {"momentum": 0.4, "learn_momentum": True, "own_steps": True, "own_preconditioners": True}


def attention(steps: int = 3, *, cooling: float = 1.0, seed: int = 0, **options: Any) -> CEMAttention:
    """CEM attention with random parameters; `options` are those of the config and of `Beyond`."""
    config = AttentionConfig(D, K, head_dim=4, steps=steps, **_sorted(options, cooling=cooling))
    return randomised(CEMAttention(config, generator(0)), seed)


def mlp(steps: int = 3, *, seed: int = 0, **options: Any) -> CEMGatedMLP:
    return randomised(CEMGatedMLP(MLPConfig(D, M, steps=steps, **_sorted(options)), generator(0)), seed, 0.3)


def _sorted(options: dict[str, Any], **beyond: Any) -> dict[str, Any]:
    ours = {name: options.pop(name) for name in list(options) if name in Beyond.__dataclass_fields__}
    learned = {"step": "learned"} if ours.get("own_steps") else {}
    return {"step_size": 0.3, **learned, **options, "beyond": Beyond(**ours, **beyond)}


def everything() -> list[CEMLayer]:
    """Layers with every option at once."""
    own = {**EVERYTHING, "preconditioner": LOW_RANK}
    return [
        attention(cooling=0.6, position="alibi", diagonal="shared", norm="channel", **own),
        attention(cooling=0.6, norm="folded", **{**own, "preconditioner": PER_HEAD}),
        mlp(norm="channel", **own),
    ]


def matrices(layer: CEMLayer) -> list[Tensor]:
    """P_t of each step, dense: T of (K or 1, D, D)."""
    steps = layer.descent.steps
    own = [layer.preconditioner, *layer.later_preconditioners]
    dense = [own[t if len(own) > 1 else 0]().matrix(D).detach() for t in range(steps)]
    return [P if P.dim() == 3 else P[None] for P in dense]


def written_out(layer: CEMLayer, x: Tensor, h: Tensor) -> list[Tensor]:
    """x^(0) ... x^(T), computed with autograd of the energy and dense matrices from the layer's parameters alone."""
    config: Any = layer.config
    steps, norm = config.steps, layer.norm()
    s = torch.zeros(steps) if layer.log_step is None else layer.log_step.detach().expand(steps)
    mu = config.beyond.momentum if layer.momentum is None else float(layer.momentum.detach())
    states = [x, x]  # x^(-1) = x^(0)
    for t, P in enumerate(matrices(layer)):
        energy: Any = layer.energy
        if isinstance(energy, Interaction):
            energy = replace(energy, temperature=config.tau * config.beyond.cooling**t)
        u = norm.into(states[-1]).detach().requires_grad_()
        memory = energy.remember(h)
        shares = energy.of_heads(u, memory).movedim(1, 0) if len(P) > 1 else energy(u, memory)[None]
        # (K, B, J, D)
        g = torch.stack([torch.autograd.grad(share.sum(), u, retain_graph=True)[0] for share in shares])
        move = -config.step_size * float(s[t].exp()) * torch.einsum("kde,kbje->bjd", P, norm.out(g))
        states.append((states[-1] + move + mu * (states[-1] - states[-2])).detach())
    return states[1:]


def close(a: Tensor, b: Tensor, steps: int = 3) -> None:
    assert relative_error(a, b) <= 4 * steps * ROUNDING


def test_steps_follow_the_formula() -> None:
    """All options at once, and each alone: every state is that of the formula, by autograd of the energy."""
    alone: list[dict[str, Any]] = [
        {"momentum": 0.7},
        {"step": "learned"},
        {"own_steps": True},
        {"own_preconditioners": True, "preconditioner": LOW_RANK},
    ]
    every = [*everything(), attention(cooling=0.5)]
    every += (make(**options) for make in (attention, mlp) for options in alone)
    x, h = randn(2, 4, D, seed=5), randn(2, 4, D, seed=6)
    for layer in every:
        expected = written_out(layer, x, h)
        for state, target in zip(layer.trajectory(x, h).states, expected, strict=True):
            close(state, target)
        close(layer(x, h), expected[-1])


def test_gradients_flow_everywhere() -> None:
    """The derivatives with respect to start, memory and every parameter agree with finite differences."""
    for layer in everything():
        assert gradients_are_exact(layer, randn(1, 3, D, seed=5), randn(1, 3, D, seed=6))
    assert gradients_are_exact(full(2), randn(1, 3, D, seed=5))


def test_fast_paths_are_the_formula() -> None:
    """By tiles and by blocks of tokens, including derivatives."""
    x, h = randn(2, 5, D, seed=5), randn(2, 5, D, seed=6)
    for layer in (*everything(), *stopping()):
        expected = layer(x, h)
        expected_slopes = slopes(expected, layer)
        for path in ("tiles", "blocks"):
            with blocked.using(path, rows=2, tile=2):
                output = layer(x, h)
            close(output, expected)
            for a, b in zip(slopes(output, layer), expected_slopes, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def slopes(output: Tensor, layer: CEMLayer) -> tuple[Tensor, ...]:
    """The derivatives of |output|^2 with respect to every parameter."""
    sources = list(layer.parameters())
    return torch.autograd.grad(output.square().sum(), sources, allow_unused=True, materialize_grads=True)


def stopping(least_fall: float = 0.4) -> list[CEMLayer]:
    """Layers of up to 6 steps whose tokens stop at different steps."""
    layers = [
        mlp(6, step_size=0.2),
        mlp(6, norm="channel", preconditioner=LOW_RANK),
        mlp(6, step_size=1.0, momentum=0.3, seed=1),  # some steps raise the energy
        attention(6, norm="channel", position="alibi", diagonal="shared", cooling=0.8),
    ]
    for layer in layers:
        layer._least_fall = least_fall
    return layers


def free(layer: CEMLayer) -> Descent:
    """The layer's descent without a stop."""
    return replace(layer.descent, least_fall=0.0)


def steps_by_the_rule(layer: CEMLayer, x: Tensor, h: Tensor) -> Tensor:
    """How many steps each token should take, from the energies of the descent without stops: (B, J)."""
    memory = layer.energy.remember(h)
    falls = -free(layer).trajectory(layer.energy, x, memory).energies.diff(dim=0).flatten(1)  # (T, B J)
    q, taken = layer.descent.least_fall, []
    for token_falls in falls.T.tolist():
        short = [t + 1 for t, fall in enumerate(token_falls) if fall <= 0 or fall < q * token_falls[0]]
        taken.append(min([*short, len(token_falls)]))
    return torch.tensor(taken).view(x.shape[:2])


def test_a_token_stops_where_its_energy_says() -> None:
    """Each token takes the steps that the rule gives it, ends where they lead, and affects no other token."""
    x, h = randn(3, 8, D, seed=5), randn(3, 8, D, seed=6)
    for layer in stopping():
        memory = layer.energy.remember(h)
        steps = steps_by_the_rule(layer, x, h)
        assert len(set(steps.flatten().tolist())) > 1  # otherwise nothing is tested
        stopped = layer.descent.stopped(layer.energy, x, memory)
        assert torch.equal(stopped.steps, steps)
        states = free(layer).trajectory(layer.energy, x, memory).states
        for t, state in enumerate(layer.trajectory(x, h).states):
            at = steps.clamp_max(t)[None, ..., None].expand(1, *x.shape)
            assert torch.equal(state, states.gather(0, at)[0])
        assert torch.equal(layer(x, h), stopped.states[-1])


def test_a_stop_passes_on_the_gradients_of_the_steps_taken() -> None:
    """The derivatives are those of the descent without stops, at the state where each token stopped."""
    x, h = randn(2, 5, D, seed=5), randn(2, 5, D, seed=6)
    for layer in stopping():
        steps = steps_by_the_rule(layer, x, h)
        states = free(layer).trajectory(layer.energy, x, layer.energy.remember(h)).states
        reached = states.gather(0, steps[None, ..., None].expand(1, *x.shape))[0]
        for a, b in zip(slopes(layer(x, h), layer), slopes(reached, layer), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def block(rounds: int, *, eta: float = 0.3, scale: float = 0.4, seed: int = 0, **options: Any) -> Block:
    attention = AttentionConfig(D, K, head_dim=4, diagonal="shared", position="alibi", step_size=eta, **options)
    config = BlockConfig(attention, MLPConfig(D, M, step_size=eta, **options), rounds)
    return randomised(Block(config, generator(0)), seed, scale)


def full(rounds: int) -> Block:
    """A block with all that its halves may have: a norm, a preconditioner, two steps per turn."""
    return block(rounds, norm="channel", preconditioner=LOW_RANK, steps=2)


def test_one_round_is_the_ordinary_block() -> None:
    for made in (block(1), full(1)):
        h = randn(2, 4, D, seed=5)
        between, memory = made.attention.residual(h)
        output, cache = made(h)
        assert torch.equal(output, made.mlp.residual(between))
        assert torch.equal(cache.keys, memory.keys)


def test_each_turn_is_a_step_on_the_joint_energy() -> None:
    """By autograd: with fixed memories, attention steps down the slope of eps, and the MLP down that of xi."""
    made, h = block(3), randn(2, 4, D, seed=5)
    halves: Any = made.attention, made.mlp
    (attention, mlp), walk = halves, made.walk(h)
    a = attention.energy.remember(h)
    b = mlp.energy.remember(h - 0.3 * slope(lambda x: attention.energy(x, a), h))
    x = h
    for t in range(3):
        of_attention = slope(lambda x: attention.energy(x, a), x)
        y = x - 0.3 * of_attention
        of_mlp = slope(lambda x: mlp.energy(x, b), y)
        assert relative_error(walk.states[2 * t + 1], y) <= 16 * ROUNDING
        assert relative_error(walk.states[2 * t + 2], y - 0.3 * of_mlp) <= 16 * ROUNDING
        x = y - 0.3 * of_mlp
    assert torch.equal(walk.states[-1], made(h)[0])


def test_a_layer_with_moved_signs_learns_its_gates_as_if_signs_were_the_identity() -> None:
    config = MLPConfig(5, 7, "silu", init_std=0.5, beyond=Beyond(signs="moved"))
    layer = CEMGatedMLP(config, torch.Generator().manual_seed(0)).double()
    x, cotangent = randn(2, 3, 5, seed=1), randn(2, 3, 5, seed=2)
    update, h = layer(x) - x, x.flatten(0, 1)  # (B, J, D), (B J, D)
    gate, v = h @ layer.W.mT, h @ layer.V.mT  # (B J, M)
    z = gate.sign() * v
    sigma = z * z.sigmoid()
    slope = z.sigmoid() * (1 + z * (1 - z.sigmoid()))
    torch.testing.assert_close(update.flatten(0, 1), (gate * sigma) @ layer.V, rtol=1e-11, atol=1e-12)
    (gradient,) = torch.autograd.grad(update, layer.W, cotangent)
    by_hand = ((cotangent.flatten(0, 1) @ layer.V.mT) * (sigma + gate * slope * v)).mT @ h
    torch.testing.assert_close(gradient, by_hand, rtol=1e-11, atol=1e-12)


def test_a_temperature_needs_an_energy_that_has_one() -> None:
    energy, x = mlp().energy, randn(1, 2, D, seed=5)
    with pytest.raises(TypeError, match="an Interaction"):
        Descent(own=(Own(temperature=0.5),))(energy, x, energy.remember(x))
