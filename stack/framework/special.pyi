"""Generated from the table of operators by `python -m stack.framework.stubs`."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from hal.core.dtypes import DType
from stack.framework.random import Generator
from stack.framework.tensor import Tensor

Scalar = float | int | bool
__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]

def digamma(input: Tensor) -> Tensor:
    """the derivative of lgamma, element by element; integers and bool become float32."""

def entr(input: Tensor) -> Tensor:
    """-x * log(x), 0 at 0, -inf below."""

def erf(input: Tensor) -> Tensor:
    """the error function of x, element by element; integers and bool become float32."""

def erfc(input: Tensor) -> Tensor:
    """1 less the error function of x, exact where that is nearly 1, element by element;
    integers and bool become float32."""

def erfcx(input: Tensor) -> Tensor:
    """erfc(x) * exp(x * x)."""

def erfinv(input: Tensor) -> Tensor:
    """what x is the error function of, element by element; integers and bool become float32."""

def exp2(input: Tensor) -> Tensor:
    """2 to the x, element by element; integers and bool become float32."""

def expit(input: Tensor, inplace: bool = False) -> Tensor:
    """1 / (1 + exp(-x))."""

def expm1(input: Tensor) -> Tensor:
    """e to the x, less 1, exact near 0, element by element; integers and bool become float32."""

def gammaln(input: Tensor) -> Tensor:
    """the logarithm of the size of the gamma function of x, element by element; integers and
    bool become float32."""

def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""

def i0e(input: Tensor) -> Tensor:
    """i0(x) * exp(-|x|)."""

def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""

def i1e(input: Tensor) -> Tensor:
    """i1(x) * exp(-|x|)."""

def log1p(input: Tensor) -> Tensor:
    """the natural logarithm of 1 + x, exact near 0, element by element; integers and bool
    become float32."""

def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(x)), also far below 0."""

def log_softmax(
    input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """The logarithm of softmax, exact where softmax underflows."""

def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x held within [eps, 1 - eps]."""

def logsumexp(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where all are -inf."""

def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of p dimensions."""

def ndtr(input: Tensor) -> Tensor:
    """The share of a normal distribution below x."""

def ndtri(input: Tensor) -> Tensor:
    """What x is ndtr of."""

def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order n of digamma; beyond the first of what is above -10."""

def psi(input: Tensor) -> Tensor:
    """the derivative of lgamma, element by element; integers and bool become float32."""

def round(input: Tensor, decimals: int = 0) -> Tensor:
    """To the nearest whole number, or multiple of 10 ** -decimals, halves to even."""

def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""

def softmax(input: Tensor, dim: int, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

def xlog1py(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * log(1 + y), but 0 where x is 0 and y is no NaN."""

def xlogy(input: Tensor | Scalar, other: Tensor | Scalar) -> Tensor:
    """x * log(y), but 0 where x is 0 and y is no NaN."""
