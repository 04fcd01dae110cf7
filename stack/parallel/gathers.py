"""When parameters that ranks store in rows are gathered: in buckets, each shortly before its first
use, so that what was gathered is freed behind its last one. Pure.

A graph's nodes are interned, so a value that is gathered again has to be another node: one that
waits for what is computed before its use.
"""

from __future__ import annotations

from collections.abc import Sequence

from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild, toposort
from stack import ops as g
from stack.ops import OPS, is_exchange
from stack.ops.operator import OpKind
from stack.parallel.buckets import BUCKET_NBYTES


@dataclass(eq=False, slots=True)
class _Use:
    """Readers of a gathered value for which it is gathered once: the first of them, by depth, and
    how often the value was gathered before."""

    gather: Node
    first: Node
    number: int


def gathered_for_uses(
    outputs: Sequence[Node], group: str, bucket_nbytes: int | None = None
) -> tuple[Node, ...]:
    """The outputs, with the gathers of stored values along `group` made for their uses: in buckets
    of about so many bytes (BUCKET_NBYTES), in the order of the uses. Each bucket begins when the
    bucket before it begins to be used, and the first one at once. Values are the same.

    A use is the operators that read the value or a view of it, but those that depend on one of them
    and come after a use of another value: they are a use of their own, for which it is gathered
    again. In a step these are the forward and the backward pass.
    """
    order = list(toposort(outputs))
    depth: dict[Node, int] = {}
    for n in order:
        depth[n] = 1 + max((depth[s] for s in n.srcs), default=0)
    owner = _owners(order, outputs, group)
    readers = [(n, owner[s]) for n in order for s in n.srcs if s in owner and n not in owner]
    readers.sort(key=lambda pair: depth[pair[0]])
    use_of = _uses(order, readers)
    most = BUCKET_NBYTES if bucket_nbytes is None else bucket_nbytes
    buckets = _bucketed(list(dict.fromkeys(use_of[pair] for pair in readers)), most)
    bucket_of = {use: number for number, bucket in enumerate(buckets) for use in bucket}
    waits = [_computed_before(bucket[0].first, owner, depth) for bucket in buckets]
    vectors = _vectors(order, owner)
    done: dict[Node, Node] = {}
    made: dict[tuple[Node, _Use], Node] = {}

    def gather(number: int) -> None:
        """All of a bucket, in one call."""
        bucket = buckets[number]
        before = waits[number - 1] if number else None
        first, size = bucket[0].gather, bucket[0].gather["size"]
        flat = [g.reshape(x := done[use.gather.srcs[0]], (x.type.size,)) for use in bucket]
        name = f"{first['name']}{', again' * bucket[0].number}"
        after = () if before is None else (done[before],)
        every = g.all_gather(g.concat(flat, 0), size, group, name, after)
        begin = 0
        for use, x in zip(bucket, flat, strict=True):
            own = g.slice_axis(every, 1, begin, begin + x.type.size)
            made[use.gather, use] = g.reshape(own, use.gather.shape)
            begin += x.type.size

    def for_use(n: Node, use: _Use) -> Node:
        """The gathered value, or a view of it."""
        if (n, use) not in made:
            if n is use.gather:
                gather(bucket_of[use])
            else:
                view = rebuild(n, (for_use(n.srcs[0], use),))
                made[n, use] = g.contiguous(view) if n in vectors else view
        return made[n, use]

    for n in sorted(order, key=depth.__getitem__):
        if n not in owner:
            srcs = (for_use(s, use_of[n, owner[s]]) if s in owner else done[s] for s in n.srcs)
            done[n] = rebuild(n, tuple(srcs))
    return tuple(done[n] for n in outputs)


def _owners(order: Sequence[Node], outputs: Sequence[Node], group: str) -> dict[Node, Node]:
    """The gathers of stored values, and views of what they give, by node; the gather of each. Those
    of which a view is an output stay as they are."""
    stored: set[Node] = set()
    owner: dict[Node, Node] = {}
    for n in order:
        is_view = len(n.srcs) == 1 and OPS[n.op].kind is OpKind.MOVEMENT
        if (n.op == "input" and n.dtype.is_float) or (is_view and n.srcs[0] in stored):
            stored.add(n)
        elif n.op == "all_gather" and n["group"] == group and n.srcs[0] in stored:
            owner[n] = n
        elif (is_view or n.op == "cast") and n.srcs[0] in owner:
            owner[n] = owner[n.srcs[0]]
    kept = {owner[n] for n in outputs if n in owner}
    return {n: gather for n, gather in owner.items() if gather not in kept}


def _vectors(order: Sequence[Node], owner: dict[Node, Node]) -> set[Node]:
    """The flat values of gathers that are read as vectors, which are laid together before they are
    read: the pieces of a norm's weight would divide the sums along it, which are made in another
    order then."""
    found = {n for n in order if n in owner and len(n.shape) == 1 < len(n.srcs[0].shape)}
    matrices: set[Node] = set()
    for n in reversed(order):
        if n in owner and n.op != "expand":
            is_matrix = len(n.shape) > 1 and sum(size > 1 for size in n.shape) > 1
            if is_matrix or n in matrices:
                matrices.add(n.srcs[0])
    return found - matrices


def _uses(
    order: Sequence[Node], readers: Sequence[tuple[Node, Node]]
) -> dict[tuple[Node, Node], _Use]:
    """The use of each reader of a gather."""
    followers: dict[Node, list[Node]] = {n: [] for n in order}
    for n in order:
        for s in n.srcs:
            followers[s].append(n)
    found: dict[tuple[Node, Node], _Use] = {}
    newest: dict[Node, tuple[_Use, set[Node], int]] = {}  # of each gather
    for place, (n, gather) in enumerate(readers):
        use, behind, last = newest.get(gather, (_Use(gather, n, 0), set[Node](), place))
        if n in behind and any(other is not gather for _, other in readers[last + 1 : place]):
            use = _Use(gather, n, use.number + 1)
        if use.first is n:
            behind = _behind(n, followers)
        newest[gather] = use, behind, place
        found[n, gather] = use
    return found


def _behind(n: Node, followers: dict[Node, list[Node]]) -> set[Node]:
    found, todo = set[Node](), [n]
    while todo:
        new = [f for f in followers[todo.pop()] if f not in found]
        found.update(new)
        todo += new
    return found


def _bucketed(uses: Sequence[_Use], most: int) -> list[list[_Use]]:
    """Neighbours of one element type, of at most so many gathered bytes, or one of more."""
    found: list[list[_Use]] = []
    left = 0
    for use in uses:
        nbytes = use.gather.type.nbytes
        fits = found and nbytes <= left and use.gather.dtype is found[-1][0].gather.dtype
        if fits and all(use.gather is not other.gather for other in found[-1]):
            found[-1].append(use)
        else:
            found.append([use])
            left = most
        left -= nbytes
    return found


def _computed_before(n: Node, owner: dict[Node, Node], depth: dict[Node, int]) -> Node | None:
    """The last thing with a buffer of its own on the longest way to an operator's operands."""
    found: Node | None = n
    while found is not None and (
        found is n or not (found.op in ("matmul", "reduce", "attention") or is_exchange(found))
    ):
        found = max((s for s in found.srcs if s not in owner), key=depth.__getitem__, default=None)
    return found
