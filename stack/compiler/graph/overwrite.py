"""Updates of a part: only the part is computed, and written where it is.

What is written through a window (`stack/recorder/window.py`) or assigned to a part is a choice
between new values, padded, and the old ones. Where that takes the place of the old values, all but
the new ones are there already.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild, toposort
from hal.tile.size import equal, is_one
from stack import ops as build
from stack.compiler.graph.roots import base


@dataclass(frozen=True, slots=True)
class _Box:
    """The elements from `start` to `stop` on each axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def of(self, x: Node) -> Node:
        """What x has there."""
        if x.op == "pad" and all(map(equal, self.start, x["lo"])) and self._is_as(x.srcs[0].shape):
            return x.srcs[0]
        return build.slice(x, self.start, self.stop)

    def _is_as(self, shape: Sequence[int]) -> bool:
        """Whether it is of that shape."""
        sizes = (hi - lo for lo, hi in zip(self.start, self.stop, strict=True))
        return all(map(equal, sizes, shape))


def overwriting(
    outputs: tuple[Node, ...], updates: Sequence[tuple[int, Node]], whole: Container[int]
) -> tuple[Node, ...]:
    """The outputs; each that takes the place of an input, as `updates` say, and is that input but
    for a box, is an `overwrite` of it, if it is not to be `whole`."""
    boxes: dict[Node, _Box] = {}
    for number, target in updates:
        if number not in whole:
            boxes.update(_chain(base(outputs[number]), target))
    if not boxes:
        return outputs
    done: dict[Node, Node] = {}
    for n in toposort(outputs):
        new = done[n] = rebuild(n, tuple(done[s] for s in n.srcs))
        if (box := boxes.get(n)) is not None:
            inside, value, old = map(box.of, new.srcs)
            part = value if _holds(inside) else build.where(inside, value, old)
            done[n] = build.overwrite(new.srcs[2], part, box.start)
    return tuple(done[o] for o in outputs)


def _chain(n: Node, target: Node) -> dict[Node, _Box]:
    """The choices that lead from an input to its new value, each with its box; none where there is
    something else between."""
    found: dict[Node, _Box] = {}
    while n is not target:
        box = _box(n)
        if box is None:
            return {}
        found[n] = box
        n = base(n.srcs[2])
    return found


def _box(n: Node) -> _Box | None:
    """Where a choice may have new values: rows of one length at one distance. None where it is
    not known to have the old ones elsewhere."""
    if n.op != "where" or not n.type.size:
        return None
    mask, shape = n.srcs[0], n.shape
    if mask.op != "pad" or mask["value"]:
        return None
    edges = list(zip(mask["lo"], mask["hi"], shape, strict=True))
    cut = [a for a, (lo, hi, _) in enumerate(edges) if not (equal(lo, 0) and equal(hi, 0))]
    lead = 0  # axes with one place in the box
    while lead < cut[-1] and is_one(mask.srcs[0].shape[lead]):
        lead += 1
    # Behind the first axis that is cut but for those, rows would be cut, too: they are whole.
    last = next(a for a in cut if a >= lead)
    start = [lo if a <= last else 0 for a, (lo, _, _) in enumerate(edges)]
    stop = [m - hi if a <= last else m for a, (_, hi, m) in enumerate(edges)]
    return _Box(tuple(start), tuple(stop))


def _holds(mask: Node) -> bool:
    """Whether a mask is known to hold everywhere."""
    while mask.op in ("reshape", "expand"):
        mask = mask.srcs[0]
    return mask.op == "const" and bool(mask["value"])
