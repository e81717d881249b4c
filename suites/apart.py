"""A function in a process of its own that has imported everything, and what the processors spent on it.

What a processor spends does not depend on who else computes, as the time of day does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.workers import nursery
from cemverify.conformance.workers.limits import adopt_orphans, end_all

Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    """What is kept of functions so far, from a file with a line for each."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def apart(function: Callable[..., Row], files: Mapping[str, str], *arguments: Any) -> Row:
    """What the function returns in a fork of this process, with the `cpu` seconds of all its processes.

    Args:
        files: by name, the texts of files in the folder that it runs in, from which it imports.

    Returns:
        Its row with `cpu` and `seconds`; with `error` where nothing could be loaded or the process was lost.
    """
    processes = get_context("fork")
    ours, theirs = processes.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        process = processes.Process(target=_life, args=(theirs, folder, function, arguments))
        process.start()
        theirs.close()
        try:
            row: Row = ours.recv()
        except EOFError:
            row = {"error": "its process ended"}
        process.join()
    return row


def _life(there: Connection, folder: str, function: Callable[..., Row], arguments: tuple[Any, ...]) -> None:
    adopt_orphans()  # or what they spend would not be ours
    began, before = time.monotonic(), _spent()
    os.chdir(folder)
    sys.path.insert(0, folder)
    nursery.get_ready("mine:mine")  # of whatever name: nothing of it has been imported here
    try:
        row = function(*arguments)
    except LoadError as error:
        row = {"error": str(error)}
    end_all(os.getpid())
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    there.send({**row, "seconds": round(time.monotonic() - began, 1), "cpu": round(_spent() - before, 1)})


def _spent() -> float:
    """Seconds of the processors, of this process and of those that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))
