"""A robust autoencoder step in float32; the reported energy is a mean over the batch and the tokens."""

import torch
from torch import nn

from cemverify import energy_layer

D, CODES = 6, 4
STEP = 0.2


class Robust(nn.Module):
    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(20)
        self.code = nn.Parameter(0.5 * torch.randn(CODES, D, generator=draw))
        self.centre = nn.Parameter(0.5 * torch.randn(D, generator=draw))

    def energy(self, g):  # (B, J, D) -> ()
        z = (g - self.centre) @ self.code.mT
        per_token = torch.logaddexp(z, -z).sum(-1) + 0.5 * (g - self.centre).square().sum(-1)
        return per_token.mean()

    def forward(self, x):  # (B, J, D) -> (B, J, D)
        away = x - self.centre
        slope = torch.tanh(away @ self.code.mT) @ self.code + away
        return -STEP * slope


module = Robust().eval()

mine = energy_layer(
    update=module,
    energy=module.energy,
    state=("J", D),
    memory=None,
    energy_per="batch",
    mean_over=("batch", "tokens"),
    step_size=STEP,
    parameters=module,
    permutable=True,
    working_dtype="float32",
)
