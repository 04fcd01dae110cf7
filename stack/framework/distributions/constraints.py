"""What parameters and values of distributions must be, with PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hal.core.facts import dataclass
from stack.framework.functions import tril
from stack.framework.linalg import cholesky
from stack.framework.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Constraint:
    """`check` tells of each value whether it is as `text` says; of `event_dim` last axes
    together."""

    text: str
    check: Callable[[Any], Any]
    event_dim: int = 0
    is_discrete: bool = False

    def __repr__(self) -> str:
        return self.text


def greater_than(lower_bound: Any) -> Constraint:
    return Constraint(f"greater than {lower_bound}", lambda x: x > lower_bound)


def greater_than_eq(lower_bound: Any) -> Constraint:
    return Constraint(f"at least {lower_bound}", lambda x: x >= lower_bound)


def less_than(upper_bound: Any) -> Constraint:
    return Constraint(f"less than {upper_bound}", lambda x: x < upper_bound)


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    return Constraint(
        f"from {lower_bound} to {upper_bound}",
        lambda x: (x >= lower_bound) & (x <= upper_bound),
    )


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    return Constraint(
        f"from {lower_bound} to less than {upper_bound}",
        lambda x: (x >= lower_bound) & (x < upper_bound),
    )


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    return Constraint(
        f"a whole number from {lower_bound} to {upper_bound}",
        lambda x: (x % 1 == 0) & (x >= lower_bound) & (x <= upper_bound),
        is_discrete=True,
    )


def independent(base_constraint: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """One that holds where another one does along so many more of the last axes."""
    count = reinterpreted_batch_ndims

    def check(x: Any) -> Any:
        found = base_constraint.check(x)
        for _ in range(count):
            found = found.all(-1)
        return found

    return replace(base_constraint, check=check, event_dim=base_constraint.event_dim + count)


def _is_lower_cholesky(x: Tensor) -> Any:
    diagonal = x.diagonal(0, -2, -1)
    return (tril(x) == x).all(-1).all(-1) & (diagonal > 0).all(-1)


def _is_positive_definite(x: Tensor) -> Any:
    """A Cholesky factor of another one has a NaN."""
    factor = cholesky(x)
    return ((x - x.mT).abs() <= 1e-6).all(-1).all(-1) & (factor == factor).all(-1).all(-1)


real = Constraint("a number", lambda x: x == x)  # and so no NaN
positive = greater_than(0.0)
nonnegative = greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
boolean = Constraint("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
nonnegative_integer = Constraint(
    "a whole number of at least 0", lambda x: (x % 1 == 0) & (x >= 0), is_discrete=True
)
positive_integer = Constraint(
    "a whole number of at least 1", lambda x: (x % 1 == 0) & (x >= 1), is_discrete=True
)
real_vector = replace(independent(real, 1), text="a vector of numbers")
nonnegative_vector = replace(independent(nonnegative, 1), text="a vector of numbers of at least 0")
positive_vector = replace(independent(positive, 1), text="a vector of positive numbers")
simplex = Constraint(
    "a vector of numbers of at least 0 whose sum is 1",
    lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6),
    1,
)
one_hot = Constraint(
    "a vector of one 1 and else 0",
    lambda x: ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1),
    1,
    is_discrete=True,
)
lower_cholesky = Constraint("lower triangular, its diagonal positive", _is_lower_cholesky, 2)
positive_definite = Constraint("a positive definite matrix", _is_positive_definite, 2)
