"""Faults of validation."""

from __future__ import annotations

from typing import Any

from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.power.mutants.base import Function, Zoo, around

ZOO = Zoo("rejection")


def _careful() -> Implementation:
    return reference.reference


@ZOO.killed_by(
    "Bad input is accepted, or fails somewhere deep inside.",
    "rejection/attention/nan-input",
    "bad input is refused*",
    also=("rejection/*",),
)
class ValidatesNothing(Plain):
    not_offered = ("attention_energy", "mlp_energy")


@ZOO.wraps(
    "Bad input raises a RuntimeError.",
    "rejection/attention/nan-input",
    "bad input is refused*not a ValueError or TypeError",
    original=_careful,
)
def refuses_with_the_wrong_error(implementation: Implementation) -> Implementation:
    def change(_: str, function: Function) -> Function:
        def refuses(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except (ValueError, TypeError) as error:
                raise RuntimeError(str(error)) from None

        return refuses

    return around(implementation, change)


@ZOO.wraps(
    "Bad input raises a ValueError without a message.",
    "rejection/attention/wrong-weight-shape",
    "bad input is refused*without a message",
    original=_careful,
)
def refuses_without_a_word(implementation: Implementation) -> Implementation:
    def change(_: str, function: Function) -> Function:
        def refuses(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except (ValueError, TypeError):
                raise ValueError from None

        return refuses

    return around(implementation, change)
