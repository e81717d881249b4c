"""Models as somebody else would write them, some of which do not fit: `suites.synthetic.own_models:NAME`."""

from __future__ import annotations

import sys

from torch import Tensor, nn


def mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 8), nn.SiLU(), nn.Dropout(0.1), nn.Linear(8, 1))


class Looped(nn.Module):
    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.steps, self.inner, self.norm, self.out = (
            steps,
            nn.Linear(dim, dim),
            nn.BatchNorm1d(dim),
            nn.Linear(dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = x + nn.functional.silu(self.inner(self.norm(x)))
        values: Tensor = self.out(x)[:, 0]
        return values


def wide(dim: int) -> nn.Module:
    return nn.Linear(dim, 3)


def fixed(dim: int) -> nn.Module:
    return nn.AvgPool1d(dim)


def leaves(_dim: int) -> nn.Module:
    sys.exit(0)
