"""`cemverify check --watch`: checks again at every save."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cemverify.conformance.implementations import naming
from cemverify.conformance.implementations.naming import LoadError
from cemverify.console.errors import UsageError
from cemverify.console.guard import is_our_sentence, say
from cemverify.console.streams import note
from cemverify.processes.watching import Seen, look, wait

if TYPE_CHECKING:
    from cemverify.conformance.judging.events import RunFinished

Check = Callable[[Sequence[str], Callable[[], bool]], "tuple[int, RunFinished] | None"]


def run(implementation: str, stated_in: Sequence[str], check: Check) -> int:
    """Checks, waits for a save, and checks again, until a signal ends it. A save during a check restarts it.

    Args:
        implementation: its name. stated_in: modules of the user's own properties, imported again after a save.
        check: takes the ids to ask first, and a function that says whether to stop early; returns None if it did.
    """
    from cemverify.conformance.properties.own import forget_properties

    before: list[str] = []
    finished: RunFinished | None = None
    lies: dict[str, list[Path]] = {}  # where each module was last found
    while True:
        for module in (naming.parts(implementation)[0], *stated_in):
            with suppress(LoadError):  # an editor is replacing it
                lies[module] = naming.module_files(module)
        files = _files(lies, finished)
        seen = look(files)
        try:
            result = check(before, partial(_is_saved, files, seen))
        except (LoadError, UsageError, ValueError) as error:  # a save may fix it
            if isinstance(error, ValueError) and not is_our_sentence(error):
                raise
            say(str(error))
            result = None
        if result is not None:
            finished = result[1]
            reached = [file for file in _files(lies, finished) if file not in files]
            files, seen = [*files, *reached], {**look(reached), **seen}
        if look(files) == seen:
            print("waiting for a save; Ctrl-C ends", file=sys.stderr, flush=True)
        saved = wait(files, seen)
        forget_properties(stated_in)
        before = _first(finished, saved)
        reach = f", first the {len(before)} properties that failed or reach what changed" if before else ""
        names = ", ".join(file.name for file in saved)
        note(f"\n{time.strftime('%H:%M:%S')}: {names} saved, checking again{reach}")


def _is_saved(files: Sequence[Path], seen: Seen) -> bool:
    return look(files) != seen


def _files(lies: Mapping[str, Sequence[Path]], finished: RunFinished | None) -> list[Path]:
    """The files to watch: the modules' files or packages, and other files that the last run reached."""
    named = [path for paths in lies.values() for path in paths]
    reached = [] if finished is None or finished.reach is None else finished.reach.files
    return [*named, *(Path(file.file.path) for file in reached)]


def _first(finished: RunFinished | None, saved: Sequence[Path]) -> list[str]:
    """Ids of properties that were violated in the last run, and of those that reach lines changed since."""
    from cemverify.conformance.source.reach.changes import reaching

    if finished is None:
        return []
    violated = [record.id for record in finished.records if record.verdict == "violated"]
    texts = {str(file): file.read_text(encoding="utf-8", errors="replace") for file in saved if file.is_file()}
    reached = [] if finished.reach is None else reaching(finished.reach, texts)
    return list(dict.fromkeys([*violated, *reached]))
