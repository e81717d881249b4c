"""Any energy layer, described by the mathematics of its step.

A layer has a state x and a memory m that stays fixed during the call. It states an energy E(g, m), where g = G(x)
is the state itself unless a state map says otherwise, and its step is

    x' = x - eta P dE/dg        once, or T times

What the declaration does not mention is tested; what it mentions is tested as declared. A property that a declared
fact rules out ("tokens read each other") is counted and printed with the reason, never skipped silently.
"""

from __future__ import annotations

import inspect
import keyword
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch

from cemverify.conformance.implementations.arrays import ARRAY_KINDS, TORCH, ArrayName
from cemverify.conformance.implementations.faults import words
from cemverify.conformance.implementations.features import (
    LAYER_FEATURES,
    OF_STATES,
    SHARED_FEATURES,
    declared_absent,
    names_of,
    unclaimed,
)

Per = Literal["token", "sequence", "batch"]
MeanOver = Literal["tokens", "batch"]
StepKind = Literal["gradient", "proximal", "cccp", "block", "coordinate", "equilibrium", "free"]
StepOf = Literal["sum", "mean"]
Momentum = float | Sequence[float]
Returns = Literal["difference", "next state"]
DomainName = Literal["box", "simplex", "sphere", "positive"]
# for an array: a name, an interval (low, high), a range of whole numbers, or a function that gives the nearest array
Domain = DomainName | tuple[float, float] | range | Callable[..., Any]
WHOLE = "whole"  # a range is stored as the triple (WHOLE, lowest, highest)
Sampler = Callable[[torch.Generator, tuple[int, ...]], Any]
Axis = int | str
Shape = tuple[Axis, ...]

TOKENS = "J"  # the axis of a shape that counts tokens
_LARGEST = sys.float_info.max
_LONGEST = 2**31  # numbers along an axis: more than any array that fits in memory
_ROUNDED = 1e-5  # how far below zero float32 roundoff may put an eigenvalue of P, relative to P's largest number

PRESENT_STATE = "present state"  # memory that is the state itself, held fixed while the energy is differentiated
ONE_AFTER_ANOTHER = ("block", "coordinate")  # steps
SOME_POSITIVE_DEFINITE = "some positive definite"  # a preconditioner that is fixed but not given


@dataclass(frozen=True)
class StatedEnergy:
    """What the numbers that the energy function returns stand for."""

    per: Per = "token"  # one value per token (B, J), per sequence (B,), or one scalar for the batch
    # axes over which it is a mean: the step descends the sum of the returned values, times the sizes of these axes
    mean_over: tuple[MeanOver, ...] = ()
    step_of: StepOf = "sum"  # "mean" if the step descends the returned mean itself


@dataclass(frozen=True)
class Step:
    """What one call does to the state; the arguments of `energy_layer` say more."""

    # "gradient" is x - eta P dE/dg. "proximal" is prox(x - eta P dE/dg, eta). "cccp" is any step that does not raise
    # the energy. "block" minimizes the energy in one array of the state after the other, "coordinate" in one number
    # of its last axis after the other, with the others held fixed. "equilibrium" returns a state at which the energy
    # is stationary. "free" claims nothing about the energy
    kind: StepKind = "gradient"
    sizes: tuple[float, ...] = (1.0,)  # eta of each of the T steps
    momentum: tuple[float, ...] = (0.0,)  # mu of each step: dx(t) = mu dx(t-1) - eta P dE/dg, dx(-1) = 0
    looks_ahead: bool = False  # whether the gradient is taken at x + mu dx(t-1), as Nesterov does
    own_energies: bool = False  # whether each step has an energy of its own, energy(g, m, t)
    preconditioner: Any = None  # P; None is the identity
    returns: Returns = "difference"  # what the update function returns, x' - x or x'
    monotone: bool = False  # whether the whole step, however long, must not raise the energy
    smoothness: float | None = None  # a bound on the Hessian of the energy in x, if one is known
    # for an equilibrium: the largest gradient that counts as zero; for a step: how far off its solver may stop
    tolerance: float | None = None
    noise: float = 0.0  # sigma
    # returns the sizes as torch tensors, which may record gradients; None if they are plain numbers
    learned: Callable[[], Sequence[torch.Tensor]] | None = None
    # computes eta from state and memory, if it depends on them; `sizes` are then ones
    varying: Callable[..., Any] | None = None
    # prox(v, eta), the state z at which R(z) + |z - v|^2 / (2 eta) is least
    proximal: Callable[..., Any] | None = None
    penalty: Callable[..., Any] | None = None  # R
    moving: bool = False  # whether P is a function of the state and the gradient
    order: tuple[Any, ...] = ()  # of the blocks, by name, or of the coordinates; if empty, as declared

    @property
    def unknown_preconditioner(self) -> bool:
        """Whether P is fixed but not given."""
        return isinstance(self.preconditioner, str)


@dataclass(frozen=True)
class EnergyLayer:
    """An energy layer and what is known of it; `energy_layer` makes one and explains the fields.

    Attributes:
        state, memory: shapes of arrays by name, without the batch axis; no memory is an empty mapping.
        stated: what the energy's values stand for. step: what a call does to the state.
        parameters: by name. not_offered: features that it lacks, each with the reason.
        domain: of the whole state, or of its arrays by name. ranges: of the memory's arrays and parameters, by name.
        reference: this layer with another update that does the same. draw: samplers of arrays, by name.
        reads_memory: functions, by name, that also take the memory.
    """

    update: Callable[..., Any]
    energy: Callable[..., Any] | None
    state: Mapping[str, Shape]
    memory: Mapping[str, Shape] | str
    stated: StatedEnergy = field(default_factory=StatedEnergy)
    step: Step = field(default_factory=Step)
    state_map: Callable[..., Any] | None = None
    lagrangian: Callable[..., Any] | None = None
    leak: bool = False
    coupled: bool = False
    causal: bool = True
    conservative: bool = True
    permutable: bool = False
    masked: bool | Literal["left"] = False
    shortest: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    working_dtype: str = "float64"
    not_offered: Mapping[str, str] = field(default_factory=dict)
    arrays: ArrayName = "torch"
    domain: Domain | Mapping[str, Domain] | None = None
    # new in 1.1; they come last because the others may be given by position
    batch_invariant: bool = False
    reference: EnergyLayer | None = None
    ranges: Mapping[str, Domain] = field(default_factory=dict)
    draw: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    reads_memory: tuple[str, ...] = ()
    # of a layer in which every token is a step (see `online`), in order: the arrays of the state that are outputs;
    # those that are zero before a call; the updates without a first state, of packed and of padded rows; the number
    # of tokens at whose multiples a row may be cut; loops that differ from the declared one in one thing
    outputs: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    ways: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    pieces: int = 0
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The domains of the state's arrays, by name; none if one function is given for all of them together."""
        if self.domain is None or callable(self.domain):
            return {}
        return self.domain if isinstance(self.domain, Mapping) else dict.fromkeys(self.state, self.domain)

    @property
    def memories(self) -> Mapping[str, Shape]:
        """The memory's arrays that are drawn; none where the memory is the present state."""
        return {} if isinstance(self.memory, str) else self.memory

    @property
    def whole(self) -> Collection[str]:
        """The arrays of the memory that hold integers."""
        return {name for name, domain in self.ranges.items() if isinstance(domain, tuple) and len(domain) == 3}

    @property
    def reads_itself(self) -> bool:
        """Whether the memory is the present state."""
        return isinstance(self.memory, str)


def energy_layer(
    *,
    update: Callable[..., Any],
    energy: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    dim: int | None = None,
    state: Shape | Mapping[str, Shape] | None = None,
    memory: Shape | Mapping[str, Shape] | str | None = ("?",),
    energy_per: Per = "token",
    mean_over: Iterable[MeanOver] = (),
    step_of: StepOf = "sum",
    coupled: bool = False,
    causal: bool = True,
    conservative: bool = True,
    permutable: bool = False,
    masked: bool | Literal["left"] = False,
    state_map: Callable[..., Any] | None = None,
    lagrangian: Callable[..., Any] | None = None,
    leak: bool = False,
    step: StepKind = "gradient",
    order: Iterable[str | int] = (),
    steps: int = 1,
    step_size: float | Sequence[float] | torch.Tensor | Callable[..., Any] = 1.0,
    momentum: Momentum | tuple[Literal["nesterov"], Momentum] = 0.0,
    preconditioner: Any = None,
    proximal: Callable[..., Any] | None = None,
    penalty: Callable[..., Any] | None = None,
    returns: Returns = "difference",
    monotone: bool = False,
    smoothness: float | None = None,
    tolerance: float | None = None,
    noise: float = 0.0,
    batch_invariant: bool = False,
    shortest: int = 1,
    parameters: Mapping[str, Any] | Any = None,
    working_dtype: Literal["float64", "float32"] = "float64",
    arrays: ArrayName = "torch",
    not_offered: Iterable[str] = (),
    offers: Iterable[str] = (),
    domain: Domain | Mapping[str, Domain] | None = None,
    draw: Sampler | Mapping[str, Sampler] | None = None,
) -> EnergyLayer:
    """Any energy layer: `update(x, memory)` and, if it has one, `energy(g, memory)`.

    A shape is written without the batch axis: `("J", 8)` is J tokens of dimension 8, (B, J, 8). A letter stands for
    a size that varies, and means the same size everywhere; "J" counts tokens. For several arrays give a mapping of
    shapes, `{"visible": (12,), "hidden": (5,)}`; the functions get a named tuple: `x.visible`. Give `dim=D` instead
    of shapes if both state and memory are ("J", D).

    Args:
        update: update(x, memory), or update(x) without a memory: what a step adds to x, or the next state.
        energy: energy(g, memory), or energy(g): the energy at g = G(x); g is x unless there is a state map. If it has
            a parameter `t`, each of several steps has its own energy, and t counts them from 0.
        reference: another function that does the same as `update`: updates and gradients are compared with its own.
        dim: D, for state = memory = ("J", D).
        state, memory: shapes. With state=(...) a memory must be given, too; memory=None means that there is none.
            memory=PRESENT_STATE means that tokens read the present states of the others in update(x), and that
            energy(g, m) is differentiated with m = g held fixed.
        energy_per: "token" (B, J), "sequence" (B,) or "batch", a scalar.
        mean_over: "tokens", "batch" or both, if the returned energy is a mean over them rather than a sum.
        step_of: "sum" if the step still follows the gradient of the sum, "mean" if it follows that of the mean: in
            a batch of B a row then moves 1/B as far as it moves alone.
        coupled: the energy reads other tokens' states and the update is its gradient in all of them.
        causal: declare False if tokens read later ones through the memory.
        conservative: declare False if you do not claim that the update is a gradient field.
        permutable: the tokens may be reordered: the update of reordered tokens is the reordered update.
        masked: both functions take `mask=`, (B, J) of booleans; False tokens neither count nor affect the others.
            They keep their places: unless `permutable`, a row is compared with one without them only if they stand
            at its end (or, with masked="left", at its beginning).
        state_map: G(x), or G(x, memory). lagrangian: L(x), a value per token or per sequence; G = dL/dx. Give either,
            or both.
        leak: the whole energy is x.g - L(x) + energy(g, memory), so that the update is -eta P (x + dE/dg).
        step: "gradient", "proximal", "cccp", "block", "coordinate", "equilibrium" or "free"; see `Step`.
        order: for step="block" the names of the state's arrays, for step="coordinate" the places of its last axis, in
            the order in which they are set; without it, as declared.
        steps, step_size: T steps of size eta, or a list of T sizes. For a learned size give the tensor, () or (T,),
            or a function without arguments that computes it from parameters: `lambda: softplus(module.raw)`. For a
            size that depends on the state give step_size(x, memory), or step_size(x) without a memory or with
            PRESENT_STATE. It returns positive numbers: (), (B,), (B, J) or any other start of the state's shape.
        momentum: mu, at least 0 and below 1: each step also adds mu times the previous one (heavy ball). Give T
            numbers if it changes. ("nesterov", mu): the gradient is taken after that is added, as in FISTA.
        preconditioner: P: None, an array (D,) or (D, D), a function f(v) of the gradient, f(x, v) of state and
            gradient or f(x, v, memory), or SOME_POSITIVE_DEFINITE. An array that lets the energy rise is refused.
        proximal, penalty: for step="proximal": prox(v, eta), a state, and R(x), a value per token or per sequence,
            infinite for states that it forbids. Both may take the memory as one more argument.
            The step is x' = prox(x - eta P dE/dg, eta), and it lowers E + R.
        returns: "difference" or "next state".
        monotone: the whole step does not raise the energy, as CCCP claims.
        smoothness: a bound on the largest eigenvalue of the energy's Hessian in x; the finite step is tested with it.
        tolerance: for step="equilibrium": how large the gradient may be at the returned state. Two results for the
            same input may differ by 16 times as much. For step="gradient", if a solver that stops early computes
            the update: how far off each of its numbers may be.
        noise: sigma; `update(..., noise=z)` then adds sigma z, with z of the state's shape.
        batch_invariant: a row's update has the same bits in any batch.
        shortest: the fewest tokens that the layer takes.
        parameters: a module or a mapping of torch tensors; gradients with respect to them are tested.
        working_dtype: "float32" gives it float32 arrays and wider error budgets; its weights stay as they are.
        arrays: "torch", "numpy" or "jax": what the functions take and return.
        not_offered: features that it lacks, from: "causality", "autograd", "gradients", "inference", "vmap",
            "compile", "cuda", "dtype:float32", "dtype:bfloat16".
        offers: features that are tested only on request: "dtype:float16".
        domain: the states for which it is defined: "box", numbers in [-1, 1]; "simplex", numbers of at least 0 whose
            sum over the last axis is 1; "sphere", whose norm over the last axis is 1; "positive"; an interval
            (low, high), either of which may be infinite; or a function that returns the nearest such state. No other
            states are tested, and gradients are taken along the domain. A mapping gives arrays of the state and of
            the memory domains of their own: `{"k": "sphere", "beta": (0, 2)}`. An array of the memory may have a
            range, `{"species": range(4)}`: it comes as integers (int64). A parameter may have a domain, too, but no
            function or range: no other values of it are tried.
        draw: a function f(generator, shape) that draws states that no domain describes: atoms that lie apart,
            permutations, one-hot rows. `shape` begins with the batch axis, and `generator` is torch's. A mapping
            has such functions for arrays of the state and of the memory: `{"k": f}`.

    Raises:
        ValueError: arguments contradict each other or are out of range; the message says what is allowed.
    """
    if not callable(update) or not all(function is None or callable(function) for function in (energy, reference)):
        raise ValueError("an energy layer's update, energy and reference must be functions")
    if dim is not None and (type(dim) is not int or dim < 1):
        raise ValueError(f"dim must be a whole number of at least 1, not {dim!r}")
    if (dim is None) == (state is None):
        raise ValueError("an energy layer needs either dim=D, or state=(...) with memory=(...)")
    if dim is not None:
        state = (TOKENS, dim)
    if memory == ("?",):
        if dim is None:
            raise ValueError("an energy layer with state=(...) needs memory=(...), or memory=None if it has none")
        memory = (TOKENS, dim)
    states, memories = shapes_of(state, "x"), _memories(memory)
    # a function of the state; one without arguments computes a learned size
    varying: Any = step_size if callable(step_size) and not _takes(step_size, 0) else None
    sizes, learned = _sizes(1.0 if varying else step_size, steps, arrays)
    named, not_offered = _parameters(parameters), names_of(not_offered, "not_offered")
    form = StatedEnergy(energy_per, names_of(mean_over, "mean_over"), step_of)
    taken = Step(
        step,
        sizes,
        *_momentum(momentum, steps),
        energy is not None and _names_a_step(energy),
        _preconditioner(preconditioner, states),
        returns,
        step in ("cccp", *ONE_AFTER_ANOTHER) or monotone,
        None if smoothness is None else _number(smoothness, "smoothness"),
        None if tolerance is None else _number(tolerance, "tolerance"),
        _number(noise, "noise"),
        learned,
        varying,
        proximal,
        penalty,
        callable(preconditioner) and not _takes(preconditioner, 1),
        names_of(order, "order"),
    )
    # each with the most arguments that it takes apart from the memory
    maps = (("state map", state_map, 1), ("preconditioner", preconditioner, 2), ("proximal map", proximal, 2),
            ("penalty", penalty, 1))  # fmt: skip
    reads_memory = tuple(
        name for name, f, most in maps if callable(f) and not any(_takes(f, n) for n in range(1, most + 1))
    )
    of_state, ranges = _domains(domain, states, memories, named)
    layer = EnergyLayer(
        update, energy, states, memories, form, taken, state_map, lagrangian, leak, coupled,
        "causality" not in not_offered and causal, conservative, permutable, masked, shortest, named, working_dtype,
        {}, arrays, of_state, batch_invariant, None, ranges, _samplers(draw, states, memories), reads_memory,
    )  # fmt: skip
    _check(layer)
    absent = unclaimed(offers) | declared_absent(not_offered, (*LAYER_FEATURES, *SHARED_FEATURES)) | _absent(layer)
    if reference is None:
        absent["reference"] = "it states no reference"
    elif energy is None:
        absent["conservative"] = "it states a reference and no energy"
    object.__setattr__(layer, "not_offered", MappingProxyType(absent))
    if reference is not None:
        object.__setattr__(layer, "reference", replace(layer, update=reference))
    return layer


# --- what the declaration rules out ----------------------------------------------------------------


def _absent(layer: EnergyLayer) -> dict[str, str]:
    """The features that the declaration rules out or does not claim, each with the first reason that applies."""
    step, stated, kind = layer.step, layer.stated, ARRAY_KINDS[layer.arrays]
    tokens, of_tokens = (any(TOKENS in shape for shape in part.values()) for part in (layer.state, layer.memories))
    several, narrow = len(step.sizes) > 1, layer.working_dtype != "float64"
    of_kind, of_energy = f"its step is declared {step.kind!r}", f"its energy is one value per {stated.per}"
    sampled, coupled = "its sampler draws no others", "declared: its energy reads every token's state"
    maps = [f for f in (layer.state_map, layer.lagrangian) if f is not None]
    reasons = (
        ("energy", "it states no energy", layer.energy is None),
        ("gradient-step", of_kind, step.kind not in ("gradient", "proximal")),
        ("proximal", of_kind, step.kind != "proximal"),
        ("conservative", "declared: its update is not a gradient field", not layer.conservative),
        ("conservative", of_kind, step.kind in ("proximal", "equilibrium", "cccp", *ONE_AFTER_ANOTHER)),
        ("conservative", "its step size depends on the state", step.varying is not None),
        ("conservative", "several steps together are not a gradient field", several),
        ("conservative", "its memory moves with the state", layer.reads_itself),
        ("conservative", "its preconditioner is not given", step.unknown_preconditioner),
        ("conservative", "its preconditioner depends on the state", step.moving),
        ("any-states", sampled, layer.draw.keys() & layer.state.keys()),
        ("any-memory", sampled, layer.draw.keys() & layer.memories.keys()),
        ("conservative", "its preconditioner depends on the memory", "preconditioner" in layer.reads_memory),
        ("unknown-preconditioner", "its preconditioner is given", not step.unknown_preconditioner),
        ("slope", of_kind, step.kind not in ("gradient", "cccp")),
        ("slope", "descent follows from a state map only if it is the gradient of a Lagrangian",
         maps and layer.lagrangian is None),
        ("slope", "with a preconditioner and a state map, the update need not descend to first order",
         maps and step.preconditioner is not None),
        ("slope", "several steps together need not follow the slope at the start", several),
        ("monotone", "it makes no claim about the whole step", not step.monotone),
        ("smoothness", "no bound on the energy's curvature is declared", step.smoothness is None),
        ("equilibrium", "its step is not declared an equilibrium", step.kind != "equilibrium"),
        ("lagrangian", "it declares no Lagrangian", layer.lagrangian is None),
        ("both-maps", "it does not declare both a state map and a Lagrangian", len(maps) < 2),
        ("tokens own-state energy-per-token causality permutable masked",
         f"its state has no token axis {TOKENS!r}", not tokens),
        ("own-state", coupled, layer.coupled),
        ("own-state", "its memory is the present state of every token", layer.reads_itself),
        ("energy-per-token", coupled, layer.coupled),
        ("energy-per-token", of_energy, stated.per != "token"),
        ("causality", "declared", not layer.causal),
        ("causality", "its energy is coupled, so tokens influence each other both ways", layer.coupled),
        ("causality", "it descends the mean over tokens, so a token moves less the more there are",
         stated.step_of == "mean" and "tokens" in stated.mean_over),
        (" ".join(OF_STATES), "its tokens are no steps of a state: see online_layer", layer.pieces == 0),
        ("coupled", "its tokens are not coupled", not layer.coupled or not tokens),
        ("batch-energy", of_energy, stated.per != "batch"),
        ("permutable", "not claimed", not layer.permutable),
        ("batch-invariant", "not claimed", not layer.batch_invariant),
        ("masked", "it takes no mask", not layer.masked),
        ("masked-gradient", "its energy is a mean over tokens, and a mask leaves open over how many",
         "tokens" in stated.mean_over),
        ("parameters", "it names no parameters", not layer.parameters),
        ("memory", "it has no memory", not layer.memories),
        ("memory-tokens", f"its memory has no token axis {TOKENS!r}", not of_tokens),
        ("torch", "it takes no torch arrays", kind is not TORCH),
        ("editable", "JAX arrays cannot be edited in place", not kind.editable),
        ("differences", f"differences drown in the roundoff of {layer.working_dtype}", narrow),
        ("known-preconditioner", "its preconditioner is not given", step.unknown_preconditioner),
        ("autograd gradients vmap compile inference parameters",
         "NumPy arrays carry no gradients and have no modes", not kind.differentiable),
        ("autograd", "there is no energy to differentiate", layer.energy is None),
        ("dtype:bfloat16", "NumPy has no bfloat16", "dtype:bfloat16" in kind.lacks),
        ("dtype:float32 dtype:bfloat16 dtype:float16", f"it works in {layer.working_dtype} already", narrow),
        ("cuda", "only torch arrays are put on a device", kind is not TORCH),
    )  # fmt: skip
    absent: dict[str, str] = {}
    for features, reason, is_so in reasons:
        for feature in features.split() if is_so else ():
            absent.setdefault(feature, reason)
    return absent


# --- reading and checking the arguments -------------------------------------------------------------


def _memories(declared: Any) -> Mapping[str, Shape] | str:
    if declared is None or (isinstance(declared, str) and declared == PRESENT_STATE):
        return declared or {}
    return shapes_of(declared, "memory")


def shapes_of(declared: Any, name: str) -> Mapping[str, Shape]:
    """Shapes by name, from one or from a mapping of them."""
    shapes = dict(declared) if isinstance(declared, Mapping) else {name: declared}
    for key, shape in shapes.items():
        axes = shape if isinstance(shape, tuple) else (0,)
        if not all((isinstance(n, str) and n) or (type(n) is int and 1 <= n < _LONGEST) for n in axes):
            raise ValueError(f"the shape of {key} must be a tuple of letters and of numbers from 1 to 2^31 - 1, "
                             f"not {shape!r}")  # fmt: skip
        if not isinstance(key, str) or not key.isidentifier() or keyword.iskeyword(key) or key.startswith("_"):
            raise ValueError(f"{key!r} cannot name an array, which is read as x.name: that takes an identifier "
                             "that is not a Python keyword and does not begin with an underscore")  # fmt: skip
    if not shapes:
        raise ValueError(
            f"{name} must be a shape such as ('J', 8), or a non-empty mapping to shapes, not {declared!r}"
        )
    return MappingProxyType(shapes)


def _preconditioner(P: Any, states: Mapping[str, Shape]) -> Any:
    """P as declared, with a list made an array."""
    if P is None or isinstance(P, str) or callable(P):
        return P
    widths = {shape[-1] if shape else None for shape in states.values()}
    try:
        P = P if hasattr(P, "dtype") else np.asarray(P)
        given = torch.as_tensor(P if isinstance(P, torch.Tensor) else np.asarray(P)).detach().cpu()
        wrong = f"an array {tuple(given.shape)} of {given.dtype}" if given.dim() else f"{P}: multiply step_size by it"
        if not given.is_complex() and all(tuple(given.shape) in ((D,), (D, D)) for D in widths):
            matrix = (given if given.dim() == 2 else given.diag()).double()
            lowest = float(torch.linalg.eigvalsh((matrix + matrix.mT).nan_to_num() / 2)[0])
            if matrix.isfinite().all() and matrix.any() and lowest >= -_ROUNDED * float(matrix.abs().max()):
                return P
            wrong = f"one with v.Pv = {lowest:.3g} v.v for some v" if lowest < 0 else "zeros, NaN or infinity"
    except (TypeError, ValueError, RuntimeError) as error:
        wrong = f"what cannot be read as one: {words(error)}"
    raise ValueError(
        f"the preconditioner of an energy layer must be a function, SOME_POSITIVE_DEFINITE, or an array (D,) or "
        f"(D, D) that turns no gradient uphill, where D is the state's last axis ({' and '.join(map(str, widths))}), "
        f"not {wrong}"
    )


def _domains(
    declared: Any, states: Mapping[str, Shape], memories: Mapping[str, Shape] | str, parameters: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """The domain of the state, and those of the memory's arrays and of parameters, by name."""
    memories = {} if isinstance(memories, str) else memories
    others = {**{name: tuple(value.shape) for name, value in parameters.items()}, **memories}
    if not isinstance(declared, Mapping):
        for name in states if declared is not None else ():
            _check_domain(declared, name, states[name])
        return declared, {}
    for name, domain in declared.items():
        if name not in {**others, **states}:
            known = ", ".join({**others, **states})
            raise ValueError(f"domain of an energy layer names {name!r}, but its arrays are {known}")
        of_memory = name in memories and name not in states
        _check_domain(domain, name, {**others, **states}[name], whole=of_memory, batched=of_memory or name in states)
    kept = {name: (WHOLE, a[0], a[-1]) if isinstance(a, range) else a for name, a in declared.items()}
    of_state, of_others = ({name: kept[name] for name in kept if name in part} for part in (states, others))
    return MappingProxyType(of_state) or None, MappingProxyType(of_others)


def _check_domain(domain: Any, name: str, shape: Shape, *, whole: bool = False, batched: bool = True) -> None:
    if callable(domain) and batched:
        return
    if isinstance(domain, tuple) and len(domain) == 2 and all(isinstance(end, float | int) for end in domain):
        if domain[0] < domain[1] and (-math.inf, math.inf) != domain:
            return
    elif isinstance(domain, range):
        if whole and len(domain) and domain.step == 1:
            return
        raise ValueError(
            f"only arrays of the memory may have a range, not empty and in steps of 1, but {name} got {domain}"
        )
    elif isinstance(domain, str) and domain in get_args(DomainName):
        if shape or domain not in ("simplex", "sphere"):
            return
        raise ValueError(f"the domain {domain!r} is along the last axis, but {name} has none")
    named = ", ".join(map(repr, get_args(DomainName)))
    raise ValueError(
        f"the domain of {name} must be one of {named}, an interval (low, high) with low < high, "
        "range(n) for integers, or, except for a parameter, a function that gives the nearest one, "
        f"not {domain!r}"
    )


def _samplers(
    declared: Any, states: Mapping[str, Shape], memories: Mapping[str, Shape] | str
) -> Mapping[str, Sampler]:
    """The functions that draw arrays, by name."""
    arrays = {**states, **({} if isinstance(memories, str) else memories)}
    declared = {} if declared is None else declared
    if not isinstance(declared, Mapping) and len(states) > 1:
        raise ValueError(f"with several states, draw must map {', '.join(states)} to functions")
    by_name = declared if isinstance(declared, Mapping) else dict.fromkeys(states, declared)
    for name, function in by_name.items():
        if name not in arrays or not callable(function) or not _takes(function, 2):
            raise ValueError(
                f"draw must give functions f(generator, shape) for {', '.join(arrays)}, not {name}: {function!r}"
            )
    return MappingProxyType(dict(by_name))


def _number(value: Any, name: str) -> float:
    try:
        if not isinstance(value, bool | str):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several, say
        pass
    raise ValueError(f"the {name} of an energy layer must be a number, not {value!r}")


def _momentum(declared: Any, steps: Any) -> tuple[tuple[float, ...], bool]:
    """mu of each step, from one number or from as many as there are steps, and whether steps look ahead."""
    if isinstance(declared, tuple) and len(declared) == 2 and declared[0] == "nesterov":
        return _momentum(declared[1], steps)[0], True
    if not isinstance(declared, Sequence):
        return (_number(declared, "momentum"),) * (steps if type(steps) is int else 1), False
    if isinstance(declared, str) or len(declared) != steps:
        raise ValueError(f"the momentum of an energy layer must be a number, or one for each of its {steps} steps, "
                         f"alone or as ('nesterov', mu), not {declared!r}")  # fmt: skip
    return tuple(_number(mu, "momentum") for mu in declared), False


def _sizes(
    step_size: Any, steps: Any, arrays: str
) -> tuple[tuple[float, ...], Callable[[], Sequence[torch.Tensor]] | None]:
    """The sizes as numbers and, if they are learned (in torch layers only), a function that returns tensors."""
    if type(steps) is not int or not 1 <= steps <= _MOST_STEPS:
        allowed = f"must be a whole number from 1 to {_MOST_STEPS:,}, as each step is followed"
        raise ValueError(f"the steps of an energy layer {allowed}, not {steps!r}")
    declared, learned = step_size, None
    if callable(declared):
        try:
            step_size = declared()
        except Exception as error:
            raise ValueError(f"the function of the step size failed: {words(error)}") from error
    if isinstance(step_size, torch.Tensor) and arrays == "torch":

        def learned() -> Sequence[torch.Tensor]:
            now = torch.as_tensor(declared() if callable(declared) else declared)
            return [now] * steps if now.dim() == 0 else list(now)

    if hasattr(step_size, "tolist"):
        step_size = step_size.tolist()
    listed = isinstance(step_size, Sequence) and not isinstance(step_size, str | bytes)
    sizes = tuple(step_size) if listed else (step_size,) * steps
    if len(sizes) != steps:
        raise ValueError(f"an energy layer with {steps} steps needs as many step sizes, not {len(sizes)}")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, float | int) or not 0 < size <= _LARGEST:
            raise ValueError(f"the step size of an energy layer must be a positive number, not {size!r}")
    return tuple(map(float, sizes)), learned


def _takes(function: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # it has no signature, like some functions of libraries
        return True
    return True


def _names_a_step(energy: Callable[..., Any]) -> bool:
    try:
        return "t" in inspect.signature(energy).parameters
    except (TypeError, ValueError):  # it has none that can be told
        return False


def _orders_all(layer: EnergyLayer) -> bool:
    """Whether its order names every block or coordinate once, if these have names."""
    step, (*_, size) = layer.step, next(iter(layer.state.values()), (0,)) or (0,)
    numbers = range(size) if step.kind == "coordinate" and isinstance(size, int) else ()
    places: Sequence[Any] = tuple(layer.state) if step.kind == "block" else numbers
    return len(step.order) == len(places) and all(place in step.order for place in places)


def _parameters(declared: Any) -> Mapping[str, Any]:
    declared = {} if declared is None else declared
    named = dict(declared.named_parameters()) if isinstance(declared, torch.nn.Module) else declared
    if not isinstance(named, Mapping) or not all(isinstance(value, torch.Tensor) for value in named.values()):
        raise ValueError("the parameters of an energy layer must be a module or a mapping of torch tensors")
    for name, value in named.items():
        faults = {
            f"whole numbers or complex ones ({value.dtype})": not value.is_floating_point(),
            "computed from others: declare those instead": not value.is_leaf,
            "empty": value.numel() == 0,
            "on the meta device": value.is_meta,
            "expanded: several of its entries are one number": not value.is_meta
            and any(n > 1 and stride == 0 for n, stride in zip(value.shape, value.stride(), strict=True)),
            "an inference tensor": value.is_inference(),
        }
        if problems := [fault for fault, there in faults.items() if there]:
            raise ValueError(
                f"the parameter {name} of an energy layer cannot be set and trained: it is {problems[0]}"
            )
    return MappingProxyType(dict(named))


_OF_STEPS = ("gradient", "proximal", "free")
_MOST_STEPS = 10_000  # with so many, a question takes seconds; with more, each property would reach its time limit
_FLAGS = ("batch_invariant", "coupled", "causal", "conservative", "permutable", "leak")


def _check(layer: EnergyLayer) -> None:
    step, stated = layer.step, layer.stated
    allowed: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        ("energy_per", stated.per, ("token", "sequence", "batch")),
        *(("each name in mean_over", name, get_args(MeanOver)) for name in stated.mean_over),
        ("step", step.kind, get_args(StepKind)),
        ("step_of", stated.step_of, get_args(StepOf)),
        ("returns", step.returns, ("difference", "next state")),
        ("working_dtype", layer.working_dtype, ("float64", "float32")),
        ("arrays", layer.arrays, tuple(ARRAY_KINDS)),
        *((name, getattr(layer, name), (True, False)) for name in _FLAGS),
        ("monotone", step.monotone, (True, False)),
        ("masked", layer.masked, (True, False, "left")),
    )
    for name, value, values in allowed:
        if type(value) not in map(type, values) or value not in values:  # 1 is True
            named = " or ".join(repr(one) for one in values if one is not None)
            raise ValueError(f"{name} of an energy layer must be {named}, not {value!r}")
    ARRAY_KINDS[layer.arrays].require()
    tokens = any(TOKENS in shape for shape in layer.state.values())
    given = {  # what excludes a proximal map
        "step size that depends on the state": step.varying is not None,
        "noise": step.noise > 0,
        "smoothness": step.smoothness is not None,
        "state map": layer.state_map is not None,
        "Lagrangian": layer.lagrangian is not None,
        "unknown preconditioner": step.unknown_preconditioner,
    }
    apart = [words for words, there in given.items() if there]
    problems = (
        (type(layer.shortest) is not int or not 1 <= layer.shortest < _LONGEST,
         f"shortest must be at least 1 and below 2^31, not {layer.shortest!r}"),
        (stated.per == "token" and "tokens" in stated.mean_over, "an energy per token cannot be a mean over tokens"),
        (stated.per != "batch" and "batch" in stated.mean_over, "only a scalar energy can be a mean over the batch"),
        (stated.per == "token" and layer.energy is not None and not tokens,
         f"an energy per token needs a state with a token axis {TOKENS!r}; use energy_per='sequence'"),
        (isinstance(step.preconditioner, str) and step.preconditioner != SOME_POSITIVE_DEFINITE,
         f"the only preconditioner in words is {SOME_POSITIVE_DEFINITE!r}, not {step.preconditioner!r}"),
        (step.unknown_preconditioner and (len(step.sizes) > 1 or len(layer.state) > 1),
         "an unknown preconditioner needs a single step and a single array of states"),
        (step.unknown_preconditioner and layer.energy is None, "an unknown preconditioner needs an energy"),
        (step.kind == "equilibrium" and (step.tolerance is None or not 0 < step.tolerance < math.inf),
         "step='equilibrium' needs a positive tolerance, that of its solver"),
        (step.kind in ("equilibrium", "cccp", *ONE_AFTER_ANOTHER) and layer.energy is None,
         f"step={step.kind!r} needs an energy"),
        (step.tolerance is not None and not 0 < step.tolerance < math.inf, "a tolerance must be a positive number"),
        (step.tolerance is not None and step.kind not in ("gradient", "equilibrium"),
         "a tolerance belongs to step='equilibrium', or to step='gradient' where a solver stops early"),
        (step.kind == "proximal" and not (callable(step.proximal) and callable(step.penalty)),
         "step='proximal' needs proximal=, a function of a state and the step size, and penalty=, one of a state"),
        ((step.proximal is not None or step.penalty is not None) and step.kind != "proximal",
         "proximal and penalty belong to step='proximal'"),
        (step.kind == "proximal" and layer.energy is None, "step='proximal' needs an energy"),
        (step.kind == "proximal" and bool(apart),
         f"step='proximal' cannot be combined with {' or '.join(apart)}"),
        (step.varying is not None and (step.unknown_preconditioner or step.kind not in ("gradient", "free")),
         "a step size that depends on the state needs step='gradient', and a preconditioner that is given"),
        (step.varying is not None and not _takes(step.varying, 2 if layer.memories else 1),
         f"the function of the step size takes the state{' and the memory' if layer.memories else ' alone'}"),
        (step.monotone and layer.energy is None, "monotone needs an energy"),
        (step.smoothness is not None and not 0 < step.smoothness < math.inf, "smoothness must be a positive number"),
        (not 0 <= step.noise < math.inf, "noise is sigma and must be at least 0"),
        (step.noise > 0 and len(step.sizes) > 1, "noise needs a single step"),
        (not all(0 <= mu < 1 for mu in step.momentum),
         f"momentum must be at least 0 and below 1, not {', '.join(f'{mu:g}' for mu in step.momentum)}"),
        (any(step.momentum) and len(step.sizes) == 1, "momentum needs several steps: the first has none before it"),
        (any(step.momentum) and step.kind not in ("gradient", "proximal"),
         f"momentum belongs to step='gradient' and step='proximal', not {step.kind!r}"),
        (step.own_energies and (step.monotone or step.smoothness is not None or step.kind not in _OF_STEPS),
         f"energy(g, memory, t), one for each step, needs step={' or '.join(_OF_STEPS)}, no monotone, no smoothness"),
        (bool(layer.reads_memory) and not layer.memories,
         f"the {' and the '.join(layer.reads_memory)} cannot take a memory, as the layer has none"),
        (stated.step_of == "mean" and not stated.mean_over, "step_of='mean' needs mean_over=, which says over what"),
        (step.kind in ONE_AFTER_ANOTHER and (layer.reads_itself or layer.state_map is not None
                                             or layer.lagrangian is not None or step.noise > 0),
         f"step={step.kind!r} cannot be combined with PRESENT_STATE, a state map, a Lagrangian or noise"),
        (step.kind == "block" and len(layer.state) < 2, "step='block' needs several arrays of states"),
        (step.kind == "coordinate" and (len(layer.state) > 1 or {*layer.domains.values()} & {"simplex", "sphere"}),
         "step='coordinate' needs a single array of states, whose numbers can change one by one"),
        (bool(step.order) and not _orders_all(layer),
         "order must name every block, or every place of a last axis of known size, exactly once"),
        (layer.domain is not None and (layer.state_map is not None or layer.lagrangian is not None
                                       or step.kind == "proximal"),
         "a domain cannot be combined with a state map, Lagrangian or proximal map, which say where states lie"),
        (layer.leak and layer.lagrangian is None
         and (layer.state_map is None or step.monotone or step.smoothness is not None),
         "leak=True needs the Lagrangian whose x.g - L(x) it adds, or a state map if no whole step is claimed"),
        (bool(layer.parameters) and layer.arrays != "torch", "parameters must be torch tensors"),
        (layer.masked and not tokens, f"a mask needs a state with a token axis {TOKENS!r}"),
        (not all(f is None or callable(f) for f in (layer.state_map, layer.lagrangian)),
         "a state map and a Lagrangian must be functions"),
    )  # fmt: skip
    for wrong, sentence in problems:
        if wrong:
            raise ValueError(f"this declaration of an energy layer is contradictory: {sentence}")
