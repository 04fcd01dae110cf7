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


def asked(of, what, value):
    """What a distribution gives for a name; None where it has nothing."""
    try:
        if what in ("cdf", "icdf"):
            given = value if what == "cdf" else (value * 0 + 0.3)
            return getattr(of, what)(given)
        if what in ("expanded", "its log_prob"):
            if what == "expanded":
                return of.expand((2, *of.batch_shape)).mean
            return of.expand((1, 1, *of.batch_shape)).log_prob(value)
        if what in ("enumerated", "enumerated once"):
            return of.enumerate_support(expand=what == "enumerated")
        found = getattr(of, what)
        return found() if what == "perplexity" else found
    except NotImplementedError:
        return None


WHATS = [
    *("mode", "variance", "cdf", "icdf", "expanded", "its log_prob"),
    *("enumerated", "enumerated once", "perplexity"),
]
LACKING = {name: {"cdf"} for name in ("Gamma", "Gamma below one", "Chi2", "InverseGamma")}
"""What takes the incomplete gamma function."""
MORE = {
    "Categorical of weights": lambda d, x, y: (d.Categorical(y), (x[:, 0] > 0).long()),
    "Bernoulli of halves": lambda d, x, y: (d.Bernoulli(x * 0 + 0.5), (x > 0).float()),
    "falls": lambda d, x, y: (
        d.TransformedDistribution(d.Normal(x, y), [d.AffineTransform(1.0, x), d.ExpTransform()]),
        y,
    ),
    "undone": lambda d, x, y: (
        d.TransformedDistribution(d.LogNormal(x, y), d.ExpTransform().inv),
        x,
    ),
    "Beta below one": lambda d, x, y: (d.Beta(y / 9, y / 7), x.sigmoid()),
    "Dirichlet around one": lambda d, x, y: (d.Dirichlet(y), x.softmax(-1)),
}


@pytest.mark.parametrize("name", [*MADE, *MORE])
def test_modes_probabilities_and_all_values_are_pytorchs(name):
    found = []
    for space in (ht, torch):
        made, value = {**MADE, **MORE}[name](space.distributions, space.tensor(A), space.tensor(B))
        found.append({what: asked(made, what, value) for what in WHATS})
    ours, theirs = found
    for what, mine in ours.items():
        if (name, what) == ("Kumaraswamy", "mode"):
            continue  # PyTorch's is NaN for all parameters above 1
        if mine is not None and theirs[what] is not None:
            close(mine, theirs[what])
    lacking = {what for what, mine in ours.items() if mine is None and theirs[what] is not None}
    assert lacking <= LACKING.get(name, set())


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


def test_parameters_and_values_are_checked():
    """Numbers always; tensors, which have to be waited for, where that is asked for."""
    d, x = ht.distributions, ht.tensor([1.0, -1.0])
    for wrong in (
        lambda **more: d.Normal(0.0, -1.0, **more),
        lambda **more: d.Uniform(2.0, 1.0, **more),
        lambda **more: d.Bernoulli(1.5, **more),
        lambda **more: d.Poisson(-0.5, **more),
        lambda **more: d.Beta(1.0, 0.0, **more),
    ):
        with pytest.raises(ValueError, match="takes"):
            wrong()
        wrong(validate_args=False)
    for wrong in (
        lambda **more: d.Normal(0.0, x, **more),
        lambda **more: d.Categorical(x, **more),
        lambda **more: d.MultivariateNormal(x, ht.tensor([[1.0, 2.0], [2.0, 1.0]]), **more),
        lambda **more: d.Uniform(x, 0.0, **more),
    ):
        wrong()
        with pytest.raises(ValueError, match="takes"):
            wrong(validate_args=True)
    for made, value in (
        (d.Exponential(1.0, validate_args=True), x),
        (d.Bernoulli(0.5, validate_args=True), ht.tensor([0.5])),
        (d.Categorical(ht.ones(3), validate_args=True), ht.tensor([3])),
        (d.OneHotCategorical(ht.ones(2), validate_args=True), ht.tensor([1.0, 1.0])),
        (d.Dirichlet(ht.ones(2), validate_args=True), ht.tensor([0.5, 0.6])),
    ):
        with pytest.raises(ValueError, match="takes values"):
            made.log_prob(value)
    assert np.isfinite(d.Dirichlet(ht.ones(2), validate_args=True).log_prob(x * 0 + 0.5).item())


class Twice(ht.distributions.Distribution):
    """As users write their own."""

    arg_constraints = {"low": ht.distributions.constraints.positive}  # noqa: RUF012

    def __init__(self, low, validate_args=None):
        self.low = low
        super().__init__(low.shape, validate_args=validate_args)

    def log_prob(self, value):
        return value * self.low


def test_the_mode_of_kumaraswamy_has_the_greatest_density():
    made = ht.distributions.Kumaraswamy(ht.tensor([1.0, 2.0, 3.5]), ht.tensor([2.5, 3.0, 1.5]))
    for step in (-1e-2, 1e-2):
        beside = (made.mode + step).clamp(1e-4, 1)
        assert (made.log_prob(beside) <= made.log_prob(made.mode.clamp(min=1e-4))).all()


def test_users_write_distributions():
    made = Twice(ht.tensor([2.0]))
    assert made.batch_shape == (1,)
    assert made.expand((3,)).log_prob(ht.tensor(2.0)).tolist() == [4.0] * 3


def test_a_laplace_sample_is_a_number(monkeypatch):
    """The least of all draws is 0, once in 2 ** 24."""
    d = ht.distributions
    monkeypatch.setattr(d.Laplace, "uniform", lambda self, shape, like: ht.zeros(3))
    assert np.isfinite(d.Laplace(0.0, 1.0).sample((3,)).numpy()).all()
