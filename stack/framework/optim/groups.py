"""Values that differ between the parameter groups of one flat array, as vectors over it."""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr import elementwise as e
from stack.framework.expr.operand import Operand, as_node
from stack.framework.flat import FlatLayout
from stack.framework.tensor import Tensor


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """Which group each place of a row belongs to, an element of a flat array or a parameter: group
    `groups[i]` begins at place `begins[i]`."""

    groups: tuple[int, ...]
    begins: tuple[int, ...]
    size: int
    dtype: DType

    @staticmethod
    def of(starts: Sequence[int], size: int, groups: Sequence[int], dtype: DType) -> GroupSpread:
        """The spread of parts that begin there and belong to these groups, which come in order."""
        firsts = dict(reversed(list(zip(groups, starts, strict=True))))
        order = tuple(sorted(firsts))
        return GroupSpread(order, tuple(firsts[k] for k in order), size, dtype)

    def vector(self, values: Sequence[Operand]) -> Node:
        """Each place's value, given one for each group, 0-d or of all places: one expression
        without memory of its own."""
        chosen = [as_node(values[k], self.dtype) for k in self.groups]
        result = g.broadcast(chosen[-1], (self.size,))
        if all(c is chosen[0] for c in chosen):
            return result
        place = g.arange(self.size)
        for value, end in zip(chosen[-2::-1], self.begins[:0:-1], strict=True):
            before = g.lt(place, g.full_like(place, end))
            result = g.where(before, g.broadcast(value, (self.size,)), result)
        return result


def chosen(active: Sequence[bool]) -> Node:
    """bool for each parameter: whether it is active."""
    begins = [i for i, a in enumerate(active) if i == 0 or a != active[i - 1]]
    runs = GroupSpread(tuple(range(len(begins))), tuple(begins), len(active), DType.F32)
    return e.gt(runs.vector([float(active[i]) for i in begins]), 0.0)


def mask(layout: FlatLayout, active: Sequence[bool]) -> Node:
    """bool over the flat array: whether the part that an element belongs to is active."""
    parts = [g.full(s, a, DType.BOOL) for s, a in zip(layout.shapes, active, strict=True)]
    return layout.join(parts)


def view(flat: Tensor, layout: FlatLayout, i: int) -> Tensor:
    """Part i of a flat tensor."""
    return Tensor(layout.split(flat.node)[i], flat.device)
