"""Adapters with one mistake that the first call shows, and some with a mistake that it must not hide."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cemverify import energy_layer, implementation
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.first_call import first_calls
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.workers.judge import FirstCalls, _called
from suites.kit.commands import refused

right: Any = reference.functions["attention"]
single = torch.nn.Linear(4, 4)  # of float32


bowl: Any = energy_layer(update=lambda x, m: -x, energy=lambda x, m: (x * x).sum(-1) / 2, dim=4)
module = replace(bowl, update=lambda x, m: single(x))
misspelt = implementation(attention=lambda x, h, weights, config: x + h @ weights["W_V"])
narrow = implementation(attention=lambda *a: right(*a).float())
pair = implementation(attention=lambda *a: (right(*a), None))
flat = implementation(attention=lambda *a: right(*a).flatten())
other_kind = implementation(attention=lambda *a: np.asarray(right(*a)))
dies = implementation(attention=lambda *a: ctypes.string_at(0))
hangs = implementation(attention=lambda *a: time.sleep(600))
flat_energy = replace(bowl, energy=lambda x, m: (x * x).sum() / 2)
by_name: Any = energy_layer(update=lambda x, m: m.cos[:1] - x, state=("J", 4), memory={"cos": ("J", 4)})
no_lagrangian, no_map, no_domain = (replace(bowl, **{k: len}) for k in ("lagrangian", "state_map", "domain"))

not_finite = implementation(attention=lambda *a: right(*a) * float("nan"))
OPTIONS = "diagonal position preconditioner norm start temperature step-size steps head-dim"
no_options = implementation(attention=right, not_offered=OPTIONS.split())


ONCE = {
    "module": ("update: it raised RuntimeError", "working_dtype='float32'"),
    "misspelt": ("attention: it raised KeyError: 'W_V' (test_first_call.py, line", "The weights are W_Q, W_K"),
    "narrow": (
        "attention: this fails: float64 in, float32 out: the dtype is kept",
        "--dtype float32",
    ),
    "pair": ("attention: it returned a tuple, not an array", ""),
    "flat": ("attention: it returned shape (24,), expected (2, 3, 4)", ""),
    "other_kind": ("attention: this fails: torch in, numpy out: the kind is kept", ""),
    "no_lagrangian": ("Lagrangian: it returned a int, not an array", ""),
    "no_map": ("state map: it returned a int, not an array", ""),
    "no_domain": ("domain: it returned a int, not an array", ""),
    "by_name": ("update: it raised TypeError", "is passed as that array: write memory, not memory.cos"),
    "flat_energy": ("energy: it has shape (), but one value per token is (", ""),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_mistake_of_an_adapter_is_said_once(name: str) -> None:
    message = str(first_calls(Caller(globals()[name]), FUNCTIONS))
    assert [part for part in ONCE[name] if part not in message] == []


@pytest.mark.parametrize("subject", [reference, not_finite, no_options])
def test_numbers_and_absent_features_are_no_mistake_of_an_adapter(subject: object) -> None:
    assert first_calls(Caller(subject), FUNCTIONS) is None  # type: ignore[arg-type]


def test_only_functions_that_are_asked_are_called() -> None:
    assert first_calls(Caller(misspelt), {"mlp"}) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [("misspelt", "KeyError: 'W_V'"), ("dies", "it ended the interpreter (signal 11)"), ("hangs", "did not return")],
)
def test_check_says_it_in_one_sentence(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"cemverify check suites.conformance.test_first_call:{name} --properties gradient/attention --timeout 2"
    sentence = refused(command.split(), capsys)
    assert message in sentence
    assert "violated" not in sentence.lower()


class _Broken:
    """A process in which experiments fail before they call the implementation, as when no GPU can be used."""

    not_offered = reference.not_offered
    processes: tuple[int, ...] = ()

    def perform(self, *_: Any) -> Any:
        raise RuntimeError("CUDA cannot be initialised")


def test_a_first_call_that_fails_outside_the_implementation_is_told() -> None:
    called = _called(reference, FirstCalls(("attention",)), Effort(), _Broken(), OwnCode())  # type: ignore[arg-type]
    assert called.reason == "the suite itself failed: RuntimeError: CUDA cannot be initialised"
