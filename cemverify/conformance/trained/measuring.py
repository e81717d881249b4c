"""What a trained layer does on real states, in numbers: its energy's changes, its P, its field, its largest logit.

The layer is followed step by step, x^(0) ... x^(T), from where the model starts it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMAttention, CEMLayer
from cemverify.conformance.asking.boxes import Arrays, Box, flat, plus, shaped
from cemverify.conformance.asking.extrapolation import extrapolated
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.properties.layers.descent import finite_step, slope_along
from cemverify.conformance.properties.layers.oracle import calibrated, golden, rounding, width
from cemverify.conformance.questions.black_boxes import Question

_DIRECTIONS = 8  # directions in which the field is differentiated, which make 28 pairs


@dataclass(frozen=True)
class Moment:
    """One step of the layer on the real states."""

    box: Box  # the layer, asked for only this step
    q: Question  # the states before it
    u: Arrays  # what the step adds to them


@dataclass(frozen=True)
class Share:
    """How many of the energies fall and rise: those of tokens, or of sequences if each has one energy."""

    # falls, rises: shares of them; the rest changes by no more than roundoff
    falls: float
    rises: float


def steps(box: Box, q: Question, iterations: int) -> Iterator[Moment]:
    """Each step in turn.

    Args:
        iterations: how often the layer is applied. A call of several steps is split up as its declaration says.
    """
    step = box.layer.step
    if len(step.sizes) > 1:
        before = {name: torch.zeros_like(a) for name, a in q.x.items()}
        for eta, mu in zip(step.sizes, step.momentum, strict=True):
            layer = replace(box.layer, step=replace(step, sizes=(eta,), momentum=(0.0,)))
            one = replace(box, caller=replace(box.caller, subject=layer))
            carried = {name: mu * a for name, a in before.items()}
            down = golden(one, replace(q, x=plus(q.x, carried)) if step.looks_ahead else q).arrays
            moment = Moment(one, q, plus(carried, down))
            yield moment
            before = moment.u
            q = box.rounded(replace(q, x=plus(q.x, moment.u)))
        return
    for _ in range(iterations):
        moment = Moment(box, q, box.displacement(q))
        yield moment
        q = box.rounded(replace(q, x=plus(q.x, moment.u)))


def slopes(moment: Moment) -> tuple[Share, Evidence]:
    """The sign of the energy's slope along the step."""
    slope, tolerance = slope_along(moment.box, moment.q, moment.u)
    claim, zero = "the slope of the energy along the update <= 0", torch.zeros_like(slope)
    evidence = Evidence.of(Comparison(claim, slope, zero, tolerance, "at most"), telling=moved(slope, tolerance))
    return _share(slope, tolerance), evidence


def whole_step(moment: Moment) -> tuple[Share, Evidence, float]:
    """The sign of the energy's change over the whole step, and its mean change."""
    after, before, tolerance = finite_step(moment.box, moment.q, moment.u)
    change = after - before
    compared = Comparison("energy after the whole step <= before", after, before, tolerance, "at most")
    evidence = Evidence.of(compared, telling=moved(change, tolerance))
    return _share(change, tolerance), evidence, float(change.mean())


def smallest_eigenvalue(layer: nn.Module, box: Box, q: Question) -> float | None:
    """The smallest eigenvalue of P over all heads, if P acts on the last axis; otherwise None."""
    if isinstance(layer, CEMLayer):
        return float(layer.preconditioner().smallest_eigenvalue().detach().min())
    P = calibrated(box, q)[0] if box.layer.step.unknown_preconditioner else matrix(box, q)
    return None if P is None else float(torch.linalg.eigvalsh((P + P.mT) / 2)[0])


def matrix(box: Box, q: Question) -> Tensor | None:
    """P as a matrix over the last axis, (D, D); None if it acts on more than that, or on several arrays."""
    if len(q.x) > 1:
        return None
    (name,) = q.x
    D = q.x[name].shape[-1]
    eye = torch.eye(D, dtype=torch.float64)
    if box.layer.step.preconditioner is None:
        return eye
    try:
        one = {name: eye.reshape(D, *[1] * (q.x[name].dim() - 2), D)}
        P = box.preconditioned(one, one, {})[name].reshape(D, D).mT
        there = box.preconditioned({name: q.x[name]}, q.x, q.memory)[name]
    except Exception:  # a P that acts on the whole state may refuse a single token
        return None
    near = (there - q.x[name] @ P.mT).abs().max() <= 1e-6 * (1 + there.abs().max())
    return P if bool(near) else None


def asymmetry(moment: Moment) -> tuple[float, Evidence]:
    """|J - J^T| / |J| in the Frobenius norm, with J = J_G^T P^-1 J_u, from random directions w.

    For independent random signs, (w_a . A w_b)^2 is |A|^2 on average.
    """
    box, q = moment.box, moment.q
    B, n = flat(q.x).shape
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_DIRECTIONS, B, n), generator=generator).double() * 2 - 1
    noise = rounding(box, q, moment.u)
    fields = [_along(box, q, w, noise, mapped=False) for w in signs]
    maps = [(w, torch.zeros(B, dtype=torch.float64)) for w in signs]
    if box.layer.state_map is not None or box.layer.lagrangian is not None:
        maps = [_along(box, q, w, rounding(box, q, q.x), mapped=True) for w in signs]
    P = matrix(box, q)
    inverse = None if P is None else torch.linalg.inv(P)
    M, error = torch.zeros(2, _DIRECTIONS, _DIRECTIONS, B, dtype=torch.float64)
    for (a, (v, off_v)), (b, (u, off_u)) in itertools.product(enumerate(maps), enumerate(fields)):
        turned, wide = u, off_u
        if inverse is not None:
            turned = flat({k: array @ inverse.mT for k, array in shaped(u, q.x).items()})
            wide = off_u * float(inverse.abs().sum(1).max())
        M[a, b] = (v * turned).sum(1)
        error[a, b] = v.abs().sum(1) * wide + (turned.abs().sum(1) + n * wide) * off_v
    apart = ~torch.eye(_DIRECTIONS, dtype=torch.bool)
    size = (M[apart] ** 2).mean()
    other, tolerance = M.transpose(0, 1), error + error.transpose(0, 1)
    share = math.sqrt(float(((M - other)[apart] ** 2).mean() / size))
    evidence = Evidence.of(
        Comparison("v . J w = w . J v", M, other, tolerance), telling=moved(M[apart], error[apart])
    )
    return (share if math.isfinite(share) else 0.0), evidence


def largest_logit(layer: nn.Module, q: Question) -> float | None:
    """The largest logit of attention at the state x; None for other layers than CEM's."""
    if not isinstance(layer, CEMAttention):
        return None
    with torch.no_grad():
        device, (x,), (memory,) = layer.W_Q.device, q.x.values(), q.memory.values()
        energy: Any = layer.energy
        scores = energy.scores(layer.norm().into(x.to(device)), energy.remember(memory.to(device)))
    return float(scores[scores.isfinite()].abs().max())


def _along(box: Box, q: Question, w: Tensor, noise: Tensor, *, mapped: bool) -> tuple[Tensor, Tensor]:
    """The derivative of the update, or of G, along w, and a bound on the error of its coordinates: (B, n), (B,)."""
    at = flat(q.x)
    size = at.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)

    def value(coordinates: Tensor) -> Tensor:
        there = replace(q, x=shaped(coordinates, q.x))
        return flat(box.mapped(there.x, there.memory) if mapped else box.displacement(there))

    def central(step: Tensor) -> Tensor:
        return (value(at + step * w) - value(at - step * w)) / (2 * step)

    return extrapolated(lambda h: central(h[:, None]), width(box) * size[:, 0], noise)


def _share(change: Tensor, tolerance: Tensor) -> Share:
    tolerance = tolerance.reshape(*tolerance.shape, *[1] * (change.dim() - tolerance.dim())).expand_as(change)
    falls, rises = ((sign * change > tolerance).double().mean() for sign in (-1, 1))
    return Share(float(falls), float(rises))
