"""Keeps the oracle's answers for each case while a property or a repair runs.

A repair asks a thousand edited implementations the same questions, and a property asks trivial implementations the
questions that the real one answered rightly. The right answer to a question, and how exact an answer must be, do not
change meanwhile, and take longer to compute than the implementation's answer.
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


# at most one memory: answers by function and the keys of its arguments; keys of living cases by id
_memories: list[tuple[dict[Any, Any], dict[int, Any]]] = []


@contextmanager
def remembering() -> Iterator[None]:
    """Within the block, each answer is computed once. A nested block shares the outer block's memory."""
    if _memories:
        yield
        return
    _memories.append(({}, {}))
    try:
        yield
    finally:
        _memories.pop()


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function of cases, arrays and plain values return its earlier result again within `remembering`.

    Callers must not change the result. Where autograd or a dispatch mode watches, it is computed anew.
    """

    @wraps(function)
    def recall(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments, recording = (*args, *kwargs.values()), torch.is_grad_enabled()
        if not _memories or is_dispatching() or (recording and any(map(_is_recorded, arguments))):
            return function(*args, **kwargs)
        (answers, _), key = _memories[-1], (function, *map(_key, arguments), *kwargs)
        if key not in answers:
            answers[key] = function(*args, **kwargs)
        answer: R = answers[key]
        return answer

    return recall


def _is_recorded(argument: Any) -> bool:
    if isinstance(argument, Case):
        return any(array.requires_grad for array in (argument.x, argument.h, *argument.weights.values()))
    return isinstance(argument, Tensor) and argument.requires_grad


def _key(argument: Any) -> Any:
    match argument:
        case Case():
            _, keys = _memories[-1]
            if id(argument) not in keys:
                arrays = ((name, _key(array)) for name, array in argument.weights.items())
                own = argument.config, argument.h is argument.x, _key(argument.x), _key(argument.h), *arrays
                keys[id(argument)] = own
                finalize(argument, keys.pop, id(argument))  # another case may get its id afterwards
            return keys[id(argument)]
        case Tensor():
            # NumPy has no bfloat16
            array = argument.detach().float() if argument.dtype == torch.bfloat16 else argument.detach()
            digest = blake2b(array.numpy().tobytes(), digest_size=16).digest()
            # a product's rounding depends on how its arrays lie in memory
            return argument.dtype, argument.shape, argument.stride(), digest
    return argument
