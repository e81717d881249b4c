"""The update is minus eta P times the gradient of the stated energy, and its field is a gradient field."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import FORBIDDEN, Box, flat, shaped
from cemverify.conformance.asking.extrapolation import extrapolated
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.properties.explanations import CONSERVATIVE
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import (
    MASKED,
    PROXIMAL,
    UPDATE,
    along,
    aside,
    calibrated,
    compared,
    counted,
    drawn_mask,
    golden,
    jacobian,
    preconditioner_matrix,
    rounding,
    solved,
    token_count,
    tokens,
    width,
    with_tokens,
)
from cemverify.conformance.questions.black_boxes import Question

GRADIENT_STEP = {"energy", "gradient-step"}
_TENFOLD = 10
_AROUND = (0.5, 0.125, 2.0**-6, 2.0**-10, 2.0**-13)  # how far a state lies beside another, as a share of a step
_COORDINATES = 24


@states(
    "gradient/layer/energy",
    claim="At every step, the update is -eta P times the gradient of the stated energy.",
    formula="x' = x - eta P dE/dg, at every step",
    why="This is what the declaration says. Everything that is derived from the energy rests on it.",
    premise="the gradient is not zero",
    needs=GRADIENT_STEP,
    controls={"constant"},
    looks_around=True,
)
def update_is_gradient(box: Box, q: Question) -> Evidence:
    got, expected = box.along(q.x, box.displacement(q)), golden(box, q)
    tolerance = expected.tolerance_for(box, q, got)
    # telling if a missing tenth of the update would show
    telling = moved(flat(expected.arrays), along(_TENFOLD / 2 * tolerance, flat(got)))
    claim = PROXIMAL if box.layer.step.kind == "proximal" else UPDATE
    return Evidence.of(*compared(claim, got, expected.arrays, tolerance), telling=telling)


@states(
    "gradient/layer/masked",
    claim="Where tokens are masked, the others' update is -eta P times the gradient of the energy with that mask.",
    formula="x' = x - eta P dE(g, m, mask)/dg, of each token that is not masked",
    why="An energy whose softmax runs over padding, beside an update that leaves it out, shows with masks.",
    premise="a token is masked, and the gradient is not zero",
    needs={*GRADIENT_STEP, "masked", "masked-gradient"},
    cases=Cases({"J": 2}, plain=True),
)
def masked_update_is_gradient(box: Box, q: Question) -> Evidence:
    mask, state = drawn_mask(box, q), box.layer.state
    got, descent = box.along(q.x, box.displacement(q, mask)), golden(box, q, mask)

    counting, expected = (with_tokens(arrays, state, counted(mask)) for arrays in (got, descent.arrays))
    tolerance = descent.tolerance_for(box, q, got)
    telling = not bool(mask.all()) and moved(flat(expected), along(_TENFOLD / 2 * tolerance, flat(got)))
    return replace(
        Evidence.of(*compared(MASKED, counting, expected, tolerance), telling=telling), drawn={"mask": mask}
    )


@states(
    "gradient/layer/derivatives-agree",
    claim="The automatic derivative of the energy agrees with finite differences of its values.",
    formula="autograd of E = central differences of E",
    why="A detached term or a custom backward in the stated energy makes its gradient a fiction, and every "
    "other property would be judged by it.",
    premise="the gradient is not zero",
    needs={"energy", "autograd"},
)
def derivatives_agree(box: Box, q: Question) -> Evidence:
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    q, box = box.rounded(replace(q, x=aside(box, q, generator).x)), box.at_step(q.seed % len(box.layer.step.sizes))
    g = box.mapped(q.x, q.memory)
    automatic, how = box.gradient(g, q.memory)
    differences, bound = box.differences_of_energy(g, q.memory)
    tolerance = bound + rounding(box, q, automatic)
    claim = "autograd of the energy = differences of the energy"
    if how == "differences":
        claim += "; it lets no gradient through: mend that, or declare not_offered=('autograd',)"
        automatic = {name: torch.zeros_like(a) for name, a in automatic.items()}
    telling = moved(flat(automatic), along(tolerance, flat(automatic)))
    return Evidence.of(*compared(claim, automatic, differences, tolerance), telling=telling)


@states(
    "gradient/layer/conservative-field",
    claim="The update field is a gradient: its Jacobian is symmetric, up to the preconditioner and the state map.",
    **CONSERVATIVE,
    premise="the Jacobian is not zero",
    needs={"conservative"},
)
def field_is_conservative(box: Box, q: Question) -> Evidence:
    J, error = _field(box, q)
    comparison = Comparison("the Jacobian equals its transpose", J, J.mT, error + error.mT)
    return Evidence.of(comparison, telling=moved(J, error))


@states(
    "gradient/layer/symmetric-coupling",
    claim="Coupled tokens influence each other equally: off-diagonal blocks of the Jacobian are transposes.",
    formula="d x'_i / d x_j = (d x'_j / d x_i)^T",
    why="If tokens share one energy, what i does to j is what j does to i. Attention between states is not "
    "like that unless it is built so.",
    premise="some token's state changes another's update",
    needs={"conservative", "coupled"},
    cases=Cases({"J": 2}),
)
def coupling_is_symmetric(box: Box, q: Question) -> Evidence:
    J, error = _field(box, q)
    n, count = J.shape[-1], token_count(box, q)
    owner = torch.cat(
        [
            (torch.arange(count).reshape(1, count, *[1] * (a.dim() - 2)).expand_as(a[:1])).flatten(1)
            for a in tokens(q.x, box.layer.state).values()
        ],
        1,
    )[0]
    if len(owner) != n or count < 2:
        raise Discard("there are no two tokens to compare")
    apart = (owner[:, None] != owner[None, :]).to(J.dtype)
    claim = "the effect of token i on token j equals that of j on i, transposed"
    return Evidence.of(
        Comparison(claim, J * apart, (J * apart).mT, error + error.mT), telling=moved(J * apart, error)
    )


def _field(box: Box, q: Question) -> tuple[Tensor, Tensor]:
    """The Jacobian that must be symmetric: J_G^T P^-1 J_u, with J_G = 1 without a state map or a domain.

    With u = -eta P dE/dg and g = G(x) it is -eta J_G^T H J_G, H the Hessian of the energy in g. A singular P has no
    inverse; for it the matrix is J_u P^T = -eta P H P^T.
    """
    u, layer = box.displacement(q), box.layer
    mapped = layer.state_map is not None or layer.lagrangian is not None or layer.domain is not None
    noise = rounding(box, q, u) + solved(box)
    J, error = jacobian(box, lambda at: box.along(at.x, box.displacement(at)), q, noise)
    if (P := preconditioner_matrix(box, q)) is not None:
        if int(torch.linalg.matrix_rank(P)) == len(P):
            inverse = torch.linalg.inv(P)
            J, error = inverse @ J, inverse.abs() @ error
        elif mapped:
            raise Discard("the preconditioner is singular, and with a state map no Jacobian need be symmetric")
        else:
            J, error = J @ P.mT, error @ P.mT.abs()
    if mapped:
        G, off = jacobian(box, lambda question: box.mapped(question.x, question.memory), q, rounding(box, q, q.x))
        error = G.mT.abs() @ error + off.mT @ J.abs() + off.mT @ error
        J = G.mT @ J
    return J, error


@states(
    "gradient/layer/preconditioner",
    claim="A single symmetric positive definite matrix P makes every update -P times the gradient.",
    formula="x' - x = -P dE/dg for one P = P^T > 0, at all states",
    why="A matrix that is not positive definite climbs in some direction; one that depends on the state is none.",
    premise="the preconditioner can be determined to better than roundoff",
    needs={*GRADIENT_STEP, "unknown-preconditioner"},
    looks_around=True,
)
def preconditioner_is_positive(box: Box, q: Question) -> Evidence:
    P, relative, basis = calibrated(box, q)
    P = basis.mT @ P @ basis
    error = torch.full_like(P, relative * float(P.abs().max()) * len(P))
    lowest = torch.linalg.eigvalsh((P + P.mT) / 2)[:1]
    return Evidence.of(
        Comparison("the preconditioner equals its transpose", P, P.mT, 2 * error),
        Comparison(
            Compared.SPECTRUM("the preconditioner's eigenvalues are positive"),
            -lowest,
            -error[0, :1],
            error[0, :1],
            "at most",
        ),
        telling=moved(P, error),
    )


@states(
    "gradient/layer/proximal",
    claim="The proximal map minimises the penalty plus the squared distance over 2 eta.",
    formula="prox(v, eta) = argmin R(z) + |z - v|^2 / (2 eta)",
    why="A threshold that forgets the step size, or is taken of squares, is the proximal map of another penalty.",
    premise="the proximal map moves the state",
    needs={"proximal"},
    source="x' = prox(x - eta dE/dx) (Beck & Teboulle 2009, ISTA)",
    looks_around=True,
)
def proximal_map_is_a_minimiser(box: Box, q: Question) -> Evidence:
    eta, generator = box.layer.step.sizes[0], torch.Generator().manual_seed(q.seed % 2**31)
    minimiser, v = box.proximal(q.x, eta, q.memory), flat(q.x)
    z, (B, n) = flat(minimiser), v.shape
    # some coordinates one by one, because a penalty may forbid moves of the others, and all of them together
    chosen = torch.eye(n, dtype=z.dtype)[torch.randperm(n, generator=generator)[:_COORDINATES]]
    where = torch.cat((chosen, torch.ones(1, n, dtype=z.dtype)))  # (C, n)
    drawn = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    towards = torch.stack((drawn, v - z, z - v, -z))  # (4, B, n): also back, in case too much was taken off
    beside = z[:, None] + torch.einsum(
        "s,dbn,cn->bsdcn", torch.tensor(_AROUND, dtype=z.dtype), towards, where
    ).reshape(B, -1, n)
    beside = beside.to(box.caller.dtype).double()

    def cost(states: Tensor) -> Tensor:  # (B, m, n) -> (B, m)
        held = {k: a.repeat_interleave(states.shape[1], 0) for k, a in q.memory.items()}
        penalties = box.penalties(shaped(states.reshape(-1, n), q.x), held).reshape(B, -1)
        return penalties + ((states - v[:, None]) ** 2).sum(2) / (2 * eta)

    at, there = cost(z[:, None]), cost(beside)
    tolerance = (
        rounding(box, q, minimiser, {"R": at * (at < FORBIDDEN)})[:, None]
        * (1 + 1 / eta)
        * (1 + v.abs().sum(1, keepdim=True))
    )
    claim = "the cost of prox(v) <= that of a state beside it"
    comparison = Comparison(claim, at.expand_as(there), there, tolerance.expand_as(there), "at most")
    return Evidence.of(comparison, telling=moved(z - v, tolerance.expand_as(z)))


@states(
    "gradient/layer/lagrangian",
    claim="The state map is the gradient of the Lagrangian.",
    formula="g(x) = dL/dx",
    why="The state map and its Lagrangian are two statements of one thing.",
    premise="the gradient is not zero",
    needs={"lagrangian", "both-maps"},
    source="g = dL/dx (Krotov & Hopfield, arXiv 2008.06996)",
    looks_around=True,
)
def map_is_the_lagrangians_gradient(box: Box, q: Question) -> Evidence:
    g = box.mapped(q.x, q.memory)
    lagrangian = box.layer.lagrangian
    assert lagrangian is not None
    expected = box.lagrangians_gradient(q.x)
    tolerance = rounding(box, q, g) + rounding(box, q, expected)
    if not box.caller.kind.differentiable:
        tolerance = tolerance + box.differences(lambda x, _: box.lagrangians(x), q.x)[1]
    return Evidence.of(
        *compared("g = dL/dx", g, expected, tolerance),
        telling=moved(flat(expected), along(tolerance, flat(expected))),
    )


@states(
    "gradient/layer/lagrangian-rate",
    claim="Along the update, the Lagrangian changes by g . dx.",
    formula="dL = g . dx along the update",
    why="A Lagrangian that is right at one point only fits no trajectory.",
    premise="the Lagrangian changes",
    needs={"lagrangian"},
    source="g = dL/dx (Krotov & Hopfield, arXiv 2008.06996)",
)
def lagrangian_moves_with_the_state(box: Box, q: Question) -> Evidence:
    u, g = box.displacement(q), box.mapped(q.x, q.memory)
    steps = flat(u)
    length = 1 + steps.abs().amax(1)

    def central(h: float) -> Tensor:
        ahead, behind = (
            box.lagrangians({k: a + s * h * u[k] / along(length, a) for k, a in q.x.items()}) for s in (1, -1)
        )
        return length * (ahead - behind) / (2 * h)

    expected, values = (flat(g) * steps).sum(1), {"L": box.lagrangians(q.x)[:, None]}
    rate, tolerance = extrapolated(central, width(box), length * rounding(box, q, values, g))
    tolerance = tolerance + rounding(box, q, u, g) * flat(g).abs().sum(1)
    return Evidence.of(Comparison("dL/dt = g . dx/dt", rate, expected, tolerance), telling=moved(expected, tolerance))
