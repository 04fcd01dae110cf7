"""Distributions that are made of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stack.framework import functional as F
from stack.framework.distributions.base import Distribution, Shape, one_of, together
from stack.framework.distributions.discrete import Bernoulli, Categorical
from stack.framework.functions import exp, log, log1p, logsumexp, sigmoid, tanh
from stack.framework.mode import no_grad
from stack.framework.tensor import Tensor


class Independent(Distribution):
    """Another one whose last `reinterpreted_batch_ndims` axes have one probability together."""

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        if reinterpreted_batch_ndims > len(base_distribution.batch_shape):
            raise ValueError(
                f"Independent takes up to {len(base_distribution.batch_shape)} axes of "
                f"{type(base_distribution).__name__}, got {reinterpreted_batch_ndims}"
            )
        self.base_dist, self.reinterpreted_batch_ndims = (
            base_distribution,
            reinterpreted_batch_ndims,
        )
        self.has_rsample = base_distribution.has_rsample
        batch = tuple(base_distribution.batch_shape)
        cut = len(batch) - reinterpreted_batch_ndims
        self.batch_shape = batch[:cut]
        self.event_shape = (*batch[cut:], *base_distribution.event_shape)

    mean = property(lambda self: self.base_dist.mean)
    variance = property(lambda self: self.base_dist.variance)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def _summed(self, x: Tensor) -> Tensor:
        count = self.reinterpreted_batch_ndims
        return x.sum(tuple(range(-count, 0))) if count else x

    def log_prob(self, value: Tensor) -> Tensor:
        return self._summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self._summed(self.base_dist.entropy())


class Transform:
    """A function of each element that can be undone."""

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inv(self, y: Tensor) -> Tensor:
        """The x of which `y` is made."""
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the size of the derivative at x, which becomes y."""
        raise NotImplementedError


class ExpTransform(Transform):
    """y = exp(x)."""

    def __init__(self, cache_size: int = 0) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return exp(x)

    def inv(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class TanhTransform(Transform):
    """y = tanh(x)."""

    def __init__(self, cache_size: int = 0) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return tanh(x)

    def inv(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - F.softplus(-2 * x))


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))."""

    def __init__(self, cache_size: int = 0) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def inv(self, y: Tensor) -> Tensor:
        return log(y) - log1p(-y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


class AffineTransform(Transform):
    """y = loc + scale * x."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        if event_dim:
            raise NotImplementedError("AffineTransform has event_dim 0 here; take Independent")
        self.loc, self.scale = loc, scale

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.loc + self.scale * x
        return y

    def inv(self, y: Tensor) -> Tensor:
        x: Tensor = (y - self.loc) / self.scale
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log((x * 0 + self.scale).abs())


class TransformedDistribution(Distribution):
    """What transforms, one after the other, make of samples of another distribution."""

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        self.batch_shape = base_distribution.batch_shape
        self.event_shape = base_distribution.event_shape
        self.has_rsample = base_distribution.has_rsample

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        slopes: list[Tensor] = []
        for transform in reversed(self.transforms):
            x = transform.inv(value)
            slopes.append(transform.log_abs_det_jacobian(x, value))
            value = x
        found, axes = self.base_dist.log_prob(value), tuple(range(-len(self.event_shape), 0))
        for slope in slopes:
            found = found - (slope.sum(axes) if axes else slope)
        return found


class RelaxedBernoulli(Distribution):
    """Numbers between 0 and 1 that come near to samples of `Bernoulli` as `temperature` falls.
    Maddison et al., https://arxiv.org/abs/1611.00712."""

    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        one_of(probs, logits)
        one = Bernoulli(probs, logits)
        self.probs, self.logits, self.batch_shape = one.probs, one.logits, one.batch_shape
        self.temperature, _ = together(temperature, self.logits.detach())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = self.uniform(sample_shape, self.probs).clamp(min=2.0**-24)
        return sigmoid((log(u) - log1p(-u) + self.logits) / self.temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        x = log(value) - log1p(-value)
        away = self.logits - x * self.temperature
        inner = log(self.temperature) + away - 2 * F.softplus(away)
        return inner - SigmoidTransform().log_abs_det_jacobian(x, value)


class MixtureSameFamily(Distribution):
    """A sample of one of several distributions, along their last batch axis, that `Categorical`
    draws."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        *batch, self._count = component_distribution.batch_shape
        if tuple(mixture_distribution.probs.shape) != (*batch, self._count):
            raise ValueError(
                f"MixtureSameFamily takes probabilities of shape {[*batch, self._count]}, got "
                f"{list(mixture_distribution.probs.shape)}"
            )
        self.batch_shape = tuple(batch)
        self.event_shape = tuple(component_distribution.event_shape)

    def _weights(self) -> Tensor:
        shape = (*self.mixture_distribution.probs.shape, *(1 for _ in self.event_shape))
        return self.mixture_distribution.probs.reshape(shape)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(-1 - len(self.event_shape))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            each = self.component_distribution.sample(sample_shape)
            drawn = F.one_hot(self.mixture_distribution.sample(sample_shape), self._count)
            chosen = drawn.to(each.dtype).reshape((*drawn.shape, *(1 for _ in self.event_shape)))
            return (each * chosen).sum(-1 - len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        at = -1 - len(self.event_shape)
        each = self.component_distribution.log_prob(value.unsqueeze(at))
        return logsumexp(each + self.mixture_distribution.logits, -1)
