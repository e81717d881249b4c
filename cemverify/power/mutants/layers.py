"""Faults for any energy layer: each wraps the layer's update or energy."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.torch_internals import is_wrapped
from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.energy_layers import EnergyLayer, energy_layer
from cemverify.power.mutants.base import ANSWER, Function, fault
from cemverify.power.mutants.contract import COUNTED
from cemverify.power.mutants.layer_base import LayerZoo, each, first_of, from_the_start, remembered, states_of

ZOO = LayerZoo("layers")

_CALLS = itertools.count(1)


def scaled(factor: float, where: Callable[[Any], bool]) -> Function:
    """An update that is multiplied by a factor where a condition on its state or states holds."""
    return lambda f, x, *m: each(lambda u: u * (factor if where(x) else 1.0), f(x, *m))


# --- what the update is ------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-energy-over-batch", "The stated energy is divided by the batch size.",
        "structure/layer/batch-independence", "energy*", of="energy",
        answer=lambda f, x, *m: (values := f(x, *m)) / values.shape[0]),
    ZOO.answering("layer-doubled-energy", "The stated energy is twice the energy that the update descends.",
        "gradient/layer/energy", ANSWER, of="energy", answer=lambda f, x, *m: 2 * f(x, *m)),
    ZOO.answering("layer-summed-over-tokens",
        "The update is multiplied by the number of tokens: a mean was taken for a sum.",
        "gradient/layer/energy", ANSWER, needs=("tokens",), answer=lambda f, x, *m: f(x, *m) * x.shape[1]),
    ZOO.answering("layer-step-over-batch",
        "The step is divided by the batch size: the energy was averaged over the batch.",
        "structure/layer/batch-independence", ANSWER,
        answer=lambda f, x, *m: each(lambda u: u / u.shape[0], f(x, *m))),
    ZOO.answering("layer-last-channel-short", "The last channel's update is too small by a tenth.",
        "gradient/layer/energy", ANSWER, answer=lambda f, x, *m:
            each(lambda u: u * torch.tensor([1.0] * (u.shape[-1] - 1) + [0.9], dtype=u.dtype), f(x, *m))),
    ZOO.answering("layer-hidden-constant",
        "A constant that is missing from the energy's gradient is added to the update.",
        "gradient/layer/energy", ANSWER, answer=lambda f, x, *m: each(lambda u: u + 1e-4, f(x, *m))),
    ZOO.answering("layer-half-differentiated",
        "The energy's value is right, but its automatic derivative is halved: one path is detached.",
        "gradient/layer/derivatives-agree", ANSWER, of="energy", needs=("torch",),
        answer=lambda f, x, *m: f(each(lambda a: a / 2 + a.detach() / 2, x), *m)),
]  # fmt: skip


# --- descent -------------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-ascent", "The update climbs the stated energy.",
        "descent/layer/slope", "slope*", answer=lambda f, x, *m: each(lambda u: -u, f(x, *m))),
    ZOO.answering("layer-rises-at-one-percent", "For one percent of normal states the update climbs.",
        "descent/layer/slope", "slope*", needs=("torch",),
        answer=lambda f, x, *m: each(lambda u, a: torch.where(a[..., :1] > 2.3263, -u, u), f(x, *m), x)),
    ZOO.answering("layer-climbs-far-out", "If a coordinate is outside [-5, 5], the update climbs.",
        "descent/layer/along-steps", "slope*", needs=("torch",),
        answer=scaled(-1, lambda x: max(float(a.abs().max()) for a in states_of(x)) > 5)),
]  # fmt: skip


# --- who reads whom --------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-reads-the-future", "The memory is shifted by one token.",
        "structure/layer/causality", ANSWER, needs=("memory-tokens",),
        answer=lambda f, x, *m: f(x, m[0][:, [*range(1, m[0].shape[1]), 0]], *m[1:])),
]  # fmt: skip


# --- what a call depends on, and what it leaves --------------------------------------------------------------


@ZOO.answers("structure/layer/inputs-unchanged", "kept*", edits=True)
@fault("The state is overwritten with its update.")
def layer_edits_its_input(f: Function, x: Any, *m: Any) -> Any:
    first = first_of(x)
    answer = f(each(lambda a: a + 0, x), *m)
    first[...] = answer[0] if isinstance(answer, tuple) else answer
    return answer


_LAST: dict[str, Any] = {}


@ZOO.answers(
    "structure/layer/edited-arrays",
    "edited*",
    edits=True,
    needs=("torch", "memory"),
)
@fault("The memory of the last call is read again where address, first and last number are the same.")
def layer_remembers_by_address_and_ends(f: Function, x: Any, *m: Any) -> Any:
    first: Tensor = first_of(m[0])
    ends = first.flatten()[[0, -1]].tolist() if first.numel() else []
    key = (first.data_ptr(), first.shape, first.dtype, first.stride(), *ends)
    if _LAST.get("memory of") != key:
        _LAST.update({"memory of": key, "memory": each(lambda a: a.detach().clone(), m[0])})
    return f(x, _LAST["memory"], *m[1:])


@ZOO.answers("structure/layer/windows", "answer: one array*", needs=("memory",))
@fault("If one array is state and memory, the memory is read as zeros.")
def layer_reads_no_memory_that_is_its_state(f: Function, x: Any, *m: Any) -> Any:
    states = states_of(x)
    return f(x, each(lambda a: 0 * a if any(a is one for one in states) else a, m[0]), *m[1:])


@ZOO.answers("structure/layer/windows", "answer: windows of one array*", needs=("torch", "memory"))
@fault("If state and memory lie in one storage, the memory is taken to be the state.")
def layer_takes_one_storage_for_one_array(f: Function, x: Any, *m: Any) -> Any:
    state, memory = first_of(x), first_of(m[0])
    alike = state.shape == memory.shape and not isinstance(m[0], tuple)
    one = alike and state.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    return f(x, state, *m[1:]) if one else f(x, *m)


ZOO += [
    ZOO.answering("layer-counts-its-calls", "Every call's update is larger than that of the call before.",
        "structure/layer/determinism", "repeated*",
        answer=lambda f, x, *m: each(lambda u: u + 1e-6 * next(_CALLS), f(x, *m))),
    ZOO.answering("layer-moves-its-buffer", "A buffer of its module moves with each call, in eval mode too.",
        "structure/layer/inputs-unchanged", "changed",
        needs=("torch",), answer=lambda f, x, *m: COUNTED(f(x, *m))),
    ZOO.answering("layer-ignores-strides",
        "The state is read from the start of its storage, as if no array were a view.",
        "structure/layer/windows", "answer: *", needs=("torch",),
        answer=lambda f, x, *m: f(each(from_the_start, x), *m)),
    ZOO.answering("layer-answers-in-float32", "The output is float32, whatever the dtype of the state.",
        "structure/layer/dtype", "dtype*", needs=("torch",),
        answer=lambda f, x, *m: each(lambda u: u.to(torch.float32), f(x, *m))),
    ZOO.answering("layer-remembers-by-identity",
        "The last output is returned again for the same array, edited or not.",
        "structure/layer/edited-arrays", "edited*", edits=True, answer=remembered()),
]  # fmt: skip


@ZOO.answers("structure/layer/settings", "setting: garbage collection*")
@fault("Garbage collection is switched off during the call, and on afterwards.")
def layer_switches_garbage_collection_on(f: Function, x: Any, *m: Any) -> Any:
    gc.disable()
    answer = f(x, *m)
    gc.enable()
    return answer


@ZOO.answers("structure/layer/settings", "setting: NumPy error handling*", needs=("memory",))
@fault("NumPy's error handling is put back where the call returns, and not where it raises.")
def layer_leaves_errors_ignored_after_a_refusal(f: Function, x: Any, *m: Any) -> Any:
    before = np.seterr(all="ignore")
    answer = f(x, *m)
    np.seterr(**before)
    return answer


@ZOO.answers("structure/layer/settings", "setting: autocasting*", needs=("torch",))
@fault("Autocasting is switched off for the call, and stays off.")
def layer_leaves_autocast_off(f: Function, x: Any, *m: Any) -> Any:
    torch.set_autocast_enabled("cpu", False)
    return f(x, *m)


# --- training and modes --------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-follows-the-default-dtype",
        "A constant is created in the default dtype of the process and rounded differently.",
        "modes/layer/surroundings", "answer: with the default dtype*", needs=("torch",),
        answer=lambda f, x, *m: each(lambda u: u * torch.tensor(1 / 3).to(u.dtype) * 3, f(x, *m))),
    ZOO.answering("layer-off-when-compiled", "When compiled, the update is too large by a thousandth.",
        "modes/layer/compiled", ANSWER, needs=("torch",),
        answer=scaled(1.001, lambda _: torch.compiler.is_compiling())),
    ZOO.answering("layer-off-when-mapped", "When mapped over another axis, the update is too large by a thousandth.",
        "modes/layer/vmap", ANSWER, needs=("torch",),
        answer=scaled(1.001, lambda x: is_wrapped(first_of(x)))),
    ZOO.answering("layer-off-while-training", "With gradients recorded, a tenth of the update is dropped.",
        "modes/layer/no-gradients", "answer: with*", needs=("torch",),
        answer=scaled(0.9, lambda x: first_of(x).requires_grad)),
    ZOO.answering("layer-off-on-cuda", "On a CUDA device, the update is too large by a thousandth.",
        "modes/layer/cuda", ANSWER, needs=("torch", "cuda"),
        answer=scaled(1.001, lambda x: first_of(x).is_cuda)),
]  # fmt: skip


# --- numbers ----------------------------------------------------------------------------------------------------


def _elementwise() -> EnergyLayer:
    """A correct layer whose numbers are independent of each other, with everything that is tested on request."""
    return energy_layer(
        update=lambda x, m: torch.tanh(m) - torch.tanh(x),
        energy=lambda g, m: (torch.logaddexp(g, -g) - torch.tanh(m) * g).sum(-1),
        dim=4,
        batch_invariant=True,
        offers=("dtype:float16",),
    )


ZOO += [
    ZOO.answering("layer-half-in-float32", "In float32 the update passes through bfloat16.",
        "precision/layer/float32", ANSWER, needs=("torch",), answer=lambda f, x, *m:
            each(lambda u: u.to(torch.bfloat16).to(u.dtype) if u.dtype == torch.float32 else u, f(x, *m))),
    ZOO.answering("layer-lost-in-float16", "In float16 the update is rounded to multiples of a half.",
        "precision/layer/float16", ANSWER, needs=("torch",), original=_elementwise,
        answer=lambda f, x, *m: each(lambda u: (2 * u).round() / 2 if u.dtype == torch.float16 else u, f(x, *m))),
    ZOO.answering("layer-summed-by-the-batch", "Batches of several rows are computed in another order of operations.",
        "structure/layer/batch-invariance", ANSWER, needs=("torch",), original=_elementwise,
        answer=lambda f, x, *m: each(lambda u: u if len(u) == 1 else 1.1 * u / 1.1, f(x, *m))),
    ZOO.answering("layer-epsilon-of-its-dtype", "A norm's epsilon is the spacing of numbers in the state's dtype.",
        "precision/layer/bfloat16", ANSWER, needs=("torch",), answer=lambda f, x, *m: each(
            lambda u, a: u / (1 + torch.finfo(a.dtype).eps / a.square().mean(-1, keepdim=True)).sqrt(), f(x, *m), x)),
    ZOO.answering("layer-positions-of-its-dtype", "Tokens are counted in the dtype: in bfloat16 there is no 257.",
        "precision/layer/bfloat16", ANSWER, needs=("tokens", "torch"), answer=lambda f, x, *m:
            each(lambda u: u[:, torch.arange(u.shape[1]).to(u.dtype).long().clamp(max=u.shape[1] - 1)], f(x, *m))),
    ZOO.answering("layer-overflows", "An exponential without its maximum subtracted overflows at large states.",
        "extremes/layer/huge-states", "not finite", needs=("torch",),
        answer=lambda f, x, *m: each(lambda u:
            u + 0 * torch.exp(8 * torch.stack([a.abs().amax() for a in states_of(x)]).amax()).to(u.dtype), f(x, *m))),
    ZOO.answering("layer-wrong-at-zero", "A state of zeros is taken for padding.",
        "extremes/layer/zero-states", ANSWER, needs=("torch",), answer=lambda f, x, *m:
            each(lambda u, a: torch.where((a == 0).all(-1, keepdim=True), torch.zeros_like(u), u), f(x, *m), x)),
    ZOO.answering("layer-counts-ties-once", "If several tokens are equal, only one of them is updated.",
        "extremes/layer/ties", ANSWER, needs=("tokens", "torch"), answer=lambda f, x, *m: f(x, *m) * torch.cat(
            (torch.ones_like(x[:, :1, :1], dtype=torch.bool), (x[:, 1:] != x[:, :-1]).any(-1, keepdim=True)), 1)),
    ZOO.answering("layer-wrong-past-32-tokens",
        "Updates beyond the thirty-second token are too large by a thousandth.",
        "extremes/layer/long-rows", ANSWER, needs=("tokens", "torch"), answer=lambda f, x, *m:
            (u := f(x, *m)) * (1 + 1e-3 * (torch.arange(u.shape[1]) >= 32).to(u.dtype)[:, None])),
]  # fmt: skip


# --- contexts -----------------------------------------------------------------------------------------------

# kept from one call to the next, by mutant
_MEMORY: dict[Any, Any] = {}
_CONTEXTS, _AS_USUAL, _PRODUCT = "contexts/layer/update", ANSWER, "product*"


ZOO += [
    ZOO.answering("layer-frozen-beside-a-frozen-state", "Where the state records no gradient, nothing does.",
        _CONTEXTS, _PRODUCT, answer=lambda f, x, *m:
            f(x, *(m if first_of(x).requires_grad else (each(Tensor.detach, held) for held in m)))),
]  # fmt: skip


@ZOO.answers(_CONTEXTS, "*")
@fault("A table made in inference mode is kept for training.")
def layer_table_of_an_evaluation(f: Function, x: Any, *m: Any) -> Any:
    state = first_of(x)
    key = ("table", state.shape, state.dtype)
    if key not in _MEMORY:
        _MEMORY[key] = torch.ones(state.shape[-1], dtype=state.dtype)
    return each(lambda u: u * _MEMORY[key], f(x, *m))


@ZOO.answers(_CONTEXTS, "*")
@fault("A table has the dtype of the first call of its size.")
def layer_table_of_another_dtype(f: Function, x: Any, *m: Any) -> Any:
    state = first_of(x)
    third = _MEMORY.setdefault(("third", state.shape), torch.tensor(1 / 3, dtype=state.dtype))
    return each(lambda u: u * (3 * third.to(u.dtype)), f(x, *m))


@ZOO.answers(_CONTEXTS, "*")
@fault("A buffer has the rows of the call before.")
def layer_rows_of_the_call_before(f: Function, x: Any, *m: Any) -> Any:
    rows = first_of(x).shape[0]
    before = _MEMORY.get("rows", rows)
    _MEMORY["rows"] = rows
    return each(lambda u: u if before <= rows else 2 * u, f(x, *m))


@ZOO.answers(_CONTEXTS, "*")
@fault("A call after one that raised begins in its middle.")
def layer_left_open_by_a_refusal(f: Function, x: Any, *m: Any) -> Any:
    before = _MEMORY.get("open", False)
    _MEMORY["open"] = True
    answer = f(x, *m)
    _MEMORY["open"] = False
    return each(lambda u: 2 * u if before else u, answer)


@ZOO.answers(_CONTEXTS, "*")
@fault("A buffer is that of the thread that called before.")
def layer_buffer_of_another_thread(f: Function, x: Any, *m: Any) -> Any:
    now = threading.get_ident()
    before = _MEMORY.get("thread", now)
    _MEMORY["thread"] = now
    return each(lambda u: u if before == now else 2 * u, f(x, *m))


@ZOO.answers(_CONTEXTS, "raised")
@fault("Scratch space is made for the thread of the first call alone, so calls in others fail.")
def layer_scratch_of_one_thread(f: Function, x: Any, *m: Any) -> Any:
    if not _MEMORY.setdefault("scratch", False):
        _MEMORY["scratch"] = True
        _SCRATCH.factor = 1
    return each(lambda u: u * _SCRATCH.factor, f(x, *m))


_SCRATCH = threading.local()


@ZOO.answers(_CONTEXTS, _AS_USUAL)
@fault("What training keeps for its next step is added in evaluation.")
def layer_momentum_of_training(f: Function, x: Any, *m: Any) -> Any:
    trains = first_of(x).requires_grad
    before = _MEMORY.get("trained", False)
    _MEMORY["trained"] = trains
    return each(lambda u: u + 1e-3 if before and not trains else u, f(x, *m))


ZOO += [
    ZOO.answering("layer-windows-in-training",
        "Where gradients are recorded, windows are read as if nothing lay between.",
        _CONTEXTS, _PRODUCT, answer=lambda f, x, *m: each(lambda u:
            u * (1 + a) if (a := first_of(x)).requires_grad and not a.is_contiguous() else u, f(x, *m))),
    ZOO.answering("layer-mapped-windows", "Under vmap, windows are read as if nothing lay between.",
        _CONTEXTS, _AS_USUAL, needs=("vmap",), answer=lambda f, x, *m: each(lambda u:
            2 * u if is_traced(a := first_of(x)) and a.stride(-1) != 1 else u, f(x, *m))),
    ZOO.answering("layer-narrow-under-autocast", "Under autocast, a part of one storage is rounded to bfloat16.",
        _CONTEXTS, _AS_USUAL, answer=lambda f, x, *m: each(lambda u: u.bfloat16().to(u.dtype)
            if torch.is_autocast_enabled("cpu") and (a := first_of(x)).untyped_storage().nbytes() > 8 * a.numel()
            else u, f(x, *m))),
]  # fmt: skip
