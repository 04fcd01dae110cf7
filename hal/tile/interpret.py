"""Running kernels in numpy: slow, and the final word on what tile IR means.

Where the meaning leaves a choice: a copy happens at the `Wait`, so that too early a read sees the
old content; undefined scratch is NaN, for integers bytes of 0xAB, for bool True.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.values import ParamKind
from hal.tile.errors import TileError
from hal.tile.evaluate import Instance, value_of
from hal.tile.kernel import (
    Access,
    Alloc,
    Atomic,
    Barrier,
    Copy,
    For,
    Gather,
    If,
    Kernel,
    Load,
    Memory,
    Scatter,
    Statement,
    Store,
    Wait,
)
from hal.tile.node import Node, toposort
from hal.tile.numeric import NUMPY, Array, bounds, constant, elementwise, quiet
from hal.tile.ops import ATOMICS
from hal.tile.walk import Block, reads, statements


def interpret(
    kernel: Kernel,
    grid: Sequence[int],
    buffers: Mapping[str, Array],
    scalars: Mapping[str, Any],
    seed: int | None = None,
    ran: Callable[[], None] = lambda: None,
) -> None:
    """Run every program instance of the grid (up to three sizes), changing `buffers` in place.

    `buffers` holds a one-dimensional array of the parameter's numpy type for each buffer parameter,
    `scalars` a number for each scalar parameter. With a `seed` instances run in a shuffled order.
    `ran` is called after each instance.
    Raises TileError for arguments that do not fit and for an access outside a memory.
    """
    sizes = tuple(grid) + (1,) * (3 - len(grid))
    programs = list(product(*map(range, sizes)))
    if seed is not None:
        np.random.default_rng(seed).shuffle(programs)
    with quiet():
        memories, values = _arguments(kernel, buffers, scalars)
        first = Instance(kernel.name, (), sizes, values, memories)
        if len(programs) > 1:
            for n in _fixed(kernel.body, lambda n: n.op in ("var", "program_id")):
                value_of(first, n)
        for program in programs:
            instance = first.inner()
            instance.program, instance.pending = tuple(program), {}
            _run_block(instance, kernel.body)
            unfinished = [channel for channel, copies in instance.pending.items() if copies]
            if unfinished:
                raise instance.error(f"ends without a Wait for the copies of channels {unfinished}")
            ran()


def interpret_bytes(
    kernel: Kernel,
    grid: Sequence[int],
    args: Sequence[Any],
    seed: int | None = None,
    ran: Callable[[], None] = lambda: None,
) -> None:
    """`interpret` for arguments in the order of the parameters: for a buffer its bytes, of which
    what fills no whole element is left out, and a number for a scalar."""
    buffers: dict[str, Array] = {}
    scalars: dict[str, Any] = {}
    for param, arg in zip(kernel.params, args, strict=True):
        if param.kind is ParamKind.BUFFER:
            whole = len(arg) // param.dtype.nbytes * param.dtype.nbytes
            buffers[param.name] = arg[:whole].view(NUMPY[param.dtype])
        else:
            scalars[param.name] = arg
    interpret(kernel, grid, buffers, scalars, seed, ran)


def _arguments(
    kernel: Kernel, buffers: Mapping[str, Array], scalars: Mapping[str, Any]
) -> tuple[dict[str, Array], dict[str, Array]]:
    names = {ParamKind.BUFFER: set(buffers), ParamKind.SCALAR: set(scalars)}
    for kind, given in names.items():
        wanted = {p.name for p in kernel.params if p.kind is kind}
        if given != wanted:
            raise TileError(
                f"kernel {kernel.name} takes {kind.value}s {sorted(wanted)}, not {sorted(given)}"
            )
    memories, values = {}, {}
    for p in kernel.params:
        if p.kind is ParamKind.BUFFER:
            array = buffers[p.name]
            if array.dtype != NUMPY[p.dtype] or array.ndim != 1:
                raise TileError(
                    f"kernel {kernel.name}, buffer {p.name}: give a one-dimensional "
                    f"{NUMPY[p.dtype]} array, not {array.dtype} of shape {array.shape}"
                )
            memories[p.name] = array
        else:
            value = scalars[p.name]
            if not p.dtype.is_float:
                low, high = bounds(p.dtype)
                if not low <= value <= high or int(value) != value:
                    raise TileError(
                        f"kernel {kernel.name}, scalar {p.name}: {value} does not fit "
                        f"{p.dtype.short}"
                    )
            values[p.name] = constant(value, p.dtype)
    return memories, values


def _run_block(s: Instance, block: Sequence[Statement]) -> None:
    for statement in block:
        _RUN[type(statement)](s, statement)


# memory


def _elements(s: Instance, memory: Memory, indices: Array) -> Array:
    """The memory's array, after a check that every index is inside."""
    array = s.memories.get(memory.name)
    if array is None:
        raise s.error(f"uses memory {memory.name}, which nothing declares here")
    outside = (indices < 0) | (indices >= array.size)
    if np.count_nonzero(outside):
        raise s.error(
            f"index {indices[outside].flat[0]} is outside of {memory.name}, "
            f"which has {array.size} elements"
        )
    return array


@lru_cache(maxsize=256)
def _positions(shape: tuple[int, ...]) -> tuple[tuple[Array, ...], Array]:
    """The positions along each axis of a block, and which of them are valid without limits. Nobody
    writes to them."""
    whole = np.ones(shape, bool)
    whole.flags.writeable = False
    return np.indices(shape, sparse=True), whole


def _block(s: Instance, access: Access, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The element indices of a block, and which of its elements are valid."""
    positions, valid = _positions(shape)
    indices = np.asarray(value_of(s, access.offset), np.int64)
    for i, stride, limit in zip(positions, access.strides, access.limits, strict=True):
        indices = indices + i * value_of(s, stride)
        if limit is not None:
            valid = valid & (i < value_of(s, limit))
    return indices, valid


def _mask(s: Instance, mask: Node | None, shape: tuple[int, ...]) -> Array:
    return _positions(shape)[1] if mask is None else np.broadcast_to(value_of(s, mask), shape)


def _fetch(
    s: Instance, result: Node, memory: Memory, indices: Array, valid: Array, other: Node | None
) -> None:
    if valid is _positions(result.shape)[1]:
        s.values[result] = np.asarray(_elements(s, memory, indices)[indices])
        return
    at = indices[valid]
    array = _elements(s, memory, at)
    tile = np.zeros(result.shape, NUMPY[result.dtype])
    if other is not None:
        tile = np.array(np.broadcast_to(value_of(s, other), result.shape))
    tile[valid] = array[at]
    s.values[result] = tile


def _put(s: Instance, memory: Memory, indices: Array, valid: Array, tile: Array) -> None:
    if valid is not _positions(tile.shape)[1]:
        indices, tile = indices[valid], tile[valid]
    _elements(s, memory, indices)[indices] = tile


def _load(s: Instance, x: Load) -> None:
    indices, valid = _block(s, x.source, x.result.shape)
    _fetch(s, x.result, x.source.memory, indices, valid, x.other)


def _gather(s: Instance, x: Gather) -> None:
    indices = value_of(s, x.index)
    _fetch(s, x.result, x.memory, indices, _mask(s, x.mask, indices.shape), x.other)


def _store(s: Instance, x: Store) -> None:
    tile = value_of(s, x.value)
    indices, valid = _block(s, x.target, tile.shape)
    _put(s, x.target.memory, indices, valid, tile)


def _scatter(s: Instance, x: Scatter) -> None:
    indices, tile = value_of(s, x.index), value_of(s, x.value)
    _put(s, x.memory, indices, _mask(s, x.mask, indices.shape), tile)


def _atomic(s: Instance, x: Atomic) -> None:
    indices, tile = value_of(s, x.index), value_of(s, x.value)
    valid = _mask(s, x.mask, indices.shape)
    array, op = _elements(s, x.memory, indices[valid]), ATOMICS[x.kind]
    for i, value in zip(indices[valid], tile[valid], strict=True):
        array[i] = value if op is None else elementwise(op, np.asarray(array[i]), np.asarray(value))


def _alloc(s: Instance, x: Alloc) -> None:
    dtype = x.memory.dtype
    if dtype is DType.BOOL or dtype.is_float:
        s.memories[x.memory.name] = np.full(
            x.memory.size, np.nan if dtype.is_float else True, NUMPY[dtype]
        )
    else:
        s.memories[x.memory.name] = np.full(x.memory.size * dtype.nbytes, 0xAB, np.uint8).view(
            NUMPY[dtype]
        )


def _copy(s: Instance, x: Copy) -> None:
    target, target_valid = _block(s, x.target, x.shape)
    source, source_valid = _block(s, x.source, x.shape)
    valid = target_valid & source_valid
    to, at = _elements(s, x.target.memory, target[valid]), target[valid]
    of, source_at = _elements(s, x.source.memory, source[valid]), source[valid]
    s.pending.setdefault(x.channel, []).append((to, at, of, source_at))


def _wait(s: Instance, x: Wait) -> None:
    for target, at, source, source_at in s.pending.pop(x.channel, []):
        target[at] = source[source_at]


# control


def _fixed(
    block: Block, varies: Callable[[Node], bool], more: Sequence[Node] = ()
) -> tuple[Node, ...]:
    """The largest expressions of a block, and of these, below which nothing varies."""
    inside = list(statements(block))
    nexts = [c.next for s in inside if isinstance(s, For) for c in s.carried]
    roots = [*(n for s in inside for n in reads(s)), *nexts, *more]
    found, varying = dict.fromkeys(roots), set[Node]()
    for n in toposort(roots):
        if varies(n) or not varying.isdisjoint(n.srcs):
            varying.add(n)
            found.update(dict.fromkeys(n.srcs))
    return tuple(n for n in found if n not in varying and n.op not in ("const", "var"))


def _for(s: Instance, x: For) -> None:
    start, stop, step = (int(value_of(s, n)) for n in (x.start, x.stop, x.step))
    if step <= 0:
        raise s.error(f"a loop's step is {step}; it must be positive")
    if len(range(start, stop, step)) > 1:
        if id(x) not in s.fixed:  # what it defines has no value here
            carried = [c.next for c in x.carried]
            s.fixed[id(x)] = _fixed(x.body, lambda n: n.op == "var" and n not in s.values, carried)
        for n in s.fixed[id(x)]:
            value_of(s, n)
    current = [value_of(s, c.init) for c in x.carried]
    for i in range(start, stop, step):
        inside = s.inner()
        inside.values[x.index] = np.asarray(i, np.int64)
        inside.values.update({c.var: v for c, v in zip(x.carried, current, strict=True)})
        _run_block(inside, x.body)
        current = [value_of(inside, c.next) for c in x.carried]
    s.values.update({c.result: v for c, v in zip(x.carried, current, strict=True)})


_RUN: Mapping[type[Any], Callable[[Instance, Any], None]] = MappingProxyType(
    {
        Load: _load,
        Store: _store,
        Gather: _gather,
        Scatter: _scatter,
        Atomic: _atomic,
        Alloc: _alloc,
        Copy: _copy,
        Wait: _wait,
        Barrier: lambda s, x: None,
        For: _for,
        If: lambda s, x: _run_block(s.inner(), x.then if value_of(s, x.condition) else x.orelse),
    }
)
