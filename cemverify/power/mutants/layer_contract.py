"""Faults of what energy layers keep to between calls, each in a function that only some declarations have.

State maps, Lagrangians, preconditioners, several steps, several states, coupled and present-state energies, noise and
masks are used by some layers and not by others, and so are the faults that lie in them. Each is put into the example
that declares the function, and into any other layer that does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.power.mutants.base import Mutant, Zoo
from cemverify.power.mutants.layer_papers import right_layer
from cemverify.power.mutants.layers import Function, mutant

ZOO = Zoo("layer-contract")

_INPUTS, _EDITED, _SAME = (
    "structure/layer/inputs-unchanged",
    "structure/layer/edited-arrays",
    "structure/layer/determinism",
)
_WINDOWS, _DTYPE, _SETTINGS = "structure/layer/windows", "structure/layer/dtype", "structure/layer/settings"
_AROUND, _RECORDED = "modes/layer/surroundings", "modes/layer/no-gradients"


def _mutant(
    id_: str,
    fault: str,
    property_: str,
    cause: str,
    of: str,
    example: str,
    *,
    answer: Function,
    edits: bool = False,
) -> Mutant:
    """A mutant of any layer that has a function `of`, put into an example unless another layer is asked for."""
    return mutant(
        f"{example.replace('_', '-')}-{id_}",
        fault,
        property_,
        cause,
        answer=answer,
        of=of,
        family=ZOO.family,
        original=partial(right_layer, example),
        needs=("torch",),
        edits=edits,
    )


def _fault(
    id_: str, fault: str, property_: str, cause: str, of: str, example: str, *, edits: bool = False
) -> Callable[[Function], Function]:
    """Enters a function as the `answer` of a mutant."""

    def enter(answer: Function) -> Function:
        ZOO.append(_mutant(id_, fault, property_, cause, of, example, answer=answer, edits=edits))
        return answer

    return enter


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    """The change of one array, or of each of a tuple's."""
    if not isinstance(given, tuple):
        return change(given)
    changed = map(change, given)
    return type(given)(*changed) if hasattr(given, "_fields") else tuple(changed)


def _first(given: Any) -> Tensor:
    found: Tensor = given[0] if isinstance(given, tuple) else given
    return found


def _last(given: Any) -> Tensor:
    found: Tensor = given[-1] if isinstance(given, tuple) else given
    return found


def _kept(memory: dict[str, Any], f: Function, x: Any, *others: Any) -> Any:
    """The last answer again for the same array."""
    if memory.get("array") is not _first(x):
        memory.update(array=_first(x), answer=f(x, *others))
    return _each(lambda a: a + 0, memory["answer"])


# --- the state map ---------------------------------------------------------------------------------------------


_NORMS: dict[str, Any] = {}


ZOO += [
    _mutant("norm-remembered", "The state map returns its last output for the same array, edited or not.",
        _EDITED, "update for edited arrays*(state map)", "state_map", "energy_transformer", edits=True,
        answer=lambda f, x: _kept(_NORMS, f, x)),
]  # fmt: skip


@_fault(
    "norm-in-place", "The state map centres its argument in place.",
    _INPUTS, "x after the call of the state map", "state_map", "energy_transformer", edits=True,
)  # fmt: skip
def _norm_in_place(f: Function, x: Any) -> Any:
    x -= x.mean(-1, keepdim=True)
    return f(x)


ZOO += [
    _mutant("norm-of-the-default-dtype", "The state map's constant is created in the default dtype of the process.",
        _AROUND, "with the default dtype*(state map)", "state_map", "nrgpt_step",
        answer=lambda f, x: f(x) * torch.tensor(1 / 3).to(x.dtype) * 3),
]  # fmt: skip


@_fault(
    "activation-of-one-layer-in-float32", "The hidden neurons' activation is returned in float32.",
    _DTYPE, "bytes per number*(state map)", "state_map", "ham_two_layers",
)  # fmt: skip
def _activation_narrow(f: Function, x: Any) -> Any:
    *others, last = f(x)
    return (*others, last.float())


@_fault(
    "activation-off-while-training", "With gradients recorded, the last activation is scaled.",
    _RECORDED, "output with* gradients*(state map*", "state_map", "ham_two_layers",
)  # fmt: skip
def _activation_training(f: Function, x: Any) -> Any:
    *others, last = f(x)
    return (*others, last * (0.9 if _last(x).requires_grad else 1.0))


# --- the Lagrangian ----------------------------------------------------------------------------------------------


ZOO += [
    _mutant("lagrangian-in-float32", "The Lagrangian is returned in float32.",
        _DTYPE, "bytes per number*(Lagrangian)", "lagrangian", "ham_two_layers", answer=lambda f, x: f(x).float()),
]  # fmt: skip


@_fault(
    "lagrangian-clamps-the-hidden-state", "The Lagrangian clamps its last argument in place.",
    _INPUTS, "hidden after the call of the Lagrangian", "lagrangian", "ham_two_layers", edits=True,
)  # fmt: skip
def _lagrangian_clamps(f: Function, x: Any) -> Any:
    _last(x).clamp_(max=0.5)
    return f(x)


ZOO += [
    _mutant("lagrangian-ignores-strides", "The Lagrangian reads its argument from the start of its storage.",
        _WINDOWS, "update for views*(Lagrangian)", "lagrangian", "energy_transformer",
        answer=lambda f, x: f(_each(_from_the_start, x))),
]  # fmt: skip


def _from_the_start(a: Tensor) -> Tensor:
    size = a.untyped_storage().size() // a.element_size()
    if size == a.numel():
        return a
    return torch.as_strided(a, (size,), (1,), 0)[: a.numel()].reshape(a.shape)


# --- the preconditioner, of two steps ------------------------------------------------------------------------------


@_fault(
    "preconditions-in-place", "The preconditioner scales the gradient in place.",
    _INPUTS, "x after the call of the preconditioner", "preconditioner", "cem_mlp", edits=True,
)  # fmt: skip
def _preconditions_in_place(f: Function, x: Any) -> Any:
    x.copy_(f(x.clone()))
    return x


_STEPS: dict[str, Any] = {}


ZOO += [
    _mutant("preconditioner-remembered",
        "The preconditioner returns its last output for the same array, edited or not.",
        _EDITED, "update for edited arrays*(preconditioner)", "preconditioner", "cem_mlp", edits=True,
        answer=lambda f, x: _kept(_STEPS, f, x)),
]  # fmt: skip


@_fault(
    "preconditioner-seeds", "The preconditioner seeds torch's generator.",
    _SETTINGS, "*random state of torch (preconditioner)*", "preconditioner", "cem_mlp",
)  # fmt: skip
def _preconditioner_seeds(f: Function, x: Any) -> Any:
    torch.manual_seed(0)
    return f(x)


@_fault(
    "second-step-overwrites-the-memory", "The step leaves its normalised copy in the memory.",
    _INPUTS, "memory after the call", "update", "cem_mlp", edits=True,
)  # fmt: skip
def _overwrites_memory(f: Function, x: Any, *memory: Any) -> Any:
    answer = f(x, *memory)
    _first(memory[0] if memory else x).mul_(0.5)
    return answer


# --- energies: coupled, of the present state, one scalar, with several memories -----------------------------------


@_fault(
    "energy-edits-the-present-state", "The energy masks the present state in place.",
    _INPUTS, "x after the call of the energy", "energy", "nrgpt_step", edits=True,
)  # fmt: skip
def _energy_edits(f: Function, x: Any, *others: Any) -> Any:
    answer = f(x, *others)
    _first(x).mul_(0.5)
    return answer


_SCALARS: dict[str, Any] = {}


ZOO += [
    _mutant("energy-remembered", "The scalar energy is returned again for the same array, edited or not.",
        _EDITED, "update for edited arrays*(energy)", "energy", "averaged_energy", edits=True,
        answer=lambda f, x, *others: _kept(_SCALARS, f, x, *others)),
    _mutant("energy-with-noise", "The energy has noise of its own.",
        _SAME, "second call = first call (energy)", "energy", "averaged_energy",
        answer=lambda f, *others: f(*others) + 1e-6 * torch.randn(())),
    _mutant("energy-in-float32", "The energy of the sequence is returned in float32.",
        _DTYPE, "bytes per number*(energy)", "energy", "energy_transformer",
        answer=lambda f, *others: f(*others).float()),
    _mutant("energy-ignores-strides", "The energy reads the state from the start of its storage.",
        _WINDOWS, "update for * = update for separate arrays (energy)", "energy", "simplicial_hopfield",
        answer=lambda f, x, *others: f(_each(_from_the_start, x), *others)),
]  # fmt: skip


@_fault(
    "energy-scales-the-patterns", "The energy normalises the patterns in place.",
    _INPUTS, "memory after the call of the energy", "energy", "simplicial_hopfield", edits=True,
)  # fmt: skip
def _energy_patterns(f: Function, x: Any, memory: Any) -> Any:
    answer = f(x, memory)
    _first(memory).mul_(0.5)
    return answer


ZOO += [
    _mutant("energy-off-while-training", "With gradients recorded, a tenth of the energy is dropped.",
        _RECORDED, "output with* gradients*(energy)", "energy", "hopfield_heads",
        answer=lambda f, x, *others:
            f(x, *others) * (0.9 if torch.is_grad_enabled() and _first(x).requires_grad else 1.0)),
    _mutant("energy-of-the-default-dtype", "A constant of the energy is created in the default dtype of the process.",
        _AROUND, "with the default dtype*(energy)", "energy", "hopfield_heads",
        answer=lambda f, x, *others: f(x, *others) * torch.tensor(1 / 3).to(_first(x).dtype) * 3),
]  # fmt: skip


@_fault(
    "energy-turns-the-default-dtype", "The energy leaves float64 behind as the default dtype.",
    _SETTINGS, "*default dtype* (energy)*", "energy", "hopfield_heads",
)  # fmt: skip
def _energy_setting(f: Function, *others: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    return f(*others)


# --- noise, masks, solvers ------------------------------------------------------------------------------------


@_fault(
    "noise-used-up", "The noise is scaled in place.",
    _INPUTS, "noise x after the call", "update", "energy_based_transformer", edits=True,
)  # fmt: skip
def _noise_used_up(f: Any, *others: Any) -> Any:
    answer = f(*others)
    if (noise := f.keywords.get("noise")) is not None:
        _first(noise).mul_(0.5)
    return answer


@_fault(
    "mask-completed-in-place", "Masked tokens are put back into the mask after the call.",
    _INPUTS, "mask after the call", "update", "energy_transformer", edits=True,
)  # fmt: skip
def _mask_edited(f: Any, *others: Any) -> Any:
    answer = f(*others)
    if (mask := f.keywords.get("mask")) is not None:
        mask.fill_(True)
    return answer


_SOLUTIONS: dict[str, Any] = {}


@_fault(
    "warm-start", "The solver starts from the last solution of the same shape.",
    _SAME, "second call = first call", "update", "equilibrium_layer",
)  # fmt: skip
def _warm_start(f: Function, x: Any, *others: Any) -> Any:
    last = _SOLUTIONS.get("last")
    usable = isinstance(last, Tensor) and last.shape == x.shape and last.dtype == x.dtype
    answer = f(last if usable else x, *others)
    _SOLUTIONS["last"] = answer.detach()
    return answer


@_fault(
    "seeds-its-noise", "The step seeds torch's generator.",
    _SETTINGS, "*random state of torch (1 = yes)", "update", "energy_based_transformer",
)  # fmt: skip
def _step_seeds(f: Function, *others: Any) -> Any:
    torch.manual_seed(0)
    return f(*others)
