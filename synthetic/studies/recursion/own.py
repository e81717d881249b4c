"""A model of the user's own as a contender: `module:object`, a function of the number of inputs d.

It returns a torch module that maps points (N, d) to values (N,) or (N, 1). If it has a parameter `steps`, the model
has a T. First weights come from torch's own generator, seeded for each replicate, so a model starts with the same
weights at every T if it draws them in the same order.
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
from torch import Tensor, nn
from torch.func import functional_call

from cemverify.conformance.implementations import contract, naming
from cemverify.conformance.implementations.faults import words
from cemverify.console.errors import UsageError
from synthetic.gp.tasks import Stream, Streams


@dataclass(frozen=True)
class OwnSpec:
    """A model of the user's own."""

    name: str  # module:object
    depth: int | None  # T, the function's `steps`; None if it has no parameter of that name
    code: str  # the SHA-256 of the module's file, so that an edited model is trained again


@cache
def specs(name: str, depths: Sequence[int], inputs: int) -> tuple[OwnSpec, ...]:
    """The model at every T, or once if it has none, after a try on a few points.

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


class OwnStack(nn.Module):
    """S models of the user's own, one for each replicate, their parameters and buffers stacked.

    They are called one by one, because torch cannot vectorise whatever a user may write.
    """

    def __init__(self, spec: OwnSpec, inputs: int, streams: Sequence[Streams]) -> None:
        super().__init__()
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
        parameters, buffers = (
            [dict(named(model)) for model in models]
            for named in (nn.Module.named_parameters, nn.Module.named_buffers)
        )
        self.spec = spec
        self.model = models[:1]  # in a list, so that its own weights are not among the parameters
        self.names = [*parameters[0], *buffers[0]]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([each[name].detach() for each in parameters]), parameter.requires_grad)
            for name, parameter in parameters[0].items()
        )
        for i, name in enumerate(buffers[0]):
            self.register_buffer(f"buffer{i}", torch.stack([each[name] for each in buffers]))

    def forward(self, inputs: Tensor, _steps: int | None = None) -> Tensor:
        """Predictions (S, N) of inputs (S, N, d)."""
        (model,) = self.model
        model.train(torch.is_grad_enabled())  # dropout acts in training, and not where a model is scored
        stacked = {name: t.unbind() for name, t in zip(self.names, (*self.weights, *self.buffers()), strict=True)}
        made = []
        for s, x in enumerate(inputs):
            values = functional_call(model, {name: tensors[s] for name, tensors in stacked.items()}, (x,))
            if not isinstance(values, Tensor) or values.shape not in ((len(x),), (len(x), 1)):
                what = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                raise UsageError(
                    f"model {self.spec.name} maps points of shape {tuple(x.shape)} to {what}; one value for each is"
                    f" needed, ({len(x)},) or ({len(x)}, 1)"
                )
            made.append(values.reshape(len(x)))
        return torch.stack(made)


@cache
def _loaded(name: str) -> tuple[Callable[..., Any], str]:
    """What stands under a name, and the digest of its module's file as it was then."""
    maker = contract.attribute(name)
    if isinstance(maker, nn.Module) or not callable(maker):
        raise UsageError(
            f"model {name} is a {type(maker).__name__}; name a class or function that makes a torch.nn.Module from"
            " the number of inputs"
        )
    file = contract.module(naming.parts(name)[0]).__file__
    return maker, hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _try_out(spec: OwnSpec, inputs: int) -> None:
    """Trains a model for no step: everything that a study does with it is done once."""
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
