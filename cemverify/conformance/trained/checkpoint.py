"""Weights from a safetensors file, copied into a model with a place for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cemverify.console.errors import UsageError

_NAMED = 4  # names listed in a sentence; the rest are counted


@dataclass(frozen=True)
class Weights:
    """What was read from a checkpoint."""

    path: Path  # the file
    tensors: int  # how many there are
    numbers: int  # in all of them together
    dtypes: tuple[str, ...]  # as stored


def load_weights(model: nn.Module, path: Path) -> Weights:
    """Copies all tensors of a safetensors file into the model, whose parameters keep their dtype and device.

    Tied parameters need only be in the file once.
    """
    if path.suffix != ".safetensors":
        raise UsageError(
            f"{path} is not a .safetensors file, the only kind that is read, as a pickle may run code: "
            "write one with safetensors.torch.save_model(model, 'weights.safetensors')"
        )
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}")
    own = model.state_dict()
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        _check(path, shapes, own)
        tensors = load_file(path)
    except (OSError, MemoryError, RuntimeError, SafetensorError) as error:  # a file that is too large is not mapped
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"the checkpoint {path} cannot be read: {why}") from error
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    return Weights(path, len(tensors), sum(tensor.numel() for tensor in tensors.values()), tuple(dtypes))


def _check(path: Path, shapes: dict[str, tuple[int, ...]], own: dict[str, Tensor]) -> None:
    """Refuses a tensor without a place of its shape, and a place without a tensor."""
    unknown = [name for name in shapes if name not in own]
    filled = {own[name].data_ptr() for name in shapes if name in own and own[name].numel()}
    missing = [name for name, tensor in own.items() if name not in shapes and tensor.data_ptr() not in filled]
    if unknown or missing:
        faults = [f"has {_listed(unknown)}, which the model has no place for"] if unknown else []
        faults += [f"lacks {_listed(missing)}, which the model needs"] if missing else []
        raise UsageError(f"the checkpoint {path} {', and '.join(faults)}{_prefix(unknown, missing)}")
    wrong = [
        f"{name} ({_shape(shape)} in the file, {_shape(own[name].shape)} in the model)"
        for name, shape in shapes.items()
        if shape != tuple(own[name].shape)
    ]
    if wrong:
        raise UsageError(
            f"the checkpoint {path} differs from the model in shapes: {_listed(wrong)}; "
            "build the model with the sizes that it was trained with"
        )


def _prefix(unknown: Sequence[str], missing: Sequence[str]) -> str:
    """What to do if names only differ by a prefix, as those of a wrapped or compiled model do."""
    for name in unknown:
        for wanted in missing:
            if name != wanted and name.endswith(f".{wanted}"):
                prefix = name.removesuffix(wanted)
                if {f"{prefix}{other}" for other in missing} <= set(unknown):
                    return f"; the names in the file begin with {prefix!r}: save the inner model's weights"
    return "; does the factory build the model that was trained?"


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names[:_NAMED])
    return text if len(names) <= _NAMED else f"{text} and {len(names) - _NAMED} more"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"
