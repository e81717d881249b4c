"""Bad input raises a clear error from the implementation itself: a ValueError or TypeError with a message.

Returning an output is a violation, and so is any other error that a tensor library raises deep inside. So is a
setting of the process that the refused call leaves changed, or an argument: what a function sets and puts back at its
end, it must put back where it raises, too.

Weights are spoiled one by one, in cases of more than one feature, where nothing that is too short could be broadcast.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations.faults import Raised, words
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties.base import Explanation, Over, Property, Questions
from cemverify.conformance.properties.contract.arguments import form_of, held
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.properties.sizes import OneAfterTheOther
from cemverify.conformance.questions.cases import Case, Layer, unchecked
from cemverify.conformance.questions.spaces import Space

Spoil = Callable[[Case], Iterable[tuple[str, Case]]]  # ways to spoil a case, each in a word or two


def rejects(spoil: Spoil) -> Callable[[Caller, Case], Evidence]:
    """A check that the valid case is answered and that each of its spoiled ones is refused."""

    def check(caller: Caller, case: Case) -> Evidence:
        caller.output(case)
        for way, spoiled in spoil(case):
            outcome = _outcome(caller, case.layer, spoiled)
            if outcome != "refused":
                what = f"bad input is refused (1 = yes): {way}: it {outcome}"
                return judge(Comparison(what, torch.zeros(1), torch.ones(1), torch.zeros(1)))
        return judge(Comparison("bad input is refused (1 = yes)", torch.ones(1), torch.ones(1), torch.zeros(1)))

    return check


@experiment()
def _outcome(caller: Caller, name: str, case: Case) -> str:
    """What a call with bad input came to: "refused", or what it did instead."""
    x, h, weights = caller.arguments(case)
    config, changed = copy.deepcopy(case.config), []
    given = {"x": x, "h": h, **weights}
    before_it = {key: (as_tensor(array), form_of(array)) for key, array in given.items()}
    try:
        with caller.guarded():
            before = ProcessState.now()
            try:
                caller.functions[name](x, h, weights, config)
            finally:
                changed = [f"the process's {setting}" for setting in before.changed()]
                before.restore()
                changed += [key for key, array in given.items() if not _is_as_it_was(array, *before_it[key])]
                if list(weights) != list(case.weights) or any(w is not given[key] for key, w in weights.items()):
                    changed.append("the mapping of weights")
                if held(config) != held(case.config):
                    changed.append("the configuration")
    except Raised as raised:
        error = raised.__cause__
        assert error is not None
        if not isinstance(error, ValueError | TypeError):
            return f"raised {words(error)}, which is not a ValueError or TypeError"
        if not error.args:
            return f"raised {words(error)} without a message"
        return f"left {', '.join(changed)} changed" if changed else "refused"
    return "accepted it"


def _is_as_it_was(array: Any, numbers: Tensor, form: dict[str, Any]) -> bool:
    """Whether an argument has the numbers and the form that it had; NaN is NaN."""
    return form_of(array) == form and torch.equal(as_tensor(array).nan_to_num(0.5), numbers.nan_to_num(0.5))


def properties() -> Iterator[Property]:
    """Each way of spoiling a case, for attention and for the MLP."""
    both: tuple[Layer, ...] = ("attention", "mlp")
    for layer in both:
        arrays: list[tuple[str, str, Spoil]] = [
            ("nan-input", "NaN anywhere in x", _nan_x),
            ("mismatched-memory", "x and h with different numbers of tokens", _other_memory),
        ]
        weights: list[tuple[str, str, Spoil]] = [
            (
                "wrong-weight-shape",
                "a weight with an axis one too long, or cut to length 1, or transposed, or one more or one fewer",
                _misshapen,
            ),
            ("integer-input", "x, h or a weight with an integer dtype", _integers),
            ("not-finite", "infinity in x, or NaN or infinity in h or a weight", _not_finite),
        ]
        for name, what, spoil in weights:
            spaces = _with_each_weight(layer)
            found = _property(layer, name, what, spoil, OneAfterTheOther(tuple(spaces)))
            # each space once at 60 examples
            yield replace(found, scattered=len(spaces) / 3)
        for name, what, spoil in arrays:
            yield _property(layer, name, what, spoil, Over(mixed(layer, textures=("plain",))))
        spoiled: list[tuple[str, str, Spoil]] = [
            ("zero-steps", "T = 0", _config(steps=0)),
            ("negative-step-size", "a negative step size", _config(step_size=-1.0)),
        ]
        if layer == "attention":
            spoiled += [
                ("negative-temperature", "a negative temperature", _config(temperature=-1.0)),
                ("zero-temperature", "a temperature of zero", _config(temperature=0.0)),
            ]
        for name, what, spoil in spoiled:
            yield _property(layer, name, what, spoil, Over(Space(layer, textures=("plain",))))


# every weight that there is, each with an option of its own, so that an implementation without one is asked the rest
_PER_HEAD = PreconditionerConfig("low-rank-printed", per_head=True)
_KINDS = (PreconditionerConfig("diagonal"), PreconditionerConfig("low-rank"))
_NORMS = tuple({"norm": norm} for norm in ("scalar", "channel", "folded"))
_BIASES = ({"diagonal": "shared"}, {"diagonal": "per-head"}, {"position": "self-cross"})
# no two axes of a weight alike, and none of length 1
_SIZES = {"B": (2,), "J": (3,), "D": (6, 8), "K": (2,), "R": (4,), "M": (5,), "rank": (3,)}


def _with_each_weight(layer: Layer) -> Sequence[Space]:
    options = (*_NORMS, *(_BIASES if layer == "attention" else ()))
    kinds = (*_KINDS, *((_PER_HEAD,) if layer == "attention" else ()))
    spaces = [
        Space(layer),
        *(Space(layer, option) for option in options),
        *(Space(layer, {}, kind) for kind in kinds),
    ]
    return [replace(space, sizes=_SIZES, textures=("plain",)) for space in spaces]


_NEEDS = {
    "zero-steps": {"steps"},
    "negative-step-size": {"step-size"},
    "negative-temperature": {"temperature"},
    "zero-temperature": {"temperature"},
    "mismatched-memory": {"start"},
}


def _property(layer: Layer, name: str, what: str, spoil: Spoil, questions: Questions) -> Property:
    return Property(
        f"rejection/{layer}/{name}",
        f"{what[0].upper()}{what[1:]} raises a ValueError or TypeError with a message.",
        "contract",
        Explanation(
            "F(bad input) raises ValueError or TypeError with a message, and changes nothing else; F(good) does not",
            "Bad input that is accepted broadcasts, truncates or spreads NaN, and is found weeks later.",
        ),
        rejects(spoil),
        questions,
        Space(layer).features() | {"validation"} | _NEEDS.get(name, set()),
        share=0.15,
        premise="the valid input is answered",
        floor=1.0,
        controls=frozenset({"identity"}),
    )


def _misshapen(case: Case) -> Iterator[tuple[str, Case]]:
    for name, w in case.weights.items():
        for way, wrong in _wrong_shapes(w).items():
            yield f"{name} with {way}", replace(case, weights={**case.weights, name: wrong})
        if w.dim() > 1 and w.shape[-1] != w.shape[-2]:  # as many numbers, in another order
            yield f"{name} transposed", replace(case, weights={**case.weights, name: w.mT.contiguous()})


def _wrong_shapes(w: Tensor) -> dict[str, Tensor]:
    """Weights of other shapes, by what is wrong with them."""
    ways = {"an axis more": w[None], "an axis more at its end": w[..., None]}
    for axis in range(w.dim()):
        first = w.narrow(axis, 0, 1)
        ways[f"axis {axis} one too long"] = torch.cat((w, first), axis)
        ways[f"no axis {axis}"] = w.select(axis, 0)
        if w.shape[axis] > 1:
            ways[f"axis {axis} cut to length 1"] = first
    return {way: wrong.contiguous() for way, wrong in ways.items()}


def _other_memory(case: Case) -> Iterator[tuple[str, Case]]:
    yield "h with a token more", replace(case, h=torch.cat((case.h, case.h[:, :1]), dim=1))
    if case.h.shape[1] > 1:
        yield "h with a token less", replace(case, h=case.h[:, 1:])


def _integers(case: Case) -> Iterator[tuple[str, Case]]:
    yield "x of integers", _with_x(case, case.x.to(torch.int64))
    if case.h is not case.x:
        yield "h of integers", replace(case, h=case.h.to(torch.int64))
    for name, w in case.weights.items():
        yield f"{name} of integers", replace(case, weights={**case.weights, name: w.to(torch.int64)})


def _nan_x(case: Case) -> Iterator[tuple[str, Case]]:
    B, J, D = case.x.shape
    for row, token, feature in sorted({(0, J - 1, 0), (B - 1, 0, D - 1), (B // 2, J // 2, D // 2)}):
        x: Tensor = case.x.clone()
        x[row, token, feature] = math.nan
        yield f"NaN in row {row}, token {token}", _with_x(case, x)


def _not_finite(case: Case) -> Iterator[tuple[str, Case]]:
    arrays = {"x": case.x, **({} if case.h is case.x else {"h": case.h}), **case.weights}
    for name, array in arrays.items():
        values = (math.inf, -math.inf) if name == "x" else (math.nan, math.inf, -math.inf)
        for turn, value in enumerate(values):
            spoiled = array.clone().flatten()
            spoiled[(-1, 0, len(spoiled) // 2)[turn]] = value
            spoiled = spoiled.reshape(array.shape)
            said = f"{value} in {name}"
            match name:
                case "x":
                    yield said, _with_x(case, spoiled)
                case "h":
                    yield said, replace(case, h=spoiled)
                case _:
                    yield said, replace(case, weights={**case.weights, name: spoiled})


def _with_x(case: Case, x: Tensor) -> Case:
    """Replaces x, and h too if the two are one array, because a layer may read either."""
    return replace(case, x=x, h=x if case.h is case.x else case.h)


def _config(**options: float) -> Spoil:
    said = ", ".join(f"{name} = {value:g}" for name, value in options.items())
    return lambda case: [(said, replace(case, config=unchecked(case.config, **options)))]
