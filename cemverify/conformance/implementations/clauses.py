"""The contract of a CEM implementation in words, clause by clause, with the properties that test each clause.

`cemverify list --contract` prints it, with the tables of `features`; docs/contract.md is what it printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Clause:
    """One section of the contract."""

    title: str  # what it is about
    # Markdown; "{functions}", "{weights}", "{options}", "{settings}" and "{features}" stand for what the code says
    text: str
    asked_by: tuple[str, ...] = ()  # patterns of the properties that test it
    unasked: str = ""  # why no property is named


CLAUSES: Sequence[Clause] = (
    Clause(
        "The functions",
        """
An implementation is a set of functions. Those that you leave out are not tested.

{functions}

Every array has a batch axis first: x and h are (B, J, D), for B rows of J tokens with D features. Letters: K heads,
R head dimension, M hidden units, r the rank of a low-rank preconditioner, T steps, eta the step size, tau the
temperature.

Arguments are passed by position. `block` and `decode` get no x: they start at h.
""",
    ),
    Clause(
        "Weights",
        """
`weights` maps names to arrays. It holds exactly what the configuration uses, in any order.

{weights}

With one preconditioner per head, P_d, P_U and P_V have a leading axis of K. A gain may be negative. The weights of a
block are named "attention.W_Q", "mlp.V" and so on.
""",
        ("gradient/*/any-options",),
    ),
    Clause(
        "Configuration",
        """
`config` is the reference's frozen dataclass: an `AttentionConfig`, an `MLPConfig`, or a `BlockConfig` with the
attributes `attention` and `mlp`. In a block each part has its own steps, step size, epsilon and preconditioner;
both have the same kind of norm.

{options}

Options combine freely, except that an MLP's preconditioner is never per head and rotary positions need an even R.
Attention is always causal, and no other mask is ever passed: there is no padding.
""",
        ("gradient/*/any-options", "recursion"),
    ),
    Clause(
        "What is computed",
        """
[The mathematics](mathematics.md) has the formulas and where they come from. A § is a section of that page. In
short, with u = N(x):

* **Attention** (§1). Token i reads tokens j <= i of the memory. With A_k = W_Q,k^T W_K,k (+ diag(d_k)), beta_kj =
  A_k h_j and a_kij = softmax_j(beta_kj . u_i / tau + b_ijk), the direction of head k is F_k = sum_j a_kij beta_kj.
  A diagonal is in the scores *and* in the values.
* **MLP** (§2). F = V^T ((W h) * sigma(V u)), each token by itself.
* **A step** (§5, §12). x <- x + eta sum_k P_k F_k, T times from the given x. The memory h is the same in every
  step.
* **Norm** (§7). `none`: u = x. `scalar`, `channel`: u = gain * x / sqrt(mean(x^2) + norm_eps). `folded`: the same
  u, and F is multiplied by the gain before P. The norm applies to the state in every step; it does not apply to the
  memory.
* **Preconditioner** (§6). S = diag(softplus(P_d)). `diagonal`: P = S. `low-rank-printed`: P = S + U V^T + V U^T.
  `low-rank`: P = S^1/2 (I + c (U V^T + V U^T)) S^1/2 with c = min(1, 0.99 / (2 |U|_F |V|_F)).
* **Positions** (§8, §13). Tokens are counted from 0. `alibi`: b_ijk = -m_k |i - j| with the slopes of Press et al.,
  for any K. `self-cross`: b is `to_self` for j = i and `to_others` for j < i. Biases are added *after* the division
  by tau. `rotary`: queries and keys are rotated over the whole head dimension, each feature r with feature R/2 + r,
  with base 10000; values are the rotated keys, and what comes out is rotated back. A diagonal's part of the score
  is not rotated.
* **Block** (§7d). `m = attention(h, N(h))`, then `mlp(m, N(m))`, where `layer(x, memory)` starts at x. N is the
  norm of the part that is called (attention or MLP), with the same gain as inside its recursion. With `norm: none`,
  N does nothing.
* **Decode.** Attention of h on itself, one token after the other. Token i starts at h_i, takes all T steps, and
  reads the memory h_0 ... h_i, never what earlier tokens became. The answer is the whole row, (B, J, D), equal to
  attention with x = h.
* **Energies.** attention_energy is -tau sum_k log sum_{j<=i} exp(beta_kj . x_i / tau + b_ijk). mlp_energy is -(W
  h_i) . phi(V x_i) with phi' = sigma and phi(0) = 0. Both are taken *at x, not at N(x)*: norm, preconditioner, step
  size and T have no effect on them. One value per token: (B, J). No sum, no mean, no constant left out.

softplus(z) is log(1 + e^z) for every z, as an activation and in a preconditioner. torch's `softplus` returns z
above its default threshold of 20 and is then wrong by 2e-9, which shows in float64: give it `threshold=40`. `gelu`
is the exact one (erf), `gelu-tanh` the approximation. `relu2` is relu(z)^2.
""",
        ("gradient", "descent", "tying", "recursion", "structure/attention/causality*",
         "structure/mlp/token-independence", "structure/*/batch-independence", "structure/attention/head-order*",
         "structure/decode"),
    ),
    Clause(
        "dtype and device",
        """
All arrays of a call have one dtype: float64, float32, bfloat16 (not in NumPy) or, if you declare
`offers=("dtype:float16",)`, float16. Every function returns that dtype; float32 in and float64 out is a violation.
Inside a call you may use any precision. The dtype decides how exact the answer must be: its error is at most the
roundoff of a straightforward evaluation in that dtype
([§16 of the mathematics](mathematics.md#16-floating-point-error)).

Two things may not be computed in bfloat16, because the answer would be useless. Sums (of a matrix product, a
softmax, a mean square) accumulate in float32 at least. Positions and rotary angles are float32 at least, because
bfloat16 cannot represent 257. In float32, ALiBi's slopes and distances and rotary frequencies are no coarser than
float32.

torch arrays come back on the device that they came on.
""",
        ("contract/*/shape-and-dtype", "precision", "modes/*/cuda"),
    ),
    Clause(
        "What a call may read",
        """
The result depends on the values of the arguments at the time of the call, and on nothing else. It does not depend on:

* the memory layout: arrays may be transposed, reversed, or windows into larger arrays whose other values must not
  be read. So may the gradients that a backward pass gets, which may also be one number for every place;
* whether arrays share memory (see "Arrays that share memory");
* earlier calls, their number, or their options;
* settings of the process. The settings that are tested are inference mode, the default dtype, the number of threads,
  random seeds, and whether gradients are recorded.
""",
        ("contract/*/edited-arrays", "contract/*/windows", "contract/*/surroundings",
         "modes/*/no-gradients"),
    ),
    Clause(
        "What a call may keep",
        """
Anything that shows in no answer: compiled code, buffers, tables of angles, modules by configuration. There are two
traps. An array cannot be recognised by its identity or address: an optimiser edits its values in place. And a buffer
that is reused must not be one that an earlier call returned.
""",
        ("contract/*/edited-arrays", "contract/*/determinism"),
    ),
    Clause(
        "What a call may change",
        """
Nothing that anybody else can see:

* Its arguments: the values, layout and flags of all arrays, the mapping of weights, and the configuration.
* What a checkpoint holds of a torch module in eval mode. A buffer may be a cache if it is not persistent, or grows.
* Settings of the process: those listed below.
* Random state. A call may *draw* from the global generators of torch, NumPy and Python, as building an `nn.Module`
  does. It must not seed them.

The settings are: {settings}. Importing a module is no change; removing or replacing one is.
""",
        ("contract/*/inputs-unchanged", "contract/*/settings-unchanged"),
    ),
    Clause(
        "What comes back",
        """
One array of the declared kind (`arrays="torch"`, `"numpy"` or `"jax"`), real, with finite values wherever the exact
result is finite, of the shape in the table of functions. A subclass of the kind counts as the kind. The array may
be a view with any strides, negative or zero ones included; it need not be contiguous, and it may require gradients.
A complex or sparse array is not allowed. A lazy object is evaluated once, and its value then counts as the answer.
The answer owns its numbers: editing the arguments or calling again does not change it, and writing into it changes
no argument and no later answer.
""",
        ("contract/*/shape-and-dtype", "contract/*/edited-arrays", "gradient"),
    ),
    Clause(
        "Arrays that share memory",
        """
x and h may be one array, as in self-attention. They may be two windows of one array that overlap. One array may be
passed as two weights. Any array may be expanded (a stride of zero, as one row of memory for all rows of the batch).
The result is the same as for separate arrays with equal values.
""",
        ("contract/*/one-array", "contract/*/shared-memory", "contract/*/windows"),
    ),
    Clause(
        "Sizes",
        """
B, J, D, K, R, M and r are at least 1 and otherwise arbitrary: none is a multiple of anything, R need not be D / K,
r may exceed D, M may be smaller than D, and J = 1 and B = 1 are tested. Sizes differ from call to call. No array is
empty.

Large sizes are tested one axis at a time: thousands of tokens, hidden units and features, dozens of heads, rows and
steps. `cemverify list '*'` says how far each property goes; the result file says how far the examples of a run went.
If timing a shorter row shows that a long one would take an implementation more than a few seconds, the long one is
skipped and counts as discarded.
""",
        ("sizes", "gradient/attention/long-rows*", "gradient/attention/wide", "gradient/*/any-options"),
    ),
    Clause(
        "Repeated calls and first calls",
        """
The same call gives the same bits, whatever was called in between. The first call of a process is as right as any
later one; compiling, tuning and filling caches may only cost time.
""",
        ("contract/*/determinism", "contract/all/first-calls", "contract/all/training-after-other-uses"),
    ),
    Clause(
        "Threads",
        """
A call may be made while another one runs in another thread of the same process. Each returns what it would return
alone; one may wait for the other. If yours cannot be called from several threads, declare `threads` absent.
""",
        ("contract/*/threads",),
    ),
    Clause(
        "Training, mapping and compiling",
        """
Gradients flow from the answer to x, h and every weight, and equal those of the exact formula. For torch that is
`torch.autograd`, for JAX `jax.grad`. First derivatives are tested; second ones are not. The functions may be mapped
over another axis of the arrays (`torch.func.vmap`, `jax.vmap`) and compiled (`torch.compile`, `jax.jit`), and then
return the same. Each of the three is a feature that you can declare absent. A module may be built in a mapped call:
its initial values are drawn with `randomness="same"`.
""",
        ("training", "modes/*/vmap", "modes/*/compiled", "modes/*/no-gradients"),
    ),
    Clause(
        "Bad input",
        """
`attention` and `mlp` raise a ValueError or TypeError with a message for:

* a weight of the wrong shape, even if it could be broadcast;
* x and h with different numbers of tokens;
* x, h or a weight with an integer dtype or bool, or with NaN or infinity anywhere;
* T = 0, a negative step size, a temperature that is zero or negative.

Every finite number is good input, however large. An error from deep inside a library (an IndexError, a RuntimeError)
does not count as a refusal. A refused call leaves its arguments and the settings of the process as they were. This is
the feature `validation`.
""",
        ("rejection",),
    ),
    Clause(
        "Time and memory",
        """
A call that takes longer than `--timeout` seconds, needs more memory than `--memory`, or ends its process violates the
property that made it.
""",
        unasked="every property tests this.",
    ),
    Clause(
        "What you may leave out",
        """
Functions, and the features below. Declare them in `not_offered=`; the word before a colon stands for its whole
group. What you declare is counted and printed as "not offered"; the rest is tested. A run of all properties also asks
a few questions for each of these, but for functions, `compile`, `threads` and `cuda`. It says which are answered
rightly, and which options are accepted and ignored, or answered wrongly; `--absent=strict` fails on either.

{features}

If an implementation has `decode` alone, everything about decoding is tested, against the exact answer instead of its
own attention. If it has an energy alone, its energy is tested.
""",
        ("structure/decode", "gradient/*/stated-energy*"),
    ),
)  # fmt: skip
