"""`cemverify demo`: a layer with a mistake, what the verifier says about it, and the layer fixed."""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from typing import TYPE_CHECKING

from cemverify.commands.slow_imports import slow_imports
from cemverify.console.streams import columns, wrapped

if TYPE_CHECKING:
    from cemverify.conformance.implementations.contract import Implementation
    from cemverify.conformance.judging.events import RunFinished

DESCRIPTION = """\
Shows in a few seconds, and without any file, what cemverify does: an attention layer with an easy mistake is tested,
the violation is explained by the smallest case that shows it, and the fixed layer is tested again.

exit code: 0 if the mistake is found and the fixed layer passes, which is what should happen; 1 otherwise.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`cemverify demo` has no options."""


# A few of those that a run would test: the update is the gradient, the energy falls, later tokens are not read.
PROPERTIES = ("gradient/attention/plain", "descent/attention/any-step-size-identity", "structure/attention/causality")


def run(_options: argparse.Namespace) -> int:
    """Runs `cemverify demo` with parsed arguments; returns the exit code."""
    with slow_imports():
        from cemverify.conformance.judging.verdicts import counts, violation, violations
        from cemverify.conformance.listeners import terminal
        from cemverify.conformance.listeners.colours import show_coloured
        from cemverify.results.envelope import show
        from cemverify.start import demo_layer

    before, after = (inspect.getsource(layer) for layer in (demo_layer.mistaken, demo_layer.fixed))
    show(f"An attention layer. It has one mistake, which its outputs do not show.\n\n{before}")
    wrong = _judge(demo_layer.with_mistake, "with the mistake")
    violated = violations(wrong.records)
    width = columns(sys.stdout)
    for record in violated[:1]:
        show_coloured(wrapped(violation(record), width))
    show_coloured(f"\n{wrapped(terminal.summary(wrong), width)}")
    show(
        "\nThe case is small enough to check by hand: W_Q is zero, so the energy does not depend on x, its gradient\n"
        "is zero, and yet the layer moves. It projects back with the wrong matrix:\n"
    )
    lines = list(difflib.unified_diff(before.splitlines()[1:], after.splitlines()[1:], lineterm="", n=1))
    show("\n".join(lines[3:]))
    right = _judge(demo_layer.without, "fixed")
    show_coloured(f"\n{wrapped(terminal.summary(right), width)}")
    show(
        "\nNow yours: `cemverify init` writes the files to start from. `cemverify check` also tells which of your\n"
        "lines no example reached, and tests around the numbers in them. `cemverify repair` searches for the edit\n"
        "that mends a layer, and shows it as a diff."
    )
    return 0 if violated and counts(right.records)["holds"] == len(right.records) else 1


def _judge(subject: Implementation, name: str) -> RunFinished:
    """Judges one of the layers in this process: they are known to return."""
    from cemverify.conformance.judging.effort import Effort
    from cemverify.conformance.judging.events import RunFinished
    from cemverify.conformance.judging.run import run as run_here
    from cemverify.conformance.properties import select

    for event in run_here(subject, name, select(PROPERTIES), Effort()):
        if isinstance(event, RunFinished):
            return event
    raise AssertionError("a run ends with RunFinished")
