"""Functions that can be undone, by which distributions are made of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stack.framework import functional as F
from stack.framework.create import arange
from stack.framework.functions import exp, log, log1p, sigmoid, softmax, tanh
from stack.framework.tensor import Tensor

Extents = tuple[int, ...]


def summed(x: Tensor, count: int) -> Tensor:
    """The sums over so many of the last axes."""
    return x.sum(tuple(range(-count, 0))) if count else x


def _sign(x: Any) -> Any:
    return x.sign() if isinstance(x, Tensor) else (x > 0) - (x < 0)


class Transform:
    """A function of the last `event_dim` axes together, of each element where that is 0. A class
    has `_call`, and where it can be undone `_inverse`."""

    event_dim = 0
    bijective = True

    def __init__(self, cache_size: int = 0) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    @property
    def inv(self) -> Transform:
        """The transform that undoes this one."""
        return _Inverse(self)

    @property
    def sign(self) -> Any:
        """1 where y becomes greater with x, -1 where it becomes less; a tensor where that is not
        the same everywhere."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} cannot be undone")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the derivative at x, which becomes y."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape: Extents) -> Extents:
        """The shape of what is made of that shape."""
        return shape

    def inverse_shape(self, shape: Extents) -> Extents:
        """The shape of which that shape is made."""
        return shape


class _Inverse(Transform):
    """What another one undoes."""

    def __init__(self, base: Transform) -> None:
        self._base, self.event_dim, self.bijective = base, base.event_dim, base.bijective

    @property
    def inv(self) -> Transform:
        return self._base

    sign = property(lambda self: self._base.sign)

    def _call(self, x: Tensor) -> Tensor:
        return self._base._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._base(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._base.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Extents) -> Extents:
        return self._base.inverse_shape(shape)

    def inverse_shape(self, shape: Extents) -> Extents:
        return self._base.forward_shape(shape)


class ExpTransform(Transform):
    """y = exp(x)."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return exp(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class TanhTransform(Transform):
    """y = tanh(x)."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - F.softplus(-2 * x))


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y) - log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """y = log(1 + exp(x))."""

    sign = 1

    def _call(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(-(-y).expm1()) + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x)


class PowerTransform(Transform):
    """y = x ** exponent, for positive x."""

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        self.exponent = exponent

    sign = property(lambda self: _sign(self.exponent))

    def _call(self, x: Tensor) -> Tensor:
        y: Tensor = x**self.exponent
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x: Tensor = y ** (1 / self.exponent)
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log((self.exponent * y / x).abs())


class AbsTransform(Transform):
    """y = |x|; `inv` gives the positive one of both."""

    bijective = False

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """y = loc + scale * x."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    sign = property(lambda self: _sign(self.scale))

    def _call(self, x: Tensor) -> Tensor:
        y: Tensor = self.loc + self.scale * x
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x: Tensor = (y - self.loc) / self.scale
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return summed(log((x * 0 + self.scale).abs()), self.event_dim)


class SoftmaxTransform(Transform):
    """y = softmax(x) along the last axis; `inv` gives log(y)."""

    event_dim, bijective = 1, False

    def _call(self, x: Tensor) -> Tensor:
        return softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return log(y)


class StickBreakingTransform(Transform):
    """n numbers to n + 1 positive ones whose sum is 1: each takes its part, by a sigmoid, of what
    those before have left; 0 takes equal parts."""

    event_dim = 1

    def _shift(self, x: Tensor, count: int) -> Tensor:
        """log of how many parts there are still to take."""
        return log(arange(count, 0, -1, dtype=x.dtype, device=x.device))

    def _call(self, x: Tensor) -> Tensor:
        z = sigmoid(x - self._shift(x, x.shape[-1]))
        left = F.pad((1 - z).cumprod(-1), (1, 0), value=1.0)
        return F.pad(z, (0, 1), value=1.0) * left

    def _inverse(self, y: Tensor) -> Tensor:
        taken = y[..., :-1]
        left = (1 - taken.cumsum(-1)).clamp(min=2.0**-126)
        return log(taken) - log(left) + self._shift(y, taken.shape[-1])

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        away = x - self._shift(x, x.shape[-1])
        return (F.logsigmoid(away) - away + log(y[..., :-1])).sum(-1)

    def forward_shape(self, shape: Extents) -> Extents:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Extents) -> Extents:
        return (*shape[:-1], shape[-1] - 1)


class ComposeTransform(Transform):
    """Several, one after the other."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        self.parts = list(parts)
        self.event_dim = max((t.event_dim for t in self.parts), default=0)
        self.bijective = all(t.bijective for t in self.parts)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = summed(x * 0, self.event_dim)
        for part in self.parts:
            z = part(x)
            found = found + summed(part.log_abs_det_jacobian(x, z), self.event_dim - part.event_dim)
            x = z
        return found

    @property
    def sign(self) -> Any:
        return math.prod((part.sign for part in self.parts), start=1)

    def forward_shape(self, shape: Extents) -> Extents:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Extents) -> Extents:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape


class IndependentTransform(Transform):
    """Another one whose further `reinterpreted_batch_ndims` axes count as one event."""

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        self.base_transform, self._more = base_transform, reinterpreted_batch_ndims
        self.event_dim = base_transform.event_dim + reinterpreted_batch_ndims
        self.bijective = base_transform.bijective

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return summed(self.base_transform.log_abs_det_jacobian(x, y), self._more)

    sign = property(lambda self: self.base_transform.sign)

    def forward_shape(self, shape: Extents) -> Extents:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Extents) -> Extents:
        return self.base_transform.inverse_shape(shape)


identity_transform = ComposeTransform([])
