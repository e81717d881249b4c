"""The ten findings that change what an implementer does, each with a line of code and the claim that it rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TopFinding:
    """A finding in a line."""

    claim: str  # the id of the claim that it rests on
    words: str  # what was found
    code: str  # what to write


TOP_TEN = (
    TopFinding(
        "7-sign",
        "The sign printed in Algorithm 1 climbs the energy.",
        "x = x + eta * (P @ W_Q.T @ attended).sum(heads)",
    ),
    TopFinding(
        "6-softplus-diagonal",
        "softplus does not make P positive definite.",
        "c = min(1, rho / (2 * norm(U) * norm(V))); P = S.sqrt() * (I + c * (U @ V.T + V @ U.T)) * S.sqrt()",
    ),
    TopFinding(
        "5-per-head",
        "One preconditioner per head descends only if they are all equal.",
        "step = P @ sum(g[k] for k in heads)  # one P, after the sum",
    ),
    TopFinding(
        "4-minimum",
        "Without a norm the attention energy is concave and unbounded below: every step descends, and none arrives.",
        "assert energy(x - eta * P @ g) <= energy(x) - eta * g @ P @ g",
    ),
    TopFinding(
        "7-score-only",
        "Adding a diagonal to the scores only breaks the gradient.",
        "update = W_Q.T @ (a @ k) + d * (a @ h)",
    ),
    TopFinding(
        "7-norm-monotone",
        "A gain that is not proportional to P breaks descent; folding it into both paths mends it.",
        "x = x + eta * gain * F(gain * x / rms(x))",
    ),
    TopFinding(
        "8-alibi-sign", "ALiBi's printed sign rewards distance.", "bias = -slopes[:, None, None] * (i - j).abs()"
    ),
    TopFinding(
        "13-rope-memory",
        "RoPE needs no extra memory: rotated keys are the values, and the output is turned back.",
        "k = rotate(W_K @ h); out = W_Q.T @ unrotate(sdpa(rotate(W_Q @ x), k, k))",
    ),
    TopFinding(
        "17-outside-recursion",
        "Most computation is inside the recursion: a second step costs nearly a second layer.",
        "flops = 2*D*D + T * (4*D*D + 4*n*D)",
    ),
    TopFinding(
        "14-diagonal-cost",
        "The exact gradient of a diagonal costs: shared 1.2 to 1.3 times Llama's attention, per head more than four.",
        "value = d * (a.sum(heads) @ h)  # shared: one product, not K",
    ),
)
