"""Sums of products that are one product: over a batch, and over windows that overlap.

These come from gradients: of weights that a batch shares, and of what windows look at. What a sum
runs over becomes part of the product's depth, so that nothing of the size of all terms is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from hal.core.dtypes import DType
from hal.tile.node import Node, toposort
from hal.tile.rewrite import substitute
from stack import ops as build
from stack.compiler.graph.access import Axis, Index, axis_index, regroup
from stack.compiler.graph.space import Group
from stack.compiler.graph.views import VIEWS

_ROUNDED = frozenset({DType.F16, DType.BF16})
"""Types whose sums are of rounded products, because the program says so."""


def fold_sums(outputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The outputs with sums of products that nothing else reads as products."""
    order = list(toposort(outputs))
    if all(n.op != "matmul" for n in order):
        return outputs
    users = Counter(s for n in order for s in n.srcs)
    users.update(outputs)
    found: dict[Node, Node] = {}
    inside: set[Node] = set()
    for n in reversed(order):
        if n.dtype in _ROUNDED or n in inside or not n.type.size:
            continue
        folded = None
        if n.op == "reduce" and n["kind"] == "sum":
            folded = _over_batch(n, users)
        elif n.op in ("overlap_add", "slice"):
            folded = _over_windows(n, users)
        if folded is not None:
            found[n] = folded
            inside.update(toposort((n,)))
    return substitute(outputs, found) if found else outputs


def _over_batch(n: Node, users: Counter[Node]) -> Node | None:
    """A sum over batch axes, which join the depth."""
    (x,), axes = n.srcs, n["axes"]
    rank = len(n.shape)
    if x.op != "matmul" or users[x] > 1 or not axes or max(axes) >= rank - 2:
        return None
    a, b = x.srcs
    kept = [i for i in range(rank - 2) if i not in axes]
    batch, depth = [x.shape[i] for i in kept], prod(x.shape[i] for i in axes) * a.shape[-1]
    left = build.permute(a, (*kept, rank - 2, *axes, rank - 1))
    right = build.permute(b, (*kept, *axes, rank - 2, rank - 1))
    product = build.matmul(
        build.reshape(left, (*batch, a.shape[-2], depth)),
        build.reshape(right, (*batch, depth, b.shape[-1])),
        n.dtype,
    )
    return build.reshape(product, n.shape)


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Windows that are added up: the axes of their numbers and of their elements, and how."""

    number: Axis
    element: Axis
    node: Node
    start: int
    stop: int
    """The part of the result that is wanted."""


def _over_windows(n: Node, users: Counter[Node]) -> Node | None:
    """Windows of a product that are added up, where one operand has their numbers and the other
    their elements: then the windows are those of the first one, and elements join the depth."""
    top = n.srcs[0] if n.op == "slice" else n
    if top.op != "overlap_add" or (top is not n and users[top] > 1):
        return None
    chain = [top]
    while chain[-1].srcs[0].op == "overlap_add" and users[chain[-1].srcs[0]] == 1:
        chain.append(chain[-1].srcs[0])
    if any(c["stride"] != 1 for c in chain):
        return None
    view = chain[-1].srcs[0]
    dims = [Axis(size) for size in view.shape]
    overlaps, order = [], list(dims)
    for c in reversed(chain):
        at = c["axis"]
        overlaps.append((order[at], order[at + 1], c))
        del order[at + 1]
    wanted = _wanted(n, [order.index(number) for number, _, _ in overlaps])
    if wanted is None:
        return None
    product, index = view, axis_index(dims)
    while product.op in ("reshape", "permute") and users[product] == 1:
        moved = _below(product, index)
        if moved is None:
            return None
        product, index = product.srcs[0], moved
    if product.op != "matmul" or users[product] > 1:
        return None
    parts = _parts(product, index, dims)
    if parts is None:
        return None
    each = [_Overlap(*o, *wanted[order.index(o[0])]) for o in overlaps]
    return _folded(n, product, parts, each, order)


def _wanted(n: Node, along: Sequence[int]) -> list[tuple[int, int]] | None:
    """The part of each axis of an overlapped sum that is kept, where only axes along which windows
    lie are cut."""
    if n.op != "slice":
        return [(0, size) for size in n.shape]
    sizes = n.srcs[0].shape
    cut = [i for i, size in enumerate(sizes) if n.shape[i] != size]
    if any(step != 1 for step in n["step"]) or not set(cut) <= set(along):
        return None
    return list(zip(n["start"], n["stop"], strict=True))


def _below(n: Node, index: Index) -> Index | None:
    """The element of a view's source."""
    wanted: list[object] = []

    def strict(index: Index, shape: Sequence[int]) -> Index:
        found = regroup(index, shape)
        if not isinstance(found, Index):
            wanted.append(found)
            return axis_index([Axis(size) for size in shape])
        return found

    moved, _ = VIEWS[n.op](n, index, strict)
    return None if wanted else moved


def _parts(product: Node, index: Index, dims: Sequence[Axis]) -> tuple[Group, Group, Group] | None:
    """The axes that make up a product's batch, rows and columns, each in order."""
    *batch, m, n = product.shape
    found = regroup(index, (prod(batch), m, n))
    if not isinstance(found, Index):
        return None
    parts = []
    for size, at in zip(found.shape, found.at, strict=True):
        axes = sorted((a for a, _ in at.terms if a.size > 1), key=lambda a: -at.coefficient(a))
        below = [prod(a.size for a in axes[i + 1 :]) for i in range(len(axes))]
        steps = [at.coefficient(a) for a in axes]
        if at.const or steps != below or prod(a.size for a in axes) != size:
            return None
        parts.append(tuple(axes))
    used = [a for part in parts for a in part]
    missing = tuple(a for a in dims if a.size > 1 and a not in used)
    return None if missing or len(set(used)) < len(used) else (parts[0], parts[1], parts[2])


def _folded(
    n: Node,
    product: Node,
    parts: tuple[Group, Group, Group],
    overlaps: Sequence[_Overlap],
    order: Sequence[Axis],
) -> Node | None:
    batch, rows, columns = parts
    numbers = [o.number for o in overlaps if o.number.size > 1]
    elements = [o.element for o in overlaps if o.element.size > 1]
    if set(numbers) <= set(rows) and set(elements) <= set(columns):
        windowed, other = rows, columns
    elif set(numbers) <= set(columns) and set(elements) <= set(rows):
        windowed, other = columns, rows
    else:
        return None
    swapped = windowed is columns
    left, right = product.srcs
    seen, weights = (right, left) if swapped else (left, right)
    if swapped:
        seen, weights = build.transpose(seen), build.transpose(weights)
    depth = Axis(left.shape[-1])
    # The operand with the windows, over (batch, its axes, depth), and the other one over (batch,
    # depth, its axes).
    seen = build.reshape(seen, [a.size for a in (*batch, *windowed, depth)])
    weights = build.reshape(weights, [a.size for a in (*batch, depth, *other)])
    have, held = [*batch, *windowed, depth], [*batch, depth, *other]
    lengths = {a: a.size for a in (*batch, *windowed, *other)}
    taps: list[Axis] = []
    for o in overlaps:
        lengths[o.number] = o.stop - o.start
        if o.number not in have:  # a single window
            have.insert(len(batch), o.number)
            seen = build.reshape(seen, (*seen.shape[: len(batch)], 1, *seen.shape[len(batch) :]))
        if o.element not in held:
            held.append(o.element)
            weights = build.reshape(weights, (*weights.shape, 1))
        at = have.index(o.number)
        reach = (o.element.size - 1) * o.node["dilation"]
        edge = [reach if i == at else 0 for i in range(len(have))]
        after = [o.node["length"] - have[at].size if i == at else 0 for i in range(len(have))]
        seen = build.pad(seen, edge, after)
        seen = build.window(seen, at, o.element.size, 1, o.node["dilation"])
        seen = build.slice_axis(seen, at, o.start, o.stop)
        have.insert(at + 1, o.element)
        weights = build.flip(weights, held.index(o.element))
        taps.append(o.element)
    kept = [a for a in have if a not in (*batch, *taps, depth)]
    left_over = [a for a in held if a not in (*batch, *taps, depth)]
    inner = [*taps, depth]
    seen = build.permute(seen, [have.index(a) for a in (*batch, *kept, *inner)])
    weights = build.permute(weights, [held.index(a) for a in (*batch, *inner, *left_over)])
    count, total = prod(a.size for a in batch), prod(a.size for a in inner)
    many, few = (prod(lengths.get(a, a.size) for a in axes) for axes in (kept, left_over))
    seen = build.reshape(seen, (count, many, total))
    weights = build.reshape(weights, (count, total, few))
    if swapped:
        made = build.matmul(build.transpose(weights), build.transpose(seen), n.dtype)
        result = [*batch, *left_over, *kept]
    else:
        made = build.matmul(seen, weights, n.dtype)
        result = [*batch, *kept, *left_over]
    made = build.reshape(made, [lengths.get(a, a.size) for a in result])
    present = [a for a in order if a in result]
    made = build.permute(made, [result.index(a) for a in present])
    return build.reshape(made, n.shape)
