"""Judges a saved counterexample without cemverify. Needs NumPy, and torch or JAX if the implementation does.

Without cemverify, this script defines what a file imports from it to declare its layer.

`cemverify check --save-counterexamples FOLDER` writes three files for each violation, this one among them:

    NAME.json   the calls that were made, and what each should have given
    NAME.npz    every array, exactly
    NAME.py     this script, which reads the two others; it is the same for every counterexample

It repeats the recorded calls with the same arrays and checks what the implementation got wrong: the right output
(float64 autograd of the energy, stored), shape and dtype, the same bits twice, unchanged inputs, or an error for bad
input.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, make_dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]

DESCRIPTION = """\
Checks whether an implementation still fails the counterexample that is stored next to this script.

exit code: 1 if the fault is still there; 0 if it is gone; 2 if it cannot be judged.
"""

_INSIDE = "CEMVERIFY_INSIDE"
_CODES = (40, 41, 42)  # exit codes of an inner process; an implementation that ends it is unlikely to use them
_WIDTH = 110  # characters of a line; longer arrays are only in the files
NAMED_PARAMETERS = ""  # in a saved script, the source that puts weights into modules


class Unusable(Exception):
    """The files or the implementation cannot be used; the message says why."""


@dataclass(frozen=True)
class SavedCalls:
    """What the saved files hold."""

    stem: Path  # the path without a suffix
    implementation: str  # the implementation's name
    record: Mapping[str, Any]  # of the property
    kind: str  # the kind of arrays that it takes: "torch", "numpy" or "jax"
    # dtype, device: those of floating-point arrays
    dtype: str
    device: str
    within: float | None  # seconds in which a call must return; None if all calls did
    calls: Sequence[Mapping[str, Any]]  # function, arguments, config, and the `demands` that the call did not meet
    # if demanded, a sum of the answers times weights that must vanish or not be positive
    linear: Mapping[str, Any] | None
    parameters: Mapping[str, str]  # for an energy layer, names of arrays by the parameters' own names
    arrays: Mapping[str, Values]  # by the names that the calls use

    @property
    def demanding(self) -> bool:
        """Whether any call has a demand of its own."""
        lost = self.within is not None and bool(self.calls)
        return lost or self.linear is not None or any(call["demands"] for call in self.calls)

    def describe(self) -> str:
        """The property, what was found, and as much of the case as fits a line."""
        of = self.record
        lines = [f"{of['id']}: {of['claim']}", f"  source: {of['source']}"]
        lines.append(f"  found with {self.implementation}: {of.get('reason')}")
        if of.get("part"):
            lines.append(f"  wrong part: {of['part']}: {of.get('because')}")
        case = (of.get("counterexample") or {}).get("case") or {}
        lines.append("the smallest case found:" if self.within is None else "the case tested at that moment:")
        for name, value in case.items():
            text = f"  {name}: {json.dumps(value)}"
            lines.append(text if len(text) <= _WIDTH else f"  {name}: in {self.stem.name}.json")
        return "\n".join(lines)


def load(stem: Path) -> SavedCalls:
    """Reads NAME.json and the arrays beside it.

    Raises:
        Unusable: a file is missing or damaged.
    """
    try:
        content = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        saved = content["asked"]
        with np.load(stem.with_name(content["arrays"]), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return SavedCalls(
            stem,
            content["implementation"],
            content["property"],
            arrays=arrays,
            parameters=saved.get("parameters", {}),
            **{name: saved[name] for name in ("kind", "dtype", "device", "within", "calls", "linear")},
        )
    except OSError as error:
        raise Unusable(f"{error.filename or stem}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file may raise anything
        raise Unusable(f"{stem}.json or .npz is damaged ({type(error).__name__}: {error})") from error


# --- arguments ------------------------------------------------------------------------------------


class _AttentionOptions:
    """Properties that an attention config derives from its fields."""

    dim: int
    heads: int
    head_dim: int | None
    temperature: float | None

    @property
    def R(self) -> int:
        """R, the number of features per attention head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def tau(self) -> float:
        """The temperature by which attention divides its scores."""
        return math.sqrt(self.R) if self.temperature is None else self.temperature


_CONFIGS: Mapping[str, type] = {
    "AttentionConfig": _AttentionOptions,
    **{name: type(name, (), {}) for name in ("MLPConfig", "BlockConfig", "PreconditionerConfig")},
}


def config_class(name: str, options: Sequence[str]) -> type:
    """A class for "MODULE:CLASS": cemverify's if the implementation itself imported it, otherwise one like it."""
    module, _, kind = name.partition(":")
    theirs = getattr(sys.modules.get(module), kind, None)
    if isinstance(theirs, type) and is_dataclass(theirs):
        return theirs
    bases = (_CONFIGS[kind],) if kind in _CONFIGS else ()  # so that it is an instance of the stand-in
    return make_dataclass(kind, options, bases=bases, frozen=True)


def value(tree: Any, saved: SavedCalls) -> Any:
    """The argument that a tree of plain data represents; its arrays are fresh."""
    match tree:
        case {"array": str(name)}:
            return array(saved, name, tree.get("dtype"), tree.get("strides"))
        case {"dataclass": str(name), "fields": Mapping() as options}:
            kind = config_class(name, list(options))
            made: Any = object.__new__(kind)  # unchecked: some questions are deliberately bad input
            for option, content in options.items():
                object.__setattr__(made, option, value(content, saved))
            return made
        case {"mapping": Mapping() as items}:
            return {key: value(item, saved) for key, item in items.items()}
        case {"sequence": list(items)}:
            return tuple(value(item, saved) for item in items)
        case {"float": str(text)}:
            return float(text)
        case {"dtype": str(word)}:
            return getattr(importlib.import_module("torch"), word)
    return tree


def array(saved: SavedCalls, name: str, dtype: str | None = None, strides: Sequence[int] | None = None) -> Any:
    """A fresh array of the implementation's kind, rounded to its dtype; integers stay integers."""
    values = np.array(saved.arrays[name])
    dtype = (dtype or saved.dtype) if values.dtype.kind == "f" else str(values.dtype)
    if saved.kind == "torch":
        import torch

        tensor = torch.from_numpy(values).to(getattr(torch, dtype))
        if strides is not None and tensor.numel():
            span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, strides, strict=True))
            laid = torch.zeros(span, dtype=tensor.dtype).as_strided(tensor.shape, tuple(strides))
            tensor = laid.copy_(tensor)
        return tensor.to(saved.device)
    if saved.kind == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray(values).astype(dtype)
    return values.astype(dtype)


def numbers(returned: Any) -> Values:
    """Any library's array as NumPy's float64."""
    if hasattr(returned, "detach"):
        returned = returned.detach().cpu().double().numpy()
    return np.array(returned, dtype=np.float64)


def function(implementation: Any, name: str) -> Any:
    """A function of the implementation, by its name."""
    functions = getattr(implementation, "functions", None)
    return functions[name] if functions is not None else getattr(implementation, name)


# --- declarations ---------------------------------------------------------------------------------


def _declared(**given: Any) -> SimpleNamespace:
    """The arguments of `implementation` and `energy_layer`, by name."""
    named = getattr(given.get("parameters"), "named_parameters", None)
    return SimpleNamespace(**{"arrays": "torch"} | given | ({} if named is None else {"parameters": dict(named())}))


def _declared_modules(*, names: Any = None, free: Any = (), not_offered: Any = (), **builds: Any) -> SimpleNamespace:
    """Stands in for `implementation_from_modules`."""
    loader: dict[str, Any] = {}
    exec(NAMED_PARAMETERS, loader)  # noqa: S102 - cemverify's own
    options, alone = (names or {}, frozenset(free)), "start" in not_offered
    layer_of = loader["layer_of"]
    made = {name: layer_of(build, *options, alone and name != "prefill") for name, build in builds.items()}
    return _declared(**made)


def stand_in() -> None:
    """Defines what a file imports from cemverify to declare its layer, unless cemverify is installed."""
    try:
        if importlib.util.find_spec("cemverify") is not None:
            return
    except (ImportError, ValueError):  # raised by a finder, or by a module that stands in for a missing one
        pass
    names = {
        "cemverify": {
            "implementation": _declared,
            "energy_layer": _declared,
            "implementation_from_modules": _declared_modules,
            "layer_property": lambda **_: lambda stated: stated,
            **dict.fromkeys(("Implementation", "EnergyLayer", "TrainedModel"), SimpleNamespace),
            **dict.fromkeys(("PRESENT_STATE", "SOME_POSITIVE_DEFINITE"), "declared"),
        },
        "cemverify.cem": {},
        "cemverify.cem.layers": _CONFIGS,
        "cemverify.cem.models": _CONFIGS,
    }
    for name, content in names.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)


# --- judging --------------------------------------------------------------------------------------


def breaches(implementation: Any, saved: SavedCalls) -> Iterator[str]:
    """What the implementation still does wrong, in one sentence each."""
    answers: list[Values | None] = []
    for call in saved.calls:
        name, demands = call["function"], call["demands"]
        arguments = value(call["arguments"], saved)
        before = _copies(arguments)
        options = [] if call["config"] is None else [value(call["config"], saved)]
        if saved.within is not None:  # reports a call that takes longer, and ends the process
            faulthandler.dump_traceback_later(saved.within, exit=True)
        try:
            returned = function(implementation, name)(*arguments.values(), *options)
            answer = numbers(returned)
        except Exception as error:
            answers.append(None)
            if "refuse" in demands:
                if not isinstance(error, ValueError | TypeError) or not error.args:
                    yield f"{name} raised {type(error).__name__}, not a ValueError or TypeError with a message"
            elif demands:
                yield f"{name} raised {type(error).__name__}: {error}"
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        answers.append(answer)
        if "refuse" in demands:
            yield f"{name} accepted bad input"
        if "dtype" in demands:
            dtype = getattr(returned, "dtype", type(returned).__name__)
            if dtype != next(iter(arguments.values())).dtype:
                yield f"{name} returned {dtype}"
        if "keeps" in demands:
            yield from (f"{name} changed {key}" for key in _changed(before, _copies(arguments)))
        if "repeats" in demands:
            first = answers[demands["repeats"]]
            if first is None or not np.array_equal(answer, first, equal_nan=True):
                yield f"{name} returned different bits the second time"
        yield from _wrong(name, answer, call, saved.arrays)
    there = [answer for answer in answers if answer is not None]
    if (relation := saved.linear) is not None and len(there) == len(answers):  # the linear relation between them
        weights = [saved.arrays[name] for name in relation["weights"]]
        total = relation["constant"] + sum(float((w * a).sum()) for w, a in zip(weights, there, strict=True))
        if not (abs(total) if relation["relation"] == "equal" else total) <= relation["budget"]:
            yield f"{relation['what']}: off by {total:.6g}, at most {relation['budget']:.3g} is allowed"


def _copies(arguments: Mapping[str, Any]) -> dict[str, Values]:
    """Copies of the arrays among the arguments, by name."""
    weights = arguments.get("weights", {})
    arrays = {name: content for name, content in arguments.items() if name != "weights"}
    return {name: numbers(a) for name, a in (arrays | {f"weights[{n!r}]": w for n, w in weights.items()}).items()}


def _changed(before: Mapping[str, Values], after: Mapping[str, Values]) -> list[str]:
    return [
        name
        for name, content in before.items()
        if name not in after or not np.array_equal(content, after[name], equal_nan=True)
    ]


def _wrong(name: str, answer: Values, call: Mapping[str, Any], arrays: Mapping[str, Values]) -> Iterator[str]:
    """Says whether an answer is missing or wrong."""
    demands = call["demands"]
    if "shape" in demands and not (answer.shape == tuple(demands["shape"]) and np.isfinite(answer).all()):
        yield f"{name} returned shape {answer.shape}, finite: {bool(np.isfinite(answer).all())}"
        return
    if "expected" in demands:
        expected = arrays[call["expected"]]
        off = ~(np.abs(answer - expected) <= arrays[call["budget"]])
        if off.any():
            at = tuple(int(n) for n in np.argwhere(off)[0])
            yield f"{name} gave {answer[at]:.17g}, expected {expected[at]:.17g} at {at}"
    if "norm" in demands:
        at, most = tuple(demands["norm"]["at"]), demands["norm"]["most"]
        error = float(np.linalg.norm((answer - arrays[call["expected"]])[at]))
        if not error <= most:
            yield f"{name} is off by {error:.3g} at {at or 'all'}, at most {most:.3g} is allowed"


def restore_parameters(implementation: Any, saved: SavedCalls) -> None:
    """Restores the values of the layer's parameters: a module may be made with others each time."""
    for name, array in saved.parameters.items():
        torch = importlib.import_module("torch")
        with torch.no_grad():
            implementation.parameters[name].copy_(torch.from_numpy(saved.arrays[array]))


# --- the command ----------------------------------------------------------------------------------


def judge(saved: SavedCalls, name: str) -> int:
    """Judges a saved case: prints why it passes or fails, and returns the exit code."""
    if not saved.demanding:
        raise Unusable(f"this case cannot be judged without cemverify; use: cemverify replay {saved.stem.name}.json")
    sys.path.insert(0, os.getcwd())
    stand_in()
    module, _, attribute = name.partition(":")
    try:
        implementation = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            implementation = getattr(implementation, part)
        for needed in {call["function"] for call in saved.calls}:
            function(implementation, needed)
        restore_parameters(implementation, saved)
    except Exception as error:
        ours = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "cemverify"
        remedy = ": install cemverify, or name a module of its functions alone" if ours else ""
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            remedy = ": run this in the folder of that module, or put the folder on PYTHONPATH"
        raise Unusable(f"{name} cannot be loaded ({type(error).__name__}: {error}){remedy}") from error
    kind = getattr(implementation, "arrays", None)  # another implementation may take another kind of arrays
    sentences = list(breaches(implementation, replace(saved, kind=kind) if isinstance(kind, str) else saved))
    print("\n".join(sentences) or "the fault is gone")
    return 1 if sentences else 0


def main() -> int:
    """Asks the saved question again and prints the result: the command `python NAME.py`."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "implementation",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="implementation to check (default: the one it was found with)",
    )
    name = parser.parse_args().implementation
    try:
        saved = load(Path(__file__).with_suffix(""))
        if _INSIDE in os.environ:
            return _CODES[judge(saved, name or saved.implementation)]
        print(saved.describe(), flush=True)
        if saved.within is not None:  # in a process of its own, which the implementation may block or end
            done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, _INSIDE: "1"}, check=False)  # noqa: S603
            if done.returncode in _CODES:
                return _CODES.index(done.returncode)
            lost = f"did not return within {saved.within:g} s, or ended the interpreter"
            print(f"a call {lost} (exit code {done.returncode})")
            return 1
        return judge(saved, name or saved.implementation)
    except Unusable as error:
        print(f"cannot be judged: {error}")
        return _CODES[2] if _INSIDE in os.environ else 2


if __name__ == "__main__":
    sys.exit(main())
