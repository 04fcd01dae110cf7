"""Probability distributions: samples, log densities and entropies, with PyTorch's names."""

import sys
from typing import TYPE_CHECKING, Any

from stack.framework.distributions import constraints, transforms
from stack.framework.distributions.base import (
    Distribution,
)
from stack.framework.distributions.composed import (
    Independent,
    LogisticNormal,
    MixtureSameFamily,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
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
    LowRankMultivariateNormal,
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
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from stack.framework.distributions.divergence import (
    kl_divergence,
    register_kl,
)
from stack.framework.distributions.positive import (
    FisherSnedecor,
    HalfCauchy,
    InverseGamma,
    Kumaraswamy,
    Pareto,
    Weibull,
)
from stack.framework.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from stack.framework.errors import absent

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "FisherSnedecor",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "Weibull",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transforms",
]

_MODULES = """
bernoulli beta binomial categorical cauchy chi2 dirichlet distribution exponential fishersnedecor
gamma geometric gumbel half_cauchy half_normal independent inverse_gamma kl kumaraswamy laplace
log_normal logistic_normal lowrank_multivariate_normal mixture_same_family multinomial
multivariate_normal negative_binomial normal one_hot_categorical pareto poisson relaxed_bernoulli
relaxed_categorical studentT transformed_distribution uniform weibull
"""
"""PyTorch's modules of one distribution each, by which programs import from them, too."""

for _module in _MODULES.split():
    sys.modules[f"{__name__}.{_module}"] = vars()[_module] = sys.modules[__name__]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("distributions", name, __all__)
