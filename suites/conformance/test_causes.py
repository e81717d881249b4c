"""Mistakes that are easy to make are named for what they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import check_implementation, energy_layer, implementation
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.verdicts import Verdict

bias = torch.tensor([0.5, -0.25, 0.0], dtype=torch.float64)
W = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
values = torch.nn.Parameter(W.clone())
outputs = torch.nn.Parameter(W.T.clone())


def _pulled(x: Tensor, m: Tensor) -> Tensor:
    return ((x - m) ** 2).sum(-1) / 2


def _layer(update: Any, **more: Any) -> EnergyLayer:
    return energy_layer(update=update, energy=_pulled, dim=3, **more)


def _curved(x: Tensor, m: Tensor) -> Tensor:
    return ((x - m) ** 4).sum(-1) / 4


def _attention(x: Tensor, m: Tensor, mask: Tensor | None = None, *, fill: float = -torch.inf) -> Tensor:
    scores = x @ m.mT  # (B, J, J)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], fill)
    return torch.softmax(scores, -1) @ m


def _log_sum(x: Tensor, m: Tensor, mask: Tensor | None = None, *, fill: float = -torch.inf) -> Tensor:
    scores = x @ m.mT
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], fill)
    return -torch.logsumexp(scores, -1)


def _reader(fill: float) -> EnergyLayer:
    attention, energy = (functools.partial(f, fill=fill) for f in (_attention, _log_sum))
    return energy_layer(update=attention, energy=energy, dim=3, masked=True, causal=False)


def _without_mask(function: Any) -> Any:
    return lambda x, m, mask: function(x, m)


_deaf = energy_layer(
    update=_without_mask(_attention), energy=_without_mask(_log_sum), dim=3, masked=True, causal=False
)


def _tied_by_hand(x: Tensor) -> Tensor:
    return torch.tanh(x @ values.T) @ outputs.T


def _tied_energy(x: Tensor) -> Tensor:
    return -torch.log(torch.cosh(x @ values.T)).sum(-1)


def _softplus_of_torch(x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    if "P_d" not in weights:
        return reference.functions["attention"](x, h, weights, config)
    d = weights["P_d"]
    # the d whose softplus is what torch's F.softplus makes of it
    inner = torch.where(d > 20, d + torch.log1p(-torch.exp(-F.softplus(d))), d)
    return reference.functions["attention"](x, h, {**weights, "P_d": inner}, config)


class _Moving(torch.nn.Module):
    """Has a buffer that moves a little with each call, in eval mode, too."""

    u: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("u", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        with torch.no_grad():
            self.u += 1e-6
        return m - x + self.u


def _dropping(x: Tensor, m: Tensor, dropout: Any = torch.nn.Dropout(0.5)) -> Tensor:  # noqa: B008
    found: Tensor = dropout(m - x)
    return found


def _shortened(x: Tensor, m: Tensor) -> Tensor:
    length = (m - x).norm(dim=-1, keepdim=True)
    shortened: Tensor = (m - x) * length / (length + 1e-6)
    return shortened


_ENERGY, _MASK, _TWICE = "gradient/layer/energy", "structure/layer/mask", "one call has two answers"
# a layer, the properties it is asked, the cause that is named first, and words of its reason
_ROWS: dict[str, tuple[Any, str, str, str]] = {
    "bias": (_layer(lambda x, m: m - x + bias), _ENERGY, "an additive bias", "(0.5, -0.25, 0)"),
    "sign": (_layer(lambda x, m: x - m), _ENERGY, "a constant factor", "climbed"),
    "uphill": (energy_layer(update=lambda x, m: x - m, energy=_curved, dim=3), _ENERGY,
               "direction of the update", "uphill"),
    "not a gradient": (energy_layer(update=lambda x, m: m - x, energy=_curved, dim=3), _ENERGY,
                       "not a gradient", "descends, but is not a gradient step"),
    "epsilon": (_layer(_shortened), _ENERGY, "not a gradient", "descends, but is not a gradient step"),
    "mask of zeros": (_reader(0.0), _MASK, "mask", "a mask multiplies the logits"),
    "mask unused": (_deaf, _MASK, "mask", "it is not used"),
    "untied": (
        energy_layer(update=_tied_by_hand, energy=_tied_energy, state=("J", 3), memory=None,
                     parameters={"values": values, "outputs": outputs}),
        "training/layer/parameters", "untied parameters", "a weight that is stored twice instead of tied"),
    "dropout": (_layer(_dropping), f"{_ENERGY} structure/layer/determinism", _TWICE, "call eval()"),
    "softplus": (implementation(attention=_softplus_of_torch), "extremes/attention/preconditioner-every-magnitude",
                 "preconditioner", "threshold of torch's F.softplus"),
    "buffer": (_layer(_Moving().eval()), f"{_ENERGY} structure/layer/inputs-unchanged", _TWICE,
               "no buffer may move with a call"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", _ROWS)
def test_a_mistake_is_named(mistake: str) -> None:
    layer, ids, name, because = _ROWS[mistake]
    diagnosis = check_implementation(
        layer, properties=ids.split(), examples=60 if mistake == "softplus" else 12
    ).diagnosis
    assert diagnosis is not None
    assert diagnosis.causes[0].name == name
    assert because in diagnosis.causes[0].because


def _chain(presence: Callable[[Tensor], Tensor]) -> EnergyLayer:
    """Neighbours in a chain attract each other, two tokens apart by a quarter; masked ones have no part in it."""

    def energy(x: Tensor, m: Tensor, mask: Tensor) -> Tensor:
        there = presence(mask)
        pairs = [(1.0, 1), (0.25, 2)]
        pull = [c * there[:, n:] * there[:, :-n] * (x[:, n:] - x[:, :-n]).square().sum(-1) for c, n in pairs]
        return 0.5 * sum(each.sum(-1) for each in pull) + 0.5 * (there * (x - m).square().sum(-1)).sum(-1)

    def update(x: Tensor, m: Tensor, mask: Tensor) -> Tensor:
        state = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(energy(state, m, mask).sum(), state)
        return -gradient

    return energy_layer(
        update=update, energy=energy, dim=3, masked=True, coupled=True, causal=False, energy_per="sequence",
        not_offered=("gradients", "autograd", "vmap", "compile", "inference"),
    )  # fmt: skip


def test_a_mask_that_is_right_holds_and_where_tokens_have_places_a_masked_one_keeps_its_own() -> None:
    properties = ["structure/layer/mask"]
    right, leaking = _chain(lambda mask: mask.double()), _chain(lambda mask: 0.01 + 0.99 * mask.double())
    for layer, verdict in ((_reader(-torch.inf), "holds"), (right, "holds"), (leaking, "violated")):
        assert [record.verdict for record in check_implementation(layer, properties=properties)] == [verdict]


def test_an_exception_gets_no_part_and_a_view_is_told_to_reshape() -> None:
    layer = _layer(lambda x, m: 2 * (m.view(-1).view(m.shape) - x))
    results = check_implementation(
        layer, properties=["gradient/layer/energy", "structure/layer/windows"], examples=30
    )
    by_id = {record.id: record for record in results}
    assert by_id["gradient/layer/energy"].part == "a constant factor"
    record = by_id["structure/layer/windows"]
    assert (record.verdict, record.cause, record.part) == (Verdict.VIOLATED, "raised", None)
    assert "use reshape" in str(record.reason)


def test_a_cache_that_no_checkpoint_holds_may_be_filled_by_a_call() -> None:
    class Cached(torch.nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.empty(0), persistent=False)

        def forward(self, x: Tensor, m: Tensor) -> Tensor:
            self.table = torch.arange(x.shape[1])
            return m - x

    results = check_implementation(_layer(Cached()), properties=["structure/layer/inputs-unchanged"], examples=12)
    assert [record.verdict for record in results] == ["holds"]
