"""Answers are read by functions that no subclass overrides; a trace function that is left on is taken off."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.process_state import ProcessState


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
