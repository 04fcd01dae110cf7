"""What the compiler hands to the runtime: a graph as a list of calls on numbered buffers.

All arrays are contiguous, row-major and begin at offset 0 of their buffer. Calls have sequential
meaning; the runtime may overlap those that touch no common bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from hal.core.facts import dataclass
from hal.core.values import Grid, KernelSource
from hal.tile.node import Node, Type
from hal.tile.size import Facts
from stack.comm.messages import RankCall

BufferKind = Literal["input", "output", "temp", "host"]


class NeedsPlainSizes(Exception):
    """A graph has views that can be told apart only where their sizes are plain numbers."""


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Bytes [offset_nbytes, offset_nbytes + nbytes) of an input, output or temporary, or of a
    temporary that waits in the host's memory, by its index.

    An output that updates an input is that input's memory: both names reach the same bytes. Only
    copies reach the host's memory, all bytes of one of these at once.
    """

    kind: BufferKind
    index: int
    offset_nbytes: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run a program over a grid; what it reads and writes follows from `source.params`."""

    source: KernelSource
    grid: Grid
    args: tuple[BufferRef | int | float, ...]


@dataclass(frozen=True, slots=True)
class CopyCall:
    """Copy bytes; both sides have equal `nbytes` and do not overlap."""

    dst: BufferRef
    src: BufferRef


@dataclass(frozen=True, slots=True)
class ExchangeCall:
    """Make a call with the other ranks of a group, in place where `dst` is `src`. What the call
    does not write of `dst` on this rank is 0 afterwards.

    Every rank of the group makes the same collectives with it in the same order. `elements` is
    what of each part travels, where that is data: i64, for an all-to-all. `kept` is what earlier
    calls send and nothing may overwrite before this one has begun.
    """

    group: str
    call: RankCall
    dst: BufferRef
    src: BufferRef
    elements: BufferRef | None = None
    kept: tuple[BufferRef, ...] = ()

    @property
    def sources(self) -> tuple[BufferRef, ...]:
        """What it reads."""
        return (self.src,) if self.elements is None else (self.src, self.elements)

    def renamed(self, name: Callable[[BufferRef], BufferRef]) -> ExchangeCall:
        """The same call on other buffers."""
        return replace(
            self,
            dst=name(self.dst),
            src=name(self.src),
            elements=None if self.elements is None else name(self.elements),
            kept=tuple(map(name, self.kept)),
        )


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """Where a value is that a loop carries: at first at `begin`, which stays as it is; then in turn
    at `other` and `end`, so that a step overwrites nothing that it reads; after the last step at
    `end`."""

    begin: BufferRef
    end: BufferRef
    other: BufferRef


@dataclass(frozen=True, slots=True)
class LoopCall:
    """Run a graph `steps` times: it takes `consts`, the carried values and step i's part of each of
    `rows`, and gives the next carried values and step i's part of each of `stacks`.

    Buffers are in equal parts, one for each step; with `reverse` the first step has the last of
    them. With `tested` the first carried value is a bool, which the host reads before each step:
    where it is False, that step and all after it are not made, and their parts of `stacks` become
    0. The temporaries of `body` are those of the graph that the loop is in.
    """

    body: CompiledGraph
    steps: int
    consts: tuple[BufferRef, ...]
    carried: tuple[CarriedValue, ...]
    rows: tuple[BufferRef, ...]
    stacks: tuple[BufferRef, ...]
    reverse: bool = False
    tested: bool = False

    @property
    def reads(self) -> tuple[BufferRef, ...]:
        """What it reads, but for temporaries of the body."""
        return (*self.consts, *(c.begin for c in self.carried), *self.rows)

    @property
    def writes(self) -> tuple[BufferRef, ...]:
        """What it writes, and may read again, but for temporaries of the body."""
        pairs = (ref for c in self.carried for ref in (c.end, c.other))
        return (*pairs, *self.stacks)

    def renamed(self, name: Callable[[BufferRef], BufferRef]) -> LoopCall:
        """The same call on other buffers; the body's are as they were."""
        return replace(
            self,
            consts=tuple(map(name, self.consts)),
            carried=tuple(
                CarriedValue(name(c.begin), name(c.end), name(c.other)) for c in self.carried
            ),
            rows=tuple(map(name, self.rows)),
            stacks=tuple(map(name, self.stacks)),
        )


Call = KernelCall | CopyCall | ExchangeCall | LoopCall


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """What to compute: `outputs` from `inputs` (nodes of op "input", in the order of `run`'s
    arguments).

    An update (output, input) writes that output into that input's array after every read of the old
    value; the two have one type, and no input is updated twice. `facts` is what is known of the
    sizes in it; None: all of them are numbers.
    """

    outputs: tuple[Node, ...]
    inputs: tuple[Node, ...]
    updates: tuple[tuple[int, int], ...] = ()
    facts: Facts | None = None


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A compiled request: the calls in order, and the size in bytes of each temporary.

    Every byte of every output is written by a call, also where the output is only an input or
    another output.
    """

    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    updates: tuple[tuple[int, int], ...]
    temps: tuple[int, ...]
    calls: tuple[Call, ...]


def launches(graph: CompiledGraph) -> int:
    """The kernel calls of a run, in which every step of a loop is made."""
    found = 0
    for call in graph.calls:
        if isinstance(call, LoopCall):
            found += call.steps * launches(call.body)
        found += isinstance(call, KernelCall)
    return found
