"""Products of vectors with the Jacobians of an update, of its reference, and of the steps that it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.boxes import (
    Box,
    preconditioned_at,
    proximal_at,
    state_map_at,
    varying_size,
)
from cemverify.conformance.asking.domains import along
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.asking.parameters import set_to
from cemverify.conformance.asking.views import incoming
from cemverify.conformance.implementations.arrays import JAX
from cemverify.conformance.implementations.faults import Fault, NotFinite
from cemverify.conformance.implementations.named import like_the_state, packed, unpacked
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.properties.layers.oracle import aside, terms
from cemverify.conformance.questions.black_boxes import Named, Question

ROUNDINGS = 64
_MOST_COMPILED = 16  # compiled functions of JAX layers
Leaves = dict[str, Tensor]


class _NoGradient(Fault):
    """No gradient flows through the energy."""


def products_are_equal(
    box: Box,
    q: Question,
    claim: str,
    got: Named,
    expected: Named,
    *more: Tensor,
    far: float = 1.0,
    slack: float = 0.0,
    cancelled: Callable[[], Named] | None = None,
) -> Evidence:
    """Evidence from products by name, each off by no more than roundoff of the numbers from which it was computed.

    Args:
        claim: with {name} in it. more: such numbers besides the question's. far: a factor on their size.
        slack: how far off each product may be besides, as a share of its size.
        cancelled: returns the products with other signs of their terms: what cancels is rounded at its own size.
    """
    comparisons, telling = [], False
    found_from = (*q.x.values(), *q.memory.values(), *more)
    largest = max(float(array.abs().max()) for array in found_from if array.numel())
    for name, array in got.items():
        size = far * (1 + float(expected[name].abs().max()) + largest)
        tolerance = torch.tensor(ROUNDINGS * terms(q) * box.eps * size**2 + slack * size)
        if cancelled is not None and bool(((array - expected[name]).abs() > tolerance).any()):
            tolerance += ROUNDINGS * terms(q) * box.eps * cancelled()[name].abs().max()
        about = Compared.PRODUCT(claim.format(name=name), name)
        comparisons.append(Comparison(about, array, expected[name], tolerance))
        telling = telling or moved(expected[name], tolerance)
    return Evidence.of(*comparisons, telling=telling)


def cotangents(q: Question, loud: float = 1.0) -> list[Tensor]:
    """Random vectors to pull back, one for each array of the state, repeated if incoming gradients are."""
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    drawn = (loud * torch.randn(a.shape, generator=generator, dtype=torch.float64) for a in q.x.values())
    return [incoming(q.seed)[1](array).contiguous() for array in drawn]


def pulled_back(answers: Sequence[Any], leaves: Mapping[str, Any], cotangent: Sequence[Tensor], lay: Any) -> Leaves:
    """Products of the cotangent, in a layout of incoming gradients, with the Jacobian of answers, by name."""
    pulled: Any = [None] * len(leaves)
    live = [(a, lay(c.to(a))) for a, c in zip(answers, cotangent, strict=True) if a.requires_grad]
    if live:
        outputs, seeds = zip(*live, strict=True)
        pulled = torch.autograd.grad(outputs, list(leaves.values()), seeds, allow_unused=True)
    return {
        name: torch.zeros(leaf.shape, dtype=torch.float64) if p is None else as_tensor(p, leaf.shape)
        for (name, leaf), p in zip(leaves.items(), pulled, strict=True)
    }


def _leaves(box: Box, q: Question, of_parameters: bool) -> dict[str, torch.Size]:
    """The shapes of the arrays with respect to which the update is differentiated, by name."""
    return shapes(box.layer.parameters) if of_parameters else shapes({**q.x, **_numbers(box, q.memory)})


def _numbers(box: Box, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a memory that have derivatives: those that hold no integers."""
    return {name: array for name, array in memory.items() if name not in box.layer.whole}


@experiment(
    lambda parameters: [_leaves(parameters.box, parameters.q, parameters.of_parameters)] * 2,
    finite=False,  # if the second is not, the example is discarded
    calls=2,
)
def both_products(
    box: Box, q: Question, cotangent: list[Tensor], *, of_parameters: bool
) -> tuple[Leaves, Leaves] | None:
    """Products by name of the update, and of -eta P dE/dg; None if those of the energy are not finite, or jump."""
    with recorded(box, of_parameters) as parameters, suppress(_NoGradient):
        expected = _products(box, q, parameters, cotangent, _descended)
        if all(bool(product.isfinite().all()) for product in expected.values()):
            got = _products(box, q, parameters, cotangent, _update_along)
            return None if _at_a_kink(box, q, parameters, cotangent, got, expected) else (got, expected)
    return None


def _at_a_kink(
    box: Box, q: Question, parameters: Leaves, cotangent: list[Tensor], got: Leaves, expected: Leaves
) -> bool:
    """Whether products of -eta P dE/dg jump at this question, and those of the update do not.

    For |z| + log(1 + exp(-2 |z|)), which is log(2 cosh z), autograd's second derivative vanishes only at z = 0.
    """
    off, distance = apart(got, expected), box.eps**0.5
    if off < distance * (1 + max(float(a.abs().max()) for a in expected.values())):
        return False
    beside = box.rounded(aside(box, q, torch.Generator().manual_seed(q.seed % 2**31), distance))
    jump = apart(expected, _products(box, beside, parameters, cotangent, _descended))
    return jump > off / 2 and apart(got, _products(box, beside, parameters, cotangent, _update_along)) < jump / 2


def apart(some: Leaves, others: Leaves) -> float:
    """The largest distance between them."""
    return max(float((a - others[name]).abs().max()) for name, a in some.items())


@experiment(lambda parameters: _leaves(parameters.box, parameters.q, parameters.of_parameters))
def gradients_of_update(box: Box, q: Question, cotangent: list[Tensor], *, of_parameters: bool) -> Leaves:
    """Products of the cotangent with the update's Jacobian, by name: in the parameters, or in state and memory."""
    with recorded(box, of_parameters) as parameters:
        return _products(box, q, parameters, cotangent, displacements)


@experiment(lambda parameters: _leaves(parameters.box, parameters.q, of_parameters=False))
def gradients_of_reference(box: Box, q: Question, cotangent: list[Tensor]) -> Leaves:
    """Products of the cotangent with the reference's Jacobian in state and memory, by name."""
    return gradients_of_update(box.referring(), q, cotangent, of_parameters=False)


@experiment(lambda arguments: _leaves(arguments.box, arguments.q, of_parameters=False))
def gradients_of_way(
    box: Box, q: Question, cotangent: list[Tensor], way: str, begins: bool, where: Tensor | None = None
) -> Leaves:
    """Products of the cotangent with the Jacobian of a function of rows of tokens, in state and memory, by name.

    Args:
        way: its name. begins: whether it gets the state, or None. where: the places of several rows.
    """
    with recorded(box, of_parameters=False) as parameters:
        return _products(box, q, parameters, cotangent, _Way(way, begins), where)


@dataclass(frozen=True)
class _Way:
    """A function of rows of tokens, in a form for taking products."""

    name: str
    begins: bool

    def __call__(self, box: Box, x: Leaves, memory: Leaves, where: Any) -> list[Any]:
        state, further = packed(x, "State") if self.begins else None, () if where is None else (where,)
        return unpacked(box.layer.ways[self.name](state, packed(memory, "Memory"), *further), x)


@contextmanager
def recorded(box: Box, of_parameters: bool) -> Iterator[Leaves]:
    """A context in which all parameters record gradients, or none does; yields those that do."""
    parameters = dict(box.layer.parameters)
    before = {name: p.requires_grad for name, p in parameters.items()}
    try:
        for p in parameters.values():
            p.requires_grad_(of_parameters)
        yield parameters if of_parameters else {}
    finally:
        for name, p in parameters.items():
            p.requires_grad_(before[name])


def _products(
    box: Box, q: Question, parameters: Leaves, cotangent: list[Tensor], function: Any, where: Tensor | None = None
) -> Leaves:
    if box.caller.kind is JAX:
        products = _products_by_jax(box, q, cotangent, function, where)
        return products if function is _descended else finite(products)
    with torch.enable_grad(), box.caller.guarded():
        x = {name: box.caller.array(a) for name, a in q.x.items()}
        memory = {name: box.array_of(name, a) for name, a in q.memory.items()}
        arrays = {**x, **_numbers(box, memory)}
        for array in arrays.values():
            array.requires_grad_()
        leaves = {**parameters} if parameters else arrays
        lay = incoming(q.seed if function in (displacements, _update_along) else 0)[1]  # zeros of padding stay
        further = box.own(q)[2] if where is None else box.array(where)
        products = pulled_back(function(box, x, memory, further), leaves, cotangent, lay)
    return products if function is _descended else finite(products)


def _products_by_jax(box: Box, q: Question, cotangent: list[Tensor], function: Any, where: Tensor | None) -> Leaves:
    own = box.compiled
    x, memory = ({name: own.array_of(name, a) for name, a in part.items()} for part in (q.x, q.memory))
    further = own.own(q)[2] if where is None else own.array(where)
    with box.caller.guarded():
        pulled = _jax_product(box, function)(x, memory, further, [own.array(c) for c in cotangent])
        return {name: as_tensor(a, q_a.shape) for part, like in zip(pulled, (q.x, q.memory), strict=True)
                for (name, q_a), a in zip(like.items(), (part[k] for k in like), strict=True)}  # fmt: skip


_PRODUCTS: dict[tuple[int, Any], tuple[Box, Any]] = {}  # holds the box, so that no other gets its id


def _jax_product(box: Box, function: Any) -> Any:
    """The product of a vector with the Jacobian of a function of state and memory, compiled once for each shape."""
    key = (id(box.layer), function)
    if key not in _PRODUCTS:
        if len(_PRODUCTS) >= _MOST_COMPILED:
            _PRODUCTS.clear()
        of_state, of_memory = box.layer.state, box.layer.memories

        def product(x: Any, memory: Any, noise: Any, cotangent: Any) -> Any:
            inputs = {"x": x, "memory": memory}  # JAX sorts the names
            _, pulled = JAX.pulled(
                lambda of: function(
                    box,
                    {name: of["x"][name] for name in of_state},
                    {name: of["memory"][name] for name in of_memory},
                    noise,
                ),
                inputs,
                cotangent,
                lambda: None,
            )
            return pulled["x"], pulled["memory"]

        compiled = JAX.compiled_quickly if function is _descended else JAX.compiled
        if isinstance(function, _Way):  # it may read the places of rows as numbers
            _PRODUCTS[key] = (box, lambda *arguments: JAX.called(product, arguments))
        else:
            _PRODUCTS[key] = (box, compiled(product))
    return _PRODUCTS[key][1]


def finite(products: Leaves) -> Leaves:
    """The products, if all of them are numbers.

    Raises:
        NotFinite: one is not; the message names the arrays.
    """
    undefined = [name for name, a in products.items() if not bool(a.isfinite().all())]
    if undefined:
        raise NotFinite(f"a gradient of the update is NaN or infinite: that of {', '.join(undefined)}")
    return products


def displacements(box: Box, x: Leaves, memory: Leaves, noise: Any) -> list[Any]:
    """What the layer returns, as displacements."""
    returned = box.update_on(packed(x, "State"), packed(memory, "Memory") if memory else None, noise)
    answers = unpacked(returned, x)
    if box.layer.step.returns == "next state":
        answers = [a - b for a, b in zip(answers, x.values(), strict=True)]
    return answers


def _update_along(box: Box, x: Leaves, memory: Leaves, noise: Any) -> list[Any]:
    """The part of these that is along the domain."""
    return _along(box, x, displacements(box, x, memory, noise))


def _along(box: Box, x: Leaves, ways: list[Any]) -> list[Any]:
    if box.layer.domain is None:
        return ways
    if not callable(box.layer.domain):
        domains, each = box.layer.domains, zip(x.items(), ways, strict=True)
        return [along(domains.get(name), box.caller.kind, array, way) for (name, array), way in each]
    v = packed(dict(zip(x, ways, strict=True)), "State")
    return unpacked(along(box.layer.domain, box.caller.kind, packed(x, "State"), v), x)


def _descended(box: Box, x: Leaves, memory: Leaves, noise: Any) -> list[Any]:  # noqa: ARG001
    """-eta P dE/dg with the graph kept, T times."""
    layer = box.layer
    now, before, own = dict(x), dict(x), packed(memory, "Memory") if memory else None
    sizes: Sequence[Any] = layer.step.sizes if layer.step.learned is None else layer.step.learned()
    for t, (size_of_step, mu) in enumerate(zip(sizes, layer.step.momentum, strict=True)):
        energy = box.at_step(t).energy_function
        start = {name: a + mu * (a - before[name]) for name, a in now.items()}
        before, now = now, start if layer.step.looks_ahead else now  # where the gradient is taken
        if layer.state_map is not None:
            g = dict(zip(now, unpacked(state_map_at(layer, packed(now, "State"), own), now), strict=True))
        elif layer.lagrangian is not None:
            g = _derivative(box, layer.lagrangian, now)
        else:
            g = now
        held = packed(g, "Memory") if layer.reads_itself else own
        factor = box.batch_factor(g)
        further = () if held is None else (held,)
        gradient = _derivative(box, lambda state, energy=energy, further=further: energy(state, *further), g)
        gradient = {name: factor * a + (now[name] if layer.leak else 0) for name, a in gradient.items()}
        gradient = dict(zip(now, _along(box, now, list(gradient.values())), strict=True))
        step = _preconditioned(box, gradient, now, own)
        eta = dict.fromkeys(now, size_of_step)
        if layer.step.varying is not None:
            size = varying_size(layer, packed(now, "State"), own)
            eta = {name: like_the_state(size, a) for name, a in now.items()}
        now = {name: a - eta[name] * step[name] for name, a in start.items()}
        if layer.step.proximal is not None:
            ended = proximal_at(layer, packed(now, "State"), size_of_step, own)
            now = dict(zip(now, unpacked(ended, now), strict=True))
    return _along(box, x, [a - b for a, b in zip(now.values(), x.values(), strict=True)])


def _derivative(box: Box, function: Any, at: Leaves) -> Leaves:
    """The derivative of the sum of a function's values, with the graph kept."""
    if box.caller.kind is JAX:
        return dict(zip(at, unpacked(JAX.gradient(function)(packed(at, "State")), at), strict=True))
    at = {name: a.clone() for name, a in at.items()}
    values = function(packed(at, "State"))
    if not values.requires_grad:
        raise _NoGradient
    gradients = torch.autograd.grad(values.sum(), list(at.values()), create_graph=True, allow_unused=True)
    return {name: torch.zeros_like(a) if p is None else p for (name, a), p in zip(at.items(), gradients, strict=True)}


def _preconditioned(box: Box, gradient: Leaves, x: Leaves, memory: Any) -> Leaves:
    P = box.layer.step.preconditioner
    if P is None:
        return gradient
    if callable(P):
        step = preconditioned_at(box.layer, packed(gradient, "State"), packed(x, "State"), memory)
        return dict(zip(gradient, unpacked(step, gradient), strict=True))
    matrix = P if box.caller.kind is JAX else torch.as_tensor(P, dtype=next(iter(gradient.values())).dtype)
    return {k: a * matrix if matrix.ndim < 2 else a @ matrix.T for k, a in gradient.items()}


# --- with other values of parameters ---------------------------------------------------------------------


@experiment(lambda arguments: [shapes(arguments.q.x)] * 2, calls=2)
def update_and_descent(box: Box, q: Question, values: Named) -> tuple[Leaves, Leaves]:
    """The displacement with these values of parameters, after a call with the usual ones, and -eta P dE/dg."""

    def made(function: Any) -> Leaves:
        x, memory = ({name: box.array_of(name, a) for name, a in part.items()} for part in (q.x, q.memory))
        answers = function(box, x, memory, box.own(q)[2])
        return {name: as_tensor(a, like.shape) for a, (name, like) in zip(answers, q.x.items(), strict=True)}

    with recorded(box, False), box.caller.guarded():
        with torch.no_grad():
            made(displacements)
        with set_to(box, values, counted=bool(q.seed % 2)):
            with torch.no_grad():
                got = made(_update_along)
            with torch.enable_grad():
                return got, {name: a.detach() for name, a in made(_with_gradients).items()}


def _with_gradients(box: Box, x: Leaves, memory: Leaves, noise: Any) -> list[Any]:
    return [a.detach() for a in _descended(box, {name: a.requires_grad_() for name, a in x.items()}, memory, noise)]
