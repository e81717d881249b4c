"""Reads files that somebody names: what never ends, or is larger than any of ours, is refused and not read.

A regular file is read, and so is a pipe that somebody writes to, such as `<(command)` of a shell. A device may never
end, and a pipe without a writer would be waited for without an end.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

from cemverify.processes.targets import printed_into

# Bytes. The largest file that is written here, with the cells of a study, has less than a hundredth of it.
MOST = 2**28


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, read with the checks of `read_bytes`.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    return read_bytes(path).decode("utf-8")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """What a file holds.

    Args:
        most: bytes.

    Raises:
        OSError: it cannot be read, is no file, or is larger; its `strerror` says so for a user.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with open(number, "rb", buffering=0) as file:
        found = os.fstat(number)
        _check_kind(found.st_mode)
        if stat.S_ISFIFO(found.st_mode) and (name := printed_into(found)) is not None:
            raise OSError(errno.EBUSY, f"it is the pipe into which {name} goes")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and at most {most:,} are read")
        content = bytearray()
        while True:
            part = file.read(min(most + 1 - len(content), 2**20))
            if part is None:  # a pipe that has nothing yet
                select.select([number], [], [])
                continue
            content += part
            if not part:
                break
            if len(content) > most:
                raise OSError(errno.EFBIG, f"at most {most:,} bytes are read, and it has more")
    if not content and stat.S_ISFIFO(found.st_mode):
        raise OSError(errno.EPIPE, "nobody writes to this pipe")
    return bytes(content)


def check_file(path: Path) -> None:
    """Refuses what is no regular file, before a library opens it.

    Raises:
        OSError: it is a folder, a device or a pipe, or it is not there.
    """
    found = path.stat()
    if stat.S_ISFIFO(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe; give a file")
    _check_kind(found.st_mode)


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a device or a socket; give a file")
