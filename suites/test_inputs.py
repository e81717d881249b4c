"""What somebody names is read if it is a file, and refused in a sentence if it never ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cemverify.processes.inputs import check_file, read_bytes, read_text


def test_a_file_and_a_pipe_with_a_writer_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("τ" * 100_000)
    assert read_text(tmp_path / "file") == "τ" * 100_000
    ours, theirs = os.pipe()

    def write() -> None:
        for _ in range(20):
            os.write(theirs, b"x" * 10_000)
        os.close(theirs)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bytes(Path(f"/dev/fd/{ours}")) == b"x" * 200_000  # as `<(command)` of a shell
    writer.join()
    os.close(ours)


def test_what_never_ends_is_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    for name, why in (
        ("/dev/zero", "a device or a socket"),
        ("/dev/urandom", "a device or a socket"),
        ("/dev/null", "a device or a socket"),
        ("pipe", "nobody writes to this pipe"),
        ("large", r"1,099,511,627,776 bytes, and at most 268,435,456"),
        (".", "Is a directory"),
        ("none", "No such file"),
    ):
        with pytest.raises(OSError, match=why):
            read_bytes(tmp_path / name)
    with pytest.raises(OSError, match="it is a pipe"):
        check_file(tmp_path / "pipe")
    with pytest.raises(OSError, match="more"):
        read_bytes(Path("/proc/self/status"), most=100)  # says that it is empty
