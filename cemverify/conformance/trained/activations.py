"""What a model feeds one of its layers: states and memories, recorded while it reads tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMLayer
from cemverify.cem.models import LanguageModel
from cemverify.conformance.implementations.energy_layers import EnergyLayer, Shape
from cemverify.conformance.implementations.faults import words
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.trained.model import Inputs, TrainedModel
from cemverify.console.errors import UsageError


@dataclass(frozen=True)
class TokenRows:
    """What the model reads."""

    ids: Tensor  # (B, J) of int64
    origin: str  # where they come from, in words


def random_tokens(model: nn.Module, sequences: int, length: int, seed: int) -> TokenRows:
    """Tokens drawn uniformly from the vocabulary of the model's embedding."""
    vocabulary = model.config.vocabulary if isinstance(model, LanguageModel) else None
    for module in model.modules():
        if vocabulary is None and isinstance(module, nn.Embedding):
            vocabulary = module.num_embeddings
    if vocabulary is None:
        raise UsageError(
            "the model has no torch.nn.Embedding that says how many tokens there are: give some with --tokens FILE, "
            "or let the factory return cemverify.TrainedModel(model, tokens=...)"
        )
    ids = torch.randint(vocabulary, (sequences, length), generator=torch.Generator().manual_seed(seed))
    return TokenRows(ids, f"tokens drawn at random from a vocabulary of {vocabulary:,}")


def own_tokens(model: TrainedModel) -> TokenRows | None:
    """The tokens that the factory gave."""
    ids = model.tokens
    if ids is None:
        return None
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or not ids.numel():
        raise UsageError(f"the tokens of a TrainedModel are a tensor of integers (B, J), not {_kinds([ids])}")
    return TokenRows(ids.to(torch.int64), "tokens of the factory")


def read_tokens(path: Path) -> TokenRows:
    """Tokens (B, J), or (J,), from a .npy file of integers."""
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header or archive raises many kinds
        raise UsageError(f"the tokens {path} cannot be read: {error}; write them with numpy.save") from error
    if not isinstance(array, np.ndarray):  # a .npz file holds several arrays
        raise UsageError(f"{path} holds several arrays; tokens are one array, written with numpy.save")
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2) or not array.size:
        raise UsageError(f"{path} holds {array.dtype} of shape {array.shape}; tokens are integers (B, J), or (J,)")
    return TokenRows(torch.from_numpy(array.astype(np.int64)).reshape(-1, array.shape[-1]), str(path))


Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a forward, by position and by keyword


@torch.no_grad()
def catch(
    model: nn.Module, layer: nn.Module, name: str, form: EnergyLayer, inputs: Inputs | None, tokens: TokenRows
) -> Question:
    """The state and the memory that the layer gets while the model reads the tokens, at its first call."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    calls: list[Call] = []
    with _watched(layer, calls):
        try:
            model.eval()(tokens.ids.to(device))
        except Exception as error:
            shape = " x ".join(map(str, tokens.ids.shape))
            raise UsageError(f"the model failed on {shape} tokens ({tokens.origin}): {words(error)}") from error
    if not calls:
        raise UsageError(f"the model never called {name!r} while it read the tokens; which layer does the work?")
    args, named = calls[0]
    arrays, whose = (*args, *named.values()), f"{name!r} is called with"
    if inputs is not None:
        try:
            arguments = inputs(*args, **named)
        except Exception as error:
            raise UsageError(f"inputs failed for {name!r}, called with {_kinds(arrays)}: {words(error)}") from error
        arrays, whose = arguments if isinstance(arguments, tuple) else (arguments,), f"inputs returned for {name!r}"
    return _question(name, form, arrays, whose)


@contextmanager
def _watched(layer: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Records what a layer is called with, within the block.

    So it does for the sublayer of a pre-norm CEM block, which starts at h and remembers N(h).
    """
    right: Any = getattr(layer, "residual", None) if isinstance(layer, CEMLayer) else None

    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arrays = (*args, *kwargs.values())  # x and h, or only x
        calls.append(((arrays[0], arrays[-1]), {}) if isinstance(layer, CEMLayer) else (args, kwargs))

    def noting(h: Tensor, *past: Any) -> Any:
        assert isinstance(layer, CEMLayer)
        calls.append(((h, layer.norm().into(h)), {}))
        return right(h, *past)

    hook = layer.register_forward_pre_hook(note, with_kwargs=True)
    if right is not None:
        object.__setattr__(layer, "residual", noting)
    try:
        yield
    finally:
        hook.remove()
        if right is not None:
            object.__delattr__(layer, "residual")


def _question(name: str, form: EnergyLayer, values: Sequence[Any], whose: str) -> Question:
    """The arrays under their declared names."""
    wanted: dict[str, Shape] = {**form.state, **form.memories}
    if len(values) != len(wanted) or not all(isinstance(array, Tensor) for array in values):
        raise UsageError(
            f"{whose} {_kinds(values)}, but {name!r} is declared with {', '.join(wanted)}: give "
            "cemverify.TrainedModel(..., inputs=f), where f takes what it is called with, keywords by name, and "
            "returns these arrays"
        )
    arrays = {}
    for (key, shape), array in zip(wanted.items(), values, strict=True):
        fits = array.dim() == len(shape) + 1 and all(
            isinstance(length, str) or length == size for length, size in zip(shape, array.shape[1:], strict=True)
        )
        if not fits:
            length = ", ".join(map(str, ("B", *shape)))
            raise UsageError(f"{name!r} gets {key} of shape {tuple(array.shape)}, but declares ({length})")
        arrays[key] = array.detach().to("cpu", torch.float64)
    noise = {key: torch.zeros_like(arrays[key]) for key in form.state} if form.step.noise else {}
    state = {key: arrays[key] for key in form.state}
    return Question(state, {key: arrays[key] for key in form.memories}, noise)


def _kinds(arrays: Sequence[Any]) -> str:
    names = [
        f"an array {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        for value in arrays
    ]
    return ", ".join(names) or "nothing"
