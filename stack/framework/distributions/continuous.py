"""Distributions with densities."""

from __future__ import annotations

import math
from typing import Any

from stack.framework import functional as F
from stack.framework.create import full_like
from stack.framework.distributions import constraints as c
from stack.framework.distributions.base import Distribution, Shape, together
from stack.framework.expr import sampling
from stack.framework.functions import (
    atan,
    diag_embed,
    diagonal,
    digamma,
    erf,
    erfinv,
    exp,
    lgamma,
    log,
    log1p,
    tan,
    where,
    xlogy,
)
from stack.framework.linalg import cholesky, solve_triangular
from stack.framework.modes import no_grad
from stack.framework.random import rand, randn
from stack.framework.tensor import Tensor, apply

_LOG_2_PI = math.log(2 * math.pi)
EULER = 0.5772156649015329
_TRIES = 8
"""Of which all are refused once in 3e10 times at the least acceptance, 95 of 100."""


class _Placed(Distribution):
    """Of a place `loc` and a width `scale`."""

    arg_constraints = {"loc": c.real, "scale": c.positive}
    support = c.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = together(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args, loc=loc, scale=scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        """Samples of place 0 and width 1."""
        raise NotImplementedError

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc + self._noise(sample_shape) * self.scale


class Normal(_Placed):
    """Of mean `loc` and standard deviation `scale`."""

    mode = mean = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale * self.scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        return self.normal(sample_shape, self.loc)

    def _log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.loc) / self.scale
        return -(deviation * deviation) / 2 - log(self.scale) - _LOG_2_PI / 2

    def cdf(self, value: Tensor) -> Tensor:
        return (1 + erf((value - self.loc) / (self.scale * math.sqrt(2)))) / 2

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * math.sqrt(2) * erfinv(2 * value - 1)

    def entropy(self) -> Tensor:
        return 0.5 + _LOG_2_PI / 2 + log(self.scale)


class Laplace(_Placed):
    """Of density exp(-|x - loc| / scale) / (2 * scale)."""

    mode = mean = property(lambda self: self.loc)
    variance = property(lambda self: 2 * self.scale * self.scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        u = self.uniform(sample_shape, self.loc).clamp(min=2.0**-25) - 0.5
        return -u.sign() * log1p(-2 * u.abs())

    def _log_prob(self, value: Tensor) -> Tensor:
        return -(value - self.loc).abs() / self.scale - log(2 * self.scale)

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        off = value - self.loc
        return 0.5 - 0.5 * off.sign() * (-off.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        off = value - 0.5
        return self.loc - self.scale * off.sign() * log1p(-2 * off.abs())


class Cauchy(_Placed):
    """Of density 1 / (pi * scale * (1 + ((x - loc) / scale) ** 2)); it has no mean."""

    mean = property(lambda self: full_like(self.loc, math.nan))
    variance = property(lambda self: full_like(self.loc, math.inf))
    mode = property(lambda self: self.loc)

    def _noise(self, sample_shape: Shape) -> Tensor:
        return tan(math.pi * (self.uniform(sample_shape, self.loc) - 0.5))

    def _log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.loc) / self.scale
        return -math.log(math.pi) - log(self.scale) - log1p(deviation * deviation)

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        return atan((value - self.loc) / self.scale) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return tan(math.pi * (value - 0.5)) * self.scale + self.loc


class Gumbel(_Placed):
    """Of the greatest of many samples: cumulative probability exp(-exp(-(x - loc) / scale))."""

    mean = property(lambda self: self.loc + self.scale * EULER)
    variance = property(lambda self: math.pi**2 / 6 * self.scale * self.scale)
    mode = property(lambda self: self.loc)

    def _noise(self, sample_shape: Shape) -> Tensor:
        return -log(-log1p(-self.uniform(sample_shape, self.loc).clamp(min=2.0**-24)))

    def _log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -z - exp(-z) - log(self.scale)

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + EULER)

    def cdf(self, value: Tensor) -> Tensor:
        return exp(-exp(-(value - self.loc) / self.scale))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * log(-log(value))


class LogNormal(_Placed):
    """exp of a normal sample of mean `loc` and standard deviation `scale`."""

    support = c.positive
    mean = property(lambda self: exp(self.loc + self.scale * self.scale / 2))
    mode = property(lambda self: exp(self.loc - self.scale * self.scale))

    @property
    def variance(self) -> Tensor:
        square = self.scale * self.scale
        return square.expm1() * exp(2 * self.loc + square)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return exp(self.loc + self.normal(sample_shape, self.loc) * self.scale)

    def _log_prob(self, value: Tensor) -> Tensor:
        return Normal(self.loc, self.scale).log_prob(log(value)) - log(value)

    def entropy(self) -> Tensor:
        return Normal(self.loc, self.scale).entropy() + self.loc

    def cdf(self, value: Tensor) -> Tensor:
        return Normal(self.loc, self.scale).cdf(log(value))

    def icdf(self, value: Tensor) -> Tensor:
        return exp(Normal(self.loc, self.scale).icdf(value))


class HalfNormal(Distribution):
    """The size of a normal sample of mean 0 and standard deviation `scale`."""

    arg_constraints = {"scale": c.positive}
    support = c.nonnegative
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = together(scale)
        super().__init__(self.scale.shape, validate_args=validate_args, scale=scale)

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    mode = property(lambda self: self.scale * 0)
    variance = property(lambda self: self.scale * self.scale * (1 - 2 / math.pi))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return (self.normal(sample_shape, self.scale) * self.scale).abs()

    def _log_prob(self, value: Tensor) -> Tensor:
        found = Normal(self.scale * 0, self.scale).log_prob(value) + math.log(2)
        return where(value >= 0, found, -math.inf)

    def entropy(self) -> Tensor:
        return Normal(0.0, self.scale).entropy() - math.log(2)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * Normal(0.0, self.scale).cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return Normal(0.0, self.scale).icdf((value + 1) / 2)


class Uniform(Distribution):
    """Between `low` and `high`."""

    arg_constraints = {"low": c.real, "high": c.real}
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = together(low, high)
        super().__init__(self.low.shape, validate_args=validate_args, low=low, high=high)
        numbers = not (isinstance(low, Tensor) or isinstance(high, Tensor))
        if self.validates is not False and (
            not low < high if numbers else self.validates and not bool((self.low < self.high).all())
        ):
            raise ValueError(f"Uniform takes a low that is less than high, not {low} and {high}")

    @property
    def support(self) -> c.Constraint:
        return c.interval(self.low, self.high)

    mean = property(lambda self: (self.low + self.high) / 2)
    mode = property(lambda self: full_like(self.low, math.nan))
    variance = property(lambda self: (self.high - self.low) ** 2 / 12)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.low + self.uniform(sample_shape, self.low) * (self.high - self.low)

    def _log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low


class Exponential(Distribution):
    """Of density rate * exp(-rate * x)."""

    arg_constraints = {"rate": c.positive}
    support = c.nonnegative
    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(self.rate.shape, validate_args=validate_args, rate=rate)

    mean = property(lambda self: 1 / self.rate)
    mode = property(lambda self: self.rate * 0)
    variance = property(lambda self: 1 / (self.rate * self.rate))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return -log1p(-self.uniform(sample_shape, self.rate)) / self.rate

    def _log_prob(self, value: Tensor) -> Tensor:
        return log(self.rate) - self.rate * value

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)

    def cdf(self, value: Tensor) -> Tensor:
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -log1p(-value) / self.rate


def _gamma(concentration: Tensor, shape: Shape) -> Tensor:
    """Samples of rate 1."""
    kind: Any = {"dtype": concentration.dtype, "device": concentration.device}
    normal, level = randn(_TRIES, *shape, **kind), log1p(-rand(_TRIES, *shape, **kind))
    each = concentration.expand(tuple(shape))
    return apply(sampling.gamma, each, normal, level, 1 - rand(*shape, **kind))


class Gamma(Distribution):
    """Of density rate ** a * x ** (a - 1) * exp(-rate * x) / gamma(a), where a is
    `concentration`."""

    arg_constraints = {"concentration": c.positive, "rate": c.positive}
    support = c.nonnegative

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = together(concentration, rate)
        super().__init__(
            self.rate.shape, validate_args=validate_args, concentration=concentration, rate=rate
        )

    mean = property(lambda self: self.concentration / self.rate)
    variance = property(lambda self: self.concentration / (self.rate * self.rate))
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return _gamma(self.concentration, self.shaped(sample_shape)) / self.rate

    def _log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return xlogy(a, self.rate) + xlogy(a - 1, value) - self.rate * value - lgamma(a)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1 - a) * digamma(a)


class Chi2(Gamma):
    """The sum of the squares of `df` normal numbers."""

    arg_constraints = {"df": c.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = together(df)
        super().__init__(self.df / 2, 0.5)
        Distribution.__init__(self, self.df.shape, validate_args=validate_args, df=df)


class StudentT(_Placed):
    """Of `df` degrees of freedom."""

    arg_constraints = {"df": c.positive, "loc": c.real, "scale": c.positive}
    mode = property(lambda self: self.loc)
    has_rsample = False

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = together(df, loc, scale)
        Distribution.__init__(
            self, self.df.shape, validate_args=validate_args, df=df, loc=loc, scale=scale
        )

    @property
    def mean(self) -> Tensor:
        """NaN up to one degree of freedom."""
        return where(self.df > 1, self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        """Infinite up to two degrees of freedom, NaN up to one."""
        found = where(self.df > 2, self.scale**2 * self.df / (self.df - 2), math.inf)
        return where(self.df > 1, found, math.nan)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return Distribution.rsample(self, sample_shape)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            width = (Chi2(self.df).sample(sample_shape) / self.df).sqrt()
            return self.loc + self.scale * self.normal(sample_shape, self.loc) / width

    def _log_prob(self, value: Tensor) -> Tensor:
        y, df = (value - self.loc) / self.scale, self.df
        norm = log(self.scale) + log(df * math.pi) / 2 + lgamma(df / 2) - lgamma((df + 1) / 2)
        return -(df + 1) / 2 * log1p(y * y / df) - norm

    def entropy(self) -> Tensor:
        df, half = self.df, (self.df + 1) / 2
        norm = log(self.scale) + log(df * math.pi) / 2 + lgamma(df / 2) - lgamma(half)
        return norm + half * (digamma(half) - digamma(df / 2))


class Dirichlet(Distribution):
    """Over positive numbers along the last axis whose sum is 1."""

    arg_constraints = {"concentration": c.positive_vector}
    support = c.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        *batch, last = concentration.shape
        super().__init__(batch, (last,), validate_args, concentration=concentration)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        """Where all concentrations are less than 1, and the density is infinite in each corner, the
        first corner, as in PyTorch."""
        above = (self.concentration - 1).clamp(min=0)
        corner = (above * 0)[..., 1:]
        return where(
            (self.concentration < 1).all(-1, keepdim=True),
            F.pad(corner, (1, 0), value=1.0),
            above / above.sum(-1, keepdim=True),
        )

    @property
    def variance(self) -> Tensor:
        total, mean = self.concentration.sum(-1, keepdim=True), self.mean
        return mean * (1 - mean) / (total + 1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            drawn = _gamma(self.concentration, self.shaped(sample_shape))
            return drawn / drawn.sum(-1, keepdim=True)

    def _log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return xlogy(a - 1, value).sum(-1) + lgamma(a.sum(-1)) - lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        a, size = self.concentration, self.event_shape[0]
        total = a.sum(-1)
        inner = ((a - 1) * digamma(a)).sum(-1)
        return lgamma(a).sum(-1) - lgamma(total) - (size - total) * digamma(total) - inner


class Beta(Distribution):
    """Of density proportional to x ** (a - 1) * (1 - x) ** (b - 1), where a and b are
    `concentration1` and `concentration0`."""

    arg_constraints = {"concentration1": c.positive, "concentration0": c.positive}
    support = c.unit_interval

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

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total * total * (total + 1))

    @property
    def mode(self) -> Tensor:
        return self.pair().mode[..., 0]

    def pair(self) -> Dirichlet:
        """The same of x and 1 - x."""
        a, b = self.concentration1, self.concentration0
        return Dirichlet(F.pad(a.unsqueeze(-1), (0, 1)) + F.pad(b.unsqueeze(-1), (1, 0)))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.pair().sample(sample_shape)[..., 0]

    def _log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        shape = xlogy(a - 1, value) + (b - 1) * log1p(-value)
        return shape + lgamma(a + b) - lgamma(a) - lgamma(b)

    def entropy(self) -> Tensor:
        return self.pair().entropy()


class MultivariateNormal(Distribution):
    """Of mean `loc` [..., n] and a covariance [..., n, n], given itself, by its inverse or by its
    lower Cholesky factor."""

    arg_constraints = {
        "loc": c.real_vector,
        "covariance_matrix": c.positive_definite,
        "precision_matrix": c.positive_definite,
        "scale_tril": c.lower_cholesky,
    }
    support = c.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [covariance_matrix, precision_matrix, scale_tril]
        if sum(x is not None for x in given) != 1:
            raise ValueError("give one of covariance_matrix, precision_matrix and scale_tril")
        factor = scale_tril
        if factor is None:
            whole = covariance_matrix
            if whole is None:
                assert precision_matrix is not None
                whole = precision_matrix.inverse()
            factor = cholesky(whole)
        batch = (loc.unsqueeze(-1) + factor * 0).shape[:-1]
        self.loc, self.scale_tril = loc.expand(batch), factor.expand((*batch, batch[-1]))
        super().__init__(
            batch[:-1],
            batch[-1:],
            validate_args,
            loc=loc,
            covariance_matrix=covariance_matrix,
            precision_matrix=precision_matrix,
            scale_tril=scale_tril,
        )

    mode = mean = property(lambda self: self.loc)
    precision_matrix = property(lambda self: self.covariance_matrix.inverse())
    covariance_matrix = property(lambda self: self.scale_tril @ self.scale_tril.mT)

    @property
    def variance(self) -> Tensor:
        return (self.scale_tril * self.scale_tril).sum(-1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        noise = self.normal(sample_shape, self.loc).unsqueeze(-1)
        return self.loc + (self.scale_tril @ noise).squeeze(-1)

    def half_log_det(self) -> Tensor:
        """Half the logarithm of the covariance's determinant."""
        return log(diagonal(self.scale_tril, dim1=-2, dim2=-1)).sum(-1)

    def _log_prob(self, value: Tensor) -> Tensor:
        off = (value - self.loc).unsqueeze(-1)
        factor = self.scale_tril.expand((*off.shape[:-2], *self.scale_tril.shape[-2:]))
        white = solve_triangular(factor, off, upper=False).squeeze(-1)
        size = self.event_shape[0] * _LOG_2_PI
        return -((white * white).sum(-1) + size) / 2 - self.half_log_det()

    def entropy(self) -> Tensor:
        return self.event_shape[0] * (1 + _LOG_2_PI) / 2 + self.half_log_det()


class LowRankMultivariateNormal(MultivariateNormal):
    """Of mean `loc` [..., n] and covariance cov_factor @ cov_factor.mT + diag(cov_diag), where the
    factor is [..., n, rank]. Densities take the whole matrix; samples do not."""

    arg_constraints = {"loc": c.real_vector, "cov_diag": c.positive_vector}

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc, cov_factor @ cov_factor.mT + diag_embed(cov_diag))
        batch, event = self.batch_shape, self.event_shape
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        self.cov_diag = cov_diag.expand((*batch, *event))
        Distribution.__init__(self, batch, event, validate_args, loc=loc, cov_diag=cov_diag)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        own = self.normal(sample_shape, self.loc) * self.cov_diag.sqrt()
        shape = (*sample_shape, *self.batch_shape, self.cov_factor.shape[-1], 1)
        common = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + own + (self.cov_factor @ common).squeeze(-1)
