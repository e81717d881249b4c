"""Writes `cemverify/catalogue/detection.jsonl`, which properties detect which mutants, and how long each takes.

    python -m cemverify.commands.detection
    python -m cemverify.commands.detection --missing     # keeps what is known, and measures what the file lacks

A mutant is put to the property that is named for it, and to those that kill most others for their seconds, the best
first, until some have let it pass. So not every pair is tried, which would take hours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import torch

from cemverify.catalogue import detection
from cemverify.catalogue.detection import Detects
from cemverify.conformance.implementations.contract import Subject, kind_of
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property, not_offered
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.console.guard import Run, enter
from cemverify.power.mutants import Mutant, mutants
from cemverify.processes.atomic_files import replacing

_TRIED = 12  # properties that a mutant is put to, beside its own
_PASSES = 2  # of them that may let it pass before no other is tried
_EFFORT = Effort(shrink=False, seconds=600.0)


def text(rows: Sequence[Detects]) -> str:
    """The text of detection.jsonl, a line of JSON for each property."""
    return "".join(f"{json.dumps(asdict(row))}\n" for row in rows)


def empty() -> dict[str, Detects]:
    """Which property is named for each mutant, and nothing measured."""
    named: dict[str, dict[str, Sequence[str]]] = {p.id: {} for p in catalogue()}
    for mutant in mutants():
        named[mutant.property][mutant.id] = sorted(mutant.needs)
    return {id_: Detects(id_, 0.0, of, ()) for id_, of in named.items()}


def merged(measured: Mapping[str, Detects]) -> dict[str, Detects]:
    """What is known, of the properties and mutants that there still are."""
    order = [m.id for m in mutants()]
    rows = empty()
    for id_, row in rows.items():
        if (old := measured.get(id_)) is not None:
            rows[id_] = Detects(id_, old.seconds, row.named, [m for m in order if m in old.kills])
    return rows


def measure(measured: Mapping[str, Detects]) -> Iterator[dict[str, Detects]]:
    """Measures what is not known, and returns what is known after each property and each mutant.

    Args:
        measured: rows by id. Seconds are measured if they are 0, and a mutant if the row of its property lacks it.
    """
    rows, properties = merged(measured), {p.id: p for p in catalogue()}
    by_name = {m.id: m for m in mutants()}
    for id_, row in rows.items():
        if not row.seconds and (seconds := _seconds(properties[id_], [by_name[m] for m in row.named])) is not None:
            rows[id_] = Detects(id_, round(seconds, 3), row.named, row.kills)
            yield rows
    for mutant in mutants():
        if mutant.id in rows[mutant.property].kills or _subject(mutant) is None:
            continue
        for id_ in (mutant.property, *_killers(mutant, properties, rows)):
            kills = dict.fromkeys([*rows[id_].kills, mutant.id])
            rows[id_] = Detects(id_, rows[id_].seconds, rows[id_].named, list(kills))
        yield rows


def _seconds(property_: Property, named: Sequence[Mutant]) -> float | None:
    """CPU seconds that a property takes of what one of its mutants would be without its fault."""
    for mutant in named:
        subject = mutant.original()
        if kind_of(subject) == property_.kind and not_offered(property_, subject.not_offered, torch.float64) is None:
            started = time.process_time()
            judge_property(subject, property_, _EFFORT)
            return time.process_time() - started
    return None


def _subject(mutant: Mutant) -> Subject | None:
    """A fresh one, as some faults remember earlier calls; None if a library that it needs is not here."""
    try:
        return mutant.subject()
    except LoadError:
        return None


def _killers(mutant: Mutant, properties: Mapping[str, Property], rows: Mapping[str, Detects]) -> Iterator[str]:
    """The properties besides the named one that call it wrong, of those that are tried."""
    kind, about = properties[mutant.property].kind, _about(mutant.property)
    alike = [p for p in properties.values() if p.kind == kind and _about(p.id) == about and p.id != mutant.property]
    passes = tried = 0
    for property_ in sorted(alike, key=lambda p: -len(rows[p.id].kills) / max(rows[p.id].seconds, 0.01)):
        subject = _subject(mutant)
        if subject is None or not_offered(property_, subject.not_offered, torch.float64) is not None:
            continue
        tried += 1
        if judge_property(subject, property_, _EFFORT).verdict == Verdict.VIOLATED:
            yield property_.id
        else:
            passes += 1
        if passes == _PASSES or tried == _TRIED:
            return


def _about(id_: str) -> str:
    """What a property asks: attention, mlp, block, decode, layer or all."""
    return id_.split("/")[1]


def _chosen(arguments: list[str]) -> Run:
    parser = argparse.ArgumentParser(
        prog="python -m cemverify.commands.detection",
        description="Measures which properties detect which mutants, for `cemverify check --quick`.",
    )
    parser.add_argument("--missing", action="store_true", help="keep what is known, measure what the file lacks")
    options = parser.parse_args(arguments)

    def run() -> int:
        torch.set_num_threads(1)
        measured = detection.detected() if options.missing and detection.FILE.exists() else {}
        rows, began = merged(measured), time.monotonic()
        for rows in measure(measured):
            if time.monotonic() - began > 1:  # what is known so far, in case it is ended
                _write(rows)
                began = time.monotonic()
                pairs = sum(len(row.kills) for row in rows.values())
                print(f"\r{pairs} pairs of a property and a mutant that it kills", end="", file=sys.stderr)
        _write(rows)
        print(file=sys.stderr)
        return 0

    return run


def _write(rows: Mapping[str, Detects]) -> None:
    with replacing(detection.FILE) as aside:
        aside.write_text(text(list(rows.values())), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(enter(_chosen))
