"""Random convolutions as windows and products: python -m tests.ops.convolutions --count 500

Each is of one to three axes, with strides, dilations, edges and groups, channels last or first,
forward or transposed, with both gradients. Devices are compared with the graph interpreter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

import hal
from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework.reverse import gradients
from stack.ir.interpret import interpret
from stack.runtime import engine_of

DEVICES = ("cpu:0", "opencl:0", "sunway:0")
RTOL = 2e-5
"""Of the sum of the absolute values of what is added up: sums are in another order on a device."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of `batch` images of `sizes` elements with `inner` channels of each of `groups`
    groups into `outer` ones, through windows of `taps`."""

    batch: int
    groups: int
    inner: int
    outer: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    edges: tuple[int, ...]
    last: bool
    """Whether channels are the last axis, and not the one after the batch."""
    transposed: bool = False
    dtype: DType = DType.F32

    def x(self) -> Node:
        """The images."""
        channels = self.groups * self.inner
        tail = (*self.sizes, channels) if self.last else (channels, *self.sizes)
        return g.input(0, Type((self.batch, *tail), self.dtype))

    def w(self) -> Node:
        """The weights: groups, taps and inner channels as they are windowed, outer channels."""
        if self.transposed or self.last:
            k = prod(self.taps)
            shape = (self.groups, self.inner, k * self.outer) if self.transposed else (
                self.groups, k * self.inner, self.outer)  # fmt: skip
        else:
            shape = (self.groups, self.outer, self.inner * prod(self.taps))
        return g.input(1, Type(shape, self.dtype))

    def of(self, x: Node, w: Node) -> Node:
        """The convolution."""
        if self.transposed:
            return self._transposed(x, w)
        return self._last(x, w) if self.last else self._first(x, w)

    def _last(self, x: Node, w: Node) -> Node:
        d, n = len(self.sizes), self.batch
        x = g.reshape(x, (n, *self.sizes, self.groups, self.inner))
        x = self._windows(self._padded(x, 1), 1)
        counts = x.shape[1 : 1 + 2 * d : 2]
        places, taps = range(1, 1 + 2 * d, 2), range(2, 2 + 2 * d, 2)
        rows = g.permute(x, (1 + 2 * d, 0, *places, *taps, 2 + 2 * d))
        rows = g.reshape(rows, (self.groups, n * prod(counts), prod(self.taps) * self.inner))
        y = g.reshape(g.matmul(rows, w), (self.groups, n, *counts, self.outer))
        y = g.permute(y, (*range(1, 2 + d), 0, 2 + d))
        return g.reshape(y, (n, *counts, self.groups * self.outer))

    def _first(self, x: Node, w: Node) -> Node:
        d, n = len(self.sizes), self.batch
        x = g.reshape(x, (n, self.groups, self.inner, *self.sizes))
        x = self._windows(self._padded(x, 3), 3)
        counts = x.shape[3 : 3 + 2 * d : 2]
        places, taps = range(3, 3 + 2 * d, 2), range(4, 4 + 2 * d, 2)
        depth = self.inner * prod(self.taps)
        columns = g.permute(x, (0, 1, 2, *taps, *places))
        columns = g.reshape(columns, (n, self.groups, depth, prod(counts)))
        every = g.expand(g.reshape(w, (1, *w.shape)), (n, *w.shape))
        return g.reshape(g.matmul(every, columns), (n, self.groups * self.outer, *counts))

    def _transposed(self, x: Node, w: Node) -> Node:
        """Channels last; each image is spread by the windows of a larger one."""
        d, n = len(self.sizes), self.batch
        rows = g.reshape(x, (n * prod(self.sizes), self.groups, self.inner))
        y = g.matmul(g.permute(rows, (1, 0, 2)), w)
        y = g.reshape(y, (self.groups, n, *self.sizes, *self.taps, self.outer))
        pairs = [axis for i in range(d) for axis in (2 + i, 2 + d + i)]
        y = g.permute(y, (1, *pairs, 0, 2 + 2 * d))
        for i in range(d):
            span = (self.taps[i] - 1) * self.dilations[i] + 1
            length = (self.sizes[i] - 1) * self.strides[i] + span
            y = g.overlap_add(y, 1 + i, length, self.strides[i], self.dilations[i])
        return g.reshape(y, (n, *y.shape[1 : 1 + d], self.groups * self.outer))

    def _padded(self, x: Node, first: int) -> Node:
        edges = [0] * len(x.shape)
        edges[first : first + len(self.edges)] = self.edges
        return g.pad(x, edges, edges)

    def _windows(self, x: Node, first: int) -> Node:
        for i, facts in enumerate(zip(self.taps, self.strides, self.dilations, strict=True)):
            x = g.window(x, first + 2 * i, *facts)
        return x


def random_convolution(rng: np.random.Generator, most: int = 9) -> Convolution:
    """Small, of every kind."""

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high + 1, d))

    d = int(rng.integers(1, 4))
    taps, strides, dilations, edges = some(1, 3), some(1, 3), some(1, 2), some(0, 2)
    least = [(k - 1) * step + 1 for k, step in zip(taps, dilations, strict=True)]
    extra = some(0, most if d == 1 else max(1, most // d))
    transposed = bool(rng.integers(0, 4) == 0)
    sizes = tuple(
        max(1, span + more - (0 if transposed else 2 * edge))
        for span, more, edge in zip(least, extra, edges, strict=True)
    )
    batch, groups, inner, outer = (int(n) for n in rng.integers(1, (4, 4, 6, 6)))
    last = transposed or bool(rng.integers(0, 2))
    facts = (taps, strides, dilations, edges)
    return Convolution(batch, groups, inner, outer, sizes, *facts, last, transposed)


def with_gradients(c: Convolution) -> tuple[list[Node], list[Node]]:
    """The convolution and the derivatives by its images and weights; the inputs of all three."""
    x, w = c.x(), c.w()
    y = c.of(x, w)
    d = g.input(2, y.type)
    found = gradients([(y, d)], lambda n: n in (x, w))
    return [y, found[x], found[w]], [x, w, d]


def arrays_of(inputs: Sequence[Node], rng: np.random.Generator) -> dict[Node, np.ndarray]:
    return {n: rng.uniform(-1, 1, n.shape).astype(np.float32) for n in inputs}


Evaluate = Callable[[Sequence[Node], Mapping[Node, np.ndarray]], Sequence[np.ndarray]]


def assert_agrees(c: Convolution, evaluate: Evaluate, rng: np.random.Generator) -> None:
    """Assert that the outputs are those of the graph interpreter."""
    outputs, inputs = with_gradients(c)
    arrays = arrays_of(inputs, rng)
    expected = interpret(outputs, arrays)
    terms = max(c.inner, c.outer, c.batch * prod(c.sizes)) * prod(c.taps)
    for number, (a, e) in enumerate(zip(evaluate(outputs, arrays), expected, strict=True)):
        np.testing.assert_allclose(a, e, 1e-4, RTOL * terms, err_msg=f"{c}, output {number}")


def on_device(name: str) -> Iterator[Evaluate]:
    """What evaluates on a device, which is open meanwhile."""
    with engine_of(hal.open(name)) as engine:

        def run(outputs: Sequence[Node], arrays: Mapping[Node, np.ndarray]) -> list[Any]:
            plan = engine.plan(GraphRequest(tuple(outputs), tuple(arrays)))
            found = plan.run([engine.put(x, n.dtype) for n, x in arrays.items()])
            return [engine.get(a) for a in found]

        yield run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", nargs="+", default=DEVICES)
    given = parser.parse_args()
    for name in given.devices:
        rng = np.random.default_rng(given.seed)
        for evaluate in on_device(name):
            for _ in range(given.count):
                assert_agrees(random_convolution(rng), evaluate, rng)
        sys.stdout.write(f"{name}: {given.count} convolutions agree\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
