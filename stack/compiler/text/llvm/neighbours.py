"""Values that neighbours share, computed once for all of them.

A word of a random stream is one of the four of a block whose number is that of the word without its
two lowest bits: each element of a tile would compute a block, and each block would be computed four
times. Expressions whose values are equal within each group of neighbours along a tile's last axis
become those of a tile with one element for each group, whose elements are then repeated. That they
are equal follows from integers alone: the numbers of a group differ in their lowest bits, where
what is added to them is known to be a multiple, and a shift drops these bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.core.facts import dataclass
from hal.tile.build import add, arange, binary, broadcast, cast, mul, reshape
from hal.tile.kernel import For, Kernel
from hal.tile.node import Node, node, rebuild, toposort
from hal.tile.ops import ELEMENTWISE
from hal.tile.walk import map_nodes
from stack.compiler.text.indices import constant_of
from stack.compiler.text.llvm.contents import nested, operands

SIZES = (8, 4, 2)
"""How many neighbours may share a value, most first."""

LEAST_STEPS = 16
"""Operations from which on it pays to repeat what was computed once for each group."""


def once_for_neighbours(kernel: Kernel) -> Kernel:
    """The kernel with values that neighbours share computed once for each group of them."""
    nodes = list(toposort([n for s in nested(kernel.body) for n in operands(s)]))
    if not any(n.op == "shr" and n.shape and constant_of(n.srcs[1]) is not None for n in nodes):
        return kernel
    zeros = _zero_bits(kernel, nodes)
    groups = [_Groups(size, nodes, zeros) for size in SIZES]
    done: dict[Node, Node] = {}
    for n in nodes:
        found = next((g for g in groups if g.serves(n)), None)
        done[n] = (
            rebuild(n, tuple([done[s] for s in n.srcs])) if found is None else found.served(n, done)
        )
    return map_nodes(kernel, lambda n: done.get(n, n))


def _zero_bits(kernel: Kernel, nodes: Sequence[Node]) -> Mapping[Node, int]:
    """How many of the lowest bits of each integer are known to be zero, in every element."""
    found: dict[Node, int] = {}
    loops = {s.index: s for s in nested(kernel.body) if isinstance(s, For)}
    for n in nodes:
        if not n.dtype.is_int:
            continue
        if n in loops:  # its bounds are read before its body
            bounds = loops[n].start, loops[n].step
            found[n] = min(found.get(s, 0) for s in bounds)
            continue
        below = [found.get(s, 0) for s in n.srcs]
        match n.op:
            case "const":
                value = int(n["value"])
                found[n] = (value & -value).bit_length() - 1 if value else n.dtype.bits
            case "mul":
                found[n] = sum(below)
            case "shl":
                found[n] = below[0] + (constant_of(n.srcs[1]) or 0)
            case "and":
                found[n] = max(below)
            case "add" | "sub" | "or" | "xor" | "rem" | "min" | "max":
                found[n] = min(below)
            case "broadcast" | "reshape" | "transpose" | "cast":
                found[n] = below[0]
    return found


@dataclass(frozen=True, slots=True)
class _Rise:
    """A group's elements are a multiple of 2 ** bits that it shares, plus `offsets`: a tile of the
    numbers of neighbours, none greater than `most`, which is less than 2 ** bits."""

    bits: int
    most: int
    offsets: Node


class _Groups:
    """What is known of the elements of groups of `size` neighbours."""

    def __init__(self, size: int, nodes: Sequence[Node], zeros: Mapping[Node, int]) -> None:
        self._size, self._zeros = size, zeros
        self._shared: dict[Node, bool] = {}
        """Values that a group shares, and whether all of a row's elements do."""
        self._rises: dict[Node, _Rise] = {}
        self._steps: dict[Node, int] = {}
        self._sampled: dict[Node, Node] = {}
        for n in nodes:
            if n.shape and n.shape[-1] % size == 0:
                self._learn(n)

    def _learn(self, n: Node) -> None:
        if n.op == "broadcast":
            (x,) = n.srcs
            if not x.shape or x.shape[-1] == 1:
                self._shared[n] = True
            elif x in self._shared:
                self._shared[n] = self._shared[x]
        elif n.op in ELEMENTWISE and all(s in self._shared for s in n.srcs):
            self._shared[n] = all(self._shared[s] for s in n.srcs)
        elif n.op == "shr" and (rise := self._rises.get(n.srcs[0])):
            by = constant_of(n.srcs[1])
            if by is not None and by >= rise.bits:
                self._shared[n] = False
        rise = self._rise(n) if n not in self._shared and n.dtype.is_int else None
        # Of more bits the signs may differ.
        if rise is not None and rise.bits <= n.dtype.bits - (n.dtype.kind == "i"):
            self._rises[n] = rise

    def _rise(self, n: Node) -> _Rise | None:
        if n.op == "arange":
            return _Rise(
                self._size.bit_length() - 1, self._size - 1, binary("and", n, self._size - 1)
            )
        rise = next((self._rises[s] for s in n.srcs if s in self._rises), None)
        if rise is None:
            return None
        if n.op == "broadcast":
            return rise
        if n.op == "cast":
            return _Rise(rise.bits, rise.most, cast(rise.offsets, n.dtype))
        other = next((s for s in n.srcs if s in self._shared), None)
        if other is None:
            return None
        value = constant_of(other)
        if n.op == "mul" and value is not None and value > 0 and value & value - 1 == 0:
            bits = rise.bits + value.bit_length() - 1
            return _Rise(bits, rise.most * value, mul(rise.offsets, value))
        if n.op == "add" and self._zeros.get(other, 0) >= rise.bits:
            return rise
        if n.op == "add" and value is not None:
            low = value & (1 << rise.bits) - 1
            if rise.most + low < 1 << rise.bits:
                return _Rise(rise.bits, rise.most + low, add(rise.offsets, low))
        return None

    # what to compute once

    def serves(self, n: Node) -> bool:
        """Whether the node itself differs between neighbours, and some of what it is made of does
        not."""
        if n in self._shared or n.op not in ELEMENTWISE:
            return False
        return self._lowest(n) is not None or any(self._pays(s) for s in n.srcs)

    def served(self, n: Node, done: Mapping[Node, Node]) -> Node:
        """The node, of operands computed once for each group; `done` has what its sources are."""
        return self._lowest(n) or rebuild(
            n, tuple([self._repeated(s, done) if self._pays(s) else done[s] for s in n.srcs])
        )

    def _lowest(self, n: Node) -> Node | None:
        """The lowest bits of numbers that rise alike in all groups."""
        if n.op != "and":
            return None
        for x, mask in (n.srcs, n.srcs[::-1]):
            rise, bits = self._rises.get(x), constant_of(mask)
            if rise is not None and bits is not None and 0 <= bits < 1 << rise.bits:
                return broadcast(binary("and", rise.offsets, bits), n.shape)
        return None

    def _pays(self, n: Node) -> bool:
        if self._shared.get(n, True):
            return False
        if n not in self._steps:
            parts = toposort([n], lambda m: m.srcs if m in self._shared else ())
            self._steps[n] = sum(
                m.op in ELEMENTWISE and not self._shared.get(m, True) for m in parts
            )
        return self._steps[n] >= LEAST_STEPS

    def _repeated(self, n: Node, done: Mapping[Node, Node]) -> Node:
        one = self._sample(n, done)
        apart = reshape(one, (*one.shape, 1))
        return reshape(broadcast(apart, (*one.shape, self._size)), n.shape)

    def _sample(self, root: Node, done: Mapping[Node, Node]) -> Node:
        """The first element of each group."""
        found = self._sampled

        def below(n: Node) -> Sequence[Node]:
            return () if n in found or (n.op == "broadcast" and self._shared.get(n)) else n.srcs

        for n in toposort([root], below):
            if n in found:
                continue
            shape = (*n.shape[:-1], n.shape[-1] // self._size)
            if n.op == "arange":
                found[n] = mul(arange(shape[-1], n.dtype), self._size)
            elif n.op == "broadcast":
                (x,) = n.srcs
                found[n] = broadcast(done[x] if self._shared.get(n) else found[x], shape)
            else:
                found[n] = node(
                    n.op,
                    n.type.with_shape(shape),
                    tuple([found[s] for s in n.srcs]),
                    **dict(n.attrs),
                )
        return found[root]
