"""The values of tile expressions in numpy.

Where the meaning leaves a choice: reductions, scans and the sums of `dot` go in index order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache

import numpy as np

from hal.core.facts import dataclass
from hal.tile.errors import TileError
from hal.tile.node import Node
from hal.tile.numeric import (
    DTYPES,
    Array,
    accumulated,
    bitcast,
    constant,
    convert,
    elementwise,
    quiet,
)
from hal.tile.ops import COMBINE

Pending = tuple[Array, Array, Array, Array]
"""A started copy: target array, target indices, source array, source indices."""


@dataclass(slots=True)
class Instance:
    """What one program instance knows: of memories and scalars by name, of expressions and
    variables that have a value, of copies by channel. All instances share `fixed`: of each loop,
    by its identity, the expressions in it that no iteration changes."""

    kernel: str
    program: tuple[int, ...]
    grid: tuple[int, ...]
    scalars: Mapping[str, Array]
    memories: dict[str, Array]
    values: dict[Node, Array] = field(default_factory=dict)
    pending: dict[int, list[Pending]] = field(default_factory=dict)
    fixed: dict[int, tuple[Node, ...]] = field(default_factory=dict)

    def inner(self) -> Instance:
        """The view of a nested block: it sees the outer values and keeps its own to itself."""
        own = dict(self.memories), dict(self.values)
        shared = self.pending, self.fixed
        return Instance(self.kernel, self.program, self.grid, self.scalars, *own, *shared)

    def error(self, message: str) -> TileError:
        """An error that says where it happened."""
        return TileError(f"kernel {self.kernel}, program instance {self.program}: {message}")


def evaluate(root: Node) -> Array:
    """The value of an expression without variables, parameters and program indices."""
    with quiet():
        return value_of(Instance("<expression>", (), (), {}, {}), root)


def value_of(s: Instance, root: Node) -> Array:
    """The value of an expression; every node is computed once in its block. Raises TileError for a
    variable that no statement has defined."""
    values = s.values
    if root in values:
        return values[root]
    stack = [root]
    while stack:
        node = stack[-1]
        if node in values:
            stack.pop()
            continue
        missing = [x for x in node.srcs if x not in values]
        if missing:
            stack += missing
            continue
        stack.pop()
        operands = [values[x] for x in node.srcs]
        if node.op in _STRUCTURAL:
            values[node] = _STRUCTURAL[node.op](node, *operands)
        elif node.op in _LEAF:
            values[node] = _LEAF[node.op](s, node)
        else:
            values[node] = elementwise(node.op, *operands)
    return values[root]


def _undefined(s: Instance, node: Node) -> Array:
    raise s.error(f"reads {node} before any statement defined it")


@lru_cache(maxsize=4096)
def _constant(node: Node) -> Array:
    """The same array for all instances, which nobody writes to."""
    return constant(node["value"], node.dtype)


_LEAF: Mapping[str, Callable[[Instance, Node], Array]] = {
    "const": lambda s, n: _constant(n),
    "var": _undefined,
    "scalar": lambda s, n: s.scalars[n["name"]],
    "program_id": lambda s, n: convert(np.asarray(s.program[n["axis"]]), n.dtype),
    "num_programs": lambda s, n: convert(np.asarray(s.grid[n["axis"]]), n.dtype),
    "arange": lambda s, n: convert(np.arange(n.shape[0]), n.dtype),
}


def _combine(kind: str, x: Array, axis: int) -> Array:
    """The combinations of the first 1, 2, 3, ... slices along the axis, one after the other along
    the first axis, in the type in which theirs is computed."""
    slices = np.moveaxis(convert(x, DTYPES[x.dtype].computed_in), axis, 0)
    return accumulated(COMBINE[kind], slices)


def _reduce(node: Node, x: Array) -> Array:
    return convert(np.asarray(_combine(node["kind"], x, node["axis"])[-1]), node.dtype)


def _scan(node: Node, x: Array) -> Array:
    axis = node["axis"]
    return convert(np.moveaxis(_combine(node["kind"], x, axis), 0, axis), node.dtype)


def _dot(node: Node, a: Array, b: Array, acc: Array) -> Array:
    total, left, right = (convert(x, node.dtype.computed_in) for x in (acc, a, b))
    for k in range(left.shape[1]):
        total = total + left[:, k, None] * right[None, k, :]
    return convert(total, node.dtype)


_STRUCTURAL: Mapping[str, Callable[..., Array]] = {
    "where": lambda n, c, a, b: np.asarray(np.where(c, a, b)),
    "cast": lambda n, x: convert(x, n.dtype),
    "bitcast": lambda n, x: bitcast(x, n.dtype),
    "broadcast": lambda n, x: np.broadcast_to(x, n.shape),
    "reshape": lambda n, x: x.reshape(n.shape),
    "transpose": lambda n, x: x.transpose(n["perm"]),
    "reduce": _reduce,
    "scan": _scan,
    "dot": _dot,
}
