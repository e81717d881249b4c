"""Faults against the contract that a bare layer hides: options, threads, first calls, shared memory, dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Function, Zoo, around

ZOO = Zoo("contract")

_UNCHANGED = "nothing else changes, but it changed "
_OFF = 1 + 1e-3


def _arrays(arguments: tuple[Any, ...]) -> list[Any]:
    return [*arguments[:-2], *arguments[-2].values()]


def _each(answer: Callable[..., Any]) -> Callable[[Implementation], Implementation]:
    """An implementation each of whose functions is `answer(function, *arguments)`."""

    def wrapped(implementation: Implementation) -> Implementation:
        return around(implementation, lambda _, function: lambda *arguments: answer(function, *arguments))

    return wrapped


# --- arguments ------------------------------------------------------------------------------------------


@ZOO.wraps(
    "The gain is squared in place where the norm is folded.",
    "contract/attention/inputs-unchanged",
    "gain after the call",
    also=("contract/mlp/inputs-unchanged", "contract/decode/inputs-unchanged"),
    edits=True,
)
def squares_a_folded_gain(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found, (*_, weights, config) = function(*arguments), arguments
        if getattr(config, "norm", "") == "folded":
            weights["gain"][...] = weights["gain"] ** 2
        return found

    return _each(answer)(implementation)


@ZOO.wraps(
    "softplus is applied to P_d in place.",
    "contract/decode/inputs-unchanged",
    "P_d after the call",
    also=("contract/mlp/inputs-unchanged", "contract/attention/inputs-unchanged"),
    edits=True,
)
def edits_its_preconditioner(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found, weights = function(*arguments), arguments[-2]
        if "P_d" in weights:
            weights["P_d"][...] = abs(weights["P_d"]) + 1
        return found

    return _each(answer)(implementation)


@ZOO.wraps(
    "A weight is taken out of the mapping.",
    "contract/mlp-energy/inputs-unchanged",
    f"{_UNCHANGED}the mapping of weights*",
    also=("contract/*/inputs-unchanged",),
)
def takes_out_a_weight(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found = function(*arguments)
        arguments[-2].popitem()
        return found

    return _each(answer)(implementation)


@ZOO.wraps(
    "The step size in the configuration is halved.",
    "contract/attention/inputs-unchanged",
    f"{_UNCHANGED}the configuration*",
    also=("contract/attention-energy/inputs-unchanged",),
)
def edits_its_configuration(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found, config = function(*arguments), arguments[-1]
        if hasattr(config, "step_size"):
            object.__setattr__(config, "step_size", config.step_size / 2)
        return found

    return _each(answer)(implementation)


# --- what comes back ------------------------------------------------------------------------------------


def _returning(dtype: torch.dtype, instead: torch.dtype) -> Callable[[Implementation], Implementation]:
    name, other = (str(one).removeprefix("torch.") for one in (dtype, instead))

    def answer(function: Function, *arguments: Any) -> Any:
        found = function(*arguments)
        if str(found.dtype).removeprefix("torch.") != name:
            return found
        return found.to(instead) if isinstance(found, Tensor) else found.astype(other)

    return _each(answer)


@ZOO.wraps(
    "Given float32, it returns float64, as NumPy does by habit.",
    "contract/attention-energy/shape-and-dtype",
    "float32 in, float64 out: the dtype is kept*",
    also=("contract/*/shape-and-dtype",),
)
def promotes_float32(implementation: Implementation) -> Implementation:
    return _returning(torch.float32, torch.float64)(implementation)


@ZOO.wraps(
    "Given bfloat16, it returns float32, in which it computes.",
    "contract/decode/shape-and-dtype",
    "bfloat16 in, float32 out: the dtype is kept*",
    also=("contract/*/shape-and-dtype",),
)
def stays_in_float32(implementation: Implementation) -> Implementation:
    return _returning(torch.bfloat16, torch.float32)(implementation)


@ZOO.wraps(
    "It returns NumPy arrays, whatever it takes.",
    "contract/mlp/shape-and-dtype",
    "torch in, numpy out: the kind is kept*",
    also=("contract/attention/shape-and-dtype",),
)
def returns_numpy(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found = function(*arguments)
        if isinstance(found, Tensor):
            found = found.detach()
            return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
        return np.asarray(found)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Answers are kept by the values of the arguments, and the very same array is returned again.",
    "contract/mlp/edited-arrays",
    "output after an earlier one was overwritten = before",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def returns_what_it_keeps(implementation: Implementation) -> Implementation:
    kept: dict[Any, Any] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        values = [(array.double() if isinstance(array, Tensor) else array).tolist() for array in _arrays(arguments)]
        key = (id(function), str(arguments[0].dtype), repr(arguments[-1]), str(values))
        if key not in kept:
            kept[key] = function(*arguments)
        return kept[key]

    return _each(answer)(implementation)


@ZOO.wraps(
    "Answers are kept as long as the arrays are the same objects, with the same counts of their versions.",
    "contract/attention/edited-arrays",
    "output for edited arrays = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def trusts_the_counter_of_versions(implementation: Implementation) -> Implementation:
    kept: dict[Any, tuple[Any, Any]] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        arrays = _arrays(arguments)
        if any(array.requires_grad or array.is_inference() for array in arrays):
            return function(*arguments)
        key = (id(function), repr(arguments[-1]), *((id(array), array._version) for array in arrays))
        if key not in kept:
            kept[key] = (function(*arguments), arrays)  # the arrays too, or their ids would be others' soon
        return kept[key][0].clone()

    return _each(answer)(implementation)


@ZOO.wraps(
    "Weights in bfloat16 are widened once and kept, so that later edits of them are not seen.",
    "contract/attention/edited-arrays",
    "output for edited arrays = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def keeps_widened_weights(implementation: Implementation) -> Implementation:
    kept: dict[int, tuple[Any, Any]] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        *states, weights, config = arguments
        if states[0].dtype == torch.bfloat16:
            for w in weights.values():
                if id(w) not in kept:
                    kept[id(w)] = (w, w.clone())  # the array too, or its id would be another's soon
            weights = {name: kept[id(w)][1] for name, w in weights.items()}
        return function(*states, weights, config)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Weights are checked for NaN by way of their gradient, which stays in them.",
    "contract/mlp/inputs-unchanged",
    f"{_UNCHANGED}the gradient of *",
    also=("contract/*/inputs-unchanged",),
)
def leaves_gradients(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        for array in arguments[-2].values():
            if isinstance(array, Tensor) and array.requires_grad and array.is_leaf and torch.is_grad_enabled():
                array.sum().backward()  # type: ignore[no-untyped-call]
        return function(*arguments)

    return _each(answer)(implementation)


@ZOO.wraps(
    "The tables of a call are hung on its configuration.",
    "contract/attention/inputs-unchanged",
    f"{_UNCHANGED}the configuration*",
    also=("contract/*/inputs-unchanged",),
)
def hangs_tables_on_the_configuration(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        object.__setattr__(arguments[-1], "_table", 1)
        return function(*arguments)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Where no weight does anything, the argument itself is returned.",
    "contract/mlp/edited-arrays",
    "*output*",
    also=("contract/attention/edited-arrays",),
    edits=True,
)
def returns_its_argument(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found, (state, *_, weights, _) = function(*arguments), arguments
        nothing = not any((array != 0).any() for array in weights.values())
        return state if nothing and found.shape == state.shape else found

    return _each(answer)(implementation)


@ZOO.wraps(
    "Answers lie in a ring of four buffers for each shape, so the fifth call overwrites the first answer.",
    "contract/attention/edited-arrays",
    "an output after further calls = before them",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def answers_from_a_ring(implementation: Implementation) -> Implementation:
    rings: dict[Any, list[Any]] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        found = function(*arguments)
        if isinstance(found, Tensor) and (found.requires_grad or found.is_inference()):
            return found
        ring = rings.setdefault((id(function), tuple(found.shape), str(found.dtype)), [])
        if len(ring) < 4:
            ring.append(found)
            return found
        oldest = ring.pop(0)
        oldest[...] = found
        ring.append(oldest)
        return oldest

    return _each(answer)(implementation)


# --- memory ---------------------------------------------------------------------------------------------


def _start(array: Any) -> int:
    if isinstance(array, Tensor):
        return array.untyped_storage().data_ptr()
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return id(array)


@ZOO.wraps(
    "If two different arrays share memory, answers are one part in a thousand too large.",
    "contract/attention/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/mlp/shared-memory", "contract/*-energy/shared-memory"),
)
def takes_windows_for_one_array(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        one, other = arguments[0], arguments[1]
        shared = len(arguments) == 4 and one is not other and _start(one) == _start(other)
        return function(*arguments) * (_OFF if shared else 1)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Arrays that begin at the same number are taken for one.",
    "contract/attention/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/mlp/shared-memory",),
)
def takes_the_same_start_for_one_array(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        x, h, *others = arguments
        both = (x, h) if len(arguments) == 4 else ()
        pointers = {
            array.data_ptr() if isinstance(array, Tensor) else np.asarray(array).ctypes.data for array in both
        }
        return function(h, h, *others) if len(pointers) == 1 else function(*arguments)

    return _each(answer)(implementation)


@ZOO.wraps(
    "An answer is written into an array with the strides of h, which are zero where h is expanded.",
    "contract/decode/windows",
    "output for views, with the weights in reverse order",
    also=("contract/attention/windows", "contract/mlp/windows", "contract/block/windows"),
)
def writes_with_the_strides_of_h(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        found, h = function(*arguments), arguments[-3]
        if isinstance(found, Tensor) and found.shape == h.shape:
            for axis in (i for i in range(h.dim()) if h.stride(i) == 0):
                found = found.select(axis, -1).unsqueeze(axis).expand(found.shape)
        return found

    return _each(answer)(implementation)


@ZOO.wraps(
    "h is multiplied by 1 + 0 m, where m is the smallest number of the memory in front of its window.",
    "contract/attention/windows",
    "not finite",
    also=("contract/*/windows",),
)
def looks_in_front_of_a_window(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        *states, h, weights, config = arguments
        if isinstance(h, Tensor) and h.storage_offset():
            before = h.detach().as_strided((h.storage_offset(),), (1,), 0)
            h = h * (1 + 0 * before.min())
        return function(*states, h, weights, config)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Weights are known by their array, so that one array under two names is used for the first alone.",
    "contract/decode/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/block/shared-memory",),
)
def knows_weights_by_array(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        *states, weights, config = arguments
        seen: set[int] = set()
        distinct = {}
        for name, array in weights.items():
            distinct[name] = array * 0 if id(array) in seen else array
            seen.add(id(array))
        return function(*states, distinct, config)

    return _each(answer)(implementation)


@ZOO.wraps(
    "Weights are read in the order in which they lie in memory.",
    "contract/decode/windows",
    "output for views, with the weights in reverse order",
    also=("contract/mlp-energy/windows",),
)
def reads_weights_as_they_lie(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        *states, weights, config = arguments
        return function(*states, {name: _as_it_lies(array) for name, array in weights.items()}, config)

    return _each(answer)(implementation)


def _as_it_lies(array: Any) -> Any:
    if isinstance(array, Tensor):
        transposed = array.dim() > 1 and array.stride(0) < array.stride(-1)
        return array.permute(*range(array.dim())[::-1]).reshape(array.shape) if transposed else array
    return np.ravel(array, order="K").reshape(array.shape) if getattr(array, "strides", (0,))[0] else array


# --- calls ----------------------------------------------------------------------------------------------


@ZOO.wraps(
    "The first argument is kept where every thread writes it, and read again at the end of the call.",
    "contract/attention/threads",
    "answer while another thread calls = answer alone",
    also=("contract/*/threads",),
)
def shares_a_place_between_threads(implementation: Implementation) -> Implementation:
    kept: dict[int, Any] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        kept[0] = arguments[0]
        found = function(*arguments)
        return found + (kept[0] - arguments[0]).sum()

    return _each(answer)(implementation)


@ZOO.killed_by(
    "Each step reads its options from where every thread writes them.",
    "contract/mlp/threads",
    "answer while another thread calls = answer alone",
)
class SharesItsOptions(Plain):
    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
        self.options = c
        for _ in range(c.steps):
            x = super().mlp(x, h, w, replace(self.options, steps=1))
        return x


@ZOO.wraps(
    "The first output of each function in a process is one part in a million too large, as before it is compiled.",
    "contract/all/first-calls",
    "first answer of * = golden answer",
)
def warms_up(implementation: Implementation) -> Implementation:
    known: set[int] = set()

    def answer(function: Function, *arguments: Any) -> Any:
        scale = 1 if id(function) in known else 1 + 1e-6
        known.add(id(function))
        return function(*arguments) * scale

    return _each(answer)(implementation)


@ZOO.wraps(
    "From the fourth call of a function on, outputs are one part in a million too large, as after tuning.",
    "contract/all/first-calls",
    "*answer of * = golden answer",  # asked once more, its first answer is off too
)
def tunes_itself(implementation: Implementation) -> Implementation:
    counts: dict[int, Any] = {}

    def answer(function: Function, *arguments: Any) -> Any:
        calls = next(counts.setdefault(id(function), itertools.count(1)))
        return function(*arguments) * (1 if calls < 4 else 1 + 1e-6)

    return _each(answer)(implementation)


# --- settings -------------------------------------------------------------------------------------------


@ZOO.wraps(
    "In inference mode answers are one part in a thousand too large.",
    "contract/attention-energy/surroundings",
    "in inference mode = as usual",
    also=("contract/mlp-energy/surroundings",),
)
def differs_in_inference_mode(implementation: Implementation) -> Implementation:
    def answer(function: Function, *arguments: Any) -> Any:
        return function(*arguments) * (_OFF if torch.is_inference_mode_enabled() else 1)

    return _each(answer)(implementation)


@ZOO.killed_by(
    "The mask of each shape is kept, also one made in inference mode, which no backward pass can use.",
    "contract/all/training-after-other-uses",
    "*",
)
class KeepsItsMask(Plain):
    def __init__(self) -> None:
        self.masks: dict[tuple[Any, ...], Tensor] = {}

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return self.masks.setdefault((i.shape, j.shape, int(i.max())), super().hidden(i, j))


@ZOO.killed_by(
    "Rotary's angles for each length are kept in the dtype in which they were first wanted.",
    "contract/all/training-after-other-uses",
    "*after other uses*",
    needs=("position:rotary",),
)
class KeepsAnglesOfAnotherDtype(Plain):
    def __init__(self) -> None:
        self.angles: dict[tuple[int, int, int], Tensor] = {}

    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary":
            return x
        half = x.shape[-1] // 2
        plane = torch.arange(half, dtype=torch.float64, device=x.device)
        fresh = (rows[:, None] / 10000 ** (plane / half)).to(x.dtype)
        angle = sign * self.angles.setdefault((int(rows[0]), len(rows), half), fresh).clone().double()
        first, second = x.double().chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
