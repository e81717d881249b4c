"""Checkpoints: weights and optimiser state in one safetensors file, from which training goes on bit for bit.

    weights.NAME    the parameters
    first.NAME      AdamW's mean of the gradients
    second.NAME     AdamW's mean of their squares
    metadata        the run's specification and progress, as JSON

It is written aside and renamed: a run that is killed leaves the last whole checkpoint.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from cemverify.cem.models import LanguageModel
from cemverify.console.errors import UsageError
from cemverify.processes.atomic_files import replacing, sweep
from cemverify.results.envelope import flaw

FORMAT = 1
_MOST = 2**53  # what a float holds exactly
# the metadata of a checkpoint; files of weights only have no state
_FACTS = {
    "type": "object",
    "required": ["format", "specification"],
    "properties": {
        "format": {"const": FORMAT},
        "specification": {"type": "object"},
        "state": {
            "type": "object",
            "required": ["step", "bits", "batches"],
            "properties": {
                "step": {"type": "integer", "minimum": 0, "maximum": _MOST},
                "bits": {"type": "array", "items": {"type": "number", "not": {"type": "integer", "minimum": _MOST}}},
                "batches": {"type": "string"},
                "notes": {"type": "array"},
            },
        },
    },
}
_MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}  # AdamW's names


@dataclass(frozen=True)
class TrainingState:
    """How far a training has come."""

    step: int = 0  # updates done
    bits: tuple[float, ...] = ()  # the loss of each, in bits per token
    batches: str = ""  # the digest of the batches of these updates
    notes: tuple[Any, ...] = ()  # plain values that an observer needs when training resumes


def save(
    path: Path,
    model: LanguageModel,
    optimiser: torch.optim.Optimizer,
    state: TrainingState,
    specification: Mapping[str, Any],
) -> None:
    """Writes a checkpoint aside and renames it.

    Args:
        specification: JSON that decides the run; `restore` refuses any other.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weights.{name}"] = _kept(parameter.detach())
        for moment, key in _MOMENTS.items():
            tensors[f"{moment}.{name}"] = _kept(optimiser.state[parameter][key])
    _write(path, tensors, {"format": FORMAT, "specification": specification, "state": asdict(state)})


def save_weights(path: Path, model: LanguageModel, specification: Mapping[str, Any]) -> None:
    """Writes the parameters alone, under their own names."""
    tensors = {name: _kept(parameter.detach()) for name, parameter in model.named_parameters()}
    _write(path, tensors, {"format": FORMAT, "specification": specification})


def restore(
    path: Path, model: LanguageModel, optimiser: torch.optim.Optimizer, specification: Mapping[str, Any]
) -> TrainingState:
    """Loads a checkpoint into a fresh model and optimiser; returns the training's state."""
    facts, tensors = _read(path)
    _same_run(path, facts["specification"], json.loads(json.dumps(specification)))
    recorded = facts["state"]
    notes = tuple(recorded.get("notes", ()))
    state = TrainingState(recorded["step"], tuple(recorded["bits"]), recorded["batches"], notes)
    for name, parameter in model.named_parameters():
        for part in ("weights", *_MOMENTS):
            tensor = tensors.get(f"{part}.{name}")
            if tensor is None or tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                there = (
                    "is missing" if tensor is None else f"has shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
                )
                raise _damaged(path, f"{part}.{name} {there}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"weights.{name}"])
            optimiser.state[parameter] = {
                "step": torch.tensor(float(state.step), device=parameter.device),
                **{key: tensors[f"{moment}.{name}"].to(parameter.device) for moment, key in _MOMENTS.items()},
            }
    return state


def _kept(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata of a checkpoint, and its tensors."""
    try:
        if not path.is_file():
            raise OSError(errno.EINVAL, "it is no regular file")
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("cemverify", "null"))
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or "state" not in facts:
        raise UsageError(f"{path} is no checkpoint of this package; delete it to start anew")
    if (wrong := flaw(facts, _FACTS)) is not None:
        raise _damaged(path, f"damaged{wrong}")
    return facts, tensors


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"the checkpoint {path} cannot be read ({why}); delete it to start anew")


def _same_run(path: Path, saved: Any, wanted: Any) -> None:
    vocabularies = [specification.get("vocabulary") for specification in (saved, wanted)]
    if vocabularies[0] != vocabularies[1]:
        raise UsageError(
            f"the checkpoint {path} is of a model with a vocabulary of {vocabularies[0]}, but this corpus has"
            f" {vocabularies[1]}; resume with the corpus and tokeniser it was trained on"
        )
    if differing := sorted(_differences(saved, wanted)):
        raise UsageError(
            f"the checkpoint {path} is of another run: {', '.join(differing[:4])} differ; resume with the same"
            " options, or start anew without --resume"
        )


def _differences(a: Any, b: Any, at: str = "") -> list[str]:
    """The paths at which two JSON values differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        return [
            path
            for key in {**a, **b}
            for path in _differences(a.get(key), b.get(key), f"{at}.{key}" if at else str(key))
        ]
    return [] if a == b else [at]


def _write(path: Path, tensors: dict[str, Tensor], facts: Mapping[str, Any]) -> None:
    sweep(path.parent)
    try:
        with replacing(path) as aside:
            save_file(tensors, aside, {"cemverify": json.dumps(facts)})
    except (OSError, SafetensorError) as error:
        size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(
            f"cannot write {path} of {size:,.1f} MB: {reason}; make room, or name another folder with --folder"
        ) from error
