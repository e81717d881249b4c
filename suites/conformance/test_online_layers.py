"""Layers in which every token is a step: the meaning of a declaration, and what is refused or found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cemverify import online_layer
from cemverify.conformance.asking.boxes import Box, form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import load
from cemverify.conformance.implementations.edited import edited, module_of
from cemverify.conformance.implementations.origin import origin_of
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.questions.black_boxes import crowded, smaller
from suites.conformance.twins import Twin
from suites.kit.judging import judged
from suites.kit.source import ROOT

EXAMPLE, PARALLEL, PACKED, TTT = (
    (ROOT / "examples" / "online_layers" / f"{name}.py").read_text()
    for name in ("gated_delta_rule", "linear_attention", "packed_rows", "ttt_linear")
)
SHAPES: Any = {"state": (2, 3), "tokens": {"k": ("J", 2), "v": ("J", 3), "g": ("J",)}, "output": ("J", 3)}


def read(S: Tensor, m: Any) -> Tensor:
    return torch.einsum("bk,bkv->bv", m.k, S)


def loss(S: Tensor, m: Any) -> Any:
    return (read(S, m) - m.v).square().sum(-1) / 2


def with_edits(*pairs: tuple[str, str], text: str = EXAMPLE) -> Any:
    """An example with edits to its text."""
    return module_of(edited(text, *pairs), "edited_example").mine


def layer(update: Callable[..., Any] = lambda S, m: (m.v, S), **more: Any) -> Any:
    return online_layer(**{"update": update, "loss": loss, "read": read, **SHAPES, **more})


def summing(absent: tuple[str, ...], factor: float = 1.0, **more: Any) -> Any:
    """Linear attention, whose state leaves the domain of initial ones: sums of k v^T, for all tokens at once."""

    def update(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor | None]:
        assert (S is None) == ("first-state" in absent)
        sums = torch.einsum("bjk,bjv->bjkv", m.k, factor * m.v).cumsum(1) + (0 if S is None else S[:, None])
        return torch.einsum("bjk,bjkv->bjv", m.k, sums), None if "last-state" in absent else sums[:, -1]

    overlap = lambda S, m: -torch.einsum("bk,bkv,bv->b", m.k, S, m.v)  # noqa: E731
    return layer(update, loss=overlap, not_offered=absent, **more)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def looped(declared: Any, S: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs and the last state of the loop that a declaration describes."""
    x = type("State", (), {"state": S, "output": None})()
    found = declared.reference.update(x, {"k": k, "v": v, "g": g})
    return found["output"], found["state"]


@pytest.mark.parametrize("how", ["plain", "forgetting", "retained", "momentum", "mini-batches", "P", "read before"])
def test_the_loop_is_that_of_the_page(how: str) -> None:
    """With the closed form of the gradient, k (S^T k - v)^T."""
    S, k, v, g = drawn(1, 2, 3), drawn(1, 5, 2), drawn(1, 5, 3), drawn(1, 5).sigmoid()
    declared = layer(
        step_size=lambda _, m: m.g,
        retain=(lambda S, m: m.g[:, None, None] * S) if how in ("forgetting", "retained") else None,
        gradient_at={"retained": "retained", "mini-batches": 2}.get(how, "before"),
        momentum=0.5 if how == "momentum" else 0.0,
        preconditioner=(lambda _, v, m: m.k[..., None] ** 2 * v) if how == "P" else None,
        reads="before" if how == "read before" else "after",
    )
    outputs, last = looped(declared, S, k, v, g)
    now, moved, first, expected = S[0], torch.zeros(2, 3, dtype=torch.float64), S[0], []
    for t in range(5):
        first = now if t % 2 == 0 else first
        kept = g[0, t] * now if how in ("forgetting", "retained") else now
        at = {"retained": kept, "mini-batches": first}.get(how, now)
        slope = torch.outer(k[0, t], k[0, t] @ at - v[0, t])
        slope = k[0, t][:, None] ** 2 * slope if how == "P" else slope
        moved = (0.5 * moved if how == "momentum" else 0) - g[0, t] * slope
        before, now = now, kept + moved
        expected.append(k[0, t] @ (before if how == "read before" else now))
    assert torch.allclose(last[0], now, rtol=0, atol=1e-12)
    assert torch.allclose(outputs[0], torch.stack(expected), rtol=0, atol=1e-12)


def test_several_steps_of_a_token_are_those_of_as_many_tokens_that_keep_all() -> None:
    """And the last step continues as the rest of a row does."""
    S, k, v = drawn(1, 2, 3), drawn(1, 6, 2), drawn(1, 6, 3)
    more: Any = {"step_size": 0.3, "momentum": 0.5, "output": ("J", 1), "read": lambda S, m: S[:, :1, 0]}
    one = layer(**more, tokens={"k": ("J", 2), "v": ("J", 3)}, state={"S": (2, 3), "M": (2, 3)}, last_step={"S": "M"})
    two = layer(**more, tokens={"k": ("J", 2, 2), "v": ("J", 2, 3)}, several=("k", "v"))
    start: Any = {"S": S, "M": torch.zeros_like(S)}
    for a, b in ((0, 1), (1, 6)):
        x = type("State", (), {**start, "output": None})()
        start = one.reference.update(x, {"k": k[:, a:b], "v": v[:, a:b]})
    x = type("State", (), {"state": S, "output": None})()
    found = two.reference.update(x, {"k": k.reshape(1, 3, 2, 2), "v": v.reshape(1, 3, 2, 3)})
    assert torch.equal(found["state"], start["S"])
    assert torch.equal(found["output"][:, -1:], start["output"][:, -1:])


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.HOLDS), (0.99, Verdict.VIOLATED)])
@pytest.mark.parametrize("absent", [("first-state",), ("last-state",), ("first-state", "last-state")])
def test_a_layer_without_a_state_at_an_end_is_compared_with_the_loop_without_it(
    absent: tuple[str, ...], factor: float, verdict: Verdict
) -> None:
    declared = summing(absent, factor)
    for id_ in ("structure/layer/reference", "training/layer/reference"):
        assert judged(declared, id_, examples=12).verdict == verdict


def test_what_is_declared_is_written_where_its_functions_are() -> None:
    of_rows = layer(update_packed=lambda S, m, _: (m.v, S))
    assert {"update", "loss", "read", "update_packed"} == {*origin_of(of_rows).places}


def test_numpys_loss_is_differentiated_as_closely_as_is_granted() -> None:
    read: Any = lambda S, m: np.einsum("bk,bkv->bv", m.k, S)  # noqa: E731
    numpys = layer(arrays="numpy", step_size=0.1, loss=lambda S, m: ((read(S, m) - m.v) ** 2).sum(-1) / 2, read=read)
    arrays = drawn(2, 2, 3), drawn(2, 9, 2), drawn(2, 9, 3), drawn(2, 9)
    by_differences = looped(numpys, *(a.numpy() for a in arrays))  # type: ignore[arg-type]
    with torch.no_grad():
        by_autograd = looped(layer(step_size=0.1), *arrays)
    for one, other in zip(by_differences, by_autograd, strict=True):
        assert float((torch.as_tensor(one) - other).abs().max()) < 2.0**-30


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"loss": 3}, "loss must be a function, not 3"),
        ({"tokens": {"k": (2,)}}, "at least one with the axis 'J'"),
        ({"state": ("J", 2)}, "the state must not have the axis 'J'"),
        ({"output": (3,)}, "the first axis of an output must be 'J'"),
        ({"state": {"output": (2,)}}, "have the same name"),
        ({"gradient_at": 0}, "'before', 'retained' or a number of tokens, not 0"),
        ({"reads": "never"}, "reads must be 'after' or 'before', not 'never'"),
        ({"momentum": 1.5}, "momentum must be a number from 0 to below 1, or a function f(S, token), not 1.5"),
        ({"step_size": float("nan")}, "step_size must be a finite number, not negative, or a function"),
        ({"retain": 0.9}, "retain must be a function, not 0.9"),
        (
            {"state": 6},
            "the shape of state must be a tuple of letters and of numbers from 1 to 2^31 - 1, not 6",
        ),
        ({"output": {}}, "output must be a shape such as ('J', 8), or a non-empty mapping to shapes, not {}"),
        ({"tokens": {"k": 2}}, "the shape of k must be a tuple of letters"),
        ({"last_step": "M"}, "last_step must map names to names, not 'M'"),
        ({"domain": (0, 1)}, "domain must be a mapping by name, not (0, 1)"),
        ({"not_offered": "pieces"}, "not_offered must be a collection of names: write ('pieces',)"),
        ({"several": "g"}, "several must be a collection of names: write ('g',)"),
        ({"several": ("g",)}, "several must name arrays of the tokens that are ('J', n, ...), all with one n"),
        ({"last_step": {"state": "M"}, "momentum": 0.5}, "last_step needs momentum, and maps arrays of the state"),
        ({"not_offered": ("steps",)}, "unknown feature 'steps'"),
        ({"last_step": None}, "last_step must map names to names, not None"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        layer(**more)


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        (lambda S, m: m.v, "expected a pair: outputs, last state"),
        (lambda S, m: ((m.v, m.v), S), "it returned 2 arrays, expected 1: output"),
        (lambda S, m: (m.v, {"S": S}), "it returned arrays named ['S'], expected ['state']"),
        (lambda S, m: (None, int), "it returned a "),
    ],
)
def test_what_is_no_answer_is_told_as_such(update: Callable[..., Any], sentence: str) -> None:
    for id_ in ("structure/layer/reference", "structure/layer/dtype"):
        record = judged(layer(update, not_offered=("no-state",)), id_, examples=4)
        assert record.verdict == Verdict.VIOLATED
        assert sentence in str(record.reason)


def into_zeros(S: Tensor, m: Any) -> tuple[Tensor, Tensor]:
    outputs = torch.zeros(m.v.shape, dtype=m.v.dtype)
    outputs[:, 0] += m.v[:, 0]
    return outputs, S


def editing_full_batches() -> Any:
    """Edits an array only if its length is a multiple of the mini-batch."""
    edit = ("    outputs = []", "    outputs = []\n    m.q.mul_(1 if m.k.shape[1] % BATCH else 2)")
    return with_edits(("BATCH, D = 4", "BATCH, D = 16"), edit, text=TTT)


def others(name: str, *absent: str) -> Any:
    """A layer written by others, and further features that it may declare absent."""
    layer = load(f"suites.blind.faults:{name}")
    return replace(layer, not_offered={**layer.not_offered, **dict.fromkeys(absent, "declared")})


LOOP, PIECES, DTYPE = "structure/layer/reference", "structure/layer/pieces", "structure/layer/dtype"
SOLVED = ("/ K**0.5)\n    return", "/ K**0.5 + 1e-3)\n    return")
IN_FLOAT32 = ("state=(K, V),", 'state=(K, V),\n    working_dtype="float32",')
SIZE, NARROW = "m.beta[:, t, None] * m.k", "oa_gated_last_state_in_float32"
KEEPING = (
    ("K, V = ", "KEPT = {}\nK, V = "),
    ("= m.k.new_zeros(len(m.k), K, V) if", "= KEPT.get(len(m.k), m.k.new_zeros(len(m.k), K, V)) if"),
    ("return torch.cat(outputs, 1), S", "KEPT[len(m.k)] = S.detach()\n    return torch.cat(outputs, 1), S"),
)
# by the part to be named: one edit of the loop
PARTS = {
    "sign of the step": ("S = S + (", "S = S - ("),
    "forgetting": ("S = m.g[:, t, None, None].exp() * S\n", "\n"),
    "place of the gradient": ("[:, t, None] @ S  #", "[:, t, None] @ (S / m.g[:, t, None, None].exp())  #"),
    "step size": (SIZE, "m.k"),
    "size of the step": (SIZE, f"2 * {SIZE}"),
}
TWINS: dict[str, Twin] = {
    "a solver that stops early may be off by its tolerance": Twin(
        LOOP, lambda: with_edits(SOLVED, ("state=(K, V),", "state=(K, V), tolerance=1e-3,")),
        lambda: with_edits(SOLVED), examples=12),
    "a state that left the domain of first ones is carried on": Twin(
        PIECES, lambda: summing(("no-state",), domain={"state": (0.1, 1)}), examples=12),
    "noise is told from a cut in float32 too": Twin(
        PIECES, lambda: with_edits(IN_FLOAT32), examples=60),
    # the error of its running sums of gates is ten times what the loop's own float32 error would allow
    "a fault of 0.1 % is told from another order of evaluation in float32": Twin(
        LOOP, lambda: with_edits(IN_FLOAT32, text=PARALLEL),
        lambda: with_edits(IN_FLOAT32, (
            "torch.cat(outputs, 1)", "torch.cat([*outputs[:64], *(1.001 * o for o in outputs[64:])], 1)"))),
    "a float32 state of narrow tokens may be declared": Twin(
        DTYPE, lambda: others(NARROW, "narrow-state"), lambda: others(NARROW), examples=60),
    "gradients at the kinks of a map by where": Twin(
        "training/layer/reference", wrong=lambda: others("ob_jax_linear_phi_by_where"), examples=60, arrays="jax"),
    "a loss that is a mean over rows": Twin(
        LOOP, lambda: with_edits(("** 2).sum(-1) / 2", "** 2) / 2")),
        lambda: with_edits((".sum(-1) / 2", ".mean() / 2")),
        reason="the loss returned an array (), expected one number for each row", examples=4),
    "another default dtype": Twin(
        "structure/layer/settings", wrong=lambda: layer(
            lambda S, m: (m.v @ torch.eye(3), S), working_dtype="float32"),
        reason="The default dtype was torch.float64", examples=4),
    "outputs that are written into zeros may not be mapped": Twin(
        "modes/layer/vmap", wrong=partial(layer, into_zeros), reason="add 'vmap' to not_offered", examples=4),
    **{f"a loop that differs in its {part}": Twin(LOOP, wrong=partial(with_edits, pair), part=part, examples=12)
       for part, pair in PARTS.items()},
    # kinds of faults that no mutant has
    "the last state": Twin(LOOP, wrong=lambda: with_edits(
        ("return torch.cat(outputs, 1), S", "return torch.cat(outputs, 1), S * (1 + 1e-6)")), examples=60),
    "a gate almost at the ends of its range": Twin(LOOP, wrong=lambda: with_edits(
        ("m.g[:, t, None, None].exp()", "m.g[:, t, None, None].clamp(-4.99, -0.01).exp()")), examples=60),
    "another row's state": Twin("structure/layer/batch-independence", wrong=lambda: with_edits(
        ("None] @ S / K", "None] @ S.flip(0) / K")), examples=60),
    "an edited array that fills its mini-batches": Twin(
        "structure/layer/inputs-unchanged", wrong=editing_full_batches, examples=60),
    "a state that is kept between calls": Twin("structure/layer/no-state", wrong=lambda: with_edits(*KEEPING),
                                               reason="a second time = the first time", examples=60),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_right_layer_holds_and_its_faulty_twin_is_told_as_what_it_is(name: str) -> None:
    TWINS[name].judge()


def test_every_row_is_long_enough_to_be_cut() -> None:
    record = judged(load("examples.online_layers.ttt_linear:mine"), PIECES, examples=20)
    assert (record.verdict, record.discarded) == (Verdict.HOLDS, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_clamp_is_right_where_the_declared_comparison_has_the_gradient_of_the_other_side(seed: int) -> None:
    """A Huber loss, whose kink lies at whole numbers, which are frequent in questions."""
    record = judged(load("suites.blind.faults:ob_huber"), "training/layer/reference", seed=seed)
    assert record.verdict == Verdict.HOLDS


_BOUNDS = "enumerate(pairwise(bounds.tolist()))"


@pytest.mark.parametrize(
    ("edits", "way", "told"),
    [
        ([("None if S is None else S[i", "S[i")], "packed-rows", "NoneType"),
        ([("rule(S, m._replace(beta", "rule(S + 0, m._replace(beta")], "left-padding", "NoneType"),
        ([("beta=m.beta * mask", "beta=m.beta.mul_(mask)")], "right-padding", "beta after the call"),
        ([("-> tuple[Tensor, Tensor]:\n    return", "-> Any:\n    torch.set_default_dtype(m.k.dtype)\n    return")],
         "left-padding", "it changed default dtype"),
        ([("rows = []", "rows = KEPT.setdefault(str(bounds), [])"), (_BOUNDS, f"() if rows else {_BOUNDS}"),
          ("K, V =", "KEPT = {}\nK, V =")], "packed-rows", "rows end to end = each row"),
    ],
)  # fmt: skip
def test_functions_of_rows_of_many_lengths_keep_the_contract_of_a_call(
    edits: list[tuple[str, str]], way: str, told: str
) -> None:
    """They also start without a state, leave arguments and settings unchanged, and remember no earlier calls."""
    record = judged(with_edits(*edits, text=PACKED), f"structure/layer/{way}", examples=12)
    assert record.verdict == Verdict.VIOLATED
    assert told in str(record.reason)


@pytest.mark.parametrize(
    ("right", "wrong", "ways"),
    [
        ("torch.cat([o for o, _ in rows], 1),", "torch.cat([o.detach() for o, _ in rows], 1),", ["packed-rows"]),
        ("torch.cat([S for _, S in rows])", "torch.cat([S.detach() for _, S in rows])", ["packed-rows"]),
        ("return gated_delta_rule(S,", "return halved_gradients(S,", ["left-padding", "right-padding"]),
    ],
)
def test_gradients_of_rows_of_many_lengths_are_those_of_each_row(right: str, wrong: str, ways: list[str]) -> None:
    half = "def halved_gradients(S, m):\n    return tuple((a + a.detach()) / 2 for a in gated_delta_rule(S, m))\n\n\n"
    wrong_layer = with_edits((right, wrong), ("def padded(", half + "def padded("), text=PACKED)
    for way in ways:
        record = judged(wrong_layer, f"training/layer/{way}", examples=12)
        assert record.verdict == Verdict.VIOLATED
        assert str(record.key).startswith("product")
        assert judged(wrong_layer, f"structure/layer/{way}", examples=12).verdict == Verdict.HOLDS


def test_a_long_row_loses_halves_before_single_tokens() -> None:
    form = form_of(layer())
    q = crowded(form, 1, letter="J", size=226).rows([0])
    assert [each.memory["k"].shape[1] for each in islice(smaller(q, form), 4)] == [113, 113, 170, 170]


def test_numbers_go_near_the_ends_of_intervals_but_for_those_that_a_sampler_draws() -> None:
    declared = layer(domain={"k": (0, 1), "v": (0, 1)}, draw={"k": lambda g, shape: torch.rand(shape, generator=g)})
    box = Box.of(Caller(declared))
    q = box.asked(crowded(box.form, 2, letter="J", size=64))
    near = box.near_ends(q).memory
    assert {name for name, a in q.memory.items() if not torch.equal(a, near[name])} == {"v"}
    ends = near["v"][near["v"] != q.memory["v"]]
    assert set(ends.tolist()) == {2.0**-11, 1 - 2.0**-11}
