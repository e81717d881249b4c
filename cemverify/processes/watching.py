"""Notices that files were saved, by repeated checks: wherever they are, and however they are saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_POLL = 0.1  # seconds between checks
_GONE = 10  # checks after which a missing file is taken to be deleted

Stamp = tuple[int, int, int] | None  # time of the last change, size and inode; None if there is no such file
Seen = Mapping[Path, Stamp]


def look(paths: Iterable[Path]) -> Seen:
    """The current state of files. For a folder, that of the Python files in it."""
    stamps: dict[Path, Stamp] = {}
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            stamps[file] = None
            with suppress(OSError):
                status = file.stat()
                stamps[file] = status.st_mtime_ns, status.st_size, status.st_ino
    return stamps


def wait(paths: Iterable[Path], before: Seen, sleep: Callable[[float], None] = time.sleep) -> list[Path]:
    """Waits until something differs from before, and then until it stays the same; returns what differs.

    An editor that saves by renaming leaves no file for a moment, and one that writes in pieces half a file. A file
    that is missing for a second is taken to be deleted.
    """
    paths = list(paths)
    now = look(paths)
    while now == before:
        sleep(_POLL)
        now = look(paths)
    same = 0
    while same < (_GONE if any(stamp is None and before.get(file) for file, stamp in now.items()) else 1):
        sleep(_POLL)
        again = look(paths)
        now, same = again, same + 1 if again == now else 0
    return sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))
