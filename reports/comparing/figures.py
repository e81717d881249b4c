"""Figures beside each other, where a test says that they differ: errors, bits per byte, ratios of time.

Errors of the same model on the same replicates are compared in pairs, corrected by Holm's method for the number of
comparisons (`cemverify.results.statistics`). Where a file has no replicates but a standard error, the difference is
compared with both standard errors, which is cautious if the same windows were scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

from cemverify.console.escaping import brief
from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import FEWEST, Ratio, compare, correct, holm, paired_ratio
from reports.comparing.findings import Content, Finding, Incomparable, changed, in_both, note, regression

_ALPHA = 0.05
# What decides the figures of a study; the rest of its configuration says which models take part.
_RECURSION = ("seed", "noise", "train_points", "test_points", "recipe")
# A ratio of time that differs by less than this is no news.
_SPEED_MARGIN = 0.1
# Of each replicate; None where it diverged.
Errors = Mapping[Any, float | None]


def of_recursions(old: Content, new: Content) -> Iterator[Finding]:
    """Changes of RMSE by the paired test; models that diverge or are missing."""
    _same(old, new, _RECURSION)
    was, now = (content["made_by"]["configuration"].get("rates") or "found" for content in (old, new))
    if was != now:
        yield note("learning rates tried", was, now, "a part of what differs may be one of tuning")
    before, after = (
        {
            f"RMSE of {row['name']} on {row['prior']}": {
                seed: run["score"] and run["score"]["expected"] for seed, run in enumerate(row["runs"])
            }
            for row in content["rows"]
            if row["contender"]
        }
        for content in (old, new)
    )
    yield from _paired(before, after)


def of_readings(old: Content, new: Content) -> Iterator[Finding]:
    """Bits per byte paired by seed, where both have every training; or ratios whose intervals exclude each other."""
    if all("judged" in row for content in (old, new) for row in content.get("rows", ({},))):
        yield from _studied(old, new)
        return
    for figure, was, now in (yield from in_both(_ratios(old), _ratios(new), _lost)):
        yield from _moved(figure, was, now)


def _ratios(content: Content) -> dict[str, Ratio]:
    ratios = {}
    for r in content["ratios"]:
        on = f" on {r['on']}" if r.get("on") else ""
        ratios[f"ratio of {r['model']} to {r['baseline']}{on}"] = Ratio(r["mean"], *(r["interval95"] or (None, None)))
    return ratios


def of_benchmarks(old: Content, new: Content) -> Iterator[Finding]:
    """Ratios of time, each measured side by side in one run; only between runs on one kind of machine."""
    then, now = old["made_by"]["device"], new["made_by"]["device"]
    for name in ("type", "name", "threads"):
        if then[name] != now[name]:
            raise Incomparable(
                f"the {name} of the machine was {then[name]} and is {now[name]}; "
                "ratios of time are compared on one machine only"
            )
    before, after = _timings(old), _timings(new)
    _overlapping(before, after)
    for figure, was, latest in (yield from in_both(before, after, lambda name, _: note(name, "timed", "missing"))):
        ratios = paired_ratio(*was), paired_ratio(*latest)
        yield from _moved(figure, *ratios, "time over that of MHA in the same run; ", _SPEED_MARGIN)


def _moved(figure: str, was: Ratio, now: Ratio, about: str = "", margin: float = 0.0) -> Iterator[Finding]:
    """A finding where the intervals of two ratios exclude each other, and the means differ by more than a margin."""
    if was.low is None or was.high is None or now.low is None or now.high is None:
        return
    change, worse = now.mean / was.mean, now.low > was.high
    if (worse and change > 1 + margin) or (now.high < was.low and change < 1 / (1 + margin)):
        yield changed(worse, figure, was.mean, now.mean, f"{about}the 95 % intervals exclude each other")


def _timings(content: Content) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    rows = (content["benchmarks"].get("attention") or {"rows": []})["rows"]
    return {
        f"time of {row['attention']} ({row['path']}), {row['tokens']} tokens": (
            row["seconds"],
            row["baseline_seconds"],
        )
        for row in rows
        if row["seconds"] and len(row["seconds"]) == len(row["baseline_seconds"])
    }


def of_languages(old: Content, new: Content) -> Iterator[Finding]:
    """Changes of bits per byte of a single training, by standard errors."""
    _same_text(old, new)
    _same(old, new, ("recipe", "validation_windows"))
    before, after = ({f"bits per byte of {m['name']}": m for m in content["models"]} for content in (old, new))
    _overlapping(before, after)
    scored: list[tuple[str, float, float, float]] = []
    for figure, was, now in (yield from in_both(before, after, _lost)):
        a, b = was["validation_bits_per_byte"], now["validation_bits_per_byte"]
        if a is None or b is None:
            if (a is None) != (b is None):
                yield changed(b is None, figure, a or "diverged", b or "diverged")
            continue
        error = math.hypot(was["validation_standard_error"] or 0, now["validation_standard_error"] or 0)
        p = 1.0 if a == b else 0.0 if not error else 2 * NormalDist().cdf(-abs(a - b) / error)
        scored.append((figure, a, b, p))
    for (figure, a, b, _), p in zip(scored, holm([entry[3] for entry in scored]), strict=True):
        if p < _ALPHA:
            yield changed(b > a, figure, a, b, f"p = {p:.2g} (Holm), by the standard errors over windows")


def _studied(old: Content, new: Content) -> Iterator[Finding]:
    if old["study"] != new["study"]:
        raise Incomparable(f"the studies are not the same: {old['study']} and {new['study']}")
    _same_text(old, new)
    before, after = (
        {f"bits per byte of {row['name']}": _bits(row["judged"]) for row in content["rows"]} for content in (old, new)
    )
    yield from _paired(before, after)


def _bits(judged: Mapping[str, Any]) -> Errors:
    return {
        seed: fmean(record["groups"]) if record["groups"] else None
        for seed, record in judged.items()
        if record is not None
    }


def _paired(before: Mapping[str, Errors], after: Mapping[str, Errors]) -> Iterator[Finding]:
    """Findings on old and new errors: replicates that diverged; paired tests of the others, corrected together."""
    _overlapping(before, after)
    measured: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for figure, was, now in (yield from in_both(before, after, _lost)):
        shared = [key for key in was if key in now]
        gone, lost = (sum(errors[key] is None for key in shared) for errors in (was, now))
        if gone != lost:
            yield changed(lost > gone, figure, f"{gone} diverged", f"{lost} diverged")
        both = [(b, a) for key in shared if (a := was[key]) is not None and (b := now[key]) is not None]
        if max(len(was), len(now)) > len(both):
            sentence = f"{len(both)} compared: the others diverged in one of the files, or are missing in it"
            yield note(figure, f"{len(was)} seeds", f"{len(now)} seeds", sentence)
        if both and min(map(min, both)) > 0:
            measured[figure] = [b for b, _ in both], [a for _, a in both]
        elif both:
            yield note(figure, "", "", "not compared: an error is not positive")
    comparisons = correct([compare(new, old) for new, old in measured.values()])
    for (figure, (new, old)), comparison in zip(measured.items(), comparisons, strict=True):
        if comparison.conclusion in ("better", "worse"):
            worse = comparison.conclusion == "worse"
            known = f"ratio {shown_ratio(comparison, 3)}, {comparison.n} pairs, p = {comparison.holm:.2g} (Holm)"
            yield changed(worse, figure, sum(old) / len(old), sum(new) / len(new), known)
        elif comparison.conclusion == "too few" and new != old:
            yield note(figure, "", "", f"{comparison.n} pairs are too few to compare: {FEWEST} are needed")


def _same_text(old: Content, new: Content) -> None:
    if old.get("corpus", {}).get("digest") != new.get("corpus", {}).get("digest"):
        raise Incomparable("the models learnt from different text, so bits per byte cannot be compared")


def _same(old: Content, new: Content, keys: Sequence[str]) -> None:
    then, now = old["made_by"]["configuration"], new["made_by"]["configuration"]
    for key in keys:
        if then.get(key) != now.get(key):
            raise Incomparable(
                f"{key} was {brief(then.get(key))} and is {brief(now.get(key))}; run the new one as the old one"
            )


def _lost(figure: str, _: Any) -> Finding:
    return regression(figure, "measured", "missing")


def _overlapping(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
    if not before.keys() & after.keys():
        raise Incomparable("they have nothing in common that was measured in both")
