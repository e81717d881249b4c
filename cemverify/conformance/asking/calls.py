"""Calls an implementation with fresh copies of its own kind of array, and turns misbehaviour into typed faults."""

from __future__ import annotations

import copy
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor, plain
from cemverify.conformance.asking.experiments import LayerProcess, experiment
from cemverify.conformance.asking.process_state import DECIDING, ProcessState
from cemverify.conformance.implementations.arrays import ARRAY_KINDS, JAX, ArrayKind
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.faults import (
    Deleted,
    Fault,
    NotAnArray,
    OutOfMemory,
    Raised,
    Unsupported,
    advice,
    lacking,
    ran_out,
    words,
)
from cemverify.conformance.implementations.features import PREFILL
from cemverify.conformance.implementations.named_parameters import Misnamed
from cemverify.conformance.questions.cases import Case


@dataclass(frozen=True)
class Caller:
    """Calls one implementation."""

    subject: Subject  # the implementation; without its functions if another process holds them
    dtype: torch.dtype = torch.float64  # arrays are rounded to it
    device: str = "cpu"  # the device of torch arrays
    # the process that makes the calls; None if this one does
    layer_process: LayerProcess | None = field(default=None, repr=False)
    # collects the names of settings that a call left changed; None if nobody asks
    noticed: list[str] | None = field(default=None, repr=False, compare=False)
    # gives the context in which calls are made, which records the lines that run
    watching: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, repr=False, compare=False)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of a CEM implementation."""
        assert isinstance(self.subject, Implementation)
        return {name: _answering_plainly(function) for name, function in self.subject.functions.items()}

    @property
    def kind(self) -> ArrayKind:
        """The library whose arrays it takes."""
        return ARRAY_KINDS[self.subject.arrays]

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that take part in a call: this one, and the one that holds the functions."""
        return (os.getpid(),) if self.layer_process is None else self.layer_process.processes

    def at(self, dtype: torch.dtype) -> Caller:
        """This caller with arrays of another dtype."""
        return replace(self, dtype=dtype)

    def output(self, case: Case) -> Tensor:
        """The layer's x^(T): (B, J, D), float64 on the CPU."""
        return self.answer(case.layer, case)

    def decoded(self, case: Case) -> Tensor:
        """Incremental self-attention of h: (B, J, D)."""
        return self.answer("decode", case)

    def energy(self, case: Case) -> Tensor:
        """The stated energy at x: (B, J)."""
        return self.answer(f"{case.layer}_energy", case)

    def answer(self, name: str, case: Case) -> Tensor:
        """The answer of the function of that name: (B, J) for an energy, otherwise (B, J, D); float64 on the CPU."""
        return answered(self, name, case, self.shape(name, case))

    def shape(self, name: str, case: Case) -> torch.Size:
        """The shape of that answer."""
        whole = case.h.shape if name in ("block", "decode") else case.x.shape
        return whole[:2] if name.endswith("_energy") else whole

    def raw(self, name: str, case: Case) -> Any:
        """What the function of that name returns, unchecked.

        Raises:
            Raised: it raised; the exception is the cause.
        """
        call = self.bound(name, case)
        with self.guarded():
            return call()

    def call(self, name: str, case: Case, x: Any, h: Any, weights: dict[str, Any], config: Any = None) -> Any:
        """Calls a function with given arrays, and with this copy of the configuration, if given."""
        arguments = (h, weights) if name in ("block", "decode") else (x, h, weights)
        with self.guarded():
            return self.functions[name](*arguments, copy.deepcopy(case.config) if config is None else config)

    def arguments(self, case: Case) -> tuple[Any, Any, dict[str, Any]]:
        """x, h and the weights as arrays of the implementation's kind, in memory of their own."""
        names = sorted(case.weights, key=lambda name: name.split(".")[-1]) if case.turn(2) else case.weights
        return self.array(case.x), self.array(case.h), {name: self.array(case.weights[name]) for name in names}

    def array(self, tensor: Tensor) -> Any:
        """A fresh array of the implementation's kind. Strides are kept, so views stay views."""
        if tensor.dtype.is_floating_point:
            tensor = tensor.to(self.dtype)
        return self.kind.fresh(tensor, self.device)

    def bound(self, name: str, case: Case) -> Callable[[], Any]:
        """Calls one function on fresh copies of the case."""
        x, h, weights = self.arguments(case)
        arguments = (h, weights) if name in ("block", "decode") else (x, h, weights)
        config = copy.deepcopy(case.config)  # frozen, but an implementation can get around that

        def call() -> Any:
            answer = self.functions[name](*arguments, config)
            if self.kind.has_deleted((x, h, *weights.values())):
                raise Deleted("it deleted an array that it was given, as JAX does with a donated one")
            return answer

        return call

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Watches a call, and restores the state of the process afterwards: modes, defaults, the working folder.

        Raises:
            Raised: it raised an exception; SystemExit counts, the user's interrupt does not.
            OutOfMemory: it asked for more memory than there is.
        """
        before, own = ProcessState.now(DECIDING), os.getpid()
        try:
            with self.kind.exact(), self.watching():
                yield
        except (Fault, KeyboardInterrupt):
            raise
        except BaseException as error:
            if ran_out(error):
                traceback.clear_frames(error.__traceback__)  # the frames hold what filled the memory
                raise OutOfMemory(f"it ran out of memory: {words(error)}") from None
            if isinstance(error, Misnamed):
                misnamed = Raised(f"names= or free= does not fit the module: {error}")
                misnamed.declaration = True
                raise misnamed from error
            if feature := lacking(error, self.dtype):
                raise Unsupported.by(error, f": write not_offered=({feature!r},)") from error
            raise Raised.by(error, advice(error, self.dtype, torch.get_default_dtype())) from error
        finally:
            if os.getpid() != own:
                os._exit(0)  # this is a process that the implementation forked, and that returned from the call
            changed = before.restore()
            if self.noticed is not None:
                self.noticed.extend(changed)


@experiment(lambda arguments: arguments.shape)
def answered(caller: Caller, name: str, case: Case, shape: torch.Size) -> Tensor:
    """The answer of the function of that name, float64 on the CPU."""
    call = caller.bound(name, case)
    with caller.guarded():
        return as_tensor(call(), shape)  # reading the array may be the part that hangs


@experiment(
    lambda arguments: [
        arguments.caller.shape(arguments.name, arguments.case.beginning(n)) for n in arguments.lengths
    ],
    calls=2,
)
def answered_for_beginnings(caller: Caller, name: str, case: Case, lengths: list[int]) -> list[Tensor]:
    """The answers of the function of that name to the first tokens of each row, for each length in turn."""
    return [caller.answer(name, case.beginning(length)) for length in lengths]


@experiment(lambda arguments: [case.h.shape for case in arguments.cases], calls=4)
def prefilled(caller: Caller, cases: list[Case], cuts: list[int]) -> list[Tensor]:
    """Output for rows that are cut at these places and fed piece by piece, taking turns: (B, J, D) for each case.

    Each piece gets the cache that the previous piece of its row left.
    """
    caches: list[Any] = [None] * len(cases)
    rows: list[list[Tensor]] = [[] for _ in cases]
    for begin, end in pairwise([0, *cuts, cases[0].h.shape[1]]):
        for i, case in enumerate(cases):
            piece = case.tokens(begin, end)
            _, h, weights = caller.arguments(piece)
            with caller.guarded():
                pair = caller.functions[PREFILL](h, caches[i], weights, copy.deepcopy(case.config))
                if not (isinstance(pair, tuple | list) and len(pair) == 2):
                    raise NotAnArray(f"prefill returned one {type(pair).__name__}, expected a pair: x, cache")
                rows[i].append(as_tensor(pair[0], piece.h.shape))
                caches[i] = pair[1]
    return [torch.cat(pieces, 1) for pieces in rows]


@experiment()
def traced_anew(caller: Caller) -> None:  # noqa: ARG001 - it says in which process
    """Makes the next call run the lines of a function that JAX has compiled."""
    JAX.forget()


def quiet() -> warnings.catch_warnings[None]:
    """Within, no warnings are shown: compilers and vmap warn about their own speed, which is no fault of a layer."""
    return warnings.catch_warnings(action="ignore")


def _answering_plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: plain(function(*arguments))
