"""Random numbers of the device: the stack's stream by counter, whose place is data of the plans."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.bridge.torch import kernels, rows
from stack.bridge.torch.tape import DTYPES, Row
from stack.framework.expr import elementwise as e
from stack.framework.random import normal_of, uniform_of

_states: dict[int, Tensor] = {}
"""uint64[2] of each device: the key and the offset of its stream."""
_seed = [secrets.randbits(63)]


def manual_seed(seed: int) -> None:
    """Begin the seed's stream on every device."""
    _seed[0] = seed
    _states.clear()


def get_state(index: int) -> Tensor:
    """The key and the offset, uint8[16] on the CPU."""
    return kernels.to_cpu(_state(index)).view(torch.uint8)


def set_state(index: int, state: Tensor) -> None:
    """Go on there."""
    _states[index] = kernels.from_cpu(state.cpu().contiguous().view(torch.uint64), index)


def _state(index: int) -> Tensor:
    if index not in _states:
        start = torch.from_numpy(np.array([_seed[0] % 2**64, 0], np.uint64))
        _states[index] = kernels.from_cpu(start, index)
    return _states[index]


def _words(index: int, n: int, generator: Any) -> Tensor:
    """uint32[n], the next ones."""
    if generator is not None and generator.device.type == "cpu":
        raise RuntimeError(
            f"a generator of the CPU draws nothing on {kernels.NAME}:{index}; draw on the CPU and "
            f"move the tensor, or seed the device by torch.{kernels.NAME}.manual_seed"
        )
    drawn, _states[index] = kernels.call(rows.ROWS["philox"], (_state(index), n), {})
    return drawn


def _uniform(words: Node, shape: Sequence[int], dtype: DType, low: float, high: float) -> Node:
    n = math.prod(shape)
    made = g.reshape(uniform_of(words, n, dtype), tuple(shape))
    if (low, high) == (0.0, 1.0):
        return made
    return g.cast(e.add(e.mul(made, high - low), low), dtype)


def _normal(words: Node, shape: Sequence[int], dtype: DType, mean: float, std: float) -> Node:
    made = normal_of(words, shape, dtype)
    return g.cast(e.add(e.mul(made, std), mean), dtype)


def _integers(words: Node, shape: Sequence[int], dtype: DType, low: int, high: int) -> Node:
    """Of the high half of the product of a word and the number of them."""
    wide = g.mul(g.cast(words, DType.U64), g.full(words.shape, high - low, DType.U64))
    above = g.cast(e.shift_right(wide, 32), DType.I64)
    return g.reshape(g.cast(e.add(above, low), dtype), tuple(shape))


def _bernoulli(words: Node, shape: Sequence[int], dtype: DType, p: float) -> Node:
    drawn = uniform_of(words, math.prod(shape), DType.F32)
    return g.reshape(g.cast(e.lt(drawn, p), dtype), tuple(shape))


def _bernoulli_of(words: Node, p: Node) -> Node:
    drawn = g.reshape(uniform_of(words, p.type.size, DType.F32), p.shape)
    return g.cast(e.lt(drawn, p), p.dtype)


def _exponential(words: Node, shape: Sequence[int], dtype: DType, rate: float) -> Node:
    drawn = uniform_of(words, math.prod(shape), DType.F32)
    made = e.div(g.neg(g.log(e.sub(1.0, drawn))), rate)
    return g.reshape(g.cast(made, dtype), tuple(shape))


def _dropout(words: Node, x: Node, p: float) -> list[Node]:
    drawn = g.reshape(uniform_of(words, x.type.size, DType.F32), x.shape)
    kept = e.le(p, drawn)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return [e.where(kept, e.mul(x, scale), 0.0), kept]


_UNIFORM, _NORMAL = Row("uniform_", _uniform), Row("normal_", _normal)
_INTEGERS, _BERNOULLI = Row("random_", _integers), Row("bernoulli_", _bernoulli)
_BERNOULLI_OF, _DROPOUT = Row("bernoulli", _bernoulli_of), Row("native_dropout", _dropout)
_EXPONENTIAL = Row("exponential_", _exponential)


def _into(row: Row, x: Tensor, each: int, generator: Any, *numbers: Any) -> Tensor:
    if x.numel():
        drawn = _words(x.device.index, each * x.numel(), generator)
        args = (drawn, tuple(x.shape), DTYPES[x.dtype], *numbers)
        kernels.call_into(row, [x], args, {})
    return x


def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    each = 2 if x.dtype is torch.float64 else 1
    return _into(_UNIFORM, x, each, generator, float(low), float(high))


def normal_(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    each = 4 if x.dtype is torch.float64 else 2
    return _into(_NORMAL, x, each, generator, float(mean), float(std))


def random_from(x: Tensor, low: int, high: int | None, *, generator: Any = None) -> Tensor:
    if high is None:
        high = low + 2**32
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got {low} >= {high}")
    if high - low > 2**32:
        raise NotImplementedError(f"random_ of {high - low} numbers on {x.device}: 2**32 at most")
    return _into(_INTEGERS, x, 1, generator, low, high)


def random_to(x: Tensor, high: int, *, generator: Any = None) -> Tensor:
    return random_from(x, 0, high, generator=generator)


def random_(x: Tensor, *, generator: Any = None) -> Tensor:
    most = {torch.uint8: 256, torch.int8: 128, torch.int16: 2**15, torch.int32: 2**31}
    return random_from(x, 0, most.get(x.dtype, 2 if x.dtype is torch.bool else 2**24))


def bernoulli_(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return _into(_BERNOULLI, x, 1, generator, float(p))


def exponential_(x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    return _into(_EXPONENTIAL, x, 1, generator, float(rate))


def bernoulli(p: Tensor, *, generator: Any = None) -> Tensor:
    drawn = _words(p.device.index, p.numel(), generator)
    return kernels.call(_BERNOULLI_OF, (drawn, p), {})[0]


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or not x.numel():
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    drawn = _words(x.device.index, x.numel(), None)
    y, kept = kernels.call(_DROPOUT, (drawn, x, float(p)), {})
    return y, kept


def randperm(n: int, *, generator: Any = None, out: Tensor) -> Tensor:
    """The order of n random words."""
    out.resize_(n)
    if n:
        out.copy_(_words(out.device.index, n, generator).to(torch.int64).argsort())
    return out


KERNELS: dict[str, Any] = {
    "uniform_": uniform_,
    "normal_": normal_,
    "random_": random_,
    "random_.from": random_from,
    "random_.to": random_to,
    "bernoulli_.float": bernoulli_,
    "exponential_": exponential_,
    "bernoulli": bernoulli,
    "native_dropout": native_dropout,
    "randperm.generator_out": randperm,
}
"""By operator."""
