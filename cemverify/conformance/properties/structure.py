"""What an output may depend on, and what a call may do: causality, independence, head order, purity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.boxes import finite as all_finite
from cemverify.conformance.asking.calls import Caller, finite
from cemverify.conformance.asking.experiments import experiment, long_experiment
from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.properties.base import Over, Property
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.properties.rivals import NO_MASK
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space

Check = Callable[[Caller, Case], Evidence]

_READS_OTHERS = frozenset({"random", "shuffled"})
_HEADS = "the heads differ, and the update is not zero"
_ROWS: dict[str, Any] = {
    "premise": "the rows of the batch differ, and the update is not zero",
    "controls": frozenset({"random"}),
}
_ANSWERS: dict[str, Any] = {"premise": "the call returns an answer", "floor": 1.0}


def future_is_not_read(caller: Caller, case: Case) -> Evidence:
    """Changing the tokens from some position on does not change the outputs before it."""
    return _prefix(
        caller,
        case,
        "outputs before token i are unchanged when tokens t from i on become 3 - 2t, in reverse order",
    )


def tokens_are_independent(caller: Caller, case: Case) -> Evidence:
    """The MLP's output at a token depends on that token only: changing all others changes nothing there."""
    case = case.to(caller.dtype).to(torch.float64)
    changed = replace(case, x=_but_first(case.x), h=_but_first(case.h))
    budget = output_budget(case, caller.dtype)[:, :1]
    got, expected = caller.output(changed)[:, :1], caller.output(case)[:, :1]
    differs = case.x.shape[1] > 1
    return _unchanged(
        "the first token's output is unchanged when the others change",
        got,
        expected,
        case.x[:, :1],
        budget,
        differs=differs,
    )


def batch_rows_are_independent(caller: Caller, case: Case) -> Evidence:
    """A batch row alone gives the same output as in the batch."""
    case = case.to(caller.dtype).to(torch.float64)
    alone = replace(case, x=case.x[:1], h=case.h[:1])
    budget = output_budget(alone, caller.dtype)
    got, expected = caller.output(alone), caller.output(case)[:1]
    differs = not torch.equal(case.h[0], case.h[1])
    return _unchanged("a batch row alone = the same row in a batch", got, expected, alone.x, budget, differs=differs)


def head_order_is_free(caller: Caller, case: Case) -> Evidence:
    """Reversing the order of the heads, with everything that belongs to them, changes nothing."""
    case = case.to(caller.dtype).to(torch.float64)
    per_head = {"W_Q", "W_K", "to_self", "to_others"}
    if case.attention.diagonal == "per-head":
        per_head.add("diagonal")
    if case.attention.preconditioner.per_head:
        per_head |= {"P_d", "P_U", "P_V"}
    weights = {name: w.flip(0) if name in per_head else w for name, w in case.weights.items()}
    budget = output_budget(case, caller.dtype)
    got, expected = caller.output(replace(case, weights=weights)), caller.output(case)
    differs = any(not torch.equal(w, case.weights[name]) for name, w in weights.items())
    return _unchanged("output with the heads reversed", got, expected, case.x, budget, differs=differs)


def inputs_are_left_alone(name: str) -> Check:
    """A check that a call of that function leaves x, h and the weights unchanged, bit for bit."""

    def check(caller: Caller, case: Case) -> Evidence:
        case = case.to(caller.dtype).to(torch.float64)
        kept, after, flags = _around_a_call(caller, name, case)
        before = {"x": case.x, "h": case.h, **case.weights}
        one, zero = torch.ones(1), torch.zeros(1)
        return judge(
            Comparison("the mapping of weights keeps its names (1 = yes)", one * kept, one, zero),
            *(
                Comparison(f"{key} after the call", array, before[key], zero[0])
                for key, array in all_finite(after, before).items()
            ),
            *(
                Comparison(
                    f"{key} requires gradients after the call (1 = yes)", one * flags.get(key, True), zero, zero
                )
                for key in before
            ),
        )

    return check


@experiment
def _around_a_call(caller: Caller, name: str, case: Case) -> tuple[bool, dict[str, Tensor], dict[str, bool]]:
    """After a call: whether the weights kept their names, all arrays, and whether they now require gradients."""
    x, h, weights = caller.arguments(case)
    arrays = {"x": x, "h": h, **weights}
    caller.call(name, case, x, h, weights)
    after = {key: as_tensor(array) for key, array in arrays.items()}
    flags = {key: bool(getattr(array, "requires_grad", False)) for key, array in arrays.items()}
    return weights.keys() == case.weights.keys(), after, flags


def one_array_is_two(caller: Caller, case: Case) -> Evidence:
    """x and h may be one array, as in self-attention; the output is that for two equal arrays."""
    case = replace(case, x=case.h).to(caller.dtype).to(torch.float64)
    budget = output_budget(case, caller.dtype)
    got = finite(_of_one_array(caller, case), case.h.shape)
    due = golden(case)
    comparison = Comparison("output with x and h as one array = golden output", got, due, budget)
    return judge(comparison, telling=moved(due - case.x, budget))


@experiment
def _of_one_array(caller: Caller, case: Case) -> Tensor:
    _, h, weights = caller.arguments(case)
    return as_tensor(caller.call(case.layer, case, h, h, weights), case.h.shape)


def settings_are_left_alone(caller: Caller, case: Case) -> Evidence:
    """A call changes no setting of the process and does not seed its random generator, but it may draw from it."""
    kept = _settings_kept(caller, case.to(caller.dtype).to(torch.float64))
    one = torch.ones(1)
    return judge(
        *(
            Comparison(f"the process keeps its {what} (1 = yes)", one * kept.get(name, False), one, 0 * one)
            for name, what in _SETTINGS.items()
        )
    )


@long_experiment
def _settings_kept(caller: Caller, case: Case) -> dict[str, bool]:
    """Of each setting, whether two calls left it as it was."""
    states = []
    with torch.random.fork_rng(devices=()), caller.guarded():
        before = ProcessState.now()
        for seed in (1, 2):
            torch.manual_seed(seed)
            x, h, weights = caller.arguments(case)
            arguments = (h, weights) if case.layer == "block" else (x, h, weights)
            caller.functions[case.layer](*arguments, case.config)
            states.append(torch.get_rng_state())
        after = ProcessState.now()
    kept = {name: getattr(before, name) == getattr(after, name) for name in _SETTINGS if name != "seed"}
    return {**kept, "seed": not torch.equal(*states)}


_SETTINGS = {
    "gradients": "gradient mode",
    "dtype": "default dtype",
    "device": "default device",
    "threads": "number of threads",
    "numpy_errors": "NumPy error handling",
    "folder": "folder",
    "tracing": "trace and profile functions",
    "seed": "random state",
}


def twice_gives_the_same(caller: Caller, case: Case) -> Evidence:
    """The same call returns the same bits, with and without another call in between."""
    case = case.to(caller.dtype).to(torch.float64)
    first = caller.output(case)
    between = caller.output(replace(case, x=case.x + 1, h=case.h + 1))
    second = caller.output(case)
    third = caller.output(case)  # at once, which shows what happens on every second call
    return judge(
        Comparison("second call = first call", second, first, torch.zeros(())),
        Comparison("third call = second call", third, second, torch.zeros(())),
        telling=not torch.equal(between, first),
    )


def numbers_are_read_anew(caller: Caller, case: Case) -> Evidence:
    """If the same arrays get new values, as weights do from an optimiser, the output is that for the new values."""
    case = case.to(caller.dtype).to(torch.float64)
    other = _half(case)
    before, later, got = (finite(answer, case.h.shape) for answer in _of_edited_arrays(caller, case, other))
    stays = Comparison("an output after the next call = before it", later, before, torch.zeros(()))
    expected, budget = golden(other), output_budget(other, caller.dtype)
    comparison = Comparison("output for edited arrays = output for new arrays", got, expected, budget)
    return judge(stays, comparison, telling=moved(golden(case) - case.x - (expected - other.x), budget))


@long_experiment
def _of_edited_arrays(caller: Caller, case: Case, other: Case) -> tuple[Tensor, Tensor, Tensor]:
    """The answer to a case, the same answer after another call, and the answer once the arrays hold other numbers."""
    x, h, weights = caller.arguments(case)
    first = caller.call(case.layer, case, x, h, weights)
    before = as_tensor(first, case.h.shape)
    caller.output(other)
    later = as_tensor(first)
    caller.call(case.layer, case, x, h, weights)
    new_x, new_h, new_weights = caller.arguments(other)
    arrays = [x, h, *weights.values()]
    fresh = [new_x, new_h, *(new_weights[name] for name in weights)]
    if caller.subject.arrays == "jax":  # whose arrays nobody can edit
        x, h, weights = new_x, new_h, new_weights
    else:
        for array, numbers in zip(arrays, fresh, strict=True):
            array[...] = numbers
    return before, later, as_tensor(caller.call(case.layer, other, x, h, weights), case.h.shape)


def windows_are_read_as_they_are(caller: Caller, case: Case) -> Evidence:
    """Views into larger arrays, a memory shared by all batch rows, and weights in any order are read correctly."""
    case = case.to(caller.dtype).to(torch.float64)
    h = case.h[:1].expand_as(case.h).contiguous()
    case = replace(case, x=h if case.x is case.h else case.x, h=h)
    got = finite(_of_windows(caller, case), case.h.shape)
    expected, budget = golden(case), output_budget(case, caller.dtype)
    comparison = Comparison("output for views, with the weights in reverse order", got, expected, budget)
    return judge(comparison, telling=moved(expected - case.x, budget))


@experiment
def _of_windows(caller: Caller, case: Case) -> Tensor:
    x, h, weights = caller.arguments(case)
    if caller.subject.arrays != "jax":  # which has no views
        x, h = _window(x), _window(h)
        weights = {name: _window(array) for name, array in weights.items()}
    if isinstance(h, Tensor):
        h = h[:1].expand_as(h)
    weights = {name: weights[name] for name in reversed(weights)}
    return as_tensor(caller.call(case.layer, case, x, h, weights), case.h.shape)


def _half(case: Case) -> Case:
    """Every number halved, and x read backwards, so that all of them change."""
    weights = {name: w / 2 for name, w in case.weights.items()}
    h = case.h / 2
    return replace(case, x=h if case.x is case.h else case.x.flip(1) / 2, h=h, weights=weights)


def _window(array: Any) -> Any:
    """The same values at every second place of a larger array, between nines that must not be read."""
    larger = array.repeat_interleave(2, 0) if isinstance(array, Tensor) else array.repeat(2, 0)
    larger[::2] = 9.0
    return larger[1::2]


def dtype_is_kept(name: str) -> Check:
    """A check that the output of that function has the dtype of x. Its shape is checked on every call."""

    def check(caller: Caller, case: Case) -> Evidence:
        # NumPy and JAX promote by habit; torch does not
        also = caller.subject.arrays == "torch" and "dtype:float32" not in caller.subject.not_offered
        dtypes = {caller.dtype, torch.float32} if also else {caller.dtype}
        comparisons = []
        for dtype in sorted(dtypes, key=str):
            same, returned, given = _dtypes(caller.at(dtype), name, case)
            what = f"shape and dtype {returned} are x's, {given} (1 = yes)"
            comparisons.append(Comparison(what, torch.ones(1) * same, torch.ones(1), torch.zeros(1)))
        return judge(*comparisons)

    return check


@experiment
def _dtypes(caller: Caller, name: str, case: Case) -> tuple[bool, str, str]:
    """Whether the answer has x's shape and dtype, and the two dtypes."""
    given, returned = caller.array(case.x), caller.raw(name, case)
    same = as_tensor(returned).shape == case.x.shape and returned.dtype == given.dtype
    return bool(same), str(returned.dtype), str(given.dtype)


def properties() -> Iterator[Property]:
    """The properties of the family."""
    rich = {"diagonal": "per-head", "position": "self-cross"}
    for name, options in (("causality", {}), ("causality-with-diagonal-and-bias", rich)):
        space = Space("attention", options, steps=(1, 2), tokens=2)
        yield _property(
            f"attention/{name}",
            "A token's output does not depend on later tokens, in x or in the memory.",
            "Eq. 1 (sum over j <= i)",
            future_is_not_read,
            space,
            premise=NO_MASK.premise,
            controls=_READS_OTHERS,
        )
    space = Space("mlp", steps=(1, 2), tokens=2)
    yield _property(
        "mlp/token-independence",
        "A token's output depends on that token only.",
        "Eq. 7",
        tokens_are_independent,
        space,
        premise="the update is not zero",
        controls=_READS_OTHERS,
    )
    layers: tuple[Layer, ...] = ("attention", "mlp")
    for layer in layers:
        space = Space(layer, steps=(1, 2), batch=2)
        claim = "A batch row's output does not depend on the other rows."
        yield _property(f"{layer}/batch-independence", claim, "Eq. 1, 7", batch_rows_are_independent, space, **_ROWS)
    for name, options, preconditioner in (
        ("head-order", {}, PreconditionerConfig()),
        ("head-order-with-per-head-diagonal", {"diagonal": "per-head"}, PreconditionerConfig()),
        ("head-order-with-per-head-preconditioner", {}, PreconditionerConfig("diagonal", per_head=True)),
    ):
        space = Space("attention", options, preconditioner, steps=(1, 2))
        claim = "The order of the heads does not matter."
        yield _property(f"attention/{name}", claim, "Eq. 1 (sum over k)", head_order_is_free, space, premise=_HEADS)
    block = mixed("block", steps=(1, 2), apart=False, tokens=2, batch=2)
    claim = "A token's output from the block does not depend on later tokens."
    source = "Eq. 1 (sum over j <= i)"
    vacuity: dict[str, Any] = {"premise": NO_MASK.premise, "controls": _READS_OTHERS}
    yield _property("block/causality", claim, source, future_is_not_read, block, **vacuity)
    claim = "A batch row's output from the block does not depend on the other rows."
    yield _property("block/batch-independence", claim, "Eq. 1, 7", batch_rows_are_independent, block, **_ROWS)
    for layer in (*layers, "block"):
        space = Space(layer, steps=(1, 2), apart=layer != "block")
        claim = "The same call returns the same bits, whatever was called in between."
        property_ = _property(f"{layer}/determinism", claim, "contract", twice_gives_the_same, space, share=0.4)
        yield replace(property_, once=True, premise="the call in between returns something else", floor=0.9)
    for layer in (*layers, "block"):
        space = Space(layer, steps=(1, 2), apart=layer != "block", textures=("plain", "non-contiguous"))
        for name, claim, check in (
            ("edited-arrays", "Edited arrays are read again, and earlier outputs do not change.",
             numbers_are_read_anew),
            ("windows", "Views into larger arrays are read correctly, and weights may come in any order.",
             windows_are_read_as_they_are),
        ):  # fmt: skip
            premise = (
                "other numbers would give another output" if name == "edited-arrays" else "the update is not zero"
            )
            yield _property(f"{layer}/{name}", claim, "contract", check, space, share=0.3, premise=premise)
        claim = f"A call of the {layer} leaves the settings of the process and its random seed unchanged."
        yield _property(
            f"{layer}/settings-unchanged", claim, "contract", settings_are_left_alone, space, share=0.2, **_ANSWERS
        )
    for layer in layers:
        yield _property(
            f"{layer}/one-array",
            "x and h may be the same array; the output is that for two equal arrays.",
            "contract",
            one_array_is_two,
            Space(layer, steps=(1, 2), apart=False),
            share=0.2,
            premise="the update is not zero",
            controls=frozenset({"random"}),
        )
    functions: tuple[tuple[str, Layer], ...] = (("attention", "attention"), ("mlp", "mlp"), ("block", "block"),
        ("decode", "attention"), ("attention_energy", "attention"), ("mlp_energy", "mlp"))  # fmt: skip
    for name, layer in functions:
        space = Space(layer, steps=(1, 2), apart=name not in ("block", "decode"))
        words = name.replace("_", "-")
        claim = f"A call of {name} leaves x, h and the weights unchanged."
        yield _property(
            f"{words}/inputs-unchanged",
            claim,
            "contract",
            inputs_are_left_alone(name),
            space,
            {name},
            0.4,
            **_ANSWERS,
        )
        if not name.endswith("energy"):
            claim = f"The output of {name} has the shape and the dtype of x."
            yield _property(
                f"{words}/shape-and-dtype", claim, "contract", dtype_is_kept(name), space, {name}, 0.4, **_ANSWERS
            )


def _property(
    name: str,
    claim: str,
    source: str,
    check: Any,
    space: Space,
    needs: set[str] | None = None,
    share: float = 0.6,
    **vacuity: Any,
) -> Property:
    features = (space.features() - {space.layer} | needs) if needs else space.features()
    return Property(f"structure/{name}", claim, source, check, Over(space), features, share=share, **vacuity)


def _prefix(caller: Caller, case: Case, what: str) -> Evidence:
    case = case.to(caller.dtype).to(torch.float64)
    J = case.x.shape[1]
    before = caller.output(case)
    budget = output_budget(case, caller.dtype)
    got, expected, room = [], [], []
    for i in range(1, J):
        changed = replace(case, x=_changed_from(case.x, i), h=_changed_from(case.h, i))
        got.append(caller.output(changed)[:, :i])
        expected.append(before[:, :i])
        room.append(budget[:, :i])
    if not got:
        raise Discard("a single token has no future")
    comparison = Comparison(what, torch.cat(got, 1), torch.cat(expected, 1), 2 * torch.cat(room, 1))
    return judge(comparison, telling=NO_MASK.shows(case, golden(case), budget))


def _changed_from(tokens: Tensor, i: int) -> Tensor:
    """Tokens i and later replaced by others of the same magnitude."""
    changed = tokens.clone()
    changed[:, i:] = 3.0 - 2.0 * changed[:, i:].flip(1)
    return changed


def _but_first(tokens: Tensor) -> Tensor:
    return _changed_from(tokens, 1)


def _unchanged(what: str, got: Tensor, expected: Tensor, start: Tensor, budget: Tensor, *, differs: bool) -> Evidence:
    """Two runs of the implementation, each within its budget of the truth.

    They tell if what was asked differs in what may not matter, and the update is not zero.
    """
    return judge(Comparison(what, got, expected, 2 * budget), telling=differs and moved(expected - start, budget))
