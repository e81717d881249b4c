"""Mutants: implementations with exactly one fault, each with the property that must kill it.

A green verdict is worth what it would have caught. Every mutant has one fault, most often in what it overrides of
`Plain`; `suites/conformance/test_mutants.py` fails if one survives a property that must kill it, or if a property
has no mutant to kill.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import AttentionConfig, CEMAttention, MLPConfig, PreconditionerConfig
from cemverify.conformance import reference
from cemverify.conformance.contract import EnergyLayer, Implementation, Subject, energy_layer
from cemverify.conformance.plain import Plain, Weights


@dataclass(frozen=True)
class Mutant:
    """A known-wrong implementation.

    Attributes:
        id: its name. fault: one sentence.
        killed_by: patterns of the properties that must be violated, the most telling one first.
        subject: makes it.
    """

    id: str
    fault: str
    killed_by: tuple[str, ...]
    subject: Callable[[], Subject]

    def kills(self, property_id: str) -> bool:
        """Whether the property must be violated."""
        return any(fnmatchcase(property_id, pattern) for pattern in self.killed_by)


_ZOO: list[Mutant] = []


def mutants() -> tuple[Mutant, ...]:
    """All of them."""
    return tuple(_ZOO)


def _killed_by(*patterns: str) -> Callable[[type[Plain]], type[Plain]]:
    """Enters a subclass of Plain into the zoo; its docstring states the fault."""

    def enter(kind: type[Plain]) -> type[Plain]:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
        _ZOO.append(Mutant(words, kind.__doc__ or "", patterns, lambda: kind().subject()))
        return kind

    return enter


# --- gradient: attention ------------------------------------------------------------------------------


@_killed_by(
    "gradient/attention/plain",
    "gradient/attention/diagonal-*",
    "gradient/attention/alibi",
    "gradient/attention/self-cross-bias",
    "gradient/attention/rotary*",
    "gradient/attention/preconditioner-*",
    "gradient/attention/norm-*",
    "gradient/attention/full-cem",
    "gradient/attention/any-options",
    "descent/attention/*",
)
class Ascent(Plain):
    """The update is subtracted, as Algorithm 1 prints it."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return -heads.sum(1)


@_killed_by("gradient/attention/plain")
class UntiedValues(Plain):
    """Values are W_Q h instead of the keys."""

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return torch.einsum("bjd,krd->bkjr", h, w["W_Q"])


@_killed_by("gradient/attention/conservative-field", "gradient/attention/plain")
class UntiedOutput(Plain):
    """The output projection is W_K instead of W_Q."""

    def output(self, w: Weights) -> Tensor:
        return w["W_K"]


@_killed_by(
    "tying/attention/multi-head-attention", "tying/attention/scaled-dot-product-attention", "gradient/attention/plain"
)
class ModelDimensionTemperature(Plain):
    """The temperature grows with the model dimension, as sqrt(D_h) is printed."""

    def temperature(self, c: AttentionConfig) -> float:
        return c.tau * math.sqrt(c.dim / c.R)


@_killed_by("gradient/attention/plain")
class SoftmaxOverQueries(Plain):
    """The softmax normalises over queries."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -2)


@_killed_by("gradient/attention/plain")
class MeanOverHeads(Plain):
    """Heads are averaged instead of summed."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.mean(1)


@_killed_by("gradient/attention/plain")
class OwnTokenHidden(Plain):
    """A token does not see its own key, except the first."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | ((j == i) & (i > 0))


@_killed_by("gradient/attention/plain")
class OneInABillion(Plain):
    """The last head's output is too large by one part in a billion."""

    def output(self, w: Weights) -> Tensor:
        scaled = w["W_Q"].clone()
        scaled[-1] *= 1 + 1e-9
        return scaled


@_killed_by("structure/attention/causality*", "structure/block/causality")
class SeesTheNextToken(Plain):
    """The causal mask is off by one."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j > i + 1


@_killed_by("gradient/attention/diagonal-shared")
class ScoreOnlyDiagonal(Plain):
    """The diagonal enters the scores but not the values, as Algorithm 1 prints it."""

    def diagonal_value(self, a: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor | float:  # noqa: ARG002
        return 0.0


@_killed_by("gradient/attention/diagonal-per-head")
class DiagonalOfTheFirstHead(Plain):
    """Every head uses the first head's diagonal."""

    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        return super().diagonal(w, c)[:1].expand(c.heads, -1)


@_killed_by("gradient/attention/alibi")
class AlibiFavoursTheDistant(Plain):
    """ALiBi is added with the printed sign."""

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        return -bias if c.position == "alibi" else bias


@_killed_by("gradient/attention/alibi")
class PrintedSlopes(Plain):
    """ALiBi's slopes are 2^-k for any number of heads."""

    def slopes(self, heads: int) -> list[float]:
        return [2.0 ** -(k + 1) for k in range(heads)]


@_killed_by("gradient/attention/self-cross-bias")
class SelfAndCrossSwapped(Plain):
    """The bias of a token's own key is given to the others, and theirs to it."""

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        if c.position != "self-cross":
            return super().bias(rows, length, w, c)
        return super().bias(rows, length, {**w, "to_self": w["to_others"], "to_others": w["to_self"]}, c)


@_killed_by("gradient/attention/rotary")
class UnrotatedValues(Plain):
    """Rotary positions leave the values unrotated, as standard attention does."""

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return torch.einsum("bjd,krd->bkjr", h, w["W_K"]) if c.position == "rotary" else super().values(keys, h, w, c)

    def unrotate(self, attended: Tensor, rows: Tensor, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return attended


@_killed_by("gradient/attention/rotary")
class OutputStaysRotated(Plain):
    """Rotary outputs are not turned back."""

    def unrotate(self, attended: Tensor, rows: Tensor, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return attended


@_killed_by("gradient/attention/preconditioner-low-rank-printed")
class HalfTheCrossTerm(Plain):
    """P lacks V U^T, and so is not symmetric."""

    def cross(self, w: Weights) -> Tensor:
        return w["P_U"] @ w["P_V"].mT


@_killed_by("gradient/attention/preconditioner-low-rank")
class NeverShrunk(Plain):
    """The positive-definite form lacks its factor c, and is not positive definite."""

    def shrink(self, w: Weights) -> Tensor:
        return torch.ones_like(super().shrink(w))


@_killed_by("gradient/attention/preconditioner-diagonal-per-head")
class AveragedPreconditioners(Plain):
    """One average preconditioner serves all heads."""

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        P = super().preconditioner(w, c)
        return P.mean(0) if P.dim() == 3 else P


@_killed_by("gradient/attention/norm-channel")
class NormMissing(Plain):
    """RMSNorm inside is left out."""

    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:  # noqa: ARG002
        return x


@_killed_by("gradient/attention/norm-channel")
class NormTwice(Plain):
    """RMSNorm inside is applied twice."""

    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        return super().norm(super().norm(x, w, c), w, c)


@_killed_by("gradient/attention/any-options", "gradient/mlp/any-options")
class FoldedGainAfterP(Plain):
    """A folded gain is applied after the preconditioner instead of before."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if c.norm != "folded":
            return super().advance(x, heads, w, c)
        step: Tensor = c.step_size * self.sum_heads(self.precondition(heads, w, c) * w["gain"])
        return x + step


@_killed_by("gradient/attention/any-options", "gradient/mlp/any-options", "gradient/block/any-options")
class PreconditionsOnce(Plain):
    """Only the first step is preconditioned."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            kind = c.preconditioner if t == 0 else PreconditionerConfig()
            x = super().attention(x, h, w, replace(c, steps=1, preconditioner=kind))
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for t in range(c.steps):
            kind = c.preconditioner if t == 0 else PreconditionerConfig()
            x = super().mlp(x, h, w, replace(c, steps=1, preconditioner=kind))
        return x


@_killed_by("gradient/attention/any-options")
class RotaryLosesTheDiagonal(Plain):
    """A diagonal per head is forgotten where positions are rotary."""

    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        both = c.position == "rotary" and c.diagonal == "per-head"
        return super().diagonal(w, c) * (0.0 if both else 1.0)


@_killed_by("gradient/attention/any-options")
class AtMostFourSteps(Plain):
    """The recursion stops after four steps."""

    def steps(self, c: Any) -> int:
        return min(4, super().steps(c))


@_killed_by("gradient/attention/alibi")
class ConsecutiveExtraSlopes(Plain):
    """For a number of heads that is no power of two, the extra slopes are the next ones, not every second one."""

    def slopes(self, heads: int) -> list[float]:
        power = 2 ** int(math.log2(heads))
        return [2 ** (-8 * (k + 1) / power) for k in range(power)] + [
            2 ** (-8 * (k + 1) / (2 * power)) for k in range(heads - power)
        ]


@_killed_by("gradient/attention/plain")
class FiniteMask(Plain):
    """Hidden tokens get a logit of -1000 instead of minus infinity."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i, j) & False

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        columns = torch.arange(length, device=rows.device)
        return super().bias(rows, length, w, c) - 1000.0 * (columns[None, :] > rows[:, None])


@_killed_by("gradient/attention/preconditioner-diagonal", "gradient/mlp/preconditioner-diagonal")
class ClampedPreconditioner(Plain):
    """softplus(d) is clamped to [0.01, 5]."""

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        P = super().preconditioner(w, c)
        return torch.diag_embed(torch.diagonal(P, dim1=-2, dim2=-1).clamp(0.01, 5.0)) if "P_U" not in w else P


@_killed_by("structure/decode/cached-equals-uncached-any-options")
class DecodesWithoutNorm(Plain):
    """Incremental decoding forgets the norm inside."""

    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().decode(h, w, replace(c, norm="none"))


# --- gradient: MLP ---------------------------------------------------------------------------------------


@_killed_by("gradient/mlp/silu")
class WrongFactorActivated(Plain):
    """The memory's projection is activated and the state's is linear: the paper's gate and up, read as Llama's."""

    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return activated * self.sigma(linear, c)


@_killed_by("gradient/mlp/gelu")
class TanhForErf(Plain):
    """GELU is its tanh approximation."""

    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return F.gelu(z, approximate="tanh") if c.activation == "gelu" else super().sigma(z, c)


@_killed_by("tying/mlp/*", "gradient/mlp/conservative-field")
class UntiedDown(Plain):
    """The down projection is W^T instead of V^T."""

    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return self.gated(F.linear(x, w["V"]), F.linear(h, w["W"]), c) @ w["W"]


# --- recursion ---------------------------------------------------------------------------------------------


@_killed_by("recursion/*/is-not-reuse")
class MemoryMoves(Plain):
    """Each step reads the state that the last one wrote: layer reuse."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            x = super().attention(x, h if t == 0 else x, w, replace(c, steps=1))
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for t in range(c.steps):
            x = super().mlp(x, h if t == 0 else x, w, replace(c, steps=1))
        return x


@_killed_by("recursion/*/steps-compose")
class DecayingSteps(Plain):
    """The step size shrinks as the recursion goes on."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            x = super().attention(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for t in range(c.steps):
            x = super().mlp(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
        return x


@_killed_by("recursion/*/equals-descent*")
class AtMostTwoSteps(Plain):
    """The recursion stops after two steps."""

    def steps(self, c: Any) -> int:
        return min(2, super().steps(c))


@_killed_by("recursion/attention/equals-descent", "tying/attention/untying-breaks-the-field")
class QueriesFromTheMemory(Plain):
    """Queries are made of h at every step, so that no step sees the one before."""

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention_direction(h[:, -x.shape[1] :] + 0 * x, h, w, c)


# --- descent -------------------------------------------------------------------------------------------------


@_killed_by("descent/attention/any-step-size-identity")
class StepSizeForgotten(Plain):
    """A step size above one is cut to one."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=min(1.0, c.step_size)))


@_killed_by(
    "gradient/mlp/silu",
    "gradient/mlp/gelu",
    "gradient/mlp/gelu-tanh",
    "gradient/mlp/relu",
    "gradient/mlp/relu2",
    "gradient/mlp/sigmoid",
    "gradient/mlp/tanh",
    "gradient/mlp/softplus",
    "gradient/mlp/identity",
    "gradient/mlp/preconditioner-*",
    "gradient/mlp/norm-*",
    "gradient/mlp/full-cem",
    "gradient/mlp/any-options",
    "descent/mlp/*",
)
class MLPAscent(Plain):
    """The MLP's update is subtracted."""

    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return -super().mlp_direction(x, h, w, c)


# --- structure -----------------------------------------------------------------------------------------------


@_killed_by("tying/block/pre-norm", "gradient/block/any-options")
class BlockStartsAtTheNorm(Plain):
    """The block overwrites h by N(h) and starts there, as Algorithm 1 prints it."""

    def sublayer(self, layer: Any, h: Tensor, w: Weights, c: Any) -> Tensor:
        return super().sublayer(layer, self.norm(h, w, c), w, c)


@_killed_by("structure/decode/cached-*")
class StaleCache(Plain):
    """The cache lacks the newest token from the second one on."""

    def cached(self, h: Tensor, i: int) -> Tensor:
        return torch.cat((h[:, :i], h[:, i - 1 : i]), 1) if i else h[:, :1]


@_killed_by(
    "structure/attention/batch-independence", "structure/mlp/batch-independence", "structure/block/batch-independence"
)
class BatchLeans(Plain):
    """Updates lean away from their mean over the batch."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads + 1e-3 * (heads - heads.mean(0, keepdim=True)), w, c)


@_killed_by("structure/attention/head-order*")
class FirstHeadCountsTwice(Plain):
    """The first head's direction is counted twice."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.sum(1) + heads[:, 0]


@_killed_by("structure/mlp/token-independence")
class TokensShareAScale(Plain):
    """The MLP's update is scaled by a mean over the tokens."""

    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp_direction(x, h, w, c) * (1 + 1e-3 * x.mean(1, keepdim=True))


@_killed_by(
    "structure/attention/inputs-unchanged",
    "structure/mlp/inputs-unchanged",
    "structure/block/inputs-unchanged",
    "structure/decode/inputs-unchanged",
)
class EditsItsInput(Plain):
    """x is updated in place."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return x.copy_(super().advance(x, heads, w, c))


@_killed_by("structure/attention/inputs-unchanged", "structure/mlp/inputs-unchanged")
class WipesItsInput(Plain):
    """x is filled with NaN after use."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        after = super().advance(x, heads, w, c)
        x.fill_(math.nan)
        return after


@_killed_by("structure/attention/determinism", "structure/mlp/determinism", "structure/block/determinism")
class CountsItsCalls(Plain):
    """Every step's output is larger than the last one's by one part in a million."""

    def __init__(self) -> None:
        self.calls = itertools.count(1)

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, c) + 1e-6 * next(self.calls)


@_killed_by(
    "structure/attention/shape-and-dtype",
    "structure/mlp/shape-and-dtype",
    "structure/block/shape-and-dtype",
    "structure/decode/shape-and-dtype",
)
class AlwaysFloat32(Plain):
    """The output is float32 whatever came in."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, c).float()


# --- precision, energies, rejection ------------------------------------------------------------------------------


@_killed_by("precision/attention/float32")
class RoundsItsWeights(Plain):
    """Attention weights pass through bfloat16."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1).bfloat16().to(logits.dtype)


@_killed_by("precision/attention/float32-any-options", "precision/mlp/float32-any-options")
class NormsInBfloat16(Plain):
    """The norm inside is computed in bfloat16, unless arrays are float64."""

    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        n = super().norm(x, w, c)
        return n if x.dtype == torch.float64 else n.bfloat16().to(x.dtype)


@_killed_by("precision/mlp/float32", "precision/mlp/bfloat16", "precision/attention/bfloat16")
class RoundsToFourBits(Plain):
    """Directions are rounded to four significant bits."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        mantissa, exponent = torch.frexp(heads.float())
        return super().advance(x, torch.ldexp((mantissa * 16).round() / 16, exponent).to(x.dtype), w, c)


@_killed_by("rejection/*")
class ValidatesNothing(Plain):
    """Whatever comes in is computed with, or fails deep inside."""

    not_offered = ("attention_energy", "mlp_energy")


def _mutated_reference(**functions: Callable[..., Any]) -> Implementation:
    original = reference.reference
    return replace(original, functions={**original.functions, **functions})


def _mean_energy(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    return reference.attention_energy(x, h, w, c) / x.shape[1]


def _energy_without_constant(x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
    """x softplus(x) + Li2(-e^x) without pi^2/12: shifts the energy by the sum of the gates."""
    return reference.mlp_energy(x, h, w, c) + (h @ w["W"].mT).sum(-1) * torch.pi**2 / 12


def _attention_layer(**changes: Callable[..., Tensor]) -> EnergyLayer:
    """An attention layer of fixed weights as a black box, with one of its two functions replaced."""
    generator = torch.Generator().manual_seed(0)
    layer = CEMAttention(AttentionConfig(4, 2, init_std=0.5), generator).double()
    energy = layer.energy

    def update(x: Tensor, memory: Tensor) -> Tensor:
        return -energy.gradient(x, energy.remember(memory)).detach()

    def value(x: Tensor, memory: Tensor) -> Tensor:
        return energy(x, energy.remember(memory)).detach()

    functions: dict[str, Callable[..., Tensor]] = {"update": update, "energy": value}
    functions |= {name: partial(change, functions[name]) for name, change in changes.items()}
    return energy_layer(update=functions["update"], energy=functions["energy"], dim=4)


_CALLS = itertools.count(1)

_LAYERS: tuple[tuple[str, str, tuple[str, ...], dict[str, Callable[..., Tensor]]], ...] = (
    (
        "layer-turned-output",
        "The update is turned, as an untied output projection would.",
        ("gradient/layer/conservative-field",),
        {"update": lambda f, x, m: f(x, m) @ torch.eye(4, dtype=x.dtype).roll(1, 0)},
    ),
    (
        "layer-doubled-energy",
        "The stated energy is twice the one that is descended.",
        ("gradient/layer/energy",),
        {"energy": lambda f, x, m: 2 * f(x, m)},
    ),
    (
        "layer-ascent",
        "The update climbs the stated energy.",
        ("descent/layer/energy-falls",),
        {"update": lambda f, x, m: -f(x, m)},
    ),
    (
        "layer-reads-the-future",
        "The memory is shifted by one token.",
        ("structure/layer/causality",),
        {"update": lambda f, x, m: f(x, m.roll(-1, 1))},
    ),
    (
        "layer-mixes-states",
        "A token's state leaks into the next one's.",
        ("structure/layer/own-state",),
        {"update": lambda f, x, m: f(x + 1e-3 * x.roll(-1, 1), m)},
    ),
    (
        "layer-shares-its-energy",
        "Every token is told the mean of all energies.",
        ("structure/layer/energy-per-token",),
        {"energy": lambda f, x, m: f(x, m).mean(1, keepdim=True).expand(x.shape[:2])},
    ),
    (
        "layer-leans-on-the-batch",
        "The update leans away from its mean over the batch.",
        ("structure/layer/batch-independence",),
        {"update": lambda f, x, m: f(x, m) + 1e-3 * f(x, m).mean(0, keepdim=True)},
    ),
    (
        "layer-counts-its-calls",
        "Every call's update is larger than the last one's.",
        ("structure/layer/determinism",),
        {"update": lambda f, x, m: f(x, m) + 1e-6 * next(_CALLS)},
    ),
    (
        "layer-edits-its-input",
        "x is overwritten.",
        ("structure/layer/inputs-unchanged",),
        {"update": lambda f, x, m: x.copy_(f(x.clone(), m))},
    ),
)


def _editing(energy: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def edits(x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
        value = energy(x.clone(), h, w, c)
        x.zero_()
        return value

    return edits


_ZOO += [
    Mutant(
        "energies-edit-their-input",
        "Asking for an energy overwrites x.",
        ("structure/attention-energy/inputs-unchanged", "structure/mlp-energy/inputs-unchanged"),
        lambda: _mutated_reference(
            attention_energy=_editing(reference.attention_energy), mlp_energy=_editing(reference.mlp_energy)
        ),
    ),
    Mutant(
        "mean-energy",
        "The stated energy is averaged over tokens while the update is not.",
        ("gradient/attention/stated-energy-*",),
        lambda: _mutated_reference(attention_energy=_mean_energy),
    ),
    Mutant(
        "energy-without-constant",
        "The SiLU primitive lacks its constant.",
        ("gradient/mlp/stated-energy-*",),
        lambda: _mutated_reference(mlp_energy=_energy_without_constant),
    ),
]
_ZOO += [
    Mutant(id_, fault, killed_by, partial(_attention_layer, **changes)) for id_, fault, killed_by, changes in _LAYERS
]
