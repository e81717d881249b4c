"""What each property asks as a formula, and why it matters: for whoever reads `cemverify list PROPERTY`.

The letters: x is the state, h the memory, x' the state after the step; eps(x; h) and xi(x; h) are the attention's and
the MLP's energy of one token, g the gradient in x with h fixed, eta the step size, P the preconditioner, tau the
temperature, N the norm; u is the unit roundoff of the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Explanation:
    """What is said about a property.

    Attributes:
        formula: what is compared. why: what goes wrong where it does not hold.
    """

    formula: str
    why: str


_ATTENTION = "eps(x_i) = -tau sum_k log sum_{j<=i} exp(beta_kj . x_i / tau + b_ijk),  beta_kj = A_k h_j"
_MLP = "xi(x_i) = -(W h_i) . phi(V x_i),  phi' = sigma"
_STEP = "x' = x - eta P g"

# By id or pattern of ids; the first that matches counts.
_EXPLANATIONS: tuple[tuple[str, Explanation], ...] = (
    # --- the update is the gradient -----------------------------------------------------------------
    (
        "gradient/attention/diagonal-*",
        Explanation(
            f"{_STEP},  g = d eps / dx,  with A_k = W_Q,k^T W_K,k + diag(d)",
            "The diagonal belongs to the scores and to the values. If it is left out of the values, as when an "
            "existing "
            "attention kernel is given a bias, the update is the gradient of nothing.",
        ),
    ),
    (
        "gradient/attention/rotary*",
        Explanation(
            f"{_STEP},  beta_kij = W_Q,k^T R(i)^T R(j) W_K,k h_j",
            "The values are the rotated keys, and the sum is rotated back by R(i)^T. The usual rotary attention "
            "leaves "
            "values unrotated, which looks right and is no gradient.",
        ),
    ),
    (
        "gradient/attention/alibi",
        Explanation(
            f"{_STEP},  b_ijk = -m_k |i - j|,  m_k Press's slopes",
            "The sign decides whether a token attends to its neighbours or to the most distant past, and the slopes "
            "differ from the printed 2^-k unless there are eight heads.",
        ),
    ),
    (
        "gradient/attention/self-cross-bias",
        Explanation(
            f"{_STEP},  b_ijk = b_self,k if j = i, else b_cross,k",
            "A bias on the diagonal of the scores is easily put on the wrong side of the mask, or divided by the "
            "temperature once too often.",
        ),
    ),
    (
        "gradient/*/preconditioner-*",
        Explanation(
            f"{_STEP},  P = diag(softplus(d)), or with U V^T + V U^T, per head or shared",
            "The preconditioner turns and scales the gradient. A transposed factor, a missing softplus or a P of the "
            "wrong head still gives a plausible step in another direction.",
        ),
    ),
    (
        "gradient/*/norm-*",
        Explanation(
            "x' = x - eta P F,  F the gradient at N(x) = G x / rms(x)  (norm-folded: G F)",
            "With a norm inside the recursion, the energy is taken at N(x), and so is its gradient. Normalising only "
            "once, or the memory with it, gives another layer.",
        ),
    ),
    (
        "gradient/*/stated-energy-*",
        Explanation(
            f"{_ATTENTION};  {_MLP}",
            "The stated energy is what training curves, probes and proofs of descent are computed from. If it is not "
            "the one that the update descends, they describe another layer.",
        ),
    ),
    (
        "gradient/*/conservative-field",
        Explanation(
            "J = d(x' - x)/dx at fixed h:  J = J^T",
            "A field is a gradient exactly if its Jacobian is symmetric. This needs no energy to compare with, so it "
            "catches an untied projection even where everything else about the layer is unknown.",
        ),
    ),
    (
        "gradient/*/any-options",
        Explanation(
            "x^(t+1) = x^(t) - eta P g(N(x^(t)); h),  t = 0 ... T-1",
            "Options that are right one by one can be wrong together: a bias that meets a rotary position, a "
            "norm that "
            "meets a preconditioner per head. Every pair of options meets in some example.",
        ),
    ),
    (
        "gradient/attention/long-rows*",
        Explanation(
            f"{_STEP},  sums over all j <= i, up to 300 tokens",
            "Kernels work in blocks of tokens. A mistake at a block's edge, a maximum that is not carried over "
            "say, does "
            "not show in rows that fit one block.",
        ),
    ),
    (
        "gradient/attention/*",
        Explanation(
            f"{_STEP},  g = d eps / dx,  {_ATTENTION}",
            "This is what makes the layer an energy layer. An untied output, a wrong temperature or a mask off "
            "by one "
            "still trains, and every statement about descent is false of it.",
        ),
    ),
    (
        "gradient/mlp/*",
        Explanation(
            f"{_STEP},  g = d xi / dx = -V^T ((W h) * sigma(V x))",
            "A gated MLP whose gate and down projections are tied is a gradient step; with gate and up exchanged, as "
            "the paper's superscripts suggest, it is not.",
        ),
    ),
    # --- training ---------------------------------------------------------------------------------------
    (
        "training/layer/derivatives-agree",
        Explanation(
            "v^T d(c^T u)/dw = (c^T u(w + h v) - c^T u(w - h v)) / 2h,  u = x' - x",
            "What backpropagation says of the update must be what the update does, with an energy or without. A "
            "solver that records its last iteration alone, a detached branch or a straight-through trick trains on "
            "another function. If that is meant, declare not_offered=('gradients',).",
        ),
    ),
    (
        "training/layer/parameters-matter",
        Explanation(
            "u(x, m; w) != u(x, m; w')  or  E(g, m; w) != E(g, m; w')  for some x, m and w'",
            "Where update and energy use a copy of a parameter, or another tensor of that name, it is never learned, "
            "and no gradient is wrong: there is none.",
        ),
    ),
    (
        "training/layer/*",
        Explanation(
            "v^T d x'/dw = v^T d(x - eta P dE/dg)/dw",
            "A forward pass can be right and its derivative wrong: a detached tensor, a custom backward. The "
            "layer then "
            "trains on gradients of something else.",
        ),
    ),
    (
        "training/*-energy/*",
        Explanation(
            "v^T d eps/dw, for x, h and every weight",
            "A regulariser or a probe differentiates the stated energy. A detached branch in it gives zeros without "
            "any error.",
        ),
    ),
    (
        "training/*",
        Explanation(
            "v^T d x^(T)/dw, for x, h and every weight w",
            "Training follows these products. A detached key, an in-place edit or a custom backward pass leaves the "
            "output right and trains towards something else.",
        ),
    ),
    # --- descent ------------------------------------------------------------------------------------
    (
        "descent/attention/norm-*",
        Explanation(
            "eps(N(x')) <= eps(N(x)), for every eta > 0",
            "With a positive scalar gain, or with the gain folded into both paths, the energy at N(x) falls however "
            "long the step is. With one gain per channel, as printed, it can rise.",
        ),
    ),
    (
        "descent/attention/*",
        Explanation(
            "eps(x - eta P g) <= eps(x) - eta g.P g, for every eta > 0",
            "The attention energy is concave, so a right step lowers it by at least this much. That the energy "
            "falls at "
            "all would prove little: it falls for almost any update.",
        ),
    ),
    (
        "descent/mlp/*",
        Explanation(
            "xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max(P) / 2) g.P g,  eta < 2 / (L lambda_max(P))",
            "The element-wise energy bends, so only steps up to a known size are safe. Where the bound fails, the "
            "update is not this energy's, or the step is longer than it says.",
        ),
    ),
    (
        "descent/layer/slope",
        Explanation("dE/dx . (x' - x) < 0", "An update that does not even point downhill descends nothing."),
    ),
    (
        "descent/layer/along-steps",
        Explanation(
            "dE/dx . (x^(t+1) - x^(t)) < 0 at every t",
            "Later steps start elsewhere. One that recomputes its memory, or reuses the first gradient, is right "
            "at the "
            "first step only.",
        ),
    ),
    (
        "descent/layer/whole-step",
        Explanation(
            "E(x') <= E(x)",
            "A step can point downhill and go too far. A layer that declares monotone descent promises that it "
            "does not.",
        ),
    ),
    (
        "descent/layer/smoothness",
        Explanation(
            "E(x') <= E(x) + dE/dx . (x' - x) + L/2 |x' - x|^2",
            "The declared bound L is what the choice of a step size rests on; if it is too small, the energy may "
            "rise.",
        ),
    ),
    (
        "descent/layer/lagrangian-convex",
        Explanation(
            "(g(x) - g(y)) . (x - y) >= 0",
            "With a state map g = dL/dx, descent along -dE/dg is descent of E only where L is convex.",
        ),
    ),
    (
        "descent/layer/stationary",
        Explanation(
            "|dE/dx| <= tolerance at the returned state",
            "A layer that claims to return an equilibrium is differentiated as one. Where it stops early, those "
            "derivatives are wrong.",
        ),
    ),
    # --- ties ---------------------------------------------------------------------------------------
    (
        "tying/attention/untying-breaks-the-field",
        Explanation(
            "J = d(M (x' - x))/dx is not symmetric, M a fixed matrix",
            "If a layer's field stays symmetric when its output is turned, the test of symmetry sees nothing, "
            "and its "
            "green means nothing.",
        ),
    ),
    (
        "tying/attention/*",
        Explanation(
            "x' - x = eta MHA(x, h, h),  W_V = W_K,  W_O = W_Q^T,  tau = sqrt(R)",
            "This is the bridge to a standard Transformer: without it, weights cannot be exchanged and "
            "comparisons at "
            "equal parameters compare something else.",
        ),
    ),
    (
        "tying/mlp/*",
        Explanation(
            "x' - x = eta V^T (sigma(V x) * W h):  gate = V,  up = W,  down = V^T",
            "Which two of the three projections are tied is easily got wrong when weights are ported.",
        ),
    ),
    (
        "tying/block/pre-norm",
        Explanation(
            "h + MHA(N(h)), then h + MLP(N(h)), at T = 1 and P = I",
            "A block that normalises the residual stream itself, as Algorithm 1 is printed, is no pre-norm block and "
            "does not train like one.",
        ),
    ),
    # --- recursion ----------------------------------------------------------------------------------
    (
        "*/is-not-reuse",
        Explanation(
            "x^(T) from a fixed memory != layer(layer(... x))",
            "Using a layer T times recomputes its memory each time. That is another model: it agrees at T = 1 and "
            "nowhere else.",
        ),
    ),
    (
        "recursion/*/steps-compose",
        Explanation(
            "F_T(x; h) = F_1(... F_1(x; h) ...; h)",
            "Steps that share state beside x, a momentum or a step size that depends on t, are not the descent "
            "that is "
            "written down.",
        ),
    ),
    (
        "recursion/*",
        Explanation(
            "x^(t+1) = x^(t) - eta P g(x^(t); h),  t = 0 ... T-1",
            "With T = 1, a memory that is recomputed between the steps does not show; with T = 2 it does.",
        ),
    ),
    (
        "sequences/*",
        Explanation(
            "x^(t+1) = F_1(x^(t); h, options_t), the options changing from step to step",
            "A cache that outlives its call, a mask or slopes of an earlier shape say, answers a later call with the "
            "numbers of an earlier one.",
        ),
    ),
    # --- structure ----------------------------------------------------------------------------------
    (
        "structure/*/causality*",
        Explanation(
            "x_j, h_j changed for all j >= i:  x'_1 ... x'_{i-1} unchanged",
            "A language model that sees the next token has a wonderful loss and generates nonsense.",
        ),
    ),
    (
        "structure/layer/batch-energy",
        Explanation(
            "E(x_1, ..., x_B) = sum or mean over b of E(x_b), as declared",
            "Where a sum is declared and a mean is taken, the step is shorter by the size of the batch.",
        ),
    ),
    (
        "structure/*/batch-*",
        Explanation(
            "F(x_1, ..., x_B)_b = F(x_b)",
            "Rows that leak into each other make a result depend on what else is in the batch, and evaluation "
            "with it.",
        ),
    ),
    (
        "structure/mlp/token-independence",
        Explanation(
            "x_j changed for all j != i:  x'_i unchanged", "An MLP that mixes tokens bypasses the causal mask."
        ),
    ),
    (
        "structure/attention/head-order*",
        Explanation(
            "F(heads in reverse order, with all that belongs to them) = F(heads)",
            "If it matters which head is which, some weight, bias or preconditioner is paired with the wrong head.",
        ),
    ),
    (
        "structure/decode/*",
        Explanation(
            "decode(x_1), decode(x_2; cache), ... = F(x_1 ... x_J)",
            "Text is generated from the cache and losses are computed without it. Where they differ, the model "
            "that is "
            "deployed is not the one that was evaluated.",
        ),
    ),
    (
        "structure/layer/own-state",
        Explanation(
            "x_j changed for all j != i at fixed memory:  x'_i unchanged",
            "The energy is per token with the memory fixed. If states couple, what is minimised is another function.",
        ),
    ),
    (
        "structure/layer/energy-per-token",
        Explanation(
            "x_j changed for all j != i at fixed memory:  E_i unchanged",
            "A stated energy that mixes tokens is not the sum that the update descends token by token.",
        ),
    ),
    (
        "structure/layer/permutation",
        Explanation(
            "F(pi x) = pi F(x)", "A layer without positions that depends on the order has positions after all."
        ),
    ),
    (
        "structure/layer/mask",
        Explanation(
            "x_j, h_j changed where mask_j = 0:  everything else unchanged",
            "Padding that is read changes results with the length of the longest row in the batch.",
        ),
    ),
    # --- the contract, and its counterpart for energy layers ------------------------------------------
    (
        "*/inputs-unchanged",
        Explanation(
            "(x, h, weights, config) after the call = before, bit for bit",
            "An edited argument is somebody else's residual stream or parameter. The bug shows far from its cause.",
        ),
    ),
    (
        "*/determinism",
        Explanation(
            "F(a) = F(a) after F(b), bit for bit",
            "An answer that depends on the call before cannot be reproduced, and makes every other comparison a "
            "lottery.",
        ),
    ),
    (
        "*/edited-arrays",
        Explanation(
            "F(w) after w was edited in place = F(copy of w)",
            "Optimisers edit weights in place. Whoever caches by identity trains with the weights of yesterday.",
        ),
    ),
    (
        "*/windows",
        Explanation(
            "F(view of an array) = F(copy of the view)",
            "Slices, transposes and expanded arrays reach a layer every day; a kernel that ignores strides reads the "
            "neighbours.",
        ),
    ),
    (
        "*/shape-and-dtype",
        Explanation(
            "shape(x') = shape(x),  dtype(x') = dtype(x),  device(x') = device(x)",
            "A layer that answers in float32 whatever it is given silently lowers the precision of everything "
            "after it.",
        ),
    ),
    (
        "*/dtype",
        Explanation("dtype(x') = dtype(x)", "A layer that changes the dtype changes that of all that follows."),
    ),
    (
        "*/settings*",
        Explanation(
            "settings of the process and states of generators after the call = before",
            "A default dtype, a number of threads or a seed that a layer leaves behind changes other people's "
            "results.",
        ),
    ),
    (
        "*/surroundings",
        Explanation(
            "F under other settings of the process = F",
            "An answer that depends on the default dtype, on inference mode or on a seed differs between two "
            "programs "
            "that call the layer alike.",
        ),
    ),
    (
        "*/shared-memory",
        Explanation(
            "F(x, h overlapping) = F(copies)",
            "x and h are often windows of one array. A layer that writes before it has read everything answers "
            "wrongly.",
        ),
    ),
    (
        "*/one-array",
        Explanation(
            "F(x, x) = F(x, copy of x)",
            "In self-attention the state and the memory are one array. Whoever updates it in place moves the memory "
            "that must stay fixed.",
        ),
    ),
    (
        "*/threads",
        Explanation(
            "two calls in two threads = each call alone",
            "Servers and data loaders call from several threads; state that calls share mixes their answers.",
        ),
    ),
    (
        "*/first-calls",
        Explanation(
            "the first call in a process, and a later one in another shape = the golden answer",
            "What is set up lazily, tables of positions say, may be wrong the first time or frozen at the first "
            "shape.",
        ),
    ),
    # --- metamorphic relations ------------------------------------------------------------------------
    (
        "metamorphic/attention/energy-temperature",
        Explanation("eps(2 A, 2 tau) = 2 eps(A, tau)", "A temperature on one side only is a different energy."),
    ),
    (
        "metamorphic/attention/energy-logit-shift",
        Explanation("eps(b + c) = eps(b) - tau K c", "The bias must enter each head's log-sum-exp exactly once."),
    ),
    (
        "metamorphic/attention/logit-shift",
        Explanation(
            "update(b + c) = update(b)", "Softmax does not see a constant; a sum that is not normalised does."
        ),
    ),
    (
        "metamorphic/attention/temperature",
        Explanation(
            "update(2 A, 2 tau, eta / 2) = update(A, tau, eta)",
            "Scores, values and step scale together. A temperature in the wrong place breaks exactly this.",
        ),
    ),
    (
        "metamorphic/attention/gain-and-temperature",
        Explanation(
            "update(2 gain, 2 tau) = update(gain, tau), the norm inside",
            "A gain belongs inside the norm that the scores see; elsewhere it scales something else.",
        ),
    ),
    (
        "metamorphic/*/*-permutation",
        Explanation(
            "F(reordered rows, heads, units or features) = reordered F",
            "No row, head, unit or feature is special. Where one is, an index is off or a block is left over.",
        ),
    ),
    (
        "metamorphic/*/joint-rotation",
        Explanation(
            "F(Q x, Q h, weights Q^T) = Q F(x, h, weights)",
            "The energy knows scalar products only. A layer that treats features one by one has something the "
            "formula "
            "has not.",
        ),
    ),
    (
        "metamorphic/attention/rescaled-heads",
        Explanation(
            "update(c_k W_Q,k, W_K,k / c_k) = update(W_Q, W_K)",
            "Only the product W_Q^T W_K enters the energy. An untied value or output path sees its factors.",
        ),
    ),
    (
        "metamorphic/*/preconditioner-factors",
        Explanation("P(U, V) = P(V, U)", "U V^T + V U^T is symmetric in its factors; U V^T alone is not."),
    ),
    (
        "metamorphic/*/step-size",
        Explanation(
            "update(eta / 2) = update(eta) / 2, one step",
            "A step size that enters twice, or only some of the terms, shows at once.",
        ),
    ),
    (
        "metamorphic/mlp/gate-*",
        Explanation(
            "update is linear in gamma = W h",
            "Only V x passes through the activation. With gate and up exchanged, W h does.",
        ),
    ),
    (
        "metamorphic/mlp/split-units",
        Explanation(
            "every unit twice, W halved:  update unchanged",
            "A mean in place of a sum over units, or a block of units left out, changes it.",
        ),
    ),
    (
        "metamorphic/mlp/reflection-*",
        Explanation(
            "update(V) + update(-V) = update of the identity activation,  as sigma(z) - sigma(-z) = z",
            "An approximate activation, or the wrong one of the two GELUs, breaks a relation that needs no oracle.",
        ),
    ),
    (
        "metamorphic/attention/equal-tokens",
        Explanation(
            "x_1 = ... = x_J, h_1 = ... = h_J:  x'_1 = ... = x'_J, whatever the bias",
            "Weights that do not sum to one show here, in the mask and at the edges of blocks above all.",
        ),
    ),
    # --- limits of arithmetic and sizes ----------------------------------------------------------------
    (
        "extremes/*/*every-magnitude",
        Explanation(
            "update and energy = golden, at arguments of every magnitude, of either sign",
            "Formulas for exp, log and softplus switch branches. Around each switch there is a range where a "
            "naive one "
            "loses its digits.",
        ),
    ),
    (
        "extremes/*/*large*",
        Explanation(
            "update and energy = golden, at arguments of 1e4",
            "exp overflows at 709, and at 89 in float32. Trained models do reach such logits, and infinity minus "
            "infinity is NaN.",
        ),
    ),
    (
        "extremes/*/subnormal-states",
        Explanation(
            "update at subnormal x = golden",
            "A division by a norm or a maximum that is nearly zero gives NaN or noise.",
        ),
    ),
    (
        "extremes/*/zero-*",
        Explanation("update = golden where x or h is zero", "Padding and fresh states are zero; 0 / 0 is NaN."),
    ),
    (
        "extremes/*/*ties",
        Explanation(
            "update = golden where all scores are equal",
            "Ties show whether weights are a mean of the past, and of how many tokens.",
        ),
    ),
    (
        "extremes/*/long-row*",
        Explanation(
            "update = golden in a row of many tokens, one of which may dominate",
            "A running maximum that is not carried across blocks forgets the token that everybody should read.",
        ),
    ),
    (
        "extremes/layer/huge-states",
        Explanation(
            "x' - x = -eta P dE/dg at 64 x", "Overflow inside the layer comes long before the state overflows."
        ),
    ),
    (
        "sizes/*",
        Explanation(
            "the same update, energy or decoded row, at the sizes that users have",
            "Tiles, tables of positions and accumulators have limits that no small case reaches. A green says "
            "nothing "
            "beyond the sizes that were asked.",
        ),
    ),
    # --- modes, precision, rejection -------------------------------------------------------------------
    (
        "modes/*/compiled",
        Explanation(
            "torch.compile(F)(x, h) = F(x, h)",
            "Code that branches on values, or edits what it was given, compiles into something else.",
        ),
    ),
    (
        "modes/*/vmap",
        Explanation(
            "vmap(F)(xs, hs) = [F(x, h) for x, h]", "In-place writes and fixed ranks break when an axis is added."
        ),
    ),
    (
        "modes/*/no-gradients",
        Explanation(
            "F while gradients are recorded = F without",
            "Many layers choose a faster path in evaluation; it has to be the same layer.",
        ),
    ),
    (
        "modes/*/cuda",
        Explanation("F on CUDA = F on the CPU", "Kernels differ between devices, and so do their mistakes."),
    ),
    (
        "precision/attention/*",
        Explanation(
            "|F - golden| <= c u (1 + S) |update|,  S the largest logit; or the running bound of the sums",
            "A sum or a softmax in too low a precision costs digits that no loss curve shows until training "
            "diverges.",
        ),
    ),
    (
        "precision/mlp/*",
        Explanation(
            "|F - golden| <= c u |update|; or the running bound of the sums",
            "A sum over thousands of hidden units in bfloat16 loses most of its digits.",
        ),
    ),
    (
        "precision/*",
        Explanation(
            "|F - golden| <= running error bound of the dtype",
            "What a layer may lose follows from its dtype and sizes. More than that is a cast or a sum in the "
            "wrong place.",
        ),
    ),
    (
        "rejection/*",
        Explanation(
            "F(bad input) raises ValueError or TypeError with a message and changes no setting; F(good) does not",
            "Bad input that is accepted broadcasts, truncates or spreads NaN, and is found weeks later.",
        ),
    ),
    # --- energy layers ----------------------------------------------------------------------------------
    (
        "gradient/layer/energy",
        Explanation(
            "x' = x - eta P dE/dg, at every step",
            "This is what the declaration says. Everything that is derived from the energy rests on it.",
        ),
    ),
    (
        "gradient/layer/derivatives-agree",
        Explanation(
            "autograd of E = central differences of E",
            "A detached term or a custom backward in the stated energy makes its gradient a fiction, and every other "
            "property would be judged by it.",
        ),
    ),
    (
        "gradient/layer/symmetric-coupling",
        Explanation(
            "d x'_i / d x_j = (d x'_j / d x_i)^T",
            "If tokens share one energy, what i does to j is what j does to i. Attention between states is not like "
            "that unless it is built so.",
        ),
    ),
    (
        "gradient/layer/preconditioner",
        Explanation(
            "x' - x = -P dE/dg for one P = P^T > 0, at all states",
            "A matrix that is not positive definite climbs in some direction; one that depends on the state is none.",
        ),
    ),
    (
        "gradient/layer/lagrangian",
        Explanation("g(x) = dL/dx", "The state map and its Lagrangian are two statements of one thing."),
    ),
    (
        "gradient/layer/lagrangian-rate",
        Explanation(
            "dL = g . dx along the update", "A Lagrangian that is right at one point only fits no trajectory."
        ),
    ),
    # --- trained layers ---------------------------------------------------------------------------------
    (
        "trained/update",
        Explanation("x' = x - eta P dE/dg on real states", "Trained weights reach where no random ones do."),
    ),
    ("trained/slope", Explanation("dE/dx . (x' - x) < 0 on real states", "The share of tokens whose energy falls.")),
    ("trained/whole-step", Explanation("E(x') <= E(x) on real states", "Trained step sizes may be too long.")),
    ("trained/preconditioner", Explanation("P > 0", "Training may push P out of the cone where it descends.")),
    ("trained/symmetry", Explanation("J = J^T on real states", "A field that has drifted has no energy.")),
    (
        "trained/precision",
        Explanation("F in the model's dtype ~ F in float64", "What rounding costs on real states."),
    ),
)


def explain(property_id: str) -> Explanation:
    """The formula of a property, and why it matters.

    Raises:
        KeyError: nothing is said about it.
    """
    for pattern, explanation in _EXPLANATIONS:
        if fnmatchcase(property_id, pattern):
            return explanation
    raise KeyError(property_id)
