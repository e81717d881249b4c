"""What comes back has the dtype of what went in, on the same device, in every dtype that the implementation takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.oracle.evidence import Evidence, judge
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.functions import contract_property
from cemverify.conformance.properties.function_calls import yes
from cemverify.conformance.questions.cases import Case

_LOWER = (torch.float32, torch.bfloat16)


def dtype_is_kept(function: Function, caller: Caller, case: Case) -> Evidence:
    """The answer has the declared kind, the dtype and the device of x, in each dtype that is offered."""
    lower = [dtype for dtype in _LOWER if f"dtype:{_short(dtype)}" not in caller.subject.not_offered]
    comparisons = []
    for dtype in dict.fromkeys((caller.dtype, *lower)):
        expected, returned = _forms(caller.at(dtype), function.name, case, function.shape(case))
        for aspect, wanted in expected.items():
            form = returned.get(aspect)
            comparisons.append(yes(f"{wanted} in, {form} out: the {aspect} is kept", holds=form == wanted))
    return judge(*comparisons)


@experiment()
def _forms(caller: Caller, name: str, case: Case, shape: torch.Size) -> tuple[dict[str, str], dict[str, str]]:
    """Kind, dtype and device of x, and of what is returned."""
    argument, returned = caller.array(case.x), caller.raw(name, case)
    as_tensor(returned, shape)
    return _form(argument), _form(returned)


def _form(array: Any) -> dict[str, str]:
    kind = type(array).__module__.partition(".")[0].removesuffix("lib")  # jaxlib's are JAX's
    return {"kind": kind, "dtype": _short(array.dtype), "device": str(getattr(array, "device", "cpu"))}


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


DTYPE_KEPT = Explanation(
    "shape(x') = shape(x),  dtype(x') = dtype(x),  device(x') = device(x)",
    "A layer that answers in float32 whatever it is given silently lowers the precision of everything after it.",
)


def properties() -> Iterator[Property]:
    """Shape and dtype of the answer, for each function of an implementation."""
    for function in EVERY:
        yield contract_property(
            function,
            "shape-and-dtype",
            f"The answer of {function.name} has the right shape, and the dtype of x: float64, float32 or bfloat16.",
            *DTYPE_KEPT,
            dtype_is_kept,
            "the call returns an answer",
            floor=1.0,
        )
