"""A counterexample as a script of its own: torch or NumPy, the implementation, and nothing of this package.

The script makes the calls that the check made, on the same arrays, and demands of them what they owed when
they were recorded: the right answer (float64 autograd of the energy, stored), the same bits twice, inputs left
alone, a refusal.
Only demands that the recorded calls break are written, so that the script fails where the property did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.questions.saving import Call, Saved, Tree

_READABLE = 240  # numbers that are written out; more are read from the file beside the script
_REFUSAL, _DTYPE = "bad input is refused", "shape and dtype"

_HEAD = '''\
"""{id}: {claim}

Source: {source}
Found with {implementation}: {reason}
{part}
Asks the implementation {found}. Exit code 1 while the fault is there, 0 when it is gone, 2 if it
cannot be judged. Another implementation may be named: python {name} MODULE:ATTRIBUTE
"""

import faulthandler
import importlib
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

IMPLEMENTATION = {implementation!r}
ARRAYS_ARE = {kind!r}  # what the implementation takes
DTYPE, DEVICE = {dtype!r}, {device!r}
WITHIN = {within!r}  # seconds in which a call must come back; None if that was no trouble

'''

_TAIL = '''

def own(kind):
    """A config class: cemverify's, if the implementation itself brought it in; else the one above."""
    for module in ("cemverify.cem.layers", "cemverify.cem.models"):
        if hasattr(sys.modules.get(module), kind.__name__):
            return getattr(sys.modules[module], kind.__name__)
    return kind


def made(kind, /, **options):
    """A config with these options and no others, unchecked."""
    config = object.__new__(own(kind))
    for name, value in options.items():
        object.__setattr__(config, name, value)
    return config


def array(name, dtype=None, strides=None):
    """A fresh array of the implementation's kind, rounded to its dtype; integers stay integers."""
    values = np.array(ARRAYS[name])
    dtype = dtype or DTYPE if values.dtype.kind == "f" else str(values.dtype)
    if ARRAYS_ARE == "torch":
        import torch

        tensor = torch.from_numpy(values).to(getattr(torch, dtype))
        if strides is not None:
            span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, strides))
            tensor = torch.zeros(span, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)
        return tensor.to(DEVICE)
    if ARRAYS_ARE == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray(values).astype(dtype)
    return values.astype(dtype)


def numbers(returned):
    """An array as NumPy's float64, whoever made it."""
    if hasattr(returned, "detach"):
        returned = returned.detach().cpu().double().numpy()
    return np.array(returned, dtype=np.float64)


def function(found, name):
    """A function of the implementation, by its name."""
    functions = getattr(found, "functions", None)
    return functions[name] if functions is not None else getattr(found, name)


def arrays_of(arguments):
    """The arrays among the arguments, by name."""
    named = {name: value for name, value in arguments.items() if name not in ("weights", "config")}
    return named | {f"weights[{name!r}]": value for name, value in arguments.get("weights", {}).items()}


def breaches(found):
    """What the implementation still does wrong, one sentence each."""
    said, answers = [], []
    for i, call in enumerate(calls()):
        arguments, name = call["arguments"], call["function"]
        before = {key: numbers(value) for key, value in arrays_of(arguments).items()}
        if WITHIN is not None:  # says where it stands then, and ends the process
            faulthandler.dump_traceback_later(WITHIN, exit=True)
        try:
            returned = function(found, name)(*arguments.values())
            answer = numbers(returned)
            faulthandler.cancel_dump_traceback_later()
        except Exception as error:
            faulthandler.cancel_dump_traceback_later()
            answers.append(None)
            if "refuse" in call:
                if not isinstance(error, (ValueError, TypeError)) or not error.args:
                    said.append(f"{name} raised {type(error).__name__}, no ValueError or TypeError that says why")
            elif call.keys() & {"expected", "shape", "repeats", "keeps", "dtype", "row", "weight"}:
                said.append(f"{name} raised {type(error).__name__}: {error}")
            continue
        answers.append(answer)
        if "refuse" in call:
            said.append(f"{name} accepted bad input")
        if "shape" in call and (answer.shape != call["shape"] or not np.isfinite(answer).all()):
            said.append(f"{name} returned shape {answer.shape}, finite: {bool(np.isfinite(answer).all())}")
            continue
        if "expected" in call:
            off = np.abs(answer - call["expected"]) > call["budget"]
            if off.any():
                at = tuple(int(n) for n in np.argwhere(off)[0])
                said.append(f"{name} gave {answer[at]:.17g}, expected {call['expected'][at]:.17g} at {at}")
        if "row" in call:
            index, limit = call["row"]
            error = float(np.linalg.norm((answer - call["exact"])[index] if index else answer - call["exact"]))
            if not error <= limit:
                said.append(f"{name} is off by {error:.3g} at {index or 'all'}, at most {limit:.3g} is allowed")
        if "repeats" in call and not np.array_equal(answer, answers[call["repeats"]], equal_nan=True):
            said.append(f"{name} gave other bits the second time")
        if "keeps" in call:
            after = {key: numbers(value) for key, value in arrays_of(arguments).items()}
            said += [f"{name} changed {key}" for key in before
                     if key not in after or not np.array_equal(before[key], after[key], equal_nan=True)]
        if "dtype" in call and returned.dtype != arguments.get("x", arguments.get("h")).dtype:
            said.append(f"{name} returned {returned.dtype}")
    if LINEAR is not None and all(answer is not None for answer in answers):
        total = LINEAR["constant"] + sum(float((ARRAYS[w] * a).sum()) for w, a in zip(LINEAR["weights"], answers))
        wrong = abs(total) if LINEAR["relation"] == "equal" else total
        if not wrong <= LINEAR["budget"]:
            said.append(f"{LINEAR['what']}: off by {total:.6g}, at most {LINEAR['budget']:.3g} is allowed")
    return said


def from_outside():
    """Asks in a process of its own, which the implementation may block or end."""
    done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"})
    if done.returncode in CODES:
        return CODES.index(done.returncode)
    print(f"a call did not return within {WITHIN:g} seconds, or ended the interpreter (exit code {done.returncode})")
    return 1


def main():
    sys.path.insert(0, os.getcwd())
    name = sys.argv[1] if len(sys.argv) > 1 else IMPLEMENTATION
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        for needed in {call["function"] for call in calls()}:
            function(found, needed)
    except Exception as error:
        print(f"cannot be judged: {name} cannot be loaded ({type(error).__name__}: {error})")
        return 2
    said = breaches(found)
    print("\\n".join(said) or "the fault is gone")
    return 1 if said else 0


INSIDE = "CEMVERIFY_INSIDE"
CODES = (40, 41, 42)  # what the inner process says; an implementation that ends it hardly hits on these

if __name__ == "__main__":
    if WITHIN is None:
        sys.exit(main())
    sys.exit(CODES[main()] if INSIDE in os.environ else from_outside())
'''

_ALONE = '''\
"""{id}: {claim}

Found with {implementation}: {reason}

This property cannot be asked without cemverify: the case cannot be judged call by call.
"""

import sys

print("cannot be judged by this script alone: cemverify replay {json}")
sys.exit(2)
'''

_CLASSES = {
    "AttentionConfig": '''
    @property
    def R(self):
        """The head dimension."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def tau(self):
        """The temperature."""
        return math.sqrt(self.R) if self.temperature is None else self.temperature
'''
}


def script(implementation: str, record: Record, saved: Saved, arrays: str) -> str:
    """The text of the script.

    Args:
        implementation: module:attribute. arrays: the name of the .npz beside it.
    """
    stem = arrays.removesuffix(".npz")
    words = {
        "id": record.id,
        "claim": _quoted(record.claim),
        "source": _quoted(record.source),
        "implementation": implementation,
        "reason": _quoted(record.reason or ""),
        "part": _quoted(
            f"Wrong is the {record.part}: {record.because}." if record.part else "No part was singled out."
        ),
        "name": f"{stem}.py",
        "json": f"{stem}.json",
        "kind": saved.kind,
        "dtype": saved.dtype,
        "device": saved.device,
        "within": saved.within,
        "found": "the smallest case found" if saved.within is None else "what it was asked when it was lost",
    }
    demands = _demands(record, saved)
    lost = saved.within is not None and bool(saved.calls)
    if not (any(demands) or lost) and saved.linear is None:
        return _ALONE.format(**words)
    used = sorted({name for call in saved.calls for name in _names(call.arguments)} | _wanted(demands, saved))
    linear = "None" if saved.linear is None else repr(dict(saved.linear))
    body = [
        _HEAD.format(**words),
        _arrays({name: saved.arrays[name] for name in used}, arrays),
        f"LINEAR: Any = {linear}  # a sum of the answers, times weights, that must vanish or not be positive\n",
        *_classes(saved.calls),
        _calls(saved.calls, demands),
    ]
    return "\n".join(body) + _TAIL


def _demands(record: Record, saved: Saved) -> list[dict[str, str]]:
    """For each call, what it owed and did not give, as source."""
    cause = record.cause or ""
    demands: list[dict[str, str]] = []
    for i, call in enumerate(saved.calls):
        demand: dict[str, str] = {}
        earlier = [j for j in range(i) if _same_question(saved, saved.calls[j], call)]
        if saved.within is not None:
            if call.fault is None:  # what the reference answers, any answer will do for; bad input may be refused
                demand["shape"] = repr(_shape(saved, call))
        elif cause.startswith(_REFUSAL):
            if i == len(saved.calls) - 1:
                demand["refuse"] = "True"
        elif cause.startswith(_DTYPE):
            demand["dtype"] = "True"
        elif _broken(saved, call):
            if call.expected is not None:
                demand["expected"], demand["budget"] = f"ARRAYS[{call.expected!r}]", f"ARRAYS[{call.budget!r}]"
            demand["shape"] = repr(_shape(saved, call))
        elif call.changed:
            demand["keeps"] = "True"
        elif earlier and not _agree(saved, saved.calls[earlier[0]], call):
            demand["repeats"] = str(earlier[0])
        elif (row := _row(record, saved, call)) is not None:
            demand |= row
        demands.append(demand)
    return demands


def _broken(saved: Saved, call: Call) -> bool:
    """Whether the call's own answer is none, or not the right one."""
    if call.answer is None:
        return True
    answer = saved.arrays[call.answer]
    if answer.shape != _shape(saved, call) or not np.isfinite(answer).all():
        return True
    if call.expected is None or call.budget is None:
        return False
    return bool((np.abs(answer - saved.arrays[call.expected]) > saved.arrays[call.budget]).any())


def _row(record: Record, saved: Saved, call: Call) -> dict[str, str] | None:
    """A demand on the norm of one token's error, or of all, where that is what the property compared."""
    comparison = (record.counterexample or {}).get("comparison")
    if comparison is None or call.answer is None or call.expected is None:
        return None
    error = saved.arrays[call.answer] - saved.arrays[call.expected]
    index = tuple(comparison["worst_index"])
    for at in (index, ()):
        if len(at) < error.ndim and np.isclose(np.linalg.norm(error[at]), comparison["got_there"], rtol=1e-9, atol=0):
            return {"exact": f"ARRAYS[{call.expected!r}]", "row": repr((at, comparison["budget_there"]))}
    return None


def _shape(saved: Saved, call: Call) -> tuple[int, ...]:
    arguments = call.arguments["mapping"]
    state = saved.arrays[(arguments["x"] if "x" in arguments else arguments["h"])["array"]]
    shape: tuple[int, ...] = state.shape[:2] if call.function.endswith("energy") else state.shape
    return shape


def _same_question(saved: Saved, first: Call, second: Call) -> bool:
    if first.function != second.function or first.config != second.config:
        return False
    a, b = _names(first.arguments), _names(second.arguments)
    return len(a) == len(b) and all(
        np.array_equal(saved.arrays[m], saved.arrays[n]) for m, n in zip(a, b, strict=True)
    )


def _agree(saved: Saved, first: Call, second: Call) -> bool:
    if first.answer is None or second.answer is None:
        return first.answer is second.answer
    return np.array_equal(saved.arrays[first.answer], saved.arrays[second.answer])


def _names(tree: Tree) -> list[str]:
    """The arrays of a tree, in order."""
    if isinstance(tree, Mapping):
        if "array" in tree:
            return [tree["array"]]
        return [name for value in tree.values() for name in _names(value)]
    return [name for value in tree for name in _names(value)] if isinstance(tree, list) else []


def _wanted(demands: Sequence[Mapping[str, str]], saved: Saved) -> set[str]:
    named = " ".join(value for demand in demands for value in demand.values())
    return set(re.findall(r"ARRAYS\['([^']+)'\]", named)) | set((saved.linear or {}).get("weights", ()))


# --- rendering ------------------------------------------------------------------------------------


def _arrays(arrays: Mapping[str, Any], file: str) -> str:
    if sum(values.size for values in arrays.values()) > _READABLE:
        return (
            f"try:\n    ARRAYS = dict(np.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r})))\n"
            f'except OSError as error:\n    print(f"cannot be judged: {{error}}")\n    sys.exit(2)\n'
        )
    lines = ["ARRAYS = {"]
    for name, values in arrays.items():
        dtype = "" if values.dtype == np.float64 else f", dtype={str(values.dtype)!r}"
        shape = f".reshape({values.shape})" if not values.size else ""
        lines.append(f"    {name!r}: np.array({values.tolist()}{dtype or ', dtype=float'}){shape},")
    return "\n".join([*lines, "}\n"]).replace("inf", "np.inf").replace("nan", "np.nan")


def _classes(calls: Sequence[Call]) -> list[str]:
    """The config classes that the calls use, with their fields."""
    found: dict[str, list[str]] = {}

    def visit(tree: Tree) -> None:
        if isinstance(tree, Mapping):
            for value in tree.values():
                visit(value)
            if "dataclass" in tree:
                found.setdefault(tree["dataclass"].partition(":")[2], list(tree["fields"]))

    for call in calls:
        visit(call.config)
    return [
        f"\n@dataclass(frozen=True)\nclass {name}:\n"
        + "".join(f"    {option}: Any\n" for option in options)
        + _CLASSES.get(name, "")
        for name, options in found.items()
    ]


def _calls(calls: Sequence[Call], demands: Sequence[Mapping[str, str]]) -> str:
    lines = ["\ndef calls():", '    """What is asked, in order, and what is demanded of each."""', "    return ["]
    for call, demand in zip(calls, demands, strict=True):
        arguments = [f"{name!r}: {_source(tree)}" for name, tree in call.arguments["mapping"].items()]
        if call.config is not None:
            arguments.append(f"'config': {_source(call.config)}")
        lines.append(f"        {{'function': {call.function!r},")
        lines += ["         'arguments': {", *(f"             {argument}," for argument in arguments), "         },"]
        lines += [f"         {key!r}: {value}," for key, value in demand.items()]
        lines.append("        },")
    return "\n".join([*lines, "    ]\n"])


def _source(tree: Tree) -> str:
    """A tree as Python."""
    match tree:
        case {"array": str(name)}:
            options = [repr(name)] + [f"{key}={tree[key]!r}" for key in ("strides",) if key in tree]
            if tree.get("dtype") not in (None, "int64"):
                options.append(f"dtype={tree['dtype']!r}")
            return f"array({', '.join(options)})"
        case {"dataclass": str(kind), "fields": Mapping() as fields}:
            options = [f"{name}={_source(value)}" for name, value in fields.items()]
            return f"made({', '.join([kind.partition(':')[2], *options])})"
        case {"mapping": Mapping() as items}:
            return f"{{{', '.join(f'{key!r}: {_source(value)}' for key, value in items.items())}}}"
        case {"sequence": list(items)}:
            return f"({', '.join(_source(item) for item in items)},)"
        case {"float": str(text)}:
            return f"float({text!r})"
    return repr(tree)


def _quoted(text: str) -> str:
    """Text that may stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")
