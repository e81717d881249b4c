"""Updates equal energy gradients, and the update field is conservative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller, answered_for_beginnings
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.functions import Function
from cemverify.conformance.oracle.rivals import (
    NO_ACTIVATION,
    NO_BEND,
    NO_DIAGONAL,
    NO_FIRST,
    NO_NORM,
    NO_POSITION,
    NO_PRECONDITIONER,
    OTHER_DIAGONALS,
    OTHER_PRECONDITIONERS,
    SWAPPED_GATE,
    SWAPPED_HEADS,
    Rival,
)
from cemverify.conformance.properties.base import (
    FIRST,
    Check,
    Property,
    answer_is_right,
    states,
    update_property,
)
from cemverify.conformance.properties.derivatives import FEW_COORDINATES, jacobian, untied
from cemverify.conformance.properties.explanations import CONSERVATIVE, Explanation
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import LENGTHS, WIDTHS, Space, mixed

_SHORT, _TURNS = 96, 8  # tokens; so many long rows test every shorter length once


_SOURCES: Mapping[Layer, str] = {
    "attention": "Eq. 1; docs/mathematics.md §4",
    "mlp": "Eq. 7; docs/mathematics.md §2",
}


@states(
    "gradient/{}/conservative-field",
    claim="With the memory fixed, the Jacobian of the update in x is symmetric, and untying the output breaks this.",
    source="Eq. 1 (attention), Eq. 7 (MLP); docs/mathematics.md §2, §4",
    **CONSERVATIVE,
    spaces={
        layer: Space(
            layer,
            step_sizes=(1.0,),
            sizes=FEW_COORDINATES,
            textures=("plain", "repeated-tokens", "non-contiguous"),
        )
        for layer in _SOURCES
    },
    needs={"start"},
    dtype=torch.float64,
    premise="an untied output projection would break the symmetry",
    controls=frozenset({"shuffled"}),
)
def field_is_conservative(caller: Caller, case: Case) -> Evidence:
    """The Jacobian of the update in x, memory fixed, is symmetric: P = I, one step.

    An output turned by a fixed matrix, as an untied output projection would turn it, must break that: only
    then is the example telling.
    """
    case = case.to(torch.float64)
    J, error = jacobian(caller, case)
    got, expected, budget = J, J.mT, error + error.mT
    turned = untied(case.x.shape[1:].numel()) @ J
    telling = moved(turned - turned.mT, budget.max().expand_as(turned) * J.shape[-1])
    return Evidence.of(Comparison("the Jacobian equals its transpose", got, expected, budget), telling=telling)


def right_at_every_length(function: Function, rival: Rival) -> Check:
    """A check of a long row, and of its beginnings: as later tokens are not read, these have the row's answers.

    The lengths up to `_SHORT` take turns, so that a kernel's last block has every possible size.
    """
    check = answer_is_right(function, rival)

    def checked(caller: Caller, case: Case) -> Evidence:
        evidence = check(caller, case)
        if caller.kind.compiles:  # for each length
            return evidence
        case = function.question(case, caller.dtype)
        lengths = list(range(1 + case.turn(_TURNS), min(case.h.shape[1], _SHORT + 1), _TURNS))
        start, expected = function.start(case), function.expected(case)
        tolerance = function.tolerance(case, caller.dtype)
        claim = f"{evidence.comparisons[0].claim}, of the first"
        beginnings = [
            Comparison(f"{claim} {n} tokens alone", got - start[:, :n], (expected - start)[:, :n], tolerance[:, :n])
            for n, got in zip(lengths, answered_for_beginnings(caller, function.name, case, lengths), strict=True)
        ]
        return replace(evidence, comparisons=[*evidence.comparisons, *beginnings])

    return checked


_ATTENTION = "eps(x_i) = -tau sum_k log sum_{j<=i} exp(beta_kj . x_i / tau + b_ijk),  beta_kj = A_k h_j"
_MLP = "xi(x_i) = -(W h_i) . phi(V x_i),  phi' = sigma"
_STEP = "x' = x - eta P g"
_OF_ATTENTION = Explanation(
    formula=f"{_STEP},  g = d eps / dx,  {_ATTENTION}",
    why="This is what makes the layer an energy layer. An untied output, a wrong temperature or a mask off by one "
    "still trains, and every statement about descent is false of it.",
)
_OF_THE_MLP = Explanation(
    formula=f"{_STEP},  g = d xi / dx = -V^T ((W h) * sigma(V x))",
    why="A gated MLP whose gate and down projections are tied is a gradient step; with gate and up exchanged, as the "
    "paper's superscripts suggest, it is not.",
)
_OF_DIAGONALS = Explanation(
    formula=f"{_STEP},  g = d eps / dx,  with A_k = W_Q,k^T W_K,k + diag(d)",
    why="The diagonal belongs to the scores and to the values. If it is left out of the values, as when an existing "
    "attention kernel is given a bias, the update is the gradient of nothing.",
)
_OF_ROTARY = Explanation(
    formula=f"{_STEP},  beta_kij = W_Q,k^T R(i)^T R(j) W_K,k h_j",
    why="The values are the rotated keys, and the sum is rotated back by R(i)^T. The usual rotary attention leaves "
    "values unrotated, which looks right and is not a gradient.",
)
_OF_PRECONDITIONERS = Explanation(
    formula=f"{_STEP},  P = diag(softplus(d)), or with U V^T + V U^T, per head or shared",
    why="The preconditioner turns and scales the gradient. A transposed factor, a missing softplus or a P of the "
    "wrong head still gives a plausible step in another direction.",
)
_OF_NORMS = Explanation(
    formula="x' = x - eta P F,  F the gradient at N(x) = G x / rms(x)  (norm-folded: G F)",
    why="With a norm inside the recursion, the energy is taken at N(x), and so is its gradient. Normalising only "
    "once, or the memory with it, gives another layer.",
)
_OF_ENERGIES = Explanation(
    formula=f"{_ATTENTION};  {_MLP}",
    why="The stated energy is what training curves, probes and proofs of descent are computed from. If it is not the "
    "one that the update descends, they describe another layer.",
)


def properties() -> Iterator[Property]:
    """The update is the energy's gradient step, option by option and combined; fields and stated energies."""
    for name, source, explanation, space, rival in (*_attention_options(), *_mlp_options()):
        layer, space = space.layer, _with_others(space)
        if name == "alibi":  # if tokens are alike or weights saturate, no bias shows
            space = replace(space, textures=("plain", "non-contiguous"))
        yield update_property(
            f"gradient/{layer}/{name}",
            claim="The update is -eta P times the gradient of the energy at x, with the memory fixed.",
            source=source,
            **explanation,
            space=space,
            rival=rival,
            looks_around=True,
        )
    layers: tuple[tuple[Layer, str, Rival, str], ...] = (
        ("attention", "Eq. 12, Algorithm 1", SWAPPED_HEADS,
         "a bias that meets a rotary position, a norm that meets a preconditioner per head"),
        ("mlp", "Eq. 13, Algorithm 1", SWAPPED_GATE, "an activation or a norm that meets a low-rank preconditioner"),
        ("block", "Algorithm 1; docs/mathematics.md §7d", SWAPPED_HEADS,
         "an MLP that reads the state from before the attention's steps, where a norm hides it"),
    )  # fmt: skip
    for layer, source, rival, together in layers:
        steps = (1, 2, 3, 6) if layer != "block" else (1, 2, 3)
        yield update_property(
            f"gradient/{layer}/any-options",
            claim="The update is T steps down the energy, for any combination of options.",
            source=source,
            formula="x^(t+1) = x^(t) - eta P g(N(x^(t)); h),  t = 0 ... T-1",
            why=f"Options that are right one by one can be wrong together: {together}. Every pair of options meets "
            "in some example.",
            space=mixed(layer, steps=steps, apart=layer != "block", rows=None),
            rival=rival,
            looks_around=True,
        )
    yield from _long_rows()
    for layer, source in _SOURCES.items():
        for name, claim, space, rival in _stated_energies(layer):
            yield update_property(
                f"gradient/{layer}/stated-energy-{name}",
                claim=claim,
                source=source,
                **_OF_ENERGIES,
                space=space,
                rival=rival,
                function=f"{layer}_energy",
                looks_around=True,
                since="2026.12" if name == "self-cross-bias" else FIRST,
            )


def _long_rows() -> Iterator[Property]:
    """Rows of dozens and hundreds of tokens: kernels work in blocks of powers of two and may fail at their ends."""
    for name, options in (
        ("long-rows", {}),
        ("long-rows-alibi", {"position": "alibi"}),
        ("long-rows-rotary", {"position": "rotary"}),
        ("long-rows-with-diagonal-and-bias", {"diagonal": "shared", "position": "self-cross"}),
    ):
        yield update_property(
            f"gradient/attention/{name}",
            claim="In rows of up to 300 tokens, and of every length up to 96 in turn, the update is the gradient "
            "step.",
            source="Eq. 1 (sum over j <= i)",
            formula=f"{_STEP},  sums over all j <= i, up to 300 tokens",
            why="Kernels work in blocks of tokens. A mistake at a block's edge, such as a maximum that is not "
            "carried over, does not show in rows that fit one block.",
            space=Space("attention", options, sizes={"J": LENGTHS}, textures=("plain",)),
            rival=NO_FIRST,
            checked=right_at_every_length,
            dtype=torch.float64,
        )
    yield update_property(
        "gradient/attention/wide",
        claim="In models with up to 129 features and 16 heads of dimension up to 33, the update is the gradient "
        "step.",
        source="Eq. 1, 5; docs/mathematics.md §1",
        **_OF_ATTENTION,
        space=Space(
            "attention", choices={"position": ("none", "alibi", "rotary")}, sizes=WIDTHS, textures=("plain",)
        ),
        rival=SWAPPED_HEADS,
        needs={"head-dim"},
        dtype=torch.float64,
    )
    yield update_property(
        "gradient/attention/stated-energy-long-rows",
        claim="In rows of up to 300 tokens, and of every length up to 96 in turn, the stated energy is the paper's.",
        source="Eq. 1 (sum over j <= i)",
        **_OF_ENERGIES,
        space=Space("attention", choices={"position": ("none", "alibi")}, sizes={"J": LENGTHS}, textures=("plain",)),
        rival=NO_FIRST,
        function="attention_energy",
        checked=right_at_every_length,
        dtype=torch.float64,
    )


_INSIDE = "Algorithm 1; docs/mathematics.md §7c"
_Option = tuple[str, str, Explanation, Space, Rival]


def _with_others(space: Space) -> Space:
    """The space, with whatever its one option must be combined with.

    A norm meets preconditioners, with which it need not commute, and both meet a second step. So their faults show in
    a property that names them, not only where all options are mixed.
    """
    if "norm" in space.options and len(space.options) == 1:
        kinds = (space.preconditioner, PreconditionerConfig("low-rank"), PreconditionerConfig("low-rank-printed"))
        return replace(space, preconditioners=kinds, steps=(1, 2))
    return space if space.preconditioner.kind == "identity" else replace(space, steps=(1, 2))


def _attention_options() -> Iterator[_Option]:
    identity = PreconditionerConfig()

    def space(kind: PreconditionerConfig = identity, **options: str) -> Space:
        return Space("attention", options, kind)

    yield "plain", "Eq. 1, 5; docs/mathematics.md §1", _OF_ATTENTION, space(), SWAPPED_HEADS
    source = "Sec. 2.3; docs/mathematics.md §14"
    yield "diagonal-shared", source, _OF_DIAGONALS, space(diagonal="shared"), NO_DIAGONAL
    yield "diagonal-per-head", source, _OF_DIAGONALS, space(diagonal="per-head"), OTHER_DIAGONALS
    slopes = Explanation(
        formula=f"{_STEP},  b_ijk = -m_k |i - j|,  m_k Press's slopes",
        why="The sign decides whether a token attends to its neighbours or to the most distant past, and the slopes "
        "differ from the printed 2^-k unless there are eight heads.",
    )
    yield "alibi", "App. A; docs/mathematics.md §8", slopes, space(position="alibi"), NO_POSITION
    bias = Explanation(
        formula=f"{_STEP},  b_ijk = b_self,k if j = i, else b_cross,k",
        why="A bias on the diagonal of the scores is easily put on the wrong side of the mask, or divided by the "
        "temperature once too often.",
    )
    source = "Sec. 2.3; docs/mathematics.md §8"
    yield "self-cross-bias", source, bias, space(position="self-cross"), NO_POSITION
    yield "rotary", "docs/mathematics.md §13", _OF_ROTARY, space(position="rotary"), NO_POSITION
    both, source = space(position="rotary", diagonal="shared"), "docs/mathematics.md §13, §14"
    yield "rotary-with-shared-diagonal", source, _OF_ROTARY, both, NO_POSITION
    for kind in ("diagonal", "low-rank-printed", "low-rank"):
        source = f"Eq. 12; docs/mathematics.md §6{'(c)' if kind == 'low-rank' else ''}"
        one, each = PreconditionerConfig(kind), PreconditionerConfig(kind, per_head=True)
        yield f"preconditioner-{kind}", source, _OF_PRECONDITIONERS, space(one), NO_PRECONDITIONER
        source, rival = "Eq. 12; docs/mathematics.md §5", OTHER_PRECONDITIONERS
        yield f"preconditioner-{kind}-per-head", source, _OF_PRECONDITIONERS, space(each), rival
    for norm in ("scalar", "channel", "folded"):
        yield f"norm-{norm}", _INSIDE, _OF_NORMS, space(norm=norm), NO_NORM
    printed = PreconditionerConfig("low-rank-printed", per_head=True)
    full = space(printed, diagonal="shared", position="alibi", norm="channel")
    yield "full-cem", "Algorithm 1, App. C.4", _OF_ATTENTION, full, SWAPPED_HEADS


def _mlp_options() -> Iterator[_Option]:
    for activation in ACTIVATIONS:
        rival = SWAPPED_GATE if activation == "identity" else NO_ACTIVATION
        space = Space("mlp", {"activation": activation})
        yield activation, "Eq. 7, 11; docs/mathematics.md §2", _OF_THE_MLP, space, rival
    for kind in ("diagonal", "low-rank-printed", "low-rank"):
        source = f"Eq. 13; docs/mathematics.md §6{'(c)' if kind == 'low-rank' else ''}"
        space = Space("mlp", {}, PreconditionerConfig(kind))
        yield f"preconditioner-{kind}", source, _OF_PRECONDITIONERS, space, NO_PRECONDITIONER
    for norm in ("scalar", "channel", "folded"):
        yield f"norm-{norm}", _INSIDE, _OF_NORMS, Space("mlp", {"norm": norm}), NO_NORM
    full = Space("mlp", {"norm": "channel"}, PreconditionerConfig("low-rank-printed"))
    yield "full-cem", "Algorithm 1, App. C.4", _OF_THE_MLP, full, SWAPPED_GATE


def _stated_energies(layer: Layer) -> Iterator[tuple[str, str, Space, Rival]]:
    attention: Sequence[tuple[str, dict[str, str], Rival]] = (
        ("plain", {}, NO_BEND),
        ("diagonal-shared", {"diagonal": "shared"}, NO_DIAGONAL),
        ("alibi", {"position": "alibi"}, NO_POSITION),
        ("self-cross-bias", {"position": "self-cross"}, NO_POSITION),  # a single key does not cancel it
    )
    mlp = [(name, {"activation": name}, NO_ACTIVATION) for name in ("silu", "gelu")]
    for name, options, rival in attention if layer == "attention" else mlp:
        yield name, "The stated energy is the paper's.", Space(layer, options), rival
    claim = "The stated energy is the paper's, for any combination of options."
    yield "any-options", claim, mixed(layer), SWAPPED_HEADS if layer == "attention" else SWAPPED_GATE
