"""What Hypothesis and multiprocessing do not promise is used in three files alone, and is still what it was there."""

from __future__ import annotations

import ast
import inspect
import multiprocessing
import multiprocessing.spawn
import os
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

import pytest

from cemverify.processes.forkserver import FORKS, ensure_server, server
from suites.kit.source import PACKAGES, files_of, name

# Each file with what it takes that no documentation has. A file that is not here takes nothing of the kind.
USED = {
    "cemverify/conformance/questions/hypothesis_draws.py": {
        *("hypothesis.internal.conjecture.providers", "_maybe_draw_constant"),
    },
    "cemverify/processes/forkserver.py": {
        *("multiprocessing.forkserver", "multiprocessing.resource_tracker", "multiprocessing.util"),
        *("_config", "_forkserver"),
    },
    "suites/fuzzing/zygote.py": {"multiprocessing.util", "_exit_function"},
}
DOCUMENTED = ("connection", "context", "managers", "pool", "queues", "shared_memory", "sharedctypes", "synchronize")

SEEN = "it was this in CPython 3.11.7, 3.12.1, 3.13.0 and 3.13.5; see what changed, and alter {} and this text"


def private(tree: ast.AST) -> Iterator[str]:
    """What a file takes of the two libraries that has no documentation: modules, and names that begin with "_"."""
    ours: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            within = node.module if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                whole = f"{within}.{alias.name}" if within else alias.name
                library, _, rest = whole.partition(".")
                if library not in ("hypothesis", "multiprocessing"):
                    continue
                ours.add(alias.asname or alias.name.partition(".")[0])
                if library == "hypothesis" and rest.startswith(("internal", "_")):
                    yield whole.rpartition(".")[0] if within else whole
                elif library == "multiprocessing" and rest and rest.split(".")[0] not in (*DOCUMENTED, *offered()):
                    yield whole
    for node in ast.walk(tree) if ours else ():
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            names = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            if names & ours:
                yield node.attr


def offered() -> list[str]:
    """What `multiprocessing` itself offers."""
    return list(multiprocessing.__all__)


def test_private_names_stand_in_the_files_that_are_listed() -> None:
    tests = {"suites/test_private_interfaces.py", "suites/test_hypothesis_draws.py"}  # which ask whether they hold
    used = {
        name(file): names
        for package in (*PACKAGES, "suites", "examples", "docs")
        for file in files_of(package)
        if name(file) not in tests and (names := set(private(ast.parse(file.read_text()))))
    }
    assert used == USED


linux = pytest.mark.skipif(not FORKS, reason="Linux alone forks workers from a server")


@linux
def test_the_server_of_forks_has_the_process_id_that_is_read() -> None:
    ensure_server()
    assert server() is not None, SEEN.format("forkserver.server")
    os.kill(server() or 0, 0)


@linux
def test_the_temporary_folder_of_sockets_is_the_one_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "tempdir", "/nowhere")
    assert util.get_temp_dir() == "/nowhere", SEEN.format("forkserver._shorten_the_temporary_folder")


def test_what_waits_for_the_end_of_a_process_can_be_run_before_it() -> None:
    parameters = inspect.signature(util._exit_function).parameters.values()  # type: ignore[attr-defined]
    told = SEEN.format("suites/fuzzing/zygote.py")
    assert all(parameter.default is not inspect.Parameter.empty for parameter in parameters), told
    assert callable(util.Finalize), told


def test_a_process_that_starts_afresh_begins_in_the_function_whose_name_is_looked_for() -> None:
    assert callable(multiprocessing.spawn._main), SEEN.format("cemverify/processes/preloaded.py")
