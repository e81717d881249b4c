"""What training needs from an energy layer, whatever its step: right derivatives, and parameters that matter."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties.layers import products
from suites.conformance.twins import Twin
from suites.kit.judging import judged

DERIVATIVES, MATTER = "training/layer/derivatives-agree", "training/layer/parameters-matter"
LEARNED = "training/layer/parameters"
D = 3


def free(update: Any, **changes: Any) -> EnergyLayer:
    """A layer that claims only that it can be trained."""
    return energy_layer(update=update, dim=D, step="free", conservative=False, causal=False, **changes)


def sharp(x: Tensor, m: Tensor) -> Tensor:
    """Kinks where states are zero or whole numbers, as in many questions."""
    return torch.relu(x) - (m - 1).abs() + torch.relu(x - m).clamp(max=2)


def sparse(x: Tensor, m: Tensor) -> Tensor:
    """Only the largest score counts, so the answer jumps where two are equal."""
    scores = x @ m.mT
    return torch.softmax(scores.masked_fill(scores < scores.amax(-1, keepdim=True), -torch.inf), -1) @ m


def shrunk(x: Tensor, m: Tensor) -> Tensor:
    """Soft thresholding: two kinks close to zero, on both sides of it."""
    return torch.sign(x) * torch.relu(x.abs() - 1e-4) + m


W = torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.4, 0.2], [0.1, 0.1, -0.3]], dtype=torch.float64)


def step(x: Tensor, m: Tensor) -> Tensor:
    return torch.tanh(x @ W.to(x) + m)


def implicit(x: Tensor, m: Tensor) -> Tensor:
    """An equilibrium with the gradient by the implicit function theorem."""
    end = x
    with torch.no_grad():
        for _ in range(80):
            end = step(end, m)
    slope = (1 - end**2)[..., None, :] * W.to(x)  # (B, J, D, D), the derivative of the step with respect to x
    away = torch.linalg.inv(torch.eye(D, dtype=x.dtype) - slope)
    once = step(end, m)
    moved: Tensor = ((once - once.detach())[..., None, :] @ away)[..., 0, :]
    return end + moved


def cached(stale: bool) -> EnergyLayer:
    """A layer that may keep a copy of its weight from before training."""
    W = torch.eye(D, dtype=torch.float64)
    cache: dict[str, Tensor] = {}

    def update(x: Tensor, m: Tensor) -> Tensor:
        if W.requires_grad or not stale:
            return x @ W.to(x).T + m
        return x @ cache.setdefault("W", W.detach().clone()).to(x).T + m

    return free(update, parameters={"W": W})


def one_detached_of_many() -> EnergyLayer:
    many = {f"p{i}": torch.ones(D, dtype=torch.float64) for i in range(50)}

    def update(x: Tensor, m: Tensor) -> Tensor:
        return m - x * sum(p.detach() if name == "p37" else p for name, p in many.items()).to(x)  # type: ignore[union-attr]

    return free(update, parameters=many)


def tempered() -> EnergyLayer:
    """A layer with a parameter close to the end of its range."""
    tau = torch.tensor(1e-4, dtype=torch.float64)

    def update(x: Tensor, m: Tensor) -> Tensor:
        if float(tau.detach()) <= 0:
            raise ValueError("a temperature is positive")
        return tau.to(x).sqrt() * x + m

    return free(update, parameters={"tau": tau})


def routed() -> EnergyLayer:
    """Experts that few questions reach."""
    generator = torch.Generator().manual_seed(0)
    experts = {f"expert{i}": torch.randn(D, D, generator=generator, dtype=torch.float64) for i in range(8)}
    gate = torch.randn(8, D, generator=generator, dtype=torch.float64)
    gate = gate / gate.norm(dim=-1, keepdim=True)  # of equal length, so that each wins somewhere

    def update(x: Tensor, m: Tensor) -> Tensor:
        chosen = (x @ gate.to(x).T).argmax(-1)  # (B, J)
        weights = torch.stack([W.to(x) for W in experts.values()])[chosen]  # (B, J, D, D)
        return (weights @ x[..., None])[..., 0] + m

    return free(update, parameters=experts)


def adapted() -> EnergyLayer:
    """A low-rank adapter that starts with zeros, and a temperature with a narrow range."""
    A, B = torch.ones(2, D, dtype=torch.float64), torch.zeros(D, 2, dtype=torch.float64)
    tau = torch.tensor(0.05, dtype=torch.float64)

    def update(x: Tensor, m: Tensor) -> Tensor:
        if float(tau) <= 0:
            raise ValueError("a temperature is positive")
        return torch.softmax(x / tau.to(x), -1) + x @ A.to(x).T @ B.to(x).T + m

    return free(update, parameters={"A": A, "B": B, "tau": tau})


def tied() -> EnergyLayer:
    W = torch.eye(D, dtype=torch.float64)
    return free(lambda x, m: x @ W.to(x) @ W.to(x).T + m, parameters={"up": W, "down": W})


class Learned(torch.nn.Module):
    """Two steps down |W (x - m)|^2 / 2, with trained step sizes, parametrised by softplus."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.W = torch.nn.Parameter(drawn)
        self.raw = torch.nn.Parameter(torch.tensor([0.1, -0.3], dtype=torch.float64))

    def sizes(self) -> Tensor:
        return 0.1 * torch.nn.functional.softplus(self.raw)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        start = x
        for eta in self.sizes():
            x = x - eta * (x - m) @ self.W.mT @ self.W
        return x - start

    def declared(self) -> EnergyLayer:
        energy = lambda x, m: (((x - m) @ self.W.mT) ** 2).sum(-1) / 2  # noqa: E731
        return energy_layer(update=self, energy=energy, dim=D, steps=2, step_size=self.sizes, parameters=self)


def small(scale: float) -> EnergyLayer:
    """A float32 layer with updates that are small compared with its states, as in a freshly initialised model."""
    declared: dict[str, Any] = {"dim": 16, "step_size": 0.01, "working_dtype": "float32"}
    energy = lambda x, m: (x - m.tanh()).square().sum(-1) / 2  # noqa: E731
    return energy_layer(update=lambda x, m: 0.01 * scale * (m.tanh() - x), energy=energy, **declared)


row = partial(Twin, examples=60)
TWINS: dict[str, Twin] = {
    **{update.__name__: row(DERIVATIVES, partial(free, update)) for update in (sharp, sparse, shrunk)},
    "the gradient of the implicit function": row(DERIVATIVES, lambda: free(implicit, returns="next state")),
    "a weight that was cached": row(DERIVATIVES, lambda: cached(stale=False), lambda: cached(stale=True)),
    "one detached parameter of many": row(
        DERIVATIVES, None, one_detached_of_many, ".*(p37|all parameters together)"),
    "a parameter close to the end of its range": row(DERIVATIVES, tempered),
    "parameters that few questions reach": row(MATTER, routed),
    "a parameter behind zeros, and one of a narrow range": row(MATTER, adapted),
    "a parameter of two names": row(f"{DERIVATIVES} {MATTER}", tied),
    "a small update of float32, a tenth too large": row(
        "gradient/layer/energy gradient/layer/derivatives-agree extremes/layer/zero-states training/layer/states",
        lambda: small(1.0), lambda: small(1.1)),
    "step sizes that are a softplus": row(f"{LEARNED} {MATTER} gradient/layer/energy", lambda: Learned().declared()),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_what_can_be_trained_holds_and_its_faulty_twin_does_not(name: str) -> None:
    TWINS[name].judge()


@pytest.mark.parametrize(
    ("parameter", "sentence"),
    [
        (torch.arange(3), r"whole numbers or complex ones \(torch\.int64\)"),
        (torch.ones(2, requires_grad=True).exp(), "computed from others"),
        (torch.empty(0), "empty"),
        (torch.ones(1).expand(3), "several of its entries are one number"),
        (torch.ones(2, device="meta"), "on the meta device"),
    ],
)
def test_what_cannot_be_set_or_trained_is_no_parameter(parameter: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        free(lambda x, m: m - x, parameters={"odd": parameter})


def test_parameters_are_as_they_were_after_a_check() -> None:
    W = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    before = W.clone()
    layer = free(lambda x, m: x @ W.to(x) + m, parameters={"W": W})
    for property_ in (DERIVATIVES, MATTER):
        assert judged(layer, property_).verdict == Verdict.HOLDS
    assert torch.equal(W, before)
    assert not W.requires_grad


def test_a_step_size_that_depends_on_the_state_takes_what_the_energy_takes() -> None:
    with pytest.raises(ValueError, match="takes the state and the memory"):
        energy_layer(update=lambda x, _: -x, dim=D, step_size=lambda x: x)
    with pytest.raises(ValueError, match="takes the state alone"):
        energy_layer(update=lambda x: -x, state=("J", D), memory=None, step_size=lambda x, m: x + m)


def solver(tolerance: float) -> EnergyLayer:
    """Goes down |x - h|^2 / 2 until the gradient is below the tolerance."""

    def update(x: Tensor, h: Tensor) -> Tensor:
        start = x
        while float((x - h).detach().abs().max()) >= tolerance:
            x = x - 0.5 * (x - h)
        return x - start

    energy = lambda x, h: (x - h).square().sum(-1) / 2  # noqa: E731
    return energy_layer(update=update, energy=energy, dim=D, step="equilibrium", tolerance=tolerance)


def test_a_solver_that_stops_early_is_told_how_far_to_go() -> None:
    record = judged(solver(1e-4), DERIVATIVES, examples=24)
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "known only to within its tolerance of 0.0001: let it stop at 1e-07" in str(record.reason)
    assert judged(solver(1e-7), DERIVATIVES, examples=24).verdict == Verdict.HOLDS


def test_a_vector_is_pulled_back_where_the_answer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "as_tensor", lambda product, shape: product.expand(shape))  # without numbers
    x = torch.ones(D, device="meta", requires_grad=True)
    product = products.pulled_back([2 * x], {"x": x}, [torch.ones(D, dtype=torch.float64)], lambda array: array)["x"]
    assert product.device.type == "meta"
