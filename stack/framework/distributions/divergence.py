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
    HalfNormal,
    Laplace,
    MultivariateNormal,
    Normal,
    Uniform,
)
from stack.framework.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from stack.framework.functions import digamma, erf, exp, lgamma, log, log1p, where
from stack.framework.linalg import solve_triangular
from stack.framework.tensor import Tensor


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return (ratio * ratio + shift * shift - 1) / 2 - log(ratio)


def _numbers(p: Categorical | OneHotCategorical, q: Categorical | OneHotCategorical) -> Tensor:
    return (p.probs * (p.logits - q.logits)).sum(-1)


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, far = p.scale / q.scale, (p.loc - q.loc).abs()
    return ratio * exp(-far / p.scale) + far / q.scale - log(ratio) - 1


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), math.inf)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - log(ratio) - 1


def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    rates = b * log(p.rate / q.rate) + a * (q.rate / p.rate - 1)
    return rates + lgamma(b) - lgamma(a) + (a - b) * digamma(a)


def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    inner = ((a - b) * (digamma(a) - digamma(a.sum(-1, keepdim=True)))).sum(-1)
    whole = lgamma(a.sum(-1)) - lgamma(b.sum(-1))
    return whole + (lgamma(b) - lgamma(a)).sum(-1) + inner


def _several_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    off = solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False).squeeze(-1)
    mixed = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    squares = (mixed * mixed).sum((-2, -1)) + (off * off).sum(-1)
    return q.half_log_det() - p.half_log_det() + (squares - p.event_shape[0]) / 2


def _binomial(p: Binomial, q: Binomial) -> Tensor:
    if p.total_count != q.total_count:
        raise NotImplementedError(
            f"kl_divergence of Binomial takes equal counts, not {p.total_count} and {q.total_count}"
        )
    same = F.softplus(q.logits) - F.softplus(p.logits)
    return p.total_count * (p.probs * (p.logits - q.logits) + same)


def _independent(p: Independent, q: Independent) -> Tensor:
    count = p.reinterpreted_batch_ndims
    if count != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            f"kl_divergence of Independent takes equal numbers of axes, not {count} and "
            f"{q.reinterpreted_batch_ndims}"
        )
    found = kl_divergence(p.base_dist, q.base_dist)
    return found.sum(tuple(range(-count, 0))) if count else found


def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    far = (p.loc - q.loc) / p.scale
    mean = math.sqrt(2 / math.pi) * exp(-far * far / 2) + far * erf(far / math.sqrt(2))
    return log(2 * q.scale / p.scale) + p.scale / q.scale * mean - math.log(2 * math.pi) / 2 - 0.5


def _uniform_normal(p: Uniform, q: Normal) -> Tensor:
    width, off = p.high - p.low, (p.high + p.low - 2 * q.loc) / 2
    squares = (width * width / 12 + off * off) / (2 * q.scale * q.scale)
    return log(q.scale * math.sqrt(2 * math.pi) / width) + squares


Rule = Callable[[Any, Any], Tensor]

_RULES: dict[tuple[type[Distribution], type[Distribution]], Rule] = {
    (Normal, Normal): _normal,
    (Categorical, Categorical): _numbers,
    (OneHotCategorical, OneHotCategorical): _numbers,
    (Bernoulli, Bernoulli): lambda p, q: (
        p.probs * (p.logits - q.logits) + (F.softplus(q.logits) - F.softplus(p.logits))
    ),
    (Laplace, Laplace): _laplace,
    (Uniform, Uniform): _uniform,
    (Exponential, Exponential): _exponential,
    (Poisson, Poisson): lambda p, q: p.rate * log(p.rate / q.rate) - (p.rate - q.rate),
    (Gamma, Gamma): _gamma,
    (Dirichlet, Dirichlet): _dirichlet,
    (Beta, Beta): lambda p, q: _dirichlet(p.pair(), q.pair()),
    (MultivariateNormal, MultivariateNormal): _several_normal,
    (Geometric, Geometric): lambda p, q: -p.entropy() - log1p(-q.probs) / p.probs - q.logits,
    (HalfNormal, HalfNormal): lambda p, q: _normal(
        Normal(p.scale * 0, p.scale), Normal(q.scale * 0, q.scale)
    ),
    (Binomial, Binomial): _binomial,
    (Independent, Independent): _independent,
    (Normal, Laplace): _normal_laplace,
    (Uniform, Normal): _uniform_normal,
}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[Rule], Rule]:
    """A decorator: `kl_divergence` calls the function for a p and a q of these classes, or of
    classes that are made of them and have no rule of their own."""
    for kind in (type_p, type_q):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"register_kl takes two classes of distributions, not {kind!r}")

    def registered(rule: Rule) -> Rule:
        _RULES[type_p, type_q] = rule
        return rule

    return registered


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """What is lost, in nats, by taking q for p. The rule is that of the nearest classes of both, of
    p's first. Raises NotImplementedError where there is none."""
    fitting = (
        (kind, other)
        for kind in type(p).__mro__
        for other in type(q).__mro__
        if (kind, other) in _RULES
    )
    pair: Any = next(fitting, None)
    if pair is None:
        known = sorted({kind.__name__ for kind, _ in _RULES})
        raise NotImplementedError(
            f"there is no rule for {type(p).__name__} and {type(q).__name__}; there are some for "
            f"{', '.join(known)}, and register_kl adds others"
        )
    return _RULES[pair](p, q)
