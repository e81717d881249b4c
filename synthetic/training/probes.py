"""What goes on inside a model: energies, preconditioners and attention of every layer, off the hot path.

Two questions are kept apart. Does the energy fall along the recursion as it is trained, with one gain per channel
inside the norm, where it need not (docs/mathematics.md §7c)? And does it fall where mathematics promises it: without
a norm, for a shared positive semi-definite P, with any step on an attention energy (§4) and with a step below
2 / (L lambda_max(P)) on an element-wise one (§9)? The second is asked in float64 and must hold for every token.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.energies import Interaction
from cemverify.cem.layers import CEMAttention, CEMGatedMLP
from cemverify.cem.llama import LlamaAttention
from cemverify.cem.models import Block, LanguageModel
from cemverify.cem.positions import Alibi, Rotary, alibi_slopes


@dataclass(frozen=True)
class LayerProbe:
    """What a layer does on some tokens.

    Attributes:
        layer: counted from 1. kind: "attention" or "MLP".
        energies: the mean energy at N(x^(t)), t = 0 ... T; () for Llama.
        falls: the share of tokens whose energy falls at each of the T steps, in float32.
        smallest_eigenvalue: of the preconditioner, the smallest over heads; None for Llama.
        promised: the share of tokens for which the promised descent holds; None if nothing is promised.
        entropy: of the attention weights at the first step in bits, the mean over heads and tokens; None for MLPs.
    """

    layer: int
    kind: str
    energies: tuple[float, ...] = ()
    falls: tuple[float, ...] = ()
    smallest_eigenvalue: float | None = None
    promised: float | None = None
    entropy: float | None = None

    def record(self) -> Mapping[str, Any]:
        """What was seen inside a layer, as a JSON object of its metrics."""
        return asdict(self)


@torch.no_grad()
def probe(model: LanguageModel, tokens: Tensor) -> tuple[LayerProbe, ...]:
    """Probes every layer on tokens (B, J), each where the model starts it: at h, with N(h) as its memory."""
    found: list[LayerProbe] = []
    h = model.embedding[tokens]  # (B, J, D)
    for i, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block)
        if isinstance(block.attention, CEMAttention):
            found.append(_probe_cem(i, "attention", block.attention, h, _cem_entropy(block.attention, h)))
        else:
            found.append(LayerProbe(i, "attention", entropy=_llama_entropy(block.attention, h)))
        walk = block.walk(h)
        if isinstance(block.mlp, CEMGatedMLP):
            found.append(_probe_cem(i, "MLP", block.mlp, walk.states[1], None))
        h = walk.states[-1]
    return tuple(found)


def _probe_cem(i: int, kind: str, layer: CEMAttention | CEMGatedMLP, h: Tensor, entropy: float | None) -> LayerProbe:
    energies = layer.trajectory(h, layer.norm().into(h)).energies  # (T+1, B, J)
    smallest = float(layer.preconditioner().smallest_eigenvalue().min())
    return LayerProbe(
        i,
        kind,
        tuple(energies.double().mean((1, 2)).tolist()),
        tuple((energies[1:] < energies[:-1]).double().mean((1, 2)).tolist()),
        smallest,
        _promised(layer, h) if smallest >= 0 else None,
        entropy,
    )


def _promised(layer: CEMAttention | CEMGatedMLP, h: Tensor) -> float | None:
    """The share of tokens with eps(u - eta P g) <= eps(u) - eta (1 - eta L lambda_max / 2) g.P g, u = N(h).

    It bounds the energy after the step, so that an update which stands still does not pass as one that descends.
    """
    exact = copy.deepcopy(layer).double()
    preconditioner = exact.preconditioner()
    if preconditioner.per_head:
        return None  # refuted: docs/mathematics.md §5
    energy: Any = exact.energy
    u = exact.norm().into(h.double())
    memory = energy.remember(u)
    safe = energy.curvature(memory).safe_step(preconditioner.largest_eigenvalue())  # 2 / (L lambda_max), () or (B, J)
    eta = (safe / 2).clamp(max=1.0)
    g = energy.gradient(u, memory)
    step = preconditioner.apply(g)
    before, after = energy(u, memory), energy(u - eta[..., None] * step, memory)  # (B, J)
    promise = eta * (1 - eta / safe) * (g * step).sum(-1)
    rounding = h.shape[-1] * torch.finfo(torch.float64).eps * (1 + before.abs() + after.abs())
    return float((after <= before - promise + rounding).double().mean())


def _cem_entropy(layer: CEMAttention, h: Tensor) -> float:
    u = layer.norm().into(h)
    return _entropy(layer.energy, u)


def _llama_entropy(layer: LlamaAttention, h: Tensor) -> float:
    heads = layer.config.heads
    scores = Interaction(  # its weights are those of any attention with these queries, keys and positions
        layer.W_Q,
        layer.W_K,
        math.sqrt(layer.config.dim // heads),
        bias=Alibi(layer.W_Q.new_tensor(alibi_slopes(heads))) if layer.config.position == "alibi" else None,
        rotary=Rotary() if layer.config.position == "rotary" else None,
    )
    return _entropy(scores, layer.norm(h))


def _entropy(energy: Interaction, u: Tensor) -> float:
    """Of the attention weights of u on itself, in bits."""
    weights = energy.attention_weights(u, energy.remember(u)).float()  # (B, K, J, S)
    return float(torch.special.entr(weights).sum(-1).mean()) / math.log(2)
