"""Compares verdicts: on properties, mutants, claims."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from cemverify.catalogue.index import retired
from cemverify.conformance.gate.baselines import FEWEST, FLOOR, GROWTH, MEDIAN_GROWTH
from reports.comparing.findings import Content, Finding, changed, improvement, in_both, note, regression

# Two checks must share these conditions for their margins to be comparable.
_CONDITIONS = ("dtype", "examples")


def of_checks(old: Content, new: Content) -> Iterator[Finding]:
    """Changed verdicts, and margins by the rules of `cemverify check --baseline`."""
    before = {entry["id"]: entry for entry in old["properties"]}
    after = {entry["id"]: entry for entry in new["properties"]}
    never, ended = (set(content.get("unasked", ())) for content in (old, new))

    def missing(id_: str, was: Content) -> Finding | None:
        if id_ in retired():
            return note(id_, was["verdict"], "asked no more", f"{retired()[id_].instead} is asked in its place")
        lost = was["verdict"] == "holds" and id_ not in ended
        return regression(id_, "holds", "missing", "it was not tested") if lost else None

    for id_, was, now in (yield from in_both(before, after, missing)):
        if was["verdict"] != now["verdict"]:
            yield _changed(id_, was["verdict"], now, old["implementation"] == new["implementation"])
    for id_ in after.keys() - before.keys():
        verdict = after[id_]["verdict"]
        make = regression if verdict == "violated" else note
        new_here = "the old run ended before it" if id_ in never else "a property that is new"
        yield make(id_, "not tested", verdict, new_here)
    for side, ids in (("old", never), ("new", ended)):
        if ids:
            yield note("properties", "", "", f"not asked, as the {side} run ended early: {len(ids)}")
    then, here = old["made_by"], new["made_by"]
    conditions = [(name, *(m["configuration"].get(name) for m in (then, here))) for name in _CONDITIONS]
    conditions += [("seed", then["seed"], here["seed"])]
    conditions += [("device", *(m["device"]["type"].partition(":")[0] for m in (then, here)))]
    if reasons := [f"{name} was {was} and is {is_}" for name, was, is_ in conditions if was != is_]:
        yield note("margins", "", "", f"not compared: {'; '.join(reasons)}")
    else:
        yield from _margins(before, after)


def of_powers(old: Content, new: Content) -> Iterator[Finding]:
    """Mutants that were killed and now survive, and false alarms."""
    before, after = ({f"mutant {m['id']}": m["killed"] for m in content["mutants"]} for content in (old, new))
    words = {True: "killed", False: "survived"}

    def missing(name: str, was: bool) -> Finding:
        return (regression if was else note)(name, words[was], "missing")

    for name, was, now in (yield from in_both(before, after, missing)):
        if was != now:
            yield changed(was, name, words[was], words[now])
    for name in after.keys() - before.keys():
        yield note(name, "none", words[after[name]], "a mutant that is new")
    alarms, now_alarms = old["false_alarms"], new["false_alarms"]
    if alarms != now_alarms:
        yield changed(now_alarms > alarms, "false alarms", alarms, now_alarms)


def of_claims(old: Content, new: Content) -> Iterator[Finding]:
    """Claims whose verdict changed: every change is a regression, because none is better or worse."""
    before, after = ({f"claim {c['id']}": c["verdict"] for c in content["claims"]} for content in (old, new))

    def missing(name: str, was: str) -> Finding:
        if new["made_by"]["configuration"].get("claim") is None:  # the whole ledger was judged, and no longer has it
            return note(name, was, "retired", f"`cemverify {name.replace('claim', 'claims')}` says where to read it")
        return regression(name, was, "missing", "it is not judged any more")

    for name, was, now in (yield from in_both(before, after, missing)):
        if was != now:
            yield regression(name, was, now, "a proof does not change; one of the two is wrong")
    for name in after.keys() - before.keys():
        yield note(name, "not judged", after[name])


def _changed(id_: str, was: str, now: Content, same: bool) -> Finding:
    """The finding for a changed verdict on a property; `same`: whether both are of one implementation."""
    verdict, reason = now["verdict"], str(now.get("reason") or "").partition("\n")[0]
    if verdict == "not offered" and not same:
        return note(id_, was, verdict, reason)
    if verdict == "holds":
        return improvement(id_, was, verdict)
    if was == "holds" or verdict in ("violated", "suite error"):
        explanation = now.get("known")
        if explanation:
            return note(id_, was, verdict, f"known: {explanation}")
        return regression(id_, was, verdict, reason)
    return note(id_, was, verdict, reason)


def _margins(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Finding]:
    pairs = {
        id_: (before[id_]["margin"], entry["margin"])
        for id_, entry in after.items()
        if id_ in before and entry["verdict"] == before[id_]["verdict"] == "holds"
    }
    growths = []
    for id_, (was, now) in pairs.items():
        if was is None or now is None:
            continue
        if now > max(GROWTH * was, FLOOR):
            yield regression(id_, f"margin {was:.3g}", f"margin {now:.3g}", "it is violated above 1")
        elif was > max(GROWTH * now, FLOOR):
            yield improvement(id_, f"margin {was:.3g}", f"margin {now:.3g}")
        if was > 0 and now > 0:
            growths.append(now / was)
    if len(growths) >= FEWEST and median(growths) > MEDIAN_GROWTH:
        yield regression("margins", "", f"{median(growths):.3g} times larger", f"median of {len(growths)}")
