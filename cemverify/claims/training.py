"""Claims about training: what the paper's experiments report, read against the studies of the bench.

Each study writes what it measured beside its page, in docs/results; the verdicts are computed from these files, by
the rules of `readings`, and change when a study is made again. Statements that no study here measures say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cemverify.claims.arguments import Argument, Finding, Side, Statement
from cemverify.claims.base import Attribution, Claim, arxiv, draft, ours
from cemverify.claims.readings import BestRate, Expected, MeasuredRatio, Readings, Results, side_of

_LANGUAGE = "python -m synthetic language study"
_RECURSION = "python -m synthetic recursion --preset standard"
_ALIBI, _ROTARY = "Llama, ALiBi", "Llama, RoPE"


@dataclass(frozen=True)
class Expectation:
    """One model against another, as the paper has it."""

    model: str
    expected: Expected
    baseline: str
    on: str = ""


@dataclass(frozen=True)
class Measured:
    """What one study says of an expectation."""

    readings: Readings
    expectation: Expectation
    asks_the_statement = True

    def gather(self, statement: Statement) -> Finding:  # noqa: ARG002  (the file of readings is asked)
        e = self.expectation
        ratio = self.readings.ratio(e.model, e.baseline, e.on)
        side = side_of(e.expected, ratio, self.readings.margin)
        return _finding(self.readings, side, f"{e.model} / {e.baseline}{_on(e.on)}: {_told(ratio)}, {e.expected}?")


@dataclass(frozen=True)
class Usually:
    """Expected on most of what a study was trained on, and the contrary on none of it."""

    readings: Readings
    expectations: Sequence[Expectation]
    asks_the_statement = True

    def gather(self, statement: Statement) -> Finding:  # noqa: ARG002  (the file of readings is asked)
        sides: list[Side] = []
        told = []
        for e in self.expectations:
            ratio = self.readings.ratio(e.model, e.baseline, e.on)
            sides.append(side_of(e.expected, ratio, self.readings.margin))
            told.append(f"{e.on}: {_told(ratio)}")
        first = self.expectations[0]
        half = len(sides) / 2
        side: Side = "neither"
        if sides.count("for") > half and "against" not in sides:
            side = "for"
        elif sides.count("against") > half:
            side = "against"
        return _finding(self.readings, side, f"{first.model} / {first.baseline}: {'; '.join(told)}; usually better?")


@dataclass(frozen=True)
class HigherRate:
    """Whether a model's best learning rate is above another's; a rate at the edge of those tried decides nothing."""

    readings: Readings
    model: str
    baseline: str
    asks_the_statement = True

    def gather(self, statement: Statement) -> Finding:  # noqa: ARG002  (the file of readings is asked)
        best = {b.model: b for b in self.readings.best_rates}
        one, other = best.get(self.model), best.get(self.baseline)
        side: Side = "neither"
        if one is not None and other is not None and not (one.at_edge or other.at_edge):
            side = "for" if one.rate > other.rate else "against"
        told = f"best rates: {self.model} {_rate(one)}, {self.baseline} {_rate(other)}"
        return _finding(self.readings, side, f"{told}; higher?")


def claims(results: Results) -> Iterator[Claim]:
    """The paper's reports, and what the studies say of them."""
    yield from _recursion_claims(results)
    yield from _language_claims(results)


def _recursion_claims(results: Results) -> Iterator[Claim]:
    studies = results.get("recursion", ())
    yield _claim(
        "18-depth-two-synthetic",
        draft("synthetic study"),
        "On functions drawn from Gaussian processes, a recursive CEM MLP is usually better at T = 2 than at 1.",
        "RMSE(T = 2) < RMSE(T = 1)",
        "Plain CEM, each depth at its best learning rate, on the same functions and batches.",
        "expect a second step to help where the model is small and its target smooth",
        [
            Usually(r, [Expectation("T = 2", "better", "T = 1", prior) for prior in r.trained_on])
            for r in studies
            if r.trained_on  # one model alone has no ratios
        ],
        _RECURSION,
    )
    for id_, prior, best, words in (
        ("18-depth-stationary", "rbf", 4, "With an RBF kernel T = 4 is the best depth and T = 8 slightly worse."),
        ("18-depth-non-stationary", "warped", 8, "On a non-stationary process T = 8 is the best depth."),
    ):
        others = [T for T in (1, 2, 4, 8) if best != T]
        yield _claim(
            id_,
            draft("synthetic study"),
            words,
            f"RMSE({best}) < RMSE(T) for T = {', '.join(map(str, others))}",
            "The paper gives neither kernel parameters nor sizes: the same question, not the same figures. Depth "
            "also "
            "scales the step, so that the learning rate is tuned at each depth.",
            "tune T on held-out data; no depth is best in general",
            [Measured(r, Expectation(f"T = {best}", "better", f"T = {T}", prior)) for r in studies for T in others],
            _RECURSION,
        )


def _language_claims(results: Results) -> Iterator[Claim]:
    def measured(study: str, *expectations: Expectation) -> list[Argument]:
        return [Measured(r, e) for r in results.get(f"language-{study}", ()) for e in expectations]

    attention, mlp = "CEM attention, T = ", "CEM MLP, T = "
    yield _claim(
        "18-attention-one-step",
        draft(
            "abstract; Fig. 2a",
            "The form of transformer components within CEM suggests a weight-sharing scheme in both attention "
            "and MLP "
            "blocks: we show that this yields parameter-efficient layers with negligible performance loss.",
            "sentence",
        ),
        "CEM attention at T = 1 is close to Llama's, with half of its parameters.",
        "loss(CEM attention, T = 1) / loss(Llama) within the margin of equivalence",
        "Llama with its attention alone replaced, both with ALiBi, at equal tokens and one learning rate.",
        "compare at equal parameters, too: widen the MLP by what attention saved",
        measured("replace-attention", Expectation(f"{attention}1", "close", _ALIBI)),
        f"{_LANGUAGE} replace-attention",
    )
    yield _claim(
        "18-attention-two-steps",
        draft("Fig. 2a, 2c"),
        "CEM attention at T = 2 is better than Llama's.",
        "loss(CEM attention, T = 2) < loss(Llama)",
        "As at T = 1. A second step costs about half as many operations again (§14).",
        "compare at equal FLOPs as well",
        measured("replace-attention", Expectation(f"{attention}2", "better", _ALIBI)),
        f"{_LANGUAGE} replace-attention",
    )
    yield _claim(
        "18-mlp",
        draft("Fig. 2b, 2d"),
        "CEM MLPs are somewhat worse than Llama's, and the gap narrows at T = 2.",
        "loss(CEM MLP, T = 1) > loss(CEM MLP, T = 2) > loss(Llama)",
        "Llama with its MLP alone replaced, at equal width, both with rotary positions.",
        "at equal parameters, M' = 1.5 M, the gap may be gone",
        measured("recursion", Expectation(f"{mlp}1", "worse", _ROTARY), Expectation(f"{mlp}2", "better", f"{mlp}1")),
        f"{_LANGUAGE} recursion",
    )
    yield _claim(
        "18-depth-two-language",
        draft("Fig. 2c, 2d"),
        "In language modelling T = 2 improves on T = 1.",
        "loss(T = 2) < loss(T = 1), each at its own best learning rate",
        "Attention, the MLP or both replaced; two steps of half the size. The experiments with one learning rate for "
        "all rows are not asked: their embeddings are so small beside the first step that the second starts far from "
        "the memory, which costs T = 2 up to 3 %.",
        "keep the stream longer than a step: embeddings of N(0, 1), without weight decay, and steps of 1/T",
        _tuned(results, Expectation("T = 2, eta 1/2", "better", "T = 1")),
        f"{_LANGUAGE.removesuffix(' study')} second-step",
    )
    yield _claim(
        "18-depth-two-length",
        ours("T = 2 against T = 1"),
        "What T = 2 gains on T = 1 is more than a single step of twice the length gains.",
        "loss(T = 2) < loss(T = 1, 2 eta), each at its own best learning rate",
        "A longer update can help by itself, without recursion. The paper reports no such control.",
        "compare with T = 1 at a longer step before you credit the recursion",
        _tuned(results, Expectation("T = 2, eta 1/2", "better", "T = 1, eta 2")),
        f"{_LANGUAGE.removesuffix(' study')} second-step",
    )
    yield _claim(
        "18-preconditioners",
        draft("Fig. 2c, 2d", "little effect at T=1 but clear improvements at T=2"),
        "Learned preconditioners have little effect at T = 1 and clearly improve T = 2.",
        "loss(P) / loss(identity): within the margin at T = 1, below 1 at T = 2",
        "Diagonal, and diagonal plus low rank, against none, in attention and in the MLP.",
        "leave them out at T = 1",
        measured(
            "recursion",
            *(
                Expectation(f"{layer}{T}{P}", "close" if T == 1 else "better", f"{layer}{T}, identity P")
                for layer in (attention, mlp)
                for T in (1, 2)
                for P in ("", ", low rank P")
            ),
        ),
        f"{_LANGUAGE} recursion",
    )
    yield _claim(
        "18-best-rate",
        draft("Sec. 4.3, Fig. 3a"),
        "Full CEM at T = 2 is slightly better than Llama, each at its own best learning rate.",
        "min over rates loss(full CEM) < min over rates loss(Llama)",
        "Five rates, the optimum of each seed by Akima interpolation; Llama with rotary and with ALiBi positions.",
        "tune the rate of each model; one rate for all favours whichever it was found for",
        measured(
            "learning-rate",
            *(Expectation("full CEM, T = 2, tuned", "better", f"{base}, tuned") for base in (_ROTARY, _ALIBI)),
        ),
        f"{_LANGUAGE} learning-rate",
    )
    yield _claim(
        "18-higher-rates",
        draft("Sec. 4.3, Fig. 3a"),
        "CEM favours higher learning rates than Llama.",
        "argmin over rates loss(full CEM) > argmin over rates loss(Llama)",
        "The same study; a best rate that is the largest tried says only that it may be higher still.",
        "extend the grid until no optimum is at its edge",
        [
            HigherRate(r, "full CEM, T = 2", base)
            for r in results.get("language-learning-rate", ())
            for base in (_ROTARY, _ALIBI)
        ],
        f"{_LANGUAGE} learning-rate",
    )
    yield _claim(
        "18-diagonal-matters",
        draft("Fig. 3b"),
        "Attention with a diagonal in A_k is better than without.",
        "loss(diagonal) < loss(no diagonal), T = 1, diagonal preconditioner",
        "With the exact gradient of a shared diagonal; the printed one stands in the scores only (7-score-only).",
        "its exact gradient costs a quarter more than Llama's attention (14-diagonal-cost)",
        measured("diagonal", Expectation(f"{attention}1", "better", f"{attention}1, no diagonal")),
        f"{_LANGUAGE} diagonal",
    )
    yield _claim(
        "18-diagonal-shared",
        draft("Fig. 3b"),
        "A diagonal shared by the heads is about as good as one per head.",
        "loss(shared) / loss(per head) within the margin of equivalence",
        "Both with their exact gradients, of which the one per head costs several times as many operations (§14).",
        "share it",
        measured("diagonal", Expectation(f"{attention}1", "close", f"{attention}1, a diagonal per head")),
        f"{_LANGUAGE} diagonal",
    )
    yield _claim(
        "18-plain-reuse",
        draft("Fig. 3c, 4"),
        "Using a layer twice in a row, as a whole, does not help, unlike the recursion inside it.",
        "loss(layer twice) >= loss(layer once) > loss(T = 2), attention and MLP",
        "CEM's layers once, twice and with two steps inside, each at its own best rate; Llama's once and twice, at "
        "one rate (study reuse). The maps differ (12-not-reuse).",
        "compare at equal operations",
        [
            *measured(
                "reuse",
                Expectation("Llama attention twice", "no better", _ALIBI),
                Expectation("Llama MLP twice", "no better", _ROTARY),
            ),
            *_tuned(
                results,
                Expectation("T = 1, twice", "no better", "T = 1"),
                Expectation("T = 2, eta 1/2", "better", "T = 1, twice"),
            ),
        ],
        f"{_LANGUAGE.removesuffix(' study')} second-step",
    )
    yield _claim(
        "18-trains-stably",
        arxiv(
            "abstract",
            "Despite their constrained parameterizations, these layers train stably and can match corresponding "
            "Transformer baselines.",
        ),
        "A full CEM model matches its Llama baseline.",
        "loss(full CEM, T = 2) / loss(Llama) within the margin of equivalence, or below it, each at its best rate",
        'Read as: close or better. The sentence says "can", at the hundred-million-parameter scale.',
        "at small scales expect a gap",
        measured(
            "learning-rate",
            *(Expectation("full CEM, T = 2, tuned", "no worse", f"{base}, tuned") for base in (_ROTARY, _ALIBI)),
        ),
        f"{_LANGUAGE} learning-rate",
    )
    yield _claim(
        "18-depth-unstable",
        draft("text on recursion", "and leads to OOM"),
        "Training with three or more recursion steps is unstable, and runs out of memory.",
        "T >= 3: the loss diverges or spikes",
        "No study here trains language models deeper than two steps. The smoke run's model with T = 3 kept a finite "
        "loss, and the regressors of the recursion study train at T = 8; neither is the paper's case. The memory of "
        "T steps is a matter of implementation: keys are shared, and steps can be recomputed.",
        "recompute the steps in the backward pass; put RMSNorm inside (7-norm-monotone, 17-diverges)",
        [],
        f"{_LANGUAGE} recursion --size 86M",
    )
    yield _claim(
        "18-sign-moved",
        draft("App. B"),
        "Models whose gates' signs are moved inside the activation, as in App. B, train as well.",
        "loss(sign moved) against loss(CEM MLP)",
        "No study here trains them. What is known of their energy stands in 10-convex to 10-cccp.",
        "only a monotone activation keeps their promise of descent",
        [],
        "",
    )


def _tuned(results: Results, *expectations: Expectation) -> list[Argument]:
    """What the studies in which every row has its own learning rate say, those that have the rows."""
    return [
        Measured(readings, e)
        for layers in ("attention", "mlp", "full")
        for readings in results.get(f"second-step-{layers}", ())
        for e in expectations
        if readings.ratio(e.model, e.baseline) is not None
    ]


def _claim(
    id_: str,
    said: Attribution,
    statement: str,
    formula: str,
    finding: str,
    advice: str,
    arguments: Sequence[Argument],
    study: str,
) -> Claim:
    return Claim(id_, "training", said, statement, formula, finding, advice, arguments=arguments, study=study)


def _finding(readings: Readings, side: Side, told: str) -> Finding:
    word = {"for": "agrees", "against": "disagrees", "neither": "inconclusive"}[side]
    return Finding(side, f"{told} {word}", (readings.recipe,), True, kind="study", scale=readings.scale)


def _told(ratio: MeasuredRatio | None) -> str:
    if ratio is None:
        return "not compared"
    interval = "" if ratio.interval95 is None else f" [{ratio.interval95[0]:.4f}, {ratio.interval95[1]:.4f}]"
    return f"{ratio.mean:.4f}{interval}"


def _rate(best: BestRate | None) -> str:
    return "unknown" if best is None else f"{best.rate:.2g}{' (edge)' if best.at_edge else ''}"


def _on(prior: str) -> str:
    return f" on {prior}" if prior else ""
