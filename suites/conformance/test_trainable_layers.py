"""What training needs of an energy layer, whatever its step: right derivatives, and parameters that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select

DERIVATIVES, MATTER = "training/layer/derivatives-agree", "training/layer/parameters-matter"
D = 3


def judged(layer: EnergyLayer, property_: str, seed: int = 0) -> Record:
    return judge_property(layer, select([property_])[0], Effort(seed=seed))


def free(update: Any, **changes: Any) -> EnergyLayer:
    """A layer of which nothing is claimed but that it can be trained."""
    return energy_layer(update=update, dim=D, step="free", conservative=False, causal=False, **changes)


# --- derivatives ----------------------------------------------------------------------------------------


def sharp(x: Tensor, m: Tensor) -> Tensor:
    """Kinks where states are zero or whole, as many questions have them."""
    return torch.relu(x) - (m - 1).abs() + torch.relu(x - m).clamp(max=2)


def sparse(x: Tensor, m: Tensor) -> Tensor:
    """Only the largest score counts: the answer jumps where two are equal."""
    scores = x @ m.mT
    return torch.softmax(scores.masked_fill(scores < scores.amax(-1, keepdim=True), -torch.inf), -1) @ m


def shrunk(x: Tensor, m: Tensor) -> Tensor:
    """Soft thresholding: two kinks close to zero, on both sides of it."""
    return torch.sign(x) * torch.relu(x.abs() - 1e-4) + m


@pytest.mark.parametrize("update", [sharp, sparse, shrunk])
@pytest.mark.parametrize("seed", range(4))
def test_where_a_function_has_kinks_and_jumps_no_right_derivative_is_called_wrong(update: Any, seed: int) -> None:
    assert judged(free(update), DERIVATIVES, seed).verdict == Verdict.HOLDS


def test_a_detached_branch_is_a_violation_though_there_is_no_energy() -> None:
    record = judged(free(lambda x, m: torch.tanh(x) + 0.01 * (x * m).detach()), DERIVATIVES)
    assert record.verdict == Verdict.VIOLATED
    assert "gradient with respect to" in str(record.cause)


def test_an_equilibrium_has_the_gradient_of_the_implicit_function_and_no_phantom_of_it() -> None:
    W = torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.4, 0.2], [0.1, 0.1, -0.3]], dtype=torch.float64)

    def step(x: Tensor, m: Tensor) -> Tensor:
        return torch.tanh(x @ W.to(x) + m)

    def solved(x: Tensor, m: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(80):
                x = step(x, m)
        return x

    def implicit(x: Tensor, m: Tensor) -> Tensor:
        found = solved(x, m)
        slope = (1 - found**2)[..., None, :] * W.to(x)  # (B, J, D, D), of the step in x
        away = torch.linalg.inv(torch.eye(D, dtype=x.dtype) - slope)
        once = step(found, m)
        moved: Tensor = ((once - once.detach())[..., None, :] @ away)[..., 0, :]
        return found + moved

    def phantom(x: Tensor, m: Tensor) -> Tensor:
        return step(solved(x, m), m)  # what flows is the gradient of one step

    assert judged(free(implicit, returns="next state"), DERIVATIVES).verdict == Verdict.HOLDS
    assert judged(free(phantom, returns="next state"), DERIVATIVES).verdict == Verdict.VIOLATED
    excused = free(phantom, returns="next state", not_offered=["gradients"])
    assert "gradients" in excused.not_offered


def test_a_weight_that_was_cached_is_not_the_one_that_is_learned() -> None:
    W = torch.eye(D, dtype=torch.float64)
    cache: dict[str, Tensor] = {}

    def stale(x: Tensor, m: Tensor) -> Tensor:
        if W.requires_grad:
            return x @ W.to(x).T + m
        return x @ cache.setdefault("W", W.detach().clone()).to(x).T + m

    assert judged(free(stale, parameters={"W": W}), DERIVATIVES).verdict == Verdict.VIOLATED
    sound = free(lambda x, m: x @ W.to(x).T + m, parameters={"W": W})
    assert judged(sound, DERIVATIVES).verdict == Verdict.HOLDS


def test_one_detached_parameter_of_many_is_a_violation() -> None:
    many = {f"p{i}": torch.ones(D, dtype=torch.float64) for i in range(50)}

    def update(x: Tensor, m: Tensor) -> Tensor:
        return m - x * sum(p.detach() if name == "p37" else p for name, p in many.items()).to(x)  # type: ignore[union-attr]

    record = judged(free(update, parameters=many), DERIVATIVES)
    assert record.verdict == Verdict.VIOLATED
    assert any(name in str(record.cause) for name in ("p37", "all parameters together"))


def test_a_large_matrix_of_float32_that_is_detached_is_a_violation() -> None:
    W = torch.randn(64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float32) / 8

    def layer(W_of: Callable[[Tensor], Tensor]) -> EnergyLayer:
        said: dict[str, Any] = {"dim": 64, "step": "free", "conservative": False, "causal": False}
        return energy_layer(update=lambda x, m: torch.tanh(x @ W_of(x)) + m, parameters={"W": W}, **said)

    assert judged(layer(lambda x: W.to(x)), DERIVATIVES).verdict == Verdict.HOLDS
    assert judged(layer(lambda x: W.detach().to(x)), DERIVATIVES).verdict == Verdict.VIOLATED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_close_to_the_end_of_its_range_is_asked_nearer(dtype: torch.dtype) -> None:
    tau = torch.tensor(1e-4, dtype=dtype)

    def update(x: Tensor, m: Tensor) -> Tensor:
        if float(tau.detach()) <= 0:
            raise ValueError("a temperature is positive")
        return tau.to(x).sqrt() * x + m

    assert judged(free(update, parameters={"tau": tau}), DERIVATIVES).verdict == Verdict.HOLDS


# --- parameters -----------------------------------------------------------------------------------------


def test_a_parameter_of_which_the_layer_has_a_copy_is_named() -> None:
    used, copied = torch.ones(D, dtype=torch.float64), torch.ones(D, dtype=torch.float64)
    own = copied.clone()
    layer = free(lambda x, m: used.to(x) * x + own.to(x) * m, parameters={"used": used, "copied": copied})
    record = judged(layer, MATTER)
    assert record.verdict == Verdict.VIOLATED
    assert "copied" in str(record.cause)


def test_parameters_that_few_questions_reach_matter_all_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    experts = {f"expert{i}": torch.randn(D, D, generator=generator, dtype=torch.float64) for i in range(8)}
    gate = torch.randn(8, D, generator=generator, dtype=torch.float64)
    gate = gate / gate.norm(dim=-1, keepdim=True)  # of equal length, so each of them wins somewhere

    def routed(x: Tensor, m: Tensor) -> Tensor:
        chosen = (x @ gate.to(x).T).argmax(-1)  # (B, J)
        weights = torch.stack([W.to(x) for W in experts.values()])[chosen]  # (B, J, D, D)
        return (weights @ x[..., None])[..., 0] + m

    assert judged(free(routed, parameters=experts), MATTER).verdict == Verdict.HOLDS


def test_a_parameter_behind_zeros_or_of_a_narrow_range_matters() -> None:
    A, B = torch.ones(2, D, dtype=torch.float64), torch.zeros(D, 2, dtype=torch.float64)  # a low-rank adapter
    tau = torch.tensor(0.05, dtype=torch.float64)

    def update(x: Tensor, m: Tensor) -> Tensor:
        if float(tau) <= 0:
            raise ValueError("a temperature is positive")
        return torch.softmax(x / tau.to(x), -1) + x @ A.to(x).T @ B.to(x).T + m

    assert judged(free(update, parameters={"A": A, "B": B, "tau": tau}), MATTER).verdict == Verdict.HOLDS


def test_a_tied_parameter_matters_under_both_of_its_names() -> None:
    W = torch.eye(D, dtype=torch.float64)
    tied = {"up": W, "down": W}
    for property_ in (DERIVATIVES, MATTER):
        assert judged(free(lambda x, m: x @ W.to(x) @ W.to(x).T + m, parameters=tied), property_).verdict == "holds"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (torch.arange(3), r"whole numbers or complex ones \(torch\.int64\)"),
        (torch.ones(2, requires_grad=True).exp(), "computed from others"),
        (torch.empty(0), "empty"),
        (torch.ones(1).expand(3), "several of its numbers are one"),
        (torch.ones(2, device="meta"), "on the meta device"),
    ],
)
def test_what_cannot_be_set_or_trained_is_no_parameter(given: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        free(lambda x, m: m - x, parameters={"odd": given})


def test_parameters_are_as_they_were_after_a_check() -> None:
    W = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    before = W.clone()
    layer = free(lambda x, m: x @ W.to(x) + m, parameters={"W": W})
    for property_ in (DERIVATIVES, MATTER):
        assert judged(layer, property_).verdict == Verdict.HOLDS
    assert torch.equal(W, before)
    assert not W.requires_grad


# --- learned step sizes ------------------------------------------------------------------------------------


class Learned(torch.nn.Module):
    """Two steps down |W (x - m)|^2 / 2, with a step size that is trained, for each step or as a softplus."""

    def __init__(self, *, softplus: bool = False) -> None:
        super().__init__()
        drawn = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.W = torch.nn.Parameter(drawn)
        self.raw = torch.nn.Parameter(torch.tensor([0.1, -0.3] if softplus else [0.05, 0.02], dtype=torch.float64))
        self.softplus = softplus

    def sizes(self) -> Tensor:
        return 0.1 * torch.nn.functional.softplus(self.raw) if self.softplus else self.raw

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        start = x
        for eta in self.sizes():
            x = x - eta * (x - m) @ self.W.mT @ self.W
        return x - start

    def energy(self, x: Tensor, m: Tensor) -> Tensor:
        return (((x - m) @ self.W.mT) ** 2).sum(-1) / 2


LEARNED = "training/layer/parameters"


@pytest.mark.parametrize("softplus", [False, True])
def test_a_learned_step_size_is_a_parameter_like_any_other(*, softplus: bool) -> None:
    module = Learned(softplus=softplus)
    given = module.sizes if softplus else module.raw
    layer = energy_layer(update=module, energy=module.energy, dim=D, steps=2, step_size=given, parameters=module)
    assert judged(layer, LEARNED).verdict == Verdict.HOLDS
    assert judged(layer, MATTER).verdict == Verdict.HOLDS
    assert judged(layer, "gradient/layer/energy").verdict == Verdict.HOLDS


def test_a_step_size_that_is_detached_in_the_update_is_a_violation() -> None:
    module = Learned()
    layer = energy_layer(
        update=lambda x, m: -module.raw.detach()[0] * (x - m) @ module.W.mT @ module.W,
        energy=module.energy, dim=D, step_size=lambda: module.raw[0], parameters=module,
    )  # fmt: skip
    record = judged(layer, LEARNED)
    assert record.verdict == Verdict.VIOLATED
    assert "raw" in str(record.cause)


def test_a_step_size_that_depends_on_the_state_takes_what_the_energy_takes() -> None:
    with pytest.raises(ValueError, match="takes the state and the memory"):
        energy_layer(update=lambda x, _: -x, dim=D, step_size=lambda x: x)
    with pytest.raises(ValueError, match="takes the state alone"):
        energy_layer(update=lambda x: -x, state=("J", D), memory=None, step_size=lambda x, m: x + m)
