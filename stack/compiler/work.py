"""What a kernel in tile IR computes: operations on floating-point elements, and products of
integers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.core.values import Grid
from hal.tile.errors import TileError
from hal.tile.evaluate import Instance, value_of
from hal.tile.kernel import For, If, Kernel, Statement
from hal.tile.node import Node
from hal.tile.ops import OPS, OpClass
from hal.tile.walk import reads

INSTANCES = 32
"""Of a grid, as many program instances are looked at, at equal distances; the others are held for
equal to them."""

STEPS = 4
"""Of a loop in which other statements depend on the step, as many steps are looked at."""

_COUNTED = {OpClass.UNARY: 1, OpClass.BINARY: 1, OpClass.TERNARY: 2}

Operations = Counter[DType]


@dataclass(frozen=True, slots=True)
class _Part:
    """A block: what its expressions compute whenever it runs, and the statements with blocks in
    it."""

    own: Operations
    inner: tuple[tuple[For | If, tuple[_Part, ...]], ...]

    @staticmethod
    def of(block: Sequence[Statement], results: Sequence[Node], seen: set[Node]) -> _Part:
        """Of a block, and of the expressions `results` at its end; `seen` was computed before
        it."""
        own, inner = Operations(), list[tuple[For | If, tuple[_Part, ...]]]()
        for statement in block:
            _count(reads(statement), seen, own)
            if isinstance(statement, For):
                ends = [c.next for c in statement.carried]
                inner.append((statement, (_Part.of(statement.body, ends, set(seen)),)))
            elif isinstance(statement, If):
                both = (statement.then, statement.orelse)
                inner.append((statement, tuple([_Part.of(b, (), set(seen)) for b in both])))
        _count(results, seen, own)
        return _Part(own, tuple(inner))

    def total(self, s: Instance) -> Operations:
        """Of an instance, which knows the steps of the loops around it."""
        found = Operations(self.own)
        for statement, parts in self.inner:
            if isinstance(statement, For):
                _add(found, *_of_loop(statement, parts[0], s))
            else:
                taken = parts[0] if _holds(statement.condition, s) else parts[1]
                _add(found, taken.total(s.inner()))
        return found


def operations(kernel: Kernel, grid: Grid, sizes: Sequence[int] = ()) -> Operations:
    """How many operations a launch makes, by the element type that they are on: of a `dot` two for
    each product and by its operands' type, of other operations on floats one for each element
    (functions such as `exp` too, `fma` two).

    It counts what is computed, so also elements of boundary tiles that are not stored. `sizes` are
    the scalar parameters in order. Where a branch depends on data, the first one is counted.
    Raises TileError for a loop whose bounds depend on data.
    """
    names = [p.name for p in kernel.params[len(kernel.params) - len(sizes) :]]
    scalars = {name: np.asarray(size, np.int64) for name, size in zip(names, sizes, strict=True)}
    whole, count, found = _Part.of(kernel.body, (), set()), math.prod(grid), Operations()
    looked = list(_picked(count, INSTANCES))
    for at in looked:
        program = (at % grid[0], at // grid[0] % grid[1], at // grid[0] // grid[1])
        instance = Instance(kernel.name, program, grid, scalars, {})
        _add(found, whole.total(instance), count / len(looked))
    return found


def _of_loop(loop: For, body: _Part, s: Instance) -> tuple[Operations, float]:
    """What the steps make that are looked at, and of how many each of them is one."""
    start, stop, step = (int(value_of(s, n)) for n in (loop.start, loop.stop, loop.step))
    steps, found = range(start, stop, step), Operations()
    if not body.inner:
        return body.own, len(steps)
    looked = list(_picked(len(steps), STEPS))
    for at in looked:
        inner = s.inner()
        inner.values[loop.index] = np.asarray(steps[at], np.int64)
        _add(found, body.total(inner))
    return found, len(steps) / max(1, len(looked))


def _holds(condition: Node, s: Instance) -> bool:
    try:
        return bool(value_of(s.inner(), condition))
    except TileError:  # it depends on data
        return True


def _count(roots: Sequence[Node], seen: set[Node], found: Operations) -> None:
    """Add what these expressions compute beyond what was seen, which they have now seen too."""
    stack = [n for n in roots if n not in seen]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        stack += [x for x in n.srcs if x not in seen]
        group = OPS[n.op].group
        if group is OpClass.DOT:
            left, right = n.srcs[0], n.srcs[1]
            found[left.dtype] += 2 * left.type.size * right.shape[1]
        elif n.dtype.is_float and group in (OpClass.REDUCE, OpClass.SCAN):
            found[n.dtype] += n.srcs[0].type.size
        elif n.dtype.is_float and group in _COUNTED:
            found[n.dtype] += _COUNTED[group] * n.type.size


def _add(found: Operations, more: Operations, times: float = 1) -> None:
    for dtype, count in more.items():
        found[dtype] += round(count * times)


def _picked(count: int, most: int) -> Iterator[int]:
    """At most so many of the numbers up to `count`, at equal distances."""
    n = min(count, most)
    return ((2 * i + 1) * count // (2 * n) for i in range(n))
