"""Distributions over positive numbers beside the gamma family, and those up to 1."""

from __future__ import annotations

import math
from typing import Any

from stack.framework.create import full_like
from stack.framework.distributions import constraints as c
from stack.framework.distributions.base import Distribution, Shape, together
from stack.framework.distributions.continuous import EULER, Cauchy, Chi2, Gamma
from stack.framework.functions import digamma, exp, lgamma, log, log1p, where
from stack.framework.modes import no_grad
from stack.framework.tensor import Tensor


class HalfCauchy(Distribution):
    """The size of a sample of `Cauchy` around 0; its mean is infinite."""

    arg_constraints = {"scale": c.positive}
    support = c.nonnegative
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self._whole = Cauchy(0.0, scale)
        self.scale = self._whole.scale
        super().__init__(self.scale.shape, validate_args=validate_args, scale=scale)

    mode = property(lambda self: self.scale * 0)
    mean = property(lambda self: full_like(self.scale, math.inf))
    variance = mean

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._whole.rsample(sample_shape).abs()

    def _log_prob(self, value: Tensor) -> Tensor:
        found = self._whole.log_prob(value) + math.log(2)
        return where(value >= 0, found, -math.inf)

    def entropy(self) -> Tensor:
        return self._whole.entropy() - math.log(2)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self._whole.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self._whole.icdf((value + 1) / 2)


class Pareto(Distribution):
    """Of density alpha * scale ** alpha / x ** (alpha + 1) from `scale` on."""

    arg_constraints = {"scale": c.positive, "alpha": c.positive}
    has_rsample = True

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = together(scale, alpha)
        super().__init__(self.scale.shape, validate_args=validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> c.Constraint:
        return c.greater_than_eq(self.scale)

    mode = property(lambda self: self.scale)

    @property
    def mean(self) -> Tensor:
        """Infinite up to an alpha of 1."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self) -> Tensor:
        """Infinite up to an alpha of 2."""
        a = self.alpha.clamp(min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.scale * exp(-log1p(-self.uniform(sample_shape, self.scale)) / self.alpha)

    def _log_prob(self, value: Tensor) -> Tensor:
        return log(self.alpha / value) + self.alpha * log(self.scale / value)

    def entropy(self) -> Tensor:
        return log(self.scale / self.alpha) + 1 + 1 / self.alpha

    def cdf(self, value: Tensor) -> Tensor:
        return -(self.alpha * log(self.scale / value)).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * exp(-log1p(-value) / self.alpha)


class Weibull(Distribution):
    """Of cumulative probability 1 - exp(-(x / scale) ** concentration)."""

    arg_constraints = {"scale": c.positive, "concentration": c.positive}
    support = c.positive
    has_rsample = True

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = together(scale, concentration)
        super().__init__(
            self.scale.shape, validate_args=validate_args, scale=scale, concentration=concentration
        )

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1) / k).clamp(min=0) ** (1 / k)

    @property
    def mean(self) -> Tensor:
        return self.scale * exp(lgamma(1 + 1 / self.concentration))

    @property
    def variance(self) -> Tensor:
        inverse = 1 / self.concentration
        second = exp(lgamma(1 + 2 * inverse)) - exp(2 * lgamma(1 + inverse))
        return self.scale**2 * second

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        waited = -log1p(-self.uniform(sample_shape, self.scale))
        return self.scale * waited ** (1 / self.concentration)

    def _log_prob(self, value: Tensor) -> Tensor:
        x, k = value / self.scale, self.concentration
        return log(k / self.scale) + (k - 1) * log(x) - x**k

    def entropy(self) -> Tensor:
        k = self.concentration
        return EULER * (1 - 1 / k) + log(self.scale / k) + 1

    def cdf(self, value: Tensor) -> Tensor:
        return -(-((value / self.scale) ** self.concentration)).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-log1p(-value)) ** (1 / self.concentration)


class Kumaraswamy(Distribution):
    """Of cumulative probability 1 - (1 - x ** a) ** b, between 0 and 1, where a and b are
    `concentration1` and `concentration0`."""

    arg_constraints = {"concentration1": c.positive, "concentration0": c.positive}
    support = c.unit_interval
    has_rsample = True

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = together(concentration1, concentration0)
        super().__init__(
            self.concentration1.shape,
            validate_args=validate_args,
            concentration1=concentration1,
            concentration0=concentration0,
        )

    def _moment(self, n: int) -> Tensor:
        a, b = 1 + n / self.concentration1, self.concentration0
        return b * exp(lgamma(a) + lgamma(b) - lgamma(a + b))

    mean = property(lambda self: self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1) ** 2)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = self.uniform(sample_shape, self.concentration1)
        below = -(log1p(-u) / self.concentration0).expm1()
        return below ** (1 / self.concentration1)

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return log(a * b) + (a - 1) * log(value) + (b - 1) * log1p(-(value**a))

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = digamma(b + 1) + EULER
        return 1 - 1 / b + (1 - 1 / a) * harmonic - log(a * b)

    @property
    def mode(self) -> Tensor:
        """NaN where a or b is less than 1, or both are 1."""
        a, b = self.concentration1, self.concentration0
        inside = (a >= 1) & (b >= 1) & (a * b > 1)
        return where(inside, ((a - 1) / (a * b - 1)) ** (1 / a), math.nan)

    def cdf(self, value: Tensor) -> Tensor:
        above = self.concentration0 * log1p(-(value**self.concentration1))
        return -above.expm1()

    def icdf(self, value: Tensor) -> Tensor:
        below = -(log1p(-value) / self.concentration0).expm1()
        return below ** (1 / self.concentration1)


class InverseGamma(Distribution):
    """1 / x of a sample x of `Gamma`."""

    arg_constraints = Gamma.arg_constraints
    support = c.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self._inverse = Gamma(concentration, rate)
        self.concentration, self.rate = self._inverse.concentration, self._inverse.rate
        super().__init__(
            self.rate.shape, validate_args=validate_args, concentration=concentration, rate=rate
        )

    mode = property(lambda self: self.rate / (self.concentration + 1))

    @property
    def mean(self) -> Tensor:
        """Infinite up to a concentration of 1."""
        a = self.concentration
        return where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def variance(self) -> Tensor:
        """Infinite up to a concentration of 2."""
        a = self.concentration
        return where(a > 2, self.rate**2 / ((a - 1) ** 2 * (a - 2)), math.inf)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return 1 / self._inverse.sample(sample_shape)

    def _log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return a * log(self.rate) - (a + 1) * log(value) - self.rate / value - lgamma(a)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + log(self.rate) + lgamma(a) - (1 + a) * digamma(a)


class FisherSnedecor(Distribution):
    """(a / df1) / (b / df2) of samples a and b of `Chi2`."""

    arg_constraints = {"df1": c.positive, "df2": c.positive}
    support = c.positive

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = together(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args, df1=df1, df2=df2)

    @property
    def mode(self) -> Tensor:
        """NaN up to a df1 of 2."""
        a, b = self.df1, self.df2
        return where(a > 2, (a - 2) / a * b / (b + 2), math.nan)

    @property
    def mean(self) -> Tensor:
        """NaN up to a df2 of 2."""
        return where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def variance(self) -> Tensor:
        """NaN up to a df2 of 4."""
        a, b = self.df1, self.df2
        found = 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4))
        return where(b > 4, found, math.nan)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            top = Chi2(self.df1).sample(sample_shape) / self.df1
            return top / (Chi2(self.df2).sample(sample_shape) / self.df2)

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b, ratio = self.df1 / 2, self.df2 / 2, self.df1 / self.df2
        norm = lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(ratio)
        return norm + (a - 1) * log(value) - (a + b) * log1p(ratio * value)
