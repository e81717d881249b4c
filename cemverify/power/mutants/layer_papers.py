"""Faults of particular energy layers: each is an example of this repository with one line changed.

The examples read like their papers, and so does a fault: the text of the file, and what somebody might write instead.
The examples exist only in a clone of the repository.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial

from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.naming import LoadError
from cemverify.power.mutants.base import ANSWER, Mutant, Zoo, with_changes

ZOO = Zoo("layer-papers")

_SLOPE = "slope*"
_GRADIENT = "gradient/layer/energy"
_FOLDER = "examples"
# ISTA has its threshold twice: in the proximal map, and in the update
_THRESHOLDS = """    return torch.relu(v - eta * LAMBDA)


def sparser(x: Tensor, y: Tensor) -> Tensor:
    rest = y - x @ DICTIONARY.to(x).mT  # (B, J, features)
    return torch.relu(x + ETA * rest @ DICTIONARY.to(x) - ETA * LAMBDA)"""


def layer(example: str, *changes: tuple[str, str]) -> EnergyLayer:
    """An example with some of its text replaced.

    Raises:
        LoadError: the examples are not installed.
    """
    name = f"{_FOLDER}.{example if '.' in example else f'energy_layers.{example}'}"
    try:
        module = with_changes(name, changes) if changes else importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LoadError(f"{name} is not installed; it is part of a clone of the repository") from error
    made: EnergyLayer = module.mine
    return made


# example, id, fault, the text there, the text instead; then property and cause, if not the usual ones
_SLIPS: Sequence[tuple[str, ...]] = (
    # CEM attention
    # CEM MLP
    ("cem_mlp", "one-step-too-few", "One step is taken although two are declared.", "for _ in range(STEPS):",
     "for _ in range(STEPS - 1):"),
    ("cem_mlp", "d-gets-no-gradient", "The preconditioner is detached in the update.", "STEP_SIZE * precondition(",
     "STEP_SIZE * (lambda g: F.softplus(d.detach().to(g)) * g)(", "training/layer/parameters",
     "product: d"),
    ("cem_mlp", "a-copy-declared", "The optimiser gets a copy of W, and the layer keeps its own.", '"W": W,',
     '"W": W.clone(),', "training/layer/parameters-matter", "answer: W"),
    # Hopfield retrieval
    ("hopfield_retrieval", "no-temperature-in-the-softmax", "The softmax lacks beta.",
     "torch.softmax(BETA * x @ patterns.mT, -1)", "torch.softmax(x @ patterns.mT, -1)"),
    ("hopfield_retrieval", "overflowing-energy", "The energy is log(sum(exp)), which overflows.",
     "torch.logsumexp(BETA * x @ patterns.mT, -1)", "torch.log(torch.exp(BETA * x @ patterns.mT).sum(-1))",
     "extremes/layer/huge-states", "not finite: energy"),
    ("hopfield_retrieval", "places-added", "Tokens are marked with their positions before retrieval.",
     "    return torch.softmax(BETA * x @", """    x = x + 0.01 * torch.arange(x.shape[1])[:, None].to(x)
    return torch.softmax(BETA * x @""", "structure/layer/permutation", ANSWER),
    ("hopfield_retrieval", "energy-averaged-over-the-batch", "Every row gets the mean energy of the batch.",
     "    return -torch.logsumexp(BETA * x @ patterns.mT, -1) / BETA + (x * x).sum(-1) / 2  # (B, J)",
     """    values = -torch.logsumexp(BETA * x @ patterns.mT, -1) / BETA + (x * x).sum(-1) / 2
    return values.mean(0).expand_as(values)""", "structure/layer/batch-independence", "energy*"),
    # heads
    ("hopfield_heads", "one-beta-for-all", "Every head uses the first head's temperature.",
     "torch.softmax(BETA.to(x)[:, None, None]", "torch.softmax(BETA.to(x)[0]"),
    ("hopfield_heads", "keys-get-no-gradient", "The keys are detached.", "keys = project(W_K, y)",
     "keys = project(W_K.detach(), y)", "training/layer/parameters", "product: W_K"),
    # CCCP
    ("hopfield_cccp", "convex-part-climbed", "The retrieved pattern is subtracted.",
     "return cubic_root(torch.softmax(", "return -cubic_root(torch.softmax(", "descent/layer/slope", _SLOPE),
    # Energy Transformer
    ("energy_transformer", "no-key-term", "The update is that of attention: tokens are not updated as keys.",
     "ALPHA * (as_query + as_key +", "ALPHA * (as_query +", "gradient/layer/symmetric-coupling",
     ANSWER),
    ("energy_transformer", "norm-left-out", "The gradient is taken at x, not at g.", "    g = norm(x)\n",
     "    g = x\n"),
    ("energy_transformer", "lagrangian-turned-over", "The Lagrangian has the wrong sign, so it is concave.",
     "return D * GAMMA * torch", "return -D * GAMMA * torch", "descent/layer/lagrangian-convex", "*"),
    ("energy_transformer", "lagrangian-rate-off", "The Lagrangian lacks gamma.", "return D * GAMMA * torch",
     "return D * torch", "gradient/layer/lagrangian-rate", ANSWER),
    ("energy_transformer", "additive-mask", "Masked pairs get -1e9, so a single token attends to itself.",
     "weights = torch.softmax(scores.masked_fill(~pairs & some, -torch.inf), -1) * some",
     "weights = torch.softmax(scores.masked_fill(~pairs, -1e9), -1)"),
    ("energy_transformer", "mask-of-keys-only", "Masked tokens still act as queries.",
     "(kept[..., :, None] & kept[..., None, :])", "kept[..., None, :]", "structure/layer/mask",
     "*"),
    # NRGPT
    ("nrgpt_step", "projection-not-symmetric", "The projection is an arbitrary matrix.",
     "P = ROOT @ ROOT.T + 0.3 *", "P = ROOT + 1.0 *", "gradient/layer/preconditioner", "*"),
    ("nrgpt_step", "projection-not-positive", "The projection has a negative eigenvalue.",
     "P = ROOT @ ROOT.T + 0.3 *", "P = ROOT @ ROOT.T - 0.3 *", "gradient/layer/preconditioner",
     "spectrum"),
    ("nrgpt_step", "norm-after-the-keys", "Keys are computed from x, queries from g.",
     "logits, keys = scores(g, g)", "logits, keys = scores(g, x)"),
    ("nrgpt_step", "later-tokens-read", "The mask is off by one token.",
     "    later = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool).triu(1)",
     "    later = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool).triu(2)", "structure/layer/causality", "*"),
    # HAM
    ("ham_two_layers", "decay-of-one-layer-missing", "The hidden neurons do not decay.",
     "g_v @ W.to(g_v).T - x.hidden)", "g_v @ W.to(g_v).T)"),
    ("ham_two_layers", "synapse-not-shared", "The feedback has weights of its own.",
     "(g_h @ W.to(g_h) - x.visible)", "(g_h @ W.to(g_h).flip(0) - x.visible)", "gradient/layer/conservative-field",
     ANSWER),
    ("ham_two_layers", "softmax-without-beta", "The softmax lacks the beta of its Lagrangian.",
     "torch.softmax(BETA * x.hidden, -1)", "torch.softmax(x.hidden, -1)", "gradient/layer/lagrangian", ANSWER),
    ("ham_two_layers", "activation-decreasing", "The activation is decreasing, so its Lagrangian is concave.",
     "return torch.tanh(x.visible), torch", "return -torch.tanh(x.visible), torch", "descent/layer/slope", _SLOPE),
    # simplicial Hopfield
    ("simplicial_hopfield", "a-pair-counted-once", "A pair acts on one of its neurons only.",
     "slopes[i], slopes[j] = slopes[i] + z[..., j], slopes[j] + z[..., i]", "slopes[i] = slopes[i] + z[..., j]",
     "gradient/layer/conservative-field", ANSWER),
    ("simplicial_hopfield", "quartic-slope-halved", "The quartic term's slope is halved.", "- x - x**3)",
     "- x - x**3 / 2)"),
    # Energy-Based Transformer
    ("energy_based_transformer", "mean-energy",
     "The energy is averaged over the batch, its gradient is not scaled.", "energy(leaf, context).sum()",
     "energy(leaf, context).mean()", "structure/layer/batch-independence",
     "*"),
    ("energy_based_transformer", "step-size-detached", "First order only: the graph of the gradient is dropped.",
     "create_graph=keep)", "create_graph=False)", "training/layer/parameters", "product*"),
    ("energy_based_transformer", "read-detached", "The values read from the context are detached in the update.",
     "torch.softmax(logits, -1) @ context", "(torch.softmax(logits, -1) @ context).detach()",
     "gradient/layer/derivatives-agree", ANSWER),
    ("energy_based_transformer", "context-not-permuted", "Candidates are marked with their positions.",
     "    logits = candidate @ MIX",
     """    candidate = candidate + 0.1 * torch.arange(candidate.shape[1])[:, None].to(candidate)
    logits = candidate @ MIX""", "structure/layer/permutation", ANSWER),
    # equilibrium
    ("equilibrium_layer", "gradient-of-the-last-iteration", "Gradients flow through the last iteration alone.",
     "        x = torch.tanh(x @", "        x = torch.tanh(x.detach() @", "training/layer/derivatives-agree",
     "product*"),
    # an energy averaged over batch and tokens
    ("averaged_energy", "sum-for-mean", "The energy is the sum over the batch, but declared as the mean.",
     ".sum(-1).mean()", ".sum(-1).mean(-1).sum()", "structure/layer/batch-energy", "energy*"),
    ("averaged_energy", "step-beyond-the-bound", "The step is longer than the curvature allows.",
     "STEP_SIZE = 3, 1.0, 1.0", "STEP_SIZE = 3, 1.0, 2.5", "descent/layer/smoothness", "energy*"),
    # tokens that repel each other
    ("uniformity", "pairs-counted-once", "Each pair pushes one of its tokens only.", "return 4 * STEP_SIZE",
     "return 2 * STEP_SIZE"),
    ("uniformity", "attracts", "The tokens attract each other.", "return 4 * STEP_SIZE", "return -4 * STEP_SIZE",
     "descent/layer/slope", _SLOPE),
    ("uniformity", "one-weight-transposed", "A token is pushed by the weights of its neighbour.", "- w @ x)",
     "- w.roll(1, -1) @ x)", "gradient/layer/symmetric-coupling", ANSWER),
    # far out: large states, distant starts, parameters after training
    ("cem_attention", "penalty-in-place-of-the-mask", "Later keys get a large penalty in place of a mask.",
     '(torch.einsum("bid,bkjd->bkij", x, beta) / TAU).masked_fill(later, -torch.inf)',
     'torch.einsum("bid,bkjd->bkij", x, beta) / TAU - 65504.0 * later', "structure/layer/causality",
     ANSWER),
    ("hopfield_retrieval", "scores-clipped", "The update clips scores at ten thousand.",
     "torch.softmax(BETA * x @ patterns.mT, -1)", "torch.softmax((BETA * x @ patterns.mT).clamp(max=1e4), -1)",
     "extremes/layer/huge"),
    ("equilibrium_layer", "enough-iterations-nearby", "There are enough iterations for ordinary starts alone.",
     "1e-10, 120", "1e-10, 30", "descent/layer/stationary-from-afar", ANSWER),
    ("cem_mlp", "gate-limited", "The update limits the weights of the gate, the energy does not.",
     "start, gate = x, h @ W.to(h).T", "start, gate = x, h @ W.to(h).clamp(-1.5, 1.5).T",
     "training/layer/other-parameters", "product: x"),
    # a gradient step and a proximal map
    ("ista", "threshold-with-an-epsilon", "Update and proximal map return a little less than the minimiser.",
     _THRESHOLDS, _THRESHOLDS.replace("LAMBDA)", "LAMBDA) / (1 + 1e-4)"), "gradient/layer/proximal",
     ANSWER),
    ("ista", "signs-thrown-away", "The proximal map is that of |x| on all numbers, where none may be negative.",
     """    return torch.relu(x + ETA * rest @ DICTIONARY.to(x) - ETA * LAMBDA)""",
     """    v = x + ETA * rest @ DICTIONARY.to(x)
    return v.sign() * torch.relu(v.abs() - ETA * LAMBDA)""", "descent/layer/whole-step",
     "energy"),
    # a step size that depends on the state
    ("adaptive_step", "size-of-the-batch", "All rows take the step of the steepest one.", "(1 + 3 * square)",
     "(1 + 3 * square.max())", "structure/layer/batch-independence", "*"),
    # layers in which every token is a step
    ("online_layers.delta_chunks", "short-chunk-forgotten", "A last chunk that is not full changes no state.",
     "S = S + k.mT @ U", "S = S + k.mT @ U if k.shape[1] == CHUNK else S", "structure/layer/reference", ANSWER),
    ("online_layers.delta_chunks", "correction-detached",
     "Gradients do not flow through the state that corrections are read from.",
     "T @ k @ S  #", "T @ k @ S.detach()  #", "training/layer/reference", "product*"),
    ("online_layers.delta_rule", "starts-at-one", "Without a first state a row begins with ones.",
     "m.k.new_zeros(", "m.k.new_ones(", "structure/layer/no-state", ANSWER),
    ("online_layers.gated_delta_rule", "forgets-nothing-at-first", "The first token of a row forgets nothing.",
     "S = m.g[:, t, None, None].exp() * S", "S = m.g[:, t, None, None].exp() * S if t else S",
     "structure/layer/pieces", ANSWER),
    ("online_layers.gated_delta_rule", "corrected-before-forgetting",
     "The step is taken where nothing is forgotten yet.",
     "m.k[:, t, None] @ S  #", "m.k[:, t, None] @ (S / m.g[:, t, None, None].exp())  #",
     "structure/layer/reference", ANSWER),
    ("online_layers.titans_linear", "surprise-forgotten", "Forgetting takes a share of the new step, too.",
     "(1 - alpha)[:, None, None] * S + surprise", "(1 - alpha)[:, None, None] * (S + surprise)",
     "structure/layer/reference", ANSWER),
    ("online_layers.titans_linear", "last-step-lost", "A row begins without the last step of the one before it.",
     "if x is None else x ", "if x is None else (x[0], 0 * x[1]) ", "structure/layer/pieces", ANSWER),
    ("online_layers.ttt_linear", "mean-of-the-gradient-kept", "The backward pass of the layer norm keeps the mean.",
     "off = off - off.mean(-1, keepdim=True) - one", "off = off - one", "structure/layer/reference", ANSWER),
    ("online_layers.linear_attention", "first-state-kept", "The first state does not decay.",
     "kept[:, -1:].exp().to(S)[..., None] * S +", "S +", "structure/layer/reference", ANSWER),
    ("online_layers.linear_attention", "decays-summed-in-bfloat16", "Cumulative decays are as narrow as the tokens.",
     "torch.promote_types(m.k.dtype, torch.float32)", "m.k.dtype", "precision/layer/bfloat16", ANSWER),
    ("online_layers.linear_attention", "later-tokens-overflow",
     "Weights of later tokens are masked after their exponential, which overflows: gradients are NaN.",
     ".tril().exp().tril()", ".exp().tril()", "precision/layer/float32-gradients", "not finite"),
    ("online_layers.packed_rows", "state-not-set-back", "A row begins with the last state of the one before it.",
     "None if S is None else S[i : i + 1]", "rows[-1][1] if rows else None if S is None else S[i : i + 1]",
     "structure/layer/packed-rows", ANSWER),
    ("online_layers.packed_rows", "first-state-for-all", "All rows begin with the first row's state.",
     "S[i : i + 1]", "S[:1]", "structure/layer/packed-rows", ANSWER),
    ("online_layers.packed_rows", "padding-forgets", "Padding before a row decays its first state.",
     "mask, g=m.g * mask", "mask, g=m.g * (mask | ~mask[:, :1])", "structure/layer/left-padding", ANSWER),
    ("online_layers.packed_rows", "padding-steps", "The first token of padding after a row is read as one of it.",
     "m.beta * mask", "m.beta * (mask | mask.roll(1, 1) & mask[:, :1])", "structure/layer/right-padding", ANSWER),
    ("online_layers.packed_rows", "trained-on-its-neighbour", "Gradients of a row lead on into the row before it.",
     "None if S is None else S[i : i + 1]",
     "(m.k.new_zeros(1, K, V) if S is None else S[i : i + 1]) + (rows[-1][1] - rows[-1][1].detach() if rows else 0)",
     "training/layer/packed-rows", "product*"),
    ("online_layers.packed_rows", "padding-is-trained", "Padding forgets nothing, and its gates get gradients.",
     "g=m.g * mask", "g=m.g * mask + (m.g - m.g.detach()) * ~mask", "training/layer/left-padding", "product*"),
    ("online_layers.packed_rows", "padded-gradient-too-large", "Sizes of steps in padded rows get 1.5 gradients.",
     "m.beta * mask", "(m.beta + (m.beta - m.beta.detach()) / 2) * mask", "training/layer/right-padding", "product*"),
    ("online_layers.delta_product", "forgets-before-each", "What is kept is kept before each step of a token.",
     "k, v, beta = m.k[:, t, i]", "S, k, v, beta = S * m.g[:, t].exp()[:, None, None] if i else S, m.k[:, t, i]",
     "structure/layer/reference", ANSWER),
    ("online_layers.mesa_net", "ridge-decays", "The ridge is forgotten as the sums are.",
     "torch.diag_embed(m.ridge)[:, None])", "torch.diag_embed(m.ridge)[:, None] * decays.exp()[..., None, None])",
     "structure/layer/reference", ANSWER),
    # the control
    ("langevin_score", "called-conservative", "A learned score is declared to be a gradient.",
     "    conservative=False,\n", "", "gradient/layer/conservative-field", ANSWER),
)  # fmt: skip


def _mutant(
    example: str, id_: str, fault: str, right: str, wrong: str, property_: str = _GRADIENT, cause: str = ANSWER
) -> Mutant:
    name = f"{example.rpartition('.')[2].replace('_', '-')}-{id_}"
    make, original = partial(layer, example, (right, wrong)), partial(layer, example)
    return ZOO.made(name, fault, property_, cause, make, original=original)


ZOO += [_mutant(*row) for row in _SLIPS]
