"""What an implementation can do wrong besides returning wrong numbers: one small class per kind of fault."""

from __future__ import annotations

import itertools
import os
import re
import site
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from cemverify.conformance.implementations.features import FEATURES, WEIGHTS

_LONGEST = 500


def words(error: BaseException) -> str:
    """Type and message of an exception as one printable line, shortened if it is long."""
    try:
        text = str(error)
    except BaseException:  # even that may fail
        text = "(its message cannot be read)"
    text = printable(text)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def printable(text: str) -> str:
    """Text from elsewhere as one printable line, shortened if it is long."""
    text = text if len(text) <= 8 * _LONGEST else f"{text[: 4 * _LONGEST]}…{text[-4 * _LONGEST :]}"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > _LONGEST:  # what was wrong often stands at the end
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return text


_LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in (
        str(Path(__file__).parents[2]),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


def is_library(path: str) -> bool:
    """Whether a file belongs to Python, an installed package or cemverify, and so to no implementation."""
    return path.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)


def place(error: BaseException) -> tuple[str, int] | None:
    """The file and line of the judged code at which an exception was raised or passed last; None if there is none.

    Libraries are not the judged code, and neither is this package.
    """
    try:
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        own = [(file, line) for file, line in lines if not (file.startswith("<") or is_library(file))]
        return (printable(own[-1][0]), own[-1][1]) if own else None
    except BaseException:  # the exception is the implementation's own, and so are its attributes
        return None


_OTHER_DTYPES = ("same dtype", "should be the same", "expected scalar type", "have the same dtype")
_OTHER_STRIDES = "view size is not compatible"
_TOO_FEW_AXES = ("vmap: inplace arithmetic", "doesn't match the broadcast shape")
_OTHER_HEADS = ("divisible by num_heads", "divisible by the number of heads", "is invalid for input of size")


_UPPER = re.compile(r"[A-Za-z]+(_[A-Za-z]+)?(\.weight)?$")  # what the name of a weight may look like


def undeclared(error: BaseException) -> str | None:
    """The feature that an exception says is missing, so that the declaration may be wrong; None if it names none."""
    if isinstance(error, KeyError) and (option := [f for f in FEATURES if [f.partition(":")[2]] == list(error.args)]):
        return option[0]
    return "head-dim" if any(phrase in words(error) for phrase in _OTHER_HEADS) else None


def advice(error: BaseException, dtype: object, usual: object = "torch.float32") -> str:
    """What to do about an exception that shows a usual mistake, such as mixed dtypes; empty for any other.

    Args:
        dtype: of the arguments of the call. usual: the default dtype during the call.
    """
    message = words(error)
    if (feature := undeclared(error)) == "head-dim":
        return f". Heads are R wide, which need not be D / K: if yours always are, add {feature!r} to not_offered"
    if feature is not None:
        return f". If it has no such option, add {feature!r} to not_offered"
    asked = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    if (weight := asked.rpartition(".")[2]) in WEIGHTS and (option := WEIGHTS[weight][1]) not in ("attention", "MLP"):
        return f". {weight!r} is given only with an option ({option}): check config before reading it"
    if _UPPER.match(asked):
        return f". The weights are {', '.join(WEIGHTS)}; a block's have 'attention.' or 'mlp.' before that"
    if _OTHER_STRIDES in message:
        return ". An argument was not contiguous: use reshape, or contiguous() before view"
    if any(phrase in message for phrase in _TOO_FEW_AXES) and _was_mapped(error):
        return ". It writes into an array that vmap does not map: if nobody maps it, add 'vmap' to not_offered"
    if not any(phrase in message for phrase in _OTHER_DTYPES):
        return ""
    if str(usual) != "torch.float32":
        return (
            f". The default dtype was {usual}: give new arrays the dtype of an argument, torch.eye(n, dtype=x.dtype)"
        )
    width = str(dtype).removeprefix("torch.")
    return (
        f". Its arguments were {width}: convert the weights (weight.to(x.dtype)), "
        "declare an energy layer's working_dtype='float32', or run in float32 throughout with --dtype float32"
    )


# What a library says if it has no kernel for a dtype, or no rule for a transform: a missing feature, not a mistake.
_NO_KERNEL = re.compile(
    r"not implemented for '(BFloat16|Half|Float)'|[Uu]nsupported dtype (bfloat16|float16|float32)\b"
)
_NO_RULE = {
    "vmap": re.compile(r"[Bb]atching rule|must override the setup_context"),
    "gradients": re.compile(r"[Dd]ifferentiation rule|derivative for \S+ is not implemented"),
}


def lacking(error: BaseException, dtype: object) -> str | None:
    """The feature that a library lacks, if an exception says so; None for any other.

    Args:
        dtype: of the arguments of the call. If a kernel for another dtype is missing, the implementation caused it,
            and likewise if it used the transform itself.
    """
    message = words(error)
    if kernel := _NO_KERNEL.search(message):
        named = {"BFloat16": "bfloat16", "Half": "float16", "Float": "float32"}
        narrow = kernel[2] or named[kernel[1]]
        return f"dtype:{narrow}" if str(dtype) == f"torch.{narrow}" else None
    feature = next((feature for feature, rule in _NO_RULE.items() if rule.search(message)), None)
    return None if feature == "vmap" and not _was_mapped(error) else feature


def _was_mapped(error: BaseException) -> bool:
    """Whether the call itself was mapped, not only something inside it: the mapping came before its own code."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    before = itertools.takewhile(is_library, files)
    return any(os.path.basename(file) in ("vmap.py", "batching.py") for file in before)


_SHORTAGES = ("can't allocate memory", "cannot allocate memory", "out of memory", "resource_exhausted", "bad_alloc")


def ran_out(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, either Python's own or one from an allocator below it."""
    if isinstance(error, MemoryError):
        return True
    message = words(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(shortage in message for shortage in _SHORTAGES)


class Fault(Exception):
    """A call returned nothing that could be compared; the message is one sentence.

    Attributes:
        cause: the kind of fault, as it is written to result files: the words of the class name.
        of: the function of an energy layer that was called, if it is one of `FURTHER`.
        at: the file and line of the implementation at which it raised, if there is one.
        declaration: whether the declaration may be wrong, and not the code.
        case: the question that was asked, if another one was drawn.
    """

    cause = "fault"
    of: str = ""
    at: tuple[str, int] | None = None
    declaration: bool = False
    case: Any = None

    def __init_subclass__(cls) -> None:
        cls.cause = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()

    def __str__(self) -> str:
        return f"{self.of}: {super().__str__()}" if self.of else super().__str__()

    def described(self) -> dict[str, Any]:
        """All of it except the case, in plain values."""
        file, line = self.at or ("", 0)
        return {
            "fault": self.cause,
            "text": super().__str__(),
            "of": self.of,
            "file": file,
            "line": line,
            "declaration": self.declaration,
        }


def fault_of(described: Mapping[str, Any]) -> Fault:
    """A fault from its description, whose values may be of any type and size."""
    fault = FAULTS.get(str(described.get("fault")), Fault)(printable(str(described.get("text"))))
    of, file, line = (described.get(name) for name in ("of", "file", "line"))
    fault.of = str(of) if of in FURTHER else ""
    fault.at = (printable(file), line) if isinstance(file, str) and file and isinstance(line, int) else None
    fault.declaration = described.get("declaration") is True
    return fault


class Raised(Fault):
    """A call of the implementation raised an exception."""

    @classmethod
    def by(cls, error: BaseException, advice: str) -> Self:
        """The fault of an exception: what it said, where, and what to do about it."""
        at = place(error)
        where = f" ({os.path.basename(at[0])}, line {at[1]})" if at else ""
        raised = cls(f"it raised {words(error)}{where}{advice}")
        raised.at, raised.declaration = at, undeclared(error) is not None
        return raised


class Unsupported(Raised):
    """A library has no kernel or rule for what a call of the implementation does."""


class NotAnArray(Fault):
    """The implementation returned something that is not an array."""


class WrongShape(Fault):
    """The implementation returned an array of the wrong shape."""


class NotFinite(Fault):
    """The implementation returned NaN or infinity where the correct result is finite."""


class Hung(Fault):
    """A single call did not return in time."""


class OutOfMemory(Fault):
    """The implementation asked for more memory than it may have."""


class Tampered(Fault):
    """The implementation replaced functions that the whole process uses, the verifier included."""


class Deleted(Fault):
    """A call deleted an array that it was given, as JAX does with donated ones."""


class Crashed(Fault):
    """The implementation ended its process during a call."""


# the functions of an energy layer besides its update, as faults and causes name them
FURTHER = ("energy", "state map", "Lagrangian", "preconditioner", "step size", "proximal map", "penalty", "domain",
           "sampler", "reference")  # fmt: skip
_KINDS: Sequence[type[Fault]] = (*Fault.__subclasses__(), Unsupported)
FAULTS: Mapping[str, type[Fault]] = {kind.cause: kind for kind in _KINDS}


class Discard(Exception):
    """A case is outside a property's premise, or too ill-conditioned to judge. It is counted, but never as a pass."""
