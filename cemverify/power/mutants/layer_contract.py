"""Faults against the contract of energy layers, each in a function that only some declarations have.

Only some layers have state maps, Lagrangians, preconditioners, several steps, several states, coupled and
present-state energies, noise or masks, and only these can have the faults here. Each fault is put into the example
that declares the function, and into any other layer that does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.power.mutants.base import Function, fault, followed_by, preceded_by
from cemverify.power.mutants.layer_base import (
    LayerZoo,
    OfLayer,
    each,
    first_of,
    from_the_start,
    remembered,
    states_of,
)

ZOO = LayerZoo("layer-contract")

_INPUTS, _EDITED, _SAME = (
    "structure/layer/inputs-unchanged",
    "structure/layer/edited-arrays",
    "structure/layer/determinism",
)
_WINDOWS, _DTYPE, _SETTINGS = "structure/layer/windows", "structure/layer/dtype", "structure/layer/settings"
_AROUND, _RECORDED = "modes/layer/surroundings", "modes/layer/no-gradients"


def _in(example: str, of: str = "update", *, edits: bool = False) -> OfLayer:
    """A fault in a function of an example that is written in torch."""
    return {"example": example, "of": of, "needs": ("torch",), "edits": edits}


# --- the state map ---------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("energy-transformer-norm-in-place", "The state map centres its argument in place.",
        _INPUTS, "kept: state map, x", **_in("energy_transformer", "state_map", edits=True),
        answer=preceded_by(lambda _, x: x.sub_(x.mean(-1, keepdim=True)))),
    ZOO.answering("energy-transformer-norm-remembered",
        "The state map returns its last output for the same array, edited or not.",
        _EDITED, "edited: *state map", **_in("energy_transformer", "state_map", edits=True),
        answer=remembered()),
    ZOO.answering("nrgpt-step-norm-of-the-default-dtype",
        "The state map's constant is created in the default dtype of the process.",
        _AROUND, "answer: with the default dtype*, state map", **_in("nrgpt_step", "state_map"),
        answer=lambda f, x: f(x) * torch.tensor(1 / 3).to(x.dtype) * 3),
    ZOO.answering("ham-two-layers-activation-of-one-layer-in-float32",
        "The hidden neurons' activation is returned in float32.",
        _DTYPE, "dtype: state map, hidden", **_in("ham_two_layers", "state_map"),
        answer=lambda f, x: (*(states := f(x))[:-1], states[-1].float())),
    ZOO.answering("ham-two-layers-activation-off-while-training",
        "With gradients recorded, the last activation is scaled.",
        _RECORDED, "answer: with*gradients*, state map, hidden", **_in("ham_two_layers", "state_map"),
        answer=lambda f, x: (*(states := f(x))[:-1], states[-1] * (0.9 if states_of(x)[-1].requires_grad else 1.0))),
]  # fmt: skip


# --- the Lagrangian ----------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("ham-two-layers-lagrangian-clamps-the-hidden-state",
        "The Lagrangian clamps its last argument in place.",
        _INPUTS, "kept: Lagrangian, hidden", **_in("ham_two_layers", "lagrangian", edits=True),
        answer=preceded_by(lambda _, x: states_of(x)[-1].clamp_(max=0.5))),
    ZOO.answering("ham-two-layers-lagrangian-in-float32", "The Lagrangian is returned in float32.",
        _DTYPE, "dtype: Lagrangian", **_in("ham_two_layers", "lagrangian"),
        answer=lambda f, x: f(x).float()),
    ZOO.answering("energy-transformer-lagrangian-ignores-strides",
        "The Lagrangian reads its argument from the start of its storage.",
        _WINDOWS, "answer: views, Lagrangian", **_in("energy_transformer", "lagrangian"),
        answer=lambda f, x: f(each(from_the_start, x))),
]  # fmt: skip


# --- the preconditioner, of two steps ------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("cem-mlp-preconditions-in-place", "The preconditioner scales the gradient in place.",
        _INPUTS, "kept: preconditioner, x", **_in("cem_mlp", "preconditioner", edits=True),
        answer=lambda f, x: x.copy_(f(x.clone()))),
    ZOO.answering("cem-mlp-preconditioner-remembered",
        "The preconditioner returns its last output for the same array, edited or not.",
        _EDITED, "edited: preconditioner", **_in("cem_mlp", "preconditioner", edits=True),
        answer=remembered()),
    ZOO.answering("cem-mlp-preconditioner-seeds", "The preconditioner seeds torch's generator.",
        _SETTINGS, "setting: random state of torch, preconditioner", **_in("cem_mlp", "preconditioner"),
        answer=preceded_by(lambda *_: torch.manual_seed(0))),
    ZOO.answering("cem-mlp-second-step-overwrites-the-memory", "The step leaves its normalised copy in the memory.",
        _INPUTS, "kept: memory*", **_in("cem_mlp", edits=True),
        answer=followed_by(lambda _, x, *memory: first_of(memory[0] if memory else x).mul_(0.5))),
]  # fmt: skip


# --- energies: coupled, of the present state, one scalar, with several memories -----------------------------------


ZOO += [
    ZOO.answering("nrgpt-step-energy-edits-the-present-state", "The energy masks the present state in place.",
        _INPUTS, "kept: energy, x", **_in("nrgpt_step", "energy", edits=True),
        answer=followed_by(lambda _, x, *rest: first_of(x).mul_(0.5))),
    ZOO.answering("simplicial-hopfield-energy-scales-the-patterns", "The energy normalises the patterns in place.",
        _INPUTS, "kept: energy, memory", **_in("simplicial_hopfield", "energy", edits=True),
        answer=followed_by(lambda _, x, memory: first_of(memory).mul_(0.5))),
    ZOO.answering("averaged-energy-energy-remembered",
        "The scalar energy is returned again for the same array, edited or not.",
        _EDITED, "edited: energy", **_in("averaged_energy", "energy", edits=True),
        answer=remembered()),
    ZOO.answering("averaged-energy-energy-with-noise", "The energy has noise of its own.",
        _SAME, "repeated: energy", **_in("averaged_energy", "energy"),
        answer=lambda f, *rest: f(*rest) + 1e-6 * torch.randn(())),
    ZOO.answering("energy-transformer-energy-in-float32", "The energy of the sequence is returned in float32.",
        _DTYPE, "dtype: energy", **_in("energy_transformer", "energy"),
        answer=lambda f, *rest: f(*rest).float()),
    ZOO.answering("simplicial-hopfield-energy-ignores-strides",
        "The energy reads the state from the start of its storage.",
        _WINDOWS, "answer: *, energy", **_in("simplicial_hopfield", "energy"),
        answer=lambda f, x, *rest: f(each(from_the_start, x), *rest)),
    ZOO.answering("hopfield-heads-energy-off-while-training",
        "With gradients recorded, a tenth of the energy is dropped.",
        _RECORDED, "answer: with*gradients*, energy", **_in("hopfield_heads", "energy"), answer=lambda f, x, *rest:
            f(x, *rest) * (0.9 if torch.is_grad_enabled() and first_of(x).requires_grad else 1.0)),
    ZOO.answering("hopfield-heads-energy-of-the-default-dtype",
        "A constant of the energy is created in the default dtype of the process.",
        _AROUND, "answer: with the default dtype*, energy", **_in("hopfield_heads", "energy"),
        answer=lambda f, x, *rest: f(x, *rest) * torch.tensor(1 / 3).to(first_of(x).dtype) * 3),
    ZOO.answering("hopfield-heads-energy-turns-the-default-dtype",
        "The energy leaves float64 behind as the default dtype.",
        _SETTINGS, "setting: default dtype, energy", **_in("hopfield_heads", "energy"),
        answer=preceded_by(lambda *_: torch.set_default_dtype(torch.float64))),
]  # fmt: skip


# --- noise, masks, solvers ------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("energy-based-transformer-noise-used-up", "The noise is scaled in place.",
        _INPUTS, "kept: noise x*", **_in("energy_based_transformer", edits=True), answer=followed_by(lambda f, *_:
            None if (noise := f.keywords.get("noise")) is None else first_of(noise).mul_(0.5))),
    ZOO.answering("energy-transformer-mask-completed-in-place",
        "Masked tokens are put back into the mask after the call.",
        _INPUTS, "kept: mask*", **_in("energy_transformer", edits=True), answer=followed_by(lambda f, *_:
            None if (mask := f.keywords.get("mask")) is None else mask.fill_(True))),
]  # fmt: skip


_SOLUTIONS: dict[str, Any] = {}


@ZOO.answers(_SAME, "repeated", **_in("equilibrium_layer"))
@fault("The solver starts from the last solution of the same shape.")
def equilibrium_layer_warm_start(f: Function, x: Any, *rest: Any) -> Any:
    last = _SOLUTIONS.get("last")
    usable = isinstance(last, Tensor) and last.shape == x.shape and last.dtype == x.dtype
    answer = f(last if usable else x, *rest)
    _SOLUTIONS["last"] = answer.detach()
    return answer


ZOO += [
    ZOO.answering("energy-based-transformer-seeds-its-noise", "The step seeds torch's generator.",
        _SETTINGS, "setting: random state of torch", **_in("energy_based_transformer"),
        answer=preceded_by(lambda *_: torch.manual_seed(0))),
]  # fmt: skip
