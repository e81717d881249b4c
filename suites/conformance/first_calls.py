"""Adapters with one mistake, which their first call shows, and some whose mistake it must not hide."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify import energy_layer, implementation
from cemverify.conformance.implementations.reference import reference

right: Any = reference.functions["attention"]
single = torch.nn.Linear(4, 4)  # of float32


def _half(x: Tensor, *_: Any) -> Tensor:
    return (x * x).sum(-1) / 2


def _misspelt(x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    return x + h @ weights["W_V"]


module = energy_layer(update=lambda x, m: single(x), energy=_half, dim=4)
misspelt = implementation(attention=_misspelt)
narrow = implementation(attention=lambda *a: right(*a).float())
pair = implementation(attention=lambda *a: (right(*a), None))
flat = implementation(attention=lambda *a: right(*a).flatten())
other_kind = implementation(attention=lambda *a: np.asarray(right(*a)))
dies = implementation(attention=lambda *a: ctypes.string_at(0))
hangs = implementation(attention=lambda *a: time.sleep(600))
flat_energy = energy_layer(update=lambda x, m: -x, energy=lambda x, m: (x * x).sum() / 2, dim=4)

not_finite = implementation(attention=lambda *a: right(*a) * float("nan"))
no_options = implementation(
    attention=right,
    not_offered=(
        "diagonal",
        "position",
        "preconditioner",
        "norm",
        "start",
        "temperature",
        "step-size",
        "steps",
        "head-dim",
    ),
)
