"""Faults of any energy layer: each wraps a layer's update or energy, whatever the layer is."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, CEMAttention
from cemverify.cem.torch_internals import is_wrapped
from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.energy_layers import EnergyLayer, energy_layer
from cemverify.power.mutants.base import Mutant, Zoo
from cemverify.power.mutants.contract import COUNTED

ZOO = Zoo("layers")

UPDATE = "update = -eta P grad energy*"
_OTHERS = "the other tokens' *s when token t*"
_CALLS = itertools.count(1)

Function = Callable[..., Any]


def sound_layer() -> EnergyLayer:
    """A correct layer: attention of fixed weights as a black box."""
    generator = torch.Generator().manual_seed(0)
    energy = CEMAttention(AttentionConfig(4, 2, init_std=0.5), generator).energy

    def of_dtype(x: Tensor) -> Any:
        return replace(energy, W_Q=energy.W_Q.detach().to(x), W_K=energy.W_K.detach().to(x))

    def update(x: Tensor, memory: Tensor) -> Tensor:
        live = of_dtype(x)
        step: Tensor = -live.gradient(x, live.remember(memory))
        return step

    def value(x: Tensor, memory: Tensor) -> Tensor:
        live = of_dtype(x)
        values: Tensor = live(x, live.remember(memory))
        return values

    return energy_layer(update=update, energy=value, dim=4, monotone=True)


def mutant(
    id_: str,
    fault: str,
    property_: str,
    cause: str,
    *,
    answer: Function,
    of: str = "update",
    family: str = ZOO.family,
    original: Callable[[], EnergyLayer] = sound_layer,
    needs: tuple[str, ...] = (),
    edits: bool = False,
) -> Mutant:
    """A mutant of any layer that has a function `of`, f, which is then `answer(f, x, *others)`.

    What is given by keyword f has already, and keeps in `f.keywords`.

    Args:
        of: "update", "energy", "state_map", "lagrangian" or "preconditioner".
        original: the layer that it is put into, unless another is asked for. edits: whether it edits arrays in place.
    """

    def wrap(layer: EnergyLayer) -> EnergyLayer:
        right = layer.step.preconditioner if of == "preconditioner" else getattr(layer, of)
        if not callable(right):
            raise ValueError(f"it declares no {of.replace('_', ' ')} that is a function")

        def wrong(x: Any, *others: Any, **named: Any) -> Any:
            return answer(partial(right, **named), x, *others)

        if of == "preconditioner":
            return replace(layer, step=replace(layer.step, preconditioner=wrong))
        changed: dict[str, Any] = {of: wrong}
        return replace(layer, **changed)

    return Mutant(
        id_,
        fault,
        property_,
        cause,
        lambda: wrap(original()),
        family,
        wrap=wrap,
        original=original,
        edits=edits,
        needs=frozenset(needs),
    )


def _fault(id_: str, fault: str, property_: str, cause: str, **more: Any) -> Callable[[Function], Function]:
    """Enters a function as the `answer` of a mutant."""

    def enter(answer: Function) -> Function:
        ZOO.append(mutant(id_, fault, property_, cause, answer=answer, **more))
        return answer

    return enter


def _each(change: Callable[[Any], Any], given: Any) -> Any:
    """The change of one array, or of each of a named tuple's."""
    return type(given)(*map(change, given)) if isinstance(given, tuple) else change(given)


def _rolled(array: Any) -> Any:
    """Every token where the next one was."""
    return array[:, [*range(1, array.shape[1]), 0]]


# --- what the update is ------------------------------------------------------------------------------------


ZOO += [
    mutant("layer-turned-output", "The update is rotated, as by an untied output projection.",
        "gradient/layer/conservative-field", "the Jacobian equals its transpose",
        answer=lambda f, x, *m: _each(lambda u: u[..., [*range(1, u.shape[-1]), 0]], f(x, *m))),
    mutant("layer-doubled-energy", "The stated energy is twice the energy that the update descends.",
        "gradient/layer/energy", UPDATE, of="energy", answer=lambda f, x, *m: 2 * f(x, *m)),
    mutant("layer-off-by-a-millionth", "The update is too large by a millionth.",
        "gradient/layer/energy", UPDATE, answer=lambda f, x, *m: _each(lambda u: u * (1 + 1e-6), f(x, *m))),
    mutant("layer-summed-over-tokens",
        "The update is multiplied by the number of tokens: a mean was taken for a sum.",
        "gradient/layer/energy", UPDATE, needs=("tokens",), answer=lambda f, x, *m: f(x, *m) * x.shape[1]),
    mutant("layer-step-over-batch", "The step is divided by the batch size: the energy was averaged over the batch.",
        "structure/layer/batch-independence", "a batch row alone = the same row in a batch",
        answer=lambda f, x, *m: _each(lambda u: u / u.shape[0], f(x, *m))),
]  # fmt: skip


@_fault(
    "layer-energy-over-batch",
    "The stated energy is divided by the batch size.",
    "structure/layer/batch-independence",
    "the energy of a batch row*",
    of="energy",
)
def _energy_over_batch(f: Function, x: Any, *m: Any) -> Any:
    values = f(x, *m)
    return values / values.shape[0]


ZOO += [
    mutant("layer-last-channel-short", "The last channel's update is too small by a tenth.",
        "gradient/layer/energy", UPDATE,
        answer=lambda f, x, *m:
            _each(lambda u: u * torch.tensor([1.0] * (u.shape[-1] - 1) + [0.9], dtype=u.dtype), f(x, *m))),
    mutant("layer-hidden-constant", "A constant that is missing from the energy's gradient is added to the update.",
        "gradient/layer/energy", UPDATE, answer=lambda f, x, *m: _each(lambda u: u + 1e-4, f(x, *m))),
    mutant("layer-half-differentiated",
        "The energy's value is right, but its automatic derivative is halved: one path is detached.",
        "gradient/layer/derivatives-agree", "autograd of the energy*", of="energy", needs=("torch",),
        answer=lambda f, x, *m: f(_each(lambda a: a / 2 + a.detach() / 2, x), *m)),
]  # fmt: skip


# --- descent -------------------------------------------------------------------------------------------------


ZOO += [
    mutant("layer-ascent", "The update climbs the stated energy.",
        "descent/layer/slope", "the slope of the energy*", answer=lambda f, x, *m: _each(lambda u: -u, f(x, *m))),
]  # fmt: skip


@_fault(
    "layer-rises-at-one-percent",
    "For one percent of normal states the update climbs.",
    "descent/layer/slope",
    "the slope of the energy*",
    needs=("torch",),
)
def _rises_sometimes(f: Function, x: Any, *m: Any) -> Any:

    def change(u: Tensor, a: Tensor) -> Tensor:
        return torch.where(a[..., :1] > 2.3263, -u, u)

    u = f(x, *m)
    return type(u)(*map(change, u, x)) if isinstance(u, tuple) else change(u, x)


@_fault(
    "layer-climbs-far-out",
    "If a coordinate is outside [-5, 5], the update climbs.",
    "descent/layer/along-steps",
    "the slope of the energy*",
    needs=("torch",),
)
def _climbs_far_out(f: Function, x: Any, *m: Any) -> Any:
    far = max(float(a.abs().max()) for a in (x if isinstance(x, tuple) else (x,))) > 5
    return _each(lambda u: -u if far else u, f(x, *m))


# --- who reads whom --------------------------------------------------------------------------------------------


ZOO += [
    mutant("layer-reads-the-future", "The memory is shifted by one token.",
        "structure/layer/causality", "updates before token t*", needs=("memory-tokens",),
        answer=lambda f, x, *m: f(x, _rolled(m[0]), *m[1:])),
    mutant("layer-leaks-the-last-token", "Every update contains a trace of the last token.",
        "structure/layer/causality", "updates before token t*", needs=("tokens",),
        answer=lambda f, x, *m: f(x, *m) + 1e-5 * x[:, -1:]),
    mutant("layer-counts-later-tokens", "Updates shrink with the number of tokens in the row.",
        "structure/layer/causality", "updates of the first t tokens without*", needs=("tokens",),
        answer=lambda f, x, *m: f(x, *m) / x.shape[1]),
    mutant("layer-mixes-states", "A token's state leaks into the one before.",
        "structure/layer/own-state", _OTHERS, needs=("tokens",),
        answer=lambda f, x, *m: f(x + 1e-3 * _rolled(x), *m)),
    mutant("layer-reads-the-first-state", "Every token reads the first token's state and no other.",
        "structure/layer/own-state", _OTHERS, needs=("tokens",), answer=lambda f, x, *m: f(x, *m) + 1e-3 * x[:, :1]),
    mutant("layer-shares-its-energy", "Every token gets the mean of all energies.",
        "structure/layer/energy-per-token", _OTHERS, of="energy", needs=("tokens",),
        answer=lambda f, x, *m: 0 * f(x, *m) + f(x, *m).mean(1)[:, None]),
    mutant("layer-leans-on-the-batch", "The update is pushed away from its mean over the batch.",
        "structure/layer/batch-independence", "a batch row alone = the same row in a batch",
        answer=lambda f, x, *m: _each(lambda u: u + 1e-3 * u.mean(0)[None], f(x, *m))),
    mutant("layer-favours-the-first-row", "Every row's update contains a trace of the first row's.",
        "structure/layer/batch-independence", "a batch row alone = the same row in a batch",
        answer=lambda f, x, *m: _each(lambda u: u + 1e-4 * u[:1], f(x, *m))),
]  # fmt: skip


# --- what a call depends on, and what it leaves --------------------------------------------------------------


ZOO += [
    mutant("layer-counts-its-calls", "Every call's update is larger than that of the call before.",
        "structure/layer/determinism", "second call = first call*",
        answer=lambda f, x, *m: _each(lambda u: u + 1e-6 * next(_CALLS), f(x, *m))),
    mutant("layer-noise-of-its-own", "Noise from the process's generator is added to the update.",
        "structure/layer/determinism", "second call = first call*", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: u + 1e-6 * torch.randn_like(u), f(x, *m))),
    mutant("layer-moves-its-buffer", "A buffer of its module moves with each call, in eval mode too.",
        "structure/layer/inputs-unchanged", "nothing else changes, but it changed its module's calls*",
        needs=("torch",), answer=lambda f, x, *m: COUNTED(f(x, *m))),
]  # fmt: skip


@_fault(
    "layer-edits-its-input",
    "The state is overwritten with its update.",
    "structure/layer/inputs-unchanged",
    "* after the call",
    edits=True,
)
def _edits(f: Function, x: Any, *m: Any) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    answer = f(_each(lambda a: a + 0, x), *m)
    first[...] = answer[0] if isinstance(answer, tuple) else answer
    return answer


@_fault(
    "layer-edits-its-memory",
    "The memory is scaled in place.",
    "structure/layer/inputs-unchanged",
    "* after the call",
    edits=True,
    needs=("memory",),
)
def _edits_memory(f: Function, x: Any, *m: Any) -> Any:
    m[0][...] = m[0] / 2
    return f(x, 2 * m[0], *m[1:])


@_fault(
    "layer-remembers-by-identity",
    "The last output is returned again for the same array, edited or not.",
    "structure/layer/edited-arrays",
    "update for edited arrays*",
    edits=True,
)
def _remembers(f: Function, x: Any, *m: Any) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    if _LAST.get("array") is not first:
        _LAST.update(array=first, answer=f(x, *m))
    return _each(lambda u: u + 0, _LAST["answer"])


_LAST: dict[str, Any] = {}


@_fault(
    "layer-remembers-by-address-and-ends",
    "The memory of the last call is read again where address, first and last number are the same.",
    "structure/layer/edited-arrays",
    "update for two numbers exchanged in * = update for new arrays*",
    edits=True,
    needs=("torch", "memory"),
)
def _remembers_ends(f: Function, x: Any, *m: Any) -> Any:
    first: Tensor = m[0][0] if isinstance(m[0], tuple) else m[0]
    ends = first.flatten()[[0, -1]].tolist() if first.numel() else []
    key = (first.data_ptr(), first.shape, first.dtype, first.stride(), *ends)
    if _LAST.get("memory of") != key:
        _LAST.update({"memory of": key, "memory": _each(lambda a: a.detach().clone(), m[0])})
    return f(x, _LAST["memory"], *m[1:])


@_fault(
    "layer-ignores-strides",
    "The state is read from the start of its storage, as if no array were a view.",
    "structure/layer/windows",
    "update for * = update for separate arrays*",
    needs=("torch",),
)
def _ignores_strides(f: Function, x: Any, *m: Any) -> Any:

    def behind(a: Tensor) -> Tensor:
        whole = torch.as_strided(a, (a.untyped_storage().size() // a.element_size(),), (1,), 0)
        return whole[: a.numel()].reshape(a.shape) if a.is_contiguous() or _gaps(a) else a

    return f(_each(behind, x), *m)


def _gaps(a: Tensor) -> bool:
    return a.untyped_storage().size() // a.element_size() > a.numel()


@_fault(
    "layer-reads-no-memory-that-is-its-state",
    "If one array is state and memory, the memory is read as zeros.",
    "structure/layer/windows",
    "update for state and memory as one array*",
    needs=("memory",),
)
def _one_array(f: Function, x: Any, *m: Any) -> Any:
    states = x if isinstance(x, tuple) else (x,)
    return f(x, _each(lambda a: 0 * a if any(a is one for one in states) else a, m[0]), *m[1:])


@_fault(
    "layer-takes-one-storage-for-one-array",
    "If state and memory lie in one storage, the memory is taken to be the state.",
    "structure/layer/windows",
    "update for state and memory as windows of one array*",
    needs=("torch", "memory"),
)
def _one_storage(f: Function, x: Any, *m: Any) -> Any:
    state, memory = _state(x), _state(m[0])
    alike = state.shape == memory.shape and not isinstance(m[0], tuple)
    one = alike and state.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    return f(x, state, *m[1:]) if one else f(x, *m)


ZOO += [
    mutant("layer-answers-in-float32", "The output is float32, whatever the dtype of the state.",
        "structure/layer/dtype", "bytes per number*", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: u.to(torch.float32), f(x, *m))),
]  # fmt: skip


@_fault(
    "layer-switches-garbage-collection-on",
    "Garbage collection is switched off during the call, and on afterwards.",
    "structure/layer/settings",
    "*garbage collection (1 = yes)*",
)
def _collects(f: Function, x: Any, *m: Any) -> Any:
    gc.disable()
    answer = f(x, *m)
    gc.enable()
    return answer


@_fault(
    "layer-leaves-errors-ignored-after-a-refusal",
    "NumPy's error handling is put back where the call returns, and not where it raises.",
    "structure/layer/settings",
    "*NumPy error handling (1 = yes)*",
    needs=("memory",),
)
def _errors_ignored(f: Function, x: Any, *m: Any) -> Any:
    before = np.seterr(all="ignore")
    answer = f(x, *m)
    np.seterr(**before)
    return answer


@_fault(
    "layer-leaves-autocast-off",
    "Autocasting is switched off for the call, and stays off.",
    "structure/layer/settings",
    "*autocasting (1 = yes)*",
    needs=("torch",),
)
def _autocast_off(f: Function, x: Any, *m: Any) -> Any:
    torch.set_autocast_enabled("cpu", False)
    return f(x, *m)


# --- training and modes --------------------------------------------------------------------------------------


ZOO += [
    mutant("layer-detached-update", "No gradient flows through the update.",
        "training/layer/states", "gradient with respect to*", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: u.detach(), f(x, *m))),
    mutant("layer-detached-memory", "The memory gets half of its gradient.",
        "training/layer/states", "gradient with respect to*", needs=("torch", "memory"),
        answer=lambda f, x, *m: f(x, m[0] / 2 + m[0].detach() / 2, *m[1:])),
]  # fmt: skip


@_fault(
    "layer-straight-through",
    "Gradients pass the update as if it were the identity.",
    "training/layer/derivatives-agree",
    "v . the gradient with respect to*",
    needs=("torch",),
)
def _straight_through(f: Function, x: Any, *m: Any) -> Any:
    several, answers = isinstance(x, tuple), f(x, *m)
    pairs = zip(answers, x, strict=True) if several else [(answers, x)]
    through = [u.detach() + a - a.detach() for u, a in pairs]
    return type(answers)(*through) if several else through[0]


@_fault(
    "layer-off-when-compiled",
    "When compiled, the update is too large by a thousandth.",
    "modes/layer/compiled",
    "compiled = eager*",
    needs=("torch",),
)
def _off_compiled(f: Function, x: Any, *m: Any) -> Any:
    factor = 1.001 if torch.compiler.is_compiling() else 1.0
    return _each(lambda u: u * factor, f(x, *m))


@_fault(
    "layer-off-when-mapped",
    "When mapped over another axis, the update is too large by a thousandth.",
    "modes/layer/vmap",
    "mapped = looped*",
    needs=("torch",),
)
def _off_mapped(f: Function, x: Any, *m: Any) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    factor = 1.001 if is_wrapped(first) else 1.0
    return _each(lambda u: u * factor, f(x, *m))


@_fault(
    "layer-off-while-training",
    "With gradients recorded, a tenth of the update is dropped.",
    "modes/layer/no-gradients",
    "output with* gradients*",
    needs=("torch",),
)
def _off_training(f: Function, x: Any, *m: Any) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    factor = 0.9 if first.requires_grad else 1.0
    return _each(lambda u: u * factor, f(x, *m))


@_fault(
    "layer-off-on-cuda",
    "On a CUDA device, the update is too large by a thousandth.",
    "modes/layer/cuda",
    "on CUDA = on the CPU*",
    needs=("torch", "cuda"),
)
def _off_on_cuda(f: Function, x: Any, *m: Any) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    factor = 1.001 if first.is_cuda else 1.0
    return _each(lambda u: u * factor, f(x, *m))


ZOO += [
    mutant("layer-follows-the-default-dtype",
        "A constant is created in the default dtype of the process and rounded differently.",
        "modes/layer/surroundings", "with the default dtype*", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: u * torch.tensor(1 / 3).to(u.dtype) * 3, f(x, *m))),
]  # fmt: skip


# --- numbers ----------------------------------------------------------------------------------------------------


ZOO += [
    mutant("layer-half-in-float32", "In float32 the update passes through bfloat16.",
        "precision/layer/float32", "update in lower precision*", needs=("torch",),
        answer=lambda f, x, *m:
            _each(lambda u: u.to(torch.bfloat16).to(u.dtype) if u.dtype == torch.float32 else u, f(x, *m))),
    mutant("layer-lost-in-bfloat16", "In bfloat16 the update is rounded to multiples of a half.",
        "precision/layer/bfloat16", "update in lower precision*", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: (2 * u).round() / 2 if u.dtype == torch.bfloat16 else u, f(x, *m))),
    mutant("layer-overflows", "An exponential without its maximum subtracted overflows at large states.",
        "extremes/layer/huge-states", "not finite", needs=("torch",),
        answer=lambda f, x, *m: _each(lambda u: u + 0 * torch.exp(8 * _largest(x)).to(u.dtype), f(x, *m))),
]  # fmt: skip


def _largest(x: Any) -> Tensor:
    return torch.stack([a.abs().amax() for a in (x if isinstance(x, tuple) else (x,))]).amax()


@_fault(
    "layer-wrong-at-zero",
    "A state of zeros is taken for padding.",
    "extremes/layer/zero-states",
    UPDATE,
    needs=("torch",),
)
def _wrong_at_zero(f: Function, x: Any, *m: Any) -> Any:

    def change(u: Tensor, a: Tensor) -> Tensor:
        return torch.where((a == 0).all(-1, keepdim=True), torch.zeros_like(u), u)

    u = f(x, *m)
    return type(u)(*map(change, u, x)) if isinstance(u, tuple) else change(u, x)


@_fault(
    "layer-counts-ties-once",
    "If several tokens are equal, only one of them is updated.",
    "extremes/layer/ties",
    UPDATE,
    needs=("tokens", "torch"),
)
def _ties_once(f: Function, x: Any, *m: Any) -> Any:
    equal = (x[:, 1:] == x[:, :-1]).all(-1, keepdim=True)
    first = torch.ones_like(x[:, :1, :1], dtype=torch.bool)
    return f(x, *m) * torch.cat((first, ~equal), 1)


@_fault(
    "layer-wrong-past-32-tokens",
    "Updates beyond the thirty-second token are too large by a thousandth.",
    "extremes/layer/long-rows",
    UPDATE,
    needs=("tokens", "torch"),
)
def _wrong_past_32(f: Function, x: Any, *m: Any) -> Any:
    u = f(x, *m)
    late = torch.arange(u.shape[1]) >= 32
    return u * (1 + 1e-3 * late.to(u.dtype)[:, None])


# --- contexts -----------------------------------------------------------------------------------------------

# what is kept from one call to the next, by mutant
_KEPT: dict[Any, Any] = {}
_CONTEXTS, _AS_USUAL, _PRODUCT = "contexts/layer/update", "update = as usual*", "gradient with respect to*"


def _state(x: Any) -> Tensor:
    found: Tensor = x[0] if isinstance(x, tuple) else x
    return found


@_fault(
    "layer-frozen-beside-a-frozen-state", "Where the state records no gradient, nothing does.", _CONTEXTS, _PRODUCT
)
def _frozen(f: Function, x: Any, *m: Any) -> Any:
    return f(x, *(m if _state(x).requires_grad else (_each(Tensor.detach, held) for held in m)))


@_fault("layer-table-of-an-evaluation", "A table made in inference mode is kept for training.", _CONTEXTS, "*")
def _table(f: Function, x: Any, *m: Any) -> Any:
    state = _state(x)
    key = ("table", state.shape, state.dtype)
    if key not in _KEPT:
        _KEPT[key] = torch.ones(state.shape[-1], dtype=state.dtype)
    return _each(lambda u: u * _KEPT[key], f(x, *m))


@_fault("layer-table-of-another-dtype", "A table has the dtype of the first call of its size.", _CONTEXTS, "*")
def _narrow_table(f: Function, x: Any, *m: Any) -> Any:
    state = _state(x)
    third = _KEPT.setdefault(("third", state.shape), torch.tensor(1 / 3, dtype=state.dtype))
    return _each(lambda u: u * (3 * third.to(u.dtype)), f(x, *m))


@_fault("layer-rows-of-the-call-before", "A buffer has the rows of the call before.", _CONTEXTS, "*")
def _rows_before(f: Function, x: Any, *m: Any) -> Any:
    rows = _state(x).shape[0]
    before = _KEPT.get("rows", rows)
    _KEPT["rows"] = rows
    return _each(lambda u: u if before <= rows else 2 * u, f(x, *m))


@_fault("layer-left-open-by-a-refusal", "A call after one that raised begins in its middle.", _CONTEXTS, "*")
def _left_open(f: Function, x: Any, *m: Any) -> Any:
    before = _KEPT.get("open", False)
    _KEPT["open"] = True
    answer = f(x, *m)
    _KEPT["open"] = False
    return _each(lambda u: 2 * u if before else u, answer)


@_fault("layer-buffer-of-another-thread", "A buffer is that of the thread that called before.", _CONTEXTS, "*")
def _of_thread(f: Function, x: Any, *m: Any) -> Any:
    now = threading.get_ident()
    before = _KEPT.get("thread", now)
    _KEPT["thread"] = now
    return _each(lambda u: u if before == now else 2 * u, f(x, *m))


@_fault(
    "layer-scratch-of-one-thread",
    "Scratch space is made for the thread of the first call alone, so calls in others fail.",
    _CONTEXTS,
    "raised",
)
def _scratch(f: Function, x: Any, *m: Any) -> Any:
    if not _KEPT.setdefault("scratch", False):
        _KEPT["scratch"] = True
        _SCRATCH.factor = 1
    return _each(lambda u: u * _SCRATCH.factor, f(x, *m))


_SCRATCH = threading.local()


@_fault(
    "layer-momentum-of-training",
    "What training keeps for its next step is added in evaluation.",
    _CONTEXTS,
    _AS_USUAL,
)
def _of_training(f: Function, x: Any, *m: Any) -> Any:
    trains = _state(x).requires_grad
    before = _KEPT.get("trained", False)
    _KEPT["trained"] = trains
    return _each(lambda u: u + 1e-3 if before and not trains else u, f(x, *m))


@_fault(
    "layer-windows-in-training",
    "Where gradients are recorded, windows are read as if nothing lay between.",
    _CONTEXTS,
    _PRODUCT,
)
def _windows_in_training(f: Function, x: Any, *m: Any) -> Any:
    state = _state(x)
    return _each(lambda u: u * (1 + state) if state.requires_grad and not state.is_contiguous() else u, f(x, *m))


@_fault(
    "layer-mapped-windows",
    "Under vmap, windows are read as if nothing lay between.",
    _CONTEXTS,
    _AS_USUAL,
    needs=("vmap",),
)
def _mapped_windows(f: Function, x: Any, *m: Any) -> Any:
    state = _state(x)
    return _each(lambda u: 2 * u if is_traced(state) and state.stride(-1) != 1 else u, f(x, *m))


@_fault(
    "layer-narrow-under-autocast",
    "Under autocast, a part of one storage is rounded to bfloat16.",
    _CONTEXTS,
    _AS_USUAL,
)
def _narrow_under_autocast(f: Function, x: Any, *m: Any) -> Any:
    state = _state(x)
    joined = torch.is_autocast_enabled("cpu") and state.untyped_storage().nbytes() > 8 * state.numel()
    return _each(lambda u: u.bfloat16().to(u.dtype) if joined else u, f(x, *m))
