"""Models as users might write them, some of them unsuitable: `suites.synthetic.own_models:NAME`."""

from __future__ import annotations

import sys

from torch import nn


def mlp(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 8), nn.SiLU(), nn.Dropout(0.1), nn.Linear(8, 1))


def looped(dim: int, steps: int) -> nn.Module:
    inner = nn.Sequential(nn.BatchNorm1d(dim), nn.Linear(dim, dim), nn.SiLU())
    return nn.Sequential(*[inner] * steps, nn.Linear(dim, 1), nn.Flatten(0))


def wide(dim: int) -> nn.Module:
    return nn.Linear(dim, 3)


def fixed(dim: int) -> nn.Module:
    return nn.AvgPool1d(dim)


def leaves(_dim: int) -> nn.Module:
    sys.exit(0)
