"""Probability distributions: samples, log densities and entropies, with PyTorch's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stack.framework import functional as F
from stack.framework.create import tensor
from stack.framework.errors import absent
from stack.framework.functions import exp, log, where
from stack.framework.mode import no_grad
from stack.framework.random import rand, randn
from stack.framework.tensor import Tensor

Shape = Sequence[int]


def _together(*values: Any) -> list[Tensor]:
    """Numbers and tensors as tensors of one shape."""
    device = next((v.device for v in values if isinstance(v, Tensor)), None)
    given = [v if isinstance(v, Tensor) else tensor(float(v), device=device) for v in values]
    whole = given[0]
    for v in given[1:]:
        whole = whole + v
    return [v.expand(whole.shape) for v in given]


class Distribution:
    """What all share: `batch_shape` is the shape of one sample."""

    batch_shape: tuple[int, ...]

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """A sample of shape sample_shape + batch_shape through which gradients flow to the
        parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradients")

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """A sample of shape sample_shape + batch_shape, without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of each value."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Tensor:
        """In nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")


class Normal(Distribution):
    """Of mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = _together(loc, scale)
        self.batch_shape = self.loc.shape

    mean = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale * self.scale)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape)
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        deviation = (value - self.loc) / self.scale
        return -(deviation * deviation) / 2 - log(self.scale) - math.log(2 * math.pi) / 2

    def entropy(self) -> Tensor:
        return 0.5 + math.log(2 * math.pi) / 2 + log(self.scale)


class Uniform(Distribution):
    """Between `low` and `high`."""

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = _together(low, high)
        self.batch_shape = self.low.shape

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape)
        part = rand(shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + part * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)


def _one_of(probs: Any, logits: Any) -> None:
    if (probs is None) == (logits is None):
        raise ValueError("give probs or logits, and not both")


class Bernoulli(Distribution):
    """1 with probability `probs`, or sigmoid(`logits`), else 0."""

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        _one_of(probs, logits)
        if logits is not None:
            (self.logits,) = _together(logits)
            self.probs = F.sigmoid(self.logits)
        else:
            (self.probs,) = _together(probs)
            p = self.probs.clamp(_SMALL, 1 - _SMALL)
            self.logits = log(p) - log(1 - p)
        self.batch_shape = self.probs.shape

    mean = property(lambda self: self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape)
        draws = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
        return (draws < self.probs.detach()).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = self.logits + value * 0, value + self.logits.detach() * 0
        return -F.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


_SMALL = 2.0**-23


class Categorical(Distribution):
    """The number i with probability probs[..., i] / sum, or softmax(logits)[..., i]."""

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _one_of(probs, logits)
        if logits is not None:
            self.logits = F.log_softmax(logits, -1)
            self.probs = exp(self.logits)
        else:
            assert probs is not None
            self.probs = probs / probs.sum(-1, keepdim=True)
            self.logits = log(self.probs.clamp(_SMALL, 1 - _SMALL))
        self.batch_shape = self.probs.shape[:-1]

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        shape = (*sample_shape, *self.batch_shape, 1)
        draws = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
        below = (self.probs.detach().cumsum(-1) <= draws).long().sum(-1)
        return below.clamp(max=self.probs.shape[-1] - 1)

    def log_prob(self, value: Tensor) -> Tensor:
        chosen = F.one_hot(value.long(), self.probs.shape[-1])
        return where(chosen != 0, self.logits, 0.0).sum(-1)

    def entropy(self) -> Tensor:
        return -(self.logits * self.probs).sum(-1)


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """What is lost, in nats, by taking q for p: two of Normal, or two of Categorical."""
    if isinstance(p, Normal) and isinstance(q, Normal):
        ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
        return (ratio * ratio + shift * shift - 1) / 2 - log(ratio)
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return (p.probs * (p.logits - q.logits)).sum(-1)
    raise NotImplementedError(
        f"kl_divergence takes two of Normal or two of Categorical, got {type(p).__name__} and "
        f"{type(q).__name__}"
    )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise absent("distributions", name, [n for n in globals() if not n.startswith("_")])
