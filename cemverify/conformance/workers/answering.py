"""The implementation's process: it loads the implementation, performs the experiments asked for, and answers.

It judges nothing. Golden answers, comparisons and verdicts are made in the judge's process (see `judge`),
which shares nothing with this one but a socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment_of
from cemverify.conformance.asking.process_state import Originals, ProcessState
from cemverify.conformance.implementations import naming
from cemverify.conformance.implementations.contract import Implementation, Subject, load
from cemverify.conformance.implementations.edited import use
from cemverify.conformance.implementations.energy_layers import EnergyLayer, StatedEnergy, Step
from cemverify.conformance.implementations.faults import Fault, OutOfMemory, Raised, printable, ran_out, words
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.origin import Origin, Place, origin_of
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.source.reach.recording import LineRecorder
from cemverify.conformance.source.reading.code import OwnCode, as_plain, read_code
from cemverify.conformance.workers.limits import adopt_orphans, die_with_parent, leave_terminal, limit
from cemverify.conformance.workers.wire import Channel, Closed, answer, requested

# requests that are no experiments
STATE = ""  # asks whether the process is still as it was
REACHED = "reached"  # asks which lines ran; its argument says whether the property is finished


@dataclass(frozen=True)
class Request:
    """An experiment to perform."""

    number: int  # repeated in the answer
    experiment: str  # "module:name"
    kind: type = Caller  # the type of the first argument: a caller, or a box around one
    # dtype, device: those of the caller
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    absent: Mapping[str, str] | None = None  # what it takes as not offered, if not what was declared
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] | None = None
    t: int = 0  # the step whose energy a box asks for


def live(end: socket.socket, name: str, effort: Effort, environment: Mapping[str, str]) -> None:
    """The main loop of the implementation's process: load, report, then answer one request after another."""
    leave_terminal()
    die_with_parent()
    adopt_orphans()
    limit(effort.memory)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment)  # a fork server has the environment of its own start
    folder = os.getcwd()
    line, originals = Channel(end), Originals()
    use(effort.edited)
    try:
        subject = load(name)
        description = describe(subject) | {"origin": written(subject)}
        reads = effort.reads_code and not effort.edited  # edited code has other lines than the files
        code = read_code(naming.parts(name)[0], subject) if reads else OwnCode()
        introduction = answer({**description, "code": as_plain(code)})
    except Exception as error:  # otherwise the process would end without a word
        why = str(error) if isinstance(error, LoadError) else f"its declaration cannot be read: {words(error)}"
        line.send(answer({"unloaded": why}))
        return
    # an import may leave modes and defaults behind, and is not judged
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    os.chdir(folder)
    usual = ProcessState.now()
    recorder = LineRecorder(code)
    line.send(introduction)
    while True:
        try:
            request: Request = requested(line.receive())
        except Closed:
            return
        if request.experiment == STATE:
            outcome: dict[str, Any] = {"answer": originals.replaced()}
            usual.restore()
        elif request.experiment == REACHED:
            outcome = {"answer": recorder.reached(finished=bool(request.arguments[0]))}
        else:
            outcome = _performed(subject, request, recorder)
        line.send(_packed(request.number, outcome))


def _performed(subject: Subject, request: Request, recorder: LineRecorder) -> dict[str, Any]:
    """The result of an experiment, typed. Only calls are recorded, because recording slows down all Python code."""
    if request.absent is not None:
        subject = replace(subject, not_offered=request.absent)
    caller_or_box: Any = Caller(subject, request.dtype, request.device, watching=recorder.watching)
    if request.kind is not Caller:
        caller_or_box = request.kind(caller_or_box, t=request.t)
    try:
        return {
            "answer": experiment_of(request.experiment)(caller_or_box, *request.arguments, **(request.named or {}))
        }
    except Fault as fault:
        return fault.described()
    except KeyboardInterrupt:  # not the user's Ctrl-C, which interrupts the command
        return Raised("it raised KeyboardInterrupt").described()
    except BaseException as error:
        if ran_out(error):  # little memory is needed here: an earlier call holds what is missing
            return _SHORTAGE
        return {"broke": words(error)}


_SHORTAGE = OutOfMemory("it uses so much memory that none is left to answer with").described()


def _packed(number: int, outcome: Mapping[str, Any]) -> bytes:
    try:
        return answer({"number": number, **outcome})
    except MemoryError:
        return answer({"number": number, **_SHORTAGE})


# --- the declaration ------------------------------------------------------------------------------------


def describe(subject: Subject) -> dict[str, Any]:
    """What a subject declares, without its functions, which stay here."""
    common = {"arrays": subject.arrays, "not_offered": dict(subject.not_offered)}
    if isinstance(subject, Implementation):
        return {**common, "functions": list(subject.functions)}
    step = {name: value for name, value in vars(subject.step).items() if name != "learned"}  # `learned` is asked here
    P, functions = step["preconditioner"], [name for name, value in step.items() if callable(value)]
    if not callable(P) and P is not None:
        step["preconditioner"] = P if isinstance(P, str) else as_tensor(P)
    step |= dict.fromkeys(functions, _FUNCTION)
    memory = subject.memory if isinstance(subject.memory, str) else dict(subject.memory)
    has = {name: getattr(subject, name) is not None for name in _FUNCTIONS}
    has |= {"domain": True} if callable(subject.domain) else {}  # a name is plain data
    plain = {name: value for name, value in vars(subject).items() if name not in {*_NOT_PLAIN, *has}}
    declared = {name: _without_functions(value) for name, value in plain.items()}
    return {
        **declared,
        **common,
        "state": dict(subject.state),
        "memory": memory,
        "stated": vars(subject.stated),
        "step": step,
        "parameters": [[name, *_form(subject.parameters, name)] for name in subject.parameters],
        "has": has,
        "given": functions,
    }


def written(subject: Subject) -> dict[str, Any]:
    """Where the functions of the implementation are written, as found in this process."""
    origin = origin_of(subject)
    places = {name: vars(place) for name, place in origin.places.items()}
    return {"digest": origin.digest, "places": places, "parameters": origin.parameters}


_FUNCTION = "a function"
_FUNCTIONS = ("energy", "state_map", "lagrangian", "reference")
_NOT_PLAIN = {"update", "energy", "state", "memory", "stated", "step", "state_map", "lagrangian", "parameters"}


def _form(parameters: Mapping[str, torch.Tensor], name: str) -> tuple[str, list[int]]:
    """The first name of a parameter, which may have several, and the parameter's shape."""
    first = next(other for other, p in parameters.items() if p is parameters[name])
    return first, list(parameters[name].shape)


def declared(description: Mapping[str, Any]) -> Subject:
    """A subject that declares what `describe` says; calling one of its functions is a defect of cemverify."""
    if "functions" in description:
        return Implementation(
            dict.fromkeys(description["functions"], _not_here), description["not_offered"], description["arrays"]
        )
    rest = {
        key: _with_functions(value)
        for key, value in description.items()
        if key not in ("has", "given", "origin", "code")
    }
    parameters: dict[str, torch.Tensor] = {}
    for name, first, shape in description["parameters"]:
        parameters[name] = parameters[first] if first in parameters else torch.empty(shape, device="meta")
    step = dict(description["step"]) | dict.fromkeys(description["given"], _not_here)
    functions: dict[str, Any] = {name: _not_here if there else None for name, there in description["has"].items()}
    return EnergyLayer(
        **{
            **rest,
            **functions,
            "update": _not_here,
            "stated": StatedEnergy(**description["stated"]),
            "step": Step(**step),
            "parameters": parameters,
        }
    )


def _without_functions(value: Any) -> Any:
    """A value, or a mapping with a mark in place of functions, which stay here."""
    if not isinstance(value, Mapping):
        return value
    return {name: _FUNCTION if callable(one) else one for name, one in value.items()}


def _with_functions(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _not_here if one == _FUNCTION else one for name, one in value.items()}


def whence(description: Mapping[str, Any]) -> Origin:
    """The origin that `written` describes, as far as it is valid."""
    try:
        origin = description["origin"]
        digest, places = origin["digest"], origin["places"].items()
        taken = {
            printable(name): Place(printable(place["file"]), int(place["line"]), printable(place["name"]))
            for name, place in places
        }
        parameters = origin["parameters"]
        return Origin(digest and printable(digest), taken, parameters and printable(parameters))
    except (KeyError, TypeError, ValueError, AttributeError):  # that process may send anything
        return Origin()


def _not_here(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this function lives in another process")
