"""Mutants of energy layers: any layer in which one function gives other answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, CEMAttention
from cemverify.conformance.implementations.energy_layers import EnergyLayer, energy_layer
from cemverify.power.mutants.base import Function, Mutant, Zoo
from cemverify.power.mutants.layer_papers import layer as example_layer


def sound_layer() -> EnergyLayer:
    """A correct layer: attention with fixed weights as a black box."""
    energy = CEMAttention(AttentionConfig(4, 2, init_std=0.5), torch.Generator().manual_seed(0)).energy

    def of_dtype(x: Tensor) -> Any:
        return replace(energy, W_Q=energy.W_Q.detach().to(x), W_K=energy.W_K.detach().to(x))

    return energy_layer(
        update=lambda x, memory: -(live := of_dtype(x)).gradient(x, live.remember(memory)),
        energy=lambda x, memory: (live := of_dtype(x))(x, live.remember(memory)),
        dim=4,
        monotone=True,
    )


class OfLayer(TypedDict, total=False):
    """Optional arguments of a mutant of energy layers."""

    of: str  # the faulty function: "update", "energy", "state_map", "lagrangian" or "preconditioner"
    original: Callable[[], EnergyLayer]  # the layer that gets the fault by default
    example: str  # the original, as the name of an example of this repository
    # needs, edits: as in `Mutant`
    needs: tuple[str, ...]
    edits: bool


class LayerZoo(Zoo):
    """The mutants of one family of energy layers."""

    def answers(self, property_: str, cause: str, **more: Unpack[OfLayer]) -> Callable[[Function], Function]:
        """Adds a function as the `answer` of `answering`; its name becomes the id."""
        return self.enter(self.answering, property_, cause, **more)

    def answering(
        self,
        id_: str,
        fault: str,
        property_: str,
        cause: str,
        answer: Function,
        *,
        of: str = "update",
        original: Callable[[], EnergyLayer] = sound_layer,
        example: str = "",
        needs: tuple[str, ...] = (),
        edits: bool = False,
    ) -> Mutant:
        """A mutant of any layer with a function `of`: `answer(f, x, *memories)` replaces f(x, *memories).

        f is the original function; its keyword arguments are bound, as `f.keywords`.
        """
        make = partial(example_layer, example) if example else original

        def wrap(layer: EnergyLayer) -> EnergyLayer:
            right = layer.step.preconditioner if of == "preconditioner" else getattr(layer, of)
            if not callable(right):
                raise ValueError(f"it declares no {of.replace('_', ' ')} that is a function")

            def wrong(x: Any, *memories: Any, **named: Any) -> Any:
                return answer(partial(right, **named), x, *memories)

            if of == "preconditioner":
                return replace(layer, step=replace(layer.step, preconditioner=wrong))
            changed: dict[str, Any] = {of: wrong}
            return replace(layer, **changed)

        return self.wrapping(id_, fault, property_, cause, wrap, original=make, needs=needs, edits=edits)


def each(change: Callable[..., Any], *states: Any) -> Any:
    """Applies a change to one array or to each of a tuple; with several states, to corresponding arrays together."""
    first = states[0]
    if not isinstance(first, tuple):
        return change(*states)
    changed = map(change, *states)
    return type(first)(*changed) if hasattr(first, "_fields") else tuple(changed)


def remembered() -> Function:
    """An `answer` that is repeated for the same array, even if that was edited in between."""
    memory: dict[str, Any] = {}

    def answer(f: Function, x: Any, *memories: Any) -> Any:
        if memory.get("array") is not first_of(x):
            memory.update(array=first_of(x), answer=f(x, *memories))
        return each(lambda a: a + 0, memory["answer"])

    return answer


def states_of(x: Any) -> tuple[Any, ...]:
    """The states as a tuple."""
    return x if isinstance(x, tuple) else (x,)


def first_of(states: Any) -> Any:
    """The array, or the first of a tuple."""
    return states[0] if isinstance(states, tuple) else states


def from_the_start(a: Tensor) -> Tensor:
    """The numbers of an array read as if it were not a view: from the start of its storage, one after the other."""
    size = a.untyped_storage().size() // a.element_size()
    return a if size == a.numel() else torch.as_strided(a, (size,), (1,), 0)[: a.numel()].reshape(a.shape)
