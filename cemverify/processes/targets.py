"""What an output path leads to: a file to replace as a whole, or a stream to write to.

a regular file, or nothing        replaced (`atomic_files`)
a symbolic link                   what it leads to is replaced or written; the link stays
where stdout or stderr goes       written to that, so `/dev/stdout` appends after `>>` and feeds a `|`
an open descriptor, `/dev/fd/3`   written to that, too
a terminal, a device, a pipe      written through
a folder, a disk, a socket        refused
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from cemverify.console import guard
from cemverify.processes.atomic_files import replacing

# Opens a pipe without waiting for its other end, and a terminal without making it this process's; not on Windows.
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Target:
    """The destination of a path."""

    place: Path  # the path without links
    stream: bool = False  # whether to write to it rather than replace it
    descriptor: int | None = None  # an open one with that destination: 1 or 2 if stdout or stderr goes there


def target_of(path: Path) -> Target:
    """The destination of a path.

    Raises:
        OSError: it cannot be written, and why: a folder, a disk, a socket, or a loop of links.
    """
    place = Path(os.path.realpath(path))
    try:
        status = path.stat()
    except FileNotFoundError:
        return Target(place)
    if (descriptor := printed_into(status)) is not None:
        return Target(place, True, descriptor)
    if stat.S_ISREG(status.st_mode) and os.path.realpath(path.parent) == os.path.realpath("/dev/fd"):
        return Target(place, True, int(path.name))
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder; give a file name")
    if stat.S_ISBLK(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EINVAL, "it is a disk or a socket; give a file name")
    return Target(place, not stat.S_ISREG(status.st_mode))


def printed_into(status: os.stat_result) -> int | None:
    """The descriptor of stdout or stderr if it goes there; None for the null device, which keeps nothing."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), status):
                return None if os.path.samestat(status, os.stat(os.devnull)) else descriptor
    return None


def put(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, creating folders as necessary, or writes to the stream that the path names.

    Raises:
        OSError: it cannot be written.
    """
    target = target_of(path)
    if not target.stream:
        with replacing(target.place) as aside:
            aside.write_bytes(content)
        guard.written[str(path)] = None
        return
    descriptor = target.descriptor
    if descriptor is None:
        try:
            descriptor = os.open(path, os.O_WRONLY | AT_ONCE)
        except OSError as error:
            raise OSError(error.errno, _NO_READER if error.errno == errno.ENXIO else error.strerror) from error
        os.set_blocking(descriptor, True)
    else:
        sys.stdout.flush()  # output that was printed before comes first
        sys.stderr.flush()
    with (
        contextlib.suppress(BrokenPipeError),  # a reader that has left is no error
        open(descriptor, "wb", closefd=target.descriptor is None) as stream,
    ):
        stream.write(content)


_NO_READER = "nobody reads from this pipe"
