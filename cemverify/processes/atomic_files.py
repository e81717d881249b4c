"""Files and folders that are never half-written: written aside, then renamed into place.

What a killed process leaves aside is named `.NAME.` and 32 hexadecimal digits; it is removed a day later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

ABANDONED_SECONDS = 24 * 3600
_ASIDE = re.compile(r"\..+\.[0-9a-f]{32}")


@contextlib.contextmanager
def replacing(path: Path, *, aside: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """Gives a path at which to write a file or a folder; if the block ends without an error, it becomes `path`.

    Meanwhile readers of `path` find the old content. Nothing is left aside, unless the process is killed.

    Args:
        aside: where to write, on the same file system; by default beside `path`.
        durable: whether to wait until the content of a file is on the disk, so that a power cut leaves the old
            content or the new.

    Raises:
        OSError: it cannot be written or renamed, or what is there is read-only.
    """
    if path.is_file() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if aside is None:
        name = os.fsdecode(os.fsencode(path.name)[:200])  # leaves file systems room for 34 characters more
        aside = path.with_name(f".{name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        if durable and aside.is_file():
            with open(aside, "rb") as file:
                os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # nothing is there yet, or its file system has no modes
            shutil.copymode(path, aside)
        os.replace(aside, path)
    finally:
        remove(aside)


def sweep(folder: Path) -> None:
    """Removes unfinished files of a folder untouched for a day, as their process must have been killed."""
    with contextlib.suppress(OSError):  # no folder yet, or already removed
        for path in folder.iterdir():
            if _ASIDE.fullmatch(path.name) and time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                remove(path)


def slug(name: str) -> str:
    """A name as part of a file name: letters, digits, dots and hyphens, so that it never leaves its folder."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)[:80].strip("-.") or "unnamed"


def remove(path: Path) -> None:
    """Removes a file, or a folder with all its contents, if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
