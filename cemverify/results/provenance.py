"""What made a result: the command, its configuration and seed, the versions, the device, the commit and the time."""

from __future__ import annotations

import platform
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_COMMIT = re.compile(r"[0-9a-f]{40,64}(\+changes)?")


@dataclass(frozen=True)
class Maker:
    """What makes a result, and since when; `Maker.now` starts the clock."""

    command: str
    configuration: Mapping[str, Any]
    seed: int
    device: str
    started: float

    @classmethod
    def now(cls, command: str, configuration: Mapping[str, Any], seed: int, device: str) -> Maker:
        """What a result records about its making, with the clock started now."""
        return cls(command, configuration, seed, device, time.monotonic())

    def describe(self) -> dict[str, Any]:
        """The `made_by` of the envelope, with the duration up to now."""
        return {
            "command": self.command,
            "configuration": dict(self.configuration),
            "seed": self.seed,
            "versions": versions(),
            "device": describe_device(self.device),
            "commit": commit_of(Path.cwd()),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "duration_seconds": round(time.monotonic() - self.started, 3),
        }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that the numbers depend on."""
    versions_ = {"python": platform.python_version()}
    for name in ("torch", "numpy", "hypothesis", "sympy", "mpmath", "jax", "gpytorch", "scikit-learn", "scipy"):
        try:
            versions_[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions_


@cache
def commit_of(folder: Path) -> str | None:
    """The commit that is checked out in a folder, with "+changes" if tracked files differ; None without one."""
    try:
        status = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"],  # noqa: S607
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = status.stdout.strip()
    return text if status.returncode == 0 and _COMMIT.fullmatch(text) else None


def describe_device(device: str) -> dict[str, Any]:
    """The device in words: its type, its name and how many threads computed."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return {
        "type": device,
        "name": name or platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
    }


@cache
def _processor() -> str:
    """The model of the processor, because machines of one architecture may round and run differently."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor()
    named = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    return named[1].strip() if named else platform.processor()
