"""What somebody names is read if it is a file, and refused in a sentence if it never ends."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from cemverify.processes.inputs import check_file, read_bytes, read_tensor_header, read_text


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


def test_a_file_of_tensors_says_what_it_holds_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(save({"weight": torch.ones(3, 2), "one": torch.tensor(1.0)}, {"made by": "us"}))
    assert read_tensor_header(path) == ({"weight": (3, 2), "one": ()}, {"made by": "us"})


def test_a_file_of_tensors_that_is_not_as_long_as_it_says_is_refused_and_not_mapped(tmp_path: Path) -> None:
    path, sound = tmp_path / "w.safetensors", save({"weight": torch.ones(3, 2)})
    huge = json.dumps({"w": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}}).encode()
    for content, why in (
        (b"", "a header of 0 bytes is announced, and it has 0 bytes"),
        ((2**62).to_bytes(8, "little"), "a header of 4,611,686,018,427,387,904 bytes is announced"),
        (sound[:-1], "its header promises .* bytes, and it has"),
        (sound + b"0", "its header promises .* bytes, and it has"),
        (len(huge).to_bytes(8, "little") + huge, "its header promises 8,796,093,022,"),
        (len(huge).to_bytes(8, "little") + huge[:-1] + b"]", "its header is not that of a safetensors file"),
        ((4).to_bytes(8, "little") + b"[{}]", "its header is not that of a safetensors file"),
    ):
        path.write_bytes(content)
        with pytest.raises(OSError, match=why):
            read_tensor_header(path)
    with open(path, "wb") as file:  # more addresses than are left to most processes
        file.truncate(2**42)
    with pytest.raises(OSError, match="a header of 0 bytes is announced"):
        read_tensor_header(path)
