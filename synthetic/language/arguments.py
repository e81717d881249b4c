"""What the commands of the language bench share: their parser, and the options of corpora, presets and recipes.

Numerous options are listed in compact groups, to keep the help of a command short. Here the options become a frozen
configuration; nothing else sees the parsed arguments.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cemverify.console.errors import UsageError, one_of
from cemverify.console.parsing import Help, Parser, path, positive, whole
from synthetic import memory
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.choice import CorpusChoice, Library, TextFiles, corpora_folder
from synthetic.corpora.hub import DatasetSpec
from synthetic.studies.side_by_side.rows import PresetChoice

CORPORA = ("library", "markov", "hidden")
CORPUS_HELP = """\
--corpus NAME         library: the running Python's standard library, no network (default);
                      markov, hidden: chains drawn from a seed, whose entropy is known
--text PATH ...       your own files and folders; or --dataset NAME: a Hugging Face dataset
--tokeniser NAME      a tokenizer.json or a name on the hub (default: bytes are tokens)
--corpora DIR         where tokens are kept (default: $CEMVERIFY_CORPORA, or out/corpora)
of a dataset:         --configuration NAME --split NAME --column NAME --revision TAG --megabytes N
of a chain:           --symbols V --order K (markov) --states S (hidden) --length N"""

RECIPE_OPTIONS = ("steps", "batch", "context", "accumulate", "learning_rate")
SHAPE_OPTIONS = ("dim", "layers", "heads")
NUMBERS_HELP = """\
other numbers:        --steps N --batch B --context J --learning-rate R --accumulate N (passes)
                      --dim D --layers L --heads K"""

_OF_CHAINS = ("symbols", "length")
_OF_DATASETS = ("configuration", "split", "column", "revision", "megabytes")


class Command(Parser):
    """A parser whose groups describe their options themselves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = {"formatter_class": Help, "add_help": False}  # Help leaves "description" as it is written
        super().__init__(*args, **{**kwargs, **own})
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)


def add_compact(parser: argparse.ArgumentParser, title: str, text: str) -> Callable[..., object]:
    """Adds a group of options, described by `text`; returns a function that adds an option."""
    return partial(parser.add_argument_group(title, text).add_argument, help=argparse.SUPPRESS)


# --- corpora --------------------------------------------------------------------------------------


def add_corpus_arguments(parser: Command) -> None:
    """The options that `corpus_choice` reads."""
    add = add_compact(parser, "the corpus", CORPUS_HELP)
    add("--corpus", default=None)
    add("--text", nargs="+", type=path)
    add("--dataset")
    add("--tokeniser")
    add("--corpora", type=path, default=corpora_folder())
    for name in ("configuration", "split", "column", "revision"):
        add(f"--{name}")
    add("--megabytes", type=positive)
    for name in ("symbols", "order", "states", "length"):
        add(f"--{name}", type=whole(1))


def _check_corpus(options: argparse.Namespace) -> None:
    """Refuses options that belong to another corpus, where they would have no effect."""
    named = [f"--{name}" for name in ("corpus", "text", "dataset") if getattr(options, name) is not None]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} name two corpora; give one of them")
    if options.corpus is not None:
        one_of("corpus", options.corpus, dict.fromkeys(CORPORA), ", and --text and --dataset")
    for owner, names, fits in (
        ("--dataset", _OF_DATASETS, options.dataset is not None),
        ("--corpus markov or hidden", _OF_CHAINS, options.corpus in ("markov", "hidden")),
        ("--corpus markov", ("order",), options.corpus == "markov"),
        ("--corpus hidden", ("states",), options.corpus == "hidden"),
    ):
        misplaced = [name for name in names if getattr(options, name) is not None and not fits]
        if misplaced:
            raise UsageError(f"--{misplaced[0]} belongs to {owner}: leave it out")


def corpus_choice(options: argparse.Namespace) -> CorpusChoice:
    """The corpus that the options ask for; options that belong to another corpus are refused."""
    _check_corpus(options)
    if options.text is not None:
        return CorpusChoice(TextFiles(tuple(map(str, options.text))), options.tokeniser)
    if options.dataset is not None:
        numbers = {name: getattr(options, name) for name in _OF_DATASETS}
        return CorpusChoice(DatasetSpec(options.dataset, **_those_given(numbers)), options.tokeniser)
    if options.corpus in ("markov", "hidden"):
        numbers = {"vocabulary": options.symbols, "order": options.order, "states": options.states}
        if options.length is not None:
            numbers |= {"train": options.length, "validation": max(1, options.length // 16)}
        # uneven enough for the hidden states to be worth remembering
        peak = 6.0 if options.corpus == "hidden" else 3.0
        return CorpusChoice(ChainSpec(options.corpus, peak=peak, **_those_given(numbers)), options.tokeniser)
    return CorpusChoice(Library(), options.tokeniser)


def named_texts(options: argparse.Namespace) -> list[Path]:
    """The files that --text names."""
    return [text for text in options.text or () if text.is_file()]


# --- presets and recipes --------------------------------------------------------------------------


def add_recipe_arguments(parser: Command, title: str, text: str) -> Callable[..., object]:
    """The options that `recipe_changes` and `shape` read; returns a function that adds another to their group."""
    add = add_compact(parser, title, text)
    for name in (*RECIPE_OPTIONS, *SHAPE_OPTIONS):
        kind: Any = positive if name == "learning_rate" else whole(1)
        add(f"--{name.replace('_', '-')}", type=kind)
    return add


def _check_memory(options: argparse.Namespace) -> None:
    """Refuses numbers with which the weights and one layer's activations alone exceed the CPU's memory."""
    if options.device not in ("cpu", "auto") or torch.cuda.is_available():
        return
    numbers = {name: getattr(options, name) or 1 for name in ("batch", "context", "accumulate", *SHAPE_OPTIONS)}
    windows = math.ceil(numbers["batch"] / numbers["accumulate"])
    weights = 4 * numbers["layers"] * numbers["dim"] ** 2  # with gradient and both moments of Adam
    activations = windows * numbers["context"] * numbers["dim"] * numbers["layers"]
    words = ", ".join(f"--{name} {value:,}" for name, value in numbers.items() if value > 1)
    memory.require(4 * (weights + activations), f"a training with {words}", "give smaller numbers")


def recipe_changes(options: argparse.Namespace) -> dict[str, Any]:
    """The given numbers of a recipe, if a training with them fits the memory."""
    _check_memory(options)
    return _those_given({name: getattr(options, name) for name in RECIPE_OPTIONS})


def shape(options: argparse.Namespace) -> tuple[int | None, int | None, int | None]:
    """D, L and K; None where not given."""
    return options.dim, options.layers, options.heads


def preset_choice(options: argparse.Namespace) -> PresetChoice:
    """The preset that the options ask for, with the changes to it."""
    recipe, (dim, layers, heads) = recipe_changes(options), shape(options)
    return PresetChoice(options.preset, recipe, dim, layers, heads, tuple(options.depths), tuple(options.models))


def _those_given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
