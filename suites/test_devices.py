"""Workers are spread over the GPUs there are."""

from __future__ import annotations

import pytest
import torch

from suites.devices import device_of_worker


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.usefixtures("three_gpus")
def test_workers_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    for worker in range(5):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        devices.append(device_of_worker("auto"))
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]


@pytest.mark.usefixtures("three_gpus")
def test_a_named_device_stays() -> None:
    assert device_of_worker("cuda:2") == "cuda:2"
    assert device_of_worker("cpu") == "cpu"


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of_worker("auto") == "cpu"
