"""Which device a pytest worker uses."""

from __future__ import annotations

import os

import torch


def device_of_worker(wanted: str) -> str:
    """The device of this process: "cuda" and "auto" spread xdist's workers over the GPUs there are.

    Args:
        wanted: "cpu", "cuda" or "cuda:1" as they are; "auto" is a GPU if there is one, or else "cpu".
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto" and count == 0:
        return "cpu"
    if wanted in ("auto", "cuda"):
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        return f"cuda:{worker % max(1, count)}"
    return wanted
