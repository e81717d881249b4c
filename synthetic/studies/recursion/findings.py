"""The course of the recursion study, and what it found, as plain values from the payloads of its cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import MARGIN, PairedComparison, Ratio, Spread, compare, correct, spread
from cemverify.runs import Cell
from synthetic.gp import difficulty
from synthetic.gp.difficulty import Difficulty, average
from synthetic.gp.tasks import Score
from synthetic.studies.engine.conduct import Course, Payload, WantedCells, together
from synthetic.studies.engine.rates import rate, wanted, within
from synthetic.studies.engine.readings import Statement, measured_ratio
from synthetic.studies.recursion.cells import (
    ModelCell,
    RunRecord,
    TaskCell,
    TaskRecord,
    compute_model,
    compute_task,
    read_runs,
    read_task,
)
from synthetic.studies.recursion.contenders import Contender, RegressorCost, cost_of
from synthetic.studies.recursion.presets import FIRST_RATES, RecursionConfig
from synthetic.studies.recursion.rows import (
    SAME_AT_1,
    Family,
    best_depth,
    by_depth,
    errors,
    is_drawn,
    is_plain,
    kind,
    named,
)
from synthetic.studies.recursion.tables import verdict

Payloads = Mapping[TaskCell | ModelCell, Payload]
Found = dict[TaskCell | ModelCell, Payload]
Rows = Sequence[Mapping[str, Any]]  # of one prior, as in a result file


def study(config: RecursionConfig, *, part: bool = False) -> Course[dict[str, Any]]:
    """Draws all functions and, if they are worth a comparison, trains all models on them.

    Args:
        part: whether this machine computes only its part of the functions and models, and judges nothing.

    Returns:
        Everything for the result file (`assemble`).
    """
    tasks = {
        spec: compute_task.cell(spec, cost=spec.cost, label=spec.label)
        for prior in config.priors
        for spec in config.task_cells(prior)
    }
    first = [_training(spec) for prior in config.priors for spec in config.model_cells(prior)]
    if part:
        yield WantedCells([*tasks.values(), *first])
    found = _by_spec(tasks, (yield WantedCells(list(tasks.values()), later=first)))
    admit(config, found)
    yield from together(_search(config, prior, c, found) for prior in config.priors for c in config.contenders(prior))
    return assemble(config, found)


def _search(config: RecursionConfig, prior: str, contender: Contender, found: Found) -> Course[None]:
    """Trains a contender at the given rates, or searches until the best rate has a worse one on both sides."""
    curve: dict[int, float] = {}
    runs: dict[float, Sequence[RunRecord]] = {}
    tried: Sequence[float] = config.first_rates
    numbers: Sequence[int] = FIRST_RATES
    while tried:
        specs = [config.model_cell(prior, contender, r) for r in tried]
        made = _by_spec(specs, (yield WantedCells([_training(spec) for spec in specs])))
        found.update(made)
        if config.rates:
            return
        runs |= {r: read_runs(made[spec]) for r, spec in zip(tried, specs, strict=True)}
        curve |= {k: held_out(runs[r]) for k, r in zip(numbers, tried, strict=True)}
        numbers = within(wanted(curve, FIRST_RATES))
        tried = [rate(k) for k in numbers]
    if config.parts(prior)[1]:
        best = config.model_cell(prior, contender, choose_rate(runs), rest=True)
        found.update(_by_spec([best], (yield WantedCells([_training(best)]))))


def _training(spec: ModelCell) -> Cell:
    return compute_model.cell(spec, cost=spec.cost, label=spec.label)


def _by_spec(specs: Iterable[TaskCell | ModelCell], payloads: Sequence[Payload | None]) -> Found:
    return {spec: payload for spec, payload in zip(specs, payloads, strict=True) if payload is not None}


def assemble(config: RecursionConfig, payloads: Payloads) -> dict[str, Any]:
    """Everything for the result file (docs/result-files.md), from the payloads of all cells."""
    tasks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for prior in config.priors:
        records = [read_task(payloads[cell]) for cell in config.task_cells(prior)]
        runs: dict[Contender, dict[float, list[RunRecord]]] = {c: {} for c in config.contenders(prior)}
        rest: dict[Contender, list[RunRecord]] = {}
        for cell, payload in payloads.items():
            if isinstance(cell, ModelCell) and cell.replicates == config.parts(prior)[0]:
                runs[cell.contender][cell.recipe.learning_rate] = read_runs(payload)
            elif isinstance(cell, ModelCell) and cell.replicates == config.parts(prior)[1]:
                rest[cell.contender] = read_runs(payload)
        summary = summarise(records, runs, rest, lambda c: cost_of(c.spec, config.dimensions, config.sequence))
        tasks += [{"prior": prior, "seed": seed, **asdict(record)} for seed, record in enumerate(records)]
        rows += [entry(prior, row) for row in summary]
        if objection := _difficulty(records).objection:
            leak = "a model that does well on it reveals a leak"
            notes.append(f"{prior} is a negative control, {objection}: {leak}")
        if jitter := max(record.jitter for record in records):
            notes.append(f"on {prior} sampling needed a jitter of up to {jitter:.0e}; the floor accounts for it")
    # the paper says nothing about functions from context
    statements = [] if config.sequence else [asdict(statement) for statement in read({"rows": rows})]
    return {"inputs": config.dimensions, "tasks": tasks, "rows": rows, "statements": statements, "notes": notes}


def admit(config: RecursionConfig, payloads: Payloads) -> None:
    """Accepts a study if each of its tasks is worth a comparison or is a declared negative control."""
    for prior in config.priors:
        records = [read_task(payloads[cell]) for cell in config.task_cells(prior)]
        difficulty.admit(config.task(prior), _difficulty(records))


def _difficulty(tasks: Sequence[TaskRecord]) -> Difficulty:
    return average([Difficulty(t.floor, t.scores["ridge"].expected, t.prior_std) for t in tasks])


def entry(prior: str, row: Predictor) -> dict[str, Any]:
    """A row of the summary as in the result file: with its prior and its T, as plain values."""
    depth = None if row.contender is None else row.contender.depth
    return {"prior": prior, **asdict(row), "depth": depth}


# --- what the cells say together --------------------------------------------------------------------


Rates = Mapping[float, Sequence[RunRecord]]


@dataclass(frozen=True)
class Predictor:
    """A predictor on all functions of a prior."""

    name: str  # of a contender or of a reference
    contender: Contender | None  # None for a reference
    learning_rate: float | None  # the chosen one; None for a reference
    at_edge: bool  # whether it was the smallest or the largest of several; a better one may lie beyond
    # the rates that were tried, and the geometric mean of the errors on held-out points, None if a run diverged
    tried: Sequence[tuple[float, float | None]]
    cost: RegressorCost | None  # of the model; None for a reference
    runs: Sequence[RunRecord]  # at that rate, one for each function; () for a reference
    # how many of them diverged. If any did, all figures below are None: a mean over the survivors would flatter
    diverged: int
    # rmse, observed, excess: of `Score`
    rmse: Spread | None
    observed: Spread | None
    excess: Spread | None
    gap_closed: Spread | None  # (ridge - model) / (ridge - floor) of the expected errors
    # its expected errors against those of its family's smallest T, or CEM's smallest T for a family of one
    deeper: PairedComparison | None = None
    same_depth: PairedComparison | None = None  # the same against CEM at the same T, if that was trained

    @property
    def errors(self) -> list[float]:
        """The expected error on each function, if no run diverged."""
        return [run.score.expected for run in self.runs if run.score is not None]


def choose_rate(rates: Rates) -> float:
    """The learning rate of a contender, chosen on the held-out points."""
    return min(
        sorted(rates), key=lambda r: (held_out(rates[r]), sum(run.diverged_at is not None for run in rates[r]))
    )


def held_out(runs: Sequence[RunRecord]) -> float:
    """The mean logarithm of the errors on the held-out points; infinite if a run diverged."""
    sound = [r.held_out_rmse for r in runs if r.held_out_rmse is not None and r.diverged_at is None]
    return math.fsum(map(math.log, sound)) / len(sound) if len(sound) == len(runs) else math.inf


def summarise(
    tasks: Sequence[TaskRecord],
    runs: Mapping[Contender, Rates],
    rest: Mapping[Contender, Sequence[RunRecord]] | None = None,
    cost: Callable[[Contender], RegressorCost] = lambda contender: cost_of(contender.spec),
) -> list[Predictor]:
    """The rows of one prior: references, contenders, the exact posterior.

    Args:
        tasks: the functions. runs: for each contender and rate one record for each function, in their order.
        rest: records at the best rate for the functions that follow. cost: what a contender costs.
    """
    references = [
        Predictor(name, None, None, False, (), None, (), 0, *_spreads(tasks, [task.scores[name] for task in tasks]))
        for name in tasks[0].scores
    ]
    contenders = {c: _row(tasks, c, rates, cost(c), (rest or {}).get(c, ())) for c, rates in runs.items()}
    return [*references[:-1], *_compared(contenders), references[-1]]


def _row(
    tasks: Sequence[TaskRecord], contender: Contender, rates: Rates, cost: RegressorCost, rest: Sequence[RunRecord]
) -> Predictor:
    rate = choose_rate(rates)
    runs = [*rates[rate], *rest]
    scores = [run.score for run in runs if run.score is not None]
    diverged = len(runs) - len(scores)
    at_edge = len(rates) > 1 and rate in (min(rates), max(rates))
    figures = (None, None, None, None) if diverged else _spreads(tasks, scores)
    tried = [(r, math.exp(error) if math.isfinite(error := held_out(rates[r])) else None) for r in sorted(rates)]
    return Predictor(contender.name, contender, rate, at_edge, tried, cost, runs, diverged, *figures)


def _spreads(tasks: Sequence[TaskRecord], scores: Sequence[Score]) -> tuple[Spread, Spread, Spread, Spread]:
    """Spreads of the expected and observed error, of the excess, and of the gap closed."""
    ridge = [task.scores["ridge"].expected for task in tasks]
    closed = [
        (linear - score.expected) / (linear - task.floor)
        for task, linear, score in zip(tasks, ridge, scores, strict=True)
    ]
    expected, observed, excess = (
        spread([getattr(score, name) for score in scores]) for name in ("expected", "observed", "excess")
    )
    return expected, observed, excess, spread(closed)


def _compared(rows: Mapping[Contender, Predictor]) -> list[Predictor]:
    """The rows with their comparisons, corrected for how many of each kind there are."""
    plain = {c.depth: row for c, row in rows.items() if c.family == Family.CEM}
    deeper = correct([_against(row, _shallowest(c.family, rows)) for c, row in rows.items()])
    same = correct([_against(row, plain.get(c.depth)) for c, row in rows.items()])
    return [replace(row, deeper=d, same_depth=s) for row, d, s in zip(rows.values(), deeper, same, strict=True)]


def _shallowest(family: str, rows: Mapping[Contender, Predictor]) -> Predictor | None:
    """The family's smallest T, or CEM's for a family of one; its T = 1 may be another family's."""

    def members(name: str) -> list[Contender]:
        return [c for c in rows if c.family == name or (c.family, c.depth) == (SAME_AT_1.get(name), 1)]

    candidates = members(family) if len(members(family)) > 1 else members(Family.CEM)
    return rows[min(candidates, key=lambda c: c.depth or 0)] if candidates else None


def _against(row: Predictor, base: Predictor | None) -> PairedComparison | None:
    if base is None or base is row or row.diverged or base.diverged:
        return None
    return compare(row.errors, base.errors)


# --- the paper's statements -------------------------------------------------------------------------


_NON_STATIONARY = ("warped", "gibbs", "changepoint", "modulated")


def read(content: Mapping[str, Any]) -> list[Statement]:
    """The statements on plain CEM, prior by prior."""
    studied = named(content)
    return [
        _second_step({prior: by_depth(rows) for prior, rows in studied.items()}),
        *(
            _best_depth(rows, name, "RBF: T = 4 is best, T = 8 slightly worse", 4, 8)
            for name, rows in studied.items()
            if kind(rows[0]["prior"]) == "rbf"
        ),
        *(
            _best_depth(rows, name, "non-stationary process: T = 8 is best", 8, of_the_papers_case=False)
            for process in _NON_STATIONARY
            for name, rows in studied.items()
            if kind(rows[0]["prior"]) == process
        ),
    ]


def _second_step(depths: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Statement:
    """ "Usually" means: better on most priors, worse on none. The verdicts are those of the tables."""
    text = "T = 2 usually improves on T = 1"
    comparisons = {prior: at[2]["deeper"] for prior, at in depths.items() if {1, 2} <= at.keys()}
    if not comparisons:
        return Statement(text, "T = 1 and T = 2 were not both trained", "not asked")
    verdicts = [verdict(c) for c in comparisons.values()]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    ratios = "; ".join(
        f"{name}: {shown_ratio(Ratio(**c['ratio']), 3)}, {verdict(c)}" for name, c in comparisons.items()
    )
    if better > len(comparisons) / 2 and not worse:
        return Statement(text, ratios, "agrees")
    return Statement(text, ratios, "disagrees" if worse > len(comparisons) / 2 else "undecided")


def _best_depth(
    rows: Rows, name: str, text: str, expected: int, *others: int, of_the_papers_case: bool = True
) -> Statement:
    """Agrees if the expected depth has the smallest mean, and is significantly better than every other depth.

    On a prior that is not the paper's, a contrary result counts as undecided, because the prior may be the cause.

    Args:
        others: further depths that the statement mentions; it agrees only if they were compared.
    """
    at = by_depth(rows)
    if expected not in at or len(at) < 2:
        return Statement(text, f"{name}: T = {expected} was not compared", "not asked")
    best = best_depth(at)
    rest = [T for T in at if best != T]
    compared = correct([compare(errors(at[T]), errors(at[best])) for T in rest])
    rivals = dict(zip(rest, compared, strict=True))
    surely = all(c.conclusion == "worse" for c in compared)
    ratios = f"{name}: {'best' if surely else 'smallest geometric mean at'} T = {best}; relative to it, " + "; ".join(
        f"T = {T}: {shown_ratio(c, 3)}, {verdict(asdict(c))}" for T, c in rivals.items()
    )
    ran = {row["depth"] for row in rows if is_plain(row)}
    missing = [T for T in others if T not in at]
    ratios += "".join(f"; T = {T} {'diverged' if T in ran else 'was not run'}" for T in missing)
    if best == expected:
        return Statement(text, ratios, "agrees" if surely and not missing else "undecided")
    contrary = rivals[expected].conclusion == "worse" and of_the_papers_case
    return Statement(text, ratios, "disagrees" if contrary else "undecided")


# --- what the ledger reads --------------------------------------------------------------------------


def _tuned(rates: Sequence[float]) -> str:
    if not rates:
        return "the learning rate that a search found for it"
    few = f"the only learning rate tried, {rates[0]:g}"
    return f"its best of {len(rates)} learning rates" if len(rates) > 1 else few


def _ratios(prior: str, at: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Plain CEM at each T over each smaller one; the verdict is that of the tables if they have one, else Holm's."""
    pairs = list(combinations(sorted(at), 2))
    among = correct([compare(errors(at[deep]), errors(at[flat])) for flat, deep in pairs])
    for (flat, deep), comparison in zip(pairs, among, strict=True):
        tabled = at[deep]["deeper"] if flat == min(at) else None
        ratio = measured_ratio(f"T = {deep}", f"T = {flat}", errors(at[deep]), errors(at[flat]), prior)
        yield ratio | {"verdict": verdict(tabled or asdict(comparison))}


def measured(content: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a study, and at what scale, from its result; see docs/result-files.md."""
    config, studied = content["made_by"]["configuration"], named(content)
    depths = {prior: by_depth(rows) for prior, rows in studied.items()}
    sizes = [row["cost"]["parameters"] for at in depths.values() for row in at.values()]
    drawn = any(is_drawn(row) for rows in studied.values() for row in rows)
    return {
        # one model for all depths is a different question from one model for each
        "study": "recursion-context" if config.get("sequence") else "recursion-dial" if drawn else "recursion",
        "parameters": max(sizes, default=0),
        "seen": f"{config['train_points']:,} training {'functions' if config.get('sequence') else 'points'}",
        "replicates": f"{config['seeds']} {'sets of functions' if config.get('sequence') else 'functions each'}",
        "recipe": f"noise {config['noise']:g}, each depth at {_tuned(config['rates'])}",
        "figure": "expected RMSE",
        "margin": MARGIN,
        "ratios": [ratio for prior, at in depths.items() for ratio in _ratios(prior, at)],
        "best_rates": [],
    }
