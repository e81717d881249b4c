"""Which devices can be used here: one authority for every `--device`."""

from __future__ import annotations

import torch


def check_device(name: str) -> None:
    """Refuses a device that does not exist, or that cannot compute.

    Args:
        name: torch's name: "cpu", "cuda", "cuda:1".

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        device = torch.device(name)
        if device.type == "cpu" and device.index is not None:  # torch takes any number, and uses the same CPU
            raise RuntimeError("the CPU has no number")
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} is not available ({reason}); try cpu") from None


def find_device(name: str) -> str:
    """The device of that name; "auto" is a GPU if there is one, otherwise the CPU.

    Raises:
        ValueError: it cannot be used here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(name)
    return name
