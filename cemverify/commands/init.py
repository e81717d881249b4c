"""`cemverify init`: the first files for testing one's own layer."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import exit_code
from cemverify.conformance.listeners import terminal
from cemverify.conformance.listeners.colours import show_coloured
from cemverify.conformance.listeners.progress import progress
from cemverify.conformance.properties import select
from cemverify.conformance.workers import isolation, nursery
from cemverify.conformance.workers.limits import USUAL_MEMORY
from cemverify.console.streams import columns
from cemverify.processes.cores import cores
from cemverify.results.envelope import show
from cemverify.start.writing import plan, write


def run(options: argparse.Namespace) -> int:
    """`cemverify init`."""
    found = plan(options.kind, options.folder, options.name, None if options.ci == "none" else options.ci)
    write(found)
    for path in found.files:
        show(f"wrote {path}")
    for path, text in found.left.items():
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        show(f"{path} exists and is left as it is; this is what to add:\n\n{indented}")
    code = _check(found.name, options.folder) if options.check else 0
    show(
        f"\nNext: put your own code into {options.folder / found.name}.py, then\n\n"
        f"    cemverify check {found.name}:mine\n    pytest test_{found.name}.py"
    )
    if options.ci != "none":
        show("\nIn the recipe for CI, replace OWNER by the account that hosts cemverify: it is not on PyPI yet.")
    return code


def _check(name: str, folder: Path) -> int:
    """Checks the adapter as `cemverify check` does, and prints less of it."""
    os.chdir(folder)
    sys.path.insert(0, os.getcwd())  # workers inherit it
    nursery.get_ready(f"{name}:mine")
    show(f"\n$ cemverify check {name}:mine")
    finished: RunFinished | None = None
    with progress() as listener:
        for event in isolation.run(f"{name}:mine", select([]), Effort(memory=USUAL_MEMORY), cores()):
            listener(event)
            if isinstance(event, RunFinished):
                finished = event
    assert finished is not None
    show_coloured(terminal.findings(finished, width=columns(sys.stdout)))
    return exit_code(finished.records)
