"""Settings of the process: a call changes none of them, and none of them changes an answer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.functions import EVERY, contract_property, of_call
from cemverify.conformance.properties.function_calls import settings_are_left_alone, surroundings_change_no_answer

SETTINGS_KEPT = Explanation(
    "settings of the process and states of generators after the call = before",
    "A default dtype, a number of threads or a seed that a layer leaves behind changes other people's results.",
)
UNMOVED = Explanation(
    "F under other settings of the process = F",
    "An answer that depends on the default dtype, on inference mode or on a seed differs between two programs that "
    "call the layer alike.",
)


def properties() -> Iterator[Property]:
    """Settings that a call leaves and that leave an answer, for each function of an implementation."""
    for function in EVERY:
        yield contract_property(
            function,
            "settings-unchanged",
            f"A call of {function.name} leaves settings of the process as they are, whatever they are, and seeds no "
            "random generator.",
            SETTINGS_KEPT,
            of_call(settings_are_left_alone),
            "the call returns an answer",
            every_dtype=True,
            rows=0.3,
            once=True,
            floor=1.0,
        )
        yield contract_property(
            function,
            "surroundings",
            f"Settings of the process change no answer of {function.name}.",
            UNMOVED,
            of_call(surroundings_change_no_answer),
            "the right answer is not that of a layer that does nothing",
            rows=0.25,
            dtype=torch.float64,
        )
