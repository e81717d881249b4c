"""`cemverify check`: judges an implementation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cemverify.commands import gate, trained
from cemverify.commands.arguments import DTYPES, check_folder
from cemverify.conformance.counterexamples.files import save_all
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import exit_code
from cemverify.conformance.listeners import ci, files, terminal
from cemverify.conformance.listeners import trained as trained_layer
from cemverify.conformance.listeners.colours import show_coloured
from cemverify.conformance.listeners.progress import progress
from cemverify.conformance.properties import select
from cemverify.conformance.workers import isolation, nursery
from cemverify.conformance.workers.limits import check_memory, usual_memory
from cemverify.console.streams import columns, wrapped
from cemverify.results.envelope import Table, check_outputs, show, write, write_text
from cemverify.results.provenance import Maker
from cemverify.results.tables import fitted, grid


def run(options: argparse.Namespace) -> int:
    """`cemverify check`."""
    return _run_trained(options) if trained.asked_for(options) else _run(options)


def _run(options: argparse.Namespace) -> int:
    properties = select(options.properties)
    nursery.get_ready(options.implementation)
    effort = Effort(
        options.examples,
        options.seed,
        options.seconds,
        options.timeout,
        DTYPES[options.dtype],
        options.device,
        memory=options.memory or usual_memory(options.device),
    )
    check_memory(effort.memory)
    check_outputs(options.json, options.junit, options.markdown)
    check_folder(options.save_counterexamples)
    measured_against = gate.read_gate(options)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    configuration = {
        "properties": options.properties,
        "examples": effort.examples,
        "seconds": effort.seconds,
        "timeout": effort.timeout,
        "memory": effort.memory,
        "dtype": options.dtype,
        "workers": options.workers,
        "catalogue": options.catalogue,
    }
    maker = Maker.now(options.command, configuration, effort.seed, effort.device)
    finished: RunFinished | None = None
    with progress(verbose=options.verbose) as listener:
        for event in isolation.run(options.implementation, properties, effort, options.workers):
            listener(event)
            if isinstance(event, RunFinished):
                finished = event
    assert finished is not None
    if options.save_counterexamples:
        for saved in save_all(finished, options.save_counterexamples, maker):
            print(f"counterexample saved: cemverify replay {saved}", file=sys.stderr)
    return _tell(options, finished, measured_against, maker)


def _run_trained(options: argparse.Namespace) -> int:
    check_outputs(options.json, options.junit, options.markdown)
    measured_against = gate.read_gate(
        argparse.Namespace(**{**vars(options), "implementation": trained.named(options)})
    )
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    configuration = {
        "checkpoint": str(options.checkpoint),
        "layer": options.layer,
        "tokens": None if options.tokens is None else str(options.tokens),
        "dtype": options.dtype,
        "examples": options.examples,
        "catalogue": options.catalogue,
    }
    maker = Maker.now(options.command, configuration, options.seed, options.device)
    found, weights = trained.judge(options)
    table, words = trained_layer.table(found), trained_layer.summary(found, weights)
    width = columns(sys.stdout)
    shown = grid(table, "terminal") if width is None else fitted(table, width)
    show(f"{table.title}\n\n{shown}\n\n{wrapped(words, width)}\n")
    more = {"trained": trained_layer.as_json(found, weights)}
    return _tell(options, found.finished, measured_against, maker, [table], words, more)


def _tell(
    options: argparse.Namespace,
    finished: RunFinished,
    measured_against: gate.Gate,
    maker: Maker,
    tables: Sequence[Table] = (),
    words: str = "",
    more: Mapping[str, Any] | None = None,
) -> int:
    """Writes the files, prints the report, and returns the exit code."""
    finished, settled, compared = measured_against.measure(finished, options.properties)
    if options.json:
        content = files.as_json(finished, maker, tables, more, pinned=options.catalogue)
        write(options.json, ci.with_gate(content, settled, compared))
    if options.junit:
        write_text(options.junit, ci.with_suites(files.as_junit(finished, options.catalogue), settled, compared))
    if options.markdown:
        page = files.as_markdown(finished, maker, tables, words)
        write_text(options.markdown, page + ci.as_markdown(settled, compared))
    width = columns(sys.stdout)
    show_coloured(terminal.report(finished, verbose=options.verbose, width=width))
    if settled is not None or compared is not None:
        show_coloured(f"\n{wrapped(ci.report(settled, compared), width)}")
    if any(outcome is not None and outcome.failed for outcome in (settled, compared)):
        return 1
    return exit_code(finished.records)
