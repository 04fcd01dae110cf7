"""Where roots live, against numpy; which nodes become roots."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given

from hal.core.dtypes import DType
from hal.tile.node import Node, Type, toposort
from stack import ops as g
from stack.compiler.graph.access import Affine, Materialise, Want, Wants, axis_index
from stack.compiler.graph.prepare import prepare
from stack.compiler.graph.roots import Home, base, place
from stack.compiler.graph.saved import choose_roots
from stack.compiler.graph.solve import fuse, stored_roots
from stack.compiler.graph.space import Space, solved
from stack.compiler.program import GraphRequest
from tests.compiler.graphs import requests
from tests.compiler.growing import Growing
from tests.compiler.test_random_graphs import budget

F = DType.F32


def source(slot: int, *shape: int) -> Node:
    return g.input(slot, Type(shape, F))


def placed(*outputs: Node) -> tuple[GraphRequest, dict[Node, Home], list[int]]:
    inputs = tuple(n for n in toposort(outputs) if n.op == "input")
    request = prepare(GraphRequest(outputs, inputs))
    homes, temps = place(request, choose_roots(request))
    return request, homes, temps


def elements(home: Home, size: int) -> list[int]:
    """The buffer's elements that a root of a home has, in the root's order."""

    def read(space: Space) -> tuple[Space, Affine] | Want:
        wants = Wants()
        found = home.offset(axis_index(space.axes), wants.regroup)
        return wants.first or (space, found)

    done = solved(Space.of(((size, False),)), read)
    assert not isinstance(done, Materialise)
    space, offset = done
    places = product(*(range(a.size) for a in space.axes))
    steps = [offset.coefficient(a) for a in space.axes]
    return [offset.const + int(np.dot(steps, at)) for at in places]


def test_pieces_of_a_concatenation_live_in_it() -> None:
    x, y, z = source(0, 2, 3), source(1, 2, 1), source(2, 2, 4)
    joined = g.concat([g.neg(x), g.exp(y), g.abs(z)], 1)
    request, homes, temps = placed(joined)
    (root,) = request.outputs
    numbers = np.arange(16).reshape(2, 8)
    expected = np.split(numbers, [3, 4], 1)
    for piece, part in zip(root.srcs, expected, strict=True):
        home = homes[base(piece)]
        assert (home.kind, home.index) == ("output", 0)
        assert elements(home, piece.type.size) == part.reshape(-1).tolist()
    assert not temps


def test_pieces_of_pieces_along_the_first_axis_live_in_the_outermost() -> None:
    x, y = source(0, 2, 3), source(1, 1, 3)
    inner = g.concat([g.neg(x), g.exp(y)], 0)
    outer = g.concat([g.abs(x), g.mul(inner, inner)], 0)
    request, homes, _ = placed(outer)
    first, second = request.outputs[0].srcs
    assert elements(homes[base(first)], 6) == list(range(6))
    assert elements(homes[base(second)], 9) == list(range(6, 15))


@budget(30)
@given(requests())
def test_every_root_has_elements_of_its_own(made: tuple[GraphRequest, Growing]) -> None:
    request = prepare(made[0])
    roots = choose_roots(request)
    homes, temps = place(request, roots)
    taken: dict[tuple[str, int], set[int]] = {}
    for root in roots:
        home, size = homes[root], root.type.size
        if root.op in ("input", "concat") or not size:
            continue
        mine = set(elements(home, size))
        others = taken.setdefault((home.kind, home.index), set())
        assert len(mine) == size
        assert not mine & others, f"{root} overlaps another root"
        others |= mine
        assert min(mine) >= 0
        assert home.kind != "temp" or (max(mine) + 1) * root.dtype.nbytes <= temps[home.index]


@budget(30)
@given(requests())
def test_roots_are_in_topological_order_and_each_is_computed_once(
    made: tuple[GraphRequest, Growing],
) -> None:
    fusion, _ = fuse(prepare(made[0]))
    seen: set[Node] = set()
    for root, needs in fusion.needs.items():
        assert seen.issuperset(needs)
        seen.add(root)
    computed = [r for c in fusion.clusters for r in c.roots]
    assert len(computed) == len(set(computed))
    wanted = {r for r in fusion.needs if r.op not in ("input", "concat") and r.type.size}
    assert set(computed) == wanted
    assert all(r in c.roots for r, c in fusion.of.items())


def test_a_value_is_stored_only_if_computing_it_again_costs_more() -> None:
    x, y = source(0, 40, 40), source(1, 40, 40)
    cheap, wide, costly = g.neg(x), g.mul(x, y), g.exp(x)
    outputs = [g.permute(g.add(n, n), (1, 0)) for n in (cheap, wide, costly)]
    outputs += [g.flip(n, 0) for n in (cheap, wide, costly)]
    request = GraphRequest(tuple(outputs), (x, y))
    roots = choose_roots(request)
    assert cheap not in roots
    assert wide in roots
    assert costly in roots


def test_what_overlapping_windows_show_is_stored_sooner() -> None:
    x, w = source(0, 40, 40), source(1, 1, 1)
    few, many = g.neg(x), x
    for _ in range(4):
        many = g.add(g.mul(many, g.expand(w, many.shape)), x)
    once = g.neg(many)
    seen = [g.window(g.window(n, 0, 3, 1), 2, 3, 1) for n in (few, many)]
    seen.append(g.window(g.window(once, 0, 2, 2), 2, 2, 2))
    outputs = tuple(g.reduce("max", n, (1, 3)) for n in seen)
    roots = choose_roots(GraphRequest(outputs, (x, w)))
    assert few not in roots
    assert many in roots
    assert once not in roots


def test_a_products_operand_is_stored_as_it_is_rounded_for_everybody() -> None:
    x, w = source(0, 40, 40), g.cast(source(1, 40, 40), DType.BF16)
    wide = g.tanh(x)
    narrow = g.cast(wide, DType.BF16)
    product = g.matmul(g.reshape(narrow, (40, 40)), w, F)
    alone = choose_roots(GraphRequest((product,), (x, w.srcs[0])))
    assert narrow in alone
    assert wide not in alone
    shared = choose_roots(GraphRequest((product, g.add(wide, x)), (x, w.srcs[0])))
    assert wide in shared
    assert narrow not in shared
    read = choose_roots(GraphRequest((g.matmul(g.cast(x, DType.BF16), w, F),), (x, w.srcs[0])))
    assert set(read) == {x, w.srcs[0], *(n for n in read if n.op == "matmul")}


def test_of_values_that_one_later_kernel_reads_what_it_makes_of_them_is_stored() -> None:
    x, w = source(0, 40, 40), source(1, 40, 40)
    wide = g.matmul(x, w)
    steep = g.tanh(wide)
    active = g.mul(wide, steep)
    derivative = g.add(steep, g.mul(wide, g.sub(g.full_like(steep, 1), g.mul(steep, steep))))
    back = g.matmul(g.matmul(active, w), w)
    flowed = g.mul(back, derivative)

    def stored(*outputs: Node) -> frozenset[Node]:
        request = GraphRequest(outputs, (x, w))
        return stored_roots(request, fuse(request)[0])

    kept = stored(flowed)
    assert {active, derivative} <= kept
    assert kept.isdisjoint({wide, steep})
    # Both are read later in another way, too: one value more would be kept.
    others = g.add(g.mul(back, wide), g.mul(back, steep))
    assert derivative not in stored(g.add(flowed, others))
    # One of them is a result: it would be read once less, but written all the same.
    assert derivative not in stored(flowed, wide, steep)


def test_a_slow_value_for_each_column_is_stored_where_many_rows_take_it() -> None:
    """Not one for each row, nor what takes as little as to load it."""

    def stored(rows: int, columns: int, of_rows: bool, slow: bool) -> bool:
        x = source(0, rows, columns)
        total = g.reduce("sum", g.mul(x, x), 1 if of_rows else 0)
        factor = g.rsqrt(total) if slow else g.neg(total)
        request = prepare(GraphRequest((g.mul(x, g.expand(factor, x.shape)), g.abs(total)), (x,)))
        return any(n.op in ("rsqrt", "neg") for n in choose_roots(request))

    assert stored(256, 64, of_rows=False, slow=True)
    assert not stored(256, 64, of_rows=True, slow=True)
    assert not stored(256, 64, of_rows=False, slow=False)
    assert not stored(8, 64, of_rows=False, slow=True)
    assert not stored(256, 4, of_rows=False, slow=True)
