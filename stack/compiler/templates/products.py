"""A matmul cluster: the blocked template with fused operands, and an epilogue of everything that
joined it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.core.values import Grid
from hal.tile.build import Builder, add, binary, broadcast, index, mul, transpose
from hal.tile.node import Node
from hal.tile.size import divides, hint, is_fixed
from stack.compiler.graph.access import Axis, Guard
from stack.compiler.graph.cluster import Homes
from stack.compiler.graph.expr import Apply, Expr, Read, Select, axes_of, parts, reads, uncast
from stack.compiler.graph.operands import Operands
from stack.compiler.graph.space import Group
from stack.compiler.graph.windows import NEAR, overlap
from stack.compiler.templates.blocking import (
    MatmulShape,
    lanes_of,
    part_beyond,
    part_of_run,
    round_up,
)
from stack.compiler.templates.edges import NO_LIMITS, Limits
from stack.compiler.templates.emission import Emission, TileAxis, Work, compute_dtype
from stack.compiler.templates.family import ProductTemplate
from stack.compiler.templates.instances import decompose
from stack.compiler.templates.pieces import Pieces
from stack.compiler.templates.product import (
    Elements,
    Inner,
    InPlace,
    LoadTile,
    Place,
    Product,
    Steady,
    divided,
)
from stack.compiler.templates.schedule import Choices
from stack.compiler.templates.tiles import Tiles, is_even, zero_beyond
from stack.compiler.units import UNSIGNED


def shape_of(ops: Operands, info: DeviceInfo, template: ProductTemplate[Any]) -> MatmulShape:
    """The template's problem."""
    m, n, k = ops.m[-1], ops.n[-1], ops.k[-1]
    along_m = _step(ops.a, m) == 1
    along_n = not (_step(ops.b, k) == 1 and _step(ops.b, n) != 1)
    if template.uneven_rows and (_is_uneven(ops.a, ops.m) or _is_uneven(ops.a, ops.k)):
        along_m = _run(ops.a, ops.m) >= _run(ops.a, ops.k)
    if template.uneven_rows and (_is_uneven(ops.b, ops.n) or _is_uneven(ops.b, ops.k)):
        along_n = _run(ops.b, ops.n) >= _run(ops.b, ops.k)
    deep = [] if along_m else [ops.a]
    if template.uneven_rows and not along_n:
        deep.append(ops.b)
    short = template.uneven_rows and _run(ops.b, ops.n) < NEAR
    uneven = [e for e in deep if _is_uneven(e, ops.k)]
    k_run = k.size if uneven else 0
    left, right = (x.dtype for x in ops.product.srcs)
    total = compute_dtype(ops.product.dtype)
    types = _exact(ops.a, left), _exact(ops.b, right), total
    # What lies in runs along k is packed as far as each of them goes, in rows.
    along_k = not along_m and not along_n
    plain = total.is_float and not along_m and (along_k or _are_even(ops))
    packed = not plain or template.packed(*_sizes(ops, along_k))
    units = template.units(*types, info) if packed else ()
    fitting = (u for u in units if not k_run or (not u.register and divides(u.together, k_run)))
    unit = next(fitting, None)
    if unit is None and uneven == [ops.b]:
        # Across runs B is read element by element: less work than to multiply without a unit.
        unit = next((u for u in units if not u.register), None)
        along_n, k_run = (along_n, k_run) if unit is None else (True, 0)
    inputs = total if unit is None or unit.together == 1 else unit.inputs
    own = along_m and not (unit is not None and unit.register) and not _moved(types[0], unit)
    taps = _taps(ops, inputs, 1 if unit is None else unit.together) if own else 0
    return MatmulShape(
        batch=prod(a.size for a in ops.batch),
        m=prod(a.size for a in ops.m),
        n=prod(a.size for a in ops.n),
        k=prod(a.size for a in ops.k),
        a_contiguous="m" if along_m else "k",
        b_contiguous="n" if along_n else "k",
        dtype=compute_dtype(left) if unit is None else unit.inputs,
        accumulate=total,
        m_run=m.size if along_m and (taps or _is_uneven(ops.a, ops.m)) else 0,
        n_run=n.size if along_n and _is_uneven(ops.b, ops.n) and not short else 0,
        k_run=k_run,
        together=1 if unit is None else unit.together,
        right=None if unit is None else unit.right,
        moved=_moved(types[0], unit),
        tile=unit if unit is not None and unit.register else None,
        apart=along_m and _farthest(ops.a, ops.m) > _farthest(ops.a, ops.k),
        taps=taps if template.uneven_rows else 0,
        beyond=ops.longer[0].size - m.size if ops.longer else 0,
    )


def _taps(ops: Operands, packed: DType, together: int) -> int:
    """What the depth of blocks is a multiple of where windows of A, which would be packed in this
    type, are read in place; 0: they cannot be."""
    e, last = ops.a, ops.k[-1]
    if not (isinstance(e, Read) and _is_plain(e) and e.dtype is packed and len(ops.k) > 1):
        return 0
    fixed = all(is_fixed(a.size) for a in (*ops.m, *ops.k))
    words = together == 1 or (last.size == together and _step(e, last) == 1)
    if not (fixed and words and overlap(e.offset, ops.m, ops.k)):
        return 0
    return prod(a.size for a in ops.k[1:])


def _in_place(ops: Operands, shape: MatmulShape, emission: Emission) -> InPlace | None:
    """How columns of windows are read where they are."""
    if not shape.taps:
        return None
    outer = ops.k if shape.together == 1 else ops.k[:-1]
    axis, element = ops.longer or (ops.m[-1], ops.a)

    def load(
        b: Builder, batch: Node, row: Node, depth: Sequence[Node], size: tuple[int, int]
    ) -> Node:
        before, within = divided(row, ops.m[-1].size)
        rows = decompose(before, ops.m[:-1])
        at = tuple(rows[a] for a in ops.m[:-1])
        known = (*depth, *((index(0),) if shape.together > 1 else ()))
        first = add(mul(before, axis.size), within)
        col = index(0)
        for a, number in zip(ops.k, known, strict=True):
            col = add(mul(col, a.size), number)
        axes = (
            TileAxis(axis, first, size[0], None, ops.m[:-1], True, at=(*at, within)),
            TileAxis(ops.k[-1], col, size[1], None, ops.k[:-1], at=known),
        )
        scope = Tiles(emission, decompose(batch, ops.batch), axes)
        return broadcast(scope.tile(element), size)

    return InPlace(tuple(a.size for a in outer), load)


def with_longer_runs(
    ops: Operands, homes: Homes, info: DeviceInfo, template: ProductTemplate[Any]
) -> Operands:
    """The same product, in which the last register tile of a run reads beyond it, where none
    divides runs and the buffer goes on."""
    shape, m, read = shape_of(ops, info, template), ops.m[-1], ops.a
    lanes = lanes_of(shape, info)
    if not shape.taps or part_of_run(shape.m_run, shape.n, lanes, info):
        return ops
    part = part_beyond(shape.m_run, shape.n, lanes, info)
    if not part or not isinstance(read, Read):
        return ops
    longer, home = Axis(round_up(m.size, part)), homes[read.root]
    terms = tuple((longer if a is m else a, c) for a, c in read.offset.terms)
    offset = replace(read.offset, terms=terms)
    (low, high), end = offset.bounds(), home.base + read.root.type.size
    if home.run != home.stride or low != read.offset.bounds()[0] or high >= end:
        return ops
    axes = read.axes - {m} | {longer}
    return replace(ops, longer=(longer, Read(read.dtype, axes, read.root, offset, ())))


def _sizes(ops: Operands, along_k: bool) -> tuple[int, int]:
    """The rows and the depth of a product, for the question whether its right operand is packed for
    a unit. Along n that takes less time than along k, so that half as many rows are worth it: of
    4096 squared of bfloat16, 2 rows take 0.4 of the time unpacked, 8 rows 0.8, 12 rows as much and
    16 rows 1.2 (one thread, Zen 4)."""
    rows, depth = (prod(a.size for a in group) for group in (ops.m, ops.k))
    return (rows if along_k else 2 * rows), depth


def _are_even(ops: Operands) -> bool:
    """Whether all elements of both operands lie evenly, and none is left out."""
    groups = (ops.a, ops.m), (ops.a, ops.k), (ops.b, ops.k), (ops.b, ops.n)
    return not any(_is_uneven(e, group) for e, group in groups)


def _moved(left: DType, unit: MatrixUnit | None) -> int:
    """What is added to integers with a sign for a unit that takes none."""
    signs = unit is not None and UNSIGNED.get(left) is unit.inputs
    return 1 << (left.bits - 1) if signs else 0


def _exact(e: Expr, dtype: DType) -> DType:
    """The narrowest integer type that holds all that an operand of that type may be."""
    while isinstance(e, Apply) and e.node.op == "cast":
        (e,) = e.args
        narrower = e.dtype.is_int and dtype.is_int and e.dtype.bits < dtype.bits
        if not narrower or (e.dtype.kind, dtype.kind) == ("i", "u"):
            break
        dtype = e.dtype
    return dtype


def with_uneven_rows(ops: Operands) -> Operands:
    """The same product with the operand that lies unevenly on the left, or the one of longer runs
    where both do; batches for which the other operand is the same are rows of it, too."""
    if _panels(ops):
        return ops
    left, right = ops.product.srcs
    longer = not _in_runs(ops.a, ops.m, ops.k) or _run(ops.a, ops.m) < _run(ops.b, ops.n)
    turned = _in_runs(ops.b, ops.n, ops.k) and longer
    if turned and left.dtype is right.dtype:
        ops = replace(ops, a=ops.b, b=ops.a, m=ops.n, n=ops.m)
    if not _in_runs(ops.a, ops.m, ops.k):
        return ops
    shared = tuple(x for x in ops.batch if x not in ops.b.axes)
    batch = tuple(x for x in ops.batch if x in ops.b.axes)
    return replace(ops, batch=batch, m=shared + ops.m)


def _panels(ops: Operands) -> int:
    """How wide the panels are in which all of B lies in memory as products pack it; 0: it lies
    otherwise, or is computed."""
    e, (*outer, n) = ops.b, ops.n
    if not isinstance(e, Read) or e.guards or len(outer) != 1 or len(ops.k) != 1:
        return 0
    (k,), sizes = ops.k, (outer[0].size, n.size, ops.k[0].size)
    if not all(map(is_fixed, sizes)) or e.dtype is not compute_dtype(ops.product.dtype):
        return 0
    steps = tuple(e.offset.coefficient(x) for x in (outer[0], k, n))
    return n.size if steps == (k.size * n.size, n.size, 1) else 0


def _run(e: Expr, group: Group) -> int:
    """How many neighbours along a group lie near each other and evenly; 0 where they are apart, as
    those are whose distance is data: it grows with the sizes."""
    step = _step(e, group[-1])
    if not is_fixed(step) or not 1 <= abs(step) <= NEAR:
        return 0
    return hint(group[-1].size if _is_uneven(e, group) else prod(x.size for x in group))


def _step(e: Expr, axis: Axis) -> int:
    """How far apart in memory neighbours along an axis are, in the first buffer that the operand
    reads."""
    found = [r for r in reads(e) if axis in r.axes]
    return found[0].offset.coefficient(axis) if found else 0


def _tile_axis(
    group: Group, start: Place, width: int, limit: Node | None, within: bool
) -> TileAxis:
    """A group of axes as a tile dimension."""
    *outer, axis = group
    if isinstance(start, Node):
        return TileAxis(axis, start, width, limit, group[:-1], within)
    before, inner = start
    places = decompose(before, outer)
    base = add(mul(before, axis.size), inner)
    known = (*(places[a] for a in outer), inner)
    return TileAxis(axis, base, width, limit, group[:-1], within, at=known)


def _farthest(e: Expr, group: Group) -> int:
    """The greatest step along one of a group's axes, in the first buffer that the operand reads."""
    return max((abs(hint(_step(e, a))) for a in group), default=0)


def emit_product(
    ops: Operands, work: Work, emission: Emission, template: ProductTemplate[Any], choices: Choices
) -> Grid:
    """Emit the matmul with its epilogue; give its launch grid."""
    shape = shape_of(ops, emission.info, template)

    def load(
        e: Expr,
        rows: Group,
        cols: Group,
        runs: Group = (),
        holding: frozenset[Guard] = frozenset(),
    ) -> LoadTile:
        def tile(
            b: Builder, batch: Node, row: Node, col: Place, shape: tuple[int, int], limits: Limits
        ) -> Node:
            if (
                template.uneven_rows and shape[0] > 1 == shape[1]
            ):  # a column is read as the row of neighbours that it is
                starts = (cols, col), (rows, row)
                scope = scope_at(batch, starts, shape[::-1], limits[::-1], runs)
                scope.holding = holding
                return transpose(broadcast(zero_beyond(scope, e), shape[::-1]), (1, 0))
            scope = scope_at(batch, ((rows, row), (cols, col)), shape, limits, runs)
            scope.holding = holding
            return broadcast(zero_beyond(scope, e), shape)

        return tile

    def epilogue(b: Builder, acc: Node, batch: Node, m: Place, n: Node, limits: Limits) -> None:
        scope = scope_at(batch, ((ops.m, m), (ops.n, n)), acc.shape, limits)
        scope.hold(ops.product, acc)
        for root in work.nest.own:
            if root not in scope.local:
                scope.local[root] = broadcast(scope.root(root, work), scope.shape)
            scope.keep(root, work)

    def scope_at(
        batch: Node,
        starts: Sequence[tuple[Group, Place]],
        shape: Sequence[int],
        limits: Limits,
        runs: Group = (),
    ) -> Tiles:
        axes = tuple(
            _tile_axis(group, start, width, limit, group == runs)
            for (group, start), width, limit in zip(starts, shape, limits, strict=True)
        )
        return Tiles(emission, decompose(batch, ops.batch), axes)

    def runs(along: str) -> Group:
        """The axes along which an operand's tiles are of one run."""
        found = {"m": (shape.m_run, ops.m), "n": (shape.n_run, ops.n), "k": (shape.k_run, ops.k)}
        run, group = found[along]
        return group if template.uneven_rows and run else ()

    def inner(e: Expr, rows: Group, cols: Group, runs: Group) -> Inner | None:
        found = (g for x in parts(e) if isinstance(x, Read | Select) for g in x.guards)
        known = (g for g in found if all(a.source is None for a, _ in g.value.terms))
        guards = tuple(dict.fromkeys(known))
        if not (template.uneven_rows and guards):
            return None

        def holds(batch: Node, row: Node, col: Place, shape: tuple[int, int]) -> Node | None:
            starts = (rows, row), (cols, col)
            return scope_at(batch, starts, shape, NO_LIMITS, runs).all_hold(guards)

        return Inner(holds, load(e, rows, cols, runs, frozenset(guards)))

    def pieces(e: Expr, rows: Group, cols: Group, along: int) -> Pieces | None:
        if not (_is_uneven(e, rows) or _is_uneven(e, cols) or _overlaps(e, rows, cols)):
            return None
        return Pieces.of(emission, e, ops.batch, (rows, cols), along)

    product = Product(
        shape,
        _elements(ops, work),
        load(ops.a, ops.m, ops.k, runs(shape.a_contiguous)),
        load(ops.b, ops.k, ops.n, runs(shape.b_contiguous)),
        epilogue,
        _is_uneven(ops.a, ops.k if shape.a_contiguous == "m" else ops.m),
        bool(shape.n_run)
        or (not (template.uneven_rows and shape.b_contiguous == "k") and _is_uneven(ops.b, ops.k)),
        _panels(ops) if shape.together == 1 else 0,
        pieces(ops.a, ops.m, ops.k, "mk".index(shape.a_contiguous)),
        pieces(ops.b, ops.k, ops.n, "kn".index(shape.b_contiguous)),
        _steady(ops, shape, emission, template),
        _in_place(ops, shape, emission),
        inner(ops.a, ops.m, ops.k, runs(shape.a_contiguous)),
        _is_plain(uncast(ops.a)) and not _is_uneven(ops.a, ops.m) and not _is_uneven(ops.a, ops.k),
        is_there(emission, ops),
    )
    chosen = choices.get(shape, template.search.schedule) if template.search else None
    return template.emit(emission.b, product, emission.info, chosen)


def _steady(
    ops: Operands, shape: MatmulShape, emission: Emission, template: ProductTemplate[Any]
) -> Steady | None:
    """How columns of windows are loaded: the depth without the axes that are uneven, or along
    which edges lie."""
    if not (template.uneven_rows and shape.m_run):
        return None
    cut = _steady_part(ops.a, ops.k)
    if cut is None:
        return None
    at, along = cut
    parts = ops.k[:at], ops.k[at:]

    def load(
        b: Builder,
        batch: Node,
        row: Node,
        depth: tuple[Node, Node],
        rows: int,
        most: Node | None,
        skip: Node | None,
    ) -> Node:
        places = [decompose(n, part) for n, part in zip(depth, parts, strict=True)]
        known = tuple(found[a] for found, part in zip(places, parts, strict=True) for a in part)
        col = add(mul(depth[0], prod(a.size for a in parts[1])), depth[1])
        axes = (
            TileAxis(ops.k[-1], col, 1, None, ops.k[:-1], at=known),
            TileAxis(ops.m[-1], row, rows, most, ops.m[:-1], skip is None, skip),
        )
        scope = Tiles(emission, decompose(batch, ops.batch), axes)
        return broadcast(zero_beyond(scope, ops.a), (1, rows))

    return Steady(prod(a.size for a in parts[1]), along, load)


def is_there(emission: Emission, ops: Operands) -> Callable[[Node], Node] | None:
    """Whether a batch has an operand that is not zero; None where that is not known. Both operands
    are zero where numbers that choose them for the batch are out of range."""
    left, right = (_choosing(e, ops.batch) for e in (ops.a, ops.b))
    if not left or not right:
        return None

    def met(batch: Node) -> Node:
        scope = Tiles(emission, decompose(batch, ops.batch))
        return binary("or", scope.mask(left), scope.mask(right))

    return met


def _choosing(e: Expr, batch: Group) -> tuple[Guard, ...]:
    """The guards without which a whole batch of an operand is zero."""
    e = uncast(e)
    if not isinstance(e, Select) or e.fill:
        return ()
    chosen = (g for g in e.guards if any(a.source is not None for a, _ in g.value.terms))
    return tuple(g for g in chosen if axes_of(g.value) <= set(batch))


def _is_plain(e: Expr) -> bool:
    """Whether all elements are of one buffer, at places that no data say."""
    return isinstance(e, Read) and not e.guards and all(a.source is None for a, _ in e.offset.terms)


def _is_uneven(e: Expr, group: Group) -> bool:
    """Whether some element that is read lies unevenly along axes, or is left out along them."""
    found = reads(e)
    steps = ([r.offset.coefficient(a) for a in group] for r in found)
    guards = (g.value.coefficient(a) for r in found for g in r.guards for a in group)
    return any(guards) or not all(is_even(factors, group) for factors in steps)


def _in_runs(e: Expr, rows: Group, depth: Group) -> bool:
    """Whether rows lie unevenly, or are windows that see the same elements."""
    return _is_uneven(e, rows) or any(overlap(r.offset, rows, depth) for r in reads(e))


def _steady_part(e: Expr, group: Group) -> tuple[int, int] | None:
    """Where a group's axes are cut in two, and which part it is along which elements lie evenly and
    none is left out: the one of more elements; None where there is no such part beside another."""
    best: tuple[int, tuple[int, int]] | None = None
    for at in range(1, len(group)):
        for along, part in enumerate((group[:at], group[at:])):
            size = hint(prod(a.size for a in part))
            if not _is_uneven(e, part) and (best is None or size > best[0]):
                best = size, (at, along)
    return None if best is None else best[1]


def _overlaps(e: Expr, rows: Group, cols: Group) -> bool:
    """Whether rows that are read begin before the ones before them end, as windows do."""
    for r in reads(e):
        lines = [(abs(r.offset.coefficient(g[-1])), prod(a.size for a in g)) for g in (rows, cols)]
        (step, size), (apart, _) = sorted(lines)
        if 0 < apart < step * size:
            return True
    return False


def _elements(ops: Operands, work: Work) -> Elements:
    """What the operands are of: they are multiplied in a narrow type only if both are of it."""
    wide = compute_dtype(ops.product.srcs[0].dtype)
    stored = max((r.dtype for x in (ops.a, ops.b) for r in reads(x)), key=lambda d: d.nbytes)
    multiplied = ops.a.dtype if ops.a.dtype is ops.b.dtype else wide
    nest = work.nest
    return Elements(stored, multiplied, len(nest.own) + sum(map(len, nest.reads.values())))
