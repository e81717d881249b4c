"""`cemverify init`: the first files for testing a layer."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.workers.limits import usual_memory
from cemverify.console.parsing import path
from cemverify.console.streams import columns
from cemverify.processes.cores import cores
from cemverify.start.writing import RECIPES, STEMS, FilesPlan, agents, plan, write

DESCRIPTION = """\
Writes three files to start from: an adapter, which is where your layer meets the verifier; a test file for pytest;
and a recipe for CI. The adapter is a small correct layer with the shapes in comments. It is checked at once, so that
you see what a pass looks like; then put your own code in its place. Nothing is overwritten.

kinds:
  cem      functions of arrays with CEM's weights (the example is NumPy; torch and JAX work alike)
  module   nn.Modules with CEM's weights
  energy   any other layer that claims to go down an energy (the example is a modern Hopfield layer)
  online   a layer whose state takes a step for each token: linear attention, delta rules, test-time training

exit code: as for `cemverify check`; 2 if the tests exist, or a file cannot be written. An existing adapter is kept,
and gets tests and a recipe; an existing recipe is left as it is, and what to add to it is printed.
"""


EPILOG = """\
examples:
  cemverify init                                  cem_layer.py, test_cem_layer.py and a GitHub workflow
  cemverify init --kind energy --name my_energy --ci tox
  cemverify init --kind module --ci none --no-check
  cemverify init --name my_adapter:layer          tests and a recipe for an existing adapter
  cemverify init --agents --name my_energy        AGENTS.md: what a coding agent must know
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify init`."""
    parser.add_argument("--kind", choices=STEMS, default="cem", help="kind of layer, as above (default cem)")
    parser.add_argument(
        "--name", metavar="NAME", help="the adapter, as module or module:attribute (default KIND_layer:mine)"
    )
    parser.add_argument(
        "--folder", type=path, default=Path(), metavar="DIR", help="where to write (default: the current folder)"
    )
    parser.add_argument(
        "--ci", choices=[*RECIPES, "none"], default="github", help="the CI service of the recipe (default github)"
    )
    parser.add_argument(
        "--agents",
        action="store_true",
        help="write AGENTS.md for coding agents that work on the layer, and nothing else",
    )
    parser.add_argument(
        "--check", action=argparse.BooleanOptionalAction, default=True, help="check the adapter once it is written"
    )


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify init` with parsed arguments; returns the exit code."""
    from cemverify.results.envelope import show

    if options.agents:
        _write(agents(options.folder, options.name or STEMS[options.kind]))
        return 0
    layout = plan(options.kind, options.folder, options.name, None if options.ci == "none" else options.ci)
    _write(layout)
    there = "" if options.folder.resolve() == Path.cwd() else f"    cd {shlex.quote(str(options.folder))}\n"
    code = _check(layout.target, options.folder) if options.check else 0
    own = "" if layout.kept else f" put your own code into {options.folder / layout.name}.py, then"
    show(f"\nNext:{own}\n\n{there}    cemverify check {layout.target}\n    pytest test_{layout.name}.py")
    if options.ci != "none":
        show("\nIn the recipe for CI, replace OWNER with the account that hosts cemverify: it is not on PyPI yet.")
    return code


def _write(layout: FilesPlan) -> None:
    from cemverify.results.envelope import show

    write(layout)
    for file in layout.files:
        show(f"wrote {file}")
    if layout.kept:
        show(f"{layout.kept} exists and is kept as it is; the other files are for {layout.target}")
    for file, text in layout.left.items():
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        show(f"{file} exists and is left as it is; this is what to add:\n\n{indented}")


def _check(target: str, folder: Path) -> int:
    """Checks the adapter as `cemverify check` does, and prints less."""
    with slow_imports():
        from cemverify.conformance.judging.effort import Effort
        from cemverify.conformance.judging.events import RunFinished
        from cemverify.conformance.judging.verdicts import exit_code
        from cemverify.conformance.listeners import terminal
        from cemverify.conformance.listeners.colours import show_coloured
        from cemverify.conformance.listeners.progress import progress
        from cemverify.conformance.properties import select
        from cemverify.conformance.workers import isolation, nursery
        from cemverify.results.envelope import show

    os.chdir(folder)
    sys.path.insert(0, os.getcwd())  # workers inherit it
    nursery.get_ready(target)
    show(f"\n$ cemverify check {target}")
    finished: RunFinished | None = None
    with progress() as listener:
        for event in isolation.run(target, select([]), Effort(memory=usual_memory("cpu")), cores()):
            listener(event)
            if isinstance(event, RunFinished):
                finished = event
    assert finished is not None
    show_coloured(terminal.findings(finished, width=columns(sys.stdout)))
    return exit_code(finished.records)
