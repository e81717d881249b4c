"""The paper's statements about language models, read against what a study found, by rules fixed here beforehand.

A comparison is of bits per byte at equal tokens, paired by seed. Those of a study are one family: a side that is lost
when its p-values are corrected by Holm's method counts as undecided. Each statement leads to one or more
expectations, each of which a comparison meets by the rules of `cemverify.results.statistics.side_of`. A model that is
better by less than the margin is both better and close. A statement agrees if all its expectations do, disagrees if
one does, and is undecided otherwise. A statement about a model of which a run diverged is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cemverify.results.numbers import shown_ratio, shown_verdict
from cemverify.results.statistics import Expected, PairedComparison, correct, side_of, spread
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.engine.statements import Reading, Statement
from synthetic.studies.paper.rows import ALIBI, FULL, ROTARY, attention_name, mlp_name
from synthetic.studies.paper.summary import Optimum, Summed, between, tuned
from synthetic.training.frames import PRECONDITIONERS


@dataclass(frozen=True)
class Expectation:
    """One model against another."""

    # name, base: of the two rows
    name: str
    kind: Expected  # what is claimed of the first
    base: str


_T1, _T2 = attention_name(1), attention_name(2)

EXPECTATIONS: Mapping[str, Sequence[tuple[str, Sequence[Expectation]]]] = {
    "replace-attention": (
        (
            "CEM attention at T = 1 is close to Llama's, with half of its parameters",
            (Expectation(_T1, "close", ALIBI),),
        ),
        ("CEM attention at T = 2 is better than Llama's", (Expectation(_T2, "better", ALIBI),)),
    ),
    "replace-mlp": (("CEM MLPs are somewhat worse than Llama's", (Expectation(mlp_name(1), "worse", ROTARY),)),),
    "recursion": (
        *(
            (
                f"{layer}: T = 2 improves on T = 1",
                tuple(Expectation(name(2, P), "better", name(1, P)) for P in PRECONDITIONERS),
            )
            for layer, name in (("attention", attention_name), ("MLP", mlp_name))
        ),
        ("CEM attention at T = 2 is better than Llama's", (Expectation(_T2, "better", ALIBI),)),
        (
            "CEM MLPs are somewhat worse than Llama's, and the gap narrows at T = 2",
            (Expectation(mlp_name(1), "worse", ROTARY), Expectation(mlp_name(2), "better", mlp_name(1))),
        ),
        (
            "preconditioners help little",
            tuple(
                Expectation(name(T, P), "close", name(T, "identity"))
                for name in (attention_name, mlp_name)
                for T in (1, 2)
                for P in PRECONDITIONERS[1:]
            ),
        ),
    ),
    "diagonal": (
        (
            "attention with a diagonal in A_k is better than without",
            (Expectation(_T1, "better", attention_name(1, diagonal="none")),),
        ),
        (
            "a diagonal shared by the heads is about as good as one per head",
            (Expectation(_T1, "close", attention_name(1, diagonal="per-head")),),
        ),
    ),
    "reuse": (
        (
            "using an attention layer twice in a row does not help, unlike the recursion inside it",
            (
                Expectation("Llama attention twice", "no better", ALIBI),
                Expectation("CEM attention, T = 1, twice", "no better", _T1),
                Expectation(_T2, "better", _T1),
            ),
        ),
        (
            "using an MLP twice in a row does not help, unlike the recursion inside it",
            (
                Expectation("Llama MLP twice", "no better", ROTARY),
                Expectation("CEM MLP, T = 1, twice", "no better", mlp_name(1)),
                Expectation(mlp_name(2), "better", mlp_name(1)),
            ),
        ),
    ),
}


def read(study: str, rows: Sequence[Summed]) -> list[Statement]:
    """The statements on a study of that name."""
    if study == "learning-rate":
        optima = {name: tuned(rows, name) for name in (FULL, ROTARY, ALIBI)}
        both = [between(*(_bits(optima[name]) for name in (FULL, base))) for base in (ROTARY, ALIBI)]
        return [_tuned(optima, base, c) for base, c in zip((ROTARY, ALIBI), correct(both), strict=True)]
    finals = {row.name: row.finals for row in rows}
    comparisons = {
        (e.name, e.base): between(finals[e.name], finals[e.base]) for _, es in EXPECTATIONS[study] for e in es
    }
    compared = dict(zip(comparisons, correct(list(comparisons.values())), strict=True))
    return [_statement(text, expectations, compared) for text, expectations in EXPECTATIONS[study]]


_READINGS: Mapping[str, Reading] = {"for": "agrees", "against": "disagrees", "neither": "undecided"}


def reading_of(kind: Expected, comparison: PairedComparison | None) -> Reading:
    """Whether a comparison meets an expectation of that kind; None is one that could not be made."""
    if comparison is None or (comparison.conclusion == "inconclusive" and kind != "close"):
        return "undecided"
    low, high, equivalent = comparison.ratio.low, comparison.ratio.high, comparison.conclusion == "equivalent"
    if comparison.conclusion == "too few" or low is None or high is None:
        return "undecided"
    return _READINGS[side_of(kind, low, high, MARGIN, equivalent=equivalent)]


def _bits(optima: Sequence[Optimum]) -> list[float]:
    return [optimum.bits for optimum in optima]


def _tuned(optima: Mapping[str, Sequence[Optimum]], base: str, comparison: PairedComparison | None) -> Statement:
    """Agrees if full CEM is close to or better than Llama, each at its own best rate, seed by seed."""
    text = f"(our question) full CEM at T = 2 is close to {base} or better, each at its best learning rate"
    if comparison is None:
        return Statement(text, "too many runs diverged", "undecided")
    figures = "; ".join(
        f"{name}: {spread(_bits(optima[name])).mean:.4f} bits at {spread([o.rate for o in optima[name]]).mean:.2g}"
        f"{' (edge)' if any(o.at_edge for o in optima[name]) else ''}"
        for name in (FULL, base)
    )
    better = comparison.conclusion in ("better", "equivalent")
    reading: Reading = "agrees" if better else reading_of("close", comparison)
    return Statement(text, f"{figures}; {_words(comparison)}", reading)


def _statement(
    text: str, expectations: Sequence[Expectation], compared: Mapping[tuple[str, str], PairedComparison | None]
) -> Statement:
    readings = [reading_of(e.kind, compared[e.name, e.base]) for e in expectations]
    ratios = "; ".join(f"{e.name} / {e.base}: {_words(compared[e.name, e.base])}" for e in expectations)
    if "disagrees" in readings:
        return Statement(text, ratios, "disagrees")
    return Statement(text, ratios, "agrees" if set(readings) == {"agrees"} else "undecided")


def _words(comparison: PairedComparison | None) -> str:
    if comparison is None:
        return "a run diverged"
    return f"{shown_ratio(comparison)}, {shown_verdict(comparison.conclusion, comparison.n)}"
