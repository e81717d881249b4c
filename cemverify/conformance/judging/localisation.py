"""Which part of a layer is wrong: the failing case is asked again, with options off and with weights that single out.

First the options: what can be switched off while the case still fails is not to blame, and what cannot, is. Then,
where the bare layer fails, its sub-identities, each of which leaves one part alone:

    one token                         the attention weights are 1: values, output projection, sum over heads
    x = 0                             the scores are 0: mask, softmax and bias
    one row of W_Q, or of V, not 0    the update points along that row
    the memory doubled                the update doubles

A part is named only if what else the sub-identities say agrees with it. Where they do not, nothing is named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.golden import energies_at, golden, norm_into
from cemverify.conformance.questions.cases import Case, Config, dense_case

_SEEDS = (1, 2, 3)
_EXPERIMENTS = 400  # calls at most


@dataclass(frozen=True)
class Part:
    """What is wrong.

    Attributes:
        name: "diagonal, value path". because: the sub-identity that shows it, as a sentence.
    """

    name: str
    because: str


class _Undecided(Exception):
    """Nothing can be said: the calls are spent, or two calls of the same give two answers."""


def localise(caller: Caller, case: Case) -> Part | None:
    """The part of the layer that is wrong, as far as the case or dense cases of its kind can tell; None if not.

    Args:
        case: one that was found to violate a property.
    """
    bench = _Bench(caller)
    try:
        return _block(bench, case) if case.layer == "block" else _layer(bench, case)
    except _Undecided:
        return None


# --- asking ---------------------------------------------------------------------------------------


@dataclass
class _Bench:
    """Asks the implementation, and knows what is right."""

    caller: Caller
    asked: int = 0

    def offers(self, *features: str) -> bool:
        return not set(features) & self.caller.subject.not_offered.keys()

    def got(self, case: Case) -> Tensor | None:
        """The layer's update, x^(T) - x^(0), or None where there was no answer."""
        self.asked += 1
        if self.asked > _EXPERIMENTS:
            raise _Undecided
        try:
            return self.caller.output(case) - case.x
        except Fault:
            return None

    def wrong(self, case: Case) -> bool:
        """Whether its answer is not the right one; too ill-conditioned a case is not wrong."""
        case = case.to(self.caller.dtype).to(torch.float64)
        budget = output_budget(case, self.caller.dtype)
        if not bool(budget.isfinite().all()):
            return False
        got = self.got(case)
        return got is None or bool(((got - (golden(case) - case.x)).abs() > budget).any())

    def equal(self, got: Tensor | None, expected: Tensor, budget: Tensor) -> bool:
        return got is not None and bool(((got - expected).abs() <= 2 * budget).all())

    def room(self, case: Case) -> Tensor:
        return output_budget(case.to(self.caller.dtype).to(torch.float64), self.caller.dtype)

    def rounded(self, case: Case) -> Case:
        return case.to(self.caller.dtype).to(torch.float64)


def _layer(bench: _Bench, case: Case) -> Part | None:
    case = bench.rounded(case)
    if not bench.wrong(case):
        found = next((dense for dense in _dense(bench, case.layer_config) if bench.wrong(dense)), None)
        if found is None:
            return _beside(bench, case)
        case = found
    if (mixes := _mixing(bench, case)) is not None:
        return mixes
    case, needed = _needed(bench, case)
    if needed:
        return _options(bench, case, needed)
    if case.x.shape[0] > 1 and not any(bench.wrong(_rows(case, [i])) for i in range(case.x.shape[0])):
        return Part("batch rows", "each row alone is right, together they are wrong")
    return _bare_attention(bench, case) if case.layer == "attention" else _bare_mlp(bench, case)


def _beside(bench: _Bench, case: Case) -> Part | None:
    """The layer is right: the cache, or the energy that is stated."""
    functions = bench.caller.functions
    for candidate in (case, *_dense(bench, case.layer_config, batch=2)):
        room = bench.room(candidate)
        if case.layer == "attention" and "decode" in functions:
            row = replace(candidate, x=candidate.h)
            due = golden(row)
            try:
                off = (bench.caller.decoded(row) - due).abs() > output_budget(row, bench.caller.dtype)
            except Fault:
                continue
            if bool(off.any()):
                return Part("cache", "the whole row at once is right, decoding token by token is not")
        if f"{case.layer}_energy" in functions and bool(room.isfinite().all()):
            due = energies_at(candidate, candidate.x)
            try:
                off = (bench.caller.energy(candidate) - due).abs() > energy_budget(
                    candidate, candidate.x, bench.caller.dtype
                )
            except Fault:
                continue
            if bool(off.any()):
                return Part("stated energy", "the update is right, the energy is not")
    return None


def _block(bench: _Bench, case: Case) -> Part | None:
    """The block asks the same parts: whichever of its two layers is wrong by itself, or how they are joined."""
    if not bench.offers("attention", "mlp", "start"):
        return None
    case = bench.rounded(case)
    if not bench.wrong(case):
        return None
    attention = case.part("attention")
    attention = replace(attention, h=norm_into(attention, case.h))
    middle = golden(attention)
    mlp = case.part("mlp")
    mlp = replace(mlp, x=middle, h=norm_into(mlp, middle))
    for part in (attention, mlp):
        if bench.wrong(part):
            found = _layer(bench, part)
            return found and Part(found.name, f"the block's {part.layer} by itself is wrong too: {found.because}")
    return Part("block", "its attention and its MLP are right by themselves on what the block gives them")


def _dense(bench: _Bench, config: Config, tokens: int = 4, batch: int = 1) -> Iterator[Case]:
    """Well-conditioned cases with that configuration."""
    for seed in _SEEDS:
        case = dense_case(config, batch, tokens, seed)
        yield bench.rounded(case if bench.offers("start") else replace(case, x=case.h))


# --- who reads whom -------------------------------------------------------------------------------


def _mixing(bench: _Bench, case: Case) -> Part | None:
    """Tokens that read what they must not, before anything else: every other test would take it for its own."""
    for candidate in (case, *_dense(bench, case.layer_config, batch=2)):
        before = bench.got(candidate)
        again = bench.got(candidate)
        if before is None or again is None:
            continue
        if not torch.equal(before, again):
            raise _Undecided
        room = 2 * bench.room(candidate)
        if candidate.x.shape[0] > 1:
            alone = bench.got(_rows(candidate, [0]))
            if alone is not None and bool(((alone - before[:1]).abs() > room[:1]).any()):
                return Part("batch rows", "the first row alone gives something else than among others")
        if candidate.x.shape[1] < 2:
            continue
        states = bench.offers("start")
        for i in range(1, candidate.x.shape[1]):
            for name in ("x", "h") if states else ("both",):
                after = bench.got(_with_other_tail(candidate, name, i))
                if after is None or not bool(((after - before)[:, :i].abs() > room[:, :i]).any()):
                    continue
                if candidate.layer == "mlp":
                    return Part("token mixing", f"another token {i} changes the tokens before it")
                if name == "x":
                    return Part("softmax", f"another state x of token {i} alone changes the tokens before it")
                return Part("mask", f"another memory of token {i} changes the tokens before it")
        if candidate.layer == "mlp":
            flipped = bench.got(replace(candidate, x=candidate.x.flip(1), h=candidate.h.flip(1)))
            if flipped is not None and bool(((flipped.flip(1) - before).abs() > room).any()):
                return Part("token mixing", "tokens in another order give something else")
    return None


def _with_other_tail(case: Case, name: str, i: int) -> Case:
    def changed(tokens: Tensor) -> Tensor:
        other = tokens.clone()
        other[:, i:] = 3.0 - 2.0 * other[:, i:].flip(1)
        return other

    x = case.x if name == "h" else changed(case.x)
    return replace(case, x=x, h=case.h if name == "x" else changed(case.h))


def _rows(case: Case, rows: list[int]) -> Case:
    return replace(case, x=case.x[rows], h=case.h[rows])


# --- the options ----------------------------------------------------------------------------------


def _needed(bench: _Bench, case: Case) -> tuple[Case, list[str]]:
    """The case with every option off that it can fail without, and the names of those that it cannot.

    Once is not enough: an option may be dispensable only after another is off.
    """
    while True:
        needed = []
        for name, simpler in _off(bench, case):
            tried = itertools.chain(simpler, *(_dense(bench, other.layer_config) for other in simpler))
            failing = next((other for other in tried if bench.wrong(other)), None)
            if failing is not None:
                case = failing
                break
            needed.append(name)
        else:
            return case, needed


def _off(bench: _Bench, case: Case) -> Iterator[tuple[str, list[Case]]]:
    """Options that are on, each with the case or the cases without it."""
    config = case.layer_config
    if config.steps > 1:
        yield "step count", [case.having(steps=1)]
    if config.norm != "none":
        yield "norm", [_without(case, ("gain",), norm="none")]
    if config.preconditioner.kind != "identity":
        plain = {"preconditioner": PreconditionerConfig()}
        yield "preconditioner", [_without(case, ("P_d", "P_U", "P_V"), **plain)]
    if isinstance(config, AttentionConfig):
        if config.diagonal != "none":
            yield "diagonal", [_without(case, ("diagonal",), diagonal="none")]
        if config.position != "none":
            name = "rotary" if config.position == "rotary" else "bias"
            yield name, [_without(case, ("to_self", "to_others"), position="none")]
        usual = math.sqrt(config.R)
        if bench.offers("temperature") and config.tau not in (1.0, usual):
            yield "temperature", [case.having(temperature=tau) for tau in (1.0, usual)]
    if config.step_size != 1.0:
        yield "step size", [case.having(step_size=1.0)]


def _without(case: Case, weights: tuple[str, ...], **options: Any) -> Case:
    kept = {name: w for name, w in case.weights.items() if name not in weights}
    return replace(case.having(**options), weights=kept)


def _options(bench: _Bench, case: Case, needed: Sequence[str]) -> Part | None:
    """The option without which the case does not fail, and which side of it."""
    named = " or the ".join(needed)
    because = f"with all other options off it is still wrong, and with the {named} off as well it is right"
    if len(needed) > 2:
        return None
    if len(needed) == 2:
        return Part(" with ".join(needed), because)
    (name,) = needed
    finer = {"diagonal": _diagonal, "bias": _bias, "rotary": _rotary, "step count": _recursion}.get(name)
    return (finer and finer(bench, case)) or Part(name, because)


def _diagonal(bench: _Bench, case: Case) -> Part | None:
    """One token has attention weight 1, so that its update is that of the value path alone."""
    if case.attention.diagonal == "per-head":
        same = case.weights["diagonal"][:1].expand_as(case.weights["diagonal"]).contiguous()
        if not bench.wrong(replace(case, weights={**case.weights, "diagonal": same})):
            return Part("diagonal", "heads of the same diagonal are right, heads of their own are wrong")
    single = list(_each_token(case))
    dense = list(_dense(bench, case.attention, tokens=1))
    if any(bench.wrong(token) for token in (*single, *dense)):
        if _another_diagonal(bench, [case, *_dense(bench, case.attention)]):
            return Part("diagonal", "it does the right thing with another diagonal, in scores and values alike")
        return Part("diagonal, value path", "a single token, whose attention weight is 1, is already wrong")
    if bench.offers("start") and any(bench.wrong(_at_zero(c)) for c in (case, *_dense(bench, case.attention))):
        return Part("diagonal, value path", "at x = 0, where every score is 0, it is wrong")
    if any(bench.wrong(other) for other in (case, *_dense(bench, case.attention))):
        return Part("diagonal, score", "single tokens are right, so that the values are; several are wrong")
    return None


def _another_diagonal(bench: _Bench, cases: Sequence[Case]) -> bool:
    """Whether a multiple of the diagonal, read off one token without W_Q, explains every answer."""
    for case in cases:
        token = next(iter(_each_token(case)))
        alone = replace(token, weights={**case.weights, "W_Q": torch.zeros_like(case.weights["W_Q"])})
        got, due = bench.got(alone), golden(alone) - alone.x
        if got is None or float(due.square().sum()) == 0:
            return False
        factor = float((got * due).sum() / due.square().sum())
        other = replace(case, weights={**case.weights, "diagonal": factor * case.weights["diagonal"]})
        if not bench.equal(bench.got(case), golden(other) - other.x, bench.room(case) + bench.room(other)):
            return False
    return True


def _each_token(case: Case) -> Iterator[Case]:
    for j in range(case.x.shape[1]):
        yield replace(case, x=case.x[:, j : j + 1], h=case.h[:, j : j + 1])


def _bias(bench: _Bench, case: Case) -> Part | None:
    if not bench.offers("start"):
        return None
    if bench.wrong(_at_zero(case)):
        return Part("bias", "at x = 0, where every score is 0 and the bias alone decides, it is wrong")
    return None


def _rotary(bench: _Bench, case: Case) -> Part | None:
    if not bench.offers("start"):
        return None
    dense = list(_dense(bench, case.attention))
    if any(bench.wrong(_at_zero(c)) for c in (case, *dense)):
        return Part("rotary, value path", "at x = 0, where every score is 0, it is wrong")
    return Part("rotary, score", "at x = 0, where every score is 0, it is right")


def _at_zero(case: Case) -> Case:
    return replace(case, x=torch.zeros_like(case.x))


def _recursion(bench: _Bench, case: Case) -> Part | None:
    """Which other number of steps, or which other memory, gives what it gives."""
    steps = case.layer_config.steps
    cases = [bench.rounded(c) for c in (case, *_dense(bench, case.layer_config)) if bench.wrong(c)]
    answers = [(c, bench.got(c)) for c in cases]
    for other in [n for n in range(1, steps + 3) if n != steps]:
        if all(bench.equal(got, golden(c.having(steps=other)) - c.x, bench.room(c)) for c, got in answers):
            return Part("step count", f"where T = {steps} steps are due it gives what {other} give")
    if all(bench.equal(got, _reused(c) - c.x, bench.room(c)) for c, got in answers):
        return Part("memory", "it gives what a layer gives that reads its own output at every step")
    return Part("recursion", "one step is right, several are wrong")


def _reused(case: Case) -> Tensor:
    x, h = case.x, case.h
    for _ in range(case.layer_config.steps):
        x = h = golden(replace(case, x=x, h=h).having(steps=1))
    return x


# --- the bare layer -------------------------------------------------------------------------------


def _bare_attention(bench: _Bench, case: Case) -> Part | None:
    case = _generic(bench, case)
    config = case.attention
    cases = [case, *_dense(bench, config)]
    if (found := _residual(bench, cases) or _swapped(bench, cases, "W_Q", "W_K")) is not None:
        return found
    singles = [token for c in cases for token in _each_token(c)]
    if any(bench.wrong(token) for token in singles):
        return _values(bench, [s for s in singles if bench.wrong(s)])
    if bench.offers("start"):
        still = next((c for c in map(_at_zero, cases) if bench.wrong(c)), None)
        if still is not None:
            return _uniform(bench, still)
    if (tau := _temperature(bench, cases)) is not None:
        return tau
    if any(bench.wrong(_of_one_token(c)) for c in cases):
        return None  # weights that sum to 1 make no difference there: it is not they alone
    if not bench.offers("start"):
        return Part("attention weights", "single tokens, whose attention weight is 1, are right; several are wrong")
    if all(bench.wrong(c) for c in cases[1:]):
        return Part("score", "it is right at one token and at x = 0, where no score counts, and wrong elsewhere")
    return Part("attention weights", "single tokens, whose attention weight is 1, are right; several are wrong")


def _generic(bench: _Bench, case: Case) -> Case:
    """A dense case of sizes that hide nothing, if one of those fails too; else the case as it is."""
    config = case.layer_config
    if isinstance(config, AttentionConfig):
        sizes: dict[str, Any] = {"dim": 6, "heads": 2, "head_dim": 3}
        if config.temperature == math.sqrt(config.R):
            sizes["temperature"] = math.sqrt(3)
    else:
        sizes = {"dim": 5, "hidden": 4}
    return next((dense for dense in _dense(bench, replace(config, **sizes)) if bench.wrong(dense)), case)


def _residual(bench: _Bench, cases: Sequence[Case]) -> Part | None:
    """Weights of zeros make no update."""
    for case in cases:
        still = replace(case, weights={name: torch.zeros_like(w) for name, w in case.weights.items()})
        got = bench.got(still)
        if got is not None and torch.equal(got + still.x, still.x.float().double()) and bool((got != 0).any()):
            return Part("dtype", "with weights of zeros x comes back rounded to float32")
        if got is not None and not bench.equal(got, torch.zeros_like(got), bench.room(still)):
            return Part("residual", "with weights of zeros, of which no update can come, x is not left where it is")
    return None


def _swapped(bench: _Bench, cases: Sequence[Case], first: str, second: str) -> Part | None:
    """Whether it does the right thing with two weights in each other's place."""
    for case in cases:
        w = case.weights
        other = replace(case, weights={**w, first: w[second], second: w[first]})
        due, room = golden(other) - other.x, bench.room(case) + bench.room(other)
        if not bench.equal(bench.got(case), due, room) or bench.equal(golden(case) - case.x, due, room):
            return None
    return Part(f"{first} and {second}", f"it does the right thing with {first} and {second} in each other's place")


def _of_one_token(case: Case) -> Case:
    """The same with a memory whose tokens are all the first one."""
    h = case.h[:, :1].expand_as(case.h).contiguous()
    return replace(case, h=h, x=h if torch.equal(case.x, case.h) else case.x)


def _uniform(bench: _Bench, case: Case) -> Part | None:
    """At x = 0 every token is the mean of those it may see: which ones did it see?"""
    moved = replace(case, x=case.h + 1.0)
    at_zero, elsewhere = bench.got(case), bench.got(moved)
    due = golden(case) - (golden(moved) - moved.x)
    shows = bool((due.abs() > 10 * bench.room(case)).any())
    if shows and elsewhere is not None and at_zero is not None and bench.equal(at_zero, elsewhere, bench.room(case)):
        return Part("score", "the update is the same wherever x is: the queries do not come from x")
    if at_zero is None:
        return None
    J, seen = case.x.shape[1], []
    values = torch.einsum("krd,kre,bje->bjd", case.weights["W_Q"], case.weights["W_K"], case.h)  # (B, J, D)
    room = bench.room(case)
    for i in range(J):
        subsets = itertools.chain.from_iterable(itertools.combinations(range(J), n) for n in range(J + 1))
        for subset in subsets:
            mean = values[:, list(subset)].mean(1) if subset else torch.zeros_like(values[:, 0])
            if bench.equal(at_zero[:, i], case.attention.step_size * mean, room[:, i]):
                seen.append(subset)
                break
        else:
            if bench.wrong(_of_one_token(case)):
                return None
            return Part("attention weights", "at x = 0, where every score is 0, some token is no mean of others")
    if all(set(subset) == set(range(i + 1)) for i, subset in enumerate(seen)):
        return None
    listed = "; ".join(f"token {i} sees {list(subset)}" for i, subset in enumerate(seen))
    return Part("mask", f"at x = 0, where every score is 0, {listed}")


def _temperature(bench: _Bench, cases: Sequence[Case]) -> Part | None:
    """Whether another temperature, the same everywhere, explains everything."""
    config = cases[0].attention
    K, R, D = config.heads, config.R, config.dim
    usual = math.sqrt(R)
    others = {usual, 1.0, math.sqrt(D), config.tau * math.sqrt(D / R), config.tau**2, 1 / config.tau}
    others |= {config.tau * factor for factor in (2.0, 0.5, math.sqrt(K), 1 / math.sqrt(K), usual, 1 / usual)}
    answers = [(c, bench.got(c)) for c in cases if bench.wrong(c)]
    for tau in sorted(others - {config.tau}):
        if all(bench.equal(got, golden(c.having(temperature=tau)) - c.x, bench.room(c)) for c, got in answers):
            return Part("temperature", f"where tau = {config.tau:.4g} is due it gives what {tau:.4g} gives")
    return None


def _values(bench: _Bench, singles: Sequence[Case]) -> Part | None:
    """One token, one row r of one head: the update is eta W_Q[r] (W_K[r] . h)."""
    if singles[0].attention.dim < 2 or not all(_linear_in_memory(bench, case) for case in singles[:4]):
        return None  # in one dimension everything points along everything
    heads = singles[0].attention.heads
    rows = [(case, k, r) for case in singles[:4] for k in range(heads) for r in range(case.attention.R)]
    return _along_rows(
        bench, rows, "W_Q", "W_K", lambda c, k, r: c.weights["W_K"][k, r] @ c.h[0, 0], "value path", "sum over heads"
    )


def _bare_mlp(bench: _Bench, case: Case) -> Part | None:
    """The activation if another one is right; else one unit m, eta V[m] (W[m] . h) sigma(V[m] . x)."""
    case = _generic(bench, case)
    config = case.mlp
    several = [case, *_dense(bench, config)]
    if (found := _residual(bench, several) or _swapped(bench, several, "V", "W")) is not None:
        return found
    dense = [c for c in _dense(bench, config, tokens=1) if bench.wrong(c)]
    others = [a for a in ("silu", "relu", "tanh", "identity", "gelu", "sigmoid") if a != config.activation]
    others = [a for a in others if bench.offers(f"activation:{a}")][:3]
    sound = [a for a in others if not any(bench.wrong(c.having(activation=a)) for c in (case, *dense))]
    if others and sound == others:
        return Part("activation", f"with {config.activation} it is wrong, with {', '.join(others)} it is right")
    if not dense or sound or config.dim < 2:
        return None
    if not all(_linear_in_memory(bench, c) for c in dense):
        return _gate(bench, dense)
    rows = [(c, None, m) for c in dense for m in range(min(config.hidden, 4))]
    return _along_rows(bench, rows, "V", "W", lambda c, _, m: _unit(c, m), "gate", "sum over units")


def _unit(case: Case, m: int) -> Tensor:
    """(W[m] . h) sigma(V[m] . x), of the golden: the update is along V[m]."""
    update = (golden(case) - case.x)[0, 0] / case.mlp.step_size
    v = case.weights["V"][m]
    return (update @ v) / (v @ v)


def _gate(bench: _Bench, cases: Sequence[Case]) -> Part | None:
    """Whether the roles of V x and W h are exchanged: linear in x, that is, and not in h."""
    for case in cases:
        W, V = case.weights["W"], case.weights["V"]
        got = bench.got(case)
        swapped = replace(case, x=case.h, h=case.x, weights={"V": W, "W": V})
        inner = golden(swapped) - swapped.x  # W^T ((V x) sigma(W h)) eta
        if got is None or W.shape[0] > W.shape[1] or not _same_hidden(got, inner, V, W, bench.room(case)):
            return None
    return Part("gate", "it gives what it would give if the memory's projection were activated and not the state's")


def _same_hidden(got: Tensor, inner: Tensor, V: Tensor, W: Tensor, room: Tensor) -> bool:
    """Whether got = V^T z and inner = W^T z have the same z, up to the room and the conditioning of V and W."""
    z = torch.linalg.lstsq(W.T, inner[0, 0, :, None]).solution
    return bool(((V.T @ z)[:, 0] - got[0, 0]).abs().max() <= 1e3 * room.max() * torch.linalg.cond(W))


def _linear_in_memory(bench: _Bench, case: Case) -> bool:
    """Whether one token's update, x held, doubles and adds as the memory does; else no row tells anything."""
    if not bench.offers("start"):
        return False
    other = replace(case, h=3.0 - 2.0 * case.h)
    both = replace(case, h=case.h + other.h)
    answers = [bench.got(c) for c in (case, other, both)]
    if any(answer is None for answer in answers):
        return False
    first, second, summed = (answer for answer in answers if answer is not None)
    room = bench.room(case) + bench.room(other) + bench.room(both)
    return bool(((first + second - summed).abs() <= room).all())


def _along_rows(
    bench: _Bench,
    rows: Sequence[tuple[Case, int | None, int]],
    along: str,
    inner: str,
    factor: Callable[[Case, Any, int], Tensor],
    inner_part: str,
    sum_part: str,
) -> Part | None:
    """With one row of `along` not 0 the update is that row times a number that `inner` makes."""
    ratios: list[float] = []
    noise = 0.0  # how far a ratio may be off
    astray, found, paired, steady = 0, 0, False, True
    for case, k, r in rows:
        w = torch.zeros_like(case.weights[along])
        at = (r,) if k is None else (k, r)
        w[at] = case.weights[along][at]
        alone = replace(case, weights={**case.weights, along: w})
        got, row = bench.got(alone), w[at]
        if got is None:
            return None
        room = bench.room(alone)[0, 0]
        update, due = got[0, 0] / case.layer_config.step_size, factor(alone, k, r)
        length = float(row @ row)
        if length == 0 or abs(float(due)) <= 1e4 * float(room.max()):
            continue
        noise = max(noise, 8 * float(room.max()) / abs(float(due)) / math.sqrt(length))
        found += 1
        number = float(update @ row) / length
        if bool(((update - number * row).abs() > 4 * room / case.layer_config.step_size).any()):
            astray += 1
        ratios.append(number / float(due))
        paired = paired or (abs(ratios[-1] - 1) > 1e-6 and _is_another_row(case, along, inner, number))
        steady = steady and inner_part == "gate" and _proportional(bench, alone, r, number)
    if not found:
        return None
    if astray == found:
        return Part("output projection" if along == "W_Q" else "down projection",
                    f"with one row of {along} that is not 0, the update does not point along that row")  # fmt: skip
    if astray:
        return None
    first = ratios[0]
    same = all(abs(ratio - first) <= 2 * noise for ratio in ratios)
    if same and abs(first - 1) <= noise:
        return Part(sum_part, f"each row of {along} alone is right, all of them together are wrong")
    heads = 1 if along == "V" else rows[0][0].attention.heads
    if same and heads > 1 and abs(first * heads - 1) <= heads * noise:
        return Part(sum_part, f"each of {heads} heads alone gives {first:.6g} times what is due")
    if same:
        return Part("scale of the update", f"every row of {along} alone gives {first:.6g} times what is due")
    if paired:
        return Part("linear path", f"rows of {along} do not go with the rows of {inner} of the same index")
    if inner_part == "gate" and steady and all(abs(ratio) > noise and abs(ratio - 1) > noise for ratio in ratios):
        return Part("activation", "the update is along V and proportional to W h; what V x is made into is wrong")
    if all(abs(ratio - 1) > max(noise, 1e-6) for ratio in ratios):
        return Part(inner_part, f"the update points along the row of {along}, but {inner} does not make its length")
    return Part("linear path", f"some rows of {along} alone are right, others are not")


def _is_another_row(case: Case, along: str, inner: str, number: float) -> bool:
    """Whether the number is what some other row of the inner weight makes of the memory."""
    if along != "W_Q":
        return False
    made = case.weights[inner] @ case.h[0, 0]
    return bool(((made - number).abs() <= 1e-9 * made.abs()).any())


def _proportional(bench: _Bench, case: Case, m: int, number: float) -> bool:
    """Whether a hidden unit's number goes with W[m] . h as the memory changes."""
    other = replace(case, h=3.0 - 2.0 * case.h)
    got, row = bench.got(other), case.weights["V"][m]
    if got is None:
        return False
    before, after = (float(case.weights["W"][m] @ c.h[0, 0]) for c in (case, other))
    now = float(got[0, 0] / case.layer_config.step_size @ row) / float(row @ row)
    return abs(now * before - number * after) <= 1e-9 * (abs(now * before) + abs(number * after))
