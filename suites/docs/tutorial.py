"""Follows the tutorial in an empty folder, as its reader does, and says how long each command takes:

python -m suites.docs.tutorial
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from suites.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
FILES: Mapping[str, str] = {block.title: block.text for block in blocks(PAGE) if block.title}

# What the reader types, whether the layer has been mended by then, and the exit code.
COMMANDS = (
    ("cemverify check adapter:mine", False, 1),
    ("cemverify repair adapter:mine", False, 0),
    ("cemverify check adapter:mine", True, 0),
    ("cemverify check adapter:mine --save-counterexamples found", False, 1),
    ("cemverify replay found/gradient-attention-plain.json", False, 1),
    ("cemverify replay found/gradient-attention-plain.json", True, 0),
    ("pytest -q test_layer.py", True, 0),
)


def layer(*, mended: bool) -> str:
    """The layer of the first section, before or after the fix."""
    wrong = FILES["layer.py"]
    return wrong.replace(FILES["wrong"], FILES["right"]) if mended else wrong


def main() -> int:
    """Runs every command; the exit code is 1 if one of them ends otherwise than the page says."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), "."))}
    total, wrong = 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("adapter.py", "test_layer.py"):
            Path(folder, name).write_text(FILES[name], encoding="utf-8")
        for command, mended, code in COMMANDS:
            Path(folder, "layer.py").write_text(layer(mended=mended), encoding="utf-8")
            started = time.monotonic()
            words = [sys.executable, "-m", *command.split()]
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
            seconds = time.monotonic() - started
            total += seconds
            complaint = "" if done.returncode == code else f", not {code}: {done.stdout}{done.stderr}"
            wrong += bool(complaint)
            print(f"{seconds:6.1f} s  exit code {done.returncode}{complaint}  {command}", flush=True)
    print(f"{total:6.1f} s  together, at a load of {os.getloadavg()[0]:.1f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
