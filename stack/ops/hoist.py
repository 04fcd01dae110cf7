"""What the steps of a loop compute apart from each other, as one operation over all of them.

A product that reads a weight again in each step moves more bytes than it computes with. One over
all steps reads the weight once, for which its other operand, or its result, is kept of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hal.core.facts import dataclass
from hal.tile.node import Node, rebuild, toposort
from stack.ops.movement import broadcast, permute, reshape
from stack.ops.operator import OpKind
from stack.ops.products import matmul
from stack.ops.reductions import reduce
from stack.ops.table import OPS

__all__: list[str] = []


def products_before(
    outputs: Sequence[Node], steps: int, consts: Mapping[Node, Node], rows: Mapping[Node, Node]
) -> dict[Node, Node]:
    """The products of a body that depend on rows but on no carried value, with their values of all
    steps, stacked, where that moves no more bytes than a product in each step.

    `consts` and `rows` are the body's inputs with what they are given: a value for all steps, and
    those of all steps, stacked.
    """
    order = list(toposort(outputs))
    if all(n.op != "matmul" for n in order):
        return {}
    fixed, stacked = dict(consts), dict(rows)
    for n in order:
        if n in fixed or n in stacked or n.op == "input":
            continue
        if all(s in fixed for s in n.srcs):
            fixed[n] = rebuild(n, tuple(fixed[s] for s in n.srcs))
        elif all(s in fixed or s in stacked for s in n.srcs):
            found = _of_all_steps(n, steps, fixed, stacked)
            if found is not None:
                stacked[n] = found
    hoisted: dict[Node, Node] = {}

    def below(n: Node) -> Sequence[Node]:
        if n.op == "matmul" and n in stacked and n not in hoisted:
            read = [s for s in n.srcs if s in fixed]
            if read and 2 * n.type.size <= read[0].type.size:
                hoisted[n] = stacked[n]
        return () if n in hoisted else n.srcs

    list(toposort(outputs, below))
    return hoisted


def _of_all_steps(
    n: Node, steps: int, fixed: Mapping[Node, Node], stacked: Mapping[Node, Node]
) -> Node | None:
    """A node's values of all steps from those of its operands; None where there is no rule."""
    whole = n.type.with_shape((steps, *n.shape))

    def of(s: Node) -> Node:
        return stacked[s] if s in stacked else broadcast(fixed[s], (steps, *s.shape))

    if n.op == "matmul" and n.srcs[1] in fixed and len(n.shape) == 2:
        a, b = stacked[n.srcs[0]], fixed[n.srcs[1]]
        product = matmul(reshape(a, (steps * n.shape[0], a.shape[-1])), b, n.dtype)
        return reshape(product, whole.shape)
    if n.op == "matmul" or OPS[n.op].kind is OpKind.ELEMENTWISE or n.op in ("reshape", "expand"):
        return OPS[n.op](*(of(s) for s in n.srcs), asked=whole, **dict(n.attrs))
    if n.op == "permute":
        return permute(of(n.srcs[0]), (0, *(p + 1 for p in n["perm"])))
    return None


Moves = tuple[Node, ...]
"""Movements of all elements of a value, the first one first: nodes whose operands do not count."""


@dataclass(frozen=True, slots=True)
class Addend:
    """A value of each step that is moved, and then added to others."""

    value: Node
    moves: Moves

    @property
    def operands(self) -> list[tuple[Node, Moves]]:
        """What the value is computed from, below movements."""
        found = []
        for below in self.value.srcs:
            moves = Moves()
            while below.op in ("permute", "reshape"):
                below, moves = below.srcs[0], (below, *moves)
            found.append((below, moves))
        return found

    def moved(self, value: Node) -> Node:
        """Another value of the same type moved as this one."""
        for m in self.moves:
            value = rebuild(m, (value,))
        return value


def addends(n: Node) -> list[Addend]:
    """What a node is the sum of."""
    found, stack = [], [(n, Moves())]
    while stack:
        x, moves = stack.pop()
        if x.op == "add":
            stack += [(x.srcs[1], moves), (x.srcs[0], moves)]
        elif x.op in ("permute", "reshape"):
            stack.append((x.srcs[0], (x, *moves)))
        else:
            found.append(Addend(x, moves))
    return found


def summed_after(
    sums: Iterable[Addend], known: Iterable[Node], varies: Callable[[Node], bool]
) -> tuple[dict[Addend, None], dict[Node, None]]:
    """Those of the addends whose sum over all steps is one product or one reduction after the loop,
    and values that have to be kept of each step for them.

    `known` are the values that are kept in any case, and `varies` tells those that a step gives
    from those of all steps. A product is taken where what is kept for it has no more elements than
    the sum, which a step would read and write.
    """
    chosen: dict[Addend, None] = {}
    kept, have = dict[Node, None](), set(known)
    wanted = list(sums)
    for each in (a for a in wanted if a.value.op == "matmul"):
        bases = [base for base, _ in each.operands]
        new = {b for b in bases if b not in have and b not in kept}
        if all(map(varies, bases)) and sum(b.type.size for b in new) <= each.value.type.size:
            chosen[each] = None
            kept |= dict.fromkeys(b for b in bases if b in new)
    for each in (a for a in wanted if a.value.op == "reduce" and a.value["kind"] == "sum"):
        ((base, _),) = each.operands
        if base in have or base in kept:
            chosen[each] = None
    return chosen, kept


def sum_of_all_steps(addend: Addend, steps: int, stacks: Mapping[Node, Node]) -> Node:
    """The sum of an addend over all steps, from the values that were kept, stacked."""
    n = addend.value
    whole = [_moved_with_steps(stacks[base], moves, steps) for base, moves in addend.operands]
    if n.op == "reduce":
        total = reduce("sum", whole[0], (0, *(axis + 1 for axis in n["axes"])))
        return addend.moved(reshape(total, n.shape))
    a, b = whole
    batch, (rows, columns), depth = range(1, len(a.shape) - 2), n.shape[-2:], a.shape[-1]
    last = len(a.shape) - 1
    a = permute(a, (*batch, last - 1, 0, last))
    b = permute(b, (*batch, 0, last - 1, last))
    a = reshape(a, (*n.shape[:-2], rows, steps * depth))
    b = reshape(b, (*n.shape[:-2], steps * depth, columns))
    return addend.moved(matmul(a, b, n.dtype))


def _moved_with_steps(stack: Node, moves: Moves, steps: int) -> Node:
    for m in moves:
        if m.op == "permute":
            stack = permute(stack, (0, *(p + 1 for p in m["perm"])))
        else:
            stack = reshape(stack, (steps, *m.shape))
    return stack
