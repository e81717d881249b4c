"""Whatever a process writes into its socket becomes an answer of the declared type or a fault, in time."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller, answered
from cemverify.conformance.asking.experiments import Lost, conforms
from cemverify.conformance.implementations.contract import load
from cemverify.conformance.implementations.faults import Tampered
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.workers import wire
from cemverify.conformance.workers.judge import ChildProcess
from cemverify.conformance.workers.wire import Channel, Closed, Overdue, Unreadable
from cemverify.processes import time_limits


def frame(tree: Any, described: Any = (), arrays: bytes = b"") -> bytes:
    """An answer with this header and these arrays."""
    header = json.dumps([tree, list(described)]).encode()
    return len(header).to_bytes(4, "little") + header + arrays


ONES = np.ones(2).tobytes()

NO_ANSWERS = {
    "nothing at all": b"",
    "garbage": b"\x07" * 40,
    "a header that ends beyond the message": (2**20).to_bytes(4, "little") + b"{}",
    "a header of gigabytes": (2**31).to_bytes(4, "little") + b"{}",
    "JSON nested deeper than the interpreter's stack": frame(0)[:4] + b"[" * 100_000,
    "no JSON": b"\x03\x00\x00\x00{]}",
    "JSON of another shape": b"\x02\x00\x00\x0017",
    "an object that no answer contains": frame({"surprise": 1}),
    "an array that is not there": frame({"tensor": 3}),
    "arrays longer than the message": frame({"tensor": 0}, [["<f8", [2**40]]], ONES),
    "a shape that contradicts itself": frame({"tensor": 0}, [["<f8", [-1, -2]]], ONES),
    "an array of objects": frame({"array": 0}, [["O", [1]]], ONES),
    "a structured array": frame({"array": 0}, [["f4,f4", [1]]], ONES),
    "an array in the other byte order": frame({"tensor": 0}, [[">f8", [2]]], ONES),
    "a number that is none": frame({"float": "one"}),
}


@pytest.mark.parametrize("content", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_called_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        wire.answered(content)


def test_an_answer_and_a_request_arrive_as_they_were_sent() -> None:
    sent: dict[str, Any] = {
        "tensor": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
        "array": np.array([True, False]),
        "numbers": [1, -0.5, math.inf, None, True, "words"],
        "none": torch.zeros(0, 3, dtype=torch.float64),
    }
    got = wire.answered(wire.answer(sent))
    assert torch.equal(got["tensor"], sent["tensor"])
    assert (got["none"].shape, got["array"].tolist()) == ((0, 3), [True, False])
    assert got["numbers"] == (1, -0.5, math.inf, None, True, "words")
    # a request keeps dtypes, layout and sharing
    x = torch.arange(6.0).reshape(2, 3).T
    got_x, same, narrow, steps = wire.requested(wire.request((x, x, x.bfloat16(), torch.arange(3))))
    assert got_x is same
    assert torch.equal(got_x, x)
    assert (got_x.stride(), narrow.dtype, steps.dtype) == (x.stride(), torch.bfloat16, torch.int64)


@pytest.mark.parametrize(
    ("value", "kind", "does"),
    [
        (torch.ones(1, dtype=torch.float64), Tensor, True),
        (torch.ones(1), Tensor, False),
        (1.0, Tensor, False),
        (True, bool, True),
        (1, bool, False),
        ((torch.ones(1, dtype=torch.float64),), list[Tensor], True),
        ((1.0, "x"), list[float], False),
        ((True, "x"), tuple[bool, str], True),
        ((True,), tuple[bool, str], False),
        ({"a": True}, dict[str, bool], True),
        ({"a": None}, dict[str, bool], False),
        (None, dict[str, bool] | None, True),
        (None, str, False),
        (np.ones(1), np.ndarray[Any, Any], True),
    ],
)
def test_an_answer_is_of_the_type_that_its_experiment_declares(value: Any, kind: Any, does: bool) -> None:
    assert conforms(value, kind) is does


ENDED: Any = SimpleNamespace(pid=0, exitcode=-9, join=lambda timeout: None)  # stands in for a process that has ended
Ends = tuple[ChildProcess, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    yield ChildProcess(ENDED, Channel(ours), timeout=0.3), theirs
    ours.close()
    theirs.close()


CASE = Case.__new__(Case)


def ask(layer_process: ChildProcess) -> Any:
    caller = replace(Caller(load("reference")), layer_process=layer_process)
    return answered(caller, "attention", CASE, torch.Size((1,)))


def frames(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


@pytest.mark.parametrize(
    ("sent", "cause", "words"),
    [
        (b"", "hung", "a call did not return within 0.3 s"),
        (b"\x01", "hung", "did not return"),
        (frames(frame({"mapping": {}}))[:-3], "hung", "did not return"),
        ((2**40).to_bytes(8, "little"), "tampered", "it announced 1099511627776 bytes"),
        (frames(b"garbage"), "tampered", "bytes that are no answer"),
        (frames(wire.answer({"number": 0, "answer": True})), "tampered", "an answer that was not asked for"),
        (frames(wire.answer({"number": 2, "answer": True})), "tampered", "an answer that was not asked for"),
        (frames(frame(17)), "tampered", "an answer that was not asked for"),
    ],
)
def test_messages_that_answer_nothing_cost_the_process(ends: Ends, sent: bytes, cause: str, words: str) -> None:
    layer_process, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(Lost) as lost:
        ask(layer_process)
    assert lost.value.fault.cause == cause
    assert words in str(lost.value.fault)
    with pytest.raises(Lost):  # at once, without asking again
        ask(layer_process)


def test_what_a_process_waits_for_a_core_is_no_time_of_its_call(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    layer_process, theirs = ends
    layer_process.timeout, started = 0.15, time.monotonic()
    monkeypatch.setattr(time_limits, "waited_for_core", lambda _: 0.9 * (time.monotonic() - started))
    late = threading.Timer(0.5, theirs.sendall, [frames(wire.answer({"number": 1, "answer": True}))])
    late.start()
    with pytest.raises(Tampered, match="something that no call returns"):  # it arrived, after three time limits
        ask(layer_process)
    late.join()
    with pytest.raises(Lost, match="did not return"):
        ask(layer_process)
    layer_process.lost = None
    monkeypatch.setattr(time_limits, "waited_for_core", lambda _: 1e6 * (time.monotonic() - started))
    with pytest.raises(Lost, match="did not return"):  # no matter how long it claims to have waited
        ask(layer_process)
    assert time.monotonic() - started < 40 * layer_process.timeout


def test_a_process_that_writes_without_end_or_drop_by_drop_is_cut_short_in_time(ends: Ends) -> None:
    layer_process, theirs = ends
    theirs.sendall((1000).to_bytes(8, "little"))
    dripping = threading.Event()

    def drip() -> None:
        while not dripping.wait(0.02):
            theirs.sendall(b".")

    thread = threading.Thread(target=drip)
    thread.start()
    started = time.monotonic()
    try:
        with pytest.raises(Lost, match="did not return"):
            ask(layer_process)
    finally:
        dripping.set()
        thread.join()
    assert time.monotonic() - started < 2 * layer_process.timeout + 1


def test_a_request_that_nobody_takes_is_given_up_in_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Overdue):
        Channel(ours).send(bytes(2**24), time.monotonic() + 0.1)


def test_a_closed_connection_says_how_the_process_ended(ends: Ends) -> None:
    layer_process, theirs = ends
    theirs.close()
    with pytest.raises(Lost, match=r"it ended the interpreter \(signal 9\)"):
        ask(layer_process)
    with pytest.raises(Closed):
        layer_process.line.receive()
