"""`python -m synthetic recursion`: the options, the run, the tables."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from cemverify.console.errors import UsageError, one_of
from cemverify.console.parsing import count, path, positive, seed
from cemverify.console.streams import note
from cemverify.processes.devices import check_device
from cemverify.results import envelope, provenance
from cemverify.results.tables import terminal
from cemverify.runs import add_run_arguments, run_options
from synthetic.figures.sheets import plain
from synthetic.gp import priors
from synthetic.studies.engine.conduct import conduct
from synthetic.studies.engine.readings import readings
from synthetic.studies.recursion.contenders import FAMILIES, OF_SEQUENCES
from synthetic.studies.recursion.findings import measured, study
from synthetic.studies.recursion.presets import PRESETS, RecursionConfig, estimate
from synthetic.studies.recursion.rows import named
from synthetic.studies.recursion.tables import sheets
from synthetic.studies.recursion.worth import sentences as worths

DESCRIPTION = """\
Trains recursive CEM MLPs with T = 1, 2, 4, 8 descent steps (--steps) on functions drawn from Gaussian processes,
several functions per prior (--seeds), and compares their errors with the smallest possible error and with other
models. All models share the functions, points, noise and batches, and the initial weights where their shapes agree.
Every finished cell is stored (--store), so a run that was killed resumes with the same command.
"""

EPILOG = """\
priors, with s = (x_1 + ... + x_d) / sqrt(d); "0.9*rbf(lengthscale=2) + 0.1*linear" and module:object are priors too:
{priors}

models (--models):
{models}
{own}

models of the presets "context", which predict each next value of a function from the points before:
{of_sequences}

presets (options override their values one by one):
{presets}

docs/how-to/sweep.md explains the columns of the tables.
A run whose loss is no longer finite is reported as diverged, and its row shows no mean over the other runs.
The same command gives the same tables, bit for bit, with any number of workers.

exit code: 0; 2 with one sentence if an option cannot be used; 130 after Ctrl-C (the same command resumes).

examples:
  python -m synthetic recursion                                     the quick preset
  python -m synthetic recursion --preset standard --page docs/results/recursion.md
  python -m synthetic recursion --report out/recursion.json --page out/recursion.md
  python -m synthetic recursion --prior rbf warped --seeds 10 --models cem reused
  python -m synthetic recursion --models cem layers                 what T steps are worth in layers of their own
  python -m synthetic recursion --steps 1 2 --models cem mymodel:MLP      with mymodel.py in this folder:
      from torch.nn import Linear, Sequential, SiLU
      def MLP(d): return Sequential(Linear(d, 64), SiLU(), Linear(64, 1))
  python -m synthetic recursion --prior "changepoint(rbf(lengthscale=1), matern52)" --steps 1 4
""".format(
    priors=priors.describe(),
    models="\n".join(f"  {name:<20}{family.about}" for name, family in FAMILIES.items()),
    own=f"  {'module:object':<20}your own: a function of the number of inputs d that returns a torch module from"
    " (N, d) to (N,) or (N, 1); one with a parameter `steps` has a row for each T",
    of_sequences="\n".join(f"  {name:<20}{family.about}" for name, family in OF_SEQUENCES.items()),
    presets="\n".join(
        f"  {name:<20}T = {', '.join(map(str, p.config.depths))}; {len(p.config.priors)} prior(s),"
        f" {p.config.seeds} functions each; {p.about}"
        for name, p in PRESETS.items()
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic recursion`."""
    parser.add_argument("--preset", default="quick", metavar="NAME", help="the study to run (default: %(default)s)")
    parser.add_argument("--prior", nargs="+", metavar="TEXT", help="what functions are drawn from")
    parser.add_argument("--steps", nargs="+", type=count, metavar="T", help="recursion depths to compare")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="model families to compare, on every prior")
    parser.add_argument("--seeds", type=count, metavar="N", help="functions per prior; below 6 nothing is decided")
    parser.add_argument("--rates", nargs="+", type=positive, metavar="R", help="try only these learning rates")
    parser.add_argument("--train-points", type=count, metavar="N", help="size of each training set")
    parser.add_argument("--noise", type=positive, metavar="SD", help="noise on training targets")
    parser.add_argument("--device", metavar="D", help="where models are trained: cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--seed", type=seed, metavar="N", help="root of every random stream (default: 0)")
    parser.add_argument(
        *("--output", "--json"),
        type=path,
        metavar="FILE",
        default=Path("out/recursion.json"),
        help="the result, with every run, as JSON (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        type=path,
        metavar="FILE",
        help="also write a Markdown page; its pictures and its data as .json go beside it",
    )
    parser.add_argument(
        "--report", type=path, metavar="FILE", help="compute nothing: make the page of this result file again"
    )
    parser.add_argument("--estimate", action="store_true", help="print what the study would take, and train nothing")
    add_run_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Runs the study that the options of the command line ask for; returns the exit code.

    Raises:
        UsageError, ValueError: an option is invalid.
    """
    if options.report is not None:
        if options.page is None:
            raise UsageError("--report makes a page of a result file; name the page with --page")
        if options.estimate:
            raise UsageError("--report computes nothing, so --estimate has nothing to tell; leave out one of them")
        envelope.check_outputs(pictured=options.page, read=[options.report])
        note(f"wrote {', '.join(map(str, _page_of(options.report, options.page)))}")
        return 0
    config = _configured(options)
    if options.estimate:
        envelope.show(terminal([estimate(config)]))
        return 0
    where = run_options(options)
    envelope.check_outputs(options.output, page=options.page, stores=[where.store])
    torch.set_num_threads(1)  # as in the workers, and as the result says
    maker = provenance.Maker.now(options.again, asdict(config), config.seed, config.recipe.device)
    outcome = conduct(lambda: study(config, part=where.shard is not None), where).result
    bare = envelope.result("recursion", maker, [], outcome)
    tables = [plain(sheet) for sheet in sheets(bare)]
    envelope.show(terminal(tables))
    for prior, rows in named(bare).items():
        for sentence in worths(bare, rows):
            envelope.show(f"\n{prior}: {sentence}")
    for s in outcome["statements"]:
        envelope.show(f"\nthe paper: {s['text']}\n     here: {s['found']}\n  reading: {s['reading']}")
    for sentence in outcome["notes"]:
        note(f"note: {sentence}")
    envelope.write(options.output, envelope.result("recursion", maker, tables, outcome))
    shown = shlex.quote(str(options.output))
    note(
        f"wrote {options.output}; its narrow table: python -m reports tables {shown} --tables summary; "
        f"its pictures: python -m reports pictures {shown}"
    )
    if options.page is not None:
        figures = options.page.with_suffix(".json")
        content = {**measured(bare), **outcome}
        envelope.write(figures, readings(maker, "Errors of one depth over another's", content))
        note(f"wrote {', '.join(map(str, [*_page_of(figures, options.page), figures]))}")
    return 0


def _page_of(file: Path, page: Path) -> list[Path]:
    """Writes the page of a result file, from the file alone; returns what was written."""
    # these import drawing code, which takes a second
    from synthetic.studies.engine.pages import write_page
    from synthetic.studies.recursion.page import page_of

    content = envelope.read(file)
    if {"rows", "tasks", "statements"} <= content.keys():
        return write_page(page, content, page_of(content))
    if content["kind"] == "readings" and "page" in content:
        return write_page(page, content)
    raise UsageError(
        f"{file} has no rows of a recursion study, so its page cannot be made again; give what --output or --page of"
        " `python -m synthetic recursion` wrote"
    )


def _configured(options: argparse.Namespace) -> RecursionConfig:
    """The preset, with the given values in place of its own."""
    values = {
        "priors": options.prior,
        "depths": options.steps,
        "families": options.models,
        # if models are named, only those are trained
        "more_families": None if options.models is None else (),
        "seeds": options.seeds,
        "rates": options.rates,
        "train_points": options.train_points,
        "noise": options.noise,
        "seed": options.seed,
    }
    changes: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if v is not None}
    config = replace(one_of("preset", options.preset, PRESETS).config, **changes)
    if options.device is None:
        return config
    check_device(options.device)
    return replace(config, recipe=replace(config.recipe, device=options.device))
