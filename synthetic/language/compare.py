"""`python -m synthetic language compare`: somebody else's layers, trained beside the reference's."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from cemverify.conformance.implementations import naming
from cemverify.console.parsing import path, seed
from cemverify.results.envelope import check_outputs, result, show, write
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
from synthetic.side_by_side.presets import DEFAULT_PRESET

SUMMARY = "train your own layers beside the reference's, and compare their losses step by step"
USAGE = "IMPLEMENTATION [--preset NAME] [--corpus NAME] [option ...]"

DESCRIPTION = """\
Trains a language model twice from the same weights on the same batches: once with the reference's
CEM layers, once with your `attention` and `mlp` functions, which must compute with torch. Says at
which step the losses part, beyond what rounding explains. It runs on one thread of the CPU.
Exit code 0 if they agree, 1 if they do not.
"""

MODELS = f"""\
IMPLEMENTATION        module:attribute, as `cemverify check` takes it
--preset NAME         whose size and recipe are taken: smoke (default) or tiny
--seed N              of weights and batches (default: 0)
--output FILE         the result file (default: out/language.json)
{NUMBERS_HELP}"""

EPILOG = """\
example:
  python -m synthetic language compare mymodule:layers --preset tiny --corpus hidden --steps 100
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "what is compared", MODELS)
    add("implementation", metavar="IMPLEMENTATION")
    add("--preset", default=DEFAULT_PRESET)
    add("--seed", type=seed, default=0)
    add("--output", type=path, default=Path("out/language.json"))
    add_corpus_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Compares, prints the table and writes the result file; 0 if the losses agree, 1 if not.

    Raises:
        UsageError: the implementation cannot be trained, or an option is invalid.
        cemverify.results.envelope.ResultError: the result file cannot be written.
    """
    # the verifier is heavy to import
    from synthetic.loss_agreement.implementations import compare_losses, table

    read = [*named_texts(options), *naming.files(options.implementation)]
    check_outputs(options.output, stores=[options.corpora], read=read)
    maker = Maker.now(options.again, {}, options.seed, "cpu")
    models, corpus = preset_choice(options), corpus_choice(options)
    curves = compare_losses(options.implementation, models, corpus, options.corpora, options.seed)
    maker = replace(maker, configuration={"model": asdict(curves.model), "recipe": asdict(curves.recipe)})
    shown = [table(curves)]
    show(terminal(shown))
    show(f"\n{curves.sentence}")
    write(options.output, result("language", maker, shown, curves.payload))
    show(f"written to {options.output}")
    return 0 if curves.agree else 1
