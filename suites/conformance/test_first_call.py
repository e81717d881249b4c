"""A mistake in an adapter is said once, with what to do, before anything is tested."""

from __future__ import annotations

import pytest

from cemverify.cli import main
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.first_call import first_calls
from suites.conformance import first_calls as adapters

ONCE = {
    "module": ("update: it raised RuntimeError", "working_dtype='float32'"),
    "misspelt": ("attention: it raised KeyError: 'W_V' (first_calls.py, line", "The weights are W_Q, W_K"),
    "narrow": ("attention: this does not hold: float64 in, float32 out: the dtype is kept", "--dtype float32"),
    "pair": ("attention: it returned a tuple, not an array", ""),
    "flat": ("attention: it returned shape (24,), expected (2, 3, 4)", ""),
    "other_kind": ("attention: this does not hold: torch in, numpy out: the kind is kept", ""),
    "flat_energy": ("update: the energy has shape (), but one value per token is (", ""),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_mistake_of_an_adapter_is_said_once(name: str) -> None:
    message = first_calls(Caller(getattr(adapters, name)), FUNCTIONS)
    assert message is not None
    for part in ONCE[name]:
        assert part in message


@pytest.mark.parametrize("subject", [reference, adapters.not_finite, adapters.no_options])
def test_numbers_and_absent_features_are_no_mistake_of_an_adapter(subject: object) -> None:
    assert first_calls(Caller(subject), FUNCTIONS) is None  # type: ignore[arg-type]


def test_only_functions_that_are_asked_are_called() -> None:
    assert first_calls(Caller(adapters.misspelt), {"mlp"}) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [("misspelt", "KeyError: 'W_V'"), ("dies", "it ended the interpreter (signal 11)"), ("hangs", "did not return")],
)
def test_check_says_it_in_one_sentence_and_returns_2(
    name: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--properties", "gradient/attention", "--timeout", "2"]
    code = main(["check", f"suites.conformance.first_calls:{name}", *options])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert "violated" not in err.lower()
    assert len(err.strip().splitlines()) == 1
