"""Attention by heads where ranks have parts of sequences: queries, keys, values and results change
between parts of the one and of the other by all-to-all (Jacobs et al., arXiv 2309.14509). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hal.core.errors import InvalidCall
from hal.tile.node import Node, node, rebuild, toposort
from stack.compiler.graph.attention import fold
from stack.compiler.graph.trained import fold_gradients
from stack.ops import OPS
from stack.ops.operator import OpKind
from stack.parallel.partition import Cut, Spread, partitioned
from stack.parallel.placement import Packed, Placement, Sharded
from stack.parallel.way import Way
from stack.parallel.ways import cut_parts

MARK = "parts of sequences"
"""The tag of an identity at which ranks have those, while ways are chosen."""


def folded(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs, which are simplified, with each attention as one node, or as two with its
    gradients."""
    return fold(fold_gradients(tuple(outputs), 1), small=False)


def softmaxes(outputs: Sequence[Node]) -> dict[Node, None]:
    """The powers of softmaxes over rows of a product of matrices that are stacked along two axes or
    more."""
    found: dict[Node, None] = {}
    for n in toposort(outputs):
        if n.op == "exp" and len(n.shape) > 3 and n.srcs[0].op == "sub":
            stack, seen = [n.srcs[0].srcs[0]], set[Node]()
            while stack:
                x = stack.pop()
                if x.op == "matmul":
                    found[n] = None
                elif OPS[x.op].kind is OpKind.ELEMENTWISE and x not in seen:
                    stack += x.srcs
                seen.add(x)
    return found


def by_heads(
    outputs: Sequence[Node],
    spread: Spread,
    rank: Node,
    name: Callable[[str], str],
    only: Mapping[Node, Way],
    axis: str,
) -> Cut:
    """As `partitioned`, with what belongs to an attention by heads, axis -3 of its products, and
    what it reads and gives by parts of sequences. `axis` is what the mesh calls the ranks' axis.
    Raises InvalidCall for heads that the ranks cannot divide."""
    left = softmaxes(folded(outputs))
    powers = [n for n in softmaxes(outputs) if n not in left]
    for n in powers:
        if n.shape[-3] % spread.size:
            raise InvalidCall(
                f"attention of {n.shape[-3]} heads cannot be divided among the {spread.size} ranks "
                f"along {axis!r}; take heads that are a multiple of {spread.size}, or `attention "
                "ring`"
            )
    marks, products = _around(outputs, powers)
    done: dict[Node, Node] = {}
    ways = dict(only)
    for n in toposort(outputs):
        done[n] = rebuild(n, tuple(done[s] for s in n.srcs))
        if n in only:
            ways[done[n]] = only[n]
        if n in products:
            heads = Sharded(len(n.shape) - 3)
            ways[done[n]] = Way((heads,) * 2, heads, (n.shape[-3], 1, False))
        if n in marks:
            p = Sharded(marks[n])
            done[n] = node("contiguous", n.type, (done[n],), tag=MARK)
            ways[done[n]] = Way((p,), p, (n.shape[marks[n]], 1, False))
    cut = partitioned([done[n] for n in outputs], spread, rank, name, only=ways)
    whole = {made: n for n, made in done.items()}
    local = _without_marks([*cut.outputs, *cut.made.values()])
    places = ((whole.get(n, n), p) for n, p in cut.made)
    made = dict(zip(places, local[len(cut.outputs) :], strict=True))
    return replace(cut, outputs=tuple(local[: len(cut.outputs)]), made=made)


def check_heads(
    outputs: Sequence[Node], inputs: Mapping[Node, Placement], size: int, axis: str
) -> None:
    """Raise InvalidCall where projections of queries or keys are divided among `size` ranks, and
    their heads cannot be: `inputs` has where parameters, or flat arrays of these, are."""
    if not any(_is_divided(p) for p in inputs.values()):
        return
    for power in softmaxes(outputs):
        heads = power.shape[-3]
        if heads % size and any(
            _is_parameter(operand, inputs)
            for scores in _products([power.srcs[0]])
            for projection in _products(scores.srcs)
            for operand in projection.srcs
        ):
            raise InvalidCall(
                f"attention of {heads} heads cannot be divided among the {size} ranks along "
                f"{axis!r}, which divides its projections; take heads that are a multiple of "
                f"{size}, or leave its parameters whole"
            )


def _products(roots: Sequence[Node]) -> dict[Node, None]:
    """The products below these values, without those that are below another one."""
    found: dict[Node, None] = {}
    stack, seen = list(roots), set[Node]()
    while stack:
        n = stack.pop()
        if n.op == "matmul":
            found[n] = None
        elif n not in seen:
            stack += n.srcs
        seen.add(n)
    return found


def _is_parameter(n: Node, inputs: Mapping[Node, Placement]) -> bool:
    """Whether a value is a view of a parameter of which each rank has a part."""
    while n.op != "input":
        if len(n.srcs) != 1:
            return False
        source = inputs.get(n.srcs[0])
        if n.op == "slice" and isinstance(source, Packed):
            cut = cut_parts(source, n["start"][0], n["stop"][0])
            return cut is not None and _is_divided(cut[2])
        n = n.srcs[0]
    return isinstance(inputs.get(n), Sharded)


def _is_divided(p: Placement) -> bool:
    if isinstance(p, Packed):
        return any(_is_divided(part.placement) for part in p.parts)
    return isinstance(p, Sharded)


def _around(
    outputs: Sequence[Node], powers: Sequence[Node]
) -> tuple[dict[Node, int], dict[Node, None]]:
    """What attentions read, before it is turned, and give, with the axis of the sequence; and their
    products."""
    users: dict[Node, list[Node]] = {}
    for n in toposort(outputs):
        for s in dict.fromkeys(n.srcs):
            users.setdefault(s, []).append(n)
    found: dict[Node, int] = {}
    products: dict[Node, None] = {}

    def mark(x: Node, axis: int) -> None:
        while x.op == "permute":
            x, axis = x.srcs[0], x["perm"][axis]
        found[x] = axis

    for power in powers:
        last = len(power.shape) - 1
        square, stack = {power: None}, [power]
        while stack:
            for n in users.get(stack.pop(), ()):
                is_inner = OPS[n.op].kind is OpKind.ELEMENTWISE or n.op == "permute"
                if is_inner and n.type.size == power.type.size and n not in square:
                    square[n] = None
                    stack.append(n)
        below = [power.srcs[0]]
        while below:
            n = below.pop()
            if n.op == "matmul":
                products[n] = None
                mark(n.srcs[0], last - 1)
                mark(n.srcs[1], last)
            elif OPS[n.op].kind is OpKind.ELEMENTWISE:
                below += n.srcs
        for n in square:
            for s in n.srcs:
                if s.op == "matmul":  # derivatives by weights
                    products[s] = None
                    mark(s.srcs[0], last - 1)
                    mark(s.srcs[1], last)
            for user in users.get(n, ()):
                if user.op == "matmul":
                    is_left = user.srcs[0] in square
                    products[user] = None
                    mark(user.srcs[is_left], last - is_left)
                    found[user] = last - is_left
    return found, products


def _without_marks(outputs: Sequence[Node]) -> list[Node]:
    done: dict[Node, Node] = {}
    for n in toposort(outputs):
        srcs = tuple(done[s] for s in n.srcs)
        is_mark = n.op == "contiguous" and dict(n.attrs).get("tag") == MARK
        done[n] = srcs[0] if is_mark else rebuild(n, srcs)
    return [done[n] for n in outputs]
