"""Retrieval with the heavy tails of Student's kernel, in JAX: blocks of points in a scan, and a backward pass by hand."""

import jax
import jax.numpy as jnp
from cemverify import energy_layer

D, BLOCK, NU, STEP = 3, 8, 2.5, 0.3
KAPPA, RATE = (NU + D) / 2, STEP * (NU + D) / NU

def energy(g, m):  # (B, J, D), points (B, M, D), level (B, M) -> (B, J)
    squares = jnp.square(g[:, :, None] - m.points[:, None]).sum(-1)
    return -jax.nn.logsumexp(m.level[:, None] - KAPPA * jnp.log1p(squares / NU), -1)

def _in_blocks(a, fill):  # (B, M, ...) -> (blocks, B, BLOCK, ...)
    short = -a.shape[1] % BLOCK
    a = jnp.pad(a, ((0, 0), (0, short)) + ((0, 0),) * (a.ndim - 2), constant_values=fill)
    return jnp.moveaxis(a.reshape(a.shape[0], -1, BLOCK, *a.shape[2:]), 1, 0)

def _forward(x, points, level):  # -> sum_m a_m r_m (x - y_m), and the log of the sum of all weights
    def block(carry, now):
        top, mass, pull = carry
        away = x[:, :, None] - now[0][:, None]  # (B, J, BLOCK, D)
        wide = 1 + jnp.square(away).sum(-1) / NU
        logits = now[1][:, None] - KAPPA * jnp.log(wide)
        new = jnp.maximum(top, logits.max(-1))
        old, a = jnp.exp(top - new), jnp.exp(logits - new[..., None])
        added = ((a / wide)[..., None] * away).sum(2)
        return (new, mass * old + a.sum(-1), pull * old[..., None] + added), None
    start = jnp.full(x.shape[:2], -jnp.inf, x.dtype), jnp.zeros(x.shape[:2], x.dtype), jnp.zeros_like(x)
    (top, mass, pull), _ = jax.lax.scan(block, start, (_in_blocks(points, 0.0), _in_blocks(level, -jnp.inf)))
    return pull / mass[..., None], top + jnp.log(mass)

@jax.custom_vjp
def direction(x, points, level):
    return _forward(x, points, level)[0]

def _save(x, points, level):
    answer = _forward(x, points, level)
    return answer[0], (x, points, level, *answer)

def _back(saved, grad):  # grad (B, J, D)
    x, points, level, pull, log_mass = saved
    away = x[:, :, None] - points[:, None]  # (B, J, M, D)
    r = 1 / (1 + jnp.square(away).sum(-1) / NU)
    a = jnp.exp(level[:, None] + KAPPA * jnp.log(r) - log_mass[..., None])
    along = jnp.einsum("bjd,bjmd->bjm", grad, away)
    to_logit = a * (r * along - (grad * pull).sum(-1, keepdims=True))
    to_square = -(r / NU) * (a * r * along + KAPPA * to_logit)
    to_away = 2 * to_square[..., None] * away + (a * r)[..., None] * grad[:, :, None]
    return to_away.sum(2), -to_away.sum(1), to_logit.sum(1)

direction.defvjp(_save, _back)
def update(x, m):  # -> (B, J, D)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return (-RATE * direction(x.astype(wide), m.points.astype(wide), m.level.astype(wide))).astype(x.dtype)

mine = energy_layer(
    update=update, energy=energy, state=("J", D), memory={"points": ("M", D), "level": ("M",)},
    step_size=STEP, permutable=True, arrays="jax",
)
