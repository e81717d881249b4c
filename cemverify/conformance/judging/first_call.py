"""One ordinary call of each function before anything is tested.

If that fails, so does every property, and each would report the same in other words: a wrong name of a weight,
another dtype, a result of another shape, an interpreter that ends. It is reported once, with advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.boxes import Box, flat, form_of
from cemverify.conformance.asking.calls import Caller, traced_anew
from cemverify.conformance.asking.experiments import Lost
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.contract.arrays import dtype_is_kept
from cemverify.conformance.properties.layers.calls import widths
from cemverify.conformance.properties.layers.contract import answers_have_the_arguments_dtype
from cemverify.conformance.questions.black_boxes import Question, scattered
from cemverify.conformance.questions.cases import Case, Config, dense_case
from cemverify.conformance.source.reach.summary import SharedFunction, Trail
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.functions import places_of

Answer = list[float]

_ALIKE = 1e-3  # of the largest number: far above roundoff, in float32 too, and far below other weights
_B, _J, _D, _K, HEAD_DIM = 2, 3, 4, 2, 2  # rows, tokens, dimensions, heads and their width
_LOWER = dict.fromkeys(("dtype:float32", "dtype:bfloat16", "dtype:float16"), "the first call is in one dtype")
_DTYPE = (
    "Keep the dtype of the arguments: convert weights and constants (weight.to(x.dtype)), declare an energy "
    "layer's working_dtype='float32', or run in float32 throughout with --dtype float32"
)


def first_calls(caller: Caller, functions: Collection[str]) -> str | None:
    """Makes one ordinary call to each of these functions of an implementation, or to an energy layer.

    Numbers are not checked; that is the task of the properties.

    Args:
        functions: names out of FUNCTIONS.

    Returns:
        Why the first that failed did, with advice; None if each returned an array of the right kind, dtype and shape.

    Raises:
        Lost: the process hangs or is gone.
    """
    subject = caller.subject
    caller = replace(caller, subject=replace(subject, not_offered={**subject.not_offered, **_LOWER}))
    if isinstance(subject, EnergyLayer):
        reason = _reason("update", lambda: _of_a_layer(Box.of(caller)))
        return reason and reason + _of_one_array(subject, reason)
    for function in EVERY:
        if function.name in functions and function.name in caller.functions:
            case = function.question(ordinary(function, subject.not_offered), caller.dtype)
            reason = _reason(function.name, partial(dtype_is_kept, function, caller, case))
            if reason is not None:
                return reason
    return None


def shown_twice(caller: Caller) -> Answer | None:
    """An energy layer's answer to the ordinary question, as numbers to compare with those of another process.

    Returns:
        None if the layer declares its parameters, which are then compared, or answers two calls differently.

    Raises:
        Lost: the process hangs or is gone.
    """
    subject = caller.subject
    if not isinstance(subject, EnergyLayer) or subject.parameters:
        return None
    box = Box.of(caller)
    try:
        first, second = (flat(box.displacement(_question(box)))[0].tolist() for _ in range(2))
    except Lost:
        raise
    except (Fault, Discard):
        return None
    return first if alike(first, second) else None


def shared_functions(caller: Caller, code: OwnCode, ran: Callable[[], Trail]) -> tuple[SharedFunction, ...]:
    """The functions that run in an energy layer's update and in another function that it declares, each called once.

    Args:
        ran: gives what ran since it was last called.

    Raises:
        Lost: the process hangs or is gone.
    """
    layer = caller.subject
    if not isinstance(layer, EnergyLayer) or not code.files:
        return ()
    box, runs = Box.of(caller), {}
    try:
        question = _question(box)
        calls: dict[str, Callable[[], object]] = {
            name: partial(widths, box, name, q) for name, q in box.functions(question).items()
        }
        if layer.reference is not None:
            calls["loop" if layer.pieces else "reference"] = partial(box.of_reference, question, None)
        for name, call in calls.items():
            if layer.arrays == "jax":
                traced_anew(caller)
            ran()
            call()
            runs[name] = places_of(code, ran().lines)
    except (Fault, Discard):  # the first calls say why
        return ()
    of_update = sorted(runs.pop("update"), key=lambda place: (place.file, place.line))
    shared = ((place, tuple(name for name, places in runs.items() if place in places)) for place in of_update)
    return tuple(SharedFunction(place, names) for place, names in shared if names)


def alike(first: Answer, second: Answer) -> bool:
    """Whether two answers differ by no more than two processors, or two orders of adding, would explain."""
    largest = max(map(abs, (*first, *second)), default=0.0)
    return len(first) == len(second) and all(
        abs(a - b) <= _ALIKE * largest for a, b in zip(first, second, strict=True)
    )


def _reason(name: str, call: Callable[[], Evidence]) -> str | None:
    try:
        evidence = call()
    except (NotFinite, Discard):
        return None
    except Fault as fault:
        return str(fault) if fault.of else f"{name}: {fault}"
    other = next((c.claim for c in evidence.comparisons if not c.margin <= 1), None)
    return None if other is None else f"{name}: this fails: {other.partition(' (1 = yes)')[0]}. {_DTYPE}"


def _of_one_array(layer: EnergyLayer, reason: str) -> str:
    """Advice if a mapping of a single array may have been taken for a named tuple."""
    raised = "raised AttributeError" in reason or "raised TypeError" in reason
    for name in layer.memories if len(layer.memories) == 1 and "memory" not in layer.memories and raised else ():
        return f". A mapping of one array, here {name!r}, is passed as that array: write memory, not memory.{name}"
    return ""


def _of_a_layer(box: Box) -> Evidence:
    question = _question(box)
    box.displacement(question)
    if box.layer.energy is not None:
        box.energies(box.mapped(question.x, question.memory), question.memory)
    return answers_have_the_arguments_dtype(box, question)


def _question(box: Box) -> Question:
    form = replace(form_of(box.layer), shapes=None)
    return box.asked(scattered(form, 0, {"J": max(2, box.layer.shortest)}))


def ordinary(
    function: Function, absent: Collection[str], having: Callable[[Config], Config] = lambda config: config
) -> Case:
    """A case with only the options of `having` on, of sizes that every implementation must take."""
    activation = next((name for name in ACTIVATIONS if f"activation:{name}" not in absent), "silu")
    attention = AttentionConfig(_D, _K, head_dim=HEAD_DIM, temperature=math.sqrt(HEAD_DIM))
    mlp = MLPConfig(_D, _D, activation=activation)
    configs: dict[str, Config] = {"attention": attention, "mlp": mlp, "block": BlockConfig(attention, mlp)}
    case = dense_case(having(configs[function.layer]), _B, _J, 0)
    return replace(case, x=case.h) if "start" in absent else case
