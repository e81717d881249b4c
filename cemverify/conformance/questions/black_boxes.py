"""States and memories for an energy layer: drawn for its declared shapes, and made smaller when they expose a fault.

A shape is written without the batch axis. Its letters are sizes that vary, one size per letter; "J" counts
tokens. As for CEM implementations, there are small integers, which shrink well; scattered cases, spread evenly
over sizes and textures; and cases with one long axis.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from cemverify.conformance.questions.aims import Aim
from cemverify.conformance.questions.shrinking import simpler_arrays

Shape = tuple[int | str, ...]
Named = Mapping[str, Tensor]

_ANY: Mapping[str, int] = MappingProxyType({})
_DRAWN_ONE_BY_ONE = 32  # integers that Hypothesis draws one by one; more of them follow from a seed
_MOST_NUMBERS = 2**14  # in an array, for questions around a number in the code
_A_FEW = {"B": 4, "J": 4}  # other axes have 3
# Sizes of a long axis; every other one exceeds the usual length of tiles, tables and windows.
_LONG = (range(257, 258), range(33, 49), range(129, 257), range(65, 97), range(257, 258), range(97, 129))
LEAST_LONG = 32
_LONG_AT_ONCE = 65  # size of every axis, where each shape is compiled
_LEVEL = (41, 151, 97)  # sizes of all axes at once, so that products of sizes are large
_ROWS = 4  # of a batch in that case
_MANY_ROWS = 1031  # more rows than kernels take at once, and no multiple of a tile
_CHEAP = 2**17  # numbers of an array


@dataclass(frozen=True)
class Form:
    """The form of the questions to one layer."""

    # state, memory: shapes by name
    state: Mapping[str, Shape]
    memory: Mapping[str, Shape]
    shortest: int = 1  # the fewest tokens
    noisy: bool = False  # whether a step also takes noise
    shapes: int | None = None  # how many different ones are used, if each one is compiled; None for any number
    most: int = _CHEAP  # numbers in an array with a long axis
    zeros: tuple[str, ...] = ()  # state arrays that every call sets, whatever they were

    def letters(self) -> list[str]:
        """The axes that vary, tokens first."""
        letters = {n for shape in (*self.state.values(), *self.memory.values()) for n in shape if isinstance(n, str)}
        return sorted(letters, key=lambda n: (n != "J", n))

    def least(self, letter: str) -> int:
        """The smallest size of an axis."""
        return self.shortest if letter == "J" else 1


@dataclass(frozen=True, repr=False)
class Question:
    """A question to an energy layer."""

    x: Named  # the state's arrays by name, each (B, ...)
    memory: Named  # the memory's arrays
    noise: Named = field(default_factory=dict)  # standard normal numbers, or empty
    seed: int = 0  # for everything else that the check draws

    @property
    def batch(self) -> int:
        """The number of batch rows, B."""
        return next(iter(self.x.values())).shape[0]

    @property
    def sizes(self) -> dict[str, int]:
        """How large it is: tokens J, rows B, the most patterns of a memory M, features D, where it has them."""
        tokens, patterns = ([a.shape[1] for a in part.values() if a.dim() > 2] for part in (self.x, self.memory))
        sizes = {"J": max(tokens, default=0), "B": self.batch, "M": max(patterns, default=0)}
        sizes["D"] = max(array.shape[-1] for array in self.x.values())
        return {letter: size for letter, size in sizes.items() if size}

    def rows(self, rows: Sequence[int]) -> Question:
        """The question with only these rows of the batch, in this order."""
        return self.each(lambda array: array[list(rows)])

    def each(self, change: Any) -> Question:
        """The question with one change made to every array."""
        x, memory, noise = ({k: change(a) for k, a in part.items()} for part in (self.x, self.memory, self.noise))
        return replace(self, x=x, memory=memory, noise=noise)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in {**self.x, **self.memory}.items())
        return f"Question({sizes})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Hypothesis prints a failing argument, and would print every array of a dataclass."""
        printer.text(repr(self))

    def describe(self) -> dict[str, Any]:
        """The question in values that JSON can hold."""
        first = next(iter(self.x.values()))
        sizes = {"tokens": first.shape[1]} if first.dim() > 2 else {}
        noise = {f"noise.{name}": array.tolist() for name, array in self.noise.items()}
        arrays = {name: array.tolist() for name, array in {**self.x, **self.memory}.items()}
        return {**sizes, "dim": first.shape[-1], **arrays, **noise}


def stacked(questions: Sequence[Question]) -> Question:
    """Questions of one shape along a new first axis, with the seed of the first."""
    parts = ("x", "memory", "noise")
    arrays: dict[str, Any] = {
        part: {name: torch.stack([getattr(q, part)[name] for q in questions]) for name in getattr(questions[0], part)}
        for part in parts
    }
    return replace(questions[0], **arrays)


@st.composite
def questions(draw: st.DrawFn, form: Form, least: Mapping[str, int] = _ANY) -> Question:
    """Questions of that form for Hypothesis.

    Args:
        least: smallest sizes beyond the form's, by letter; "B" is the batch.
    """
    most = {"B": 2, "J": 4}
    if form.shapes is not None:
        sizes = _one_of_few(form, least, draw(st.integers(0, form.shapes - 1)))
    else:
        sizes = {
            letter: draw(st.integers(low, max(low if letter == "B" else low + 1, most.get(letter, 5))))
            for letter, low in _lows(form, least).items()
        }
    x, memory = (_shapes(shapes, sizes) for shapes in (form.state, form.memory))
    question = _of_sizes(form, draw(st.integers(0, 2**32 - 1)), sizes)
    if sum(math.prod(shape) for shape in (*x.values(), *memory.values())) <= _DRAWN_ONE_BY_ONE:
        drawn = {name: shape for name, shape in x.items() if name not in form.zeros}
        return replace(question, x={**question.x, **_integers(draw, drawn)}, memory=_integers(draw, memory))
    few = question.each(lambda array: array.clamp(-2.4, 2.4).round())
    return replace(few, noise=question.noise)


def scattered(form: Form, seed: int, least: Mapping[str, int] = _ANY) -> Question:
    """A question from a plain random generator; its texture and its longest axis take turns."""
    rng, lows = np.random.default_rng(seed), _lows(form, least)
    names = list(lows)
    longest = names[seed % len(names)]
    sizes = {}
    for name, low in lows.items():
        usual = {"B": 3, "J": 7}.get(name, 6)
        sizes[name] = int(rng.integers(low, 1 + max(low + 1, 3 * usual if name == longest else usual)))
    if form.shapes is not None:
        sizes = _one_of_few(form, least, seed % form.shapes)
    question = _of_sizes(form, seed, sizes)
    turn = seed // len(names)
    return question if turn % 3 == 0 else dressed(question, _TEXTURES[turn % len(_TEXTURES)])


def stretched(form: Form, seed: int, least: Mapping[str, int] = _ANY) -> Question:
    """A question from a plain random generator with one long axis, or with all of them long; these take turns, and so
    do the lengths.

    If `least` asks for several of something, that is the long axis.
    """
    if form.shapes is not None:
        return level(form, seed, _LONG_AT_ONCE, least)
    rng, lows = np.random.default_rng(seed), _lows(form, least)
    names = [name for name in lows if name in least] or list(lows)
    turn, lap = seed % (len(names) + 1), seed // (len(names) + 1)
    if turn == len(names):
        sizes = {name: _ROWS if name == "B" else max(low, _LEVEL[lap % len(_LEVEL)]) for name, low in lows.items()}
        long = [name for name in sizes if name != "B"] or ["B"]
    else:
        sizes = {name: int(rng.integers(low, 3 + low)) for name, low in lows.items()}
        long = [names[turn]]
        length = _MANY_ROWS if names[turn] == "B" and lap % 2 == 0 else int(rng.choice(_LONG[lap % len(_LONG)]))
        sizes[names[turn]] = max(sizes[names[turn]], length)
    while any(sizes[name] > lows[name] for name in long) and _largest(form, sizes) > form.most:
        sizes |= {name: max(lows[name], sizes[name] - 1) for name in long}
    question = _of_sizes(form, seed, sizes)
    return dressed(question, "large") if lap % 2 else question


def crowded(
    form: Form, seed: int, least: Mapping[str, int] = _ANY, letter: str = "B", size: int = _MANY_ROWS
) -> Question:
    """A question from a plain random generator with one long axis, by default more rows than kernels take at once."""
    sizes = {name: max(low, 3) for name, low in _lows(form, least).items()} | {letter: size}
    while sizes[letter] > 1 and _largest(form, sizes) > form.most:
        sizes[letter] //= 2
    return _of_sizes(form, seed, sizes)


def level(form: Form, seed: int, length: int, least: Mapping[str, int] = _ANY) -> Question:
    """A question from a plain random generator whose axes all have that length; the batch only if it is alone."""
    lows = _lows(form, least)
    alone = len(lows) == 1
    sizes = {name: low if name == "B" and not alone else max(low, length) for name, low in lows.items()}
    return _of_sizes(form, seed, sizes)


def _of_sizes(form: Form, seed: int, sizes: Mapping[str, int]) -> Question:
    x, memory = (_shapes(shapes, sizes) for shapes in (form.state, form.memory))
    noise = _normal(x, seed + 1, "noise") if form.noisy else {}
    drawn = _normal(x, seed)
    states = {name: torch.zeros_like(a) if name in form.zeros else a for name, a in drawn.items()}
    return Question(states, _normal(memory, seed), noise, seed)


def _largest(form: Form, sizes: Mapping[str, int]) -> int:
    """How many numbers the largest array has."""
    return max(math.prod(shape) for part in (form.state, form.memory) for shape in _shapes(part, sizes).values())


def aimed(form: Form, aim: Aim, seed: int, least: Mapping[str, int] = _ANY) -> Question | None:
    """A question in which one axis, or the largest number of an array, has the value of an aim.

    None if no question of the form has it, or only a costly one.
    """
    lows = _lows(form, least)
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(low, 2 + low)) for name, low in lows.items()}
    if aim.quantity in lows:
        if aim.size < lows[aim.quantity]:
            return None
        sizes[aim.quantity] = aim.size
    elif form.shapes is not None:
        sizes = _one_of_few(form, least, seed % form.shapes)
    if _largest(form, sizes) > _MOST_NUMBERS:
        return None
    question = _of_sizes(form, seed, sizes)
    for part in ("x", "memory"):
        named: Named = getattr(question, part)
        if aim.quantity in named and aim.quantity not in lows:
            array = named[aim.quantity]
            largest = float(array.abs().max())
            return _with(question, part, aim.quantity, aim.value / largest * array) if largest else None
    return question if aim.quantity in lows else None


def _lows(form: Form, least: Mapping[str, int]) -> dict[str, int]:
    """The smallest size of the batch and of each axis that varies."""
    lows = {"B": 1, **{letter: form.least(letter) for letter in form.letters()}}
    return {letter: max(low, least.get(letter, 1)) for letter, low in lows.items()}


def _one_of_few(form: Form, least: Mapping[str, int], which: int) -> dict[str, int]:
    """A few of everything, or the smallest sizes: the only sizes for a layer that is compiled for each shape.

    If a property needs two of something, it gets a few of everything, which are compiled for other properties too.
    """
    lows = _lows(form, least)
    if which == 0 or any(low > form.least(letter) for letter, low in lows.items()):
        return {letter: max(low, _A_FEW.get(letter, 3)) for letter, low in lows.items()}
    return lows


def _shapes(shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {
        name: (sizes["B"], *(sizes[n] if isinstance(n, str) else n for n in shape)) for name, shape in shapes.items()
    }


def _normal(shapes: Mapping[str, tuple[int, ...]], seed: int, prefix: str = "") -> dict[str, Tensor]:
    # each array from its own stream, drawn in a box and sliced, so a smaller shape keeps its values
    drawn = {}
    for name, shape in shapes.items():
        box = tuple(n if i == len(shape) - 1 else max(8, n) for i, n in enumerate(shape))
        values = np.random.default_rng((seed, zlib.crc32((prefix + name).encode()))).standard_normal(box)
        drawn[name] = torch.from_numpy(np.ascontiguousarray(values[tuple(slice(n) for n in shape)]))
    return drawn


def _integers(draw: st.DrawFn, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    arrays = {}
    for name, shape in shapes.items():
        values = draw(hnp.arrays(np.int8, shape, elements=st.integers(-2, 2), fill=st.nothing()))
        arrays[name] = torch.from_numpy(values.astype(np.float64))
    return arrays


# --- textures: degenerate forms ----------------------------------------------------------------------

# factors for arrays; beyond 709 an exponential overflows, and 0.05 squared is below bfloat16's spacing
_FACTORS = {
    "large-states": 16.0, "large-memory": 16.0, "huge-states": 256.0, "huge-memory": 256.0,
    "exploding-states": 1024.0, "exploding-memory": 1024.0, "small-states": 2.0**-12, "faint-states": 0.05,
    "faint-memory": 0.05,
}  # fmt: skip
_HUGE = 64.0  # size that shows a factor of 256 or 1024
_TEXTURES = ("plain", "large-states", "zero-states", "ties", "small-states", "zero-memory", "large-memory",
             "non-contiguous")  # fmt: skip


def dressed(question: Question, texture: str, share: float = 1.0) -> Question:
    """The question in a degenerate form; if that makes arrays larger, then by that share of the usual factor."""
    q, factor = question, share * _FACTORS.get(texture, 0.0)
    if factor and texture.endswith("states"):
        return replace(q, x={k: factor * a for k, a in q.x.items()})
    if factor:
        return replace(q, memory={k: factor * a for k, a in q.memory.items()})
    match texture:
        case "large" | "huge" | "faint":
            return dressed(dressed(q, f"{texture}-states", share), f"{texture}-memory", share)
        case "zero-states":
            x = {k: a.clone() for k, a in q.x.items()}
            for a in x.values():
                (a[:, :1] if a.dim() > 2 else a).zero_()  # the first token, or all of a state without tokens
            return replace(q, x=x)
        case "zero-memory":
            return replace(q, memory={k: torch.zeros_like(a) for k, a in q.memory.items()})
        case "ties":
            return replace(q, x=_tied(q.x, q.seed % 2), memory=_tied(q.memory, q.seed % 2))
        case "non-contiguous":
            return replace(q, x=_strided(q.x), memory=_strided(q.memory))
    return q


def wears(question: Question, texture: str) -> bool:
    """Whether a question still has the degenerate form that it was given: shrinking must not remove it."""
    match texture:
        case "huge":
            return wears(question, "huge-states") and wears(question, "huge-memory")
        case "huge-states" | "exploding-states" | "huge-memory":
            huge = question.memory if texture == "huge-memory" else question.x
            return any(bool((a.abs() >= _HUGE).any()) for a in huge.values())
        case "zero-states" | "zero-memory" | "ties":
            q = dressed(question, texture)
            parts = ((question.x, q.x), (question.memory, q.memory))
            return all(torch.equal(array, again[name]) for part, again in parts for name, array in part.items())
    return True


def _tied(named: Named, but: int) -> dict[str, Tensor]:
    """Every token, or pattern, is set to the first one; in half of the questions the last one is kept.

    If all were equal, tokens that only act on each other might have nothing to do.
    """

    def tied(array: Tensor) -> Tensor:
        same = array.shape[1] - but
        return torch.cat((array[:, :1].expand_as(array[:, :same]), array[:, same:]), 1)

    return {name: tied(array) if array.dim() > 2 else array for name, array in named.items()}


def _strided(named: Named) -> dict[str, Tensor]:
    """The same numbers with the last two axes in the opposite order in memory."""
    return {k: a.mT.contiguous().mT if a.dim() > 2 else a for k, a in named.items()}


# --- smaller questions ---------------------------------------------------------------------------------


def smaller(question: Question, form: Form, least: Mapping[str, int] = _ANY) -> Iterator[Question]:
    """Slightly smaller questions, the largest reductions first: rows, tokens, patterns, then digits."""
    batch = question.batch
    halves = (range(batch // 2), range(batch // 2, batch)) if batch > 2 else ()
    for rows in (*halves, *([i for i in range(batch) if i != j] for j in range(min(batch, 8)))):
        if least.get("B", 1) <= len(rows) < batch:
            yield question.rows(list(rows))
    for letter in form.letters():
        size, lowest = axis_size(question, form, letter), max(form.least(letter), least.get(letter, 1))
        for off in (size // 2, size // 4, size // 8):  # for a long axis, before single ones
            if off > 1 and size - off >= lowest:
                yield along_axis(question, form, letter, range(size - off))
                yield along_axis(question, form, letter, range(off, size))
        if size > lowest:
            yield from (
                along_axis(question, form, letter, [i for i in range(size) if i != index]) for index in range(size)
            )
    named = {(part, name): a for part in ("noise", "memory", "x") for name, a in getattr(question, part).items()}
    for (part, name), simpler in simpler_arrays(named):
        yield _with(question, part, name, simpler)


def axis_size(question: Question, form: Form, letter: str) -> int:
    """The size of the axes of a letter; 0 if no array has one."""
    for part, shapes in ((question.x, form.state), (question.memory, form.memory)):
        for name, shape in shapes.items():
            if letter in shape:
                return part[name].shape[1 + shape.index(letter)]
    return 0


def longest(question: Question, form: Form) -> int:
    """The size of its longest axis, including the batch."""
    return max(question.batch, *(axis_size(question, form, letter) for letter in form.letters()), 0)


def along_axis(question: Question, form: Form, letter: str, places: Sequence[int]) -> Question:
    """The question with only some places of every axis with that letter, in this order."""
    rest = torch.tensor(list(places), dtype=torch.int64)

    def some(part: Named, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        shorter = dict(part)
        for name, array in part.items():
            for axis in (i + 1 for i, n in enumerate(shapes[name]) if n == letter):
                array = array.index_select(axis, rest)
            shorter[name] = array
        return shorter

    x, noise = some(question.x, form.state), some(question.noise, form.state)
    return replace(question, x=x, memory=some(question.memory, form.memory), noise=noise)


def halved(question: Question, form: Form) -> Question | None:
    """The first half of every axis that is long; None if none is."""
    shorter = question.rows(range(question.batch // 2)) if question.batch > LEAST_LONG else question
    for letter in form.letters():
        size = axis_size(question, form, letter)
        if size > max(LEAST_LONG, 2 * form.least(letter)):
            shorter = along_axis(shorter, form, letter, range(size // 2))
    return None if shorter is question else shorter


def _with(question: Question, part: str, name: str, array: Tensor) -> Question:
    changed: dict[str, Any] = {part: {**getattr(question, part), name: array}}
    return replace(question, **changed)
