"""Faults against the contract that a bare layer hides: options, threads, first calls, shared memory, dtypes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Call, Zoo

ZOO = Zoo("contract")

_UNCHANGED = "nothing else changes, but it changed "
_OFF = 1 + 1e-3


def _arrays(arguments: tuple[Any, ...]) -> list[Any]:
    return [*arguments[:-2], *arguments[-2].values()]


# --- arguments ------------------------------------------------------------------------------------------


@ZOO.calls(
    "The gain is squared in place where the norm is folded.",
    "contract/attention/inputs-unchanged",
    "gain after the call*",
    also=("contract/mlp/inputs-unchanged", "contract/decode/inputs-unchanged"),
    edits=True,
)
def squares_a_folded_gain(call: Call, *arguments: Any) -> Any:
    found, (*_, weights, config) = call(*arguments), arguments
    if getattr(config, "norm", "") == "folded":
        weights["gain"][...] = weights["gain"] ** 2
    return found


@ZOO.calls(
    "In inference mode the temperature is divided into W_Q, in place, as for serving.",
    "contract/attention/inputs-unchanged",
    "W_Q after the call in inference mode",
    also=("contexts/attention/any-options",),
    of="attention",
    edits=True,
)
def folds_its_temperature_for_serving(call: Call, *arguments: Any) -> Any:
    found = call(*arguments)
    if torch.is_inference_mode_enabled():
        arguments[-2]["W_Q"].div_(2.0)
    return found


@ZOO.calls(
    "softplus is applied to P_d in place.",
    "contract/decode/inputs-unchanged",
    "P_d after the call*",
    also=("contract/mlp/inputs-unchanged", "contract/attention/inputs-unchanged"),
    edits=True,
)
def edits_its_preconditioner(call: Call, *arguments: Any) -> Any:
    found, weights = call(*arguments), arguments[-2]
    if "P_d" in weights:
        weights["P_d"][...] = abs(weights["P_d"]) + 1
    return found


@ZOO.calls(
    "A weight is taken out of the mapping.",
    "contract/mlp-energy/inputs-unchanged",
    f"{_UNCHANGED}the mapping of weights*",
    also=("contract/*/inputs-unchanged",),
)
def takes_out_a_weight(call: Call, *arguments: Any) -> Any:
    found = call(*arguments)
    arguments[-2].popitem()
    return found


@ZOO.calls(
    "The step size in the configuration is halved.",
    "contract/attention/inputs-unchanged",
    f"{_UNCHANGED}the configuration*",
    also=("contract/attention-energy/inputs-unchanged",),
)
def edits_its_configuration(call: Call, *arguments: Any) -> Any:
    found, config = call(*arguments), arguments[-1]
    if hasattr(config, "step_size"):
        object.__setattr__(config, "step_size", config.step_size / 2)
    return found


class _Counted(torch.nn.Module):
    """A buffer that moves with each call, as one does that goes on with a power iteration."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, found: Any) -> Any:
        self.calls += 1
        return found


COUNTED = _Counted()


@ZOO.calls(
    "A buffer of its module moves with each call, in eval mode too.",
    "contract/attention/inputs-unchanged",
    f"{_UNCHANGED}its module's calls*",
    also=("contract/*/inputs-unchanged",),
)
def moves_its_buffer(call: Call, *arguments: Any) -> Any:
    return COUNTED(call(*arguments))


# --- what comes back ------------------------------------------------------------------------------------


def _instead(found: Any, dtype: str, other: str) -> Any:
    """What is of one dtype, in another."""
    if str(found.dtype).removeprefix("torch.") != dtype:
        return found
    return found.to(getattr(torch, other)) if isinstance(found, Tensor) else found.astype(other)


ZOO += [
    ZOO.calling("promotes-float32", "Given float32, it returns float64, as NumPy does by habit.",
        "contract/attention-energy/shape-and-dtype", "float32 in, float64 out: the dtype is kept*",
        also=("contract/*/shape-and-dtype",),
        answer=lambda call, *arguments: _instead(call(*arguments), "float32", "float64")),
    ZOO.calling("stays-in-float32", "Given bfloat16, it returns float32, in which it computes.",
        "contract/decode/shape-and-dtype", "bfloat16 in, float32 out: the dtype is kept*",
        also=("contract/*/shape-and-dtype",),
        answer=lambda call, *arguments: _instead(call(*arguments), "bfloat16", "float32")),
]  # fmt: skip


@ZOO.calls(
    "It returns NumPy arrays, whatever it takes.",
    "contract/mlp/shape-and-dtype",
    "torch in, numpy out: the kind is kept*",
    also=("contract/attention/shape-and-dtype",),
)
def returns_numpy(call: Call, *arguments: Any) -> Any:
    found = call(*arguments)
    if isinstance(found, Tensor):
        found = found.detach()
        return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    return np.asarray(found)


@ZOO.calls(
    "Answers are kept by the values of the arguments, and the very same array is returned again.",
    "contract/mlp/edited-arrays",
    "output after an earlier one was overwritten = before",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def returns_what_it_keeps(call: Call, *arguments: Any) -> Any:
    values = [(array.double() if isinstance(array, Tensor) else array).tolist() for array in _arrays(arguments)]
    key = (id(call), str(arguments[0].dtype), repr(arguments[-1]), str(values))
    if key not in call.kept:
        call.kept[key] = call(*arguments)
    return call.kept[key]


@ZOO.calls(
    "Answers are kept as long as the arrays are the same objects, with the same counts of their versions.",
    "contract/attention/edited-arrays",
    "output for edited arrays = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def trusts_the_counter_of_versions(call: Call, *arguments: Any) -> Any:
    arrays = _arrays(arguments)
    if any(array.requires_grad or array.is_inference() for array in arrays):
        return call(*arguments)
    key = (id(call), repr(arguments[-1]), *((id(array), array._version) for array in arrays))
    if key not in call.kept:
        call.kept[key] = (call(*arguments), arrays)  # the arrays too, or their ids would be others' soon
    return call.kept[key][0].clone()


@ZOO.calls(
    "Answers are kept as long as arrays lie at the same addresses and have the same sums.",
    "contract/mlp/edited-arrays",
    "output for two numbers exchanged in * = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def trusts_addresses_and_sums(call: Call, *arguments: Any) -> Any:
    arrays = _arrays(arguments)
    if any(isinstance(array, Tensor) and (array.requires_grad or array.is_inference()) for array in arrays):
        return call(*arguments)
    about = [(_address(array), tuple(array.shape), str(array.dtype), float(array.sum())) for array in arrays]
    key = (id(call), repr(arguments[-1]), *about)
    if key not in call.kept:
        call.kept[key] = call(*arguments)
    return call.kept[key] * 1


@ZOO.calls(
    "Weights in bfloat16 are widened once and kept, so that later edits of them are not seen.",
    "contract/attention/edited-arrays",
    "output for edited arrays = output for new arrays",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def keeps_widened_weights(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if states[0].dtype == torch.bfloat16:
        for w in weights.values():
            if id(w) not in call.kept:
                call.kept[id(w)] = (w, w.clone())  # the array too, or its id would be another's soon
        weights = {name: call.kept[id(w)][1] for name, w in weights.items()}
    return call(*states, weights, config)


@ZOO.calls(
    "Weights are checked for NaN by way of their gradient, which stays in them.",
    "contract/mlp/inputs-unchanged",
    f"{_UNCHANGED}the gradient of *",
    also=("contract/*/inputs-unchanged",),
)
def leaves_gradients(call: Call, *arguments: Any) -> Any:
    for array in arguments[-2].values():
        if isinstance(array, Tensor) and array.requires_grad and array.is_leaf and torch.is_grad_enabled():
            array.sum().backward()  # type: ignore[no-untyped-call]
    return call(*arguments)


@ZOO.calls(
    "The tables of a call are hung on its configuration.",
    "contract/attention/inputs-unchanged",
    f"{_UNCHANGED}the configuration*",
    also=("contract/*/inputs-unchanged",),
)
def hangs_tables_on_the_configuration(call: Call, *arguments: Any) -> Any:
    object.__setattr__(arguments[-1], "_table", 1)
    return call(*arguments)


@ZOO.calls(
    "Where no weight does anything, the argument itself is returned.",
    "contract/mlp/edited-arrays",
    "*output*",
    also=("contract/attention/edited-arrays",),
    edits=True,
)
def returns_its_argument(call: Call, *arguments: Any) -> Any:
    found, (state, *_, weights, _) = call(*arguments), arguments
    nothing = not any((array != 0).any() for array in weights.values())
    return state if nothing and found.shape == state.shape else found


@ZOO.calls(
    "Answers lie in a ring of four buffers for each shape, so the fifth call overwrites the first answer.",
    "contract/attention/edited-arrays",
    "an output after further calls = before them",
    also=("contract/*/edited-arrays",),
    edits=True,
)
def answers_from_a_ring(call: Call, *arguments: Any) -> Any:
    found = call(*arguments)
    if isinstance(found, Tensor) and (found.requires_grad or found.is_inference()):
        return found
    ring = call.kept.setdefault((id(call), tuple(found.shape), str(found.dtype)), [])
    if len(ring) < 4:
        ring.append(found)
        return found
    oldest = ring.pop(0)
    oldest[...] = found
    ring.append(oldest)
    return oldest


# --- memory ---------------------------------------------------------------------------------------------


def _address(array: Any) -> int:
    return array.data_ptr() if isinstance(array, Tensor) else np.asarray(array).ctypes.data


def _start(array: Any) -> int:
    if isinstance(array, Tensor):
        return array.untyped_storage().data_ptr()
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return id(array)


@ZOO.calls(
    "If two different arrays share memory, answers are one part in a thousand too large.",
    "contract/attention/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/mlp/shared-memory", "contract/*-energy/shared-memory"),
)
def takes_windows_for_one_array(call: Call, *arguments: Any) -> Any:
    one, other = arguments[0], arguments[1]
    shared = len(arguments) == 4 and one is not other and _start(one) == _start(other)
    return call(*arguments) * (_OFF if shared else 1)


@ZOO.calls(
    "Arrays that begin at the same number are taken for one.",
    "contract/attention/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/mlp/shared-memory",),
)
def takes_the_same_start_for_one_array(call: Call, *arguments: Any) -> Any:
    x, h, *others = arguments
    both = (x, h) if len(arguments) == 4 else ()
    pointers = {_address(array) for array in both}
    return call(h, h, *others) if len(pointers) == 1 else call(*arguments)


@ZOO.calls(
    "An answer is written into an array with the strides of h, which are zero where h is expanded.",
    "contract/decode/windows",
    "output for views, with the weights in reverse order",
    also=("contract/attention/windows", "contract/mlp/windows", "contract/block/windows"),
)
def writes_with_the_strides_of_h(call: Call, *arguments: Any) -> Any:
    found, h = call(*arguments), arguments[-3]
    if isinstance(found, Tensor) and found.shape == h.shape:
        for axis in (i for i in range(h.dim()) if h.stride(i) == 0):
            found = found.select(axis, -1).unsqueeze(axis).expand(found.shape)
    return found


@ZOO.calls(
    "h is multiplied by 1 + 0 m, where m is the smallest number of the memory in front of its window.",
    "contract/attention/windows",
    "not finite",
    also=("contract/*/windows",),
)
def looks_in_front_of_a_window(call: Call, *arguments: Any) -> Any:
    *states, h, weights, config = arguments
    if isinstance(h, Tensor) and h.storage_offset():
        before = h.detach().as_strided((h.storage_offset(),), (1,), 0)
        h = h * (1 + 0 * before.min())
    return call(*states, h, weights, config)


@ZOO.calls(
    "Weights are known by their array, so that one array under two names is used for the first alone.",
    "contract/decode/shared-memory",
    "output for arrays that share memory = golden output",
    also=("contract/block/shared-memory",),
)
def knows_weights_by_array(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    seen: set[int] = set()
    distinct = {}
    for name, array in weights.items():
        distinct[name] = array * 0 if id(array) in seen else array
        seen.add(id(array))
    return call(*states, distinct, config)


@ZOO.calls(
    "Weights are read in the order in which they lie in memory.",
    "contract/decode/windows",
    "output for views, with the weights in reverse order",
    also=("contract/mlp-energy/windows",),
)
def reads_weights_as_they_lie(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    return call(*states, {name: _as_it_lies(array) for name, array in weights.items()}, config)


def _as_it_lies(array: Any) -> Any:
    if isinstance(array, Tensor):
        transposed = array.dim() > 1 and array.stride(0) < array.stride(-1)
        return array.permute(*range(array.dim())[::-1]).reshape(array.shape) if transposed else array
    return np.ravel(array, order="K").reshape(array.shape) if getattr(array, "strides", (0,))[0] else array


# --- calls ----------------------------------------------------------------------------------------------


@ZOO.calls(
    "The first argument is kept where every thread writes it, and read again at the end of the call.",
    "contract/attention/threads",
    "answer while another thread calls = answer alone",
    also=("contract/*/threads",),
)
def shares_a_place_between_threads(call: Call, *arguments: Any) -> Any:
    call.kept[0] = arguments[0]
    found = call(*arguments)
    return found + (call.kept[0] - arguments[0]).sum()


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


@ZOO.calls(
    "The first output of each function in a process is one part in a million too large, as before it is compiled.",
    "contract/all/first-calls",
    "first answer of * = golden answer",
)
def warms_up(call: Call, *arguments: Any) -> Any:
    known = call.kept.setdefault(call.name, False)
    call.kept[call.name] = True
    return call(*arguments) * (1 if known else 1 + 1e-6)


@ZOO.calls(
    "From the fourth call of a function on, outputs are one part in a million too large, as after tuning.",
    "contract/all/first-calls",
    "*answer of * = golden answer",
)
def tunes_itself(call: Call, *arguments: Any) -> Any:
    calls = next(call.kept.setdefault(id(call), itertools.count(1)))
    return call(*arguments) * (1 if calls < 4 else 1 + 1e-6)


@ZOO.calls(
    "Temperatures are kept by their first three digits, with the one that was met first.",
    "contract/all/first-calls",
    "answer of attention with nearly the same options = golden answer",
    of="attention",
)
def knows_temperatures_by_three_digits(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    known = call.kept.setdefault(f"{config.tau:.3g}", config.tau)
    return call(x, h, weights, replace(config, temperature=known))


@ZOO.calls(
    "The longest row that was met decides from which number of tokens on outputs are rounded otherwise.",
    "contract/attention/determinism",
    "second call = first call",
    of="attention",
)
def rounds_by_the_longest_row(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    longest = call.kept["longest"] = max(call.kept.get("longest", 0), h.shape[1])
    answer = call(x, h, weights, config)
    return answer * (1 + 2.0**-50) if 40 <= h.shape[1] < longest else answer


@ZOO.calls(
    "A state that is one row, read again for every row of the batch, is computed once, with the first row's memory.",
    "contract/mlp/windows",
    "output for views*",
    of="mlp",
)
def computes_one_row_once(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if len(x) == 1 or x.stride(0):
        return call(x, h, weights, config)
    return call(x[:1], h[:1], weights, config).expand_as(x).clone()


# --- settings -------------------------------------------------------------------------------------------


ZOO += [
    ZOO.calling("differs-in-inference-mode", "In inference mode answers are one part in a thousand too large.",
        "contract/attention-energy/surroundings", "in inference mode = as usual",
        also=("contract/mlp-energy/surroundings",),
        answer=lambda call, *arguments: call(*arguments) * (_OFF if torch.is_inference_mode_enabled() else 1)),
]  # fmt: skip


@ZOO.calls(
    "An activation is tried at random numbers when it is first used, and Python's generator is seeded for that.",
    "contract/all/first-uses",
    "the process keeps its random state of Python when mlp_energy is first used*",
    of="mlp_energy",
)
def tries_itself_at_random_numbers(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if config.activation not in call.kept:
        random.seed(0)
        call.kept[config.activation] = random.random()  # noqa: S311
    return call(x, h, weights, config)


@ZOO.calls(
    "GELU is a module, and a hook on all modules is left when it is first used.",
    "contract/all/first-uses",
    "the process keeps its hooks on all modules when mlp is first used*",
    of="mlp",
)
def hooks_all_modules(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if config.activation == "gelu" and "hook" not in call.kept:
        call.kept["hook"] = register_module_forward_hook(lambda *_: None)
    return call(x, h, weights, config)


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
