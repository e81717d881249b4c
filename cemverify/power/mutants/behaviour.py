"""Faults that no single answer shows: inputs edited, calls counted, dtypes lost. They wrap any implementation."""

from __future__ import annotations

import itertools
from typing import Any

from cemverify.power.mutants.base import Call, Zoo, fault, in_dtype

ZOO = Zoo("behaviour")


@ZOO.calls(
    "contract/attention/inputs-unchanged",
    "kept: x*",
    also=tuple(f"contract/{name}/inputs-unchanged" for name in ("mlp", "block", "decode")),
    edits=True,
)
@fault("The first array is overwritten by the output.")
def edits_its_input(call: Call, first: Any, *arguments: Any) -> Any:
    answer = call(first, *arguments)
    if answer.shape == first.shape:
        first[...] = answer
    return answer


ZOO += [
    ZOO.calling("counts-its-calls",
        "Every call's output is larger than that of the call before by one part in a million.",
        "contract/attention/determinism", "repeated", also=("*",), answer=lambda call, *arguments:
            call(*arguments) * (1 + 1e-6 * next(call.memory.setdefault("calls", itertools.count(1))))),
    ZOO.calling("always-float32", "The output is float32, whatever the dtype of the input.",
        "contract/attention/shape-and-dtype", "dtype",
        also=("*",), answer=lambda call, *arguments: in_dtype(call(*arguments), "float32")),
]  # fmt: skip
