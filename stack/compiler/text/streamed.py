"""Results that no cache holds: which stores of a kernel may go past the caches.

To store what is not in a cache first reads its line from memory; whole vectors at addresses that
are multiples of their size can go there without. What was written so is in no cache, so it is done
only where a launch writes more than a cache keeps until it is read. Whether it does follows from
the grid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from hal.core.dtypes import DType
from hal.core.facts import dataclass
from hal.tile.kernel import GLOBAL, For, Kernel, Statement, Store
from hal.tile.node import Node, toposort
from stack.compiler.text.indices import step_of

LEAST_NBYTES = 1 << 24
"""What a launch writes at least. Measured in processor time on a large shared last cache (Sapphire
Rapids), a copy of 16 MiB gained 35 to 64 %, with or without a kernel behind it that reads the
result, and one of 1 MiB lost as much; where all of a small last cache is this process's own
(Zen 3), 16 MiB lost 15 % alone and gained 17 % with a kernel behind it."""

LEAST_VECTOR_NBYTES = 16
"""The least that processors store past their caches at once."""

_RUN_NBYTES = 1 << 11
"""What an instance writes at least; a test for less would cost small kernels more than it gives.
Measured on Zen 3 with norms and softmax over rows of twice this size, of which those of 16 and 256
MB gained 25 to 100 % and those of 1 MB lost nothing, and with cross-entropy over 16 MB of rows of
half of it, which an instance has two of: a sixteenth."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop around a store: how often it runs at most, and the most that its index is."""

    index: Node
    trips: int
    most: float


def found(kernel: Kernel, vector_nbytes: Callable[[DType], int]) -> Mapping[Store, int]:
    """The stores that may write past the caches by whole vectors of so many bytes of a type, each
    with the bytes that an instance writes by it and by the others that write to that memory, or,
    where others write what lies between two instances, with the bytes from one to the next; none
    where no launch writes enough."""
    written = {p.name for p in kernel.params if p.writes and not p.reads}
    stores = [
        (s, loops, s.value.type.nbytes * math.prod(x.trips for x in loops))
        for s, loops in _stores(kernel.body, ())
    ]
    together = Counter[str]()
    for s, _, nbytes in stores:
        together[s.target.memory.name] += nbytes
    large = {}
    for s, loops, _ in stores:
        nbytes = together[s.target.memory.name]
        whole = s.target.memory.name in written and _is_whole(s, vector_nbytes(s.value.dtype))
        used = set(toposort([s.target.offset]))
        if not whole or any(x.index not in used for x in loops):
            continue  # or a loop writes the same place again
        if nbytes >= _RUN_NBYTES and _reach_nbytes(s, loops) >= LEAST_NBYTES:
            large[s] = max(nbytes, (step_of(s.target.offset) or 0) * s.value.dtype.nbytes)
    return large


def instances(nbytes: int) -> int:
    """How many instances that write so many bytes make a launch that writes enough."""
    return -(-LEAST_NBYTES // nbytes)


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


def _is_whole(s: Store, vector_nbytes: int) -> bool:
    """Whether rows lie in one piece each, without a condition, in whole vectors, all of them
    aligned if the first one is."""
    shape, dtype, access = s.value.shape, s.value.dtype, s.target
    if not shape or any(x is not None for x in access.limits) or access.memory.space != GLOBAL:
        return False
    if dtype is DType.BOOL or any(n.op != "const" for n in access.strides):
        return False
    *outer, one = (n["value"] for n in access.strides)
    steps = (shape[-1], *(n for n, size in zip(outer, shape, strict=False) if size > 1))
    wide = vector_nbytes >= LEAST_VECTOR_NBYTES
    return one == 1 and wide and all(n * dtype.nbytes % vector_nbytes == 0 for n in steps)


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
