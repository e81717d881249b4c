"""Puts the contract's weights into the parameters that a module has for them.

A saved counterexample holds the text of this file, so that its script builds modules without this package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Misnamed(ValueError):
    """What is declared of a module's parameters does not fit the module."""


Build = Callable[[Any], nn.Module]
Names = Mapping[str, str | tuple[str, ...]]

SIZES = {"D": "dim", "K": "heads", "R": "R", "M": "hidden"}  # the contract's letters, and the options that they are
_NAME = re.compile(r"([^\[\]]+)(?:\[(.+)\])?")


def layer_of(build: Build, names: Names, free: frozenset[str], takes_h_alone: bool) -> Callable[..., Tensor]:
    """A function of arrays that builds a module, gives it the weights, and calls it."""

    def loaded(x: Tensor, weights: Mapping[str, Tensor], config: Any) -> nn.Module:
        module = build(config).to(device=x.device, dtype=x.dtype)
        parts = (config.attention, config.mlp) if hasattr(config, "attention") else (config,)
        sizes = {letter: getattr(part, of) for part in parts for letter, of in SIZES.items() if hasattr(part, of)}
        load_weights(module, weights, names, sizes, free)
        return module.eval()

    def layer(*arguments: Any) -> Any:
        *given, weights, config = arguments  # x and h; of a block h alone, of prefill h and the cache
        # whoever compiles a module has it already; asked for only then, because it imports torch's compiler
        make = torch.compiler.disable(loaded) if torch.compiler.is_compiling() else loaded  # type: ignore[no-untyped-call]
        module = make(given[0], weights, config)
        return module(given[-1]) if takes_h_alone else module(*given)

    return layer


def load_weights(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    names: Names,
    sizes: Mapping[str, int],
    free: frozenset[str] = frozenset(),
) -> None:
    """Copies the contract's weights into the module's parameters.

    Args:
        sizes: the numbers that the letters in names stand for.

    Raises:
        Misnamed: the module lacks a parameter, has one of another size, or has entries that get no weight or two.
    """
    if not isinstance(module, nn.Module):
        raise Misnamed(
            f"give the module's class, or a function from a configuration to a module, not what made {module!r}"
        )
    parameters = dict(module.named_parameters())
    filled = {path: torch.zeros(parameter.shape, dtype=torch.bool) for path, parameter in parameters.items()}
    with torch.no_grad():
        for weight, value in weights.items():
            for name in each_name(names.get(weight, weight)):
                path, part = place_of(name, sizes)
                if path not in parameters:
                    raise Misnamed(
                        f"the module has no parameter {path!r} for {weight}; its parameters: {', '.join(parameters)}"
                    )
                try:
                    target = parameters[path][part]
                except IndexError as error:
                    raise Misnamed(f"{name!r} does not fit shape {tuple(parameters[path].shape)}: {error}") from error
                source = value.flatten(0, -2).T if name.endswith(".T") else value
                if source.numel() != target.numel():
                    raise Misnamed(
                        f"{weight} {tuple(value.shape)} does not fit parameter {name.removesuffix('.T')!r} "
                        f"{tuple(target.shape)}{_remedy(weight, path, source, target, sizes)}"
                    )
                if filled[path][part].any():
                    raise Misnamed(f"{name!r} for {weight} has entries that another weight already fills")
                parameters[path][part] = source.reshape(target.shape)
                filled[path][part] = True
    if idle := [path for path, entries in filled.items() if path not in free and not entries.all()]:
        listed = (f"{path} (in part)" if filled[path].any() else path for path in sorted(idle))
        raise Misnamed(
            f"the module's parameters {', '.join(listed)} get no weight and would keep their random values: "
            "name them in names=, or in free= if the module sets them itself"
        )


def each_name(targets: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of one entry of `names`."""
    several = (targets,) if isinstance(targets, str) else targets
    if not isinstance(several, tuple | list) or not all(isinstance(name, str) for name in several):
        raise Misnamed(f"names= gives each weight a parameter's name, or a tuple of names, not {targets!r}")
    return tuple(several)


def place_of(name: str, sizes: Mapping[str, int]) -> tuple[str, Any]:
    """The parameter that a name means, and the index of the part of it."""
    read = _NAME.fullmatch(name.removesuffix(".T"))
    try:
        if read is None:
            raise SyntaxError("no parameter, or text behind a bracket")
        # the adapter's own words
        part = eval(f"_[{read[2] or '...'}]", {"__builtins__": {}, "_": np.s_}, dict(sizes))  # noqa: S307
    except Exception as error:
        raise Misnamed(
            f"{name!r} in names= cannot be read ({error}); write a part as a Python slice of the parameter, "
            f"in the letters {', '.join(sizes)}, such as 'weight[:D]'"
        ) from error
    return read[1], part


def _remedy(weight: str, path: str, source: Tensor, target: Tensor, sizes: Mapping[str, int]) -> str:
    """What may be done about a parameter of another size."""
    if "K" in sizes and sizes["K"] * sizes["R"] != sizes["D"]:
        return "; if heads are always D / K wide, declare head-dim absent"
    if weight.endswith("W_K") and target.numel() < source.numel():
        return "; the contract has as many key heads as query heads"
    if target.numel() % source.numel() == 0:
        return f"; if it holds several weights, give each its part, as in '{path}[:{'K*R' if 'K' in sizes else 'M'}]'"
    return ""
