"""What a path that is written leads to: a file to be replaced by a whole one, or a stream to be written through.

    a regular file, or nothing    replaced (`atomic_files`)
    a symbolic link               what it leads to is replaced or written; the link stays
    /dev/stdout, /dev/fd/3        an open descriptor of this process is written to, so `>>` appends and `|` feeds
    /dev/tty, a named pipe        written through
    a folder, a disk, a socket    refused

Two paths are the same if they lead to the same thing, however they are written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from cemverify.processes.atomic_files import replacing

# Opens a pipe without waiting for its other end, and a terminal without making it this process's; not on Windows.
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)

# As Linux follows before it calls them a loop.
_MOST_LINKS = 40

# What a path is, whatever it is called: device and inode, or where it would be made.
Identity = tuple[int, int] | Path


@dataclass(frozen=True)
class Target:
    """What a path leads to.

    Attributes:
        place: the path without links. descriptor: of this process, if the path stands for one.
        stream: whether it is written through, and not replaced.
        identity: what it is; None for a stream that may be given twice, such as /dev/null.
    """

    place: Path
    descriptor: int | None
    stream: bool
    identity: Identity | None

    @property
    def is_stdout(self) -> bool:
        """Whether what this process prints goes there, too."""
        return self.descriptor is not None and self.identity == _identity_of(1)


def target_of(path: Path) -> Target:
    """What a path leads to.

    Raises:
        OSError: it cannot be written, and why: a folder, a disk, a socket, a loop of links, a descriptor that is not
            open for writing, or the file into which this process prints.
    """
    place, descriptor = _followed(path)
    if descriptor is not None:
        if _reads_only(descriptor):
            raise OSError(errno.EBADF, "it is open for reading only")
        return Target(place, descriptor, True, _identity_of(descriptor))
    try:
        found = place.stat()
    except FileNotFoundError:
        return Target(place, None, False, place)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFREG:
        if (name := printed_into(found)) is not None:
            raise OSError(errno.EBUSY, f"it is where {name} goes; name another file, or /dev/{name}")
        return Target(place, None, False, (found.st_dev, found.st_ino))
    if kind in (stat.S_IFIFO, stat.S_IFCHR):
        return Target(place, None, True, None)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "it is a folder; give a file name")
    raise OSError(errno.EINVAL, "it is a disk or a socket; give a file name")


def identity_of(path: Path) -> Identity:
    """What an input is; its own path if there is nothing.

    Raises:
        OSError: a loop of links, or a folder on the way that may not be entered.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    return found.st_dev, found.st_ino


def printed_into(found: os.stat_result) -> str | None:
    """Which of stdout and stderr goes there; None if neither does."""
    identity = found.st_dev, found.st_ino
    return next((name for number, name in ((1, "stdout"), (2, "stderr")) if _identity_of(number) == identity), None)


def put(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, making the folders it needs, or writes to the stream that the path names.

    Raises:
        OSError: it cannot be written.
    """
    target = target_of(path)
    if target.descriptor is not None:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()  # what was printed before comes first
        _pour(target.descriptor, content)
    elif target.stream:
        try:
            number = os.open(target.place, os.O_WRONLY | AT_ONCE)
        except OSError as error:
            raise OSError(error.errno, _NO_READER if error.errno == errno.ENXIO else error.strerror) from error
        try:
            os.set_blocking(number, True)
            _pour(number, content)
        finally:
            os.close(number)
    else:
        with replacing(target.place) as aside:
            aside.write_bytes(content)


_NO_READER = "nobody reads from this pipe"


def _pour(number: int, content: bytes) -> None:
    """Writes everything to a descriptor; a reader that has left is no failure."""
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(number, left) :]
    except BrokenPipeError:
        pass


def _followed(path: Path) -> tuple[Path, int | None]:
    """The path without links, and the descriptor of this process that it stands for, if it does."""
    at = Path.cwd() / path
    if at.name == "..":
        return Path(os.path.realpath(at)), None
    for _ in range(_MOST_LINKS):
        folder = Path(os.path.realpath(at.parent))
        at = folder / at.name
        if _is_descriptors(folder) and re.fullmatch(r"\d{1,9}", at.name):
            return at, int(at.name)
        if not at.is_symlink():
            return at, None
        at = folder / os.readlink(at)
    raise OSError(errno.ELOOP, "its links lead in a circle")


def _is_descriptors(folder: Path) -> bool:
    """Whether the names in a folder are the open descriptors of this process."""
    return re.fullmatch(rf"/dev/fd|/proc/(self|{os.getpid()})(/task/\d+)?/fd", str(folder)) is not None


def _reads_only(descriptor: int) -> bool:
    """Whether nothing can be written to an open descriptor, where the system tells."""
    try:
        import fcntl
    except ImportError:  # Windows has none, and no paths that stand for descriptors
        return False
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _identity_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
