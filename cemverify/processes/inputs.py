"""Reads files that users name: refuses those larger than any of ours, and waits for no pipe without a writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from cemverify.processes.targets import AT_ONCE, printed_into

# Bytes. The largest file that is written here, with the cells of a study, has less than a hundredth of this.
MOST = 2**28


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, read with the checks of `read_bytes`.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    return read_bytes(path).decode("utf-8-sig")


def read_bytes(path: Path, most: int = MOST) -> bytes:
    """The contents of a file.

    Args:
        most: bytes allowed.

    Raises:
        OSError: it cannot be read, or is larger; its `strerror` is written for a user.
    """
    descriptor = os.open(path, os.O_RDONLY | AT_ONCE)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            if printed_into(status) is not None:
                raise OSError(errno.EBUSY, "it is where this command prints")
            os.set_blocking(descriptor, True)  # a pipe without a writer is at its end
        content = file.read(most + 1) if status.st_size <= most else b""
    if max(status.st_size, len(content)) > most:
        raise OSError(errno.EFBIG, f"at most {most:,} bytes are read, and it has more")
    return content
