"""Parts of a training step at a model's own sizes, against the operations' definitions.

A compiler may make a kernel for large tensors that no small ones get: an instance then takes
thousands of elements. So what a step of examples/train_gpt.py computes is computed here, part by
part, forward and backward, with its numbers of tokens, heads and channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
import stack.framework.functional as F
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import RELATIVE, NumpyEngine, engine_on, seat

stack_sizes = Cases("J", Level.RESILIENT)

Values = NDArray[Any]
BATCH, LENGTH, HEADS, WIDTH, HIDDEN, WORDS = 16, 128, 6, 192, 768, 256
ROWS = BATCH * LENGTH
_MOST_S = 100.0
"""Products of a step take the interpreter ten times as long."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a step computes of tensors of these shapes."""

    compute: Callable[..., ht.Tensor]
    shapes: tuple[tuple[int, ...], ...]


def _linear(x: ht.Tensor, weight: ht.Tensor, bias: ht.Tensor) -> ht.Tensor:
    return F.linear(x, weight, bias)


def _hidden(x: ht.Tensor, weight: ht.Tensor, bias: ht.Tensor) -> ht.Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _normed(x: ht.Tensor, weight: ht.Tensor, bias: ht.Tensor) -> ht.Tensor:
    return x + F.layer_norm(x, (WIDTH,), weight, bias)


def _attended(q: ht.Tensor, k: ht.Tensor, v: ht.Tensor) -> ht.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _numbers(count: int) -> ht.Tensor:
    return ht.tensor(np.arange(ROWS) * 7919 % count)


def _words(table: ht.Tensor) -> ht.Tensor:
    return F.embedding(_numbers(WORDS), table)


def _loss(logits: ht.Tensor) -> ht.Tensor:
    return F.cross_entropy(logits, _numbers(WORDS))


def _layer(x: int, y: int) -> tuple[tuple[int, ...], ...]:
    return (ROWS, x), (y, x), (y,)


_HEADS = ((BATCH, HEADS, LENGTH, WIDTH // HEADS),) * 3
PARTS: Mapping[str, Part] = {
    "linear": Part(_linear, _layer(WIDTH, 3 * WIDTH)),
    "hidden": Part(_hidden, _layer(WIDTH, HIDDEN)),
    "narrowed": Part(_linear, _layer(HIDDEN, WIDTH)),
    "normed": Part(_normed, ((ROWS, WIDTH), (WIDTH,), (WIDTH,))),
    "attended": Part(_attended, _HEADS),
    "words": Part(_words, ((WORDS, WIDTH),)),
    "loss": Part(_loss, ((ROWS, WORDS),)),
}


def _computed(part: Part, arrays: Sequence[Values]) -> list[Values]:
    """The result and the gradients of its sum, weighted so that no two elements count alike."""

    @ht.jit
    def step(*given: ht.Tensor) -> tuple[ht.Tensor, ...]:
        xs = [x.detach().requires_grad_() for x in given]
        y = part.compute(*xs)
        weights = ht.arange(y.numel(), dtype=y.dtype).reshape(y.shape) * 0.37
        slopes = ht.autograd.grad((y * weights.cos()).sum(), xs)
        return (y.detach(), *(slope for slope in slopes if slope is not None))

    return [y.numpy() for y in step(*map(ht.tensor, arrays))]


def _affordable(rig: Rig) -> None:
    """Unfit where the device would need longer for the largest product than a case takes. One that
    does computes on the host what it says, and needs as long for the other parts."""
    rows, side = 16, 64
    x, w = (rig.random.standard_normal(s).astype(np.float32) for s in ((rows, side), (side, side)))
    product = ht.jit(lambda x, w: x @ w)
    seconds = []
    for _ in range(3):
        begin_s = time.perf_counter()
        product(ht.tensor(x), ht.tensor(w)).numpy()
        seconds.append(time.perf_counter() - begin_s)
    needed_s = min(seconds) * ROWS * WIDTH * HIDDEN / (rows * side * side)
    if needed_s > _MOST_S:
        raise expect.Unfit(f"a product of a step would take the device {needed_s:.0f} s")


@stack_sizes.case("step-sized", "launch.exact", part=tuple(PARTS), timeout_s=300)
def _(rig: Rig, part: str) -> None:
    """A part of a step, forward and backward, element by element."""
    need(rig, DType.F32, DType.I64)
    found = PARTS[part]
    arrays = [rig.random.standard_normal(s).astype(np.float32) for s in found.shapes]
    with seat(engine_on(rig)):
        _affordable(rig)
        got = _computed(found, arrays)
    with seat(NumpyEngine()):
        wanted = _computed(found, arrays)
    names = ["the result", *(f"the gradient of operand {i}" for i in range(len(arrays)))]
    for one, other, name in zip(got, wanted, names, strict=True):
        tolerance = 4 * RELATIVE[DType.F32] * np.max(np.abs(other), initial=1e-30)
        expect.near(one, other, tolerance, f"{name} of {part} at a model's size")
