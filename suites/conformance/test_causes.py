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
from cemverify.api import Results
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


def _of(results: Results) -> tuple[str, str]:
    diagnosis = results.diagnosis
    assert diagnosis is not None
    return diagnosis.causes[0].name, diagnosis.causes[0].because


@pytest.mark.parametrize(
    ("layer", "id_", "name", "because"),
    [
        (_layer(lambda x, m: m - x + bias), "gradient/layer/energy", "an additive bias", "(0.5, -0.25, 0)"),
        (_layer(lambda x, m: x - m), "gradient/layer/energy", "a constant factor", "climbed"),
        (
            energy_layer(update=lambda x, m: x - m, energy=_curved, dim=3),
            *("gradient/layer/energy", "direction of the update", "uphill"),
        ),
        (
            energy_layer(update=lambda x, m: m - x, energy=_curved, dim=3),
            *("gradient/layer/energy", "not a gradient", "descends, but is not a gradient step"),
        ),
        (
            _layer(
                lambda x, m: (
                    (m - x) * (m - x).norm(dim=-1, keepdim=True) / ((m - x).norm(dim=-1, keepdim=True) + 1e-6)
                )
            ),
            *("gradient/layer/energy", "not a gradient", "descends, but is not a gradient step"),
        ),
        (_reader(0.0), "structure/layer/mask", "mask", "a mask multiplies the logits"),
        (_deaf, "structure/layer/mask", "mask", "it is not used"),
        (
            energy_layer(
                update=_tied_by_hand,
                energy=_tied_energy,
                state=("J", 3),
                memory=None,
                parameters={"values": values, "outputs": outputs},
            ),
            *("training/layer/parameters", "untied parameters", "a weight that is stored twice instead of tied"),
        ),
    ],
    ids=["bias", "sign", "uphill", "not a gradient", "epsilon", "mask of zeros", "mask unused", "untied"],
)
def test_an_energy_layers_mistake_is_named(layer: EnergyLayer, id_: str, name: str, because: str) -> None:
    results = check_implementation(layer, properties=[id_], examples=12)
    assert _of(results)[0] == name
    assert because in _of(results)[1]


def test_a_mask_that_is_right_holds() -> None:
    assert (
        check_implementation(_reader(-torch.inf), properties=["structure/layer/mask"], examples=12).diagnosis is None
    )


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


def test_where_tokens_have_places_a_masked_one_keeps_its_own() -> None:
    properties = ["structure/layer/mask"]
    right, leaking = _chain(lambda mask: mask.double()), _chain(lambda mask: 0.01 + 0.99 * mask.double())
    assert [record.verdict for record in check_implementation(right, properties=properties)] == ["holds"]
    assert [record.verdict for record in check_implementation(leaking, properties=properties)] == ["violated"]


def test_dropout_is_told_to_be_turned_off() -> None:
    dropout = torch.nn.Dropout(0.5)
    layer = _layer(lambda x, m: dropout(m - x))
    results = check_implementation(
        layer, properties=["gradient/layer/energy", "structure/layer/determinism"], examples=12
    )
    assert _of(results)[0] == "one call has two answers"
    assert "call eval()" in _of(results)[1]


def _softplus_of_torch(x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    if "P_d" not in weights:
        return reference.functions["attention"](x, h, weights, config)
    d = weights["P_d"]
    # the d whose softplus is what torch's F.softplus makes of it
    inner = torch.where(d > 20, d + torch.log1p(-torch.exp(-F.softplus(d))), d)
    return reference.functions["attention"](x, h, {**weights, "P_d": inner}, config)


def test_the_threshold_of_torchs_softplus_is_named() -> None:
    layer = implementation(attention=_softplus_of_torch)
    properties = ["extremes/attention/preconditioner-every-magnitude"]
    results = check_implementation(layer, properties=properties, examples=60)
    assert _of(results) == ("preconditioner", _of(results)[1])
    assert "threshold of torch's F.softplus" in _of(results)[1]


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


class _Normed(torch.nn.Module):
    """Patterns over their largest singular value, by a power iteration that goes on in eval mode, too."""

    u: Tensor

    def __init__(self) -> None:
        super().__init__()
        sides, _, V = torch.linalg.svd(W)
        self.W = torch.nn.Parameter(sides @ torch.diag(torch.tensor([1.0, 0.999, 0.5], dtype=torch.float64)) @ V)
        self.register_buffer("u", sides[:, 0] + 3e-4 * sides[:, 1])

    def normed(self) -> Tensor:
        with torch.no_grad():
            v = F.normalize(self.W.T @ self.u, dim=0)
            self.u.copy_(F.normalize(self.W @ v, dim=0))
        return self.W / (self.u @ self.W @ v)

    def energy(self, x: Tensor) -> Tensor:
        return -F.softplus(x @ self.normed().T, threshold=40).sum(-1)

    def update(self, x: Tensor) -> Tensor:
        normed = self.normed()
        return torch.sigmoid(x @ normed.T) @ normed


def test_a_buffer_that_moves_with_each_call_is_told_and_named() -> None:
    normed = _Normed().eval()
    layer = energy_layer(update=normed.update, energy=normed.energy, state=("J", 3), memory=None)
    results = check_implementation(layer, properties=["gradient/layer/energy", "structure/layer/inputs-unchanged"])
    assert _of(results)[0] == "one call has two answers"
    assert "no buffer may move with a call" in _of(results)[1]
    assert "it changed its module's u" in str(
        {record.id: record for record in results}["structure/layer/inputs-unchanged"].reason
    )


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
