"""What all distributions share."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from stack.framework.create import tensor
from stack.framework.distributions.constraints import Constraint
from stack.framework.functions import exp
from stack.framework.modes import no_grad
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
    what has one probability together.

    Numbers among the parameters are checked against `arg_constraints`, which raises ValueError;
    tensors, and the values of `log_prob`, only where `validate_args` is True, since that waits for
    them. PyTorch checks them all, unless it is False."""

    arg_constraints: Mapping[str, Constraint] = {}
    has_rsample = False
    has_enumerate_support = False
    _validates: ClassVar[bool | None] = None

    def __init__(
        self,
        batch_shape: Sequence[int] = (),
        event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
        **given: Any,
    ) -> None:
        """`given`: the parameters as they came, which are checked."""
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)
        self.validates = self._validates if validate_args is None else validate_args
        for name, value in given.items():
            constraint = self.arg_constraints.get(name)
            if constraint is None or value is None or self.validates is False:
                continue
            if isinstance(value, Tensor):
                if self.validates and value.numel():
                    self._demand(name, value, constraint)
            elif not constraint.check(float(value)):
                raise ValueError(f"{type(self).__name__} takes {name} {constraint}, not {value}")

    def _demand(self, name: str, value: Tensor, constraint: Constraint) -> None:
        if not bool(constraint.check(value.detach()).all()):
            raise ValueError(
                f"{type(self).__name__} takes {name} {constraint}; of these values some are not:\n"
                f"{value.detach()}"
            )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether tensors are checked (True), or nothing is (False), where `validate_args` is not
        given."""
        Distribution._validates = value

    @property
    def support(self) -> Constraint:
        """What its values are."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its values are here")

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
        if self.validates and value.numel():
            self._demand("values", value, self.support)
        return self._log_prob(value)

    def _log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    @property
    def mode(self) -> Tensor:
        """A value of the greatest density."""
        raise NotImplementedError(f"{type(self).__name__} has no mode here")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most each value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf here")

    def icdf(self, value: Tensor) -> Tensor:
        """The number below which a sample is with each probability."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf here")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values along a first axis: of shape [count, *batch_shape, *event_shape], or with 1
        for each batch axis."""
        raise NotImplementedError(f"{type(self).__name__} has no enumerate_support here")

    def perplexity(self) -> Tensor:
        """exp of the entropy."""
        return exp(self.entropy())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """The same for a batch that this one is broadcast to."""
        made, rank = copy.copy(self), len(self.batch_shape)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                whole = (*batch_shape, *value.shape[rank:])
                setattr(made, name, value.expand(whole))
            elif isinstance(value, Distribution):
                setattr(made, name, value.expand((*batch_shape, *value.batch_shape[rank:])))
        made.batch_shape = tuple(batch_shape)
        return made

    def entropy(self) -> Tensor:
        """In nats."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def listed(self, values: Tensor, expand: bool) -> Tensor:
        """Values along a first axis, of all events, as `enumerate_support` gives them."""
        ones = (1 for _ in self.batch_shape)
        values = values.reshape((values.shape[0], *ones, *self.event_shape))
        if not expand:
            return values
        return values.expand((values.shape[0], *self.batch_shape, *self.event_shape))

    def shaped(self, sample_shape: Shape = ()) -> tuple[int, ...]:
        """The shape of a sample."""
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def normal(self, sample_shape: Shape, like: Tensor) -> Tensor:
        """Standard normal numbers in the shape of a sample."""
        return randn(self.shaped(sample_shape), dtype=like.dtype, device=like.device)

    def uniform(self, sample_shape: Shape, like: Tensor) -> Tensor:
        """Numbers from 0 inclusive to 1 exclusive in the shape of a sample."""
        return rand(self.shaped(sample_shape), dtype=like.dtype, device=like.device)
