"""How far distributions are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stack.framework import functional as F
from stack.framework.distributions.base import Distribution
from stack.framework.distributions.composed import Independent
from stack.framework.distributions.continuous import (
    Beta,
    Dirichlet,
    Exponential,
    Gamma,
    Laplace,
    MultivariateNormal,
    Normal,
    Uniform,
)
from stack.framework.distributions.discrete import (
    Bernoulli,
    Categorical,
    OneHotCategorical,
    Poisson,
)
from stack.framework.functions import digamma, exp, lgamma, log, where
from stack.framework.linalg import solve_triangular
from stack.framework.tensor import Tensor


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return (ratio * ratio + shift * shift - 1) / 2 - log(ratio)


def _numbers(p: Categorical | OneHotCategorical, q: Categorical | OneHotCategorical) -> Tensor:
    return (p.probs * (p.logits - q.logits)).sum(-1)


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    same = F.softplus(q.logits) - F.softplus(p.logits)
    return p.probs * (p.logits - q.logits) + same


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, far = p.scale / q.scale, (p.loc - q.loc).abs()
    return ratio * exp(-far / p.scale) + far / q.scale - log(ratio) - 1


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), math.inf)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - log(ratio) - 1


def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * log(p.rate / q.rate) - (p.rate - q.rate)


def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    rates = b * log(p.rate / q.rate) + a * (q.rate / p.rate - 1)
    return rates + lgamma(b) - lgamma(a) + (a - b) * digamma(a)


def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    inner = ((a - b) * (digamma(a) - digamma(a.sum(-1, keepdim=True)))).sum(-1)
    whole = lgamma(a.sum(-1)) - lgamma(b.sum(-1))
    return whole + (lgamma(b) - lgamma(a)).sum(-1) + inner


def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p.pair(), q.pair())


def _several_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    off = solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False).squeeze(-1)
    mixed = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    squares = (mixed * mixed).sum((-2, -1)) + (off * off).sum(-1)
    return q.half_log_det() - p.half_log_det() + (squares - p.event_shape[0]) / 2


_ROWS: tuple[tuple[type[Distribution], Callable[[Any, Any], Tensor]], ...] = (
    (Normal, _normal),
    (Categorical, _numbers),
    (OneHotCategorical, _numbers),
    (Bernoulli, _bernoulli),
    (Laplace, _laplace),
    (Uniform, _uniform),
    (Exponential, _exponential),
    (Poisson, _poisson),
    (Gamma, _gamma),
    (Dirichlet, _dirichlet),
    (Beta, _beta),
    (MultivariateNormal, _several_normal),
)


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """What is lost, in nats, by taking q for p: two of one kind, or of it within `Independent`."""
    if isinstance(p, Independent) and isinstance(q, Independent):
        count = p.reinterpreted_batch_ndims
        if count == q.reinterpreted_batch_ndims:
            found = kl_divergence(p.base_dist, q.base_dist)
            return found.sum(tuple(range(-count, 0))) if count else found
    for kind, rule in _ROWS:
        if isinstance(p, kind) and isinstance(q, kind):
            return rule(p, q)
    raise NotImplementedError(
        f"kl_divergence takes two of one of {', '.join(k.__name__ for k, _ in _ROWS)}; got "
        f"{type(p).__name__} and {type(q).__name__}"
    )
