"""Asking an energy layer: named arrays in, named float64 arrays out, and the derivatives of its energy.

torch or JAX takes the gradient of the stated energy if the energy permits; otherwise differences are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, plain
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.domains import APART, INSIDE, along, near_ends, within, within_a_function
from cemverify.conformance.asking.experiments import Rows, experiment, shapes
from cemverify.conformance.asking.extrapolation import jacobian
from cemverify.conformance.implementations.arrays import ARRAY_KINDS, JAX
from cemverify.conformance.implementations.energy_layers import TOKENS, Domain, EnergyLayer, Shape
from cemverify.conformance.implementations.faults import Discard, WrongShape
from cemverify.conformance.implementations.named import like_the_state, packed, unpacked
from cemverify.conformance.questions.black_boxes import Form, Named, Question

Arrays = dict[str, Tensor]
SCALARS = ("energy", "Lagrangian")  # functions that return no array of the state's shape
FORBIDDEN = 1e300  # stands in for an infinite penalty
_SHAPES = 2  # number of shapes of questions, where every shape is compiled
_MOST_MOVED = 2**9  # how many numbers of a state are moved one by one, where an axis is long
_NEAR = 4  # how many roundings a state may be off its domain
_PADDED = (128, 512)  # rows of a call, where every shape is compiled: spare rows cost less than another shape


@dataclass(frozen=True)
class Box:
    """One energy layer, as its properties ask it."""

    caller: Caller  # makes the calls; its dtype is the layer's working dtype, where that is narrower
    for_calls: bool = False  # whether arrays are made as arguments for functions that `ArrayKind.called` calls
    t: int = 0  # the step whose energy is asked for, if each step has its own

    @classmethod
    def of(cls, caller: Caller) -> Box:
        """The layer of a caller, called in its working dtype."""
        layer = caller.subject
        assert isinstance(layer, EnergyLayer)
        narrow = layer.working_dtype == "float32" and caller.dtype == torch.float64
        return cls(caller.at(torch.float32) if narrow else caller)

    @property
    def layer(self) -> EnergyLayer:
        """The layer and its declaration."""
        assert isinstance(self.caller.subject, EnergyLayer)
        return self.caller.subject

    @property
    def compiled(self) -> Box:
        """This box, making arguments for compiled functions."""
        return replace(self, for_calls=True)

    def at_step(self, t: int) -> Box:
        """This box, asking for the energy of that step."""
        return replace(self, t=t)

    @property
    def form(self) -> Form:
        """The form of the questions that it takes."""
        return form_of(self.layer)

    @property
    def eps(self) -> float:
        """The spacing of numbers above 1 in its dtype."""
        return torch.finfo(self.caller.dtype).eps

    def at(self, dtype: torch.dtype) -> Box:
        """This box, calling in another dtype."""
        return replace(self, caller=self.caller.at(dtype))

    def rounded(self, q: Question) -> Question:
        """The question in numbers of its dtype, inside the declared domain."""
        q = q.each(self._narrowed)
        if not self.is_bounded:
            return q
        x, memory = self._within(q.x, INSIDE), self._memory_within(q.memory, INSIDE)
        return replace(q, x=x, memory=memory).each(self._narrowed)

    def _narrowed(self, array: Tensor) -> Tensor:
        """The float64 array, rounded to numbers of its dtype."""
        return array.to(self.caller.dtype).to(torch.float64)

    @property
    def is_bounded(self) -> bool:
        """Whether any array has a domain."""
        return self.layer.domain is not None or bool(self.layer.ranges)

    def sampled(self, q: Question) -> Question:
        """The question with arrays that the layer's samplers draw, of the same shapes, by its seed."""
        draw = self.layer.draw
        if not draw:
            return q
        some = ({name: array for name, array in part.items() if name in draw} for part in (q.x, q.memory))
        x, memory = (self._drawn(part, q.seed) for part in some)
        return replace(q, x={**q.x, **x}, memory={**q.memory, **memory})

    def near_ends(self, q: Question) -> Question:
        """The question with some numbers almost at the ends of intervals, for every other seed.

        Arrays from a sampler stay as they are, and so do all numbers where a NumPy loop is differenced.
        """
        if q.seed % 2 or self.layer.arrays == "numpy" or not self.is_bounded:
            return q
        generator = torch.Generator().manual_seed(q.seed % 2**31)
        domains = {**self.layer.domains, **self.layer.ranges, **dict.fromkeys(self.layer.draw)}

        def moved(part: Named) -> Arrays:
            return {name: near_ends(domains.get(name), array, generator) for name, array in part.items()}

        return replace(q, x=moved(q.x), memory=moved(q.memory)).each(self._narrowed)

    def asked(self, q: Question) -> Question:
        """The question as the layer gets it: with its samplers' arrays, in its dtype and its domain."""
        return self.rounded(self.sampled(q))

    def anew(self, q: Question) -> Question:
        """The question with the samplers' arrays drawn again: merely changed numbers might never be drawn."""
        return replace(self.sampled(replace(q, seed=q.seed + 1)), seed=q.seed)

    @experiment(lambda arguments: shapes(arguments.like), of="sampler")
    def _drawn(self, like: Named, seed: int) -> Arrays:
        generator = torch.Generator().manual_seed(seed % 2**31)
        with self.caller.guarded():
            return {
                name: as_tensor(self.layer.draw[name](generator, tuple(array.shape)), array.shape)
                for name, array in like.items()
            }

    # --- the domain ----------------------------------------------------------------------------------

    def nearest(self, x: Named) -> Arrays:
        """The allowed state nearest to x, or exactly x if it differs from that by roundoff only."""
        return self._within(x, 1.0)

    def reached(self, x: Named, memory: Named) -> Arrays:
        """The energy's argument at a state that the layer returned, which may lie at the boundary of its domain."""
        return self.mapped(x, memory) if self.layer.domain is None else self.nearest(x)

    def along(self, x: Named, v: Named) -> Arrays:
        """The part of v that leads along the domain at a state x: arrays of the state's shapes."""
        if self.layer.domain is None:
            return dict(v)
        x = self.nearest(x)
        if callable(self.layer.domain):
            return self._along_a_function(None, x, v)
        return self._each_along(self.layer.domains, x, v)

    def along_all(self, q: Question, v: Named) -> Arrays:
        """The parts of directions that lead along the domains of some arrays of state and memory, by name."""
        of_state = self.along(q.x, {name: v.get(name, torch.zeros_like(a)) for name, a in q.x.items()})
        ranges = {name: domain for name, domain in self.layer.ranges.items() if name in v}
        return {**self._each_along(ranges, q.memory, v), **{name: a for name, a in of_state.items() if name in v}}

    def _each_along(self, domains: Mapping[str, Domain], at: Named, v: Named) -> Arrays:
        ways = dict(v)
        for name, domain in domains.items():
            if callable(domain):
                ways |= self._along_a_function(name, {name: at[name]}, {name: v[name]})
            else:
                ways[name] = along(domain, self.caller.kind, at[name], v[name])
        return ways

    def _within(self, x: Named, share: float) -> Arrays:
        """The nearest state of the domain, shrunk to that share."""
        if callable(self.layer.domain):
            return self._or_as_they_are(x, self._within_a_function(None, x, share), share)
        return self._each_within(self.layer.domains, x, share)

    def _memory_within(self, memory: Named, share: float) -> Arrays:
        """The nearest memory of its domains, shrunk to that share."""
        return self._each_within(self.layer.ranges, memory, share)

    def allowed(self, parameters: Named) -> Arrays:
        """The allowed values nearest to these parameters."""
        ranges = self.layer.ranges
        return {name: within(ranges[name], a, APART) if name in ranges else a for name, a in parameters.items()}

    def _each_within(self, domains: Mapping[str, Domain], arrays: Named, share: float) -> Arrays:
        allowed = dict(arrays)
        for name, domain in domains.items():
            if name not in arrays:
                continue
            own = {name: arrays[name]}
            if callable(domain):
                nearest = self._within_a_function(name, own, share)
            else:
                nearest = {name: within(domain, arrays[name], share)}
            allowed |= self._or_as_they_are(own, nearest, share)
        return allowed

    def _or_as_they_are(self, arrays: Named, nearest: Named, share: float) -> Arrays:
        """The nearest arrays, but rows that differ from them by roundoff only are kept."""
        roundings = 1 if share == INSIDE else _NEAR  # in low precision, more lead out of a narrow domain
        near = ((flat(nearest) - flat(arrays)).abs() <= roundings * self.eps * (1 + flat(arrays).abs())).all(1)
        return {name: torch.where(like_the_state(near, a), arrays[name], a) for name, a in nearest.items()}

    @experiment(lambda arguments: shapes(arguments.arrays), calls=2, of="domain")
    def _within_a_function(self, name: str | None, arrays: Named, share: float) -> Arrays:
        """By the function of one array's domain, or, without a name, of the whole state's."""

        def project(at: Tensor) -> Tensor:  # (B, n)
            own = self.pack(shaped(at, arrays), "State")
            return flat(self.read(self._domain(name)(own), shaped(at, arrays)))

        with self.caller.guarded():
            return shaped(within_a_function(project, flat(arrays), share, self.eps), arrays)

    @experiment(lambda arguments: shapes(arguments.x), of="domain")
    def _along_a_function(self, name: str | None, x: Named, v: Named) -> Arrays:
        own, ways = self.pack(x, "State"), self.pack(v, "State")
        with self.caller.guarded():
            return self.read(along(self._domain(name), self.caller.kind, own, ways), x)

    def _domain(self, name: str | None) -> Any:
        return self.layer.domain if name is None else {**self.layer.domains, **self.layer.ranges}[name]

    # --- calls ---------------------------------------------------------------------------------------

    def displacement(self, q: Question, mask: Tensor | None = None, *, inside: bool = False) -> Arrays:
        """x' - x, what one call adds to the state: float64 arrays of the state's shapes."""
        return self.difference(self.answer(q, mask, inside=inside), q.x)

    @experiment(lambda arguments: shapes(arguments.q.x), of="reference")
    def of_reference(self, q: Question, mask: Tensor | None, inside: bool = False) -> Arrays:
        """x' - x as the stated reference computes it."""
        return self.referring().displacement(q, mask, inside=inside)

    @experiment(lambda arguments: shapes(arguments.q.x), of="reference")
    def of_loop(self, q: Question, other: str, inside: bool = False) -> Arrays:
        """The answer of a loop that differs from the declared one in one thing; of the latter for an empty name."""
        loop = self.layer.others[other] if other else self.referring().layer.update
        return replace(self, caller=replace(self.caller, subject=replace(self.layer, update=loop))).answer(
            q, inside=inside
        )

    def referring(self) -> Box:
        """The box of the reference, in the process that holds it."""
        assert self.layer.reference is not None
        return replace(self, caller=replace(self.caller, subject=self.layer.reference))

    def answer(self, q: Question, mask: Tensor | None = None, *, padded: bool = True, inside: bool = False) -> Arrays:
        """What the update returns: a difference or the next state.

        JAX compiles it once per shape; otherwise it would compile each operation. To keep shapes few, rows are added,
        and dropped from the answer.

        Args:
            padded: whether rows may be added. inside: as for `own`.
        """
        if not self.caller.kind.compiles:
            return self._answered(q, mask, inside)
        rows = self._padded(q.batch) if padded and self.share(2) == 1 else list(range(q.batch))
        answer = self._answered(q.rows(rows), None if mask is None else mask[rows], inside)
        return {name: array[: q.batch] for name, array in answer.items()}

    def answer_of_rows(self, q: Question) -> Arrays:
        """What the update would return for each row alone, when a mean over the batch is all its own."""
        answer, share = self.answer(q), self.share(q.batch)
        start = (
            q.x if self.layer.step.returns == "next state" else {name: torch.zeros_like(a) for name, a in q.x.items()}
        )
        return answer if share == 1 else {k: start[k] + (a - start[k]) / share for k, a in answer.items()}

    def difference(self, answer: Named, x: Named) -> Arrays:
        """The displacement that an answer stands for."""
        if self.layer.step.returns == "difference":
            return dict(answer)
        return {name: array - x[name] for name, array in answer.items()}

    def update_on(self, state: Any, memory: Any, noise: Any = None, mask: Any = None) -> Any:
        """The update function on arrays of its own kind; the result is not read."""
        arguments, named = _arguments(state, memory, noise, mask)
        return self.layer.update(*arguments, **named)

    @experiment(lambda arguments: shapes(arguments.q.x))
    def _answered(self, q: Question, mask: Tensor | None, inside: bool) -> Arrays:
        arguments, named = _arguments(*self.compiled.own(q, mask, inside=inside))
        with self.caller.guarded():
            return self.read(self.caller.kind.called(self.layer.update, arguments, named), q.x)

    def own(self, q: Question, mask: Tensor | None = None, *, inside: bool = False) -> tuple[Any, Any, Any, Any]:
        """State, memory, noise and mask in the layer's own kind of array; None for those that it does not take.

        Args:
            inside: whether the arrays are known to lie in their domains; necessary for stacked questions.
        """
        noise = self.pack(q.noise, "Noise") if q.noise else None
        if self.layer.step.noise and noise is None:
            noise = self.pack({name: torch.zeros_like(array) for name, array in q.x.items()}, "Noise")
        x, memory = (q.x, q.memory) if inside else (self._within(q.x, APART), self._memory_within(q.memory, APART))
        return (
            self.pack(x, "State"),
            self.pack(memory, "Memory") if memory else None,
            noise,
            None if mask is None else self.array(mask),
        )

    def pack(self, named: Named, kind: str) -> Any:
        """One array as itself, several as a named tuple."""
        return packed({name: self.array_of(name, array) for name, array in named.items()}, kind)

    def array_of(self, name: str, tensor: Tensor) -> Any:
        """A fresh array for the one of that name: of integers, if the layer declares so."""
        return self.array(tensor.round().long() if name in self.layer.whole else tensor)

    def array(self, tensor: Tensor) -> Any:
        """A fresh array of the layer's own kind."""
        if not self.for_calls:
            return self.caller.array(tensor)
        own = tensor.to(self.caller.dtype) if tensor.is_floating_point() else tensor
        return self.caller.kind.argument(own, self.caller.device)

    def read(self, returned: Any, like: Named) -> Arrays:
        """Arrays of these shapes as named float64 tensors."""
        return {
            name: as_tensor(array, like[name].shape)
            for name, array in zip(like, unpacked(returned, like), strict=True)
        }

    @experiment(lambda arguments: shapes({**arguments.q.x, **arguments.q.memory}), finite=False)
    def left_behind(self, q: Question) -> Arrays:
        """State and memory as an update leaves them, by name: changed where it edits an argument in place."""
        state, memory, noise, _ = self.own(q, inside=True)  # moving into the domain is no edit
        with self.caller.guarded():
            self.update_on(state, memory, noise)
            return self.read(state, q.x) | (self.read(memory, q.memory) if q.memory else {})

    # --- every function of the declaration -------------------------------------------------------------

    def functions(self, q: Question) -> dict[str, Question]:
        """The question that each declared function gets when the layer is asked q, by the function's name.

        The energy is asked at g = G(x). A function for P gets the state's numbers as the gradient.
        """
        layer, of_state = self.layer, replace(q, memory={}, noise={})
        questions = {"update": q}
        if layer.energy is not None:
            questions["energy"] = replace(q, x=self.mapped(q.x, q.memory), noise={})
        further = {
            "state map": layer.state_map,
            "Lagrangian": layer.lagrangian,
            "preconditioner": layer.step.preconditioner,
            "proximal map": layer.step.proximal,
        }
        asked = {name: replace(q, noise={}) if name in layer.reads_memory else of_state for name in further}
        return questions | {name: asked[name] for name, function in further.items() if callable(function)}

    def called_on(self, name: str, state: Any, memory: Any = None, noise: Any = None, mask: Any = None) -> Any:
        """A function of that name on arrays of its own kind; the result is not read."""
        layer = self.layer
        if name == "update":
            return self.update_on(state, memory, noise, mask)
        if name == "energy":
            second = state if layer.reads_itself else memory
            return self._energy(state, second, **({} if mask is None else {"mask": mask}))
        functions: dict[str, Any] = {
            "state map": lambda: state_map_at(layer, state, memory),
            "Lagrangian": lambda: layer.lagrangian(state),  # type: ignore[misc]
            "preconditioner": lambda: preconditioned_at(layer, state, state, memory),
            "proximal map": lambda: proximal_at(layer, state, layer.step.sizes[0], memory),
        }
        return functions[name]()

    def read_of(self, name: str, returned: Any, like: Named) -> Arrays:
        """What a function of that name returned: arrays shaped as those of the state, or the values of a scalar."""
        return {name: as_tensor(returned)} if name in SCALARS else self.read(returned, like)

    # --- the energy ------------------------------------------------------------------------------------

    def mapped(self, x: Named, memory: Named) -> Arrays:
        """The result of the state map: g = G(x). With a domain instead, the nearest state inside."""
        if self.layer.state_map is not None:
            return self._state_map(x, memory if "state map" in self.layer.reads_memory else {})
        if self.layer.lagrangian is not None:
            return self.lagrangians_gradient(x)
        return self._within(x, APART)

    @experiment(lambda arguments: shapes(arguments.x), of="state map")
    def _state_map(self, x: Named, memory: Named) -> Arrays:
        assert self.layer.state_map is not None
        arguments, _ = _arguments(self.compiled.pack(x, "State"), self.compiled._memory_of(memory), None, None)
        with self.caller.guarded():
            return self.read(self.caller.kind.called(self.layer.state_map, arguments), x)

    @experiment(lambda arguments: shapes(arguments.x), calls=2, of="Lagrangian")
    def lagrangians_gradient(self, x: Named) -> Arrays:
        """dL/dx, by autograd or by differences."""
        assert self.layer.lagrangian is not None
        return self._derivative(self.layer.lagrangian, x)

    def energies(self, g: Named, memory: Named, mask: Tensor | None = None, *, padded: bool = True) -> Tensor:
        """What the energy function returns at g: (B, J), (B,) or (), as declared; compiled as `answer` is.

        Args:
            padded: whether rows may be added.
        """
        B = next(iter(g.values())).shape[0]
        if not self.caller.kind.compiles:
            return self._energies(g, memory, mask)
        rows = self._padded(B) if padded and self.layer.stated.per != "batch" else list(range(B))
        wide, held = _rows_of(rows, g, memory)
        values = self._energies(wide, held, None if mask is None else mask[rows])
        return values if self.layer.stated.per == "batch" else values[:B]

    def energy_shape(self, g: Named) -> torch.Size:
        """The shape of what the energy returns, as declared."""
        if self.layer.stated.per == "token":
            return self._tokens_of(g)
        return torch.Size(() if self.layer.stated.per == "batch" else next(iter(g.values())).shape[:1])

    @experiment(lambda arguments: arguments.self.energy_shape(arguments.g), of="energy")
    def _energies(self, g: Named, memory: Named, mask: Tensor | None) -> Tensor:
        own = self.compiled
        own_mask = None if mask is None else own.array(mask)
        arguments, named = _arguments(own.pack(own.nearest(g), "State"), own._memory_for(g, memory), None, own_mask)
        with self.caller.guarded():
            values = as_tensor(self.caller.kind.called(self.energy_function, arguments, named))
        if values.shape != (expected := self.energy_shape(g)):
            per = self.layer.stated.per
            raise WrongShape(f"it has shape {tuple(values.shape)}, but one value per {per} is {tuple(expected)}")
        return values

    def row_energies(self, g: Named, memory: Named, mask: Tensor | None = None, copies: int = 1) -> Tensor:
        """The energy that is descended, for each batch row: (B,).

        Args:
            copies: how many copies of the batch follow one another.
        """
        B = next(iter(g.values())).shape[0]
        if self.layer.stated.per != "batch":
            return self.energies(g, memory, mask).reshape(B, -1).sum(1) * self._mean_factor(g)
        rows = []
        for i in range(B):
            row, of = _rows_of([i], g, memory)
            own_mask = None if mask is None else mask[i : i + 1]
            rows.append(self.energies(row, of, own_mask) * self._mean_factor(row))
        return torch.stack(rows) * self.share(B // copies)

    def whole_energies(self, x: Named, memory: Named) -> Tensor:
        """The whole energy of each row, as a function of the state x: (B,).

        E(G(x), m), plus x.g - L(x) where the neurons have their own term, plus the penalty of a proximal step.
        """
        g = self.reached(x, memory)
        total = self.row_energies(g, memory)
        if self.layer.leak:
            total = total + (flat(x) * flat(g)).sum(1) - self.lagrangians(x)
        if self.layer.step.kind == "proximal":
            total = total + self.penalties(x, memory)
        return total

    def lagrangians(self, x: Named) -> Tensor:
        """The stated Lagrangian L(x) of each row: (B,)."""
        values = self._lagrangians(x)
        return values.reshape(len(values), -1).sum(1)

    @experiment(lambda arguments: Rows(len(next(iter(arguments.x.values())))), of="Lagrangian")
    def _lagrangians(self, x: Named) -> Tensor:
        state = self.compiled.pack(x, "State")
        assert self.layer.lagrangian is not None
        with self.caller.guarded():
            return as_tensor(self.caller.kind.called(self.layer.lagrangian, (state,)))

    def gradient(self, g: Named, memory: Named, mask: Tensor | None = None) -> tuple[Arrays, str]:
        """dE/dg of the energy that is descended, memory fixed, and its origin: "autograd" or "differences".

        If a domain is declared, it is the gradient along it.
        """
        if "autograd" not in self.layer.not_offered:
            g = self.nearest(g)
            gradient = self._energys_gradient(g, memory, mask)
            if gradient is not None:
                return self.along(g, gradient), "autograd"
        return self.differences_of_energy(g, memory, mask)[0], "differences"

    @experiment(lambda arguments: shapes(arguments.g), calls=2, of="energy")
    def _energys_gradient(self, g: Named, memory: Named, mask: Tensor | None) -> Arrays | None:
        if self.caller.kind is JAX and mask is None:
            return self._gradient_by_jax(g, memory)
        second = self._memory_for(g, memory)
        own_mask = {} if mask is None else {"mask": self.caller.array(mask)}
        return self._autograd(lambda state: self._energy(state, second, **own_mask), g, self.batch_factor(g))

    def differences_of_energy(self, g: Named, memory: Named, mask: Tensor | None = None) -> tuple[Arrays, Tensor]:
        """dE/dg by differences of the stated energy, and a bound on the error: arrays, (B,)."""
        present = self.layer.reads_itself
        if tokens_move_at_once(self.layer):
            return self._differences_of_tokens(g, Fixed(g) if present else memory, mask)

        def total(states: Named, rows: int) -> Tensor:
            fixed = {k: a.repeat(rows, *[1] * (a.dim() - 1)) for k, a in (g if present else memory).items()}
            own_mask = None if mask is None else mask.repeat(rows, 1)
            return self.row_energies(states, Fixed(fixed) if present else fixed, own_mask, rows)

        return self.differences(total, g)

    def _differences_of_tokens(self, g: Named, memory: Named, mask: Tensor | None) -> tuple[Arrays, Tensor]:
        """The gradient of each token's energy in its own state, with all tokens moved at once: arrays, (B,)."""
        ((name, at),) = g.items()
        batch = at.shape[:2]  # (B, J)

        def own(tokens: Named, rows: int) -> Tensor:  # of rows B J tokens, each as a row by itself
            held = {k: a.repeat(rows, *[1] * (a.dim() - 1)) for k, a in memory.items()}
            states = {name: tokens[name].reshape(-1, *at.shape[1:])}
            own_mask = None if mask is None else mask.repeat(rows, 1)
            return self.energies(states, Fixed(held) if self.layer.reads_itself else held, own_mask).flatten()

        gradient, bound = self.differences(own, {name: at.flatten(0, 1)})
        return {name: gradient[name].reshape(at.shape)}, bound.reshape(batch).amax(1)

    def differences(self, function: Callable[[Named, int], Tensor], x: Named) -> tuple[Arrays, Tensor]:
        """The gradient of a function of the state that has one value per row, by extrapolated central differences.

        Args:
            function: (states of rows * B rows, rows) -> (rows * B,).
        """
        at, eps = flat(x), self.eps
        size = 1 + at.abs().amax(1) + function(x, 1).abs()  # (B,)
        # too wide a step gives mostly truncation, too narrow mostly roundoff
        step = eps**0.2 * (1 + float(at.abs().max())) / 4
        noise = 8 * (16 + at.shape[1]) * eps * size

        def flattened(states: Tensor) -> Tensor:
            return function(shaped(states, x), states.shape[0] // at.shape[0])

        value, bound = jacobian(flattened, at, step, noise)
        if self.caller.dtype != torch.float64:  # a norm's epsilon may lie within its wide steps
            nearer, closer = jacobian(flattened, at, step / 2, torch.zeros_like(noise))
            most = torch.stack((bound / 2, 24 / step * noise, nearer.abs().flatten(1).amax(1) / 10)).amax(0)
            if bool((closer > most).any()):
                raise Discard("its values change too fast for differences in this dtype")
        return shaped(value[:, 0], x), bound

    def _derivative(self, function: Callable[[Any], Any], x: Named) -> Arrays:
        """The gradient, in the state, of a function that takes the layer's arrays: by autograd, or by differences."""
        if self.caller.kind.differentiable:
            gradient = self._autograd(function, x, 1.0)
            if gradient is not None:
                return gradient

        def rows(states: Named, _: int) -> Tensor:
            with self.caller.guarded():
                values = as_tensor(function(self.pack(states, "State")))
            return values.reshape(next(iter(states.values())).shape[0], -1).sum(1)

        return self.differences(rows, x)[0]

    def _autograd(self, function: Callable[[Any], Any], x: Named, factor: float) -> Arrays | None:
        """The gradient of factor times the sum of a function's values; None if no gradient flows through it."""
        if self.caller.kind is JAX:
            with self.caller.guarded():
                gradient = self.read(JAX.gradient_at(function, (self.compiled.pack(x, "State"),)), x)
            return {name: factor * array for name, array in gradient.items()}
        with torch.enable_grad(), self.caller.guarded():
            leaves = {name: self.caller.array(a).detach().requires_grad_() for name, a in x.items()}
            values = plain(function(packed(leaves, "State")))
            if not isinstance(values, Tensor) or not values.requires_grad:
                return None
            inputs = list(leaves.values())
            whole = torch.autograd.grad(factor * values.sum(), inputs, allow_unused=True, materialize_grads=True)
            return self.read(packed(dict(zip(leaves, whole, strict=True)), "State"), x)

    # --- P -----------------------------------------------------------------------------------------------

    def preconditioned(self, gradient: Named, x: Named, memory: Named) -> Arrays:
        """P, at the state x, times a gradient; the gradient itself if no P is given."""
        P = self.layer.step.preconditioner
        if P is None:
            return dict(gradient)
        if callable(P):
            read = memory if "preconditioner" in self.layer.reads_memory else {}
            return self._preconditioned(gradient, self.nearest(x), read)
        matrix = as_tensor(P)
        return {k: a * matrix if matrix.dim() < 2 else a @ matrix.mT for k, a in gradient.items()}

    @experiment(lambda arguments: shapes(arguments.gradient), of="preconditioner")
    def _preconditioned(self, gradient: Named, x: Named, memory: Named) -> Arrays:
        own, state, held = self.pack(gradient, "State"), self.pack(x, "State"), self._memory_of(memory)
        with self.caller.guarded():
            return self.read(preconditioned_at(self.layer, own, state, held), gradient)

    # --- the size of a step, and the map that ends it ----------------------------------------------------

    def step_sizes(self, t: int, x: Named, memory: Named) -> Mapping[str, Tensor | float]:
        """eta of step t at a state: one number, or one for each number of the state."""
        if self.layer.step.varying is None:
            return dict.fromkeys(x, self.layer.step.sizes[t])
        return self._varying_sizes(x, memory)

    @experiment(lambda arguments: shapes(arguments.x), of="step size")
    def _varying_sizes(self, x: Named, memory: Named) -> Arrays:
        own = self.pack(self._within(x, APART), "State")
        held = self._memory_of(memory)
        with self.caller.guarded():
            size = as_tensor(plain(varying_size(self.layer, own, held)))
        return {name: like_the_state(size, array).expand_as(array) for name, array in x.items()}

    @experiment(lambda arguments: shapes(arguments.v), of="proximal map")
    def proximal(self, v: Named, eta: float, memory: Named) -> Arrays:
        """prox(v, eta), the map that ends a proximal step."""
        own, held = self.pack(v, "State"), self._memory_of(memory)
        with self.caller.guarded():
            return self.read(proximal_at(self.layer, own, eta, held), v)

    def penalties(self, x: Named, memory: Named) -> Tensor:
        """The penalty R(x) of each row, (B,); a number larger than all others for a forbidden state."""
        values = self._penalties(x, memory if "penalty" in self.layer.reads_memory else {})
        return values.reshape(len(values), -1).sum(1)

    @experiment(lambda arguments: Rows(len(next(iter(arguments.x.values())))), of="penalty")
    def _penalties(self, x: Named, memory: Named) -> Tensor:
        arguments, _ = _arguments(self.pack(x, "State"), self._memory_of(memory), None, None)
        assert self.layer.step.penalty is not None
        with self.caller.guarded():
            return as_tensor(plain(self.layer.step.penalty(*arguments))).clamp(max=FORBIDDEN)

    def _gradient_by_jax(self, g: Named, memory: Named) -> Arrays:
        """dE/dg with the energy compiled once for each shape."""
        B = next(iter(g.values())).shape[0]
        rows = self._padded(B) if self.layer.stated.per != "batch" else list(range(B))
        (wide, held), own = _rows_of(rows, g, memory), self.compiled
        arguments, _ = _arguments(own.pack(wide, "State"), own._memory_for(wide, held), None, None)
        with self.caller.guarded():
            gradient = self.read(JAX.gradient_at(self.energy_function, arguments), wide)
        factor = self.batch_factor(g)
        return {name: factor * array[:B] for name, array in gradient.items()}

    def _padded(self, batch: int) -> list[int]:
        """The rows to ask for instead of this many: the last one is repeated."""
        return [min(i, batch - 1) for i in range(next((n for n in _PADDED if n >= batch), batch))]

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def energy_function(self) -> Callable[..., Any]:
        """The energy, or that of step t."""
        assert self.layer.energy is not None
        return _at_step(self.layer.energy, t=self.t) if self.layer.step.own_energies else self.layer.energy

    def _energy(self, state: Any, second: Any, **mask: Any) -> Any:
        return self.energy_function(*((state,) if second is None else (state, second)), **mask)

    def _memory_for(self, g: Named, memory: Named) -> Any:
        """The energy's second argument: the memory, or the present state, held fixed."""
        if self.layer.reads_itself:
            return self.pack(memory if isinstance(memory, Fixed) else g, "Memory")
        return self._memory_of(memory)

    def _memory_of(self, memory: Named) -> Any:
        return self.pack(self._memory_within(memory, APART), "Memory") if memory else None

    def _mean_factor(self, g: Named) -> float:
        summed = "tokens" in self.layer.stated.mean_over and self.layer.stated.step_of == "sum"
        return float(self._tokens_of(g)[1]) if summed else 1.0

    def share(self, B: int) -> float:
        """The weight of a row's own energy in what is descended: 1/B if that is a mean over the batch."""
        stated = self.layer.stated
        return 1 / B if "batch" in stated.mean_over and stated.step_of == "mean" else 1.0

    def batch_factor(self, g: Named) -> float:
        """The factor that turns the sum of the energy's values into the energy that is descended."""
        B = next(iter(g.values())).shape[0]
        return self._mean_factor(g) * (B * self.share(B) if "batch" in self.layer.stated.mean_over else 1)

    def _tokens_of(self, g: Named) -> torch.Size:
        for name, shape in self.layer.state.items():
            if TOKENS in shape:
                return torch.Size((g[name].shape[0], g[name].shape[1 + shape.index(TOKENS)]))
        return next(iter(g.values())).shape[:1]


@dataclass(frozen=True)
class Anywhere(Box):
    """The layer as if it had no domain, to locate where an error begins: no verdict depends on its answers."""

    @property
    def layer(self) -> EnergyLayer:
        return replace(super().layer, domain=None, ranges={})


def _arguments(state: Any, memory: Any, noise: Any, mask: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an update or an energy, without those that it does not take."""
    named = {"noise": noise, "mask": mask}
    return (state,) if memory is None else (state, memory), {k: a for k, a in named.items() if a is not None}


def varying_size(layer: EnergyLayer, state: Any, memory: Any) -> Any:
    """A step size that depends on the state, as its function returns it."""
    assert layer.step.varying is not None
    return layer.step.varying(*((state,) if memory is None or layer.reads_itself else (state, memory)))


def state_map_at(layer: EnergyLayer, state: Any, memory: Any) -> Any:
    """What the state map returns."""
    assert layer.state_map is not None
    return layer.state_map(state, *([memory] if "state map" in layer.reads_memory else []))


def preconditioned_at(layer: EnergyLayer, gradient: Any, state: Any, memory: Any) -> Any:
    """What the function of a preconditioner returns."""
    held = [memory] if "preconditioner" in layer.reads_memory else []
    return layer.step.preconditioner(*([state] if layer.step.moving else []), gradient, *held)


def proximal_at(layer: EnergyLayer, state: Any, eta: Any, memory: Any) -> Any:
    """What the proximal map returns."""
    assert layer.step.proximal is not None
    return layer.step.proximal(state, eta, *([memory] if "proximal map" in layer.reads_memory else []))


class Fixed(dict[str, Tensor]):
    """A memory that is the present state, held where it was while the state moves."""


def _rows_of(rows: list[int], g: Named, memory: Named) -> tuple[Named, Named]:
    """Some rows of states and of a memory, which stays `Fixed` if it was."""
    wide, of = ({name: array[rows] for name, array in part.items()} for part in (g, memory))
    return wide, Fixed(of) if isinstance(memory, Fixed) else of


def form_of(layer: EnergyLayer) -> Form:
    """The form of the questions that a layer takes."""
    state: Mapping[str, Shape] = layer.state
    form = Form(state, layer.memories, layer.shortest, layer.step.noise > 0, zeros=layer.zeros)
    if ARRAY_KINDS[layer.arrays].compiles:
        form = replace(form, shapes=_SHAPES)
    moved = layer.energy is not None and "autograd" in layer.not_offered and not tokens_move_at_once(layer)
    return replace(form, most=_MOST_MOVED) if moved else form


def tokens_move_at_once(layer: EnergyLayer) -> bool:
    """Whether differences of an energy may move all tokens at once: no token's energy reads another's state.

    Where autograd gives the gradient, differences are there to check it, and must not rely on the declaration.
    """
    apart = layer.stated.per == "token" and not layer.coupled and "autograd" in layer.not_offered
    return apart and [shape[:1] for shape in layer.state.values()] == [(TOKENS,)]


_at_step = cache(partial)  # the same function each time, because JAX compiles each once


def flat(named: Named) -> Tensor:
    """All coordinates of each batch row: (B, n)."""
    return torch.cat([array.reshape(len(array), -1) for array in named.values()], 1)  # one number per row is one axis


def plus(a: Named, b: Named) -> Arrays:
    """Their sums, for the names of the second."""
    return {name: a[name] + b[name] for name in b}


def shaped(coordinates: Tensor, like: Named) -> Arrays:
    """The arrays of a state from one vector for each row: (B, n) -> the state's shapes."""
    arrays, at = {}, 0
    for name, array in like.items():
        n = array[0].numel()
        arrays[name] = coordinates[:, at : at + n].reshape(-1, *array.shape[1:])
        at += n
    return arrays


def widened(q: Question, part: str) -> Question:
    """The question with arrays of one part, "x" or "memory", doubled in width: most layers refuse it."""
    wide: dict[str, Any] = {part: {name: torch.cat((a, a), -1) for name, a in getattr(q, part).items()}}
    return replace(q, **wide)
