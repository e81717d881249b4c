"""The paper's statements about language models, judged by what a study found, with rules fixed here beforehand.

Comparisons are of bits per byte at equal tokens, paired by seed. Those of a study are one family: a result that
Holm's correction makes insignificant is undecided. Each statement leads to one or more expectations; the rules of
`cemverify.results.statistics.side_of` say whether a comparison meets one. A model that is better by less than the
margin is both better and close. A statement agrees if all its expectations do, disagrees if one does, and is
otherwise undecided, also if a run of one of its models diverged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cemverify.results.numbers import shown_ratio, shown_verdict
from cemverify.results.statistics import Expected, PairedComparison, correct, side_of, spread
from synthetic.studies.engine.comparisons import MARGIN, family
from synthetic.studies.engine.readings import Reading, Statement
from synthetic.studies.engine.tuning import StudyState
from synthetic.studies.paper.rows import ALIBI, ATTENTION, FULL, MLP, ROTARY, Key
from synthetic.studies.paper.summary import Optimum, between, tuned
from synthetic.training.frames import PRECONDITIONERS


@dataclass(frozen=True)
class Expectation:
    """One model against another."""

    model: Key
    kind: Expected  # what the paper claims
    base: Key


(_T1, _T2), (_MLP1, _MLP2) = ATTENTION, MLP

EXPECTATIONS: Mapping[str, Sequence[tuple[str, Sequence[Expectation]]]] = {
    "replace-attention": (
        (
            "CEM attention at T = 1 is close to Llama's, with half of its parameters",
            (Expectation(_T1, "close", ALIBI),),
        ),
        ("CEM attention at T = 2 is better than Llama's", (Expectation(_T2, "better", ALIBI),)),
    ),
    "replace-mlp": (("CEM MLPs are somewhat worse than Llama's", (Expectation(_MLP1, "worse", ROTARY),)),),
    "recursion": (
        *(
            (
                f"{layer}: T = 2 improves on T = 1",
                tuple(Expectation(replace(deep, P=P), "better", replace(flat, P=P)) for P in PRECONDITIONERS),
            )
            for layer, (flat, deep) in (("attention", ATTENTION), ("MLP", MLP))
        ),
        ("CEM attention at T = 2 is better than Llama's", (Expectation(_T2, "better", ALIBI),)),
        (
            "CEM MLPs are somewhat worse than Llama's, and the gap narrows at T = 2",
            (Expectation(_MLP1, "worse", ROTARY), Expectation(_MLP2, "better", _MLP1)),
        ),
        (
            "preconditioners help little",
            tuple(
                Expectation(replace(key, P=P), "close", replace(key, P="identity"))
                for key in (*ATTENTION, *MLP)
                for P in PRECONDITIONERS[1:]
            ),
        ),
    ),
    "diagonal": (
        (
            "attention with a diagonal in A_k is better than without",
            (Expectation(_T1, "better", replace(_T1, diagonal="none")),),
        ),
        (
            "a diagonal shared by the heads is about as good as one per head",
            (Expectation(_T1, "close", replace(_T1, diagonal="per-head")),),
        ),
    ),
    "reuse": (
        (
            "using an attention layer twice in a row does not help, unlike the recursion inside it",
            (
                Expectation(replace(ALIBI, times=2), "no better", ALIBI),
                Expectation(replace(_T1, times=2), "no better", _T1),
                Expectation(_T2, "better", _T1),
            ),
        ),
        (
            "using an MLP twice in a row does not help, unlike the recursion inside it",
            (
                Expectation(replace(ROTARY, times=2), "no better", ROTARY),
                Expectation(replace(_MLP1, times=2), "no better", _MLP1),
                Expectation(_MLP2, "better", _MLP1),
            ),
        ),
    ),
}


def read(study: str, state: StudyState) -> list[Statement]:
    """The statements on the study with this name."""
    if study == "learning-rate":
        optima = {key: tuned(state, key) for key in (FULL, ROTARY, ALIBI)}
        both = [between(*(_bits(optima[key]) for key in (FULL, base))) for base in (ROTARY, ALIBI)]
        return [_tuned(optima, base, c) for base, c in zip((ROTARY, ALIBI), correct(both), strict=True)]
    keys = dict.fromkeys((e.model, e.base) for _, es in EXPECTATIONS[study] for e in es)
    # if a run of a model diverged, its comparisons decide nothing and are not counted in the correction
    pairs = [replace(pair, comparison=None) if pair.diverged else pair for pair in state.compared(keys)]
    compared = {pair.keys: pair for pair in family(pairs)}
    statements = []
    for text, expectations in EXPECTATIONS[study]:
        over = [compared[e.model, e.base] for e in expectations]
        ratios = "; ".join(f"{pair.model} / {pair.base}: {_words(pair.comparison)}" for pair in over)
        readings = {reading_of(e.kind, pair.comparison) for e, pair in zip(expectations, over, strict=True)}
        reading: Reading = "agrees" if readings == {"agrees"} else "undecided"
        statements.append(Statement(text, ratios, "disagrees" if "disagrees" in readings else reading))
    return statements


_READINGS: Mapping[str, Reading] = {"for": "agrees", "against": "disagrees", "neither": "undecided"}


def reading_of(kind: Expected, comparison: PairedComparison | None) -> Reading:
    """Whether a comparison meets an expectation of this kind; a comparison that could not be made is None."""
    if comparison is None or (comparison.conclusion == "inconclusive" and kind != "close"):
        return "undecided"
    low, high, equivalent = comparison.ratio.low, comparison.ratio.high, comparison.conclusion == "equivalent"
    if comparison.conclusion == "too few" or low is None or high is None:
        return "undecided"
    return _READINGS[side_of(kind, low, high, MARGIN, equivalent=equivalent)]


def _bits(optima: Sequence[Optimum]) -> list[float]:
    return [optimum.bits for optimum in optima]


def _tuned(optima: Mapping[Key, Sequence[Optimum]], base: Key, comparison: PairedComparison | None) -> Statement:
    """Agrees if full CEM is close to or better than Llama, each at its own best rate, seed by seed."""
    text = f"(our question) full CEM at T = 2 is close to {base.title} or better, each at its best learning rate"
    if comparison is None:
        return Statement(text, "too many runs diverged", "undecided")
    figures = "; ".join(
        f"{key.title}: {spread(_bits(optima[key])).mean:.4f} bits at {spread([o.rate for o in optima[key]]).mean:.2g}"
        f"{' (edge)' if any(o.at_edge for o in optima[key]) else ''}"
        for key in (FULL, base)
    )
    better = comparison.conclusion in ("better", "equivalent")
    reading: Reading = "agrees" if better else reading_of("close", comparison)
    return Statement(text, f"{figures}; {_words(comparison)}", reading)


def _words(comparison: PairedComparison | None) -> str:
    if comparison is None:
        return "a run diverged"
    return f"{shown_ratio(comparison)}, {shown_verdict(comparison.conclusion, comparison.n)}"
