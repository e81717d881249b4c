"""A step of an Energy-Based Transformer (Gladstone et al., arXiv 2507.02092): a network scores a candidate.

    E(context, candidate) = one learned scalar for the sequence
    candidate' = candidate - alpha dE/dcandidate + sigma z,    z ~ N(0, 1)

The gradient is autograd's, alpha is learned, and the noise is an argument, so that the step is a function.

`cemverify check examples.energy_layers.energy_based_transformer:mine`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import energy_layer

D, M, SIGMA = 3, 6, 0.1

generator = torch.Generator().manual_seed(5)
W_1 = torch.randn(2 * D, M, generator=generator, dtype=torch.float64) / 2
W_2 = torch.randn(M, generator=generator, dtype=torch.float64)
MIX = torch.randn(D, D, generator=generator, dtype=torch.float64) / 2
ALPHA = torch.tensor(0.3, dtype=torch.float64)  # learned


def energy(candidate: Tensor, context: Tensor) -> Tensor:
    logits = candidate @ MIX.to(candidate) @ context.mT  # each candidate token attends to the context
    read = torch.softmax(logits, -1) @ context  # (B, J, D)
    hidden = F.silu(torch.cat((candidate, read), -1) @ W_1.to(candidate))
    return (hidden @ W_2.to(candidate)).sum(-1)  # (B,)


def update(candidate: Tensor, context: Tensor, noise: Tensor | None = None) -> Tensor:
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = candidate if candidate.requires_grad else candidate.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(energy(leaf, context).sum(), leaf, create_graph=keep)
    step = -ALPHA.to(candidate) * gradient
    return step if noise is None else step + SIGMA * noise


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    energy_per="sequence",
    step_size=float(ALPHA),
    noise=SIGMA,
    permutable=True,
    parameters={"W_1": W_1, "W_2": W_2, "mix": MIX},
    not_offered=("inference", "vmap"),  # autograd inside the step works in neither
)
