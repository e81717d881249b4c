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

from cemverify.power.mutants.base import (
    ANSWER,
    Call,
    Function,
    Zoo,
    arrays_of,
    fault,
    followed_by,
    in_dtype,
    overwrite,
    preceded_by,
    remembering,
)

ZOO = Zoo("contract")

_INPUTS, _EDITED = "contract/attention/inputs-unchanged", "contract/attention/edited-arrays"
_ANY_INPUTS, _ANY_EDITED = ("contract/*/inputs-unchanged",), ("contract/*/edited-arrays",)
_ANEW = "edited"
_OFF = 1 + 1e-3


# --- arguments ------------------------------------------------------------------------------------------


class _Counted(torch.nn.Module):
    """A buffer that changes with each call, like one that continues a power iteration."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, answer: Any) -> Any:
        self.calls += 1
        return answer


COUNTED = _Counted()


ZOO += [
    ZOO.calling("squares-a-folded-gain", "The gain is squared in place where the norm is folded.",
        _INPUTS, "kept: gain*", also=("mlp", "decode"), edits=True, answer=followed_by(lambda _, *a:
            overwrite(a[-2]["gain"], a[-2]["gain"] ** 2) if getattr(a[-1], "norm", "") == "folded" else None)),
    ZOO.calling("folds-its-temperature-for-serving",
        "In inference mode the temperature is divided into W_Q, in place, as for serving.",
        _INPUTS, "kept: W_Q*", also=("contexts/attention/any-options",), of="attention", edits=True,
        answer=followed_by(lambda _, *a: a[-2]["W_Q"].div_(2.0) if torch.is_inference_mode_enabled() else None)),
    ZOO.calling("edits-its-preconditioner", "softplus is applied to P_d in place.",
        "contract/decode/inputs-unchanged", "kept: P_d*", also=("mlp", "attention"), edits=True,
        answer=followed_by(lambda _, *a: overwrite(d := a[-2]["P_d"], abs(d) + 1) if "P_d" in a[-2] else None)),
    ZOO.calling("takes-out-a-weight", "A weight is taken out of the mapping.",
        "contract/mlp-energy/inputs-unchanged", "changed", also=_ANY_INPUTS,
        answer=followed_by(lambda _, *a: a[-2].popitem())),
    ZOO.calling("edits-its-configuration", "The step size in the configuration is halved.",
        _INPUTS, "changed", also=("attention-energy",), answer=followed_by(lambda _, *a:
            object.__setattr__(a[-1], "step_size", a[-1].step_size / 2) if hasattr(a[-1], "step_size") else None)),
    ZOO.calling("moves-its-buffer", "A buffer of its module moves with each call, in eval mode too.",
        "contract/attention/inputs-unchanged", "changed",
        also=_ANY_INPUTS, answer=lambda call, *arguments: COUNTED(call(*arguments))),
]  # fmt: skip


# --- what comes back ------------------------------------------------------------------------------------


def _instead(answer: Any, dtype: str, other: str) -> Any:
    """Converts arrays of one dtype to another."""
    return in_dtype(answer, other) if str(answer.dtype).removeprefix("torch.") == dtype else answer


ZOO += [
    ZOO.calling("promotes-float32", "Given float32, it returns float64, as NumPy does by habit.",
        "contract/attention-energy/shape-and-dtype", "dtype", also=("*",),
        answer=lambda call, *arguments: _instead(call(*arguments), "float32", "float64")),
    ZOO.calling("stays-in-float32", "Given bfloat16, it returns float32, in which it computes.",
        "contract/decode/shape-and-dtype", "dtype", also=("*",),
        answer=lambda call, *arguments: _instead(call(*arguments), "bfloat16", "float32")),
]  # fmt: skip


@ZOO.calls("contract/mlp/shape-and-dtype", "form", also=("attention",))
@fault("It returns NumPy arrays, whatever it takes.")
def returns_numpy(call: Call, *arguments: Any) -> Any:
    answer = call(*arguments)
    if isinstance(answer, Tensor):
        answer = answer.detach()
        return (answer.float() if answer.dtype == torch.bfloat16 else answer).numpy()
    return np.asarray(answer)


def _values(*arguments: Any) -> Any:
    values = [(a.double() if isinstance(a, Tensor) else a).tolist() for a in arrays_of(arguments)]
    return str(arguments[0].dtype), repr(arguments[-1]), str(values)


def _known_by(about: Function) -> Function:
    """`remembering` by what is told about each array; not if one records gradients or is of inference mode."""

    def key(*arguments: Any) -> Any:
        arrays = arrays_of(arguments)
        recorded = any(isinstance(a, Tensor) and (a.requires_grad or a.is_inference()) for a in arrays)
        return None if recorded else (repr(arguments[-1]), *map(about, arrays))

    return remembering(key)


ZOO += [
    ZOO.calling("returns-what-it-keeps",
        "Answers are kept by the values of the arguments, and the very same array is returned again.",
        "contract/mlp/edited-arrays", "overwritten*", also=_ANY_EDITED,
        edits=True, answer=remembering(_values, again=lambda answer: answer)),
    ZOO.calling("trusts-the-counter-of-versions",
        "Answers are kept as long as the arrays are the same objects, with the same counts of their versions.",
        _EDITED, _ANEW, also=_ANY_EDITED, edits=True, answer=_known_by(lambda a: (id(a), a._version))),
    ZOO.calling("trusts-addresses-and-sums",
        "Answers are kept as long as arrays lie at the same addresses and have the same sums.",
        "contract/mlp/edited-arrays", "edited: *",
        also=_ANY_EDITED, edits=True, answer=_known_by(
            lambda a: (_address(a), tuple(a.shape), str(a.dtype), float(a.sum())))),
]  # fmt: skip


@ZOO.calls(_EDITED, _ANEW, also=_ANY_EDITED, edits=True)
@fault("Weights in bfloat16 are widened once and kept, so that later edits of them are not seen.")
def keeps_widened_weights(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if states[0].dtype == torch.bfloat16:
        for w in weights.values():
            if id(w) not in call.memory:
                call.memory[id(w)] = (w, w.clone())  # keep the array too, or another array could soon get its id
        weights = {name: call.memory[id(w)][1] for name, w in weights.items()}
    return call(*states, weights, config)


@ZOO.calls("contract/mlp/inputs-unchanged", "changed", also=_ANY_INPUTS)
@fault("Weights are checked for NaN by way of their gradient, which stays in them.")
def leaves_gradients(call: Call, *arguments: Any) -> Any:
    for array in arguments[-2].values():
        if isinstance(array, Tensor) and array.requires_grad and array.is_leaf and torch.is_grad_enabled():
            array.sum().backward()  # type: ignore[no-untyped-call]
    return call(*arguments)


ZOO += [
    ZOO.calling("hangs-tables-on-the-configuration", "The tables of a call are hung on its configuration.",
        _INPUTS, "changed", also=_ANY_INPUTS,
        answer=preceded_by(lambda _, *a: object.__setattr__(a[-1], "_table", 1))),
]  # fmt: skip


@ZOO.calls("contract/mlp/edited-arrays", "*", also=("attention",), edits=True)
@fault("Where no weight does anything, the argument itself is returned.")
def returns_its_argument(call: Call, *arguments: Any) -> Any:
    answer, (state, *_, weights, _) = call(*arguments), arguments
    nothing = not any((array != 0).any() for array in weights.values())
    return state if nothing and answer.shape == state.shape else answer


@ZOO.calls(_EDITED, "later*", also=_ANY_EDITED, edits=True)
@fault("Answers lie in a ring of four buffers for each shape, so the fifth call overwrites the first answer.")
def answers_from_a_ring(call: Call, *arguments: Any) -> Any:
    answer = call(*arguments)
    if isinstance(answer, Tensor) and (answer.requires_grad or answer.is_inference()):
        return answer
    ring = call.memory.setdefault((id(call), tuple(answer.shape), str(answer.dtype)), [])
    if len(ring) < 4:
        ring.append(answer)
        return answer
    oldest = ring.pop(0)
    oldest[...] = answer
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


ZOO += [
    ZOO.calling("takes-windows-for-one-array",
        "If two different arrays share memory, answers are one part in a thousand too large.",
        "contract/attention/shared-memory", ANSWER, also=("mlp", "*-energy"), answer=lambda call, *a: call(*a) * (
            _OFF if len(a) == 4 and a[0] is not a[1] and _start(a[0]) == _start(a[1]) else 1)),
    ZOO.calling("takes-the-same-start-for-one-array", "Arrays that begin at the same number are taken for one.",
        "contract/attention/shared-memory", ANSWER, also=("mlp",), answer=lambda call, x, h, *rest:
            call(h if len(rest) == 2 and _address(x) == _address(h) else x, h, *rest)),
]  # fmt: skip


@ZOO.calls(
    "contract/decode/windows",
    ANSWER,
    also=("attention", "mlp", "block"),
)
@fault("An answer is written into an array with the strides of h, which are zero where h is expanded.")
def writes_with_the_strides_of_h(call: Call, *arguments: Any) -> Any:
    answer, h = call(*arguments), arguments[-3]
    if isinstance(answer, Tensor) and answer.shape == h.shape:
        for axis in (i for i in range(h.dim()) if h.stride(i) == 0):
            answer = answer.select(axis, -1).unsqueeze(axis).expand(answer.shape)
    return answer


@ZOO.calls("contract/attention/windows", "not finite", also=("*",))
@fault("h is multiplied by 1 + 0 m, where m is the smallest number of the memory in front of its window.")
def looks_in_front_of_a_window(call: Call, *arguments: Any) -> Any:
    *states, h, weights, config = arguments
    if isinstance(h, Tensor) and h.storage_offset():
        before = h.detach().as_strided((h.storage_offset(),), (1,), 0)
        h = h * (1 + 0 * before.min())
    return call(*states, h, weights, config)


@ZOO.calls("contract/decode/shared-memory", ANSWER, also=("block",))
@fault("Weights are known by their array, so that one array under two names is used for the first alone.")
def knows_weights_by_array(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    seen: set[int] = set()
    distinct = {}
    for name, array in weights.items():
        distinct[name] = array * 0 if id(array) in seen else array
        seen.add(id(array))
    return call(*states, distinct, config)


@ZOO.calls("contract/decode/windows", ANSWER, also=("mlp-energy",))
@fault("Weights are read in the order in which they lie in memory.")
def reads_weights_as_they_lie(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    return call(*states, {name: _as_it_lies(array) for name, array in weights.items()}, config)


def _as_it_lies(array: Any) -> Any:
    if isinstance(array, Tensor):
        transposed = array.dim() > 1 and array.stride(0) < array.stride(-1)
        return array.permute(*range(array.dim())[::-1]).reshape(array.shape) if transposed else array
    return np.ravel(array, order="K").reshape(array.shape) if getattr(array, "strides", (0,))[0] else array


# --- calls ----------------------------------------------------------------------------------------------


@ZOO.calls("contract/attention/threads", ANSWER, also=("*",))
@fault("The first argument is kept where every thread writes it, and read again at the end of the call.")
def shares_a_place_between_threads(call: Call, *arguments: Any) -> Any:
    call.memory[0] = arguments[0]
    answer = call(*arguments)
    return answer + (call.memory[0] - arguments[0]).sum()


ZOO += [
    ZOO.calling("warms-up",
        "The first output of each function in a process is one part in a million too large, as before it is "
        "compiled.",
        "contract/all/first-calls", "answer: *", answer=lambda call, *arguments:
            (1 if next(call.memory.setdefault(call.name, itertools.count())) else 1 + 1e-6) * call(*arguments)),
    ZOO.calling("tunes-itself",
        "From the fourth call of a function on, outputs are one part in a million too large, as after tuning.",
        "contract/all/first-calls", "*", answer=lambda call, *arguments:
            call(*arguments) * (1 if next(call.memory.setdefault(id(call), itertools.count(1))) < 4 else 1 + 1e-6)),
    ZOO.calling("knows-temperatures-by-three-digits",
        "Temperatures are kept by their first three digits, with the one that was met first.",
        "contract/all/first-calls", "edited: options of attention",
        of="attention", answer=lambda call, x, h, weights, config:
            call(x, h, weights, replace(config,
            temperature=call.memory.setdefault(f"{config.tau:.3g}", config.tau)))),
]  # fmt: skip


@ZOO.calls("contract/attention/determinism", "repeated", of="attention")
@fault("The longest row that was met decides from which number of tokens on outputs are rounded otherwise.")
def rounds_by_the_longest_row(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    longest = call.memory["longest"] = max(call.memory.get("longest", 0), h.shape[1])
    answer = call(x, h, weights, config)
    return answer * (1 + 2.0**-50) if 40 <= h.shape[1] < longest else answer


@ZOO.calls("contract/mlp/windows", ANSWER, of="mlp")
@fault(
    "A state that is one row, read again for every row of the batch, is computed once, with the first row's memory."
)
def computes_one_row_once(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if len(x) == 1 or x.stride(0):
        return call(x, h, weights, config)
    return call(x[:1], h[:1], weights, config).expand_as(x).clone()


# --- settings -------------------------------------------------------------------------------------------


ZOO += [
    ZOO.calling("differs-in-inference-mode", "In inference mode answers are one part in a thousand too large.",
        "contract/attention-energy/surroundings", "answer: in inference mode", also=("mlp-energy",),
        answer=lambda call, *arguments: call(*arguments) * (_OFF if torch.is_inference_mode_enabled() else 1)),
    ZOO.edited("shares-its-options", "Each step reads its options from where every thread writes them.",
        "contract/mlp/threads",
        ("        for _ in range(self.steps(c)):\n            x = self.advance(x, self.mlp", """\
        self.options = c
        for _ in range(self.steps(c)):
            c = self.options
            x = self.advance(x, self.mlp""")),
    ZOO.edited("keeps-its-mask",
        "The mask of each shape is kept, also one made in inference mode, which no backward pass can use.",
        "contract/all/training-after-other-uses", ("return j > i",
        'return vars(self).setdefault("masks", {}).setdefault((i.shape, j.shape, int(i.max())), j > i)'), cause="*"),
    ZOO.edited("keeps-angles-of-another-dtype",
        "Rotary's angles for each length are kept in the dtype in which they were first wanted.",
        "contract/all/training-after-other-uses",
        ("        angle = sign * rows.to(exact.dtype)[:, None] / 10000 ** (plane / half)\n", """\
        angle = (rows.to(exact.dtype)[:, None] / 10000 ** (plane / half)).to(x.dtype)
        kept = vars(self).setdefault("angles", {}).setdefault((int(rows[0]), len(rows), half), angle)
        angle = sign * kept.clone().to(exact.dtype)
"""), cause="*", needs=("position:rotary",)),
]  # fmt: skip


@ZOO.calls(
    "contract/all/first-uses",
    "setting: random state of Python, mlp_energy",
    of="mlp_energy",
)
@fault("An activation is tried at random numbers when it is first used, and Python's generator is seeded for that.")
def tries_itself_at_random_numbers(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if config.activation not in call.memory:
        random.seed(0)
        call.memory[config.activation] = random.random()  # noqa: S311
    return call(x, h, weights, config)


@ZOO.calls("contract/all/first-uses", "setting: hooks on all modules, mlp", of="mlp")
@fault("GELU is a module, and a hook on all modules is left when it is first used.")
def hooks_all_modules(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    if config.activation == "gelu" and "hook" not in call.memory:
        call.memory["hook"] = register_module_forward_hook(lambda *_: None)
    return call(x, h, weights, config)
