"""The model around a trained layer: what its factory returns, and one of its parts as an energy layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cemverify.cem.layers import CEMLayer
from cemverify.conformance.implementations.contract import as_subject, attribute
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import words
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.trained.known import declared
from cemverify.console.errors import UsageError

_MOST_NAMES = 8  # sub-modules named in a sentence

Declare = Callable[[Any], EnergyLayer]
Inputs = Callable[..., Any]


@dataclass(frozen=True)
class TrainedModel:
    """A model whose layers are declared from outside, for `cemverify check --checkpoint`.

    Attributes:
        model: the model, with weights of any value: the checkpoint's are copied into it.
        declare: makes an energy layer from the sub-module under test. It is called for a copy in float64 and for one
            in the dtype of the weights, and must use the module that it is given.
        inputs: takes the arguments of the sub-module's forward, keywords by name, and returns its state and its
            memory, (x, memory), or only x. Without `inputs`, the forward must take exactly these.
        tokens: those with which the model is called, (B, J); None for random ones, or those of --tokens.
    """

    model: nn.Module
    declare: Declare | None = None
    inputs: Inputs | None = None
    tokens: Tensor | None = None


def build(name: str) -> TrainedModel:
    """Calls the factory of that name, "module:factory"."""
    factory = attribute(name)
    if not callable(factory):
        raise LoadError(
            f"{name} is a {type(factory).__name__}; with --checkpoint, name a function that builds a model"
        )
    if isinstance(factory, nn.Module):
        raise LoadError(f"{name} is a module: with --checkpoint, name a function without arguments that returns it")
    try:
        built = factory()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise LoadError(f"the factory {name} failed when called without arguments: {words(error)}") from error
    if isinstance(built, nn.Module):
        return TrainedModel(built)
    if isinstance(built, TrainedModel) and isinstance(built.model, nn.Module):
        return built
    raise LoadError(
        f"the factory {name} returned a {type(built).__name__}; it must return a torch.nn.Module, or "
        "cemverify.TrainedModel(model, declare=...)"
    )


def part(model: nn.Module, name: str) -> nn.Module:
    """The sub-module of that name."""
    parts: dict[str, nn.Module] = dict(model.named_modules())
    if name and name in parts:
        return parts[name]
    layers = [key for key, module in parts.items() if isinstance(module, CEMLayer)]
    names = layers or [key for key in parts if key]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    raise UsageError(
        f"the model has no layer {name!r}; it has {', '.join(names[:_MOST_NAMES]) or 'no sub-modules'}{more}"
    )


def energy_layer_of(layer: nn.Module, declare: Declare | None, name: str) -> EnergyLayer:
    """The energy layer that a sub-module represents.

    It is declared by `declare`; or it is one of `cemverify.cem`; or it has an `update`, an `energy`, and a `state`
    or `dim` of its own, named as in `cemverify.energy_layer`.
    """
    if declare is not None:
        try:
            form = declare(layer)
        except Exception as error:
            raise UsageError(f"declaring {name!r} failed: {words(error)}") from error
        if not isinstance(form, EnergyLayer):
            raise UsageError(
                f"declare returned a {type(form).__name__} for {name!r}; it must return cemverify.energy_layer(...)"
            )
        return form
    if isinstance(layer, CEMLayer):
        return declared(layer)
    try:
        subject = as_subject(layer, name)
    except LoadError:
        subject = None
    if isinstance(subject, EnergyLayer):
        return subject
    raise UsageError(
        f"{name!r} is a {type(layer).__name__}, whose energy is not known: let the factory return "
        "cemverify.TrainedModel(model, declare=...), where declare(layer) returns cemverify.energy_layer(...)"
    )
