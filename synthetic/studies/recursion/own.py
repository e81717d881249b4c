"""A model of the user's own as a contender: `module:object`, a function of the number of inputs d.

It returns a torch module that maps points (N, d) to values (N,) or (N, 1). If the function has a parameter `steps`,
the model has a T. Initial weights come from torch's own generator, seeded for each replicate, so a model starts with
the same weights at every T if it draws them in the same order.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cemverify.conformance.implementations import contract, naming
from cemverify.conformance.implementations.faults import words
from cemverify.console.errors import UsageError
from synthetic.gp.tasks import Stream, Streams
from synthetic.studies.recursion.stacked import Stacked


@dataclass(frozen=True)
class OwnSpec:
    """A model of the user's own."""

    name: str  # module:object
    depth: int | None  # T, the function's `steps`; None if it has no such parameter
    code: str  # the SHA-256 of the module's file, so that an edited model is trained again


@cache
def specs(name: str, depths: Sequence[int], inputs: int) -> tuple[OwnSpec, ...]:
    """The model at every T, or once if it has no T, after a trial on a few points.

    Raises:
        UsageError: it does not fit.
    """
    maker, code = _loaded(name)
    try:
        has_depth = "steps" in inspect.signature(maker).parameters
    except ValueError:  # a builtin may have none
        has_depth = False
    made = tuple(OwnSpec(name, T, code) for T in (depths if has_depth else (None,)))
    for spec in made:
        _try_out(spec, inputs)
    return made


class OwnStack(Stacked):
    """S models of the user's own, one for each replicate."""

    def __init__(self, spec: OwnSpec, inputs: int, streams: Sequence[Streams]) -> None:
        maker, code = _loaded(spec.name)
        if code != spec.code:
            raise UsageError(f"the file of {spec.name} is not the one that the study began with; start it again")
        models = []
        for stream in streams:
            torch.manual_seed(stream.generator(Stream.WEIGHTS, "own").initial_seed())
            model = maker(inputs) if spec.depth is None else maker(inputs, steps=spec.depth)
            if not isinstance(model, nn.Module):
                raise UsageError(f"model {spec.name} made a {type(model).__name__}; a torch.nn.Module is needed")
            models.append(model)
        super().__init__(spec.name, models)
        self.spec = spec


@cache
def _loaded(name: str) -> tuple[Callable[..., Any], str]:
    """The object with this name, and the digest of its module's file when it was loaded."""
    maker = contract.attribute(name)
    if isinstance(maker, nn.Module) or not callable(maker):
        raise UsageError(
            f"model {name} is a {type(maker).__name__}; name a class or function that makes a torch.nn.Module from"
            " the number of inputs"
        )
    file = contract.module(naming.parts(name)[0]).__file__
    return maker, hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _try_out(spec: OwnSpec, inputs: int) -> None:
    """Tries once everything that a study does with a model, without a training step."""
    x = torch.rand(2, 128, inputs, generator=torch.Generator().manual_seed(0))
    try:
        model = OwnStack(spec, inputs, [Streams(0, "", seed) for seed in range(len(x))])
        values = model(x)
        if not values.requires_grad:
            raise UsageError(f"model {spec.name} has no parameters to train")
        values.sum().backward()
        with torch.no_grad():
            if not bool(model.double()(x.double()).isfinite().all()):  # studies evaluate in float64
                raise UsageError(f"model {spec.name} made values that are not finite before it was trained")
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UsageError(f"model {spec.name} raised {words(error)}") from error
