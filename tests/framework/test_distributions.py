"""Distributions against PyTorch's: densities, moments, entropies, divergences, and samples."""

import numpy as np
import pytest
import torch

import stack.framework as ht
from stack.framework.distributions import divergence
from tests.draw import sample, stream

A = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
B = np.exp(np.random.default_rng(8).normal(size=(3, 4)).astype(np.float32) / 2)
MATRIX = (A.T @ A / 4 + np.eye(4)).astype(np.float32)


MADE = {
    "Normal": lambda d, x, y: (d.Normal(x, y), x * 2),
    "Normal of numbers": lambda d, x, y: (d.Normal(0.5, 2), x),
    "Laplace": lambda d, x, y: (d.Laplace(x, y), x * 2),
    "Cauchy": lambda d, x, y: (d.Cauchy(x, y), x * 2),
    "Gumbel": lambda d, x, y: (d.Gumbel(x, y), x * 2),
    "LogNormal": lambda d, x, y: (d.LogNormal(x, y), y + 1),
    "HalfNormal": lambda d, x, y: (d.HalfNormal(y), y + 1),
    "Uniform": lambda d, x, y: (d.Uniform(x, x + y), x + y / 3),
    "Exponential": lambda d, x, y: (d.Exponential(y), y * 2),
    "Gamma": lambda d, x, y: (d.Gamma(y, y + 1), y * 2),
    "Gamma below one": lambda d, x, y: (d.Gamma(y / 9, 1.0), y * 2),
    "Chi2": lambda d, x, y: (d.Chi2(y * 3), y * 2),
    "StudentT": lambda d, x, y: (d.StudentT(y + 5, x, y), x * 2),
    "Beta": lambda d, x, y: (d.Beta(y, y + 1), x.sigmoid()),
    "Dirichlet": lambda d, x, y: (d.Dirichlet(y), x.softmax(-1)),
    "MultivariateNormal": lambda d, x, y: (d.MultivariateNormal(x, _of(x, MATRIX)), x * 2),
    "by the inverse": lambda d, x, y: (
        d.MultivariateNormal(x[0], precision_matrix=_of(x, MATRIX)),
        x * 2,
    ),
    "Bernoulli": lambda d, x, y: (d.Bernoulli(logits=x), (x > 0).float()),
    "Categorical": lambda d, x, y: (d.Categorical(logits=x), (x[:, 0] > 0).long()),
    "OneHotCategorical": lambda d, x, y: (d.OneHotCategorical(y), _of(x, np.eye(4)[[2, 0, 1]])),
    "Multinomial": lambda d, x, y: (d.Multinomial(3, y), _of(x, np.eye(4)[[2, 0, 1]] * 3)),
    "Binomial": lambda d, x, y: (d.Binomial(5, logits=x), (x > 0).float() * 3),
    "Geometric": lambda d, x, y: (d.Geometric(x.sigmoid()), (x > 0).float() * 3),
    "Poisson": lambda d, x, y: (d.Poisson(y), (x > 0).float() * 3),
    "Independent": lambda d, x, y: (d.Independent(d.Normal(x, y), 1), x * 2),
    "squashed": lambda d, x, y: (
        d.Independent(
            d.TransformedDistribution(
                d.Normal(x, y), [d.AffineTransform(0.1, y), d.TanhTransform(cache_size=1)]
            ),
            1,
        ),
        (x / 9).tanh(),
    ),
    "exp and sigmoid": lambda d, x, y: (
        d.TransformedDistribution(
            d.MultivariateNormal(x, _of(x, MATRIX)), [d.ExpTransform(), d.SigmoidTransform()]
        ),
        (y.sigmoid() + 1) / 2,
    ),
    "RelaxedBernoulli": lambda d, x, y: (
        d.RelaxedBernoulli(_of(x, 0.5), logits=x),
        (x * 2).sigmoid(),
    ),
    "HalfCauchy": lambda d, x, y: (d.HalfCauchy(y), y + 1),
    "Pareto": lambda d, x, y: (d.Pareto(y, y + 2.5), y * 2),
    "Weibull": lambda d, x, y: (d.Weibull(y, y + 1), y * 2),
    "Kumaraswamy": lambda d, x, y: (d.Kumaraswamy(y, y + 1), x.sigmoid()),
    "InverseGamma": lambda d, x, y: (d.InverseGamma(y + 2.5, y), y * 2),
    "FisherSnedecor": lambda d, x, y: (d.FisherSnedecor(y, y + 5), y * 2),
    "NegativeBinomial": lambda d, x, y: (d.NegativeBinomial(y, logits=x), (x > 0).float() * 3),
    "LogisticNormal": lambda d, x, y: (d.LogisticNormal(x[:, :3], y[:, :3]), x.softmax(-1)),
    "RelaxedOneHotCategorical": lambda d, x, y: (
        d.RelaxedOneHotCategorical(_of(x, 0.5), logits=x),
        (x * 2).softmax(-1),
    ),
    "LowRank": lambda d, x, y: (d.LowRankMultivariateNormal(x, _of(x, A.T[:, :2]), y), x * 2),
    "a chain of transforms": lambda d, x, y: (
        d.TransformedDistribution(
            d.Normal(x, y),
            [
                d.ComposeTransform([d.SoftplusTransform(), d.PowerTransform(_of(x, 2.0))]),
                d.IndependentTransform(d.AffineTransform(0.5, 2.0), 1),
            ],
        ),
        y + 1,
    ),
    "mixture": lambda d, x, y: (
        d.MixtureSameFamily(d.Categorical(logits=x), d.Normal(x, y)),
        x[:, 0],
    ),
}  # fmt: skip


def _of(like, array):
    """An array as a tensor of the space that another tensor is of."""
    space = torch if isinstance(like, torch.Tensor) else ht
    return space.tensor(np.asarray(array, np.float32))


def both(name):
    """(ours, value, leaves) and PyTorch's."""
    found = []
    for space in (ht, torch):
        leaves = [space.tensor(a, requires_grad=True) for a in (A, B)]
        made, value = MADE[name](space.distributions, *leaves)
        found.append((made, value.detach(), leaves))
    return found


def close(mine, theirs):
    assert tuple(mine.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), 2e-4, 2e-5)


@pytest.mark.parametrize("name", MADE)
def test_densities_moments_and_entropies_are_pytorchs(name):
    (mine, value, leaves), (theirs, peer_value, peers) = both(name)
    assert tuple(mine.batch_shape) == tuple(theirs.batch_shape)
    assert tuple(mine.event_shape) == tuple(theirs.event_shape)
    ours, expected = mine.log_prob(value), theirs.log_prob(peer_value)
    close(ours, expected)
    if ours.requires_grad:
        ours.sum().backward()
        expected.sum().backward()
        for leaf, peer in zip(leaves, peers, strict=True):
            if leaf.grad is not None:
                close(leaf.grad, peer.grad)
    for what in ("mean", "variance", "stddev", "entropy"):
        try:
            found = getattr(mine, what)
            found = found() if what == "entropy" else found
        except NotImplementedError:
            continue
        wanted = getattr(theirs, what)
        close(found, wanted() if what == "entropy" else wanted)


SAMPLED = """Normal/Laplace/Gumbel/LogNormal/HalfNormal/Uniform/Exponential/Gamma/Gamma below one
StudentT/Beta/Dirichlet/MultivariateNormal/Bernoulli/Categorical/Multinomial/Binomial/Geometric
Independent/mixture/Poisson/NegativeBinomial/Weibull/Kumaraswamy/Pareto/InverseGamma
FisherSnedecor/LowRank""".replace("\n", "/").split("/")


def check_samples(name, count=400):
    (mine, _, leaves), (theirs, _, _) = both(name)
    found = mine.sample((count,))
    assert not found.requires_grad
    assert tuple(found.shape) == (count, *theirs.batch_shape, *theirs.event_shape)
    drawn = found.numpy()
    if name == "Categorical":
        mean, spread = theirs.probs.detach().numpy(), 0.5
        drawn = drawn[..., None] == np.arange(4)
    else:
        mean, spread = theirs.mean.detach().numpy(), theirs.stddev.detach().numpy()
    assert (np.abs(drawn.mean(0) - mean) < 7 * spread / count**0.5).all(), name
    if mine.has_rsample:
        mine.rsample((2,)).sum().backward()
        assert any(leaf.grad is not None and np.any(leaf.grad.numpy()) for leaf in leaves)
    else:
        with pytest.raises(NotImplementedError, match="gradients"):
            mine.rsample()


@pytest.mark.slow
def test_samples_have_the_means_and_gradients_that_they_must_have():
    """Of some, other ones each day; means are within seven deviations of theirs."""
    ht.manual_seed(stream("distributions").getrandbits(31))
    for name in sample("which distributions", SAMPLED, 4):
        check_samples(name)


ALIKE = """Normal Laplace Exponential Gamma Beta Dirichlet MultivariateNormal Bernoulli Categorical
OneHotCategorical Poisson Independent Uniform Geometric HalfNormal Binomial"""


@pytest.mark.parametrize("name", ALIKE.split())
def test_divergences_are_pytorchs(name):
    pairs = []
    for space in (ht, torch):
        x, y = space.tensor(A), space.tensor(B)
        p, _ = MADE[name](space.distributions, x, y)
        q, _ = MADE[name](space.distributions, x / 2 - 0.1, y + 2)
        pairs.append(space.distributions.kl_divergence(p, q))
    close(*pairs)


def test_divergences_between_kinds():
    pairs = []
    for space in (ht, torch):
        d, x, y = space.distributions, space.tensor(A), space.tensor(B)
        given = d.Normal(x, y), d.Laplace(x / 2, y + 1)
        others = d.Uniform(x, x + y), d.Normal(x / 2, y + 1)
        pairs.append([d.kl_divergence(*given), d.kl_divergence(*others)])
    for mine, theirs in zip(*pairs, strict=True):
        close(mine, theirs)


def test_rules_are_registered_by_class(monkeypatch):
    d = ht.distributions

    class Own(d.Normal):
        pass

    monkeypatch.setattr(divergence, "_RULES", dict(divergence._RULES))
    p, q = Own(0.0, 1.0), d.Normal(1.0, 1.0)
    assert d.kl_divergence(p, q).item() == 0.5

    @d.register_kl(Own, d.Normal)
    def rule(p, q):
        return p.loc + 7

    assert d.kl_divergence(p, q).item() == 7
    assert d.kl_divergence(q, p).item() == 0.5
    with pytest.raises(NotImplementedError, match="no rule for Normal and Uniform"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Uniform(0.0, 1.0))
    with pytest.raises(TypeError, match="two classes of distributions"):
        d.register_kl(Own, int)
    with pytest.raises(AttributeError, match="the nearest names are"):
        d.HalfCauch(1.0)


class Signed(ht.distributions.Transform):
    """As users write their own."""

    bijective = True

    def __init__(self):
        super().__init__(cache_size=1)

    def _call(self, x):
        return -x

    def _inverse(self, y):
        return -y

    def log_abs_det_jacobian(self, x, y):
        return x * 0


def test_users_write_transforms():
    d = ht.distributions
    made = d.TransformedDistribution(d.Normal(1.0, 2.0), Signed())
    x = ht.tensor([0.5, -3.0])
    close(made.log_prob(x), d.Normal(-1.0, 2.0).log_prob(x))
    assert d.transforms.Transform is d.Transform
