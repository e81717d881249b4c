"""Settings of the process under which a call can be made, and the random generators that it could use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import torch


def seeded_by(call: Callable[[], Any], *between: Callable[[], Any]) -> list[str]:
    """The libraries whose random generator is in the same state after two of the calls, wherever it was before.

    Args:
        call: made first and last. between: made in between, so that a seed set once for each of them shows, too.
    """
    ends = []
    for number, one in enumerate((call, *between, call), 1):
        with _seeded(number):
            one()
            ends.append({library: state() for library, (_, state, _) in GENERATORS.items()})
    pairs = list(combinations(ends, 2))
    return [library for library in GENERATORS if any(one[library] == other[library] for one, other in pairs)]


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return (state[0], state[1].tobytes(), *state[2:])


# for each library: a function to seed it, one to read its state in comparable form, one to restore such a state
GENERATORS: Mapping[str, tuple[Callable[[int], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (
        torch.manual_seed,
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    "NumPy": (
        np.random.seed,
        _numpy_state,
        lambda state: np.random.set_state((state[0], np.frombuffer(state[1], np.uint32), *state[2:])),
    ),
    "Python": (random.seed, random.getstate, random.setstate),
}


@contextmanager
def _changed(read: Callable[[], Any], put: Callable[[Any], object], change: Callable[[Any], Any]) -> Iterator[None]:
    """Within, a setting has another value."""
    before = read()
    put(change(before))
    try:
        yield
    finally:
        put(before)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    states = {name: state() for name, (_, state, _) in GENERATORS.items()}
    for seed, _, _ in GENERATORS.values():
        seed(number)
    try:
        yield
    finally:
        for name, (_, _, put) in GENERATORS.items():
            put(states[name])


_DTYPE = torch.get_default_dtype, torch.set_default_dtype
_THREADS = torch.get_num_threads, torch.set_num_threads
SURROUNDINGS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "in inference mode": torch.inference_mode,
    "with the default dtype float64": lambda: _changed(*_DTYPE, lambda _: torch.float64),
    "with another seed": lambda: _seeded(1234),
    "with another number of threads": lambda: _changed(*_THREADS, lambda some: some + 1),
}
