"""Products in tile kernels: loops that add the product of two loaded tiles to sums in scratch
memory, and whether the instances of a mesh can share what such a loop loads.

A tile is the same along a row of the mesh if where it lies depends on the instance's number by way
of its quotient by the columns alone; along a column, by way of the remainder and of the quotient by
all of the mesh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.build import binary, program_id
from hal.tile.kernel import GLOBAL, SCRATCHPAD, Access, For, Kernel, Load, Memory, Statement, Store
from hal.tile.node import Node, toposort
from hal.tile.walk import reads, statements


def same_block(cores: int) -> str:
    """In the text, whether the instances that cores are at make up one mesh: where a row of the
    grid ends within a mesh, some cores have none or are at the next row's."""
    return f"hal_grid[0] % {cores} == 0"


@dataclass(frozen=True, slots=True)
class LoadedTile:
    """A tile that is loaded: `depth` is its axis along k, `run` the axis along which its elements
    lie side by side, `casts` the types that they are converted to before they are multiplied."""

    load: Load
    depth: int
    run: int
    casts: tuple[DType, ...]
    packing: tuple[Statement, ...] = ()
    """What fills the scratch memory that it is loaded from, by copies; none for a tile that is a
    block of main memory."""

    @property
    def other(self) -> int:
        """The axis that is not along k."""
        return 1 - self.depth


@dataclass(frozen=True, slots=True)
class ProductLoop:
    """A loop that is a product of a and b, added to `sums`, which are of so many rows and columns.
    It goes along k to `stop` in steps of `step`. `together` is the mesh whose instances may share
    pieces, or None."""

    a: LoadedTile
    b: LoadedTile
    index: Node
    stop: int
    step: int
    sums: Memory
    rows: int
    columns: int
    together: tuple[int, int] | None

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.sums.dtype


def products(kernel: Kernel, info: DeviceInfo) -> dict[int, ProductLoop]:
    """The products of a kernel, by the number of the statement of its body."""
    found = ((i, product(s, info)) for i, s in enumerate(kernel.body))
    return {i: p for i, p in found if p is not None}


def product(s: Statement, info: DeviceInfo) -> ProductLoop | None:
    """The product that a statement is, if it is one and nothing else."""
    if not isinstance(s, For) or s.carried:
        return None
    if any(n.op != "const" for n in (s.start, s.stop, s.step)) or s.start["value"] != 0:
        return None
    *first, store = s.body
    if not isinstance(store, Store) or store.value.op != "dot":
        return None
    loads = _loads(first)
    left, right, before = store.value.srcs
    if loads is None or len(loads) != 3 or not _adds(loads.get(before), store):
        return None
    a, b = _operand(left, loads, 1), _operand(right, loads, 0)
    if a is None or b is None or s.step["value"] != left.shape[1]:
        return None
    ends = {x.load.source.limits[x.depth] for x in (a, b) if not x.packing}
    # As many rows and columns have to be valid in every step.
    limits = [x.load.source.limits[x.other] for x in (a, b)]
    if len(ends) > 1 or s.index in set(toposort(n for n in limits if n is not None)):
        return None
    mesh = info.limits.mesh
    # Whether a is the same along rows of the mesh, and b along columns
    rows, columns = mesh
    number = program_id(0)
    row = binary("div", number, columns)
    column, block = binary("rem", number, columns), binary("div", row, rows)
    at_row, at_column = {s.index, row}, {s.index, column, block}
    shared = not _varies(a, at_row) and not _varies(b, at_column)
    rows, columns = store.value.shape
    stop, step = int(s.stop["value"]), int(s.step["value"])
    together = mesh if shared else None
    return ProductLoop(a, b, s.index, stop, step, store.target.memory, rows, columns, together)


Loads = dict[Node, tuple[Load, tuple[Statement, ...]]]
"""Loads by what they give, each with the statements that stand between the one before and it."""


def _loads(block: Sequence[Statement]) -> Loads | None:
    """The loads of a block that ends with one."""
    found: Loads = {}
    packing: list[Statement] = []
    for s in block:
        if not isinstance(s, Load):
            packing.append(s)
            continue
        found[s.result] = (s, tuple(packing))
        packing = []
    return None if packing else found


def _adds(found: tuple[Load, tuple[Statement, ...]] | None, store: Store) -> bool:
    """Whether a store puts a whole tile where a load took it, row after row from the start."""
    before, packing = found or (None, ())
    if before is None or packing or before.source != store.target:
        return False
    target = store.target
    steps = [n["value"] if n.op == "const" else None for n in target.strides]
    dense = steps == [store.value.shape[1], 1] and target.limits == (None, None)
    at_start = target.offset.op == "const" and target.offset["value"] == 0
    return dense and at_start and target.memory.space == SCRATCHPAD


def _operand(n: Node, loads: Loads, depth: int) -> LoadedTile | None:
    casts: list[DType] = []
    while n.op == "cast":
        casts.append(n.dtype)
        n = n.srcs[0]
    load, packing = loads.get(n, (None, ()))
    space = SCRATCHPAD if packing else GLOBAL
    if load is None or load.source.memory.space != space or load.other is not None:
        return None
    steps = [s["value"] if s.op == "const" else 0 for s in load.source.strides]
    if 1 not in steps or min(steps) < 1:
        return None
    run = 1 if steps[1] == 1 else 0
    return LoadedTile(load, depth, run, tuple(reversed(casts)), packing)


def _varies(x: LoadedTile, known: set[Node]) -> bool:
    """Whether where a tile comes from depends on more than known values."""
    inside = [x.load, *statements(x.packing)]
    known = known | {s.index for s in inside if isinstance(s, For)}
    above = _above([n for s in inside for n in reads(s)], known)
    return any(not n.srcs and n.op not in ("const", "scalar") for n in above)


def depends_on(access: Access, known: Collection[Node], on: Collection[Node] = ()) -> bool:
    """Whether where an access is depends on some values; without any on whatever is not constant
    and not known."""
    wanted = [access.offset, *access.strides, *(n for n in access.limits if n is not None)]
    above = _above(wanted, known)
    if on:
        return any(n in on for n in above)
    return any(not n.srcs and n.op not in ("const", "scalar") for n in above)


def _above(roots: Sequence[Node], known: Collection[Node]) -> Iterator[Node]:
    """What the roots are computed from, but for the known values and what is below them."""
    stack, seen = [*roots], set(roots)
    while stack:
        n = stack.pop()
        if n in known:
            continue
        yield n
        fresh = [s for s in n.srcs if s not in seen]
        seen.update(fresh)
        stack += fresh
