"""Operators that draw: tensors filled in place, choices by weight, dropout of whole channels. All
take from the streams of `stack.framework.random`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework import random
from stack.framework.counted import where
from stack.framework.create import zeros
from stack.framework.errors import TensorError, where_called
from stack.framework.expr import elementwise as e
from stack.framework.expr import sort
from stack.framework.expr.public import METHODS, F, operator
from stack.framework.faces import expose
from stack.framework.random import Generator, normal_node, rand_like, uniform_node
from stack.framework.tensor import Tensor, apply


def _filled(x: Tensor, node: Node) -> Tensor:
    return x.copy_(Tensor(node, x.device))


def _wide(x: Tensor) -> DType:
    return DType.F64 if x.dtype is DType.F64 else DType.F32


def _positive(x: Tensor, generator: Generator | None) -> Node:
    """Numbers in (0, 1]."""
    return e.sub(1.0, uniform_node(x.shape, _wide(x), x.device, generator))


def _in_place(name: str) -> Callable[[F], F]:
    return operator(name, waits=True, function=False, aten=name.removesuffix("_"))


@_in_place("normal_")
def normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Numbers of the normal distribution, in place."""
    draws = normal_node(x.shape, _wide(x), x.device, generator)
    return _filled(x, e.add(e.mul(draws, std), mean))


@_in_place("uniform_")
def uniform_(
    x: Tensor,
    from_: float = 0.0,
    to: float = 1.0,
    *,
    generator: Generator | None = None,
    **named: Any,
) -> Tensor:
    """Numbers in [from, to), all equally likely, in place."""
    low = named.pop("from", from_)
    if named:
        raise TensorError(f"uniform_ has no argument {sorted(named)}\n  called at {where_called()}")
    fractions = uniform_node(x.shape, _wide(x), x.device, generator)
    return _filled(x, e.add(e.mul(fractions, to - low), low))


@_in_place("random_")
def random_(
    x: Tensor,
    from_: int = 0,
    to: int | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Whole numbers from `from_` to `to` - 1, in place; of one number those below it, of none
    those that the element type holds exactly, and at most 2**32 of them."""
    if to is None and from_:
        from_, to = 0, from_
    if to is None:
        digits = x.dtype.mantissa + 1 if x.dtype.is_float else x.dtype.bits - (x.dtype.kind == "i")
        to = 2 ** min(32, digits)
    drawn = random.randint(from_, to, x.shape, generator=generator, device=x.device)
    return x.copy_(drawn)


@_in_place("bernoulli_")
def bernoulli_(x: Tensor, p: Tensor | float = 0.5, *, generator: Generator | None = None) -> Tensor:
    """1 with probability p, else 0, in place."""
    fractions = Tensor(uniform_node(x.shape, DType.F32, x.device, generator), x.device)
    return x.copy_(fractions < p)


@_in_place("exponential_")
def exponential_(x: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Times of a process of that rate, in place."""
    return _filled(x, e.mul(g.log(_positive(x, generator)), -1 / lambd))


@_in_place("geometric_")
def geometric_(x: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """How many trials it takes until one succeeds that does so with probability p, in place."""
    trials = g.ceil(e.div(g.log(_positive(x, generator)), math.log1p(-p)))
    return _filled(x, e.clamp(trials, min=1.0))


@_in_place("log_normal_")
def log_normal_(
    x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Numbers whose logarithms are of the normal distribution, in place."""
    draws = normal_node(x.shape, _wide(x), x.device, generator)
    return _filled(x, g.exp(e.add(e.mul(draws, std), mean)))


@_in_place("cauchy_")
def cauchy_(
    x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Numbers of the Cauchy distribution, in place."""
    angle = e.mul(e.sub(_positive(x, generator), 0.5), math.pi)
    return _filled(x, e.add(e.mul(e.tan(angle), sigma), median))


@operator("bernoulli", waits=True, function=False, aten="bernoulli")
def _bernoulli(x: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that each element gives, else 0."""
    return random.bernoulli(x, generator=generator)


@operator(waits=True, method=False, aten="normal")
def normal(
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Numbers of normal distributions, one for each mean and deviation, or `size` of one."""
    given = [v for v in (mean, std) if isinstance(v, Tensor)]
    if given:
        like = given[0] if len(given) == 1 else given[0] + given[1]
        return random.randn_like(like, generator=generator) * std + mean
    if size is None:
        raise TensorError(f"normal of two numbers takes a size\n  called at {where_called()}")
    drawn = random.randn(*size, generator=generator, dtype=dtype, device=device)
    return drawn * std + mean


@operator(waits=True, method=False, aten="randint_like")
def randint_like(
    x: Tensor,
    low: int,
    high: int | None = None,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Whole numbers from low (0 where only the end is given) to high - 1 in x's shape."""
    first, last = (0, low) if high is None else (low, high)
    kind, place = dtype or x.dtype, device or x.device
    return random.randint(first, last, x.shape, device=place).to(kind)


@operator(waits=True, aten="multinomial")
def multinomial(
    x: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """int64: num_samples places of each row, each as likely as its weight, which is not negative;
    without replacement each at most once."""
    n = x.shape[-1]
    if not replacement and num_samples > n:
        raise TensorError(
            f"{num_samples} different places cannot be drawn of {n}\n  called at {where_called()}"
        )
    weights = x.detach().to(_wide(x))
    if not replacement:  # the first of exponential times with these rates
        times = exponential_(zeros(x.shape, dtype=weights.dtype, device=x.device), 1.0,
                             generator=generator)  # fmt: skip
        ranks = where(weights > 0, times / weights, math.inf)
        return ranks.argsort(-1).narrow(-1, 0, num_samples)
    ends = weights.cumsum(-1)
    shape = (*x.shape[:-1], num_samples)
    draws = random.rand(shape, generator=generator, dtype=weights.dtype, device=x.device)
    places = apply(sort.searchsorted, ends, draws * ends[..., -1:], right=True)
    return places.clamp(max=n - 1)


# layers


def _layer(name: str = "", **face: Any) -> Callable[[F], F]:
    return operator(name, waits=True, function=False, method=False, layer=True, **face)


def _placed(x: Tensor, found: Tensor, inplace: bool) -> Tensor:
    """What was found, put into x if so asked."""
    return x.copy_(found) if inplace and found is not x else found


def _rate(p: float) -> None:
    if not 0 <= p <= 1:
        raise TensorError(f"p is a probability, got {p}\n  called at {where_called()}")


def _in_channels(x: Tensor, p: float, training: bool, axes: int) -> Tensor:
    _rate(p)
    if x.ndim not in (axes + 1, axes + 2):
        raise TensorError(
            f"dropout{axes}d takes {axes + 1} or {axes + 2} axes, got {list(x.shape)}\n"
            f"  called at {where_called()}"
        )
    if not training or p == 0:
        return x
    kept = random.dropout(x.new_ones(*x.shape[:-axes], *[1] * axes), p)
    return x * kept


@_layer(aten="feature_dropout")
def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, L] or [C, L] become 0 with probability p."""
    return _placed(input, _in_channels(input, p, training, 1), inplace)


@_layer(aten="feature_dropout")
def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, H, W] become 0 with probability p; of three axes [N, C, L], as in
    PyTorch."""
    return _placed(input, _in_channels(input, p, training, 1 if input.ndim == 3 else 2), inplace)


@_layer(aten="feature_dropout")
def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels [N, C, D, H, W] or [C, D, H, W] become 0 with probability p."""
    return _placed(input, _in_channels(input, p, training, 3), inplace)


_NEGATIVE = -1.7580993408473766
"""What SELU gives far below 0."""


def _alpha(x: Tensor, p: float, training: bool, mask: Tensor) -> Tensor:
    _rate(p)
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0.0
    scale = 1 / math.sqrt((1 - p) * (1 + p * _NEGATIVE**2))
    shift = -scale * _NEGATIVE * p
    return where(rand_like(mask) < p, _NEGATIVE, x) * scale + shift


@_layer(aten="alpha_dropout")
def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Elements become what SELU gives far below 0 with probability p; mean and variance stay."""
    return _placed(input, _alpha(input, p, training, input), inplace)


@_layer(aten="feature_alpha_dropout")
def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels, axis 1."""
    mask = input.new_ones((*input.shape[:2], *[1] * (input.ndim - 2)))
    return _placed(input, _alpha(input, p, training, mask), inplace)


@_layer(aten="rrelu")
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x where it is positive, else x times a slope drawn from [lower, upper), or their mean."""
    slope: Tensor | float = (lower + upper) / 2
    if training:
        slope = rand_like(input) * (upper - lower) + lower
    return _placed(input, where(input >= 0, input, input * slope), inplace)


@_layer(aten="")
def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: Generator | None = None,
) -> Tensor:
    """int64[...]: a place of the last axis, drawn as likely as softmax(logits / temperature) says
    among those that top_k_top_p keeps; the greatest for a temperature of 0."""
    if temperature < 0:
        raise TensorError(f"a temperature is 0 or more, got {temperature}")
    if temperature == 0:
        greatest: Tensor = logits.argmax(-1)
        return greatest
    kept = apply(sort.top_k_top_p, logits.detach() / temperature, top_k, top_p)
    chances = kept.to(_wide(kept)).softmax(-1)
    return multinomial(chances, 1, True, generator=generator).squeeze(-1)


@_layer(aten="gumbel_softmax")
def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A random choice by logits that gradients flow through: softmax of (logits + noise) / tau;
    with hard, 1 at the greatest and 0 elsewhere, with the gradient of the soft one. Jang et al.,
    https://arxiv.org/abs/1611.01144."""
    noise = -exponential_(zeros(logits.shape, dtype=logits.dtype, device=logits.device)).log()
    soft: Tensor = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    best = soft.argmax(dim, keepdim=True)
    chosen: Tensor = zeros(soft.shape, dtype=soft.dtype, device=soft.device).scatter(dim, best, 1.0)
    return chosen + (soft - soft.detach())


for _public in dict.fromkeys(METHODS.values()):
    if _public.expression.__module__ == __name__:
        expose(_public)
