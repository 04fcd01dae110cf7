"""Windows of M numbers: those with sym are symmetric, others a period of what repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from stack.framework.create import arange
from stack.framework.layout import check_layout
from stack.framework.tensor import Tensor

__all__ = [
    *("bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine"),
    *("general_hamming", "hamming", "hann", "kaiser", "nuttall"),
]


def _window(
    shape: Callable[[Tensor, float], Tensor],
    M: int,
    sym: bool = True,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    layout: Any = None,
) -> Tensor:
    """`shape` of the places 0 to M - 1 and the last place of the period; 1 for a single place."""
    check_layout("layout", layout)
    at = arange(M, dtype=DType.F64, device=device)
    found = shape(at, M - 1.0 if sym else float(M)) if M > 1 else at + 1
    made: Tensor = found.to(dtype or DType.F32)
    return made.requires_grad_() if requires_grad else made


def _cosines(weights: Sequence[float]) -> Callable[[Tensor, float], Tensor]:
    def shape(at: Tensor, last: float) -> Tensor:
        total = at * 0.0
        for i, weight in enumerate(weights):
            total = total + (at * (2 * math.pi * i / last)).cos() * ((-1) ** i * weight)
        return total

    return shape


def general_cosine(M: int, *, a: Sequence[float], sym: bool = True, **more: Any) -> Tensor:
    """A sum of cosines of whole periods with these weights, whose signs alternate."""
    return _window(_cosines(a), M, sym, **more)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **more: Any) -> Tensor:
    """alpha - (1 - alpha) cos over a period."""
    return _window(_cosines([alpha, 1 - alpha]), M, sym, **more)


def hamming(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """0.54 - 0.46 cos over a period."""
    return _window(_cosines([0.54, 0.46]), M, sym, **more)


def hann(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """(1 - cos) / 2 over a period."""
    return _window(_cosines([0.5, 0.5]), M, sym, **more)


def blackman(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """0.42 - 0.5 cos + 0.08 cos of twice the angle."""
    return _window(_cosines([0.42, 0.5, 0.08]), M, sym, **more)


def nuttall(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """Blackman's with four weights of the least side lobes."""
    return _window(_cosines([0.3635819, 0.4891775, 0.1365995, 0.0106411]), M, sym, **more)


def bartlett(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """A triangle from 0 to 1 and back."""
    return _window(lambda at, last: 1 - (at * (2 / last) - 1).abs(), M, sym, **more)


def cosine(M: int, *, sym: bool = True, **more: Any) -> Tensor:
    """Half a period of a sine, at the middles of M steps."""
    return _window(lambda at, last: ((at + 0.5) * (math.pi / (last + 1))).sin(), M, sym, **more)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **more: Any
) -> Tensor:
    """exp(-|distance from the center| / tau)."""
    return _window(
        lambda at, last: (-(at - (last / 2 if center is None else center)).abs() / tau).exp(),
        M, sym, **more,
    )  # fmt: skip


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **more: Any) -> Tensor:
    """exp(-(distance from the middle / std) ** 2 / 2)."""
    return _window(lambda at, last: (((at - last / 2) / std) ** 2 * -0.5).exp(), M, sym, **more)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **more: Any) -> Tensor:
    """i0(beta sqrt(1 - x * x)) / i0(beta) for x from -1 to 1."""

    def shape(at: Tensor, last: float) -> Tensor:
        x = at * (2 / last) - 1
        found: Tensor = ((1 - x * x).clamp(min=0).sqrt() * beta).i0() / float(np.i0(beta))
        return found

    return _window(shape, M, sym, **more)
