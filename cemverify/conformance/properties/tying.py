"""Weight tying recovers standard layers: multi-head attention, the gated MLP, the pre-norm block.

They are compared with torch's own layer in float64, an oracle that shares nothing with the energies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.properties.base import TRIVIAL, Check, states
from cemverify.conformance.properties.derivatives import FEW_COORDINATES, golden_jacobian, jacobian, untied
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space

Update = Callable[[Case], Tensor]

_GATED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "relu": F.relu,
}


def _recovers(
    id_: str, claim: str, source: str, formula: str, why: str, what: str, spaces: Mapping[str, Space]
) -> Callable[[Update], Update]:
    """Put above the update of a standard layer: states that one step of the tied layer equals it.

    Args:
        id_: with "{}" for the keys of the spaces. what: what is compared, in words.
    """

    def state(update: Update) -> Update:
        more: dict[str, Any] = {"dtype": torch.float64, "premise": "the update is not zero", "controls": TRIVIAL}
        states(id_, claim=claim, source=source, formula=formula, why=why, spaces=spaces, **more)(equals(what, update))
        return update

    return state


def equals(what: str, update: Update) -> Check:
    """A check of x^(T) - x against the update of standard layers whose weights are tied."""

    def check(caller: Caller, case: Case) -> Evidence:
        case = case.to(torch.float64)
        expected, budget = update(case), output_budget(case, torch.float64)
        comparison = Comparison(what, caller.output(case) - case.x, expected, budget)
        return Evidence.of(comparison, telling=moved(expected, budget))

    return check


_MULTI_HEAD = (
    "With W_V = W_K and W_O = W_Q^T at tau = sqrt(head dim), one step is torch's multi-head attention.",
    "Eq. 5; docs/mathematics.md §1",
    "x' - x = eta MHA(x, h, h),  W_V = W_K,  W_O = W_Q^T,  tau = sqrt(R)",
    "Without this bridge to a standard Transformer, weights cannot be exchanged with one, nor models compared.",
)
_TIED = Space("attention", free_temperature=False, square=True)


@_recovers(
    "tying/attention/multi-head-attention",
    *_MULTI_HEAD,
    "update = eta torch.nn.MultiheadAttention",
    {"": _TIED},
)
def multi_head_attention(case: Case) -> Tensor:
    """eta times torch's module with the case's tied weights, query x, key and value h: (B, J, D)."""
    W_Q, W_K = (case.weights[name].flatten(0, 1) for name in ("W_Q", "W_K"))  # (K R, D), K R = D
    D, J = W_Q.shape[-1], case.x.shape[1]
    module = nn.MultiheadAttention(D, case.attention.heads, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        assert module.in_proj_weight is not None
        module.in_proj_weight.copy_(torch.cat((W_Q, W_K, W_K)))
        module.out_proj.weight.copy_(W_Q.T)
    future = torch.ones(J, J, dtype=torch.bool).triu(1)
    output: Tensor = module(case.x, case.h, case.h, attn_mask=future, need_weights=False)[0]
    return case.layer_config.step_size * output.detach()


@_recovers(
    "tying/attention/scaled-dot-product-attention",
    *_MULTI_HEAD,
    "update = eta scaled_dot_product_attention",
    {"": _TIED},
)
def scaled_dot_product_attention(case: Case) -> Tensor:
    """eta times torch's scaled_dot_product_attention at its default scale, keys as values, through W_Q: (B, J, D)."""
    W_Q, W_K = case.weights["W_Q"], case.weights["W_K"]
    q, k = torch.einsum("bjd,krd->bkjr", case.x, W_Q), torch.einsum("bjd,krd->bkjr", case.h, W_K)
    attended = F.scaled_dot_product_attention(q, k, k, is_causal=True)
    return case.layer_config.step_size * torch.einsum("bkjr,krd->bjd", attended, W_Q)


def gated_mlp(case: Case, x: Tensor, h: Tensor) -> Tensor:
    """down(sigma(gate x) * up h) of plain linear layers: (B, J, D)."""
    V, W = case.weights["V"], case.weights["W"]
    return F.linear(_GATED[case.mlp.activation](F.linear(x, V)) * F.linear(h, W), V.T)


@_recovers(
    "tying/mlp/gated-mlp-{}",
    "With down = gate^T, one step is the gated MLP.",
    "Eq. 11; docs/mathematics.md §2",
    "x' - x = eta V^T (sigma(V x) * W h):  gate = V,  up = W,  down = V^T",
    "Which two of the three projections are tied is easily got wrong when weights are ported.",
    "update = eta down(sigma(gate x) * up h)",
    {activation: Space("mlp", {"activation": activation}) for activation in _GATED},
)
def _gated_update(case: Case) -> Tensor:
    return case.layer_config.step_size * gated_mlp(case, case.x, case.h)


@_recovers(
    "tying/block/pre-norm",
    "At T = 1, P = I and without a diagonal the block is a standard pre-norm residual block.",
    "Sec. 2; docs/mathematics.md §7d",
    "h + MHA(N(h)), then h + MLP(N(h)), at T = 1 and P = I",
    "A block that normalises the residual stream itself, as Algorithm 1 is printed, is no pre-norm block and does "
    "not train like one.",
    "block = standard pre-norm block",
    {"": Space("block", {"norm": "channel"}, step_sizes=(1.0,), free_temperature=False, square=True, apart=False)},
)
def pre_norm_block(case: Case) -> Tensor:
    """What h + MHA(N(h)), then h + MLP(N(h)), of torch's own layers add to h: (B, J, D)."""
    attention, mlp = case.part("attention"), case.part("mlp")
    n = _rms_norm(attention, case.h)
    middle = case.h + multi_head_attention(Case(attention.config, n, n, attention.weights))
    n = _rms_norm(mlp, middle)
    return middle + gated_mlp(mlp, n, n) - case.h


def _rms_norm(case: Case, x: Tensor) -> Tensor:
    config = case.layer_config
    return F.rms_norm(x, (config.dim,), case.weights["gain"], config.norm_eps)


@states(
    "tying/attention/untying-breaks-the-field",
    claim="An untied output projection makes the update field non-conservative.",
    source="Eq. 5; docs/mathematics.md §1, §7b",
    formula="J = d(M (x' - x))/dx is not symmetric, M a fixed matrix",
    why="If a layer's field stays symmetric when its output is turned, the test of symmetry sees nothing, and its "
    "pass means nothing.",
    spaces={"": Space("attention", step_sizes=(1.0,), sizes=FEW_COORDINATES, textures=("plain", "non-contiguous"))},
    needs={"start"},
    dtype=torch.float64,
    premise="an untied output projection must break the symmetry",
    controls=frozenset({"identity"}),
)
def untying_breaks_the_field(caller: Caller, case: Case) -> Evidence:
    """The update rotated by a fixed matrix M must fail to be a gradient, by as much as for the golden answer.

    An untied output projection would turn the output by such a matrix M. A layer that M cannot break, because its
    update does not depend on x at all, violates the property.
    """
    case = case.to(torch.float64)
    J, error = jacobian(caller, case)
    M = untied(J.shape[-1])
    asymmetry = (M @ J - (M @ J).mT).abs().amax((-2, -1))
    golden_J, golden_error = golden_jacobian(case)
    expected = (M @ golden_J - (M @ golden_J).mT).abs().amax((-2, -1))
    tolerance = 2 * M.abs().sum(-1).amax() * (error + golden_error).amax((-2, -1))
    claim = "least asymmetry due to untying <= asymmetry found"
    return Evidence.of(
        Comparison(claim, expected, asymmetry, tolerance, "at most"), telling=moved(expected, tolerance)
    )
