"""Distributions with densities."""

from __future__ import annotations

import math
from typing import Any

from stack.framework import functional as F
from stack.framework.distributions.base import Distribution, Shape, together
from stack.framework.functions import (
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
from stack.framework.mode import no_grad
from stack.framework.random import rand, randn
from stack.framework.tensor import Tensor

_LOG_2_PI = math.log(2 * math.pi)
EULER = 0.5772156649015329
_TRIES = 8
"""Of which all are refused once in 3e10 times at the least acceptance, 95 of 100."""


class _Placed(Distribution):
    """Of a place `loc` and a width `scale`."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = together(loc, scale)
        self.batch_shape = self.loc.shape

    def _noise(self, sample_shape: Shape) -> Tensor:
        """Samples of place 0 and width 1."""
        raise NotImplementedError

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc + self._noise(sample_shape) * self.scale


class Normal(_Placed):
    """Of mean `loc` and standard deviation `scale`."""

    mean = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale * self.scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        return self.normal(sample_shape, self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.loc) / self.scale
        return -(deviation * deviation) / 2 - log(self.scale) - _LOG_2_PI / 2

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most each value."""
        return (1 + erf((value - self.loc) / (self.scale * math.sqrt(2)))) / 2

    def icdf(self, value: Tensor) -> Tensor:
        """The number below which a sample is with each probability."""
        return self.loc + self.scale * math.sqrt(2) * erfinv(2 * value - 1)

    def entropy(self) -> Tensor:
        return 0.5 + _LOG_2_PI / 2 + log(self.scale)


class Laplace(_Placed):
    """Of density exp(-|x - loc| / scale) / (2 * scale)."""

    mean = property(lambda self: self.loc)
    variance = property(lambda self: 2 * self.scale * self.scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        u = self.uniform(sample_shape, self.loc) - 0.5
        return -u.sign() * log1p(-2 * u.abs())

    def log_prob(self, value: Tensor) -> Tensor:
        return -(value - self.loc).abs() / self.scale - log(2 * self.scale)

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)


class Cauchy(_Placed):
    """Of density 1 / (pi * scale * (1 + ((x - loc) / scale) ** 2)); it has no mean."""

    def _noise(self, sample_shape: Shape) -> Tensor:
        return tan(math.pi * (self.uniform(sample_shape, self.loc) - 0.5))

    def log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.loc) / self.scale
        return -math.log(math.pi) - log(self.scale) - log1p(deviation * deviation)

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + log(self.scale)


class Gumbel(_Placed):
    """Of the greatest of many samples: cumulative probability exp(-exp(-(x - loc) / scale))."""

    mean = property(lambda self: self.loc + self.scale * EULER)
    variance = property(lambda self: math.pi**2 / 6 * self.scale * self.scale)

    def _noise(self, sample_shape: Shape) -> Tensor:
        return -log(-log1p(-self.uniform(sample_shape, self.loc).clamp(min=2.0**-24)))

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -z - exp(-z) - log(self.scale)

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + EULER)


class LogNormal(_Placed):
    """exp of a normal sample of mean `loc` and standard deviation `scale`."""

    mean = property(lambda self: exp(self.loc + self.scale * self.scale / 2))

    @property
    def variance(self) -> Tensor:
        square = self.scale * self.scale
        return square.expm1() * exp(2 * self.loc + square)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return exp(self.loc + self.normal(sample_shape, self.loc) * self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        return Normal(self.loc, self.scale).log_prob(log(value)) - log(value)

    def entropy(self) -> Tensor:
        return Normal(self.loc, self.scale).entropy() + self.loc


class HalfNormal(Distribution):
    """The size of a normal sample of mean 0 and standard deviation `scale`."""

    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = together(scale)
        self.batch_shape = self.scale.shape

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    variance = property(lambda self: self.scale * self.scale * (1 - 2 / math.pi))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return (self.normal(sample_shape, self.scale) * self.scale).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        found = Normal(self.scale * 0, self.scale).log_prob(value) + math.log(2)
        return where(value >= 0, found, -math.inf)

    def entropy(self) -> Tensor:
        return Normal(0.0, self.scale).entropy() - math.log(2)


class Uniform(Distribution):
    """Between `low` and `high`."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = together(low, high)
        self.batch_shape = self.low.shape

    mean = property(lambda self: (self.low + self.high) / 2)
    variance = property(lambda self: (self.high - self.low) ** 2 / 12)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.low + self.uniform(sample_shape, self.low) * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)


class Exponential(Distribution):
    """Of density rate * exp(-rate * x)."""

    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        self.batch_shape = self.rate.shape

    mean = property(lambda self: 1 / self.rate)
    variance = property(lambda self: 1 / (self.rate * self.rate))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return -log1p(-self.uniform(sample_shape, self.rate)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return log(self.rate) - self.rate * value

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)


def _gamma(concentration: Tensor, shape: Shape) -> Tensor:
    """Samples of rate 1: Marsaglia and Tsang, A simple method for generating gamma variables, 2000;
    below a concentration of 1 from that of one more, as they say."""
    least = concentration.expand(tuple(shape))
    d = where(least < 1, least + 1, least) - 1 / 3
    kind: Any = {"dtype": least.dtype, "device": least.device}
    x = randn(_TRIES, *shape, **kind)
    v = (1 + x / (9 * d).sqrt()) ** 3
    safe = where(v > 0, v, 1.0)
    bound = x * x / 2 + d * (1 - safe + log(safe))
    taken = (v > 0) & (log1p(-rand(_TRIES, *shape, **kind)) < bound)
    found = d * safe.gather(0, taken.int().argmax(0, keepdim=True)).squeeze(0)
    return where(least < 1, found * (1 - rand(*shape, **kind)) ** (1 / least), found)


class Gamma(Distribution):
    """Of density rate ** a * x ** (a - 1) * exp(-rate * x) / gamma(a), where a is
    `concentration`."""

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = together(concentration, rate)
        self.batch_shape = self.rate.shape

    mean = property(lambda self: self.concentration / self.rate)
    variance = property(lambda self: self.concentration / (self.rate * self.rate))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return _gamma(self.concentration, self.shaped(sample_shape)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return xlogy(a, self.rate) + xlogy(a - 1, value) - self.rate * value - lgamma(a)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1 - a) * digamma(a)


class Chi2(Gamma):
    """The sum of the squares of `df` normal numbers."""

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = together(df)
        super().__init__(self.df / 2, 0.5)


class StudentT(_Placed):
    """Of `df` degrees of freedom."""

    has_rsample = False

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = together(df, loc, scale)
        self.batch_shape = self.df.shape

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

    def log_prob(self, value: Tensor) -> Tensor:
        y, df = (value - self.loc) / self.scale, self.df
        norm = log(self.scale) + log(df * math.pi) / 2 + lgamma(df / 2) - lgamma((df + 1) / 2)
        return -(df + 1) / 2 * log1p(y * y / df) - norm


class Dirichlet(Distribution):
    """Over positive numbers along the last axis whose sum is 1."""

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        self.batch_shape, self.event_shape = concentration.shape[:-1], concentration.shape[-1:]

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        total, mean = self.concentration.sum(-1, keepdim=True), self.mean
        return mean * (1 - mean) / (total + 1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            drawn = _gamma(self.concentration, self.shaped(sample_shape))
            return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
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

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = together(concentration1, concentration0)
        self.batch_shape = self.concentration1.shape

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total * total * (total + 1))

    def pair(self) -> Dirichlet:
        """The same of x and 1 - x."""
        a, b = self.concentration1, self.concentration0
        return Dirichlet(F.pad(a.unsqueeze(-1), (0, 1)) + F.pad(b.unsqueeze(-1), (1, 0)))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.pair().sample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        shape = xlogy(a - 1, value) + (b - 1) * log1p(-value)
        return shape + lgamma(a + b) - lgamma(a) - lgamma(b)

    def entropy(self) -> Tensor:
        return self.pair().entropy()


class MultivariateNormal(Distribution):
    """Of mean `loc` [..., n] and a covariance [..., n, n], given itself, by its inverse or by its
    lower Cholesky factor."""

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
        if scale_tril is None:
            whole = covariance_matrix
            if whole is None:
                assert precision_matrix is not None
                whole = precision_matrix.inverse()
            scale_tril = cholesky(whole)
        batch = (loc.unsqueeze(-1) + scale_tril * 0).shape[:-1]
        self.loc, self.scale_tril = loc.expand(batch), scale_tril.expand((*batch, batch[-1]))
        self.batch_shape, self.event_shape = batch[:-1], batch[-1:]

    mean = property(lambda self: self.loc)
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

    def log_prob(self, value: Tensor) -> Tensor:
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

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        self.cov_factor, self.cov_diag = cov_factor, cov_diag
        super().__init__(loc, cov_factor @ cov_factor.mT + diag_embed(cov_diag))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        own = self.normal(sample_shape, self.loc) * self.cov_diag.sqrt()
        shape = (*sample_shape, *self.batch_shape, self.cov_factor.shape[-1], 1)
        common = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + own + (self.cov_factor @ common).squeeze(-1)
