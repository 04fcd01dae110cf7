"""Distributions over numbers that can be counted."""

from __future__ import annotations

import math
from typing import Any

from stack.framework import functional as F
from stack.framework.create import arange, eye, full_like
from stack.framework.distributions import constraints as c
from stack.framework.distributions.base import SMALL, Distribution, Shape, one_of, together
from stack.framework.distributions.continuous import Gamma
from stack.framework.functions import exp, lgamma, log, log1p, where, xlogy
from stack.framework.modes import no_grad
from stack.framework.random import rand
from stack.framework.tensor import Tensor


class Bernoulli(Distribution):
    """1 with probability `probs`, or sigmoid(`logits`), else 0."""

    arg_constraints = {"probs": c.unit_interval, "logits": c.real}
    support = c.boolean
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        one_of(probs, logits)
        if logits is not None:
            (self.logits,) = together(logits)
            self.probs = F.sigmoid(self.logits)
        else:
            (self.probs,) = together(probs)
            p = self.probs.clamp(SMALL, 1 - SMALL)
            self.logits = log(p) - log(1 - p)
        super().__init__(self.probs.shape, validate_args=validate_args, probs=probs, logits=logits)

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        """NaN where both are as likely."""
        found = (self.probs > 0.5).to(self.probs.dtype)
        return where(self.probs == 0.5, math.nan, found)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self.probs.dtype, device=self.probs.device)
        return self.listed(values, expand)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape)
        draws = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
        return (draws < self.probs.detach()).to(self.probs.dtype)

    def _log_prob(self, value: Tensor) -> Tensor:
        logits, value = self.logits + value * 0, value + self.logits.detach() * 0
        return -F.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Categorical(Distribution):
    """The number i with probability probs[..., i] / sum, or softmax(logits)[..., i]."""

    arg_constraints = {"probs": c.nonnegative_vector, "logits": c.real_vector}
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        one_of(probs, logits)
        if logits is not None:
            self.logits = F.log_softmax(logits, -1)
            self.probs = exp(self.logits)
        else:
            assert probs is not None
            self.probs = probs / probs.sum(-1, keepdim=True)
            self.logits = log(self.probs.clamp(SMALL, 1 - SMALL))
        super().__init__(
            self.probs.shape[:-1], validate_args=validate_args, probs=probs, logits=logits
        )

    @property
    def support(self) -> c.Constraint:
        return c.integer_interval(0, self.probs.shape[-1] - 1)

    mean = property(lambda self: full_like(self.probs[..., 0], math.nan))
    variance = mean

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self.listed(arange(self.probs.shape[-1], device=self.probs.device), expand)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape, 1)
        draws = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
        below = (self.probs.detach().cumsum(-1) <= draws).long().sum(-1)
        return below.clamp(max=self.probs.shape[-1] - 1)

    def _log_prob(self, value: Tensor) -> Tensor:
        chosen = F.one_hot(value.long(), self.probs.shape[-1])
        return where(chosen != 0, self.logits, 0.0).sum(-1)

    def entropy(self) -> Tensor:
        return -(self.logits * self.probs).sum(-1)


class OneHotCategorical(Distribution):
    """As `Categorical`, but samples have 1 in the place of the number along a last axis, and else
    0."""

    arg_constraints = Categorical.arg_constraints
    support = c.one_hot
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._numbers = Categorical(probs, logits)
        self.probs, self.logits = self._numbers.probs, self._numbers.logits
        *batch, last = self.probs.shape
        super().__init__(batch, (last,), validate_args, probs=probs, logits=logits)

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        return F.one_hot(self.probs.argmax(-1), self.event_shape[0]).to(self.probs.dtype)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        whole = eye(self.event_shape[0], dtype=self.probs.dtype, device=self.probs.device)
        return self.listed(whole, expand)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        drawn = self._numbers.sample(sample_shape)
        return F.one_hot(drawn, self.event_shape[0]).to(self.probs.dtype)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._numbers.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._numbers.entropy()


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One whose samples have the gradients of the probabilities."""

    has_rsample = True

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(Distribution):
    """How often each number is drawn in `total_count` draws of `Categorical`."""

    arg_constraints = {"total_count": c.nonnegative_integer, **Categorical.arg_constraints}

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.total_count = total_count
        self._one = OneHotCategorical(probs, logits)
        self.probs, self.logits = self._one.probs, self._one.logits
        super().__init__(
            self._one.batch_shape,
            self._one.event_shape,
            validate_args,
            total_count=total_count,
            probs=probs,
            logits=logits,
        )

    @property
    def support(self) -> c.Constraint:
        return c.independent(c.integer_interval(0, self.total_count), 1)

    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.probs * (1 - self.probs) * self.total_count)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self._one.sample((self.total_count, *sample_shape)).sum(0)

    def _log_prob(self, value: Tensor) -> Tensor:
        ways = lgamma(value.sum(-1) + 1) - lgamma(value + 1).sum(-1)
        return ways + where(value == 0, 0.0, value * self.logits).sum(-1)

    def entropy(self) -> Tensor:
        """By what is expected of log(k!) of each number, whose count is one of `Binomial`."""
        each = Binomial(self.total_count, self.probs)
        counts = each.enumerate_support(expand=False)
        inner = (exp(each.log_prob(counts)) * lgamma(counts + 1)).sum((0, -1))
        return self.total_count * self._one.entropy() - math.lgamma(self.total_count + 1) + inner


class Binomial(Distribution):
    """How often 1 is drawn in `total_count` draws of `Bernoulli`."""

    arg_constraints = {"total_count": c.nonnegative_integer, **Bernoulli.arg_constraints}
    has_enumerate_support = True

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        self.total_count = total_count
        self._one = Bernoulli(probs, logits)
        self.probs, self.logits = self._one.probs, self._one.logits
        super().__init__(
            self.probs.shape,
            validate_args=validate_args,
            total_count=total_count,
            probs=probs,
            logits=logits,
        )

    @property
    def support(self) -> c.Constraint:
        return c.integer_interval(0, self.total_count)

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count, p = self.total_count + 1, self.probs
        return self.listed(arange(count, dtype=p.dtype, device=p.device), expand)

    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.probs * (1 - self.probs) * self.total_count)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self._one.sample((self.total_count, *sample_shape)).sum(0)

    def _log_prob(self, value: Tensor) -> Tensor:
        count, missing = self.total_count, self.total_count - value
        ways = math.lgamma(count + 1) - lgamma(value + 1) - lgamma(missing + 1)
        return ways + value * self.logits - count * F.softplus(self.logits)

    def entropy(self) -> Tensor:
        found = self._log_prob(self.enumerate_support(expand=False))
        return -(exp(found) * found).sum(0)


class Geometric(Distribution):
    """How many 0 come before the first 1 of draws of `Bernoulli`."""

    arg_constraints = Bernoulli.arg_constraints
    support = c.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        one = Bernoulli(probs, logits)
        self.probs, self.logits = one.probs, one.logits
        super().__init__(one.batch_shape, validate_args=validate_args, probs=probs, logits=logits)

    mean = property(lambda self: 1 / self.probs - 1)
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)
    mode = property(lambda self: self.probs * 0)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            u = self.uniform(sample_shape, self.probs)
            return (log1p(-u) / log1p(-self.probs)).floor()

    def _log_prob(self, value: Tensor) -> Tensor:
        return xlogy(value, 1 - self.probs) + log(self.probs)

    def entropy(self) -> Tensor:
        return (
            F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
            / self.probs
        )


_MOST = 1000
"""The greatest rate of which samples are drawn: each takes the probabilities of all numbers up to
ten deviations above it."""


def poisson(input: Tensor) -> Tensor:
    """A sample of each rate: how many numbers have a cumulative probability of at most one drawn
    evenly from [0, 1)."""
    rate = input
    most = float(rate.max()) if rate.numel() else 0.0
    if not most <= _MOST:
        raise NotImplementedError(f"Poisson draws samples of rates up to {_MOST}, not of {most}")
    numbers = arange(int(most + 10 * most**0.5 + 16), dtype=rate.dtype, device=rate.device)
    wide = rate.unsqueeze(-1)
    each = exp(xlogy(numbers, wide) - wide - lgamma(numbers + 1))
    drawn = rand(rate.shape, dtype=rate.dtype, device=rate.device).unsqueeze(-1)
    return (each.cumsum(-1) <= drawn).to(rate.dtype).sum(-1)


class NegativeBinomial(Distribution):
    """How often 1 is drawn before the `total_count`th 0, where `probs` is that of 1."""

    arg_constraints = {
        "total_count": c.nonnegative,
        "probs": c.half_open_interval(0.0, 1.0),
        "logits": c.real,
    }
    support = c.nonnegative_integer

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        one = Bernoulli(probs, logits)
        self.total_count, self.probs = together(total_count, one.probs)
        self.logits = one.logits.expand(self.probs.shape)
        super().__init__(
            self.probs.shape,
            validate_args=validate_args,
            total_count=total_count,
            probs=probs,
            logits=logits,
        )

    mean = property(lambda self: self.total_count * exp(self.logits))
    variance = property(lambda self: self.mean / (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * exp(self.logits)).floor().clamp(min=0)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            rates = Gamma(self.total_count, exp(-self.logits)).sample(sample_shape)
            return poisson(rates)

    def _log_prob(self, value: Tensor) -> Tensor:
        n = self.total_count
        ways = lgamma(n + value) - lgamma(1 + value) - lgamma(n)
        return ways - n * F.softplus(self.logits) - value * F.softplus(-self.logits)


class Poisson(Distribution):
    """Of probability rate ** k * exp(-rate) / k!."""

    arg_constraints = {"rate": c.nonnegative}
    support = c.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(self.rate.shape, validate_args=validate_args, rate=rate)

    mean = property(lambda self: self.rate)
    variance = property(lambda self: self.rate)
    mode = property(lambda self: self.rate.floor())

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Waits for the greatest rate. Raises NotImplementedError where that is beyond _MOST."""
        with no_grad():
            return poisson(self.rate.expand(self.shaped(sample_shape)))

    def _log_prob(self, value: Tensor) -> Tensor:
        return xlogy(value, self.rate) - self.rate - lgamma(value + 1)
