"""Initial values of parameters, drawn from the device's default generator. They change tensors in
place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.cell import rebind
from stack.framework.create import eye
from stack.framework.create import tensor as make
from stack.framework.errors import TensorError, absent, where_called
from stack.framework.expr import elementwise as e
from stack.framework.functions import erfinv
from stack.framework.random import Generator, normal_node, uniform_node
from stack.framework.tensor import Tensor


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Numbers in [a, b), all equally likely."""
    fractions = uniform_node(tensor.shape, tensor.dtype, tensor.device, generator)
    return _set(tensor, e.add(e.mul(fractions, b - a), a))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Numbers of the normal distribution."""
    draws = normal_node(tensor.shape, tensor.dtype, tensor.device, generator)
    return _set(tensor, e.add(e.mul(draws, std), mean) if mean else e.mul(draws, std))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Numbers of the normal distribution within [a, b]: by the inverse of its distribution
    function."""
    low, high = (math.erf((x - mean) / std / math.sqrt(2)) for x in (a, b))
    wide = DType.F64 if tensor.dtype is DType.F64 else DType.F32
    fractions = uniform_node(tensor.shape, wide, tensor.device, generator)
    within = Tensor(e.add(e.mul(fractions, high - low), low), tensor.device)
    values = (erfinv(within) * (std * math.sqrt(2)) + mean).clamp(a, b).to(tensor.dtype)
    return _set(tensor, values.node)


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


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much weights before a function are greater, so that the spread stays."""
    gains = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4, "sigmoid": 1.0, "linear": 1.0}
    gains |= {f"conv{t}{n}d": 1.0 for t in ("", "_transpose") for n in (1, 2, 3)}
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in gains:
        raise ValueError(f"no gain is known for {nonlinearity!r}; known are {sorted(gains)}")
    return gains[nonlinearity]


def _spread(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'mode is "fan_in" or "fan_out", got {mode!r}')
    fan = max(_fans(tensor)[mode == "fan_out"], 1)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within +-gain sqrt(3 / fan), for layers before a leaky ReLU of slope a, or another
    function; fan counts a weight's inputs or its outputs. He et al.,
    https://arxiv.org/abs/1502.01852."""
    bound = math.sqrt(3) * _spread(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with deviation gain / sqrt(fan), as for `kaiming_uniform_`."""
    return normal_(tensor, 0.0, _spread(tensor, a, mode, nonlinearity), generator)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform within +-gain sqrt(6 / (fan_in + fan_out)). Glorot and Bengio,
    https://proceedings.mlr.press/v9/glorot10a.html."""
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with deviation gain sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))), generator)


def eye_(tensor: Tensor) -> Tensor:
    """1 on the diagonal of a matrix, 0 elsewhere."""
    rows, columns = tensor.shape
    return _set(tensor, eye(rows, columns, dtype=tensor.dtype, device=tensor.device).node)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """A matrix [out, rest] of orthonormal rows or columns, times gain; drawn here, orthogonalised
    on the host. Saxe et al., https://arxiv.org/abs/1312.6120."""
    rows = tensor.shape[0]
    columns = math.prod(tensor.shape[1:])
    draws = normal_node((rows, columns), DType.F32, tensor.device, generator)
    drawn = Tensor(draws, tensor.device).numpy().astype(np.float64)
    q, r = np.linalg.qr(drawn.T if rows < columns else drawn)
    q = q * np.sign(np.diag(r))
    values = (q.T if rows < columns else q).reshape(tensor.shape) * gain
    return _set(tensor, make(values, dtype=tensor.dtype, device=tensor.device).node)


def _set(tensor: Tensor, node: Node) -> Tensor:
    rebind(tensor, node)
    return tensor


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("nn.init", name, [n for n in globals() if not n.startswith("_")])
