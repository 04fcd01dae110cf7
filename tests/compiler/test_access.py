"""Index arithmetic against numpy: where views and factorisations find each element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.graph.access import (
    Affine,
    Axis,
    Guard,
    Index,
    Materialise,
    Regroup,
    Split,
    Want,
    Wants,
    axis_index,
    regroup,
    regrouped,
)
from stack.compiler.graph.space import Space, solved
from stack.compiler.graph.views import VIEWS, forward
from stack.ir.interpret import interpret

SHAPES = st.lists(st.sampled_from((1, 2, 3, 4, 6)), max_size=4).map(tuple)
few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def value(a: Affine, at: dict[Axis, int]) -> int:
    return a.const + sum(c * at[axis] for axis, c in a.terms)


def points(axes: Sequence[Axis]) -> Iterator[dict[Axis, int]]:
    """Every point of a loop nest, in order."""
    for position in product(*(range(a.size) for a in axes)):
        yield dict(zip(axes, position, strict=True))


def settled(size: int, compute: Callable[[Index, Regroup], Any]) -> tuple[Space, Any] | Materialise:
    """What `compute` makes of an element of a flat tensor, with axes split as it wants."""

    def read(space: Space) -> tuple[Space, Any] | Want:
        wants = Wants()
        found = compute(axis_index(space.axes), wants.regroup)
        return wants.first or (space, found)

    return solved(Space.of(((size, False),)), read)


@st.composite
def factorisations(draw: Callable[[Any], Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of one size."""
    factors = draw(st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=6))

    def shape(parts: list[int]) -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(0, len(parts)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(parts)], strict=True)
        return tuple(prod(parts[i:j]) for i, j in bounds)

    return shape(factors), shape(draw(st.permutations(factors)))


@few
@given(factorisations())
def test_regroup_finds_the_same_element(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    first, second = shapes

    def compute(index: Index, regroup: Regroup) -> tuple[Index, Index]:
        once = regroup(index, first)
        return once, regroup(once, second)

    done = settled(prod(first), compute)
    if isinstance(done, Materialise):
        return
    space, found = done
    for number, at in enumerate(points(space.axes)):
        for index, shape in zip(found, shapes, strict=True):
            assert tuple(value(a, at) for a in index.at) == np.unravel_index(number, shape)
            assert value(index.flat(), at) == number


def test_regroup_splits_an_axis_only_where_a_boundary_is_needed() -> None:
    axes = [Axis(6), Axis(4)]
    merged = regrouped(axis_index(axes), (24,))
    assert value(merged.at[0], {axes[0]: 2, axes[1]: 3}) == 11
    assert regroup(axis_index(axes), (2, 3, 4)) == Split(axes[0], 3)


def test_what_goes_backwards_has_digits_too() -> None:
    axis = Axis(6)
    backwards = Index((6,), (Affine(5, ((axis, -1),)),))
    assert regroup(backwards, (2, 3)) == Split(axis, 3)
    outer, inner = Axis(2), Axis(3)
    split = Index((6,), (Affine(5, ((outer, -3), (inner, -1))),))
    found = regrouped(split, (2, 3)).at
    assert found == (Affine(1, ((outer, -1),)), Affine(2, ((inner, -1),)))


def test_what_is_wanted_first_is_kept() -> None:
    wants = Wants()
    wants.node = "a view"
    axis = Axis(6)
    wants.regroup(Index((6,), (Affine(2, ((Axis(4), 1),)),)), (2, 3))
    wants.regroup(axis_index([axis]), (2, 3))
    assert wants.first == Materialise("a view")


@pytest.mark.parametrize(
    "index",
    [
        Index((6,), (Affine(0, ((Axis(3), 4), (Axis(2), 1))),)),  # digits of 4a + b in base 3
        Index((6,), (Affine(2, ((Axis(4), 1),)),)),  # a carry wherever the loop stands
        Index((6,), (Affine(4, ((Axis(4), -1),)),)),  # backwards, and a carry
    ],
)
def test_regroup_refuses_what_no_split_makes_affine(index: Index) -> None:
    assert regroup(index, (2, 3)) is None


def test_a_data_dependent_axis_is_not_split() -> None:
    dynamic = Index((6,), (Affine(0, ((Axis(6, source="an expression"), 1),)),))
    assert regroup(dynamic, (2, 3)) is None


def _permute(draw: Callable[[Any], Any], x: Node) -> Node:
    return g.permute(x, draw(st.permutations(range(len(x.shape)))))


def _reshape(draw: Callable[[Any], Any], x: Node) -> Node:
    shape = [n for n in x.shape if n != 1]
    if len(shape) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(shape) - 2))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    for at in range(len(shape)):
        if shape[at] % 2 == 0 and draw(st.booleans()):
            shape[at : at + 1] = draw(st.permutations([2, shape[at] // 2]))
    return g.reshape(x, shape)


def _expand(draw: Callable[[Any], Any], x: Node) -> Node:
    return g.expand(x, tuple(draw(st.sampled_from((1, 2, 3))) if n == 1 else n for n in x.shape))


def _slice(draw: Callable[[Any], Any], x: Node) -> Node:
    start = [draw(st.integers(0, n - 1)) for n in x.shape]
    stop = [draw(st.integers(lo + 1, n)) for lo, n in zip(start, x.shape, strict=True)]
    return g.slice(x, start, stop, [draw(st.integers(1, 3)) for _ in x.shape])


def _flip(draw: Callable[[Any], Any], x: Node) -> Node:
    return g.flip(x, [i for i in range(len(x.shape)) if draw(st.booleans())])


def _pad(draw: Callable[[Any], Any], x: Node) -> Node:
    lo, hi = ([draw(st.integers(0, 2)) for _ in x.shape] for _ in range(2))
    return g.pad(x, lo, hi, -1)


@st.composite
def views(draw: Callable[[Any], Any]) -> tuple[Node, Node]:
    """(input, view of view of ... of it)"""
    source = x = g.input(0, Type(draw(SHAPES), DType.I64))
    for _ in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from((_permute, _reshape, _expand, _slice, _flip, _pad)))
        x = step(draw, x)
        if x.type.size > 600:
            break
    return source, x


def located(
    view: Node, source: Node, index: Index, regroup: Regroup
) -> tuple[Index, tuple[Guard, ...]]:
    """Where the view's element is in its source, and when."""
    guards: tuple[Guard, ...] = ()
    while view is not source:
        index, own = VIEWS[view.op](view, index, regroup)
        guards, view = (*guards, *own), view.srcs[0]
    return index, guards


@few
@given(views())
def test_views_find_their_elements(made: tuple[Node, Node]) -> None:
    source, view = made
    done = settled(view.type.size, lambda i, regroup: located(view, source, i, regroup))
    if isinstance(done, Materialise):
        return
    space, (index, guards) = done
    numbers = np.arange(source.type.size).reshape(source.shape)
    (expected,) = interpret([view], {source: numbers})
    flat, found = index.flat(), []
    for at in points(space.axes):
        exists = all(x.lo <= value(x.value, at) < x.hi for x in guards)
        found.append(value(flat, at) if exists else -1)
    assert found == expected.reshape(-1).tolist()


def _part(draw: Callable[[Any], Any], x: Node) -> Node:
    start = [draw(st.integers(0, n - 1)) for n in x.shape]
    return g.slice(
        x, start, [draw(st.integers(a + 1, n)) for a, n in zip(start, x.shape, strict=True)]
    )


@few
@given(st.data())
def test_each_element_goes_where_a_view_has_it(data: Any) -> None:
    source = g.input(0, Type(data.draw(SHAPES), DType.I64))
    view = data.draw(st.sampled_from((_permute, _part, _reshape)))(data.draw, source)
    if view is source:
        return
    done = settled(source.type.size, lambda index, regroup: forward(view, index, regroup))
    assert not isinstance(done, Materialise)
    space, (index, guards) = done
    numbers = np.arange(source.type.size).reshape(source.shape)
    (expected,) = interpret([view], {source: numbers})
    found = {
        value(index.flat(), at): number
        for number, at in enumerate(points(space.axes))
        if all(x.lo <= value(x.value, at) < x.hi for x in guards)
    }
    assert [found[i] for i in sorted(found)] == expected.reshape(-1).tolist()
    assert sorted(found) == list(range(view.type.size))


@few
@given(st.integers(-9, 9), st.lists(st.tuples(st.integers(1, 5), st.integers(-4, 4)), max_size=3))
def test_bounds_are_reached(const: int, terms: list[tuple[int, int]]) -> None:
    axes = [Axis(size) for size, _ in terms]
    affine = Affine(const, tuple((a, c) for a, (_, c) in zip(axes, terms, strict=True)))
    values = [value(affine, at) for at in points(axes)]
    assert affine.bounds() == (min(values), max(values))
    assert Guard(affine, min(values), max(values) + 1).always()
    assert Guard(affine, max(values) + 1, max(values) + 9).never()
    assert not Guard(affine, max(values), max(values) + 1).never()


def test_a_sum_of_affine_values_drops_what_cancels() -> None:
    a, b = Axis(3), Axis(5)
    total = Affine(1, ((a, 2), (b, 1))).plus(Affine(2, ((a, -2),)))
    assert (total.const, total.terms) == (3, ((b, 1),))
    assert total.times(0) == Affine()
    assert total.shift(-3).coefficient(b) == 1
    assert total.coefficient(a) == 0


def test_axes_of_one_element_turn_nothing() -> None:
    turned = g.permute(g.input(0, Type((4, 1, 3, 5, 1), DType.F32)), (1, 0, 4, 2, 3))
    found = settled(60, lambda index, regroup: VIEWS["permute"](turned, index, regroup))
    assert not isinstance(found, Materialise)
    space, (index, guards) = found
    assert len(space.axes) == 1, "no loop is split"
    assert (index.flat(), guards) == (Affine(0, ((space.axes[0], 1),)), ())
