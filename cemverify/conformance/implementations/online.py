"""Layers in which every token is a step: a state descends the loss of one token after the other.

    R_t = retain(S_{t-1}, m_t)                          what is kept; S_{t-1} itself if nothing is forgotten
    M_t = mu_t M_{t-1} - eta_t P_t dl/dS(A_t, m_t)      one step on the token's loss; M_0 = 0
    S_t = R_t + M_t
    o_t = read(S_t, m_t)

A_t, where the gradient is taken, is S_{t-1} ("before"), R_t ("retained"), or the state before the first token of a
mini-batch of c tokens (the number c). Fast weights, linear attention, delta rules and test-time training are of this
form. The declaration becomes this loop, and the layer is compared with it, as with any stated reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from cemverify.conformance.implementations.arrays import ARRAY_KINDS, ArrayName
from cemverify.conformance.implementations.energy_layers import (
    TOKENS,
    Domain,
    EnergyLayer,
    Sampler,
    Shape,
    energy_layer,
    shapes_of,
)
from cemverify.conformance.implementations.faults import NotAnArray, WrongShape
from cemverify.conformance.implementations.features import OF_STATES, names_of
from cemverify.conformance.implementations.named import like_the_state, packed, unpacked

Arrays = dict[str, Any]
Bundle = Callable[[Mapping[str, Any]], Any]
_STEP = 2.0**-10  # the width of differences, for arrays that carry no gradients
_OFF = 2.0**-30  # the least tolerance granted for such gradients
_ENDS = ("first-state", "last-state")  # features that a layer may lack
OTHER_WIDTH = "differences of another width"  # the loop that shows how far off they are


def online_layer(
    *,
    update: Callable[..., Any],
    loss: Callable[..., Any],
    state: Shape | Mapping[str, Shape],
    tokens: Mapping[str, Shape],
    output: Shape | Mapping[str, Shape],
    read: Callable[..., Any],
    step_size: float | Callable[..., Any] = 1.0,
    retain: Callable[..., Any] | None = None,
    gradient_at: Literal["before", "retained"] | int = "before",
    momentum: float | Callable[..., Any] = 0.0,
    last_step: Mapping[str, str] = MappingProxyType({}),
    preconditioner: Callable[..., Any] | None = None,
    reads: Literal["after", "before"] = "after",
    parameters: Mapping[str, Any] | Any = None,
    working_dtype: Literal["float64", "float32"] = "float64",
    arrays: ArrayName = "torch",
    not_offered: Iterable[str] = (),
    offers: Iterable[str] = (),
    domain: Mapping[str, Domain] | None = None,
    draw: Mapping[str, Sampler] | None = None,
    shortest: int = 1,
    tolerance: float | None = None,
    update_packed: Callable[..., Any] | None = None,
    update_padded: Callable[..., Any] | None = None,
    several: Sequence[str] = (),
) -> EnergyLayer:
    """A layer whose state takes a step for each token: `update(S, tokens)` and the loss that a step descends.

    A shape is written without the batch axis: `("J", 8)` is J tokens of dimension 8, (B, J, 8). Functions of one
    token get its arrays without that axis: `token.k` is (B, 8). A single array comes as itself, several as a named
    tuple.

    Args:
        update: update(S, tokens) -> (outputs, last state), for a row of any length. S may be None, which stands for
            zeros, unless `not_offered` has "no-state".
        loss: loss(S, token) -> (B,), which the step of one token descends.
        state: the shape of S, or shapes by name.
        tokens: shapes by name; those with "J" are read token by token, others are the same for all tokens.
        output: the shape of the outputs, ("J", ...), or shapes by name.
        read: read(S, token) -> one token's output, (B, ...).
        step_size, momentum: eta and mu: numbers, or functions f(S, token) -> (), (B,) or any other shape that the
            state's begins with. S is the state before the token.
        retain: retain(S, token), what is kept of the state; None if nothing is forgotten.
        gradient_at: "before", "retained", or the number of tokens of a mini-batch, whose gradients are taken at the
            state before its first token. A row is then cut only between mini-batches.
        last_step: where the state holds the last step, which momentum needs: {"S": "M"} if M is the last step of S.
            The other functions get a state without it.
        preconditioner: P: f(S, v, token) of the state before the token and the gradient v.
        reads: whether `read` gets the state after the token's step, or the one before.
        parameters, working_dtype, arrays, offers, domain, draw, shortest, tolerance: as for `energy_layer`.
        not_offered: as there, and "no-state", "pieces" (a row given in pieces, each with the last state of the one
            before), "first-state" (S is always None), "last-state" (the functions return outputs and None) and
            "narrow-state" (declare it absent if the last state is float32 for bfloat16 tokens).
        update_packed: update_packed(S, tokens, bounds), for rows that are laid end to end: all N tokens are one row,
            (1, N, ...); row i has those from bounds[i] to bounds[i + 1], integers; S has a state for each row, or is
            None. The outputs are (1, N, ...).
        update_padded: update_padded(S, tokens, mask), for rows whose tokens are those where the mask, (B, J), is
            True. Padding stands before or after them; if it never stands on one of these sides, `not_offered` has
            "left-padding" or "right-padding".
        several: the arrays of the tokens that take several steps for each token, one for each place of the axis
            after "J". `retain` acts before the first of these steps, and the output is read after the last.

    Raises:
        ValueError: arguments contradict each other or are out of range; the message says what is allowed.
    """
    others = {"retain": retain, "preconditioner": preconditioner, "update_packed": update_packed,
              "update_padded": update_padded}  # fmt: skip
    for name, function in {"update": update, "loss": loss, "read": read, **others}.items():
        _require(callable(function) or (function is None and name in others),
                 f"{name} must be a function, not {function!r}")  # fmt: skip
    eta, mu = _function(step_size, "step_size", math.inf), _function(momentum, "momentum", 1)
    states, outputs = shapes_of(state, "state"), shapes_of(output, "output")
    _require(isinstance(tokens, Mapping) and any(TOKENS in shape for shape in shapes_of(tokens, "tokens").values()),
             f"tokens must be a mapping to shapes, at least one with the axis {TOKENS!r}")  # fmt: skip
    _require(not any(TOKENS in shape for shape in states.values()), f"the state must not have the axis {TOKENS!r}")
    _require(
        all(shape[:1] == (TOKENS,) for shape in outputs.values()), f"the first axis of an output must be {TOKENS!r}"
    )
    _require(not states.keys() & outputs.keys(), "an output and an array of the state have the same name")
    _require(gradient_at in ("before", "retained") or (type(gradient_at) is int and gradient_at >= 1),
             f"gradient_at must be 'before', 'retained' or a number of tokens, not {gradient_at!r}")  # fmt: skip
    _require(reads in ("after", "before"), f"reads must be 'after' or 'before', not {reads!r}")
    several, not_offered = names_of(several, "several"), names_of(not_offered, "not_offered")
    lengths = {tuple(tokens.get(name, ()))[:2] for name in several}
    _require(len(lengths) < 2 and all(len(n) == 2 and n[0] == TOKENS and type(n[1]) is int for n in lengths),
             f"several must name arrays of the tokens that are ({TOKENS!r}, n, ...), all with one n")  # fmt: skip
    _require(isinstance(last_step, Mapping) and all(isinstance(name, str) for name in last_step.values()),
             f"last_step must map names to names, not {last_step!r}")  # fmt: skip
    _require(domain is None or isinstance(domain, Mapping), f"domain must be a mapping by name, not {domain!r}")
    kept = {*last_step.values()}
    _require(not last_step or (bool(momentum) and {*last_step} | kept <= states.keys() and not kept & {*last_step}),
             "last_step needs momentum, and maps arrays of the state to those that hold their last step")  # fmt: skip
    as_state, as_answer = _bundle("State", states), tuple(outputs)
    starts, ends = (name not in not_offered for name in _ENDS)

    def calling(function: Callable[..., Any]) -> Callable[..., Arrays]:
        @wraps(function)  # for its file and line
        def call(x: Any, *further: Any) -> Arrays:
            given = None if x is None else {name: getattr(x, name) for name in states}
            returned = function(None if given is None or not starts else as_state(given), *further)
            return answered(returned, None if ends else given)

        return call

    def answered(returned: Any, last: Arrays | None) -> Arrays:
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise NotAnArray(f"it returned one {type(returned).__name__}, expected a pair: outputs, last state")
        return (last or _by_name(returned[1], tuple(states))) | _by_name(returned[0], as_answer)

    loop = Recurrence(
        loss, read, eta, mu if momentum else None, retain, gradient_at, preconditioner, reads,
        tuple(name for name in states if name not in kept),
        MappingProxyType(dict(last_step)), as_answer, MappingProxyType(dict(tokens)), several, arrays, starts, ends,
    )  # fmt: skip
    ways = {"no-state": update, "packed-rows": update_packed, "left-padding": update_padded}
    ways["right-padding"] = update_padded
    absent = {name: f"it has no function for {name.replace('-', ' ')}" for name, way in ways.items() if way is None}
    absent |= dict.fromkeys((name for name in OF_STATES if name in not_offered), "declared")
    if not (starts and ends):
        absent |= dict.fromkeys(("no-state", "pieces", "narrow-state"), "it has no state there")
    layer = energy_layer(
        update=calling(update), reference=loop, state={**states, **outputs}, memory=tokens,
        returns="next state", parameters=parameters, working_dtype=working_dtype, arrays=arrays, domain=domain,
        draw=draw, shortest=shortest, offers=offers,
        not_offered=[name for name in not_offered if name not in (*OF_STATES, *_ENDS)],
        tolerance=max(_OFF, tolerance or 0) if arrays == "numpy" else tolerance,
    )  # fmt: skip
    features = dict(layer.not_offered) | {"own-state": "its outputs have no state of their own"}
    features = {name: reason for name, reason in features.items() if name not in OF_STATES} | absent
    facts: Any = {
        "outputs": as_answer,
        "zeros": as_answer if starts else (*as_answer, *states),
        "ways": MappingProxyType({name: calling(way) for name, way in ways.items() if way is not None}),
        "pieces": gradient_at if isinstance(gradient_at, int) else 1,
        "others": MappingProxyType(loop.others()),
        "not_offered": MappingProxyType(features),
    }
    assert layer.reference is not None
    return replace(layer, **facts, reference=replace(layer.reference, **facts))


@dataclass(frozen=True)
class Recurrence:
    """The loop over the tokens of a row, as it is declared, by autograd of the loss (NumPy: by differences)."""

    loss: Callable[..., Any]
    read: Callable[..., Any]
    step_size: Callable[..., Any]
    momentum: Callable[..., Any] | None
    retain: Callable[..., Any] | None
    gradient_at: str | int
    preconditioner: Callable[..., Any] | None
    reads: str
    state: Sequence[str]
    last_step: Mapping[str, str]
    outputs: Sequence[str]
    tokens: Mapping[str, Shape]
    several: Sequence[str]
    arrays: ArrayName
    starts: bool = True  # whether a row starts at the state that it is given; at zeros if not
    ends: bool = True  # whether the last state is returned; the given one if not
    width: float = _STEP  # of differences
    retains: Literal["before", "after", "each"] = "before"  # before a token's first step, after its last, or at each
    excepted: Mapping[int, Recurrence] = field(default_factory=dict)  # the loops of some tokens, by their places

    def __call__(self, x: Any, memory: Any) -> Arrays:
        """The last state and the outputs, by name, of a row that starts at x."""
        given = _by_name(memory, tuple(self.tokens))
        states = {name: getattr(x, name) for name in (*self.state, *self.last_step.values())}
        first = states if self.starts else {name: 0 * a for name, a in states.items()}
        start = {name: first[name] for name in self.state}
        last = {name: first[self.last_step[name]] if name in self.last_step else 0 * a
                for name, a in start.items()}  # fmt: skip
        carry = (start, last, start)
        along = {name: given[name] for name, shape in self.tokens.items() if TOKENS in shape}
        axes = {name: 1 + self.tokens[name].index(TOKENS) for name in along}
        J = next(a.shape[axes[name]] for name, a in along.items())
        if self.arrays == "jax" and not self.excepted:
            import jax

            moved = {name: jax.numpy.moveaxis(a, axes[name], 0) for name, a in along.items()}
            begins = jax.numpy.arange(J) % self._batch == 0
            carry, read = jax.lax.scan(lambda c, t: self._step(c, {**given, **t[0]}, t[1]), carry, (moved, begins))
            return self._ended(carry, states) | {name: jax.numpy.moveaxis(a, 0, 1) for name, a in read.items()}
        rows = []
        for t in range(J):
            token = {name: a[(slice(None),) * axes[name] + (t,)] for name, a in along.items()}
            one = self.excepted.get(t, self.excepted.get(t - J, self))
            carry, out = one._step(carry, {**given, **token}, t % self._batch == 0)
            rows.append(out)
        joined = ARRAY_KINDS[self.arrays].joined
        return self._ended(carry, states) | {
            name: joined([row[name][:, None] for row in rows], 1) for name in self.outputs
        }

    @property
    def stated(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that are declared, by name."""
        named = {"loss": self.loss, "read": self.read, "retain": self.retain, "preconditioner": self.preconditioner,
                 "step size": self.step_size, "momentum": self.momentum}  # fmt: skip
        return {name: f for name, f in named.items() if f is not None and getattr(f, "__module__", "") != __name__}

    def _ended(self, carry: tuple[Arrays, Arrays, Arrays], given: Arrays) -> Arrays:
        S, M, _ = carry
        return given if not self.ends else S | {kept: M[name] for name, kept in self.last_step.items()}

    def others(self) -> dict[str, Recurrence]:
        """Loops that differ from this one in one thing, like mistakes, and one with another width of differences."""

        def sized(factor: float) -> Recurrence:
            return replace(self, step_size=lambda *of: factor * self.step_size(*of))

        def inverse(S: Any, m: Any) -> Any:  # of a product with a gate
            as_state, by_name = _bundle("State", self.state), unpacked(S, dict.fromkeys(self.state))
            states = dict(zip(self.state, by_name, strict=True))
            gates = _by_name(retain(as_state({name: 0 * a + 1 for name, a in states.items()}), m), self.state)
            return as_state({name: a / gates[name] for name, a in states.items()})

        retain: Any = self.retain
        forgets, batches = retain is not None, isinstance(self.gradient_at, int)
        still = replace(self, step_size=lambda *_: 0.0)
        changes: Sequence[tuple[str, bool, Callable[[], Recurrence]]] = (
            ("steps of the other sign", True, lambda: sized(-1.0)),
            ("nothing forgotten", forgets, lambda: replace(self, retain=None)),
            ("gradient before forgetting", self.gradient_at == "retained",
             lambda: replace(self, gradient_at="before")),
            ("gradient after forgetting", forgets and self.gradient_at == "before",
             lambda: replace(self, gradient_at="retained")),
            ("gradient of the present state", batches, lambda: replace(self, gradient_at="before")),
            ("no momentum", self.momentum is not None, lambda: replace(self, momentum=None)),
            ("steps of size 1", True, lambda: replace(self, step_size=lambda *_: 1.0)),
            ("half the step", True, lambda: sized(0.5)),
            ("twice the step", True, lambda: sized(2.0)),
            ("no preconditioner", self.preconditioner is not None, lambda: replace(self, preconditioner=None)),
            ("read before", self.reads == "after", lambda: replace(self, reads="before")),
            ("read after", self.reads == "before", lambda: replace(self, reads="after")),
            ("forgetting after the step", forgets, lambda: replace(self, retains="after")),
            ("forgetting at each step", forgets and bool(self.several), lambda: replace(self, retains="each")),
            ("the inverse kept", forgets, lambda: replace(self, retain=inverse)),
            *((f"{what} at the {place} token", there, lambda at=at, one=one: replace(self, excepted={at: one}))
              for place, at in (("first", 0), ("last", -1))
              for what, there, one in (("no step", True, still), ("no change", forgets, replace(still, retain=None)),
                                       ("nothing forgotten", forgets, replace(self, retain=None)))),
            (OTHER_WIDTH, self.arrays == "numpy", lambda: replace(self, width=2 * _STEP)),
        )  # fmt: skip
        return {name: made() for name, there, made in changes if there}

    @property
    def _batch(self) -> int:
        return self.gradient_at if isinstance(self.gradient_at, int) else 1

    def _step(self, carry: tuple[Arrays, Arrays, Arrays], token: Arrays, begins: Any) -> tuple[Any, Arrays]:
        """The state, the last step and the mini-batch's first state after a token, and its output."""
        S, M, first = carry
        as_state, as_token = _bundle("State", self.state), _bundle("Token", self.tokens)
        if self.arrays == "jax":
            from jax.numpy import where

            first = {name: where(begins, S[name], first[name]) for name in S}
        elif begins:
            first = S
        after = S
        for i in range(token[self.several[0]].shape[1] if self.several else 1):
            m = as_token({name: a[:, i] if name in self.several else a for name, a in token.items()})
            keeps = self.retains == "each" or (i == 0 and self.retains == "before")
            after, M = self._descended(after, M, first, m, self.retain if keeps else None)
        if self.retains == "after" and self.retain is not None:
            after = _by_name(self.retain(as_state(after), m), self.state)
        out = self.read(as_state(after if self.reads == "after" else S), as_token(token))
        return (after, M, first), _by_name(out, self.outputs)

    def _descended(self, S: Arrays, M: Arrays, first: Arrays, m: Any, retain: Any) -> tuple[Arrays, Arrays]:
        """The state after one step on the loss of m, and that step; M is the one before."""
        as_state = _bundle("State", self.state)
        now = as_state(S)
        R = S if retain is None else _by_name(retain(now, m), self.state)
        A = {"before": S, "retained": R}.get(str(self.gradient_at), first)
        g = self._gradient(A, m)
        if self.preconditioner is not None:
            g = _by_name(self.preconditioner(now, as_state(g), m), self.state)
        eta, mu = self.step_size(now, m), 0.0 if self.momentum is None else self.momentum(now, m)
        M = {name: _wide(mu, M[name]) * M[name] - _wide(eta, g[name]) * g[name] for name in S}
        return {name: R[name] + M[name] for name in S}, M

    def _gradient(self, at: Arrays, m: Any) -> Arrays:
        """dl/dS for each row, whose loss reads no other row."""
        if self.arrays == "jax":
            import jax

            return dict(jax.grad(lambda a: self._loss(a, m).sum())(at))
        if self.arrays == "numpy":
            return {name: self._difference(at, name, m) for name in at}
        recording = torch.is_grad_enabled()
        with torch.enable_grad():
            leaves = {name: a if a.requires_grad else a.detach().requires_grad_() for name, a in at.items()}
            total = self._loss(leaves, m).sum()
            found = torch.autograd.grad(
                total, list(leaves.values()), create_graph=recording, allow_unused=True, materialize_grads=True
            )
        return dict(zip(at, found, strict=True))

    def _loss(self, at: Arrays, m: Any) -> Any:
        """The loss of each row: (B,). A mean over rows would make the steps of all of them smaller."""
        losses, rows = self.loss(_bundle("State", self.state)(at), m), len(next(iter(at.values())))
        if (shape := getattr(losses, "shape", None)) is None or tuple(shape[:1]) != (rows,):
            kind = f"an array {tuple(shape)}" if shape is not None else f"one {type(losses).__name__}"
            raise WrongShape(f"the loss returned {kind}, expected one number for each row, ({rows},)")
        return losses.reshape(rows, -1).sum(-1)

    def _difference(self, at: Arrays, name: str, m: Any) -> Any:
        """Extrapolated central differences in one array, number by number."""
        gradient = np.zeros_like(at[name])
        h = self.width * (1 + float(np.abs(at[name]).max()))
        for place in np.ndindex(*at[name].shape[1:]):
            here = (slice(None), *place)

            def moved(by: float, here: Any = here) -> Any:
                array = at[name].copy()
                array[here] += by
                return self._loss({**at, name: array}, m)

            wide, narrow = ((moved(d) - moved(-d)) / (2 * d) for d in (h, h / 2))
            gradient[here] = (4 * narrow - wide) / 3
        return gradient


# --- inside --------------------------------------------------------------------------------------------------


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(f"this declaration of an online layer is contradictory: {sentence}")


def _function(value: float | Callable[..., Any], name: str, below: float) -> Callable[..., Any]:
    if callable(value):
        return value
    numbers = "a finite number, not negative" if math.isinf(below) else f"a number from 0 to below {below}"
    _require(isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < below,
             f"{name} must be {numbers}, or a function f(S, token), not {value!r}")  # fmt: skip
    return lambda *_: value


def _bundle(kind: str, names: Iterable[str]) -> Bundle:
    """Makes one argument of arrays by name, in the order of the names; JAX would sort those of a mapping."""
    known = tuple(names)
    return lambda named: packed({name: named[name] for name in known}, kind)


def _by_name(returned: Any, names: Sequence[str]) -> Arrays:
    return dict(zip(names, unpacked(returned, dict.fromkeys(names)), strict=True))


def _wide(size: Any, like: Any) -> Any:
    return like_the_state(size, like) if hasattr(size, "shape") else size
