"""A descent by blocks of tokens, which keeps little for the backward pass: T steps in the memory of one.

Tokens do not see each other's states, only the memory h, which is fixed while x moves. So a block of tokens can take
all T steps before the next one starts, with no more of the memory than it sees, and one block of attention weights
exists at a time. For the backward pass, attention keeps what each step has read from the memory; a linear map gives
the states from that. If that is more than the states, as with a diagonal and many steps, the states are kept, and
each step is computed again. In neither case are weights kept.

If torch has fused attention that is faster than our tiles, a block is all tokens.

Exact: the same operations as `Descent` on the same numbers, except for the order in which sums are taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cemverify.cem.descent import Descent
from cemverify.cem.devices import is_compiled, kind, triton_missing
from cemverify.cem.energies import Elementwise, Energy, Interaction
from cemverify.cem.energies.interaction import InteractionMemory
from cemverify.cem.energies.lean import LeanElementwise
from cemverify.cem.energies.tiled import Reading, TiledInteraction
from cemverify.cem.positions import Alibi
from cemverify.cem.torch_internals import is_transforming

# In order: as written; attention weights by tiles, hidden numbers not kept; tiles whose weights our own kernels make,
# where they can; tokens by blocks, with little kept for the backward pass.
Path = Literal["formula", "tiles", "rows", "blocks"]

# Attention on at least this many pairs of a token and a remembered one goes by tiles: with fewer, weights are few.
PAIRS = 256 * 256
# Steps of an MLP with at least so many hidden numbers are worth computing again: fewer take little memory.
HIDDEN = 2**20
# Tokens of a block: enough for efficient products, few enough that the weights of a block take little memory.
USUAL_ROWS = {"cpu": 512, "cuda": 2048}
# Rows of weights in a tile: few rows waste little beyond the causal half, many rows need few calls.
USUAL_TILE = {"cpu": 64, "cuda": 256}
# The devices on which our own kernels make the weights of a tile, its rows, and the most columns: a row must fit in
# registers.
ROWS_ON = {"cuda"} if triton_missing() is None else set[str]()
ROWS_TILE, LONGEST_ROW = 512, 8192
# The devices on which torch's fused attention takes more steps than are kept, though it computes each of them again.
FUSED_ON = {"cuda"}
# Up to so many steps are kept for the backward pass; what more would keep is computed again.
KEPT_STEPS = 2
# What steps have read from the memory is kept instead of the states if its numbers are no more than those of so many
# states, or of T: eight are less than twice what multi-head attention keeps.
KEPT_STATES = 8


# the path that a caller has chosen, with its rows and tile
_forced: list[tuple[Path, int | None, int | None]] = []


@contextlib.contextmanager
def using(path: Path, *, rows: int | None = None, tile: int | None = None) -> Iterator[None]:
    """A context in which layers take this path, whatever the size: for comparing paths, or for ruling one out.

    Args:
        rows, tile: as in `descend`.

    Raises:
        ValueError: there is no such path.
    """
    if path not in get_args(Path):
        raise ValueError(f"unknown path {path!r}; choose from {', '.join(get_args(Path))}")
    _forced.append((path, rows, tile))
    try:
        yield
    finally:
        _forced.pop()


_watching: list[list[tuple[Energy, Path]]] = []


@contextlib.contextmanager
def watched() -> Iterator[Sequence[tuple[Energy, Path]]]:
    """A context; yields the energies that layers called in it descend, in order, each with the path taken.

    On the meta device, where nothing is computed, it is the path that the same sizes take on a CPU, or on the device
    that it stands for (`meta_stands_for`).
    """
    paths: list[tuple[Energy, Path]] = []
    _watching.append(paths)
    try:
        yield paths
    finally:
        _watching.remove(paths)


def path_for(descent: Descent, energy: Energy, start: Tensor, memory: Any) -> Path:
    """The path that a layer takes: a fast one if it saves time or memory, otherwise the formula.

    One step of attention without diagonal and bias is torch's own fused attention, which nothing here beats. Only the
    formula has derivatives of other kinds (vmap, forward mode). A compiler fuses the formula by itself and could not
    look into the loops, so compiled code takes the formula, or tiles whose weights our kernels make.
    """
    if is_transforming() or not isinstance(energy, Interaction | Elementwise):
        return "formula"
    if _forced and torch.compiler.is_compiling():
        rows = _forced[-1][0] == "rows" and fits_rows(descent, energy, start, memory)
        return "rows" if rows else "formula"
    if _forced:
        return _forced[-1][0]
    if start.device.type == "meta":
        return "formula"  # nothing is computed there: the operations of the formula are counted
    return usual_path(descent, energy, start, memory)


def usual_path(descent: Descent, energy: Interaction | Elementwise, start: Tensor, memory: Any) -> Path:
    """The path that sizes and the device decide, whatever path the caller has chosen."""
    if is_compiled(start):
        long = isinstance(energy, Interaction) and start.shape[1] * memory.length >= PAIRS
        return "rows" if long and fits_rows(descent, energy, start, memory) else "formula"
    # steps that differ or have momentum are no function of the state alone: they are kept
    again = descent.alike and descent.steps > KEPT_STEPS and torch.is_grad_enabled()
    if isinstance(energy, Elementwise):
        hidden = start.numel() // start.shape[-1] * energy.V.shape[0]
        return "tiles" if again and hidden >= HIDDEN else "formula"
    if start.shape[1] * memory.length < PAIRS:
        return "formula"
    if again:
        return "blocks"
    if fits_rows(descent, energy, start, memory):
        return "rows"
    plain = energy.diagonal is None and energy.bias is None
    return "formula" if plain or energy.is_fused(start, memory) else "tiles"


def fits_rows(descent: Descent, energy: Energy, start: Tensor, memory: Any) -> bool:
    """Whether our kernels can make the weights: causal, with a shared diagonal, and no bias except ALiBi."""
    if not isinstance(energy, Interaction) or kind(start) not in ROWS_ON or start.dtype == torch.float64:
        return False
    shared = energy.diagonal is not None and energy.diagonal.dim() == 1 and not descent.preconditioner.per_head
    sloped = energy.bias is None or isinstance(energy.bias, Alibi)
    return shared and energy.causal and sloped and memory.length <= LONGEST_ROW


def run(descent: Descent, energy: Energy, start: Tensor, memory: Any) -> Tensor:
    """x^(T), by the path of `path_for`: (B, J, D) -> (B, J, D)."""
    path = path_for(descent, energy, start, memory)
    if _watching:
        taken = path
        if start.device.type == "meta" and not _forced and isinstance(energy, Interaction | Elementwise):
            taken = usual_path(descent, energy, start, memory)
        _watching[-1].append((energy, taken))
    _, rows, tile = _forced[-1] if _forced else (path, None, None)
    if path == "blocks":
        return descend(descent, energy, start, memory, rows=rows, tile=tile)
    if path in ("tiles", "rows") and isinstance(energy, Elementwise):
        energy = LeanElementwise.of(energy)
    elif path in ("tiles", "rows") and isinstance(energy, Interaction):
        energy = _in_tiles(descent, energy, start, memory, tile, by_rows=path == "rows")
    return descent(energy, start, memory)


def _in_tiles(
    descent: Descent, energy: Interaction, start: Tensor, memory: Any, tile: int | None, *, by_rows: bool
) -> TiledInteraction:
    """The energy in tiles of so many rows, or of the usual number; their weights by our kernels where possible."""
    by_rows = by_rows and fits_rows(descent, energy, start, memory)
    usual = ROWS_TILE if by_rows else USUAL_TILE.get(start.device.type, 256)
    return TiledInteraction.of(energy, tile or usual, by_rows=by_rows)


def usual_tile(start: Tensor) -> int:
    """The default number of rows of a tile; deprecated since 1.1: `USUAL_TILE` has it by device."""
    warnings.warn("usual_tile goes: read USUAL_TILE", DeprecationWarning, stacklevel=2)
    return USUAL_TILE.get(start.device.type, 256)


def descend(
    descent: Descent, energy: Energy, start: Tensor, memory: Any, *, rows: int | None = None, tile: int | None = None
) -> Tensor:
    """`descent(energy, start, memory)`, by blocks: (B, J, D) -> (B, J, D).

    The formula is used for derivatives of other kinds (vmap, forward mode, a second derivative), and if steps differ
    or have momentum.

    Args:
        rows: tokens in a block. tile: rows of attention weights computed together; the usual ones if neither is
            given, or all tokens at once if torch has fused attention that is faster than tiles (`FUSED_ON`).

    Raises:
        ValueError: rows or tile is less than 1.
        TypeError: an energy without windows (`Energy.window`), whose tokens cannot be separated.
    """
    for size in (rows, tile):
        if size is not None and size < 1:
            raise ValueError(f"a block and a tile have at least 1 row, not {size}")
    if not isinstance(energy, Interaction | Elementwise):
        raise TypeError(f"{type(energy).__name__} does not say which part of its memory a block of tokens sees")
    if not descent.alike or is_transforming():
        return descent(energy, start, memory)
    usual_rows = USUAL_ROWS.get(start.device.type, 512)
    problem = _Problem(descent, energy, memory)
    if isinstance(energy, Interaction):
        if rows is None and tile is None and _is_fused(energy, start, memory):
            usual_rows = start.shape[1]  # a step of all tokens at once takes little memory
        else:
            problem = _tiled(problem, start, tile)
    tensors = list(_tensors(problem))
    apply: Any = _Blocked.apply
    output: Tensor = apply(problem, rows or usual_rows, start, *tensors)
    return output


def _is_fused(energy: Interaction, start: Tensor, memory: InteractionMemory) -> bool:
    """Whether torch's own attention works without ever holding all weights, and no tiles of ours are faster."""
    if start.device.type not in FUSED_ON or energy.diagonal is not None or memory.ahead:
        return False
    unmasked = energy.is_fused(start, memory) or (energy.bias is None and not energy.causal)
    return unmasked and (start.device.type == "cpu" or start.dtype != torch.float64)


def _tiled(problem: _Problem, start: Tensor, tile: int | None) -> _Problem:
    """The problem with its energy in tiles, which keep attention weights unless what the steps read is kept."""
    assert isinstance(problem.energy, Interaction)
    energy = _in_tiles(problem.descent, problem.energy, start, problem.memory, tile, by_rows=True)
    tiled = _Problem(problem.descent, energy, problem.memory)
    if tiled.recalls or energy.by_rows:
        return tiled
    return dataclasses.replace(tiled, energy=dataclasses.replace(energy, saves_weights=True))


@dataclass(frozen=True)
class _Problem:
    """Everything that determines where a state moves."""

    descent: Descent
    energy: Interaction | Elementwise
    memory: Any

    def step(self, x: Tensor) -> Tensor:
        return self.descent.step(self.energy, x, self.memory)

    @property
    def recalls(self) -> bool:
        """Whether what each step has read from the memory is kept, and not the states (`KEPT_STATES`)."""
        if not isinstance(self.energy, TiledInteraction):
            return False
        steps, width = self.descent.steps, self.energy.W_Q.shape[2]
        read = self.energy.reading_width(per_head=self.descent.preconditioner.per_head)
        return steps * read <= max(steps, KEPT_STATES) * width

    def noted_step(self, x: Tensor) -> tuple[Tensor, Reading]:
        """The next state, and what the step has read from the memory."""
        assert isinstance(self.energy, TiledInteraction)
        readings: list[Reading] = []
        noting = dataclasses.replace(self, energy=dataclasses.replace(self.energy, note=readings.append))
        return noting.step(x), readings[0]

    def recalling(self, parts: Sequence[Tensor]) -> _Problem:
        """The problem at the one state at which the memory was read, with the parts that the reading has."""
        assert isinstance(self.energy, TiledInteraction)
        attended, *context = parts
        reading: Reading = attended, context[0] if context else None
        return dataclasses.replace(self, energy=dataclasses.replace(self.energy, recalled=reading))


class _Blocked(torch.autograd.Function):
    """x^(T) from x^(0), keeping what each step has read from the memory, or only the states."""

    @staticmethod
    def forward(ctx: Any, problem: _Problem, rows: int, start: Tensor, *tensors: Tensor) -> Tensor:
        problem = _replace(problem, iter(t.detach() for t in tensors))
        output = torch.empty_like(start, memory_format=torch.contiguous_format)
        saved: list[Tensor] = []
        for a, b in _blocks(start.shape[1], rows):
            window = _window(problem, start.shape[1], a, b)
            x = start[:, a:b]
            for t in range(problem.descent.steps):
                if problem.recalls:
                    x, reading = window.noted_step(x)
                    saved += [part for part in reading if part is not None]
                else:
                    saved += [x] if t > 0 else []  # x^(0) is the start
                    x = window.step(x)
            output[:, a:b] = x
        # its form only: tensors that autograd does not know would outlive the backward pass
        ctx.problem, ctx.rows = _replace(problem, (t.new_empty(0) for t in tensors)), rows
        ctx.autocast = torch.is_autocast_enabled(start.device.type), torch.get_autocast_dtype(start.device.type)
        ctx.save_for_backward(start, *tensors, *saved)
        return output

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        """The derivative of each block, the last step first."""
        (output,) = outputs
        inputs = len(ctx.needs_input_grad) - 2  # without the problem and the rows
        saved: Sequence[Tensor] = ctx.saved_tensors
        enabled, dtype = ctx.autocast
        with torch.autocast(output.device.type, dtype=dtype, enabled=enabled):
            if torch.is_grad_enabled():  # a second derivative may be wanted: the formula has one
                return None, None, *_by_formula(ctx, saved[:inputs], output)
            return None, None, *_by_blocks(ctx, saved[:inputs], saved[inputs:], output)


def _by_formula(ctx: Any, inputs: Sequence[Tensor], output: Tensor) -> list[Tensor | None]:
    """The gradients of all inputs, which can be differentiated again."""
    wanted = ctx.needs_input_grad[2:]
    # as views of their own; otherwise the memory's dependence on the start would count twice
    start, *tensors = (t.view_as(t) for t in inputs)
    problem = _replace(ctx.problem, iter(tensors))
    energy = problem.energy.formula if isinstance(problem.energy, TiledInteraction) else problem.energy
    reached = problem.descent(energy, start, problem.memory)
    sources = [t for t, w in zip((start, *tensors), wanted, strict=True) if w]
    gradients = iter(torch.autograd.grad(reached, sources, output, create_graph=True, allow_unused=True))
    return [next(gradients) if w else None for w in wanted]


def _by_blocks(ctx: Any, inputs: Sequence[Tensor], saved: Sequence[Tensor], output: Tensor) -> list[Tensor | None]:
    """The gradients of all inputs, a block of tokens at a time."""
    start, *tensors = inputs
    tokens = start.shape[1]
    problem = _replace(ctx.problem, iter(t.detach() for t in tensors))
    d_start = torch.empty_like(start, memory_format=torch.contiguous_format)
    # sums over blocks and steps, in float32 at least
    sums = [t.new_zeros(t.shape, dtype=torch.promote_types(t.dtype, torch.float32)) for t in tensors]
    totals = _replace(ctx.problem, iter(sums))
    blocks = list(_blocks(tokens, ctx.rows))
    of_block = len(saved) // max(1, len(blocks))  # no tokens, no blocks
    for i, (a, b) in enumerate(blocks):
        parts = [t.detach() for t in _tensors(_window(problem, tokens, a, b))]
        sums_here = _window(totals, tokens, a, b)
        summed = list(_tensors(sums_here))
        wanted = list(ctx.needs_input_grad[3:])
        adding = problem.energy
        if isinstance(adding, TiledInteraction):  # which adds the memory's gradients itself
            memory = sums_here.memory
            adding = dataclasses.replace(adding, sums=(memory.keys, memory.states))
            wanted = [w and not any(t is m for m in _tensors(memory)) for t, w in zip(summed, wanted, strict=True)]
        parts = [t.requires_grad_() if w else t for t, w in zip(parts, wanted, strict=True)]
        window = _replace(dataclasses.replace(_window(problem, tokens, a, b), energy=adding), iter(parts))
        d_x = output[:, a:b]
        for x, reached in _moves(window, start[:, a:b], saved[i * of_block : (i + 1) * of_block]):
            sources = [x, *(t for t, w in zip(parts, wanted, strict=True) if w)]
            d_x, *d_parts = torch.autograd.grad(reached, sources, d_x, allow_unused=True)
            for total, d_part in zip((t for t, w in zip(summed, wanted, strict=True) if w), d_parts, strict=True):
                if d_part is not None:
                    total += d_part
        d_start[:, a:b] = d_x
    gradients = [
        s.to(t.dtype) if w else None for s, t, w in zip(sums, tensors, ctx.needs_input_grad[3:], strict=True)
    ]
    return [d_start if ctx.needs_input_grad[2] else None, *gradients]


def _blocks(tokens: int, rows: int) -> Iterator[tuple[int, int]]:
    """The first token of each block, and the one after its last."""
    for a in range(0, tokens, rows):
        yield a, min(a + rows, tokens)


def _moves(window: _Problem, start: Tensor, saved: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each step of a block, the last first: its state as a leaf, and the next state with the graph between.

    If readings were kept, a state follows from the one before and what was read there, by the same operations as in
    the forward pass.
    """
    states, windows = [start, *saved], [window] * window.descent.steps
    if window.recalls:
        parts = len(saved) // window.descent.steps
        windows = [window.recalling(saved[i : i + parts]) for i in range(0, len(saved), parts)]
        states = [start]
        for recalling in windows[:-1]:
            states.append(recalling.step(states[-1]))
    while states:
        x = states.pop().detach().requires_grad_()
        with torch.enable_grad():
            reached = windows.pop().step(x)
        yield x, reached


def _window(problem: _Problem, tokens: int, a: int, b: int) -> _Problem:
    """The same problem for the tokens a to b; its tensors are views."""
    descent = problem.descent
    if (
        isinstance(descent.step_size, Tensor)
        and descent.step_size.dim() > 1
        and descent.step_size.shape[-2] == tokens
    ):
        descent = dataclasses.replace(descent, step_size=descent.step_size[..., a:b, :])  # one for each token
    return _Problem(descent, problem.energy, problem.energy.window(problem.memory, tokens, a, b))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value object and those it is made of, in the order of its fields."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def _replace(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value object made of other tensors, in the order of `_tensors`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _replace(part, tensors) for name, part in parts.items()})
    return value
