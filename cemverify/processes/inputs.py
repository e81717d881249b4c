"""Reads files that somebody names: what never ends, or is larger than any of ours, is refused and not read.

A regular file is read, and so is a pipe that somebody writes to, such as `<(command)` of a shell. A device may never
end, and a pipe without a writer would be waited for without an end.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
from pathlib import Path

from cemverify.processes.targets import AT_ONCE, printed_into

# Bytes. The largest file that is written here, with the cells of a study, has less than a hundredth of it.
MOST = 2**28
_LONGEST_HEADER = 10**8  # bytes, as the library of safetensors allows


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
    number = os.open(path, os.O_RDONLY | AT_ONCE)
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


def read_tensor_header(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """What a safetensors file says of itself: the shape of each tensor, and its metadata.

    The library maps the whole file before it looks at it, which takes as many addresses as the file has bytes.

    Raises:
        OSError: it is no such file, or is longer or shorter than its header says; its `strerror` says so for a user.
    """
    check_file(path)
    with open(path, "rb") as file:
        size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            raise OSError(errno.EINVAL, f"a header of {length:,} bytes is announced, and it has {size:,} bytes")
        try:
            header = json.loads(file.read(length))
            metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
            shapes = {name: tuple(int(n) for n in said["shape"]) for name, said in header.items()}
            promised = 8 + length + max((int(said["data_offsets"][1]) for said in header.values()), default=0)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise OSError(errno.EINVAL, "its header is not that of a safetensors file") from None
    if promised != size:
        raise OSError(errno.EINVAL, f"its header promises {promised:,} bytes, and it has {size:,}")
    return shapes, metadata


def _check_kind(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a device or a socket; give a file")
