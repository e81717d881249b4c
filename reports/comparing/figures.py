"""Compares ratios (of errors, of bits per byte, of time) and reports those whose intervals do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cemverify.results.statistics import Ratio, paired_ratio
from reports.comparing.findings import Content, Finding, Incomparable, changed, in_both, note, regression

# A smaller difference between ratios of time is not reported.
_SPEED_MARGIN = 0.1


def of_readings(old: Content, new: Content) -> Iterator[Finding]:
    """Ratios of a study whose intervals do not overlap."""
    ratios = in_both(_ratios(old), _ratios(new), lambda name, _: regression(name, "measured", "missing"))
    for figure, was, now in (yield from ratios):
        yield from _moved(figure, was, now)


def _ratios(content: Content) -> dict[str, Ratio]:
    if "ratios" not in content:  # a whole result of a recursion study
        compared = [row for row in content["rows"] if row["deeper"]]
        name = "ratio of {name} to the family's smallest T, or to CEM's, on {prior}"
        return {name.format_map(row): Ratio(**row["deeper"]["ratio"]) for row in compared}
    ratios = {}
    for r in content["ratios"]:
        on = f" on {r['on']}" if r.get("on") else ""
        ratios[f"ratio of {r['model']} to {r['baseline']}{on}"] = Ratio(r["mean"], *(r["interval95"] or (None, None)))
    return ratios


def of_benchmarks(old: Content, new: Content) -> Iterator[Finding]:
    """Ratios of time, each measured side by side in one run; compared only between runs on one kind of machine."""
    then, now = old["made_by"]["device"], new["made_by"]["device"]
    for name in ("type", "name", "threads"):
        if then[name] != now[name]:
            raise Incomparable(
                f"the {name} of the machine was {then[name]} and is {now[name]}; "
                "ratios of time are compared on one machine only"
            )
    before, after = _timings(old), _timings(new)
    if not before.keys() & after.keys():
        raise Incomparable("they have nothing in common that was measured in both")
    for figure, was, latest in (yield from in_both(before, after, lambda name, _: note(name, "timed", "missing"))):
        ratios = paired_ratio(*was), paired_ratio(*latest)
        yield from _moved(figure, *ratios, "time over that of MHA in the same run; ", _SPEED_MARGIN)


def _moved(figure: str, was: Ratio, now: Ratio, about: str = "", margin: float = 0.0) -> Iterator[Finding]:
    """A finding if the intervals of two ratios do not overlap and their means differ by more than a margin."""
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
