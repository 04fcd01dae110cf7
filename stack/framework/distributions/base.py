"""What all distributions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.framework.create import tensor
from stack.framework.mode import no_grad
from stack.framework.random import rand, randn
from stack.framework.tensor import Tensor

Shape = Sequence[int]

SMALL = 2.0**-23
"""The least probability that logits are made of."""


def together(*values: Any) -> list[Tensor]:
    """Numbers and tensors as tensors of one shape."""
    device = next((v.device for v in values if isinstance(v, Tensor)), None)
    given = [v if isinstance(v, Tensor) else tensor(float(v), device=device) for v in values]
    whole = given[0]
    for v in given[1:]:
        whole = whole + v
    return [v.expand(whole.shape) for v in given]


def one_of(probs: Any, logits: Any) -> None:
    """Raise ValueError unless one of both is given."""
    if (probs is None) == (logits is None):
        raise ValueError("give probs or logits, and not both")


class Distribution:
    """A sample has the shape sample_shape + batch_shape + event_shape; the last is the shape of
    what has one probability together."""

    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...] = ()
    has_rsample = False

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no mean here")

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no variance here")

    @property
    def stddev(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """A sample through which gradients flow to the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradients")

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """A sample without gradients."""
        with no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of each value."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Tensor:
        """In nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def shaped(self, sample_shape: Shape = ()) -> tuple[int, ...]:
        """The shape of a sample."""
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def normal(self, sample_shape: Shape, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a sample."""
        return randn(self.shaped(sample_shape), dtype=like.dtype, device=like.device)

    def uniform(self, sample_shape: Shape, like: Tensor) -> Tensor:
        """Numbers from 0 inclusive to 1 exclusive in the shape of a sample."""
        return rand(self.shaped(sample_shape), dtype=like.dtype, device=like.device)
