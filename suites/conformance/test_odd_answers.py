"""Answers that are not what they should be, or look as if they were not: each gets its verdict, one row for each.

They do no harm to the process, so that it is this one; those that do are in `hostile`.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import sys
import unittest
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis.errors import StopTest
from torch import Tensor

from cemverify import implementation
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import select

(PLAIN,) = select(["gradient/attention/plain"])
(UNTOUCHED,) = select(["contract/attention/inputs-unchanged"])
QUICKLY = Effort(examples=4, shrink=False)
WRONG = "update = -eta P grad energy, T times"


def answering(change: Callable[[Tensor], Any], arrays: Literal["torch", "numpy"] = "torch") -> Any:
    """An implementation whose attention gives what `change` makes of the right answer."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        x, h = (torch.as_tensor(np.asarray(a)) for a in (x, h))
        return change(reference.attention(x, h, {name: torch.as_tensor(np.asarray(a)) for name, a in w.items()}, c))

    return implementation(attention=attention, mlp=reference.mlp, arrays=arrays)


# --- right, though it looks odd ----------------------------------------------------------------------


def _strided(right: Tensor) -> Tensor:
    wide = torch.zeros(*right.shape, 3, dtype=right.dtype)
    wide[..., 1] = right
    return wide[..., 1]


def _flipped_twice(right: Tensor) -> Tensor:
    return right.movedim(0, -1).contiguous().movedim(-1, 0)


def _mapped(right: Tensor) -> Any:
    values = right.numpy()
    held = np.frombuffer(mmap.mmap(-1, max(values.nbytes, 1)), values.dtype, values.size).reshape(values.shape)
    held[...] = values
    return held


def _locked(right: Tensor) -> Any:
    values = right.numpy().copy()
    values.flags.writeable = False
    return values


class _Silent(Tensor):
    """A subclass that adds nothing."""


RIGHT = {
    "that records gradients": answering(lambda r: r.clone().requires_grad_()),
    "that is a parameter": answering(torch.nn.Parameter),
    "with strides": answering(_strided),
    "in another order of memory": answering(_flipped_twice),
    "with a lazy conjugate": answering(lambda r: torch.complex(r, torch.zeros_like(r)).conj().real),
    "with a lazy sign": answering(lambda r: torch.complex(torch.zeros_like(r), -r).conj().imag),
    "of a subclass": answering(lambda r: r.as_subclass(_Silent)),
    "in NumPy": answering(Tensor.numpy, "numpy"),
    "in NumPy, in Fortran's order": answering(lambda r: np.asfortranarray(r.numpy()), "numpy"),
    "in NumPy, mapped into memory": answering(_mapped, "numpy"),
    "in NumPy, not writable": answering(_locked, "numpy"),
    "in NumPy, backwards": answering(lambda r: r.numpy()[::-1].copy()[::-1], "numpy"),
    "in NumPy, in the other byte order": answering(lambda r: r.numpy().astype(">f8"), "numpy"),
    "in NumPy, long double": answering(lambda r: r.numpy().astype(np.longdouble), "numpy"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_holds_whatever_array_it_is(name: str) -> None:
    record = judge_property(RIGHT[name], PLAIN, QUICKLY)
    assert record.verdict == Verdict.HOLDS, record.reason


# --- wrong, though it looks right --------------------------------------------------------------------


class _Equal:
    """Equal to everything, and larger, and as long."""

    shape = (1, 2, 2)
    dtype = np.dtype(np.float64)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


class _NoArray:
    """Its array protocol gives something else each time, and never an array."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.array


class _Stubborn:
    shape = (1, 1, 1)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")


class _Falls:
    def __del__(self) -> None:
        raise RuntimeError("no")


def _objects(right: Tensor) -> Any:
    values = np.empty(tuple(right.shape), object)
    values.fill(_Falls())
    return values


@cache
def _quantised() -> Tensor:
    return torch.quantize_per_tensor(torch.zeros(1, 2, 2), 0.1, 0, torch.qint8)


NOT_ARRAYS: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda r: None,
    "a number": lambda r: 1.0,
    "a memory view": lambda r: memoryview(r.numpy().tobytes()),
    "a pair with the answer first": lambda r: (r, None),
    "a list of tensors": list,
    "nested lists": Tensor.tolist,
    "ragged lists": lambda r: [[1.0], [2.0, 3.0]],
    "an endless iterator": lambda r: itertools.count(),
    "the class of tensors": lambda r: Tensor,
    "an object that is equal to everything": lambda r: _Equal(),
    "an array protocol that gives None": lambda r: _NoArray(None),
    "an array protocol that gives itself": lambda r: _NoArray(_NoArray(None)),
    "an array protocol that raises": lambda r: _Stubborn(),
    "complex numbers": lambda r: r.to(torch.complex64),
    "sparse rows": lambda r: r[0].to_sparse_csr(),
    "quantised numbers": lambda r: _quantised(),
    "on no device": lambda r: torch.empty_like(r, device="meta"),
    "an array of objects": _objects,
    "an array of strings": lambda r: np.full(tuple(r.shape), "0.5"),
    "an array of records": lambda r: np.zeros(tuple(r.shape), [("value", float)]),
    "an array of nothing": lambda r: np.zeros(tuple(r.shape), "V8"),
    "an array of dates": lambda r: np.zeros(tuple(r.shape), "datetime64[s]"),
    "an array of complex numbers": lambda r: r.numpy().astype(complex),
}


@pytest.mark.parametrize("name", NOT_ARRAYS)
def test_what_is_no_array_of_numbers_is_called_that(name: str) -> None:
    record = judge_property(answering(NOT_ARRAYS[name]), PLAIN, replace(QUICKLY, examples=1))
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, "not an array"), record.reason
    assert record.reason is not None
    assert record.reason.isprintable()
    gc.collect(1)  # what the test made is young; to look through all that is imported takes half a second


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class _Base(BaseException):
    pass


def _chained(links: int) -> BaseException:
    error = ValueError("first")
    for _ in range(links):
        caused = ValueError("next")
        caused.__cause__, error = error, caused
    return error


def _raise(error: BaseException) -> None:
    raise error


def _recur(_: Tensor) -> None:
    _recur(_)


# what a test runner takes for its own among them
RAISES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "an error": (lambda _: 1 / 0, "ZeroDivisionError"),
    "an error whose message cannot be had": (lambda _: _raise(_Unspeakable()), "its message cannot be read"),
    "an error with a long message": (lambda _: _raise(ValueError("x" * 10**6)), "it raised ValueError: xxx"),
    "an error of no characters": (lambda _: _raise(ValueError("\ud800\x00\n")), "it raised ValueError"),
    "an error of a broken class": (lambda _: _raise(type("\ud800\n" * 200, (Exception,), {})()), "it raised "),
    "a chain of errors": (lambda _: _raise(_chained(200)), "it raised ValueError: next"),
    "several errors": (lambda _: _raise(BaseExceptionGroup("two", [SystemExit(0), KeyboardInterrupt()])), "two"),
    "what is no Exception": (lambda _: _raise(_Base()), "it raised _Base"),
    "SystemExit": (lambda _: sys.exit(0), "it raised SystemExit: 0"),
    "StopIteration": (lambda _: _raise(StopIteration()), "it raised StopIteration"),
    "no end of calls": (_recur, "RecursionError"),
    "an assumption that fails": (lambda _: hypothesis.assume(False), "it raised UnsatisfiedAssumption"),
    "the end of a Hypothesis test": (lambda _: _raise(StopTest(0)), "it raised StopTest"),
    "a discard of ours": (lambda _: _raise(Discard("not today")), "not today"),
    "a skip of unittest": (lambda _: _raise(unittest.SkipTest("not today")), "not today"),
    "a skip of pytest": (lambda _: pytest.skip("not today"), "not today"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISES)
def test_whatever_is_raised_is_a_violation_in_a_short_printable_line(name: str) -> None:
    change, words = RAISES[name]
    record = judge_property(answering(change), PLAIN, replace(QUICKLY, examples=1))
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, "raised"), record.reason
    reason = str(record.reason)
    assert words in reason
    assert len(reason) < 600
    assert reason.isprintable()


class _Liar(Tensor):
    """Zeros that answer every question wrongly, or not at all."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True


WRONG_NUMBERS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "without its batch": (lambda r: r[0], "wrong shape"),
    "with one row for all": (lambda r: r[:, :1], "wrong shape"),
    "with one number for all": (lambda r: r.mean(), "wrong shape"),
    "with an axis more": (lambda r: r[None], "wrong shape"),
    "with tokens and features exchanged": (lambda r: torch.cat([r, r], 1).transpose(1, 2), "wrong shape"),
    "that is empty": (lambda r: r[:0], "wrong shape"),
    "that is as large as the universe": (lambda r: r.new_zeros(1).expand(2**40), "wrong shape"),
    "in whole numbers": (lambda r: (10 * r).round().long(), WRONG),
    "in truth values": (lambda r: r > 0, WRONG),
    "in float32": (Tensor.float, WRONG),
    "with one number that is none": (
        lambda r: torch.where(torch.arange(r.shape[-1]) == 0, torch.nan, r),
        "not finite",
    ),
    "with minus infinity": (lambda r: r.index_fill(-1, torch.tensor(0), -torch.inf), "not finite"),
    "with a masked array": (lambda r: np.ma.array(np.full(tuple(r.shape), 7.0), mask=True), WRONG),
    "that lies about itself": (lambda r: torch.zeros_like(r).as_subclass(_Liar), WRONG),
    "whose rows are one row": (lambda r: r.mean(1, keepdim=True).expand_as(r), WRONG),
}


@pytest.mark.parametrize("name", WRONG_NUMBERS)
def test_an_answer_of_other_numbers_is_violated(name: str) -> None:
    change, cause = WRONG_NUMBERS[name]
    record = judge_property(answering(change), PLAIN, QUICKLY)
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, cause), record.reason


# --- what is done to the question ---------------------------------------------------------------------


def editing(edit: Callable[[Any, Any, Any], Any]) -> Any:
    """An implementation that answers rightly, and then edits what it was given."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        answer = reference.attention(x, h, w, c).clone()
        edit(x, h, w)
        return answer

    return implementation(attention=attention, mlp=reference.mlp)


EDITS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "adds to x": lambda x, h, w: x.add_(1),
    "adds to h through a view": lambda x, h, w: h[..., 0].add_(1),
    "writes x through NumPy": lambda x, h, w: x.numpy().fill(0),
    "writes a weight": lambda x, h, w: next(iter(w.values())).zero_(),
    "shrinks x": lambda x, h, w: x.resize_(1, 1, 1),
    "gives x other numbers": lambda x, h, w: x.set_(torch.zeros_like(x)),
    "replaces the data of x": lambda x, h, w: setattr(x, "data", x.data + 1),
    "transposes h": lambda x, h, w: h.transpose_(0, 1).zero_(),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_question_is_a_violation_of_a_property_of_its_own_and_spoils_no_other(name: str) -> None:
    assert judge_property(editing(EDITS[name]), UNTOUCHED, QUICKLY).verdict == Verdict.VIOLATED
    record = judge_property(editing(EDITS[name]), PLAIN, replace(QUICKLY, examples=2))
    assert record.verdict == Verdict.HOLDS, record.reason


# --- what a subclass shows, and what a call leaves on ---


class LyingTensor(Tensor):
    def as_subclass(self, cls: Any) -> Any:
        return torch.zeros(3)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("nobody may ask this")


class LyingArray(np.ndarray[Any, Any]):
    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.zeros(3)

    def view(self, *_: Any, **__: Any) -> Any:
        return np.zeros(3)


def test_a_subclass_shows_the_numbers_that_it_holds() -> None:
    ones = torch.ones(3, dtype=torch.float64)
    assert torch.equal(as_tensor(Tensor.as_subclass(torch.ones(3), LyingTensor)), ones)
    assert torch.equal(as_tensor(np.ones(3).view(LyingArray)), ones)


def test_trace_and_profile_functions_that_a_call_leaves_on_are_taken_off() -> None:
    before = ProcessState.now()
    here = sys.gettrace(), sys.getprofile()
    sys.setprofile(lambda *_: None)
    sys.settrace(lambda *_: None)
    before.restore()
    assert (sys.gettrace(), sys.getprofile()) == here
