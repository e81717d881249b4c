"""The pictures of docs/explanation, drawn from the reference: `python -m docs.making.pictures`.

Every number in them is computed here by `cemverify.cem`: small layers with fixed weights, so that the command always
draws the same pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cemverify.cem.activations import activation
from cemverify.cem.descent import Descent
from cemverify.cem.energies import Elementwise, Energy, Interaction
from cemverify.results.envelope import show, write_text
from synthetic.figures.drawing import COLOURS, INK, QUIET, Picture, picture

FOLDER = Path(__file__).parents[1] / "pictures"
DEPTHS = (1, 2, 8)
_POINTS = 33  # of the grid, in each direction


def attention() -> tuple[Energy, Tensor, Tensor]:
    """Attention of one head in two dimensions: its energy, a memory of four tokens and a start, (1, 4, 2) each."""
    W_Q = torch.tensor([[[1.2, 0.3], [-0.2, 0.9]]], dtype=torch.float64)  # (K, R, D)
    W_K = torch.tensor([[[1.0, -0.2], [0.4, 1.1]]], dtype=torch.float64)
    h = torch.tensor([[[1.6, 0.2], [-0.4, 1.3], [0.9, 1.5], [-1.0, 0.2]]], dtype=torch.float64)
    return Interaction(W_Q, W_K, 2.0**0.5), h, h


def mlp() -> tuple[Energy, Tensor, Tensor]:
    """A gated MLP of three hidden units in two dimensions: its energy, a memory and a start, (1, 1, 2) each."""
    V = torch.tensor([[1.5, 0.2], [-0.6, 1.3], [-0.4, -1.4]], dtype=torch.float64)  # (M, D)
    W = torch.tensor([[-0.9, 0.3], [-0.7, -0.6], [-0.6, 0.9]], dtype=torch.float64)
    h = torch.tensor([[[1.3, 0.9]]], dtype=torch.float64)
    return Elementwise(V, W, activation("silu")), h, h


def landscapes() -> Picture:
    """The energies of a token as landscapes, with the steps of T = 1, 2 and 8."""
    shown = []
    for name, (energy, h, start), step_size in (("attention", attention(), 0.3), ("a gated MLP", mlp(), 0.35)):
        memory = energy.remember(h)
        states = Descent(max(DEPTHS), step_size).trajectory(energy, start, memory).states[:, 0, -1]  # (T + 1, 2)
        shown.append((name, energy, memory, h, states))

    def draw(figure: Figure) -> None:
        for axis, (name, energy, memory, h, states) in zip(figure.subplots(1, 2), shown, strict=True):
            _landscape(axis, energy, memory, h, states)
            axis.set_title(f"Energy of {name}", fontsize=8.5)

    rows = [
        [name, t, *(round(float(value), 4) for value in (*state, value))]
        for name, energy, memory, h, states in shown
        for t, (state, value) in enumerate(zip(states, _values(energy, memory, h, states), strict=True))
    ]
    return picture(
        "energy-landscape",
        "A layer goes down the energy of each token: T is how many steps it takes",
        "Contours of two energies in two dimensions, darker where lower. A path starts at the token and takes eight "
        "steps across the contours, downwards; T = 1, 2 and 8 are marked.",
        2.6,
        draw,
        ("layer", "steps", "x_1", "x_2", "energy"),
        rows,
    )


def _values(energy: Energy, memory: object, h: Tensor, states: Tensor) -> Tensor:
    """The energy of the last token at each of some states: (N, 2) -> (N,)."""
    return torch.stack([energy(torch.cat([h[:, :-1], state[None, None]], 1), memory)[0, -1] for state in states])


def _landscape(axis: Axes, energy: Energy, memory: object, h: Tensor, states: Tensor) -> None:
    around = torch.cat([states, h[0]])
    low, high = around.min(0).values - 0.6, around.max(0).values + 0.6
    middle, half = (low + high) / 2, float((high - low).max()) / 2
    x, y = (np.linspace(float(m) - half, float(m) + half, _POINTS) for m in middle)
    grid = torch.tensor(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
    heights = _values(energy, memory, h, grid).reshape(_POINTS, _POINTS).numpy()
    axis.contourf(x, y, heights, levels=12, cmap="Blues_r", alpha=0.55)
    axis.contour(x, y, heights, levels=12, colors=QUIET, linewidths=0.4, linestyles="solid")
    axis.plot(*h[0].T.numpy(), linestyle="none", marker="s", markersize=4, color=QUIET)
    path = states.numpy()
    axis.plot(*path.T, color=COLOURS[1], marker="o", markersize=2.5, linewidth=1.2)
    axis.plot(*path[0], marker="o", markersize=5, color=INK)
    axis.annotate("h", path[0], xytext=(4, -11), textcoords="offset points", color=INK)
    for depth in DEPTHS:
        axis.plot(*path[depth], marker="o", markersize=5, color=COLOURS[1])
        at = (7, -4) if path[0, 0] > 0 or depth == max(DEPTHS) else (-31, -8 if depth == 1 else 0)
        axis.annotate(f"T = {depth}", path[depth], xytext=at, textcoords="offset points", color=INK, fontsize=8)
    axis.set_aspect("equal")
    axis.grid(False)
    axis.set_xlabel("x₁")
    axis.set_ylabel("x₂")


def printed_sign() -> Picture:
    """The energy of attention along eight steps, with the sign that descends and with that of Algorithm 1."""
    energy, h, start = attention()
    memory = energy.remember(h)
    down = Descent(max(DEPTHS), 0.35).trajectory(energy, start, memory).energies[:, 0, -1]
    x, up = start, [energy(start, memory)[0, -1]]
    for _ in range(max(DEPTHS)):
        x = x + 0.35 * energy.gradient(x, memory)
        up.append(energy(x, memory)[0, -1])
    lines: Sequence[tuple[str, Sequence[float], str]] = (
        ("as the energy has it", [float(value) for value in down], COLOURS[0]),
        ("as Algorithm 1 prints it", [float(value) for value in up], COLOURS[1]),
    )

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for name, values, colour in lines:
            axis.plot(range(len(values)), values, color=colour, marker="o")
            axis.annotate(name, (5, values[5]), xytext=(6, 7), textcoords="offset points", color=INK)
        axis.set_xlabel("steps taken")
        axis.set_ylabel("energy of the token")

    return picture(
        "printed-sign",
        "With the sign of Algorithm 1 as printed, the energy climbs",
        "The energy of one token against the number of steps: it falls ever faster with the sign that follows from "
        "the energy, and climbs with the printed one.",
        2.3,
        draw,
        ("sign", *(str(t) for t in range(max(DEPTHS) + 1))),
        [[name, *(round(value, 4) for value in values)] for name, values, _ in lines],
    )


PICTURES = (landscapes, printed_sign)


def main() -> None:
    """Draws them into docs/pictures, each with its data."""
    for draw in PICTURES:
        drawn = draw()
        write_text(FOLDER / f"{drawn.name}.svg", drawn.svg)
        write_text(FOLDER / f"{drawn.name}.csv", drawn.csv)
        show(f"{drawn.name}.svg: {drawn.title}")


if __name__ == "__main__":
    main()
