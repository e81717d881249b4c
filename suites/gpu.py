"""`tox run -e gpu`: the GPU-marked suites, workers spread over the GPUs there are; without one, a sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import torch


def main(arguments: Sequence[str]) -> int:
    """Runs `pytest -m gpu`, two workers a GPU, and passes its exit code on; 0 where there is no GPU."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices == 0:
        print(f"no CUDA device (torch {torch.__version__}): the GPU-marked suites were not run")
        return 0
    for i in range(devices):
        print(f"cuda:{i}: {torch.cuda.get_device_name(i)}")
    workers = ["-n", str(2 * devices)]
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", *workers, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
