"""The options of the language study, and what they stand for."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cemverify.cem.layers import AttentionConfig
from cemverify.errors import UsageError
from cemverify.runs import RunOptions, add_run_arguments
from synthetic.corpora.chains import Chain, ChainSpec, draw, source
from synthetic.corpora.corpus import Corpus, tokenised
from synthetic.corpora.hub import DatasetSpec, dataset
from synthetic.corpora.sources import Source, standard_library, text_files
from synthetic.corpora.tokenisers import Symbols, Tokeniser, subwords
from synthetic.language.paper.studies import SIZES, STUDIES, TINY
from synthetic.language.presets import PRESETS, Study, contenders, preset

DESCRIPTION = """\
Trains small language models on the same batches, Llama with RoPE and ALiBi positions and CEM at several recursion
depths T, and sets their validation bits per byte beside those of unigram and bigram models, gzip and xz, or beside
the exact floor of a source whose entropy is known. With --study, repeats one of the paper's experiments instead:
every model with several seeds, compared at equal tokens, FLOPs and parameters.
"""

EPILOG = """\
presets:
  smoke   a few minutes on two CPU cores (D = 128, 4 layers, T = 1, 2, 3); on a GPU the paper's 86M configuration in
          bfloat16 with 2048 tokens of context
  tiny    under a minute (D = 32, 2 layers, T = 1, 2); whether everything works

studies (--study, at --size tiny or one of the paper's: 86M, 108M, 134M, 162M):
{studies}

corpora:
  library   the source of the running Python's standard library, split by file; needs no network (the default)
  markov    a Markov chain, always the same, whose entropy rate is known in closed form (--order, --symbols)
  hidden    a hidden Markov model, whose floor the forward algorithm gives exactly (--states, --symbols)
  --text    files and folders of your own, split by file; a single file by block
  --dataset a Hugging Face dataset, streamed (the extra "hub"); json:FILE and parquet:FILE read local ones

columns of the table:
  MFLOPs/byte             matrix products of one forward pass; causal attention counts as if dense
  training MFLOPs/byte    of a forward and a backward pass
  MFU                     the share of the device's speed, measured in the same run, that training reaches
  minus bigram            bits per byte less than a bigram model needs, if negative
  above floor             bits per symbol more than the best possible predictor needs

columns of a study:
  equal tokens       validation bits over those of the baseline after as many tokens, 95 % interval over seeds
  equal FLOPs        the same when both have spent what the study's cheapest model spends in all
  equal parameters   the same of the model with its MLP widened to the baseline's parameters
  verdict            better, worse, equivalent (within 0.5 %) or inconclusive

examples:
  python -m synthetic language --preset smoke
  python -m synthetic language --corpus hidden --preset tiny
  python -m synthetic language --text ~/notes --steps 500 --folder out/notes --save-every 100    later --resume, too
  python -m synthetic language --implementation mymodule:mine                  your layers in the same harness
  torchrun --nproc-per-node 8 -m synthetic language --device cuda              one model on eight GPUs
  python -m synthetic language --dataset DKYoon/SlimPajama-6B --megabytes 500 --tokeniser huggyllama/llama-7b
  python -m synthetic language --study diagonal --page docs/results/language-diagonal.md
  python -m synthetic language --study recursion --size 86M --estimate         what it takes, and nothing else
  python -m synthetic language --study recursion --size 86M --dataset DKYoon/SlimPajama-6B \\
      --tokeniser huggyllama/llama-7b --device cuda --shard 1/8                one of eight jobs on one store

A study keeps every training (--store) and needs no --resume; a preset goes on from checkpoints in --folder with it.
On several GPUs, start one shard on each, with CUDA_VISIBLE_DEVICES. Workers on other machines find tokens in the
folder that CEMVERIFY_CORPORA names there, and make them if they are missing. torchrun trains presets only; its own
exit code is 1 where this one is 2.

exit code of a preset: 0 if every loss is finite, every model beats the bigram model and keeps within the band of the
Llama baseline with the same positions (on text), and energies fall where they must; 1 if not. Of a study: 0. Of both:
2 for bad arguments.
"""

CORPORA = ("library", "markov", "hidden")
DEFAULT_CORPORA = Path("out/corpora")
DEFAULT_PRESET = "smoke"

# what a preset alone has, and what a study alone has; the first value is that of an option that is not given
_OF_PRESETS = {
    "preset": None,
    "depths": None,
    "implementation": None,
    "folder": None,
    "save_every": None,
    "compile": False,
    "sharded": False,
}
_OF_STUDIES = {
    "size": None,
    "seeds": None,
    "estimate": False,
    "tflops": None,
    "page": None,
    "shard": None,
    "cluster": None,
    "retry_failed": False,
    "store": RunOptions.store,
}


# what trains somebody else's layers has not; it runs on one thread of the CPU
_NOT_OF_COMPARISONS = {
    "folder": None,
    "save_every": None,
    "resume": None,
    "compile": False,
    "sharded": False,
}
# in the order in which a command names them
_OF_CORPORA = (
    *("text", "dataset", "configuration", "revision", "megabytes", "tokeniser"),
    *("symbols", "order", "states", "length"),
)
TRAINING = ("steps", "batch", "context", "accumulate", "learning_rate", "dim", "layers", "heads")
_OF_CHAINS = {"symbols": None, "length": None}
_OF_DATASETS = {"configuration": None, "split": "train", "column": "text", "revision": None, "megabytes": None}

CORPORA_VARIABLE = "CEMVERIFY_CORPORA"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic language`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG.format(
        studies="\n".join(
            f"  {name:<19}{figure}: {(make.__doc__ or '').splitlines()[0]}"
            for name, (figure, make) in STUDIES.items()
        )
    )
    add = parser.add_argument
    add("--preset", help=f"{', '.join(PRESETS)}; default: {DEFAULT_PRESET}")
    add("--seed", type=int, default=0, help="of weights and batches; default: %(default)s")
    add("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda; default: %(default)s")
    add("--output", type=Path, help="the result file; default: out/language.json, or out/language-STUDY.json")

    text = parser.add_argument_group("corpus")
    text.add_argument("--corpus", default="library", help=f"{', '.join(CORPORA)}; default: %(default)s")
    text.add_argument("--text", type=Path, nargs="+", metavar="PATH", help="files and folders instead")
    text.add_argument("--dataset", metavar="NAME", help="a Hugging Face dataset instead")
    text.add_argument("--configuration", metavar="NAME", help="of the dataset, if it has several")
    text.add_argument("--split", default="train", help="of the dataset; default: %(default)s")
    text.add_argument("--column", default="text", help="of the dataset that holds the text; default: %(default)s")
    text.add_argument("--revision", help="a commit or tag of the dataset; default: the newest")
    text.add_argument("--megabytes", type=float, help="of the dataset's text to take; default: all of it")
    text.add_argument("--tokeniser", metavar="NAME", help="a tokenizer.json or a name on the hub; default: bytes")
    text.add_argument("--symbols", type=int, help="V of a chain; default: 16")
    text.add_argument("--order", type=int, help="of a Markov chain; default: 2")
    text.add_argument(
        "--length", type=int, help="training symbols of a chain, 1/16 more to validate; default: 2097152"
    )
    text.add_argument("--states", type=int, help="of a hidden Markov model; default: 24")
    text.add_argument(
        "--corpora",
        type=Path,
        default=corpora_folder(),
        metavar="DIR",
        help="where tokens are kept; default: %(default)s",
    )

    models = parser.add_argument_group("models and training, instead of the preset's")
    models.add_argument("--steps", type=int, help="optimiser steps, one batch each; T belongs to the models")
    models.add_argument("--batch", type=int, help="B, windows in a batch, over all processes")
    models.add_argument("--context", type=int, help="J, tokens in a window")
    models.add_argument("--accumulate", type=int, help="passes in which a batch goes through the model")
    models.add_argument("--learning-rate", type=float, help="at the end of the warm-up")
    models.add_argument("--dim", type=int, help="D")
    models.add_argument("--layers", type=int, help="L")
    models.add_argument("--heads", type=int, help="K")
    models.add_argument("--depths", type=int, nargs="+", metavar="T", help="the recursion depths of CEM")

    studies = parser.add_argument_group("the paper's experiments")
    studies.add_argument("--study", dest="experiment", metavar="NAME", help="one of those above, instead of a preset")
    studies.add_argument("--size", metavar="SIZE", help=f"{', '.join(SIZES)}; default: {TINY}")
    studies.add_argument(
        "--seeds", type=int, metavar="N", help="trainings of each model; default: 6, or 1 beyond tiny"
    )
    studies.add_argument("--estimate", action="store_true", help="say what the study takes, and do nothing")
    studies.add_argument(
        "--tflops", type=float, metavar="N", help="useful TFLOP/s of a device, for the estimate; default: of an H100"
    )
    studies.add_argument("--page", type=Path, metavar="FILE", help="also a page in Markdown, its figures beside it")

    runs = parser.add_argument_group("running a preset")
    runs.add_argument(
        "--compile", action="store_true", help="train through torch.compile; 15 to 20 s a model to begin with"
    )
    runs.add_argument("--sharded", action="store_true", help="under torchrun: split the model over processes (FSDP2)")
    runs.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep metrics, weights and checkpoints of every model here"
    )
    runs.add_argument("--save-every", type=int, metavar="N", help="a checkpoint each N steps, in --folder")
    runs.add_argument(
        "--implementation",
        metavar="NAME",
        help="module:attribute of a torch implementation: train its layers beside the reference's and compare losses",
    )
    add_run_arguments(
        parser,
        "A study: kill it at any moment, the same command goes on from there. A preset: --workers, and with --folder"
        " --resume.",
    )
    parser.set_defaults(resume=None)  # a study resumes by itself, a preset if it is told to


def check(options: argparse.Namespace) -> None:
    """Refuses options that make no sense, before anything is done.

    Raises:
        UsageError: the sentence names the option, what was given and what is allowed.
    """
    if not 0 <= options.seed < 2**32:
        raise UsageError(f"--seed must be from 0 to 2^32 - 1, not {options.seed}")
    for name in (
        "steps",
        "batch",
        "context",
        "accumulate",
        "layers",
        "heads",
        "dim",
        "length",
        "seeds",
        "save_every",
    ):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if options.workers is not None and options.workers < 0:
        raise UsageError(f"--workers must be at least 1, or 0 for this process, not {options.workers}")
    for name in ("learning_rate", "megabytes", "tflops"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')} must be a positive number, not {value:g}")
    if options.implementation is not None:
        _refuse_given(options, _NOT_OF_COMPARISONS, "is nothing for --implementation: leave it out")
        if options.device not in ("auto", "cpu"):
            raise UsageError(f"--implementation trains on the CPU, not on {options.device}: leave out --device")
    if options.experiment is None:
        _refuse_given(options, _OF_STUDIES, "belongs to a study: give --study NAME too")
    else:
        _refuse_given(options, _OF_PRESETS, "belongs to a preset, and not to --study: leave it out")
    if options.depths and min(options.depths) < 1:
        raise UsageError(f"--depths must each be at least 1, not {min(options.depths)}")
    if options.corpus not in CORPORA:
        raise UsageError(f"no corpus {options.corpus!r}; there are: {', '.join(CORPORA)}, and --text and --dataset")
    if options.text and options.dataset:
        raise UsageError("--text and --dataset name two corpora; give one")
    _check_corpus(options)
    if options.experiment is None and (options.save_every or options.resume) and not options.folder:
        raise UsageError("--save-every and --resume need the --folder where checkpoints are kept")


def _check_corpus(options: argparse.Namespace) -> None:
    """Refuses options of one corpus beside another, where they would change nothing."""
    chain = None if options.text or options.dataset else options.corpus
    if not options.dataset:
        _refuse_given(options, _OF_DATASETS, "belongs to --dataset: leave it out")
    if chain not in ("markov", "hidden"):
        _refuse_given(options, _OF_CHAINS, "belongs to --corpus markov or hidden: leave it out")
    if chain != "markov":
        _refuse_given(options, {"order": None}, "belongs to --corpus markov: leave it out")
    if chain != "hidden":
        _refuse_given(options, {"states": None}, "belongs to --corpus hidden: leave it out")


def corpora_folder() -> Path:
    """Where corpora lie on this machine, if nothing else is said."""
    return Path(os.environ.get(CORPORA_VARIABLE) or DEFAULT_CORPORA)


def settled(options: argparse.Namespace) -> dict[str, Any]:
    """What a preset takes where nothing is given."""
    return {"preset": options.preset or DEFAULT_PRESET, "output": options.output or Path("out/language.json")}


def _refuse_given(options: argparse.Namespace, others: Mapping[str, Any], why: str) -> None:
    if given := [name for name, absent in others.items() if getattr(options, name) != absent]:
        raise UsageError(f"--{given[0].replace('_', '-')} {why}")


def open_corpus(options: argparse.Namespace) -> tuple[Corpus, Chain | None]:
    """The corpus asked for, and the chain behind it if it is one.

    Raises:
        UsageError: it cannot be had, or is empty.
    """
    chain, tokeniser = None, _tokeniser(options)
    found: Source
    if options.text:
        found = text_files(options.text)
    elif options.dataset:
        spec = DatasetSpec(
            options.dataset, options.configuration, options.split, options.column, options.revision, options.megabytes
        )
        found = dataset(spec)
    elif options.corpus == "library":
        found = standard_library()
    else:
        if options.tokeniser:
            raise UsageError("a chain's symbols are its tokens: leave out --tokeniser")
        given = {"vocabulary": options.symbols, "order": options.order, "states": options.states}
        if options.length is not None:
            given |= {"train": options.length, "validation": max(1, options.length // 16)}
        # uneven enough for the hidden states to be worth remembering
        peak = 6.0 if options.corpus == "hidden" else 3.0
        chain = draw(
            ChainSpec(
                options.corpus, peak=peak, **{name: value for name, value in given.items() if value is not None}
            )
        )
        found, tokeniser = source(chain), Symbols(chain.spec.vocabulary)
    return tokenised(found, tokeniser, options.corpora, report=_say), chain


def study(options: argparse.Namespace, device: str, vocabulary: int) -> Study:
    """The preset with what the options change of it.

    Raises:
        UsageError: there is no such preset, or the numbers do not fit together.
    """
    found = preset(options.preset, device, vocabulary)
    names = ("steps", "batch", "context", "accumulate", "learning_rate")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    found = replace(found, recipe=replace(found.recipe, **given))
    if any((options.dim, options.layers, options.heads, options.depths)):
        model = found.contenders[0].model
        attentions = [c.model.block.attention for c in found.contenders]
        depths = tuple(a.steps for a in attentions if isinstance(a, AttentionConfig))
        found = replace(
            found,
            contenders=contenders(
                vocabulary,
                options.dim or model.dim,
                options.layers or model.layers,
                options.heads or model.block.attention.heads,
                tuple(dict.fromkeys(options.depths or depths)),
            ),
        )
    return found


def command(options: argparse.Namespace, device: str) -> str:
    """The command that makes the same result again."""
    words = ["python", "-m", "synthetic", "language", "--preset", options.preset, "--seed", str(options.seed)]
    words += ["--device", device.partition(":")[0]]
    words += as_typed(options, *TRAINING, "depths", "implementation")
    words += [f"--{name}" for name in ("compile", "sharded") if getattr(options, name)]
    return shlex.join(words)


def as_typed(options: argparse.Namespace, *names: str) -> list[str]:
    """The words that name the corpus, and those of the options of these names that are given."""
    words = [] if options.text or options.dataset else ["--corpus", options.corpus]
    if options.dataset:
        words += ["--split", options.split, "--column", options.column]
    for name in (*_OF_CORPORA, *names):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return words


def _tokeniser(options: argparse.Namespace) -> Tokeniser:
    return subwords(options.tokeniser) if options.tokeniser else Symbols()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
