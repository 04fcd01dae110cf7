"""Values that differ between the parameter groups of one flat array, as vectors over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack import ops as g
from stack.framework.expr.operand import Operand, as_node
from stack.framework.flat import FlatLayout
from stack.framework.tensor import Tensor


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """Which group each element of a flat array belongs to: group `groups[i]` begins at element
    `begins[i]`."""

    groups: tuple[int, ...]
    begins: tuple[int, ...]
    size: int
    dtype: DType

    @staticmethod
    def of(layout: FlatLayout, groups: Sequence[int], dtype: DType) -> GroupSpread:
        """The spread of parts that belong to these groups, which come in order."""
        firsts = dict(reversed(list(zip(groups, layout.starts, strict=True))))
        order = tuple(sorted(firsts))
        return GroupSpread(order, tuple(firsts[k] for k in order), layout.size, dtype)

    def vector(self, values: Sequence[Operand]) -> Node:
        """Each element's value, given one for each group: one expression without memory of its
        own."""
        chosen = [as_node(values[k], self.dtype) for k in self.groups]
        result = g.broadcast(chosen[-1], (self.size,))
        if all(c is chosen[0] for c in chosen):
            return result
        place = g.arange(self.size)
        for value, end in zip(chosen[-2::-1], self.begins[:0:-1], strict=True):
            before = g.lt(place, g.full_like(place, end))
            result = g.where(before, g.broadcast(value, (self.size,)), result)
        return result


def mask(layout: FlatLayout, active: Sequence[bool]) -> Node:
    """bool over the flat array: whether the part that an element belongs to is active."""
    parts = [g.full(s, a, DType.BOOL) for s, a in zip(layout.shapes, active, strict=True)]
    return layout.join(parts)


def view(flat: Tensor, layout: FlatLayout, i: int) -> Tensor:
    """Part i of a flat tensor."""
    return Tensor(layout.split(flat.node)[i], flat.device)
