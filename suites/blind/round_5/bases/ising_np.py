"""A phi^4 model on a periodic grid in NumPy: neighbours attract, each site has a double well and a field."""

import numpy as np

from cemverify import energy_layer

KAPPA, WELL, STEP = 0.3, 0.5, 0.05


def energy(g, field):  # (B, H, W), (B, H, W) -> (B,)
    below = np.roll(g, -1, axis=1)
    beside = np.roll(g, -1, axis=2)
    bonds = (g * (below + beside)).sum((1, 2))
    wells = 0.25 * WELL * (np.square(g * g - 1)).sum((1, 2))
    return -KAPPA * bonds + wells - (field * g).sum((1, 2))


def update(x, field):  # (B, H, W), (B, H, W) -> (B, H, W)
    vertical = np.roll(x, 1, axis=1) + np.roll(x, -1, axis=1)
    horizontal = np.roll(x, 1, axis=2) + np.roll(x, -1, axis=2)
    well = WELL * x * (x * x - 1)
    return STEP * (KAPPA * (vertical + horizontal) - well + field)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("H", "W"),
    memory=("H", "W"),
    energy_per="sequence",
    step_size=STEP,
    arrays="numpy",
)
