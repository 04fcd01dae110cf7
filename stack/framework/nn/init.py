"""Initial values of parameters, drawn from the device's default generator. They change tensors in
place."""

from __future__ import annotations

import math

from stack import ops as g
from stack.framework.cell import rebind
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import elementwise as e
from stack.framework.random import normal_node, uniform_node
from stack.framework.tensor import Tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Numbers in [a, b), all equally likely."""
    fractions = uniform_node(tensor.shape, tensor.dtype, tensor.device)
    rebind(tensor, e.add(e.mul(fractions, b - a), a))
    return tensor


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Numbers of the normal distribution."""
    draws = normal_node(tensor.shape, tensor.dtype, tensor.device)
    rebind(tensor, e.add(e.mul(draws, std), mean) if mean else e.mul(draws, std))
    return tensor


def constant_(tensor: Tensor, val: float) -> Tensor:
    """One number everywhere."""
    rebind(tensor, g.full(tensor.shape, val, tensor.dtype))
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """The inputs and outputs of a weight [out, in, ...]."""
    if tensor.ndim < 2:
        raise TensorError(
            f"a weight has at least 2 axes, got shape {list(tensor.shape)}\n  called at "
            f"{where_called()}"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def kaiming_uniform_(tensor: Tensor, a: float = 0.0) -> Tensor:
    """Uniform within +-sqrt(6 / ((1 + a^2) fan_in)), for layers before a (leaky) ReLU of slope
    a."""
    bound = math.sqrt(6 / ((1 + a * a) * max(_fans(tensor)[0], 1)))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0.0) -> Tensor:
    """Normal with deviation sqrt(2 / ((1 + a^2) fan_in)), for layers before a (leaky) ReLU of slope
    a."""
    return normal_(tensor, 0.0, math.sqrt(2 / ((1 + a * a) * max(_fans(tensor)[0], 1))))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform within +-gain sqrt(6 / (fan_in + fan_out))."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with deviation gain sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))))
