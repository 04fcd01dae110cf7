"""Distributions that are made of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from stack.framework import functional as F
from stack.framework.distributions import constraints as c
from stack.framework.distributions.base import Distribution, Shape, one_of, together
from stack.framework.distributions.continuous import Normal
from stack.framework.distributions.discrete import Bernoulli, Categorical
from stack.framework.distributions.transforms import (
    SigmoidTransform,
    StickBreakingTransform,
    Transform,
    summed,
)
from stack.framework.functions import log, log1p, logsumexp, sigmoid, where
from stack.framework.modes import no_grad
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
        event = (*batch[cut:], *base_distribution.event_shape)
        super().__init__(batch[:cut], event, validate_args)

    @property
    def support(self) -> c.Constraint:
        return c.independent(self.base_dist.support, self.reinterpreted_batch_ndims)

    mode = property(lambda self: self.base_dist.mode)
    mean = property(lambda self: self.base_dist.mean)
    variance = property(lambda self: self.base_dist.variance)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def _log_prob(self, value: Tensor) -> Tensor:
        return summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)


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
        shape = tuple(base_distribution.batch_shape) + tuple(base_distribution.event_shape)
        self._events = len(base_distribution.event_shape)
        for transform in self.transforms:
            shape = transform.forward_shape(shape)
            self._events = max(self._events, transform.event_dim)
        cut = len(shape) - self._events
        super().__init__(shape[:cut], shape[cut:], validate_args)
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

    def _log_prob(self, value: Tensor) -> Tensor:
        found: Tensor | float = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(value)
            slope = transform.log_abs_det_jacobian(x, value)
            found = found - summed(slope, self._events - transform.event_dim)
            value = x
        base = self.base_dist.log_prob(value)
        return found + summed(base, self._events - len(self.base_dist.event_shape))

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        found, falls = self.base_dist.cdf(value), self._falls()
        return found if falls is False else where(falls, 1 - found, found)

    def icdf(self, value: Tensor) -> Tensor:
        falls = self._falls()
        return self._through(
            self.base_dist.icdf(value if falls is False else where(falls, 1 - value, value))
        )

    def _falls(self) -> Any:
        """Whether values become less as those of the base become greater: False, or of each."""
        falls: Any = False
        for transform in self.transforms:
            sign = transform.sign
            falls = falls != (sign < 0) if isinstance(sign, Tensor) or sign < 0 else falls
        return falls


class LogisticNormal(TransformedDistribution):
    """Positive numbers along the last axis whose sum is 1: what `StickBreakingTransform` makes of
    independent normal ones."""

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale), StickBreakingTransform())


class RelaxedOneHotCategorical(Distribution):
    """Positive numbers along the last axis whose sum is 1, which come near to samples of
    `OneHotCategorical` as `temperature` falls. Maddison et al., https://arxiv.org/abs/1611.00712.
    """

    arg_constraints = Categorical.arg_constraints
    support = c.simplex
    has_rsample = True

    def __init__(
        self,
        temperature: Any,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        one = Categorical(probs, logits)
        self.probs, self.logits = one.probs, one.logits
        self.temperature = temperature
        *batch, last = self.probs.shape
        super().__init__(batch, (last,), validate_args, probs=probs, logits=logits)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Self:
        made = super().expand(batch_shape)
        made.temperature = self.temperature  # one for all
        return made

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = self.uniform(sample_shape, self.probs).clamp(min=2.0**-24)
        return F.softmax((self.logits - log(-log(u))) / self.temperature, -1)

    def _log_prob(self, value: Tensor) -> Tensor:
        count, rate = self.event_shape[0], self.temperature
        score = self.logits - rate * log(value)
        alike = (score - logsumexp(score, -1, keepdim=True)).sum(-1) - log(value).sum(-1)
        rates = log(rate) if isinstance(rate, Tensor) else math.log(rate)
        found: Tensor = alike + math.lgamma(count) + (count - 1) * rates
        return found


class RelaxedBernoulli(Distribution):
    """Numbers between 0 and 1 that come near to samples of `Bernoulli` as `temperature` falls.
    Maddison et al., https://arxiv.org/abs/1611.00712."""

    arg_constraints = Bernoulli.arg_constraints
    support = c.unit_interval
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
        self.probs, self.logits = one.probs, one.logits
        super().__init__(one.batch_shape, validate_args=validate_args, probs=probs, logits=logits)
        self.temperature, _ = together(temperature, self.logits.detach())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = self.uniform(sample_shape, self.probs).clamp(min=2.0**-24)
        return sigmoid((log(u) - log1p(-u) + self.logits) / self.temperature)

    def _log_prob(self, value: Tensor) -> Tensor:
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
        super().__init__(batch, component_distribution.event_shape, validate_args)

    @property
    def support(self) -> c.Constraint:
        return self.component_distribution.support

    def _weights(self) -> Tensor:
        shape = (*self.mixture_distribution.probs.shape, *(1 for _ in self.event_shape))
        return self.mixture_distribution.probs.reshape(shape)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(-1 - len(self.event_shape))

    @property
    def variance(self) -> Tensor:
        """That of the means, and the mean of the others."""
        each, at = self.component_distribution, -1 - len(self.event_shape)
        weights = self._weights()
        off = each.mean - self.mean.unsqueeze(at)
        return (weights * (each.variance + off * off)).sum(at)

    def cdf(self, value: Tensor) -> Tensor:
        found = self.component_distribution.cdf(value.unsqueeze(-1 - len(self.event_shape)))
        return (found * self.mixture_distribution.probs).sum(-1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            each = self.component_distribution.sample(sample_shape)
            drawn = F.one_hot(self.mixture_distribution.sample(sample_shape), self._count)
            chosen = drawn.to(each.dtype).reshape((*drawn.shape, *(1 for _ in self.event_shape)))
            return (each * chosen).sum(-1 - len(self.event_shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        at = -1 - len(self.event_shape)
        each = self.component_distribution.log_prob(value.unsqueeze(at))
        return logsumexp(each + self.mixture_distribution.logits, -1)
