"""Workers are spread over the GPUs there are."""

from __future__ import annotations

import pytest
import torch

from suites.devices import device_of_worker


@pytest.mark.parametrize(
    ("wanted", "gpus", "devices"),
    [
        ("auto", 3, "cuda:0 cuda:1 cuda:2 cuda:0"),
        ("cuda:2", 3, "cuda:2 cuda:2 cuda:2 cuda:2"),
        ("cpu", 3, "cpu cpu cpu cpu"),
        ("auto", 0, "cpu cpu cpu cpu"),
    ],
)
def test_workers_take_the_gpus_in_turn(wanted: str, gpus: int, devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    taken = []
    for worker in range(4):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        taken.append(device_of_worker(wanted))
    assert taken == devices.split()
