"""Where a kernel's tiles lie on the lanes of a group: a pure function of the kernel.

What is stored or combined says how it wants its elements, and loads give them so as long as
neighbouring lanes then still read neighbours in memory. Statements are visited from the last to the
first, so that every use of a value is known before the value's layout is chosen. Sums of matrix
products are laid out in blocks, and what is computed with them follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.kernel import (
    Access,
    Atomic,
    Copy,
    For,
    Gather,
    Kernel,
    Load,
    Scatter,
    Statement,
    Store,
)
from hal.tile.node import Node, toposort
from hal.tile.ops import ELEMENTWISE
from hal.tile.walk import Block, blocks, reads, statements
from stack.compiler.lower.simt.layout import (
    Layout,
    blocked,
    coalesced,
    fragments,
    in_line,
    power,
    without,
)
from stack.compiler.units import SUBGROUP, unit_of_group_dot

Work = Store | Copy | Scatter | Atomic

LEAST_LANES = 64
"""Fewer lanes would leave units idle that run as many in step."""
SHARE, SUMS = 4, 32
"""Elements of a tile, and sums of a product, that a lane should have."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """The layouts of a kernel on a group of `lanes`: of `tiles` that statements define, of the
    elements that a statement `works` on, and of the `operands` of reductions and scans (one each)
    and products (a, b and the sums). `fixed` are those that expressions have by themselves."""

    lanes: int
    tiles: dict[Node, Layout]
    works: dict[Work, Layout]
    operands: dict[Node, tuple[Layout, ...]]
    fixed: dict[Node, Layout | None]
    wide: MatrixUnit | None = None
    """The unit of several subgroups for which the kernel's product is laid out."""


def group_size(kernel: Kernel, info: DeviceInfo) -> int:
    """The lanes for a kernel's largest tiles: a power of two, at most what the device has."""
    nodes = [n for s in statements(kernel.body) for n in toposort(expressions(s))]
    products = [_lanes_of(n, info) for n in nodes if n.op == "dot"]
    wanted = max(products or [-(-n.type.size // SHARE) for n in nodes], default=1)
    most = 1 << (info.limits.lanes.bit_length() - 1)
    return min(max(power(wanted), LEAST_LANES), most)


def _lanes_of(n: Node, info: DeviceInfo) -> int:
    """The lanes for a product: a subgroup for the rows of a matrix unit, or one for some sums."""
    unit = unit_of_group_dot(n, info)
    return -(-n.type.size // SUMS) if unit is None else n.shape[0] // unit.m * SUBGROUP


def is_by_unit(n: Node) -> bool:
    """Whether a product is a matrix unit's: all others are computed in the type of their sums."""
    return n.srcs[0].dtype is not n.dtype


def sums_of(n: Node, lanes: int, *, whole_rows: bool) -> Layout:
    """The layout of a product's sums."""
    rows, columns = n.shape
    if is_by_unit(n):
        return fragments((rows, columns), lanes, whole_rows=whole_rows)
    return blocked((rows, columns), lanes)


def expressions(s: Statement) -> Iterator[Node]:
    """What a statement itself computes."""
    yield from reads(s)
    if isinstance(s, For):
        yield from (c.next for c in s.carried)


def map_kernel(
    kernel: Kernel,
    lanes: int,
    together_nbytes: int = 1,
    wide: Callable[[Node], MatrixUnit | None] = lambda n: None,
) -> Mapping:
    """The layouts of a kernel's tiles, for lanes that move so many bytes of neighbours at once.
    `wide` gives the unit of several subgroups for a product, if it alone goes along rows."""
    found = _Map(lanes, kernel, together_nbytes, wide)
    found.block(kernel.body)
    return Mapping(lanes, found.tiles, found.works, found.operands, found.fixed, found.wide)


def order_of(access: Access) -> list[int]:
    """The axes of a block, those first along which elements are nearest in memory."""
    steps = [s["value"] if s.op == "const" and s["value"] else 1 << 62 for s in access.strides]
    return sorted(range(len(steps)), key=lambda axis: (abs(steps[axis]), -axis))


def suits(access: Access, layout: Layout) -> bool:
    """Whether neighbouring lanes reach neighbours in memory, where the block has any."""
    shared = [axis for axis, s in enumerate(layout) if s.lanes > 1]
    near = [
        axis
        for axis, (s, step) in enumerate(zip(layout, access.strides, strict=True))
        if s.size > 1 and step.op == "const" and step["value"] == 1
    ]
    return not shared or not near or min(shared, key=lambda a: layout[a].every) in near


class _Map:
    """The choice in the making: `asked` are the layouts in which a value is used."""

    def __init__(
        self,
        lanes: int,
        kernel: Kernel,
        together_nbytes: int,
        wide: Callable[[Node], MatrixUnit | None],
    ) -> None:
        self.lanes, self._together_nbytes = lanes, together_nbytes
        nodes = {n for s in statements(kernel.body) for n in toposort(expressions(s))}
        along = [n for n in nodes if n.op in ("dot", "reduce", "scan")]
        alone = along[0] if len(along) == 1 and along[0].op == "dot" else None
        self.wide = None if alone is None else wide(alone)
        self._whole_rows = len(along) > 1 or self.wide is not None
        """Whether something goes along rows beside a product: then subgroups have whole ones. So
        they do for a unit of several."""
        self.tiles: dict[Node, Layout] = {}
        self.works: dict[Work, Layout] = {}
        self.operands: dict[Node, tuple[Layout, ...]] = {}
        self.asked: dict[Node, list[Layout]] = {}
        self._seen: set[tuple[Node, Layout]] = set()
        self.fixed: dict[Node, Layout | None] = {}
        loads = (s for s in statements(kernel.body) if isinstance(s, Load))
        self._orders: dict[Node, list[int] | None] = {
            s.result: order_of(s.source) for s in loads if len(s.result.shape) > 1
        }
        self._fix(kernel.body)

    def _fix(self, block: Block) -> None:
        """The values that loops carry and that follow a product."""
        for s in block:
            for inner in blocks(s):
                self._fix(inner)
            if isinstance(s, For):
                for c in s.carried:
                    layout = self._fixed_of(c.next)
                    self.fixed[c.var] = self.fixed[c.result] = layout

    def _fixed_of(self, root: Node) -> Layout | None:
        """The layout that an expression has by itself, because of a product or a scan in it."""
        for n in toposort([root]):
            if n not in self.fixed:
                if n.op == "dot":
                    self.fixed[n] = sums_of(n, self.lanes, whole_rows=self._whole_rows)
                elif n.op == "scan":
                    self.fixed[n] = in_line(n.shape, self.lanes, n["axis"])
                else:
                    of = [self.fixed[s] for s in n.srcs]
                    if n.op == "transpose" and of[0] is not None:
                        self.fixed[n] = tuple(of[0][axis] for axis in n["perm"])
                    elif n.op == "reduce" and of[0] is not None:
                        self.fixed[n] = without(of[0], n["axis"])
                    else:
                        self.fixed[n] = (
                            next((x for x in of if x is not None), None)
                            if n.op in ELEMENTWISE
                            else None
                        )
        return self.fixed[root]

    def _order(self, root: Node) -> list[int] | None:
        """The axes of an expression, those first along which its loads are nearest in memory."""
        for n in toposort([root]):
            if n not in self._orders:
                of = [self._orders[s] for s in n.srcs]
                if n.op == "transpose" and of[0] is not None:
                    self._orders[n] = [n["perm"].index(axis) for axis in of[0]]
                else:
                    same = n.op in ELEMENTWISE or (
                        n.op == "broadcast" and n.shape == n.srcs[0].shape
                    )
                    self._orders[n] = next((x for x in of if x is not None), None) if same else None
        return self._orders[root]

    def _preferred(self, n: Node) -> Layout:
        own = self._fixed_of(n)
        return own or coalesced(n.shape, self.lanes, self._order(n), self._together(n.dtype))

    def _together(self, dtype: DType) -> int:
        """Neighbours that a lane moves at once: bools are moved one by one."""
        return 1 if dtype is DType.BOOL else max(1, self._together_nbytes // dtype.nbytes)

    def _near(self, access: Access, shape: tuple[int, ...], dtype: DType) -> Layout:
        """For what lies in memory: neighbours there by one lane, as many as it moves at once."""
        order = order_of(access)
        steps = [access.strides[axis] for axis in order if shape[axis] > 1][:1]
        near = any(step.op == "const" and step["value"] == 1 for step in steps)
        return coalesced(shape, self.lanes, order, self._together(dtype) if near else 1)

    # statements, the last first

    def block(self, block: Block) -> None:
        for s in reversed(block):
            match s:
                case Store(target=access, value=value):
                    own = self._fixed_of(value)
                    if own is None or not suits(access, own):
                        own = self._near(access, value.shape, value.dtype)
                    self._work(s, own, (value,))
                case Scatter(index=index, value=value, mask=mask):
                    layout = self._preferred(value)
                    self._work(s, layout, (index, value, mask))
                case Atomic(index=index, value=value, mask=mask):
                    layout = self._preferred(value)
                    self._work(s, layout, (index, value, mask))
                case Copy(source=access, shape=shape):
                    self._work(s, coalesced(shape, self.lanes, order_of(access)), ())
                case Load(result=result, source=access):
                    own = self._near(access, result.shape, result.dtype)
                    asked = (
                        layout for layout in self.asked.get(result, ()) if suits(access, layout)
                    )
                    self.tiles[result] = next(asked, own)
                case Gather(result=result, index=index, mask=mask):
                    self.tiles[result] = self._chosen(result) or coalesced(index.shape, self.lanes)
                    self._ask((index, mask), self.tiles[result])
                case For():
                    self._loop(s)
                case _:
                    for inner in reversed(blocks(s)):
                        self.block(inner)
            self._ask([n for n in reads(s) if not n.shape], ())

    def _work(self, s: Work, layout: Layout, used: Sequence[Node | None]) -> None:
        self.works[s] = layout
        self._ask(used, layout)

    def _chosen(self, result: Node) -> Layout | None:
        return next(iter(self.asked.get(result, ())), None)

    def _loop(self, s: For) -> None:
        for c in s.carried:
            layout = self.fixed[c.var] or self._chosen(c.result) or self._preferred(c.next)
            self.tiles[c.var] = self.tiles[c.result] = layout
            self._ask((c.next,), layout)
        self.block(s.body)
        for c in s.carried:
            self._ask((c.init,), self.tiles[c.var])

    # expressions

    def _ask(self, roots: Sequence[Node | None], layout: Layout) -> None:
        """Note that the elements of expressions are wanted in a layout."""
        stack = [(n, layout) for n in roots if n is not None]
        while stack:
            n, wanted = stack.pop()
            if (n, wanted) in self._seen:
                continue
            self._seen.add((n, wanted))
            if n.op == "var":
                self.asked.setdefault(n, []).append(wanted)
            elif n.op in ("reduce", "scan", "dot"):
                stack.extend(self._combined(n))
            else:
                stack.extend(moved(n, wanted))

    def _combined(self, n: Node) -> Iterator[tuple[Node, Layout]]:
        if n in self.operands:
            return
        if n.op == "dot":
            sums = sums_of(n, self.lanes, whole_rows=self._whole_rows)
            self.operands[n] = (*map(self._preferred, n.srcs[:2]), sums)
        elif n.op == "scan":
            self.operands[n] = (in_line(n.shape, self.lanes, n["axis"]),)
        else:
            self.operands[n] = (self._preferred(n.srcs[0]),)
        yield from zip(n.srcs, self.operands[n], strict=True)


def moved(n: Node, layout: Layout) -> Iterator[tuple[Node, Layout]]:
    """The sources of a node with the layouts in which they give its elements where they are wanted;
    a source whose elements come from elsewhere is left out."""
    if n.op == "broadcast":
        (x,) = n.srcs
        kept = layout[len(layout) - len(x.shape) :]
        one = coalesced((1,), 1)[0]
        yield x, tuple(one if d == 1 else s for d, s in zip(x.shape, kept, strict=True))
    elif n.op == "transpose":
        yield n.srcs[0], tuple(layout[n["perm"].index(axis)] for axis in range(len(layout)))
    elif n.op == "reshape":
        (x,) = n.srcs
        left = [s for s in layout if s.size != 1]
        if [s.size for s in left] == [d for d in x.shape if d != 1]:
            one = coalesced((1,), 1)[0]
            yield x, tuple(one if d == 1 else left.pop(0) for d in x.shape)
    else:
        yield from ((s, layout) for s in n.srcs)
