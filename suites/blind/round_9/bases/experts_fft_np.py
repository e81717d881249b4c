"""A field of experts on a periodic image in NumPy: log cosh of learned filters, whose responses come from Fourier space."""

import numpy as np

from cemverify import energy_layer

FILTERS, SIDE = 3, 3
PULL = 0.6
STEP = 0.15

_draw = np.random.default_rng(54)
KERNELS = 0.4 * _draw.standard_normal((FILTERS, SIDE, SIDE))
LEVELS = 0.3 * _draw.standard_normal(FILTERS)
WEIGHTS = 0.5 + _draw.random(FILTERS)


def energy(g, y):  # (B, H, W), (B, H, W) -> (B,)
    total = 0.5 * PULL * np.square(g - y).sum((1, 2))
    for kernel, level, weight in zip(KERNELS, LEVELS, WEIGHTS, strict=True):
        seen = np.full_like(g, level)
        for down in range(SIDE):
            for right in range(SIDE):
                seen = seen + float(kernel[down, right]) * np.roll(g, (-down, -right), (1, 2))
        total = total + float(weight) * np.logaddexp(seen, -seen).sum((1, 2))
    return total


def spectrum(height, width):  # of the filters on this grid, (FILTERS, H, W // 2 + 1)
    table = np.zeros((FILTERS, height, width))
    down, right = np.divmod(np.arange(SIDE * SIDE), SIDE)
    np.add.at(table, (slice(None), down % height, right % width), KERNELS.reshape(FILTERS, -1))
    return np.fft.rfft2(table)


def update(x, y):  # (B, H, W), (B, H, W) -> (B, H, W)
    size = x.shape[1:]
    filters = spectrum(*size)
    wide = x.astype(np.float64)
    seen = np.fft.irfft2(filters.conj() * np.fft.rfft2(wide)[:, None], s=size)
    active = WEIGHTS[:, None, None] * np.tanh(seen + LEVELS[:, None, None])  # (B, FILTERS, H, W)
    back = np.fft.irfft2((filters * np.fft.rfft2(active)).sum(1), s=size)
    return (-STEP * (back + PULL * (wide - y))).astype(x.dtype)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("H", "W"),
    memory=("H", "W"),
    energy_per="sequence",
    step_size=STEP,
    arrays="numpy",
)
