"""Running kernels in numpy: slow, and the final word on what tile IR means.

Where the meaning leaves a choice: reductions, scans and the sums of `dot` go in index order; a copy
happens at the `Wait`, so that too early a read sees the old content; undefined scratch is NaN, for
integers bytes of 0xAB, for bool True.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from hal.core.dtypes import DType
from hal.core.values import Param, ParamKind
from hal.tile.errors import TileError
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
from hal.tile.node import Node
from hal.tile.numeric import (
    NARROW,
    NUMPY,
    Array,
    bitcast,
    bounds,
    constant,
    convert,
    elementwise,
    quiet,
)
from hal.tile.ops import ATOMICS, COMBINE

Pending = tuple[Array, Array, Array, Array]
"""A started copy: target array, target indices, source array, source indices."""


@dataclass(slots=True)
class _Instance:
    """What one program instance knows. `inner` is the view of a nested block: it sees the outer
    values and keeps its own to itself."""

    kernel: str
    program: tuple[int, ...]
    grid: tuple[int, ...]
    scalars: Mapping[str, Array]
    memories: dict[str, Array]
    values: dict[Node, Array] = field(default_factory=dict)
    pending: dict[int, list[Pending]] = field(default_factory=dict)

    def inner(self) -> _Instance:
        return replace(self, memories=dict(self.memories), values=dict(self.values))

    def error(self, message: str) -> TileError:
        return TileError(f"kernel {self.kernel}, program instance {self.program}: {message}")


def interpret(
    kernel: Kernel,
    grid: Sequence[int],
    buffers: Mapping[str, Array],
    scalars: Mapping[str, Any],
    seed: int | None = None,
) -> None:
    """Run every program instance of the grid (up to three sizes), changing `buffers` in place.

    `buffers` holds a one-dimensional array of the parameter's numpy type for each buffer parameter,
    `scalars` a number for each scalar parameter. With a `seed` instances run in a shuffled order.
    Raises TileError for arguments that do not fit and for an access outside a memory.
    """
    sizes = tuple(grid) + (1,) * (3 - len(grid))
    programs = list(product(*map(range, sizes)))
    if seed is not None:
        np.random.default_rng(seed).shuffle(programs)
    with quiet():
        memories, values = _arguments(kernel, buffers, scalars)
        for program in programs:
            _run_instance(
                kernel, _Instance(kernel.name, tuple(program), sizes, values, dict(memories))
            )


def evaluate(root: Node) -> Array:
    """The value of an expression without variables, parameters and program indices."""
    with quiet():
        return _value(_Instance("<expression>", (), (), {}, {}), root)


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
            memories[p.name] = _checked(kernel, p.name, p.dtype, buffers[p.name])
        else:
            values[p.name] = _scalar(kernel, p, scalars[p.name])
    return memories, values


def _checked(kernel: Kernel, name: str, dtype: DType, array: Array) -> Array:
    if array.dtype != NUMPY[dtype] or array.ndim != 1:
        raise TileError(
            f"kernel {kernel.name}, buffer {name}: give a one-dimensional {NUMPY[dtype]} array, "
            f"not {array.dtype} of shape {array.shape}"
        )
    return array


def _scalar(kernel: Kernel, p: Param, value: float) -> Array:
    if not p.dtype.is_float:
        low, high = bounds(p.dtype)
        if not low <= value <= high or int(value) != value:
            raise TileError(
                f"kernel {kernel.name}, scalar {p.name}: {value} does not fit {p.dtype.short}"
            )
    return constant(value, p.dtype)


def _run_instance(kernel: Kernel, instance: _Instance) -> None:
    _run_block(instance, kernel.body)
    unfinished = [channel for channel, copies in instance.pending.items() if copies]
    if unfinished:
        raise instance.error(f"ends without a Wait for the copies of channels {unfinished}")


def _run_block(s: _Instance, block: Sequence[Statement]) -> None:
    for statement in block:
        _RUN[type(statement)](s, statement)


# expressions


def _value(s: _Instance, root: Node) -> Array:
    """The value of an expression; every node is computed once in its block."""
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [x for x in node.srcs if x not in s.values]
        if missing and node not in s.values:
            stack.extend(missing)
            continue
        stack.pop()
        if node not in s.values:
            s.values[node] = _compute(s, node, *(s.values[x] for x in node.srcs))
    return s.values[root]


def _compute(s: _Instance, node: Node, *operands: Array) -> Array:
    if node.op in _LEAF:
        return _LEAF[node.op](s, node)
    if node.op in _STRUCTURAL:
        return _STRUCTURAL[node.op](node, *operands)
    return elementwise(node.op, *operands)


def _undefined(s: _Instance, node: Node) -> Array:
    raise s.error(f"reads {node} before any statement defined it")


_LEAF: Mapping[str, Callable[[_Instance, Node], Array]] = {
    "const": lambda s, n: constant(n["value"], n.dtype),
    "var": _undefined,
    "scalar": lambda s, n: s.scalars[n["name"]],
    "program_id": lambda s, n: convert(np.asarray(s.program[n["axis"]]), n.dtype),
    "num_programs": lambda s, n: convert(np.asarray(s.grid[n["axis"]]), n.dtype),
    "arange": lambda s, n: convert(np.arange(n.shape[0]), n.dtype),
}


def _combine(kind: str, x: Array, axis: int) -> Iterator[Array]:
    """The combination of the first 1, 2, 3, ... slices along the axis, in f32 for narrow floats."""
    dtype = x.dtype
    slices = np.moveaxis(x.astype(np.float32) if dtype in _NARROW_NUMPY else x, axis, 0)
    total = slices[0]
    yield total
    for one in slices[1:]:
        total = elementwise(COMBINE[kind], total, one)
        yield total


_NARROW_NUMPY = frozenset(NUMPY[d] for d in NARROW)


def _reduce(node: Node, x: Array) -> Array:
    total = x
    for prefix in _combine(node["kind"], x, node["axis"]):
        total = prefix
    return convert(np.asarray(total), node.dtype)


def _scan(node: Node, x: Array) -> Array:
    prefixes = list(_combine(node["kind"], x, node["axis"]))
    return convert(np.stack(prefixes, axis=node["axis"]), node.dtype)


def _dot(node: Node, a: Array, b: Array, acc: Array) -> Array:
    wide = DType.F32 if node.dtype in NARROW else node.dtype
    total, left, right = (convert(x, wide) for x in (acc, a, b))
    for k in range(left.shape[1]):
        total = total + left[:, k, None] * right[None, k, :]
    return convert(total, node.dtype)


_STRUCTURAL: Mapping[str, Callable[..., Array]] = {
    "where": lambda n, c, a, b: np.asarray(np.where(c, a, b)),
    "cast": lambda n, x: convert(x, n.dtype),
    "bitcast": lambda n, x: bitcast(x, n.dtype),
    "broadcast": lambda n, x: np.broadcast_to(x, n.shape),
    "reshape": lambda n, x: x.reshape(n.shape),
    "transpose": lambda n, x: x.transpose(n["perm"]),
    "reduce": _reduce,
    "scan": _scan,
    "dot": _dot,
}


# memory


def _elements(s: _Instance, memory: Memory, indices: Array) -> Array:
    """The memory's array, after a check that every index is inside."""
    array = s.memories.get(memory.name)
    if array is None:
        raise s.error(f"uses memory {memory.name}, which nothing declares here")
    outside = indices[(indices < 0) | (indices >= array.size)]
    if outside.size:
        raise s.error(
            f"index {outside.flat[0]} is outside of {memory.name}, which has {array.size} elements"
        )
    return array


def _block(s: _Instance, access: Access, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The element indices of a block, and which of its elements are valid."""
    indices = np.full(shape, _value(s, access.offset), np.int64)
    valid = np.ones(shape, bool)
    positions = np.indices(shape)
    for i, stride, limit in zip(positions, access.strides, access.limits, strict=True):
        indices = indices + i * _value(s, stride)
        if limit is not None:
            valid &= i < _value(s, limit)
    return indices, valid


def _mask(s: _Instance, mask: Node | None, shape: tuple[int, ...]) -> Array:
    return np.ones(shape, bool) if mask is None else np.broadcast_to(_value(s, mask), shape)


def _fetch(
    s: _Instance, result: Node, memory: Memory, indices: Array, valid: Array, other: Node | None
) -> None:
    array = _elements(s, memory, indices[valid])
    tile = np.zeros(result.shape, NUMPY[result.dtype])
    if other is not None:
        tile = np.array(np.broadcast_to(_value(s, other), result.shape))
    tile[valid] = array[indices[valid]]
    s.values[result] = tile


def _load(s: _Instance, x: Load) -> None:
    indices, valid = _block(s, x.source, x.result.shape)
    _fetch(s, x.result, x.source.memory, indices, valid, x.other)


def _gather(s: _Instance, x: Gather) -> None:
    indices = _value(s, x.index)
    _fetch(s, x.result, x.memory, indices, _mask(s, x.mask, indices.shape), x.other)


def _store(s: _Instance, x: Store) -> None:
    tile = _value(s, x.value)
    indices, valid = _block(s, x.target, tile.shape)
    _elements(s, x.target.memory, indices[valid])[indices[valid]] = tile[valid]


def _scatter(s: _Instance, x: Scatter) -> None:
    indices, tile = _value(s, x.index), _value(s, x.value)
    valid = _mask(s, x.mask, indices.shape)
    _elements(s, x.memory, indices[valid])[indices[valid]] = tile[valid]


def _atomic(s: _Instance, x: Atomic) -> None:
    indices, tile = _value(s, x.index), _value(s, x.value)
    valid = _mask(s, x.mask, indices.shape)
    array, op = _elements(s, x.memory, indices[valid]), ATOMICS[x.kind]
    for i, value in zip(indices[valid], tile[valid], strict=True):
        array[i] = value if op is None else elementwise(op, np.asarray(array[i]), np.asarray(value))


def _alloc(s: _Instance, x: Alloc) -> None:
    dtype = x.memory.dtype
    if dtype is DType.BOOL or dtype.is_float:
        s.memories[x.memory.name] = np.full(
            x.memory.size, np.nan if dtype.is_float else True, NUMPY[dtype]
        )
    else:
        s.memories[x.memory.name] = np.full(x.memory.size * dtype.nbytes, 0xAB, np.uint8).view(
            NUMPY[dtype]
        )


def _copy(s: _Instance, x: Copy) -> None:
    target, target_valid = _block(s, x.target, x.shape)
    source, source_valid = _block(s, x.source, x.shape)
    valid = target_valid & source_valid
    to, at = _elements(s, x.target.memory, target[valid]), target[valid]
    of, source_at = _elements(s, x.source.memory, source[valid]), source[valid]
    s.pending.setdefault(x.channel, []).append((to, at, of, source_at))


def _wait(s: _Instance, x: Wait) -> None:
    for target, at, source, source_at in s.pending.pop(x.channel, []):
        target[at] = source[source_at]


# control


def _for(s: _Instance, x: For) -> None:
    start, stop, step = (int(_value(s, n)) for n in (x.start, x.stop, x.step))
    if step <= 0:
        raise s.error(f"a loop's step is {step}; it must be positive")
    current = [_value(s, c.init) for c in x.carried]
    for i in range(start, stop, step):
        inside = s.inner()
        inside.values[x.index] = np.asarray(i, np.int64)
        inside.values.update({c.var: v for c, v in zip(x.carried, current, strict=True)})
        _run_block(inside, x.body)
        current = [_value(inside, c.next) for c in x.carried]
    s.values.update({c.result: v for c, v in zip(x.carried, current, strict=True)})


def _if(s: _Instance, x: If) -> None:
    _run_block(s.inner(), x.then if _value(s, x.condition) else x.orelse)


_RUN: Mapping[type[Any], Callable[[_Instance, Any], None]] = MappingProxyType(
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
        If: _if,
    }
)
