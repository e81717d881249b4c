"""Adapter for nn.Modules: builds a module for each configuration, copies the weights into it, and calls it."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from cemverify.cem.torch_internals import is_wrapped
from cemverify.conformance.implementations.contract import Implementation, implementation
from cemverify.conformance.implementations.faults import is_library
from cemverify.conformance.implementations.features import WEIGHTS, names_of
from cemverify.conformance.implementations.named_parameters import SIZES, Build, Names, each_name, layer_of, place_of


def implementation_from_modules(
    *,
    attention: Build | None = None,
    mlp: Build | None = None,
    block: Build | None = None,
    prefill: Build | None = None,
    names: Names | None = None,
    free: Iterable[str] = (),
    not_offered: Iterable[str] = (),
) -> Implementation:
    """Makes an implementation from nn.Modules.

    Args:
        attention, mlp: builds a module from a configuration. Its forward takes `(x, h)`, or `(h)` alone if
            `not_offered` contains "start". The module is put into eval mode and converted to the dtype of x, float64
            unless --dtype says otherwise; tensors that are neither parameters nor buffers stay as they are.
        block: builds a block from a BlockConfig; its forward takes `(h)`. Its weights are named "attention.W_Q",
            "mlp.V" and so on, also in `names`.
        prefill: builds attention whose forward takes `(h, cache)` and returns the output and the cache.
        names: for a weight of the contract, the name of the module's parameter, or several names that each get a copy
            (tied weights that the module stores separately). A weight that is not listed keeps its name. It is
            reshaped to the shape of the parameter, so W_Q (K, R, D) fits a linear layer's (K R, D). End a name in
            ".T" to transpose first (as in W_down = V^T). Where one parameter holds several weights, slice it as in
            Python, in the letters D, K and R of attention or D and M of the MLP: "qkv.weight[K*R:2*K*R]".
        free: parameters that get no weight because the module sets them itself. Any other parameter without a weight
            is an error, because it would keep its random initial value.
        not_offered: as for `cemverify.implementation`; "gradients" and "vmap" are implied because weights are copied.

    Raises:
        ValueError: as for `cemverify.implementation`, or `names` has an unknown weight or a bad slice.
    """
    builders = {"attention": attention, "mlp": mlp, "block": block, "prefill": prefill}
    for name, build in builders.items():
        if build is not None and not callable(build):
            raise ValueError(f"{name} must be a module's class, or a function that builds one, not {build!r}")
    if names is not None and not isinstance(names, Mapping):
        raise ValueError(f"names must map weights to parameters, not {names!r}")
    free, not_offered = names_of(free, "free"), names_of(not_offered, "not_offered")
    if unknown := {str(name) for name in names or {} if re.sub(r"^(attention|mlp)\.", "", str(name)) not in WEIGHTS}:
        raise ValueError(f"names contains {', '.join(sorted(unknown))}; the weights are {', '.join(sorted(WEIGHTS))}")
    for name in (name for targets in (names or {}).values() for name in each_name(targets)):
        place_of(name, dict.fromkeys(SIZES, 1))
    layer = functools.partial(layer_of, names=names or {}, free=frozenset(free), takes_h_alone="start" in not_offered)
    made = implementation(
        attention=layer(attention) if attention is not None else None,
        mlp=layer(mlp) if mlp is not None else None,
        block=layer(block) if block is not None else None,
        # its module is called with (h, cache), as attention's is with (x, h)
        prefill=layer_of(prefill, names or {}, frozenset(free), False) if prefill is not None else None,
        not_offered=not_offered,
    )
    # a copy carries no gradient back to the contract's weights, and holds one set of them at a time
    copied = "the weights are copied into a module"
    return replace(made, not_offered={**made.not_offered, "gradients": copied, "vmap": copied})


@contextmanager
def in_eval_mode(functions: Iterable[Any], parameters: Mapping[str, Any]) -> Iterator[Callable[[], list[str]]]:
    """A context in which modules are in eval mode: those behind functions, and any other when it is called.

    It yields a function that names, as phrases, the parameters and the entries of the modules' state dicts whose
    numbers have changed. Parameters may be put into a module for one call, so a module that is called is compared
    before and after that call. A buffer with a new shape is a cache that grew; it does not count.
    """
    modes: dict[nn.Module, bool] = {}
    held = list(_modules_behind(functions))
    called: dict[nn.Module, dict[str, Tensor]] = {}  # the outermost module that is being called
    changed: list[str] = []

    def evaluating(module: nn.Module) -> None:
        for part in module.modules():
            modes.setdefault(part, part.training)
            part.training = False

    def entered(module: nn.Module, _: Any) -> None:
        if not called and not torch.compiler.is_compiling():  # a trace is no call
            evaluating(module)
            called[module] = _copied(module.state_dict())

    def left(module: nn.Module, _: Any, __: Any) -> None:
        if not torch.compiler.is_compiling() and (before := called.pop(module, None)) is not None:
            changed.extend(_other(module.state_dict(), before))

    for module in held:
        evaluating(module)
    states = [_copied(module.state_dict()) for module in held]
    first_values = _copied(parameters)
    hooks = register_module_forward_pre_hook(entered), register_module_forward_hook(left, always_call=True)

    def names() -> list[str]:
        changed_states = [
            name for module, was in zip(held, states, strict=True) for name in _other(module.state_dict(), was)
        ]
        parts = [f"its module's {name}" for name in dict.fromkeys([*changed, *changed_states])]
        return [*parts, *(f"the parameter {name}" for name in _other(parameters, first_values))]

    try:
        yield names
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training


def _copied(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the tensors whose numbers can be compared: not of those that a layer maps or differentiates."""

    def is_plain(v: Any) -> bool:
        is_dense = isinstance(v, Tensor) and v.layout == torch.strided
        return is_dense and not (v.is_meta or v.is_quantized or is_wrapped(v))

    return {name: value.detach().clone() for name, value in tensors.items() if is_plain(value)}


def _other(now: Mapping[str, Any], was: Mapping[str, Tensor]) -> Iterator[str]:
    """The names of tensors whose numbers have changed."""
    for name, before in was.items():
        after = now.get(name, before)
        if after.shape == before.shape and not torch.equal(after.nan_to_num(), before.nan_to_num()):
            yield name


def _modules_behind(functions: Iterable[Any]) -> Iterator[nn.Module]:
    """The modules that functions are methods of, close over, or read by a global name."""
    queue, seen = list(functions), set[int]()
    while queue:
        thing = queue.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            yield thing
        elif isinstance(thing, functools.partial):
            queue += [thing.func, *thing.args, *thing.keywords.values()]
        elif inspect.ismethod(thing):
            queue += [thing.__self__, thing.__func__]
        elif isinstance(thing, FunctionType) and not is_library(thing.__code__.co_filename):
            with suppress(ValueError):  # a variable that is not set yet
                variables = inspect.getclosurevars(thing)
                queue += [*variables.nonlocals.values(), *variables.globals.values()]
