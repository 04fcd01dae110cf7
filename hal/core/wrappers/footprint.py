"""What operations touch: byte ranges of buffers, read or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hal.core.facts import dataclass
from hal.core.values import (
    Argument,
    Buffer,
    Collective,
    CollectiveKind,
    Command,
    CopyCommand,
    FillCommand,
    Grid,
    Group,
    HostMemory,
    LaunchCommand,
    Param,
    Region,
    Slot,
)

Bound = Mapping[int, Sequence[Argument]]
"""The arguments that each launchable is bound to, by the launchable's id."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Bytes [start, end) of a buffer, written or only read."""

    buffer: Buffer
    start: int
    end: int
    writes: bool

    def conflicts(self, other: Touch) -> bool:
        """Whether the two share bytes of which one writes."""
        shares = self.start < other.end and other.start < self.end
        return self.buffer is other.buffer and shares and (self.writes or other.writes)

    def covers(self, other: Touch) -> bool:
        """Whether whatever conflicts with the other one conflicts with this one too."""
        inside = self.start <= other.start and other.end <= self.end
        return inside and (self.writes or not other.writes)


Footprint = tuple[Touch, ...]


def of_copy(dst: Region | HostMemory, src: Region | HostMemory) -> Footprint:
    """A copy writes `dst` and reads `src`; host memory is not followed."""
    return (*_touch(dst, writes=True), *_touch(src, writes=False))


def of_fill(dst: Region) -> Footprint:
    """A fill writes its region."""
    return tuple(_touch(dst, writes=True))


def of_launch(params: Sequence[Param], args: Sequence[Argument], grid: Grid) -> Footprint:
    """A launch touches what its program's parameters say; an empty grid touches nothing."""
    if 0 in grid:
        return ()
    pairs = zip(params, args, strict=True)
    return tuple(
        touch
        for param, arg in pairs
        if isinstance(arg, Buffer | Region) and (param.writes or param.reads)
        for touch in _touch(arg, param.writes)
    )


def of_collective(group: Group, call: Collective, dst: Region, src: Region) -> Footprint:
    """A collective writes `dst` and reads `src` on the ranks that have a use for them."""
    kind, is_root = call.kind, group.rank == call.root
    if kind is CollectiveKind.BARRIER:
        return ()
    gathers = kind in (CollectiveKind.REDUCE, CollectiveKind.GATHER)
    spreads = kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
    written = () if gathers and not is_root else tuple(_touch(dst, writes=True))
    read = () if spreads and not is_root else tuple(_touch(src, writes=False))
    return (*written, *read)


def of_command(command: Command, bound: Bound, slots: Sequence[Argument]) -> Footprint:
    """What a command of a graph touches; a slot that `slots` does not fill touches nothing."""
    match command:
        case CopyCommand(dst=dst, src=src):
            return of_copy(dst, src)
        case FillCommand(dst=dst):
            return of_fill(dst)
        case LaunchCommand(launchable=launchable, grid=grid):
            args = [
                slots[arg.index] if isinstance(arg, Slot) and arg.index < len(slots) else arg
                for arg in bound.get(id(launchable), ())
            ]
            return of_launch(launchable.program.params, args, grid) if args else ()


def unordered(commands: Sequence[Command]) -> Iterator[tuple[int, int]]:
    """The pairs of commands of a graph neither of which is after the other."""
    before: list[int] = []
    for index, command in enumerate(commands):
        after = range(index) if command.after is None else command.after
        mask = 0
        for other in after:
            mask |= before[other] | 1 << other
        before.append(mask)
        yield from ((other, index) for other in range(index) if not mask >> other & 1)


def conflict(first: Iterable[Touch], second: Footprint) -> tuple[Touch, Touch] | None:
    """The first pair of touches that conflict."""
    pairs = ((a, b) for a in first for b in second)
    return next((pair for pair in pairs if pair[0].conflicts(pair[1])), None)


def _touch(side: Buffer | Region | HostMemory, writes: bool) -> Iterator[Touch]:
    if isinstance(side, Buffer):
        side = side.region()
    if isinstance(side, Region) and side.nbytes:
        yield Touch(side.buffer, side.offset, side.offset + side.nbytes, writes)


def merged(touches: Iterable[Touch]) -> Footprint:
    """The same bytes with as few touches as possible: neighbours of a kind become one."""
    merged: list[Touch] = []
    for touch in sorted(touches, key=lambda t: (id(t.buffer), t.writes, t.start)):
        last = merged[-1] if merged else None
        same = last and last.buffer is touch.buffer and last.writes is touch.writes
        if last and same and touch.start <= last.end:
            end = max(last.end, touch.end)
            merged[-1] = Touch(last.buffer, last.start, end, last.writes)
        else:
            merged.append(touch)
    return tuple(merged)
