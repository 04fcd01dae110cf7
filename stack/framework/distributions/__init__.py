"""Probability distributions: samples, log densities and entropies, with PyTorch's names."""

from typing import TYPE_CHECKING, Any

from stack.framework.distributions.base import (
    Distribution,
)
from stack.framework.distributions.composed import (
    AffineTransform,
    ExpTransform,
    Independent,
    MixtureSameFamily,
    RelaxedBernoulli,
    SigmoidTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)
from stack.framework.distributions.continuous import (
    Beta,
    Cauchy,
    Chi2,
    Dirichlet,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
)
from stack.framework.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from stack.framework.distributions.divergence import (
    kl_divergence,
)
from stack.framework.errors import absent

__all__ = [
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Independent",
    "Laplace",
    "LogNormal",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Poisson",
    "RelaxedBernoulli",
    "SigmoidTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "kl_divergence",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("distributions", name, __all__)
