"""`cemverify check --checkpoint`: judges one layer of a trained model on what the model feeds it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cemverify.console.errors import UsageError
from cemverify.console.parsing import path

if TYPE_CHECKING:
    from cemverify.conformance.trained.checkpoint import Weights
    from cemverify.conformance.trained.records import TrainedFindings

SEQUENCES, LENGTH = 4, 64  # for random tokens


DESCRIPTION = """\
With --checkpoint, IMPLEMENTATION is a function without arguments that builds a model: it returns a torch.nn.Module,
or cemverify.TrainedModel(model, declare=...) if the layer's energy has to be declared. The layer is judged with
its trained weights, on what the model feeds it. The model runs in this process: --examples, --workers, --seconds,
--timeout, --memory and --black-box have no effect.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options for trained weights."""
    group = parser.add_argument_group("trained weights", DESCRIPTION)
    group.add_argument(
        "--checkpoint", type=path, metavar="FILE", help="judge a layer with these weights, a .safetensors file"
    )
    group.add_argument("--layer", metavar="NAME", help="the sub-module to judge, such as blocks.0.attention")
    group.add_argument(
        "--tokens",
        type=path,
        metavar="FILE",
        help=f"what the model reads: a .npy file of integers (B, J) (default: {SEQUENCES} x {LENGTH} random tokens)",
    )


def asked_for(options: argparse.Namespace) -> bool:
    """Whether to judge a trained layer."""
    if options.checkpoint is None:
        for name in ("layer", "tokens"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} needs --checkpoint FILE, the trained weights")
        return False
    if options.layer is None:
        raise UsageError("--checkpoint needs --layer NAME, the sub-module to judge, such as blocks.0.attention")
    if options.properties:
        raise UsageError("--properties cannot be chosen for a trained layer, as all of them are quick: leave it out")
    if options.properties_from:
        raise UsageError("your own properties cannot be tested on a trained layer: leave out --properties-from")
    if options.save_counterexamples:
        raise UsageError("a trained layer has no small counterexamples to save: leave out --save-counterexamples")
    if options.suggest:
        raise UsageError("a trained layer's source is not searched: leave out --suggest")
    return True


def judge(options: argparse.Namespace) -> tuple[TrainedFindings, Weights]:
    """Builds the model, fills it, and judges the layer."""
    import torch

    from cemverify.conformance.judging.effort import Effort
    from cemverify.conformance.trained.activations import own_tokens, random_tokens, read_tokens
    from cemverify.conformance.trained.checkpoint import load_weights
    from cemverify.conformance.trained.model import build
    from cemverify.conformance.trained.records import judge_trained, prepare
    from cemverify.processes.devices import check_device

    check_device(options.device)
    model = build(options.implementation)
    weights = load_weights(model.model, options.checkpoint)
    if options.tokens is not None:
        tokens = read_tokens(options.tokens)
    else:
        tokens = own_tokens(model) or random_tokens(model.model, SEQUENCES, LENGTH, options.seed)
    layer = prepare(model, options.layer, tokens, options.device)
    dtype = getattr(torch, options.dtype)
    findings = judge_trained(layer, named(options), options.device, dtype)
    effort = Effort(seed=options.seed, dtype=dtype, device=options.device)
    finished = replace(findings.finished, options=None, command=_command(options, effort.options))
    return replace(findings, finished=finished), weights


def _command(options: argparse.Namespace, effort: Sequence[str]) -> str:
    """The command that repeats this judging, for which properties cannot be chosen."""
    tokens = [] if options.tokens is None else ["--tokens", str(options.tokens)]
    trained = ["--checkpoint", str(options.checkpoint), "--layer", options.layer, *tokens]
    return shlex.join(["cemverify", "check", options.implementation, *trained, *effort])


def named(options: argparse.Namespace) -> str:
    """The name of the run in results and in files of known violations."""
    return f"{options.implementation} {options.layer}"
