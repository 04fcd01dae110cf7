"""Statements that touch memory: each lane moves the elements that it holds."""

from __future__ import annotations

from dataclasses import replace

from hal.core.dtypes import DType
from hal.tile.kernel import Access, Atomic, Copy, Gather, Load, Scatter, Store
from stack.compiler.lower.simt import vectors
from stack.compiler.lower.simt.apart import pattern
from stack.compiler.lower.simt.group import GroupText, guarded
from stack.compiler.lower.simt.layout import Layout
from stack.compiler.text.c import atomics, casts
from stack.compiler.text.c.memory import element, indexed, masked, scalar
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import Scope


def load(group: GroupText, scope: Scope, s: Load) -> None:
    """Read a block into registers."""
    if s.result in group.piped:
        return
    layout, dtype = group.mapping.tiles[s.result], s.result.dtype
    target = group.declare(scope, s.result.type, layout)
    other = "0" if s.other is None else scalar(scope, s.other)
    if (axis := _by_vectors(group, s.source, layout, dtype)) is not None:
        nest = vectors.nest_of(group, scope, layout, axis, dtype)
        source = element(scope, s.source, nest.position)
        rest, limit = limits_beside(scope, s.source, nest, axis)
        valid = group.within(layout, nest.position) + rest
        vectors.load(group, nest, target, layout, axis, dtype, source, (valid, limit), other)
        group.fence.read(s.source.memory, pattern(s.source, layout, group.mapping.lanes))
        nest.emit()
        scope.arrays[s.result] = target
        return
    nest = group.nest(scope, layout)
    value = casts.from_memory(element(scope, s.source, nest.position), dtype)
    valid = group.within(layout, nest.position) + _limits(scope, s.source, nest)
    _read(group, nest, target.at(nest.position), valid, (value, other))
    group.fence.read(s.source.memory, pattern(s.source, layout, group.mapping.lanes))
    nest.emit()
    scope.arrays[s.result] = target


def _by_vectors(group: GroupText, access: Access, layout: Layout, dtype: DType) -> int | None:
    """The axis along which lanes have neighbours in memory that they move at once."""
    for axis, step in enumerate(access.strides):
        lies = step.op == "const" and step["value"] == 1
        if lies and vectors.width(group, layout, axis, dtype) > 1:
            return axis
    return None


def limits_beside(
    scope: Scope, access: Access, nest: LoopNest, axis: int
) -> tuple[list[str], str | None]:
    """The conditions by the limits of other axes, and the limit of this one."""
    limit = access.limits[axis]
    others = tuple(None if i == axis else x for i, x in enumerate(access.limits))
    found = _limits(scope, replace(access, limits=others), nest)
    return found, None if limit is None else scalar(scope, limit)


def _read(
    group: GroupText, nest: LoopNest, target: str, valid: list[str], values: tuple[str, str]
) -> None:
    value, other = values
    condition = " && ".join(valid)
    nest.do(f"{target} = {f'{condition} ? {value} : {other}' if valid else value};")


def _limits(scope: Scope, access: Access, nest: LoopNest) -> list[str]:
    return [
        f"{i.text} < {scalar(scope, limit)}"
        for i, limit in zip(nest.position, access.limits, strict=True)
        if limit is not None
    ]


def store(group: GroupText, scope: Scope, s: Store) -> None:
    """Write a tile."""
    layout, dtype = group.mapping.works[s], s.value.dtype
    nest = group.nest(scope, layout)
    value = nest.element(s.value, nest.position)
    if (axis := _by_vectors(group, s.target, layout, dtype)) is not None:
        tile = group.declare(scope, s.value.type, layout)
        nest.do(f"{tile.at(nest.position)} = {value};")
        nest.emit()
        nest = vectors.nest_of(group, scope, layout, axis, dtype)
        target = element(scope, s.target, nest.position)
        rest, limit = limits_beside(scope, s.target, nest, axis)
        conditions = rest + _owned(group, nest, layout), limit
        vectors.store(group, nest, tile, layout, axis, dtype, target, conditions)
        group.fence.write(s.target.memory, pattern(s.target, layout, group.mapping.lanes))
        nest.emit()
        return
    target = element(scope, s.target, nest.position)
    valid = _limits(scope, s.target, nest) + _owned(group, nest, layout)
    nest.do(guarded(valid, f"{target} = {value};"))
    group.fence.write(s.target.memory, pattern(s.target, layout, group.mapping.lanes))
    nest.emit()


def _owned(group: GroupText, nest: LoopNest, layout: Layout) -> list[str]:
    """Conditions that hold once for every element of a tile."""
    return group.within(layout, nest.position) + group.first(layout)


def copy(group: GroupText, scope: Scope, s: Copy) -> None:
    """Copy a block at once: to wait for it takes no more than what orders any access."""
    layout = group.mapping.works[s]
    nest = group.nest(scope, layout)
    target, source = (element(scope, a, nest.position) for a in (s.target, s.source))
    valid = [x for a in (s.target, s.source) for x in _limits(scope, a, nest)]
    nest.do(guarded(valid + _owned(group, nest, layout), f"{target} = {source};"))
    group.fence.read(s.source.memory, None)
    group.fence.write(s.target.memory, None)
    nest.emit()


# indexed


def gather(group: GroupText, scope: Scope, s: Gather) -> None:
    """Read elements at indices."""
    layout, dtype = group.mapping.tiles[s.result], s.result.dtype
    target = group.declare(scope, s.result.type, layout)
    nest = group.nest(scope, layout)
    value = casts.from_memory(indexed(nest, s.memory, s.index), dtype)
    other = "0" if s.other is None else scalar(scope, s.other)
    mask = masked(nest, s.mask, s.index.shape)
    valid = group.within(layout, nest.position) + ([] if mask is None else [mask])
    _read(group, nest, target.at(nest.position), valid, (value, other))
    group.fence.read(s.memory, None)
    nest.emit()
    scope.arrays[s.result] = target


def scatter(group: GroupText, scope: Scope, s: Scatter) -> None:
    """Write elements at indices."""
    layout = group.mapping.works[s]
    nest = group.nest(scope, layout)
    value = nest.element(s.value, nest.position)
    _at_indices(group, nest, s, f"{indexed(nest, s.memory, s.index)} = {value};")
    group.fence.write(s.memory, None)
    nest.emit()


def atomic(group: GroupText, scope: Scope, s: Atomic) -> None:
    """Update elements at indices."""
    nest = group.nest(scope, group.mapping.works[s])
    value = nest.element(s.value, nest.position)
    update = atomics.function(scope.out, s.kind, s.memory)
    _at_indices(group, nest, s, f"{update}(&{indexed(nest, s.memory, s.index)}, {value});")
    group.fence.write(s.memory, ("atomic", s.kind) if s.kind != "exchange" else None)
    nest.emit()


def _at_indices(group: GroupText, nest: LoopNest, s: Scatter | Atomic, line: str) -> None:
    mask = masked(nest, s.mask, s.index.shape)
    valid = _owned(group, nest, group.mapping.works[s])
    nest.do(guarded(valid + ([] if mask is None else [mask]), line))
