"""Keeps the oracle's answers for each case while a property or a repair runs.

A repair asks a thousand edited implementations the same questions, and a property asks trivial implementations the
questions that the real one answered rightly. The right answer to a question, and how exact an answer must be, stay
the same meanwhile, and take longer to compute than the implementation's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from hashlib import blake2b
from typing import Any, ParamSpec, TypeVar
from weakref import finalize

import torch
from torch import Tensor

from cemverify.cem.torch_internals import is_dispatching
from cemverify.conformance.questions.cases import Case

P = ParamSpec("P")
R = TypeVar("R")


class _Memory:
    """What was computed, and the keys of cases."""

    def __init__(self) -> None:
        self.answers: dict[Any, Any] = {}  # by function and the keys of its arguments
        self.keys: dict[int, Any] = {}  # of cases that are alive, by their id


_memories: list[_Memory] = []  # one, where something is remembered


@contextmanager
def remembering() -> Iterator[None]:
    """What is asked meanwhile is computed once for each case; within another such block, that one remembers."""
    if _memories:
        yield
        return
    _memories.append(_Memory())
    try:
        yield
    finally:
        _memories.pop()


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """The same function of cases, arrays and plain values; within `remembering`, what it returned is returned again.

    Nobody may change what it returns. Where autograd or a dispatch mode watches, it is computed.
    """

    @wraps(function)
    def recall(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = (*args, *kwargs.values())
        if not _memories or _is_watched(arguments):
            return function(*args, **kwargs)
        answers, key = _memories[-1].answers, (function, *map(_key, arguments), *kwargs)
        if key not in answers:
            answers[key] = function(*args, **kwargs)
        answer: R = answers[key]
        return answer

    return recall


def _is_watched(arguments: tuple[Any, ...]) -> bool:
    arrays = [array for argument in arguments for array in _arrays(argument)]
    return is_dispatching() or (torch.is_grad_enabled() and any(array.requires_grad for array in arrays))


def _arrays(argument: Any) -> list[Tensor]:
    if isinstance(argument, Case):
        return [argument.x, argument.h, *argument.weights.values()]
    return [argument] if isinstance(argument, Tensor) else []


def _key(argument: Any) -> Any:
    match argument:
        case Case():
            keys = _memories[-1].keys
            if id(argument) not in keys:
                keys[id(argument)] = _key_of_case(argument)
                finalize(argument, keys.pop, id(argument))  # another case may get its id then
            return keys[id(argument)]
        case Tensor():
            # bfloat16 is none of NumPy's
            array = argument.detach().float() if argument.dtype == torch.bfloat16 else argument.detach()
            digest = blake2b(array.numpy().tobytes(), digest_size=16).digest()
            # products of arrays that lie otherwise in memory are rounded otherwise
            return argument.dtype, argument.shape, argument.stride(), digest
    return argument


def _key_of_case(case: Case) -> Any:
    arrays = ((name, _key(array)) for name, array in case.weights.items())
    return case.config, case.h is case.x, _key(case.x), _key(case.h), *arrays
