"""The golden answer: float64 autograd of the scalar energy, on the inputs after rounding.

Only the *values* of the reference's energies are used, not their closed-form gradients. Here preconditioners and
norms are dense matrices and plain formulas. Two things are trusted: the energies, which `suites/cem` compares
with plain loops, and the activations, whose primitives have derivative sigma by construction and are
compared with mpmath there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.activations import activation, without_values
from cemverify.cem.energies import Elementwise, Energy, Interaction
from cemverify.cem.layers import MLPConfig
from cemverify.cem.positions import Alibi, Bias, Rotary, SelfCross, alibi_slopes
from cemverify.conformance.oracle.remembering import remembered
from cemverify.conformance.questions.cases import Case


@remembered
def golden(case: Case) -> Tensor:
    """The output that the layer must return: (B, J, D), float64."""
    *_, (_, x) = reached(case.to(torch.float64))
    return x


def reached(case: Case) -> Iterator[tuple[Case, Tensor]]:
    """The states of a case from the first to the right answer, (B, J, D), each with its layer's case."""
    x = case.x
    if case.layer == "block":
        attention = case.part("attention")
        for part, x in reached(replace(attention, h=norm_into(attention, case.h))):
            yield part, x
        mlp = case.part("mlp")
        yield from reached(replace(mlp, x=x, h=norm_into(mlp, x)))
        return
    yield case, x
    for _ in range(case.layer_config.steps):
        x = x + golden_update(case, x)
        yield case, x


def leaves_range(case: Case, dtype: torch.dtype) -> bool:
    """Whether squares of what a right layer computes overflow in a dtype: states, energies and pre-activations."""
    limit = math.sqrt(torch.finfo(dtype).max)
    for part, x in reached(case.to(torch.float64)):
        numbers = [x, energies_at(part, x)]
        if part.layer == "mlp":
            numbers.append(norm_into(part, x) @ part.weights["V"].mT)
        if not all(bool((array.abs() < limit).all()) for array in numbers):
            return True
    return False


def products(case: Case, cotangent: Tensor, answer: Callable[[Case], Tensor] = golden) -> dict[str, Tensor]:
    """Vector-Jacobian products of the golden answer, by differentiating autograd once more.

    Args:
        cotangent: the vector, which has the answer's shape. answer: the function to differentiate.

    Returns:
        One array of the same shape by name, for h, every weight, and x if it is not the same array as h.
    """
    case = case.to(torch.float64)
    apart = {} if case.x is case.h else {"x": case.x}
    leaves = {name: a.detach().clone().requires_grad_() for name, a in {**apart, "h": case.h, **case.weights}.items()}
    weights = {name: leaves[name] for name in case.weights}
    with torch.enable_grad():
        value = answer(replace(case, x=leaves["x" if apart else "h"], h=leaves["h"], weights=weights))
        pulled = torch.autograd.grad(value, list(leaves.values()), cotangent, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if product is None else product.detach()
        for (name, leaf), product in zip(leaves.items(), pulled, strict=True)
    }


def golden_update(case: Case, x: Tensor) -> Tensor:
    """One update at x: -eta P G grad eps(N(x) | h), with G = I unless the gain is folded: (B, J, D)."""
    u = norm_into(case, x)
    gradients = head_gradients(case, u) if case.layer_config.preconditioner.per_head else gradient(case, u)[:, None]
    if case.layer_config.norm == "folded":
        gradients = case.weights["gain"] * gradients
    if case.layer_config.preconditioner.kind == "identity":  # saves a matrix that is large if D is
        return -case.layer_config.step_size * gradients.sum(1)
    P = preconditioner_matrix(case).expand(gradients.shape[1], -1, -1)  # (K, D, D)
    return -case.layer_config.step_size * torch.einsum("kde,bkje->bjd", P, gradients)


@remembered
def energies_at(case: Case, x: Tensor) -> Tensor:
    """The energy of each token at x (not at N(x)) with memory h: (B, J)."""
    case = case.to(torch.float64)
    energy = energy_of(case)
    return energy(x, energy.remember(case.h))


def gradient(case: Case, u: Tensor) -> Tensor:
    """Autograd of the energy, summed over tokens, with respect to u: (B, J, D)."""
    energy = energy_of(case)
    if isinstance(energy, Elementwise):
        energy = replace(energy, activation=without_values(energy.activation))
    return _autograd(lambda u: energy(u, energy.remember(case.h)).sum(), u)


def head_gradients(case: Case, u: Tensor) -> Tensor:
    """Autograd of each head's share of the energy: (B, K, J, D)."""
    energy = energy_of(case)
    assert isinstance(energy, Interaction)
    return _autograd(lambda u: energy.of_heads(u, energy.remember(case.h)).sum((0, 2)), u).movedim(0, 1)


def energy_of(case: Case) -> Energy:
    """The reference's energy with the case's weights."""
    w = case.weights
    if isinstance(case.config, MLPConfig):
        return Elementwise(w["V"], w["W"], activation(case.config.activation))
    config = case.attention
    bias: Bias | None = None
    if config.position == "alibi":
        bias = Alibi(torch.tensor(alibi_slopes(config.heads), dtype=torch.float64))
    elif config.position == "self-cross":
        bias = SelfCross(w["to_self"], w["to_others"])
    rotary = Rotary() if config.position == "rotary" else None
    return Interaction(w["W_Q"], w["W_K"], config.tau, w.get("diagonal"), bias, rotary, config.causal)


def preconditioner_matrix(case: Case) -> Tensor:
    """P as a dense matrix, (1, D, D) or (K, D, D)."""
    config = case.layer_config
    kind = config.preconditioner.kind
    if kind == "identity":
        return torch.eye(config.dim, dtype=torch.float64)[None]
    S = torch.diag_embed(torch.logaddexp(case.weights["P_d"], torch.zeros((), dtype=torch.float64)))
    if kind != "diagonal":
        U, V = case.weights["P_U"], case.weights["P_V"]
        cross = U @ V.mT + V @ U.mT
        if kind == "low-rank-printed":
            S = S + cross
        else:
            norms = 2 * torch.linalg.matrix_norm(U) * torch.linalg.matrix_norm(V)
            # min(1, 0.99 / norms), written so that it has a derivative where the norms vanish
            c = torch.where(norms > 0.99, 0.99 / norms.clamp(min=0.99), torch.ones_like(norms))
            S = S.sqrt() @ (torch.eye(config.dim, dtype=torch.float64) + c[..., None, None] * cross) @ S.sqrt()
    return S if S.dim() == 3 else S[None]


def norm_into(case: Case, x: Tensor) -> Tensor:
    """The normalised states that go into a layer of a block, N(x): (B, J, D)."""
    config = case.layer_config
    if config.norm == "none":
        return x
    return case.weights["gain"] * F.rms_norm(x, (config.dim,), eps=config.norm_eps)


def _autograd(energy: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """The gradient with respect to u (B, J, D) of a scalar (), or of each of several, (N,): (N, B, J, D)."""
    with torch.enable_grad():  # the caller may have turned it off
        differentiated = u.requires_grad  # by `products`, for which the graph is kept
        # a node of its own: the memory may be this same tensor, and must stay fixed
        u = u.clone() if differentiated else u.detach().requires_grad_()
        total = energy(u)
        each = torch.eye(len(total), dtype=torch.float64) if total.dim() else None
        return torch.autograd.grad(total, u, each, create_graph=differentiated, is_grads_batched=each is not None)[0]
