"""Adapter for nn.Modules: builds a module for each configuration, copies the weights into it, and calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.conformance.implementations.contract import Implementation, implementation
from cemverify.conformance.implementations.features import WEIGHTS

Build = Callable[[Any], nn.Module]


def implementation_from_modules(
    *,
    attention: Build | None = None,
    mlp: Build | None = None,
    names: Mapping[str, str | tuple[str, ...]] | None = None,
    free: Iterable[str] = (),
    not_offered: Iterable[str] = (),
) -> Implementation:
    """Makes an implementation from nn.Modules.

    Args:
        attention, mlp: builds a module from a configuration. Its forward takes `(x, h)`, or `(h)` alone if
            `not_offered` contains "start". The module is converted to the dtype of x, float64 unless --dtype says
            otherwise; tensors that are neither parameters nor buffers stay as they are.
        names: for a weight of the contract, the name of the module's parameter, or several names that each get a copy
            (tied weights that the module stores separately). A weight that is not listed keeps its name. It is
            reshaped to the shape of the parameter, so W_Q (K, R, D) fits a linear layer's (K R, D). End a name in
            ".T" to transpose first (as in W_down = V^T).
        free: parameters that get no weight because the module sets them itself. Any other parameter without a weight
            is an error, because it would keep its random initial value.
        not_offered: as for `cemverify.implementation`; "gradients" and "vmap" are implied because weights are copied.

    Raises:
        ValueError: as for `cemverify.implementation`, or a name is not a weight of the contract.
    """
    # a copy carries no gradient back to the contract's weights, and holds one set of them at a time
    absent = (*not_offered, "gradients", "vmap")
    if unknown := set(names or {}) - set(WEIGHTS):
        raise ValueError(f"names contains {', '.join(sorted(unknown))}; the weights are {', '.join(sorted(WEIGHTS))}")
    left_alone = frozenset(free)
    alone = "start" in absent

    def call(build: Build) -> Callable[..., Tensor]:
        def loaded(x: Tensor, weights: Mapping[str, Tensor], config: Any) -> nn.Module:
            module = build(config).to(device=x.device, dtype=x.dtype)
            load_weights(module, weights, names or {}, left_alone)
            return module

        def layer(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
            # whoever compiles a module has it already; asked for only then, because it imports torch's compiler
            make = torch.compiler.disable(loaded) if torch.compiler.is_compiling() else loaded  # type: ignore[no-untyped-call]
            module = make(x, weights, config)
            output: Tensor = module(h) if alone else module(x, h)
            return output

        return layer

    return implementation(
        attention=call(attention) if attention is not None else None,
        mlp=call(mlp) if mlp is not None else None,
        not_offered=absent,
    )


def load_weights(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    names: Mapping[str, str | tuple[str, ...]],
    free: frozenset[str] = frozenset(),
) -> None:
    """Copies the contract's weights into the module's parameters.

    Raises:
        ValueError: the module lacks a parameter, has one of another size, or has one that gets no weight.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"give the module's class, or a function from a configuration to a module, not what made {module!r}"
        )
    parameters = dict(module.named_parameters())
    idle = set(parameters) - free
    with torch.no_grad():
        for weight, value in weights.items():
            given = names.get(weight, weight)
            for name in (given,) if isinstance(given, str) else given:
                path = name.removesuffix(".T")
                if path not in parameters:
                    raise ValueError(
                        f"the module has no parameter {path!r} for {weight}; its parameters: {', '.join(parameters)}"
                    )
                parameter = parameters[path]
                source = value.flatten(0, -2).T if name.endswith(".T") else value
                if source.numel() != parameter.numel():
                    raise ValueError(
                        f"{weight} {tuple(value.shape)} does not fit parameter {path!r} {tuple(parameter.shape)}; "
                        "if heads are always D / K wide, declare head-dim absent"
                    )
                parameter.copy_(source.reshape(parameter.shape))
                idle.discard(path)
    if idle:
        raise ValueError(
            f"the module's parameters {', '.join(sorted(idle))} get no weight and would keep their random values: "
            "name them in names=, or in free= if the module sets them itself"
        )
