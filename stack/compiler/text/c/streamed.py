"""Results that no cache holds are written past the caches.

To store what is not in a cache first reads its line from memory; vectors at addresses that are
multiples of their size can go there without. What was written so is in no cache, so it is done
only where a launch writes more than caches hold: then the next kernel does not find the beginning
there in any case. Whether it does follows from the grid, at the kernel's head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hal.core.description import DeviceInfo
from hal.core.dtypes import DType
from hal.tile.kernel import GLOBAL, For, Kernel, Statement, Store
from hal.tile.node import Node, toposort
from stack.compiler.text.c import control, memory
from stack.compiler.text.c.scope import ZERO, Scope, StatementRule
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter

LEAST_NBYTES = 1 << 25
"""What a launch writes at least, where the device does not say that its caches hold more."""

_RUN_NBYTES = 1 << 14
"""What an instance writes at least; a test for less would cost small kernels more than it gives."""

_VECTOR_NBYTES = 16
"""The least that processors store past their caches at once, and so what has to be aligned."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop around a store: how often it runs at most, and the most that its index is."""

    index: Node
    trips: int
    most: float


def found(kernel: Kernel, info: DeviceInfo) -> Mapping[Store, int]:
    """The stores that may write past the caches, each with the bytes that an instance writes by
    it."""
    written = {p.name for p in kernel.params if p.writes and not p.reads}
    large = {}
    for s, loops in _stores(kernel.body, ()):
        nbytes = s.value.type.nbytes * math.prod(x.trips for x in loops)
        fits = s.target.memory.name in written and _is_row(s) and _ever_new(s, loops)
        if fits and nbytes >= _RUN_NBYTES and _reach_nbytes(s, loops) >= least_nbytes(info):
            large[s] = nbytes
    return large


def least_nbytes(info: DeviceInfo) -> int:
    """What a launch writes at least for its results to go past the caches."""
    return max((LEAST_NBYTES, *(2 * nbytes for nbytes in info.limits.caches)))


def rules(out: CWriter, stores: Mapping[Store, int], least: int) -> Mapping[type, StatementRule]:
    """How to write stores, given those that go past the caches if a launch writes `least` bytes;
    writes the tests of this at the kernel's head."""
    grid = out.dialect.grid.format(0)
    flags = {}
    for s, nbytes in stores.items():
        flags[s] = out.name("t")
        out.do(f"const int {flags[s]} = {grid} >= {-(-least // nbytes)}L;")

    def store(scope: Scope, s: Store) -> None:
        if s in flags:
            _store(scope, s, flags[s])
        else:
            memory.store(scope, s)

    return {Store: store} if flags else {}


def end(out: CWriter) -> None:
    """What follows the last statement: what the instance wrote is there for whoever is told that
    it is over."""
    name = "HAL_STREAMED"
    out.do(f"{out.functions.define(name, out.dialect.streamed_end)}();")


def _store(scope: Scope, s: Store, flag: str) -> None:
    value, dtype = s.value, s.value.dtype
    if value not in scope.arrays or scope.arrays[value].find is not None:
        scope.arrays[value] = control.copied(scope, value)
    array, out = scope.arrays[value], scope.out
    place = memory.element(scope, s.target, (ZERO,) * len(value.shape))
    aligned = f"((ulong)&{place} & {_VECTOR_NBYTES - 1}) == 0"
    kind, widths = register(out.dialect, dtype), (_VECTOR_NBYTES // dtype.nbytes,)
    nest, places = memory.by_vectors(scope, array.shape, widths)
    for at, width in places:
        vector = out.functions.load(kind, width, "", f"&{array.at(at)}")
        target = f"&{memory.element(scope, s.target, at)}"
        nest.do(f"{out.functions.stream(kind, width, target, vector)};")
    with out.block(f"if ({flag} && {aligned})"):
        nest.emit()
    with out.block("else"):
        memory.store(scope, s)


# which stores


def _stores(
    block: Sequence[Statement], loops: tuple[_Loop, ...]
) -> Iterator[tuple[Store, tuple[_Loop, ...]]]:
    """The stores that every instance does, with the loops around each."""
    for s in block:
        if isinstance(s, Store):
            yield s, loops
        elif isinstance(s, For) and (span := _span(s.start, s.stop)) and s.step.op == "const":
            trips = -(-span // s.step["value"])
            most = _most(s.stop, {x.index: x.most for x in loops})
            yield from _stores(s.body, (*loops, _Loop(s.index, trips, most)))


def _is_row(s: Store) -> bool:
    """Whether elements lie side by side, without a condition, in whole vectors."""
    shape, dtype, access = s.value.shape, s.value.dtype, s.target
    if not shape or any(x is not None for x in access.limits) or access.memory.space != GLOBAL:
        return False
    one = access.strides[-1].op == "const" and access.strides[-1]["value"] == 1
    whole = shape[-1] * dtype.nbytes % _VECTOR_NBYTES == 0 and math.prod(shape[:-1]) == 1
    return one and whole and dtype is not DType.BOOL


def _ever_new(s: Store, loops: Sequence[_Loop]) -> bool:
    """Whether no loop writes the same place again."""
    used = set(toposort([s.target.offset]))
    return all(x.index in used for x in loops)


def _reach_nbytes(s: Store, loops: Sequence[_Loop]) -> float:
    """Where the last element may lie that is stored, infinite if nothing is known."""
    first = _most(s.target.offset, {x.index: x.most for x in loops})
    return (first + s.value.type.size) * s.value.dtype.nbytes


def _span(start: Node, stop: Node) -> int:
    """The most that lies between the bounds of a loop; 0 if nothing is known."""
    if start.op == stop.op == "const":
        return max(0, int(stop["value"]) - int(start["value"]))
    if stop.op == "add" and start in stop.srcs:
        return sum(int(n["value"]) for n in stop.srcs if n.op == "const")
    return max((_span(start, n) for n in stop.srcs), default=0) if stop.op == "min" else 0


def _most(n: Node, known: Mapping[Node, float]) -> float:
    """The most that an index is, infinite if nothing is known; no index is below zero."""
    if n in known:
        return known[n]
    if n.op == "const":
        return float(n["value"])
    parts = [_most(s, known) for s in n.srcs]
    match n.op:
        case "add":
            return sum(parts)
        case "mul":
            return 0.0 if 0.0 in parts else math.prod(parts)
        case "rem":
            return parts[1] - 1
        case "min":
            return min(parts)
    return math.inf
