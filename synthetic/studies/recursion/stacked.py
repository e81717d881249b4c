"""S modules of one kind as one module with stacked parameters and buffers; they are called one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cemverify.console.errors import UsageError


class Stacked(nn.Module):
    """S models, one for each replicate.

    They are called one by one, because torch cannot vectorise everything that a model may do.
    """

    def __init__(self, name: str, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.name = name  # the model's name in errors
        parameters, buffers = (
            [dict(named(model)) for model in models]
            for named in (nn.Module.named_parameters, nn.Module.named_buffers)
        )
        self.model = models[:1]  # in a list, so that its own weights are not among the parameters
        self.names = [*parameters[0], *buffers[0]]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([each[name].detach() for each in parameters]), parameter.requires_grad)
            for name, parameter in parameters[0].items()
        )
        for i, name in enumerate(buffers[0]):
            self.register_buffer(f"buffer{i}", torch.stack([each[name] for each in buffers]))

    def forward(self, inputs: Tensor, _steps: int | None = None) -> Tensor:
        """Predictions (S, ...) of inputs (S, ..., d)."""
        (model,) = self.model
        model.train(torch.is_grad_enabled())  # dropout acts in training, not in scoring
        stacked = {name: t.unbind() for name, t in zip(self.names, (*self.weights, *self.buffers()), strict=True)}
        made = []
        for s, x in enumerate(inputs):
            values, shape = functional_call(model, {n: t[s] for n, t in stacked.items()}, (x,)), x.shape[:-1]
            if not isinstance(values, Tensor) or values.shape not in (shape, (*shape, 1)):
                what = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                raise UsageError(
                    f"model {self.name} maps points of shape {tuple(x.shape)} to {what}; one value for each is"
                    f" needed, {tuple(shape)} or {(*shape, 1)}"
                )
            made.append(values.reshape(shape))
        return torch.stack(made)
