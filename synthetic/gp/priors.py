"""Gaussian-process priors by name and parameters, as GPyTorch kernels over any number of inputs, in float64.

A prior is written as text, such as "rbf(lengthscale=2)" or "0.9*rbf + 0.1*linear" (see `synthetic.gp.algebra` for the
grammar). `canonical` fills in the defaults, so that equal priors have equal texts, and `kernel` builds the kernel. A
kernel that is not listed here is named as `module:object`: a GPyTorch kernel, or a function that returns one.

The prior variance is 1 for stationary, Gibbs, warped and additive kernels. It is d/3 on average over [-1, 1]^d for
`linear`, a little more than 1 for `modulated`, and less than 1 for `changepoint` near the change.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

from cemverify.console.errors import UsageError, one_of
from synthetic.gp.algebra import LARGEST, SMALLEST, Expression, Named, Product, Sum, Value, parse
from synthetic.gp.kernels import Additive, ChangePoint, Constant, Gibbs, Linear, Mapped, Modulated, along

# Parameters that may be 0 or negative; all others are positive.
SIGNED = ("location", "contrast", "depth")

# Parameters are numbers; a lengthscale may be a tuple if the family has `ard`.
Build = Callable[[Sequence[Kernel], Mapping[str, Any]], Kernel]


@dataclass(frozen=True)
class PriorFamily:
    """The kernels of one name."""

    build: Build  # builds the kernel from the inner kernels and all parameters
    summary: str  # one phrase
    # the defaults; the default lengthscale leaves much to learn beyond a linear fit
    parameters: Mapping[str, float] = field(default_factory=dict)
    inner: tuple[str, ...] = ()  # texts of the default inner kernels; if any are given, their number must match
    ard: bool = False  # whether the lengthscale may be a list with one value per input


def canonical(text: str, dimensions: int) -> str:
    """The canonical text of a prior: every parameter written out, in a fixed order."""
    return str(_complete(parse(text), dimensions))


def kernel(text: str, dimensions: int) -> Kernel:
    """The kernel of a prior over that many inputs, in float64 on the CPU."""
    return _build(_complete(parse(text), dimensions), dimensions)


def describe() -> str:
    """The families and their defaults, one line each."""
    lines = []
    for name, family in FAMILIES.items():
        full = str(_complete(Named(name), 1))
        lines.append(f"{name:20}{family.summary}" + (f"; {full}" if full != name else ""))
    return "\n".join(lines)


# --- from texts to complete expressions ---------------------------------------------------------


def _complete(expression: Expression, dimensions: int) -> Expression:
    """An expression with every default filled in."""
    if isinstance(expression, Sum):
        return Sum(tuple(_complete(term, dimensions) for term in expression.terms))
    if isinstance(expression, Product):
        return Product(expression.scale, tuple(_complete(f, dimensions) for f in expression.factors))
    if ":" in expression.name:
        if expression.inner:
            raise UsageError(f"{expression.name} takes named parameters, not kernels: {expression}")
        return expression
    family = one_of("prior", expression.name, FAMILIES, ", or name your own as module:object")
    inner = expression.inner or tuple(parse(text) for text in family.inner)
    if len(inner) != len(family.inner):
        raise UsageError(
            f"{expression.name} expects {len(family.inner) or 'no'} inner kernel(s) and got {len(inner)}"
        )
    parameters = _parameters(expression, family, dimensions)
    return Named(
        expression.name, tuple(_complete(k, _inputs(expression.name, dimensions)) for k in inner), parameters
    )


def _parameters(expression: Named, family: PriorFamily, dimensions: int) -> dict[str, Value]:
    if unknown := [name for name in expression.parameters if name not in family.parameters]:
        names = ", ".join(family.parameters) or "none"
        raise UsageError(f"{expression.name} has no parameter {unknown[0]!r}; its parameters: {names}")
    values: dict[str, Value] = {**family.parameters, **expression.parameters}
    for name, value in values.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) and not (family.ard and name == "lengthscale"):
            raise UsageError(f"the {name} of {expression.name} must be one number, not a list")
        if isinstance(value, tuple) and len(value) != dimensions:
            raise UsageError(
                f"{expression.name} has {dimensions} input(s) here, but {len(value)} lengthscales were "
                "given; give one for each input"
            )
        for number in numbers:
            if not math.isfinite(number) or (number <= 0 and name not in SIGNED):
                raise UsageError(f"the {name} of {expression.name} must be a positive number, not {number:g}")
            if number and not SMALLEST <= abs(number) <= LARGEST:
                raise UsageError(
                    f"the {name} of {expression.name} must be from {SMALLEST:g} to {LARGEST:g} in size, "
                    f"not {number:g}"
                )
    return {name: float(v) if isinstance(v, int) else v for name, v in values.items()}


def _inputs(name: str, dimensions: int) -> int:
    """The number of inputs of the kernels inside a kernel with this name."""
    return 1 if name == "additive" else dimensions


# --- from complete expressions to kernels -------------------------------------------------------


def _build(expression: Expression, dimensions: int) -> Kernel:
    if isinstance(expression, Sum):
        first, *rest = (_build(term, dimensions) for term in expression.terms)
        for other in rest:
            first = first + other  # GPyTorch's AdditiveKernel
        return first
    if isinstance(expression, Product):
        factors = [_build(factor, dimensions) for factor in expression.factors]
        product = factors[0] if len(factors) == 1 else ProductKernel(*factors)
        return product if expression.scale == 1 else _scaled(product, expression.scale)
    if ":" in expression.name:
        return _own(expression)
    inner = [_build(k, _inputs(expression.name, dimensions)) for k in expression.inner]
    return FAMILIES[expression.name].build(inner, expression.parameters)


def _own(expression: Named) -> Kernel:
    """A kernel named as `module:object`."""
    module, _, attribute = expression.name.partition(":")
    try:
        maker = getattr(import_module(module), attribute)
        made = maker if isinstance(maker, Kernel) else maker(**expression.parameters)
    except ImportError as error:
        raise UsageError(
            f"prior {expression.name}: cannot import {module} ({error}); is it on the Python path?"
        ) from error
    except AttributeError as error:
        raise UsageError(f"prior {expression.name}: {error}") from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UsageError(f"prior {expression}: {attribute} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Kernel):
        raise UsageError(
            f"prior {expression.name} is a {type(made).__name__}; it must be a GPyTorch kernel or a "
            "function that returns one"
        )
    if isinstance(maker, Kernel) and expression.parameters:
        raise UsageError(f"prior {expression.name} is already a kernel and takes no parameters; leave them out")
    return copy.deepcopy(made).double()  # leave the module's own kernel unchanged


def _scaled(kernel: Kernel, scale: float) -> Kernel:
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = torch.tensor(scale, dtype=torch.float64)
    return scaled


def _stationary(kind: Callable[..., Kernel], _: Sequence[Kernel], p: Mapping[str, Any], **options: float) -> Kernel:
    """A kernel of GPyTorch with a lengthscale, or one for each input."""
    lengthscale = p["lengthscale"]
    each = len(lengthscale) if isinstance(lengthscale, tuple) else None
    # in a float32 kernel, or given as anything but a float64 tensor, the lengthscale would be rounded to float32
    kernel = kind(ard_num_dims=each, **options).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def _rational_quadratic(inner: Sequence[Kernel], p: Mapping[str, Any]) -> Kernel:
    kernel = _stationary(RQKernel, inner, p)
    kernel.alpha = torch.tensor(p["alpha"], dtype=torch.float64)
    return kernel


def _periodic(_: Sequence[Kernel], p: Mapping[str, Any]) -> Kernel:
    # equals GPyTorch's PeriodicKernel, exp(-2 sum sin^2(pi (x - x') / p) / lengthscale), and is tens of times faster
    period, lengthscale = p["period"], p["lengthscale"]
    twice = lengthscale * 2 if isinstance(lengthscale, tuple) else lengthscale  # sines, then cosines
    base = _stationary(RBFKernel, (), {"lengthscale": twice})
    base.lengthscale = torch.tensor(twice, dtype=torch.float64).sqrt()
    return Mapped(base, lambda x: circle(x, period))


def circle(x: Tensor, period: float) -> Tensor:
    """Maps every input onto a circle of that circumference: (..., d) -> (..., 2d), sines first."""
    angle = 2 * math.pi / period * x
    return torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)


_ONE = {"lengthscale": 2.0}

FAMILIES: Mapping[str, PriorFamily] = {
    "rbf": PriorFamily(partial(_stationary, RBFKernel), "infinitely smooth", _ONE, ard=True),
    "matern12": PriorFamily(
        partial(_stationary, MaternKernel, nu=0.5),
        "continuous but nowhere differentiable: little to learn",
        _ONE,
        ard=True,
    ),
    "matern32": PriorFamily(partial(_stationary, MaternKernel, nu=1.5), "once differentiable", _ONE, ard=True),
    "matern52": PriorFamily(partial(_stationary, MaternKernel, nu=2.5), "twice differentiable", _ONE, ard=True),
    "rational-quadratic": PriorFamily(
        _rational_quadratic, "smooth, a mixture of many lengthscales", {**_ONE, "alpha": 1.0}, ard=True
    ),
    # its lengthscale is not squared; at 1 the ten-dimensional task is unlearnable
    "periodic": PriorFamily(_periodic, "periodic in every input", {"lengthscale": 10.0, "period": 2.0}, ard=True),
    "linear": PriorFamily(lambda *_: Linear().double(), "x . x': planes through the origin"),
    "constant": PriorFamily(lambda *_: Constant().double(), "the same value everywhere"),
    "additive": PriorFamily(
        lambda inner, _: Additive(inner[0]),
        "a mean of functions of one input each",
        {},
        ("rbf(lengthscale=0.5)",),
    ),
    "gibbs": PriorFamily(
        lambda _, p: Gibbs(lambda x: p["lengthscale"] * torch.exp(p["contrast"] * along(x))),
        "non-stationary: the lengthscale is multiplied by exp(contrast * s)",
        {**_ONE, "contrast": 0.5},
    ),
    "warped": PriorFamily(
        lambda inner, p: Mapped(inner[0], lambda x: x + p["amplitude"] * torch.sin(p["frequency"] * x)),
        "a function of x + amplitude sin(frequency x)",
        {"amplitude": 0.3, "frequency": 3.0},
        ("rbf",),
    ),
    "modulated": PriorFamily(
        lambda inner, p: Modulated(inner[0], lambda x: torch.exp(p["depth"] * along(x))),
        "a function times exp(depth * s)",
        {"depth": 0.5},
        ("rbf",),
    ),
    "changepoint": PriorFamily(
        lambda inner, p: ChangePoint(
            inner[0], inner[1], lambda x: torch.sigmoid(p["steepness"] * (along(x) - p["location"]))
        ),
        "changes from one function to another where s crosses the location",
        {"location": 0.0, "steepness": 4.0},
        ("rbf(lengthscale=4)", "rbf(lengthscale=1)"),
    ),
}
