"""What studies at several lengths and sizes say together: the ratio of T steps to one, over tokens and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cemverify.cem import presets as paper
from cemverify.console.errors import UsageError
from cemverify.results import envelope
from cemverify.results.envelope import Table
from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import Ratio
from cemverify.runs.plain import restore
from synthetic.figures.drawing import PLAIN, drawn
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.engine.designs import LAYERS, Design
from synthetic.studies.engine.designs import parameters as parameters_of
from synthetic.studies.engine.pages import COMMAND, Drawing, Page, Picture, paragraph
from synthetic.studies.second_step.rows import one, several
from synthetic.studies.second_step.sentences import WORDS
from synthetic.training.cost import parameters

_COLOURS: Mapping[str, str] = {"attention": "#0072B2", "mlp": "#D55E00", "full": "#009E73"}
_GREY = "#666666"
# The paper trains on so many tokens for each parameter.
PAPER_TOKENS = 20
# Studies at one place stand beside each other, so many times farther right for each.
ASIDE = 1.25


@dataclass(frozen=True)
class Point:
    """One study."""

    replaced: str  # which layers are CEM's
    size: str  # its name
    depth: int  # T
    parameters: int  # of T = 1
    tokens: int  # that every model saw
    per_parameter: float  # the same for each of Llama's
    seeds: str  # in words
    verdict: str  # the study's
    # over_one, over_longer: T steps over T = 1, and over T = 1 with a step T times as long; None if not compared
    over_one: Ratio | None
    over_longer: Ratio | None


def read_point(path: Path) -> Point:
    """What the readings of one `second-step` study say."""
    content = envelope.read(path)
    made = content["made_by"]["configuration"]
    if content["kind"] != "readings" or not str(content.get("study", "")).startswith("second-step"):
        raise UsageError(
            f"{path} holds no readings of `second-step` but a result of kind {content['kind']!r}; give the JSON files"
            " beside the pages that `python -m synthetic language second-step --page` writes"
        )
    with envelope.complete(path, content):
        depth, recipe = int(made["depth"]), made["recipe"]
        return Point(
            str(made["replaced"]),
            str(content["size"]),
            depth,
            _parameters_of_one(made["rows"]),
            int(recipe["steps"]) * int(recipe["batch"]) * int(recipe["context"]),
            float(made["per_parameter"]),
            str(content["replicates"]),
            str(content["verdict"]["word"]),
            *(_ratio(content, several(depth), base) for base in (one(), one(depth))),
        )


def table(points: Sequence[Point]) -> Table:
    """The ratios of all studies, one row for each."""
    return Table(
        "T steps of 1/T against one, at each length and size",
        (
            "layers",
            "size",
            "T",
            "parameters",
            "tokens",
            "tokens per Llama parameter",
            "seeds",
            "over T = 1",
            "over T = 1, eta T",
            "verdict",
        ),
        [
            (
                LAYERS[p.replaced],
                p.size,
                p.depth,
                f"{p.parameters:,}",
                f"{p.tokens:,}",
                f"{p.per_parameter:g}",
                p.seeds,
                shown_ratio(p.over_one),
                shown_ratio(p.over_longer),
                WORDS[p.verdict],
            )
            for p in points
        ],
    )


def picture(points: Sequence[Point]) -> str:
    """The ratios over tokens and over parameters, the paper's sizes on the same axes. Same data, same bytes."""
    of_paper = {name: _parameters(name) for name in paper.SIZES}

    def fill(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axis, label, share, at_points in (
            (left, "tokens", PAPER_TOKENS, [p.tokens for p in points]),
            (right, "parameters", 1, [p.parameters for p in points]),
        ):
            axis.axhline(1.0, color=_GREY, linewidth=1)
            axis.axhspan(1 / (1 + MARGIN), 1 + MARGIN, color="#eeeeee", zorder=0)
            for count in of_paper.values():
                axis.axvline(share * count, color=_GREY, linewidth=0.8, linestyle=":")
            first, *_, last = of_paper
            axis.text(
                share * of_paper[first] / 1.2,
                0.98,
                f"the paper's {first} to {last}",
                transform=axis.get_xaxis_transform(),
                rotation=90,
                ha="right",
                va="top",
                fontsize=8,
                color=_GREY,
            )
            for point, x in zip(points, _aside(at_points), strict=True):
                _draw(axis, point, x)
            axis.set_xscale("log")
            axis.set_xlim(min(at_points) / 3, share * max(of_paper.values()) * 2)
            axis.set_xlabel(label)
            axis.spines[["top", "right"]].set_visible(False)
        left.set_ylabel("bits of T steps over those of one")
        kinds = dict.fromkeys(p.replaced for p in points)
        for i, kind in enumerate(kinds):
            left.text(0.4, 0.03 + 0.06 * i, LAYERS[kind], transform=left.transAxes, color=_COLOURS[kind], fontsize=8)
        right.text(
            0.46,  # between the models of this bench and the paper's
            0.03,
            "filled: over T = 1\nhollow: over T = 1\nwith a step as long\nas T together",
            transform=right.transAxes,
            fontsize=8,
            color=_GREY,
        )

    return drawn(7.2, 3.8, fill, PLAIN).decode()


_NOTE = """\
Each row of the table is a study with a page of its own, in which every model found its own learning rate. In the
picture, studies that would overlap are moved to the right; the table has their true sizes. The grey band is a
difference of at most {margin:.1%}."""


def page_of(points: Sequence[Point]) -> Page:
    """The page on what several studies say together."""
    blocks: list[str | Picture | Table] = [
        paragraph(sentences(points)),
        Picture("ratios", "T steps over one, by tokens and by parameters", Drawing(picture(points))),
        table(points),
        _NOTE.format(margin=MARGIN),
        f"Generated by `{COMMAND}`.",
    ]
    return Page("A second step over tokens and parameters", blocks)


def sentences(points: Sequence[Point]) -> Iterator[str]:
    """What the studies say together."""
    ratios = [p.over_one.mean for p in points if p.over_one is not None]
    if ratios:
        yield f"T steps of size 1/T need {_change(min(ratios), max(ratios))} bits than one step."
    places = {
        word: [
            f"{LAYERS[p.replaced]} at {p.parameters:,} parameters and {p.tokens:,} tokens"
            for p in points
            if p.verdict == word
        ]
        for word in ("pays", "does not pay")
    }
    decided = [f"a second step {WORDS[word]} in {', '.join(names)}" for word, names in places.items() if names]
    open_ones = sum(p.verdict == "undecided" for p in points)
    if decided:
        yield f"By each study's own rule, at equal tokens, {'; '.join(decided)}."
    if open_ones:
        which = (
            f"The other {open_ones} studies leave it open"
            if decided
            else "No study decides whether a second step helps"
        )
        yield f"{which}: to help, it must gain over T = 1 and over T = 1 with a step T times as long."
    largest = max(p.parameters for p in points)
    smallest, name = min((_parameters(name), name) for name in paper.SIZES)
    yield (
        f"The largest CEM model here has {largest:,} parameters. The paper's smallest full CEM, which takes its name"
        f" from the {name} Llama that it replaces, has {smallest:,}, {smallest / largest:,.0f} times as many: what"
        " holds here need not hold there."
    )


def _change(low: float, high: float) -> str:
    """By how much ratios from low to high are fewer or more than 1: "0.3 to 0.4 % fewer"."""
    if high < 1:
        fewest, most = f"{1 - high:.1%}", f"{1 - low:.1%}"
        return f"{fewest} fewer" if fewest == most else f"{fewest} to {most} fewer"
    if low >= 1:
        fewest, most = f"{low - 1:.1%}", f"{high - 1:.1%}"
        return f"{fewest} more" if fewest == most else f"{fewest} to {most} more"
    return f"between {1 - low:.1%} fewer and {high - 1:.1%} more"


def _draw(axis: Any, point: Point, x: float) -> None:
    colour = _COLOURS[point.replaced]
    for ratio, at, face in ((point.over_one, x, colour), (point.over_longer, x * 1.1, "white")):
        if ratio is None:
            continue
        if ratio.low is not None and ratio.high is not None:
            axis.vlines(at, ratio.low, ratio.high, color=colour, linewidth=1.2)
        axis.plot([at], [ratio.mean], "o", markersize=5, color=colour, markerfacecolor=face)


def _aside(values: Sequence[int]) -> list[float]:
    """The values, those that are within a quarter of an earlier one moved to its right."""
    placed: list[float] = []
    for value in values:
        x = float(value)
        while any(max(x, other) / min(x, other) < ASIDE for other in placed):
            x *= ASIDE
        placed.append(x)
    return placed


def _ratio(content: Mapping[str, Any], model: str, baseline: str) -> Ratio | None:
    for ratio in content["ratios"]:
        if (ratio["model"], ratio["baseline"]) == (model, baseline):
            low, high = ratio["interval95"] or (None, None)
            return Ratio(ratio["mean"], low, high)
    return None


def _parameters_of_one(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many parameters the row T = 1 has, from the configuration that the readings were made with."""
    return parameters_of(restore(Design, next(row["design"] for row in rows if row["name"] == one())))


def _parameters(name: str) -> int:
    """How many parameters the paper's full CEM of that size has."""
    return parameters(paper.full_cem(name))
