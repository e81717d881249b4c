"""Implementations that misbehave, for `test_isolation`; loaded by name in worker processes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from cemverify import implementation
from cemverify.conformance import reference


def _hangs(x: Any, h: Any, w: Any, c: Any) -> Any:
    while True:
        time.sleep(1)


def _exits(x: Any, h: Any, w: Any, c: Any) -> Any:
    os._exit(7)


def _aborts(x: Any, h: Any, w: Any, c: Any) -> Any:
    os.abort()


def _prints(x: Any, h: Any, w: Any, c: Any) -> Any:
    print("noise")
    os.write(1, b"more noise\n")
    return reference.attention(x, h, w, c)


def _raises_in_unicode(x: Any, h: Any, w: Any, c: Any) -> Any:
    raise RuntimeError("ταυ → ∞\x00")


def _starts_a_child(x: Any, h: Any, w: Any, c: Any) -> Any:
    child = subprocess.Popen(["sleep", "600"])  # noqa: S607
    Path(os.environ["CEMVERIFY_TEST_CHILD"]).write_text(str(child.pid))
    return _hangs(x, h, w, c)


def _leaves(x: Any, h: Any, w: Any, c: Any) -> Any:
    raise SystemExit(0)


hangs = implementation(attention=_hangs, mlp=reference.mlp)
exits = implementation(attention=_exits, mlp=reference.mlp, attention_energy=reference.attention_energy)
aborts = implementation(attention=_aborts, mlp=reference.mlp)
prints = implementation(attention=_prints)
raises = implementation(attention=_raises_in_unicode)
starts_a_child = implementation(attention=_starts_a_child, mlp=reference.mlp)
leaves = implementation(attention=_leaves, mlp=reference.mlp)
not_an_implementation = 3
