"""Matrix factorisation in NumPy: two states, the factors of a matrix that is the memory, and one energy for both."""

import numpy as np

from cemverify import energy_layer

RANK = 3
RIDGE = 0.2
STEP = 0.04


def energy(g, y):  # left (B, N, RANK), right (B, M, RANK); (B, N, M) -> (B,)
    misfit = g.left @ g.right.swapaxes(1, 2) - y
    sizes = np.square(g.left).sum((1, 2)) + np.square(g.right).sum((1, 2))
    return 0.5 * np.square(misfit).sum((1, 2)) + 0.5 * RIDGE * sizes


def update(x, y):
    left, right = x.left, x.right
    error = left @ right.swapaxes(1, 2) - y  # (B, N, M)
    to_left = error @ right + RIDGE * left
    to_right = error.swapaxes(1, 2) @ left + RIDGE * right
    return x._replace(left=-STEP * to_left, right=-STEP * to_right)


mine = energy_layer(
    update=update,
    energy=energy,
    state={"left": ("N", RANK), "right": ("M", RANK)},
    memory=("N", "M"),
    energy_per="sequence",
    step_size=STEP,
    arrays="numpy",
)
