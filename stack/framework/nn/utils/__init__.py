"""PyTorch's place for what is done to parameters, and for sequences of several lengths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stack.framework.errors import absent
from stack.framework.functions import cat
from stack.framework.modes import no_grad
from stack.framework.nn.utils import parametrizations, parametrize, rnn
from stack.framework.nn.utils.parametrizations import (
    remove_spectral_norm,
    remove_weight_norm,
)
from stack.framework.nn.utils.parametrizations import spectral_norm_before as spectral_norm
from stack.framework.nn.utils.parametrizations import weight_norm_before as weight_norm
from stack.framework.optim.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from stack.framework.tensor import Tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements in one vector."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the elements of a vector, in order."""
    start = 0
    for p in parameters:
        with no_grad():
            p.copy_(vec[start : start + p.numel()].reshape(p.shape))
        start += p.numel()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("nn.utils", name, __all__)
