"""Energy layers: what they declare, what is then tested, and what a violation says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cemverify import PRESENT_STATE, SOME_POSITIVE_DEFINITE, check_implementation, energy_layer
from cemverify.conformance.asking.boxes import Box
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import kind_of, load
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.offered import applicable
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import catalogue
from cemverify.conformance.properties.layers import products
from cemverify.conformance.questions.black_boxes import Form, Question, stretched
from cemverify.power.mutants import layer_papers
from cemverify.power.mutants.training import _read_by_pointer
from suites.conformance.twins import Twin
from suites.kit.judging import judged, mutant
from suites.kit.source import ROOT

EXAMPLES = sorted(path.stem for path in (ROOT / "examples" / "energy_layers").glob("[!_]*.py"))


def quadratic(**changes: Any) -> EnergyLayer:
    """x' = m, one step down |x - m|^2 / 2, with other declarations."""
    declared: dict[str, Any] = {
        "update": lambda x, m: m - x,
        "energy": lambda x, m: ((x - m) ** 2).sum(-1) / 2,
        "dim": 2,
    }
    return energy_layer(**{**declared, **changes})


# Properties of the process, rather than the formula, take a third of the time, mostly for compilation: by default
# they are tested on one layer, and in a thorough run on all. Of the other properties, every third is tested on each
# layer, and each layer starts at a different one.
OF_THE_PROCESS = [f"modes/layer/{name}" for name in ("compiled", "surroundings")]
OF_THE_PROCESS += [f"structure/layer/{name}" for name in ("settings", "determinism", "edited-arrays")]
ASKED_IT = "cem_attention"
# mutants whose layer, without the fault, is not an example
ORIGINALS = (
    *("strategies-fitter-than-the-plain-mean", "pair-in-the-other-order", "layer-turned-by-a-skew-map"),
    *("ravine-step-too-long", "chain-bound-too-small"),
)
UNUSUAL = ("signs", "a mean as it stands", "coordinates")  # rows of TWINS


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*EXAMPLES, *UNUSUAL, *ORIGINALS[:2], *(pytest.param(id_, marks=pytest.mark.thorough) for id_ in ORIGINALS[2:])],
)
def test_a_right_layer_holds_with_all_that_its_declaration_implies(name: str, pytestconfig: pytest.Config) -> None:
    if name.endswith("_jax"):
        pytest.importorskip("jax", reason="the extra `jax` is not installed")
    thorough = bool(pytestconfig.getoption("--thorough"))
    if name in EXAMPLES:
        layer = load(f"examples.energy_layers.{name}:mine")
    else:
        make: Any = mutant(name).original if name in ORIGINALS else TWINS[name].right
        layer = make()
    properties = [p.id for p in applicable(kind_of(layer), catalogue())]
    if not thorough:
        first = [*EXAMPLES, *UNUSUAL, *ORIGINALS].index(name) % 3
        properties = [id_ for id_ in properties if id_ not in OF_THE_PROCESS][first::3]
        properties += OF_THE_PROCESS if name == ASKED_IT else []
    records = check_implementation(layer, properties=properties, examples=18 if thorough else 4)
    assert not [(r.id, r.reason) for r in records if r.verdict not in (Verdict.HOLDS, Verdict.NOT_OFFERED)]
    assert sum(r.verdict == Verdict.HOLDS for r in records) > 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_says_of_each_layer_what_is_asked_of_it(example: str) -> None:
    """The test above shows that what is tested holds."""
    if example.endswith("_jax"):
        pytest.importorskip("jax", reason="the extra `jax` is not installed")
    page = (ROOT / "docs" / "energy-layers.md").read_text()
    row = rf"^\| \[.*?\]\(\.\./examples/energy_layers/{example}\.py\) \|(.*)\|$"  # in the table of layers
    (cells,) = re.findall(row, page, flags=re.MULTILINE)
    conservative, falls, whole, *_ = (cell.strip() for cell in cells.split(" | "))
    absent = load(f"examples.energy_layers.{example}:mine").not_offered
    assert conservative.startswith("yes") == ("conservative" not in absent)
    assert falls.startswith("yes") == (not {"energy", "slope"} & absent.keys())
    assert whole.startswith(("yes", "within")) == (not {"monotone", "smoothness"} <= absent.keys())


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"dim": None}, "dim=D"),
        ({"dim": None, "state": ("J", 2)}, "memory"),
        ({"dim": None, "state": ("J", 0), "memory": None}, "numbers from 1 to"),
        ({"dim": 10**30}, r"numbers from 1 to 2\^31 - 1, not .'J', 1000"),
        ({"shortest": 10**30}, r"shortest must be at least 1 and below 2\^31, not 1000"),
        ({"dim": None, "state": (2,), "memory": None}, "energy per token needs a state with a token axis"),
        ({"energy_per": "word"}, "energy_per of an energy layer must be 'token' or 'sequence' or 'batch'"),
        ({"mean_over": ("tokens",)}, "cannot be a mean over tokens"),
        ({"step": "equilibrium"}, "needs a positive tolerance"),
        ({"preconditioner": [[1, 2], [3]]}, "not what cannot be read as one: .*inhomogeneous"),
        ({"preconditioner": torch.zeros(2)}, "not zeros, NaN"),
        ({"preconditioner": np.diag([1, -2])}, "not one with v.Pv = -2 v.v for some v"),
        ({"dim": None, "state": {"class": ("J", 2)}, "memory": None}, "'class' cannot name an array"),
        ({"noise": torch.ones(2)}, "the noise of an energy layer must be a number, not tensor"),
        ({"step_size": 10**400}, "must be a positive number"),
        ({"step_size": lambda: 1 / 0}, "the function of the step size failed: ZeroDivisionError"),
        ({"mean_over": "batch"}, r"mean_over must be a collection of names: write \('batch',\)"),
        ({"masked": 1}, "masked of an energy layer must be True or False or 'left', not 1"),
        ({"preconditioner": SOME_POSITIVE_DEFINITE, "steps": 2}, "needs a single step"),
        ({"steps": 2, "step_size": (0.1,)}, "as many step sizes, not 1"),
        ({"steps": 10**6}, "must be a whole number from 1 to 10,000, as each step is followed, not 1000000"),
        ({"momentum": 0.5}, "momentum needs several steps"),
        ({"momentum": 1.0, "steps": 2}, "at least 0 and below 1, not 1"),
        ({"leak": True}, "needs the Lagrangian"),
        ({"step": "proximal"}, "needs proximal=, a function of a state and the step size, and penalty="),
        ({"step": "proximal", "proximal": min, "penalty": min, "noise": 0.1}, "cannot be combined with noise"),
        ({"step_size": lambda x, m: 1.0, "step": "cccp"}, "a step size that depends on the state needs"),
        ({"momentum": (0.1,), "steps": 2}, "one for each of its 2 steps, alone or as .'nesterov', mu., not"),
        ({"tolerance": 0.1, "step": "free"}, "a tolerance belongs to step='equilibrium', or to step='gradient'"),
        ({"energy": lambda x, m, t: x.sum(-1), "monotone": True}, "one for each step, needs step="),
        (
            {"memory": None, "preconditioner": lambda x, v, m: v},
            "the preconditioner cannot take a memory, as the layer has none",
        ),
        ({"domain": {"x": range(3)}}, "only arrays of the memory may have a range"),
        ({"draw": {"y": torch.rand}}, r"draw must give functions f\(generator, shape\) for x, memory, not y"),
        ({"not_offered": ("causalty",)}, "'causalty'"),
        ({"domain": "ball"}, "domain of x must be one of 'box', .* or, except for a parameter, a function"),
        ({"domain": {"beta": (0, 2)}}, "names 'beta', but its arrays are memory, x"),
        ({"domain": {"b": "sphere"}, "memory": {"b": ()}, "dim": None, "state": ("J", 2)}, "axis, but b has none"),
        ({"step": "block"}, "needs several arrays of states"),
        ({"step": "coordinate", "order": (0, 0)}, "order must name every block, or every place"),
        ({"domain": "box", "state_map": torch.tanh}, "a domain cannot be combined with a state map"),
    ],
    # named by the keys of a declaration, because functions in it have other addresses in every process
    ids=lambda declared: declared if isinstance(declared, str) else " ".join(declared),
)
def test_an_impossible_declaration_is_refused_in_a_sentence(declared: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        quadratic(**declared)


# --- right layers that might easily be refused, each with a faulty twin -------------------------------------

LONGEST = 90  # the longest row for which there is memory
FLAT = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))


def sheared(x: Tensor, m: Tensor) -> Tensor:
    """P (m - x), where P leaves out the third channel, plus a shear."""
    step = (m - x) @ FLAT.to(x)
    return step + step.roll(-1, -1) @ torch.diag(torch.tensor([1 / 64, 0.0, 0.0])).to(x)


def retrieval(wrong: bool = False) -> EnergyLayer:
    """A layer that runs out of memory for long rows."""

    def update(x: Tensor, m: Tensor) -> Tensor:
        if x.shape[1] > LONGEST:
            raise MemoryError
        scale = 1.1 if wrong and x.shape[1] > 40 else 1.0
        return torch.softmax(scale * x @ m.mT, -1) @ m

    shapes: Any = {"state": ("J", 2), "memory": ("M", 2)}
    return energy_layer(update=update, energy=lambda x, m: -torch.logsumexp(x @ m.mT, -1), **shapes)


def on_a_domain(domain: Any, step: Callable[[Tensor], Tensor], energy: Callable[[Tensor], Tensor]) -> EnergyLayer:
    """A layer whose step and energy get states in the domain, and take a memory without reading it."""
    return energy_layer(
        update=lambda x, m: step(x) + 0 * m, energy=lambda x, m: energy(x) + 0 * m.sum(-1),
        dim=3, step_size=0.1, domain=domain,
    )  # fmt: skip


def towards_targets(factor: float, **more: Any) -> EnergyLayer:
    """One step of the delta rule; the memory has a step size in (0, 2), a unit key and a gate below zero."""

    def update(S: Tensor, m: Any) -> Tensor:
        error = torch.einsum("bkv,bk->bv", S, m.k) - m.v
        gated = error * (factor * m.beta * m.gate.exp())[:, None]
        return -torch.einsum("bk,bv->bkv", m.k, gated)

    def energy(S: Tensor, m: Any) -> Any:
        return (torch.einsum("bkv,bk->bv", S, m.k) - m.v).square().sum(-1) * m.gate.exp() / 2

    sizes: Any = {"state": (3, 2), "memory": {"k": (3,), "v": (2,), "beta": (), "gate": ()}}
    more |= {"energy_per": "sequence", "step_size": lambda S, m: m.beta}
    return energy_layer(update=update, energy=energy, **sizes, **more)


def fista(gain: float) -> EnergyLayer:
    """Accelerated ISTA with thresholds in the memory; the energy of step t is t + 1 times that of the first."""
    momenta = (0.0, 0.28, 0.43)

    def soft(v: Tensor, eta: float, m: Any) -> Tensor:
        return v.sign() * torch.relu(v.abs() - eta * m.a)

    def update(x: Tensor, m: Any) -> Tensor:
        before = now = x
        for t, mu in enumerate(momenta):
            ahead = now + gain * mu * (now - before)
            before, now = now, soft(ahead - 0.2 * (t + 1) * (ahead - m.b), 0.2, m)
        return now - x

    return energy_layer(
        update=update, energy=lambda g, m, t: (t + 1) * (g - m.b).square().sum(-1) / 2, steps=3, step_size=0.2,
        step="proximal", proximal=soft, penalty=lambda x, m: (m.a * x.abs()).sum(-1), momentum=("nesterov", momenta),
        state=("J", 2), memory={"a": ("J", 2), "b": ("J", 2)}, domain={"a": (0.1, 1)},
    )  # fmt: skip


def with_padding(first: int) -> EnergyLayer:
    """Attention with padding on the left; token positions count from an origin that padding must not move."""

    def scores(x: Tensor, m: Tensor, mask: Tensor | None) -> Tensor:
        place = torch.arange(m.shape[1], dtype=x.dtype) * torch.ones_like(x[..., 0])
        origin = 0 if first == 0 or mask is None else first - mask.sum(1)[:, None]
        biased = x @ m.mT - 0.1 * ((place - origin)[:, None] if first else (place[:, :, None] - place[:, None]).abs())
        return biased if mask is None else biased.masked_fill(~mask[:, None], -torch.inf)

    return quadratic(
        update=lambda x, m, mask=None: torch.softmax(scores(x, m, mask), -1) @ m,
        energy=lambda g, m, mask=None: -scores(g, m, mask).logsumexp(-1),
        masked="left",
        causal=False,
    )


def by_species(most: int) -> EnergyLayer:
    """Each token is pulled to the place of its kind, which is an integer."""
    places = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(5, 2)
    return energy_layer(
        update=lambda x, m: m.w - x + places.to(x)[m.kind.clamp(max=most)],
        energy=lambda g, m: (g - m.w - places.to(g)[m.kind]).square().sum(-1) / 2,
        state=("J", 2), memory={"kind": ("J",), "w": ("J", 2)}, domain={"kind": range(5)},
    )  # fmt: skip


def apart_by_one(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Places in order on a line, at least 1 apart."""
    steps: Tensor = 1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return steps.cumsum(1)


def of_a_chain(factor: float) -> EnergyLayer:
    """Places on a line that repel each other; if two coincide, the energy is infinite."""

    def energy(x: Tensor) -> Tensor:  # (B, J, 1)
        return (1 / (x[:, 1:] - x[:, :-1])).sum((1, 2))

    def update(x: Tensor) -> Tensor:
        push = 0.1 * factor / (x[:, 1:] - x[:, :-1]).square()
        still = torch.zeros_like(x[:, :1])
        return torch.cat((still, push), 1) - torch.cat((push, still), 1)

    return energy_layer(
        update=update, energy=energy, state=("J", 1), memory=None, energy_per="sequence", coupled=True,
        step_size=0.1, draw=apart_by_one, not_offered=("dtype:bfloat16",),
    )  # fmt: skip


def cut_off(digits: int) -> EnergyLayer:
    """A step that is right to this many digits; three are claimed."""
    scale = 10.0**digits
    update = lambda x, m: x + (scale * (m - 2 * x)).round() / scale  # noqa: E731
    return quadratic(update=update, tolerance=1e-3, not_offered=("gradients", "dtype:bfloat16"))


def below_one(inside: bool) -> EnergyLayer:
    """A parameter beta whose square must stay below 1."""
    beta = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    return quadratic(
        update=lambda x, m: (1 - beta.square()).sqrt().to(x) * (m - x),
        energy=lambda x, m: (1 - beta.square()).sqrt().to(x) * (x - m).square().sum(-1) / 2,
        parameters={"beta": beta},
        domain={"beta": (-1, 1) if inside else (-9, 9)},
    )


RANGES: Any = {"k": "sphere", "beta": (0, 2), "gate": (-np.inf, 0)}


def near_rest(x: Tensor) -> Tensor:
    """The nearest state of a domain far from zero, which only this function describes."""
    _, _, _ = x.shape  # (B, J, 3), as declared
    return 3 + (x - 3).clamp(-0.3, 0.3)


def drawn_to_rest(factor: float) -> EnergyLayer:
    return on_a_domain(near_rest, lambda x: -4 * factor * x**-3, lambda x: -20 * (x**-2).sum(-1))


def of_signs(where: float) -> EnergyLayer:
    away = lambda x: signs_of(x) * x.abs().clamp(min=0.25)  # noqa: E731  from zero
    return on_a_domain(away, lambda x: -0.1 * (torch.sign(x - where) + x), lambda x: (x.abs() + x * x / 2).sum(-1))


def of_a_mean(rows: Callable[[Tensor], Any]) -> EnergyLayer:
    """A step down the mean of |x - m|^2 / 2 over the batch, not rescaled."""
    mean = lambda x, m: ((x - m) ** 2).sum((1, 2)).mean() / 2  # noqa: E731
    how: dict[str, Any] = {"energy_per": "batch", "mean_over": ("batch",), "step_of": "mean"}
    return quadratic(update=lambda x, m: (m - x) / rows(x), energy=mean, **how)


PULLS = torch.tensor([[0.0, 1.0, -2.0], [1.0, 0.0, 0.75], [-2.0, 0.75, 0.0]], dtype=torch.float64)


def signs_of(x: Tensor) -> Tensor:
    return torch.where(x < 0, -1.0, 1.0).to(x)


def binary(own: float) -> EnergyLayer:
    """A Hopfield net whose neurons are set one after the other."""

    def update(x: Tensor, m: Tensor) -> Tensor:
        for i in range(3):
            field = (x * PULLS[i].to(x)).sum(-1) + m[..., i] + own * x[..., i]
            x = torch.cat((x[..., :i], signs_of(field)[..., None], x[..., i + 1 :]), -1)
        return x

    return quadratic(
        update=update, energy=lambda x, m: -(x @ PULLS.to(x) * x).sum(-1) / 2 - (m * x).sum(-1), dim=3,
        step="coordinate", order=(0, 1, 2), returns="next state", domain=signs_of,
        not_offered=("autograd", "gradients"),
    )  # fmt: skip


def tiled(x: Tensor) -> Tensor:
    """The identity; from 1024 rows on, gradients reach only rows in complete tiles of 16."""
    rows, same = x[..., 0].numel(), x * 1
    if same.requires_grad and rows >= 1024:
        reached = (torch.arange(rows) < rows // 16 * 16).reshape(*x.shape[:-1], 1)
        same.register_hook(lambda grad: grad * reached)  # type: ignore[no-untyped-call]
    return same


def by_pointer(array: Tensor) -> Tensor:
    """The identity; its backward pass reads the gradient like a kernel that gets its memory but not its strides."""
    same = array * 1
    if same.requires_grad:
        same.register_hook(_read_by_pointer)  # type: ignore[no-untyped-call]
    return same


def solved_until(converged: Callable[[Tensor], Tensor]) -> EnergyLayer:
    """A solver that stops when the whole batch has converged, by the given measure."""

    def solve(x: Tensor, m: Tensor) -> Tensor:
        for _ in range(500):
            x = x + torch.sigmoid(m).clamp(min=0.1) * (m - x)  # some rows converge more slowly than others
            if float(converged((x - m).detach().abs())) < 1e-7:
                break
        return x

    declared: dict[str, Any] = {"step": "equilibrium", "returns": "next state", "tolerance": 1e-6}
    return quadratic(update=solve, **declared, not_offered=["vmap", "compile"])


def equilibrium(off: float) -> EnergyLayer:
    update = lambda x, m: m + off + 0 * x  # noqa: E731
    return quadratic(update=update, step="equilibrium", returns="next state", tolerance=1e-3)


def heavy(momentum: float) -> EnergyLayer:
    """Three steps, to each of which 0.4 times the previous one is added."""
    sizes = (0.5, 0.25, 0.25)

    def update(x: Tensor, m: Tensor) -> Tensor:
        before = now = x
        for eta in sizes:
            before, now = now, now - eta * (now - m) + 0.4 * (now - before)
        return now - x

    return quadratic(update=update, steps=3, step_size=sizes, momentum=momentum)


def proximal(*used: float) -> EnergyLayer:
    """Two proximal steps with a preconditioner."""
    P = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def soft(v: Tensor, eta: float) -> Tensor:
        return v.sign() * torch.relu(v.abs() - 0.5 * eta)

    def update(x: Tensor, m: Tensor) -> Tensor:
        now = x
        for eta in used:
            now = soft(now - eta * P.to(x) * (now - m), eta)
        return now - x

    declared: dict[str, Any] = {"step": "proximal", "proximal": soft, "penalty": lambda x: 0.5 * x.abs().sum(-1)}
    return quadratic(update=update, preconditioner=P, steps=2, step_size=(0.5, 0.25), **declared)


def to_targets(stopped: bool) -> EnergyLayer:
    """A JAX layer that is pulled to targets, and unpacks its memory by position, not in the order of names."""
    W_of = pytest.importorskip("jax").lax.stop_gradient if stopped else lambda W: W

    def update(x: Any, m: Any) -> Any:
        targets, W = m
        return targets @ W_of(W) - x

    return energy_layer(
        update=update, energy=lambda x, m: ((x - m.targets @ m.W) ** 2).sum(-1) / 2,
        state=("J", 2), memory={"targets": ("J", 2), "W": (2, 2)}, arrays="jax",
    )  # fmt: skip


ENERGY, SLOPE, WHOLE = "gradient/layer/energy", "descent/layer/slope", "descent/layer/whole-step"
FIELD, STATES, LONG = "gradient/layer/conservative-field", "training/layer/states", "extremes/layer/long-rows"
STATIONARY, BATCH, DTYPE = "descent/layer/stationary", "structure/layer/batch-independence", "structure/layer/dtype"
UPDATE, FACTOR = "update = -eta P grad energy", "a constant factor"


def log_cosh(tanh: Callable[[Tensor], Tensor]) -> EnergyLayer:
    """log cosh x as |x| + log(1 + exp(-2 |x|)), which never overflows."""
    return quadratic(
        update=lambda x, m: m - tanh(x),
        energy=lambda x, m: (x.abs() + torch.log1p(torch.exp(-2 * x.abs())) - x * m).sum(-1),
    )


MUTANTS = (
    ("energy-transformer-norm-left-out", "the norm", ""),
    ("layer-last-channel-short", "entry 3 of the last axis", "only entry 3 of the last axis (4) is wrong"),
    ("ham-two-layers-decay-of-one-layer-missing", "hidden", ""),
    ("layer-summed-over-tokens", FACTOR, "times what it must be: the number of tokens"),
)
TWINS: dict[str, Twin] = {
    "signs": Twin(ENERGY, lambda: of_signs(0.0), lambda: of_signs(0.3), UPDATE),
    "a mean as it stands": Twin(BATCH, lambda: of_a_mean(len), lambda: of_a_mean(lambda x: min(len(x), 3)),
                                "a batch row alone"),
    "coordinates": Twin(WHOLE, lambda: binary(0.0), lambda: binary(0.25), "the energy <= that with another value of"),
    "logarithms": Twin(f"{ENERGY} extremes/layer/huge-states", lambda: on_a_domain(
        "positive", lambda x: -0.1 * x.log(), lambda x: (x * x.log() - x).sum(-1))),
    "a box": Twin(f"{ENERGY} extremes/layer/huge-states {STATES}", lambda: on_a_domain(
        "box", lambda x: -0.1 * x.atanh(), lambda x: (x * x.atanh() + (-x * x).log1p() / 2).sum(-1))),
    "the border of a box": Twin(STATIONARY, lambda: quadratic(
        update=lambda x, m: m.clamp(-1, 1) + 0 * x, step="equilibrium", returns="next state", tolerance=1e-6,
        domain={"x": "box"})),
    "maps that read the memory": Twin(ENERGY, lambda: energy_layer(
        update=lambda x, m: -0.1 * m.a * (m.a * x - m.b), energy=lambda g, m: (g - m.b).square().sum(-1) / 2,
        state_map=lambda x, m: m.a * x, preconditioner=lambda x, v, m: m.a * v, step_size=0.1,
        state=("J", 2), memory={"a": ("J", 2), "b": ("J", 2)}, domain={"a": (0.1, 1)})),
    "steps that look ahead, each down its own energy": Twin(
        ENERGY, lambda: fista(1.0), lambda: fista(0.5), "update = prox", everywhere=True),
    "padding on the left": Twin("structure/layer/mask", lambda: with_padding(0), lambda: with_padding(1),
                                "energy with tokens masked|update with tokens masked"),
    "integers in the memory": Twin(f"{ENERGY} contexts/layer/update", lambda: by_species(4), lambda: by_species(3),
                                   "update = ", everywhere=True),
    "neighbours by a matrix": Twin("structure/layer/permutation", lambda: energy_layer(
        update=lambda x, m: 0.1 * (m.a.tanh() @ x - x * m.b), state=("J", 2), memory={"a": ("J", "J"), "b": ("J", 1)},
        permutable=True, causal=False, step="free")),
    "a sampler": Twin(ENERGY, lambda: of_a_chain(1.0), lambda: of_a_chain(0.9), UPDATE, everywhere=True),
    "a solver that stops early": Twin(ENERGY, lambda: cut_off(4), lambda: cut_off(2), UPDATE),
    "a range of a parameter": Twin("training/layer/other-parameters", lambda: below_one(True),
                                   lambda: below_one(False), "", everywhere=True),
    "a singular P": Twin(
        FIELD, mutant("layer-turned-by-a-skew-map").original,
        lambda: quadratic(update=sheared, preconditioner=FLAT, dim=3), "the Jacobian equals its transpose"),
    "an answer that is an argument": Twin(
        "structure/layer/edited-arrays", lambda: quadratic(update=lambda x, m: m, returns="next state")),
    "more memory than there is": Twin(LONG, retrieval, lambda: retrieval(wrong=True), "update = "),
    "constants of float64 that widen float32 states": Twin(
        DTYPE, lambda: quadratic(arrays="numpy"),
        lambda: quadratic(arrays="numpy", update=lambda x, m: (m - x) @ np.eye(2))),
    "a solver that stops for the whole batch, and when one row has converged": Twin(
        f"{BATCH} {STATIONARY} training/layer/derivatives-agree", lambda: solved_until(torch.max),
        lambda: solved_until(lambda steps: steps[0].max()), examples=60),
    "a backward pass that leaves out the last tile of many rows": Twin(
        STATES, None, lambda: quadratic(update=lambda x, m: m - tiled(x)), examples=60),
    "a backward pass that reads by pointer": Twin(
        STATES, None, lambda: quadratic(update=lambda x, m: by_pointer(m - x)), examples=60),
    "an equilibrium within its tolerance, and beyond": Twin(STATIONARY, lambda: equilibrium(0.9e-3),
                                                             lambda: equilibrium(1.1e-3)),
    "NumPy, differentiated by differences": Twin(
        ENERGY, lambda: quadratic(arrays="numpy"), lambda: quadratic(arrays="numpy", update=lambda x, m: 2 * (m - x)),
        part="the declared steps", because="declare step_size=2,"),
    "log cosh by absolute values, whose second derivative vanishes at zero, and no gradient": Twin(
        f"{STATES} contexts/layer/update",
        lambda: log_cosh(torch.tanh), lambda: log_cosh(lambda x: x.tanh().detach())),
    "float32, differentiated by differences": Twin(
        ENERGY, lambda: quadratic(working_dtype="float32", not_offered=("autograd",))),
    "the difference of the last state and the first": Twin(
        "precision/layer/bfloat16", lambda: quadratic(
            update=lambda x, m: x + (m - x) / 64 + (m - (x + (m - x) / 64)) / 64 - x, steps=2, step_size=1 / 64)),
    "huge states in float32": Twin(
        "extremes/layer/huge", lambda: quadratic(
            update=lambda x, m: (torch.softmax(x @ m.mT, -1) @ m - 4 * x) / 64, dim=8, step_size=1 / 64, causal=False,
            energy=lambda x, m: 2 * (x * x).sum(-1) - (x @ m.mT).logsumexp(-1), working_dtype="float32")),
    "momentum": Twin(f"{ENERGY} {STATES}", lambda: heavy(0.4), lambda: heavy(0.0), everywhere=True),
    "an energy through which no gradient comes": Twin(
        "gradient/layer/derivatives-agree", wrong=lambda: quadratic(energy=lambda x, m: (x.detach() - m).norm(dim=2)),
        reason="declare not_offered=('autograd',)"),
    "a step size of another shape": Twin(
        ENERGY, None, lambda: quadratic(step_size=lambda x, m: x.new_ones(len(x), 99)),
        reason="step size: the step size has shape"),
    "the present state, with one energy for the batch": Twin(
        "gradient/layer/derivatives-agree",
        lambda: energy_layer(update=lambda x: torch.softmax(x @ x.mT, -1) @ x, memory=PRESENT_STATE, causal=False,
                             energy=lambda g, m: -(g @ m.mT).logsumexp(2).sum(), state=("J", 3), energy_per="batch")),
    "an energy that is NaN": Twin(
        ENERGY, None, lambda: quadratic(energy=lambda x, m: x[..., 0] * np.nan), reason="energy: "),
    "several proximal steps with a preconditioner": Twin(
        f"{ENERGY} gradient/layer/proximal {STATES}", lambda: proximal(0.5, 0.25), lambda: proximal(0.25, 0.5)),
    "ranges of the memory": Twin(
        f"{ENERGY} {STATES} training/layer/derivatives-agree structure/layer/inputs-unchanged modes/layer/vmap "
        "contexts/layer/update",
        lambda: towards_targets(1.0, domain=RANGES),
        lambda: towards_targets(1.1, domain=RANGES), part="a constant factor"),
    "the next state, where a difference is declared": Twin(
        ENERGY, None, lambda: quadratic(update=lambda x, m: m), part="what is returned", because="'next state'"),
    "a step size that is negative without its range": Twin(
        SLOPE, None, lambda: towards_targets(1.0), part="the declared step size", because="domain="),
    "a function's domain far from zero": Twin(
        f"{ENERGY} {STATES} modes/layer/vmap contexts/layer/update",
        lambda: drawn_to_rest(1.0), lambda: drawn_to_rest(1.1)),
    "float32 inside": Twin(
        ENERGY, None, lambda: quadratic(update=lambda x, m: (m.float().sin() - x.float()).double(),
                                        energy=lambda x, m: ((x - m.sin()) ** 2).sum(-1) / 2), part="precision"),
    "a softplus that is linear beyond twenty": Twin(
        ENERGY, None, lambda: quadratic(
            update=lambda x, m: -torch.nn.functional.softplus(8 * m) - x,
            energy=lambda x, m: (x * torch.logaddexp(8 * m, torch.zeros_like(m)) + x * x / 2).sum(-1)),
        part="a threshold", because="threshold=40", examples=60),
    "a small error that grows and is gone without a jump": Twin(
        ENERGY, None, lambda: quadratic(update=lambda x, m: m - x + 1e-9 * m**6 * (-m * m).exp()),
        part="not the stated energy's gradient", examples=60),
    "tokens that read each other, which is not declared": Twin(
        "structure/layer/own-state", None,
        lambda: energy_layer(update=lambda x: x.cumsum(1), state=("J", 2), memory=None, step="free"),
        reason="declare memory=PRESENT_STATE or coupled=True", examples=60),
    **{id_: Twin(mutant(id_).property, None, mutant(id_).subject, part=part, because=because, examples=60)
       for id_, part, because in MUTANTS},
    "a JAX layer that branches on values": Twin(
        ENERGY, lambda: quadratic(arrays="jax", update=lambda x, m: m - x if float(abs(x).sum()) >= 0 else x,
                                  not_offered=("compile", "vmap")), examples=6, arrays="jax"),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_an_unusual_layer_holds_and_its_faulty_twin_does_not(name: str) -> None:
    TWINS[name].judge()


def test_gradients_through_a_jax_layer_are_compiled_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_MOST_COMPILED", 1)
    words = "gradient with respect to W"
    Twin(STATES, lambda: to_targets(False), lambda: to_targets(True), reason=words, examples=6, arrays="jax").judge()
    assert len(products._PRODUCTS) <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_states_lie_inside_of_a_functions_domain_in_every_precision(dtype: torch.dtype) -> None:
    box = Box(Caller(drawn_to_rest(1.0), dtype))
    x = torch.linspace(2, 4, 3 * 4096).reshape(4096, 1, 3).to(dtype).to(torch.float64)
    from_rest = (box.rounded(Question({"x": x}, {"m": x})).x["x"] - 3).abs()
    assert float(from_rest.max()) < 0.29
    assert 0.05 < float((from_rest > 0.2).double().mean()) < 0.5


def test_a_domain_of_nan_is_told_as_such() -> None:
    record = judged(quadratic(domain=lambda x: x * torch.nan), "gradient/layer/energy", examples=4)
    assert record.verdict == Verdict.VIOLATED
    assert str(record.reason) == "domain: 2 of 2 values are NaN or infinite"


def test_how_long_the_rows_were_that_there_was_memory_for_is_told() -> None:
    assert 60 < judged(retrieval(), LONG, examples=30).asked_up_to["J"] <= LONGEST


def test_what_a_declaration_rules_out_is_listed_with_its_reason() -> None:
    absent = quadratic(coupled=True, energy_per="sequence").not_offered
    assert absent["own-state"] == "declared: its energy reads every token's state"
    assert "one value per sequence" in absent["energy-per-token"] or "declared" in absent["energy-per-token"]
    assert "gradients" not in absent
    averaged = quadratic(energy_per="sequence", mean_over=["tokens"], step_of="mean").not_offered
    assert "mean over tokens" in averaged["causality"]


def test_an_error_in_the_last_digits_is_not_called_a_factor_of_one() -> None:
    record = judged(quadratic(update=lambda x, m: (m - x) * (1 + 1e-11)), ENERGY, examples=30)
    assert (record.verdict, record.part == FACTOR) == (Verdict.VIOLATED, False)


def test_heads_are_shown_with_few_tokens() -> None:
    fault = mutant("hopfield-heads-one-beta-for-all")
    assert (judged(fault.subject(), fault.property).counterexample or {})["case"]["tokens"] <= 2


def test_a_long_axis_is_as_long_as_is_cheap_and_every_axis_has_its_turn() -> None:
    form = Form({"x": ("J", 4)}, {"memory": ("M", 4)})
    questions = [stretched(form, seed) for seed in range(24)]
    sizes = [(q.batch, q.x["x"].shape[1], q.memory["memory"].shape[1]) for q in questions]
    alone = [axes for axes in sizes if sum(size > 32 for size in axes) == 1]
    assert {axes.index(max(axes)) for axes in alone} == {0, 1, 2}
    together = [axes for axes in sizes if axes not in alone]
    assert {tokens for _, tokens, patterns in together if tokens == patterns} == {41, 97, 151}
    assert len(together) == 6
    assert stretched(replace(form, most=400), 1).x["x"].numel() <= 400


def test_a_slip_says_so_where_the_examples_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_papers, "_FOLDER", "examples.somewhere_else")
    with pytest.raises(LoadError, match="is not installed; it is part of a clone of the repository"):
        mutant("cem-mlp-one-step-too-few").subject()


def test_a_state_map_promises_descent_only_as_the_gradient_of_a_lagrangian() -> None:
    def norm(x: Tensor) -> Tensor:
        gain = torch.tensor([1.0, 3.0], dtype=torch.float64)
        return gain.to(x) * x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt()

    layer = quadratic(update=lambda x, m: m + 0 * x, energy=lambda g, m: -(g * m).sum(-1), state_map=norm)
    assert "gradient of a Lagrangian" in layer.not_offered["slope"]
