"""Adapter for nn.Modules: builds one per configuration, gives it a case's weights, calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.conformance.contract import Implementation, implementation

Build = Callable[[Any], nn.Module]


def implementation_from_modules(
    *,
    attention: Build | None = None,
    mlp: Build | None = None,
    names: Mapping[str, str | tuple[str, ...]] | None = None,
    not_offered: Iterable[str] = (),
) -> Implementation:
    """An implementation made of nn.Modules.

    Args:
        attention, mlp: from a configuration to a module whose forward takes `(x, h)`, or `(h)` alone if
            `not_offered` has "start".
        names: the module's parameter for a weight of the contract, or several that each get a copy (untied ones
            that ought to be equal). A weight keeps its own name if not listed. It is reshaped to the parameter's
            shape, so that W_Q (K, R, D) fits a linear layer's (K R, D); end a name in ".T" to transpose it first
            (as W_down = V^T).
        not_offered: as for `cemverify.implementation`.

    Raises:
        ValueError: as for `cemverify.implementation`.
    """
    absent = tuple(not_offered)
    alone = "start" in absent

    def call(build: Build) -> Callable[..., Tensor]:
        def layer(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
            module = build(config).to(device=x.device, dtype=x.dtype)
            load_weights(module, weights, names or {})
            output: Tensor = module(h) if alone else module(x, h)
            return output

        return layer

    return implementation(
        attention=call(attention) if attention is not None else None,
        mlp=call(mlp) if mlp is not None else None,
        not_offered=absent,
    )


def load_weights(
    module: nn.Module, weights: Mapping[str, Tensor], names: Mapping[str, str | tuple[str, ...]]
) -> None:
    """Copies the contract's weights into the module's parameters.

    Raises:
        ValueError: the module has no such parameter, or one of another size.
    """
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for weight, value in weights.items():
            given = names.get(weight, weight)
            for name in (given,) if isinstance(given, str) else given:
                path = name.removesuffix(".T")
                if path not in parameters:
                    raise ValueError(
                        f"the module has no parameter {path!r} for {weight}; it has: {', '.join(parameters)}"
                    )
                parameter = parameters[path]
                source = value.flatten(0, -2).T if name.endswith(".T") else value
                if source.numel() != parameter.numel():
                    sizes = f"{tuple(value.shape)} does not fit {tuple(parameter.shape)}"
                    raise ValueError(f"{weight} of {sizes} of parameter {path!r}")
                parameter.copy_(source.reshape(parameter.shape))
