"""When parameters that ranks have whole are updated, where their optimizer's states are in rows: in
the buckets in which the new values are gathered. Pure.

An update is elementwise. As one computation over all rows it would wait for the last gradient, and
the rows of all gradients, of the old values and of the new ones would be there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hal.tile.node import Node, Type, node, substitute, toposort
from stack import ops as g
from stack.ops import OPS
from stack.ops.operator import OpKind

Range = tuple[int, int]


def updated_in_buckets(outputs: Sequence[Node], group: str) -> tuple[Node, ...]:
    """The outputs, where what is gathered along `group` from ranges of one elementwise value is
    computed for each range, and outputs that come with such a value, or are computed of what was
    gathered, are put together from ranges. Values are the same, and as many elements are computed.
    """
    return _behind(_before(outputs, group), group)


def _before(outputs: Sequence[Node], group: str) -> tuple[Node, ...]:
    """The outputs, with what is gathered computed in ranges."""
    ranges: dict[Node, dict[Range, None]] = {}
    order = list(toposort(outputs))
    for n in order:
        if n.op == "all_gather" and n["group"] == group:
            for flat, begin, end in _ranges(n.srcs[0]):
                ranges.setdefault(flat, {})[begin, end] = None
    cut = _Parts()
    made: dict[Node, Node] = {}
    for flat, found in ranges.items():
        if sorted(found) != _cover(flat.shape[0], found):
            continue
        below = {flat, *_elementwise_below(flat)}
        for n in order:
            if n.op == "slice" and n.srcs[0] in below and len(n.shape) == 1 and n["step"] == (1,):
                made[n] = cut.part(n.srcs[0], n["start"][0], n["stop"][0])
            elif n in below and n in outputs:
                made[n] = g.concat([cut.part(n, begin, end) for begin, end in sorted(found)], 0)
    return substitute(outputs, made)


def _behind(outputs: Sequence[Node], group: str) -> tuple[Node, ...]:
    """The outputs, of which those that are computed of what was gathered in ranges are so, too."""
    cut = _Parts()
    found = list(outputs)
    for i, n in enumerate(outputs):
        if OPS[n.op].kind is OpKind.ELEMENTWISE and len(n.shape) == 1:
            leaves = (s for x in (n, *_elementwise_below(n)) for s in x.srcs if s.op == "concat")
            ends = next(filter(None, (_gathered(s, group) for s in leaves)), [])
            if len(ends) > 1:
                pairs = pairwise([0, *ends])
                found[i] = g.concat([cut.part(n, begin, end) for begin, end in pairs], 0)
    return tuple(found)


def _gathered(flat: Node, group: str) -> list[int]:
    """Where the pieces end of a value that is put together of what was gathered."""
    ends, at = [], 0
    for x in flat.srcs:
        at += x.shape[0]
        ends.append(at)
        while OPS[x.op].kind is OpKind.MOVEMENT:
            x = x.srcs[0]
        if x.op != "all_gather" or x["group"] != group:
            return []
    return ends


def _ranges(n: Node) -> list[tuple[Node, int, int]]:
    """The ranges of flat elementwise values that a value is put together from; none where it is
    something else."""
    pieces = n.srcs if n.op == "concat" else (n,)
    found = []
    for x in pieces:
        if x.op != "slice" or len(x.shape) != 1 or x["step"] != (1,):
            return []
        if OPS[x.srcs[0].op].kind is not OpKind.ELEMENTWISE:
            return []
        found.append((x.srcs[0], x["start"][0], x["stop"][0]))
    return found


def _cover(size: int, found: dict[Range, None]) -> list[Range]:
    """The ranges in order, if each begins where the one before ends and the last one ends at
    `size`; else none."""
    at = 0
    for begin, end in sorted(found):
        if begin != at:
            return []
        at = end
    return sorted(found) if at == size else []


def _elementwise_below(flat: Node) -> list[Node]:
    found: dict[Node, None] = {}
    stack = [flat]
    while stack:
        for s in stack.pop().srcs:
            if s not in found and OPS[s.op].kind is OpKind.ELEMENTWISE and s.shape == flat.shape:
                found[s] = None
                stack.append(s)
    return list(found)


class _Parts:
    """Ranges of flat values."""

    def __init__(self) -> None:
        self._made: dict[tuple[Node, int, int], Node] = {}

    def part(self, n: Node, begin: int, end: int) -> Node:
        """Elements [begin, end)."""
        key = n, begin, end
        if key not in self._made:
            if OPS[n.op].kind is OpKind.ELEMENTWISE:
                srcs = tuple(self.part(s, begin, end) for s in n.srcs)
                own = Type((end - begin,), n.dtype)
                self._made[key] = node(n.op, own, srcs, **dict(n.attrs))
            elif n.op == "concat":
                self._made[key] = self._of_pieces(n, begin, end)
            else:
                self._made[key] = g.slice_axis(n, 0, begin, end)
        return self._made[key]

    def _of_pieces(self, n: Node, begin: int, end: int) -> Node:
        at, found = 0, []
        for x in n.srcs:
            size = x.shape[0]
            first, last = max(begin - at, 0), min(end - at, size)
            if first < last:
                found.append(x if last - first == size else g.slice_axis(x, 0, first, last))
            at += size
        return g.concat(found, 0) if len(found) > 1 else found[0]
