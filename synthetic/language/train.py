"""`python -m synthetic language train`: the contenders of a preset, side by side, judged."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from cemverify.console.errors import UsageError
from cemverify.console.parsing import path, seed, whole
from cemverify.console.streams import note
from cemverify.results.envelope import check_outputs, finite, result, show, write
from cemverify.results.provenance import Maker
from cemverify.results.tables import terminal
from synthetic.language.arguments import (
    NUMBERS_HELP,
    Command,
    add_corpus_arguments,
    add_recipe_arguments,
    corpus_choice,
    named_texts,
    preset_choice,
)
from synthetic.studies.side_by_side.conclusion import TrainingFindings, payload, tables
from synthetic.studies.side_by_side.rows import DEFAULT_PRESET
from synthetic.studies.side_by_side.trainings import TrainingRun, train_side_by_side
from synthetic.training.cost import words
from synthetic.training.machine import choose

SUMMARY = "train models side by side, and say whether they learn as they must"
USAGE = "[--preset NAME] [--corpus NAME] [option ...]"

DESCRIPTION = """\
Trains Llama with rotary and with ALiBi positions, and CEM at several recursion depths T, on the
same batches. Sets their validation bits beside those of unigram and bigram models.
Exit code 0 if every loss is finite, every model beats the bigram model and stays within the band
of the Llama with its positions (on text), and energies fall where they must; otherwise 1.
"""

MODELS = f"""\
--preset NAME         smoke: minutes on two CPU cores, the paper's 86M size on a GPU (default);
                      tiny: under a minute
--models NAME ...     only these of its models: llama-rope, llama-alibi, cem-t1, cem-t2, cem-t3
--depths T ...        recursion depths of CEM
--seed N              of weights and batches (default: 0)
{NUMBERS_HELP}"""

EPILOG = """\
examples:
  python -m synthetic language train --text ~/notes --steps 500 --folder out/notes --save-every 100
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the models", MODELS)
    add("--preset", default=DEFAULT_PRESET)
    add("--models", nargs="+", default=())
    add("--depths", nargs="+", type=whole(1), default=())
    add("--seed", type=seed, default=0)
    add_corpus_arguments(parser)
    group = parser.add_argument_group("how it runs")
    group.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda")
    group.add_argument("--workers", type=whole(0), metavar="N", help="processes (default: one for each CPU)")
    group.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="train through torch.compile (default: on a GPU)"
    )
    group.add_argument("--folder", type=path, metavar="DIR", help="keep each finished model here")
    group.add_argument("--save-every", type=whole(1), metavar="N", help="and a checkpoint every N steps")
    group.add_argument("--resume", action="store_true", help="resume from the checkpoints in --folder")
    group.add_argument(
        "--output", type=path, metavar="FILE", default=Path("out/language.json"), help="default: %(default)s"
    )


def run(options: argparse.Namespace) -> int:
    """Trains, prints the tables and writes the result file; 0 if it passes, 1 if not."""
    for name, values in (("depth", options.depths), ("model", options.models)):
        if twice := next((value for i, value in enumerate(values) if value in values[:i]), None):
            raise UsageError(f"{name} {twice} is given twice; give each once")
    if (options.save_every or options.resume) and not options.folder:
        raise UsageError("--save-every and --resume need the --folder where checkpoints are kept")
    check_outputs(options.output, folders=[options.folder], stores=[options.corpora], read=named_texts(options))
    run = TrainingRun(
        *(preset_choice(options), corpus_choice(options), options.corpora, options.seed, options.workers),
        *(options.folder, options.save_every, options.resume),
    )
    try:
        machine = choose(options.device, compiled=options.compile)
        maker = Maker.now(options.again, {}, run.seed, machine.device)
        findings = TrainingFindings(*train_side_by_side(run, machine))
        return _tell(findings, replace(maker, configuration=asdict(findings.config)), options)
    except KeyboardInterrupt as interrupt:
        kept = (
            "the same command with --resume goes on"
            if run.folder
            else "nothing was kept: --folder DIR keeps each finished model, --save-every N also checkpoints"
        )
        raise KeyboardInterrupt(f"interrupted; {kept}") from interrupt


def _tell(findings: TrainingFindings, maker: Maker, options: argparse.Namespace) -> int:
    """Prints and writes the findings of a run; returns the exit code."""
    content = payload(findings)
    printed = tables(findings, finite(result("language", maker, [], content)))
    show(terminal(printed))
    show(f"\n{words(findings.paths, compiled=findings.ground.machine.compiled)}")
    show("\n" + ("fail:" if findings.reasons else f"pass: {findings.passed}"))
    for reason in findings.reasons:
        show(f"  {reason}")
    for sentence in content["notes"]:
        note(f"WARNING: {sentence}")
    write(options.output, result("language", maker, printed, content))
    show(
        f"written to {options.output}; its loss curves: python -m reports pictures {shlex.quote(str(options.output))}"
    )
    return 1 if findings.reasons else 0
