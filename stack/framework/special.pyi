"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = ["entr", "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "ndtri", "polygamma", "xlog1py"]

def entr(input: Tensor) -> Tensor:
    """-x * log(x), 0 at 0, -inf below."""

def erfcx(input: Tensor) -> Tensor:
    """erfc(x) * exp(x * x)."""

def i0e(input: Tensor) -> Tensor:
    """i0(x) * exp(-|x|)."""

def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""

def i1e(input: Tensor) -> Tensor:
    """i1(x) * exp(-|x|)."""

def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(x)), also far below 0."""

def ndtr(input: Tensor) -> Tensor:
    """The share of a normal distribution below x."""

def ndtri(input: Tensor) -> Tensor:
    """What x is ndtr of."""

def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order n of digamma; beyond the first of what is above -10."""

def xlog1py(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * log(1 + y), but 0 where x is 0 and y is no NaN."""
