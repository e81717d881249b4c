"""Settings of the process: a call changes none of them, and none of them changes an answer."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment, long_experiment
from cemverify.conformance.asking.process_state import SETTINGS, ProcessState
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.functions import EVERY, Function, contract_property, yes
from cemverify.conformance.questions.cases import Case


def settings_are_left_alone(function: Function, caller: Caller, case: Case) -> Evidence:
    """A call changes no setting of the process and seeds no random generator; it may draw from them."""
    changed, seeded = _after_calls(caller, function.name, case)
    return judge(
        *(yes(f"the process keeps its {setting.name}", holds=setting.name not in changed) for setting in SETTINGS),
        *(yes(f"the process keeps its random state of {name}", holds=name not in seeded) for name in GENERATORS),
    )


@long_experiment()
def _after_calls(caller: Caller, name: str, case: Case) -> tuple[list[str], list[str]]:
    """The settings that calls changed, and the generators that they seeded.

    A call that sets what is set already changes nothing, so one is made where settings have other values.
    """
    with caller.guarded(), _threads(2):  # a worker has one thread
        call, before = caller.bound(name, case), ProcessState.now()
        seeded = seeded_by(call)
        changed = before.changed()
        before.restore()
        with torch.no_grad(), _default_dtype(), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = ProcessState.now()
            call()
            changed += before.changed()
            before.restore()
    return changed, seeded


def seeded_by(call: Callable[[], Any]) -> list[str]:
    """The libraries whose random generator stands at the same place after a call, wherever it stood before."""
    kept = {library: state() for library, (_, state, _) in GENERATORS.items()}
    ends = []
    try:
        for number in (1, 2):
            for seed, _, _ in GENERATORS.values():
                seed(number)
            call()
            ends.append({library: state() for library, (_, state, _) in GENERATORS.items()})
    finally:
        for library, (_, _, put) in GENERATORS.items():
            put(kept[library])
    return [library for library in GENERATORS if _equal(ends[0][library], ends[1][library])]


def _equal(state: Any, other: Any) -> bool:
    return bool(torch.equal(state, other)) if isinstance(state, Tensor) else bool(state == other)


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return (state[0], state[1].tobytes(), *state[2:])


def _put_numpy_state(state: tuple[Any, ...]) -> None:
    np.random.set_state((state[0], np.frombuffer(state[1], np.uint32), *state[2:]))


# by library: seeds it, reads its state, and sets it to a state
GENERATORS: Mapping[str, tuple[Callable[[int], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (torch.manual_seed, torch.get_rng_state, torch.set_rng_state),
    "NumPy": (np.random.seed, _numpy_state, _put_numpy_state),
    "Python": (random.seed, random.getstate, random.setstate),
}


def surroundings_change_no_answer(function: Function, caller: Caller, case: Case) -> Evidence:
    """The output is one, in inference mode, with another default dtype, another seed, another number of threads."""
    usual, room = caller.answer(function.name, case), 2 * function.room(case, caller.dtype)
    comparisons = []
    for name in SURROUNDINGS:
        there = _answer_within(caller, function.name, case, name)
        comparisons.append(Comparison(f"{name} = as usual", there, usual, room))
    return judge(*comparisons, telling=function.moved(usual, case, room))


@experiment(lambda asked: asked.caller.shape(asked.name, asked.case))
def _answer_within(caller: Caller, name: str, case: Case, surroundings: str) -> Tensor:
    with SURROUNDINGS[surroundings]():
        there = caller.answer(name, case)
    return there.clone()  # no tensor of inference mode


@contextmanager
def _default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _seeded() -> Iterator[None]:
    kept = {name: state() for name, (_, state, _) in GENERATORS.items()}
    for seed, _, _ in GENERATORS.values():
        seed(1234)
    try:
        yield
    finally:
        for name, (_, _, put) in GENERATORS.items():
            put(kept[name])


@contextmanager
def _threads(more: int = 1) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + more)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SURROUNDINGS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "in inference mode": torch.inference_mode,
    "with the default dtype float64": _default_dtype,
    "with another seed": _seeded,
    "with another number of threads": _threads,
}


SETTINGS_KEPT = Explanation(
    "settings of the process and states of generators after the call = before",
    "A default dtype, a number of threads or a seed that a layer leaves behind changes other people's results.",
)
UNMOVED = Explanation(
    "F under other settings of the process = F",
    "An answer that depends on the default dtype, on inference mode or on a seed differs between two programs that "
    "call the layer alike.",
)


def properties() -> Iterator[Property]:
    """Settings that a call leaves and that leave an answer, for each function of an implementation."""
    for function in EVERY:
        yield contract_property(
            function,
            "settings-unchanged",
            f"A call of {function.name} leaves the settings of the process unchanged, and seeds no random generator.",
            SETTINGS_KEPT,
            settings_are_left_alone,
            "the call returns an answer",
            every_dtype=True,
            rows=0.5,
            floor=1.0,
        )
        yield contract_property(
            function,
            "surroundings",
            f"Settings of the process change no answer of {function.name}.",
            UNMOVED,
            surroundings_change_no_answer,
            "the right answer is not that of a layer that does nothing",
            rows=0.25,
            dtype=torch.float64,
        )
