"""Graphs: a replay does what its commands would do, each time anew, with the slots of its call."""

from __future__ import annotations

import numpy as np

from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, InvalidCall, Scope, StaleHandle
from hal.core.values import (
    Buffer,
    Command,
    CopyCommand,
    Fault,
    FillCommand,
    Graph,
    LaunchCommand,
    Slot,
)
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.cases.memory_alloc import fits
from hal_conformance.rig import Rig
from hal_conformance.steps import QUIET_S, N, cells, element, lines, mix, turn, turned, work

order_graphs = Cases("F", Level.ASYNC)

NEEDS = (Feature.GRAPH,)
ONE = (1, 1, 1)
CHAIN = 8


def _turns(rig: Rig, cell: Buffer, dtype: DType, numbers: range) -> list[Command]:
    """Commands that turn the cell with these numbers."""
    program = rig.program(turn(dtype))
    return [LaunchCommand(rig.device.bind(program, (cell, k)), ONE) for k in numbers]


def _slotted(rig: Rig, dtype: DType) -> Graph:
    """A graph that turns slot 0 with slot 1, twice."""
    bound = rig.device.bind(rig.program(turn(dtype)), (Slot(0), Slot(1)))
    return rig.device.record([LaunchCommand(bound, ONE), LaunchCommand(bound, ONE)])


def _replay(rig: Rig, graph: Graph) -> None:
    rig.done(rig.device.replay(graph, (), rig.timeline(), ()))


@order_graphs.case("graph-is-its-commands", "replay.same", "record.order", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    graph = rig.device.record(_turns(rig, cell, dtype, range(20)))
    expect.equal((graph.commands, graph.slots), (20, 0), "the graph's commands and slots")
    expect.same(rig.array(cell, dtype), array, "the cell before the replay")
    _replay(rig, graph)
    expect.same(rig.array(cell, dtype), turned(array, range(20)), "the cell after the replay")


@order_graphs.case("graph-of-all-kinds", "replay.same", "record.order", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (a, b, c), (x, _, _) = cells(rig, dtype, 3)
    bound = rig.device.bind(rig.program(mix(dtype)), (a, b, c, 2))
    graph = rig.device.record(
        [
            CopyCommand(b.region(), a.region()),
            LaunchCommand(bound, ONE),
            FillCommand(a.region(), b"\0"),
            CopyCommand(a.region(0, dtype.nbytes), c.region(dtype.nbytes, dtype.nbytes)),
        ]
    )
    _replay(rig, graph)
    first = np.zeros(N, NUMPY[dtype])
    first[0] = (x * 4 + 2)[1]
    expect.same(rig.array(c, dtype), x * 4 + 2, "the launch's result")
    expect.same(rig.array(a, dtype), first, "the filled and then copied cell")


@order_graphs.case("empty-graph", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    graph, gate = rig.device.record([]), rig.gate()
    expect.equal((graph.commands, graph.slots), (0, 0), "the graph's commands and slots")
    point = rig.device.replay(graph, (), line, (gate.point,))
    expect.that(rig.pending(point), "an empty graph waits, too")
    gate.open()
    rig.done(point)


@order_graphs.case("grid-of-nothing-in-a-graph", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    bound = rig.device.bind(rig.program(turn(dtype)), (cell, 1))
    _replay(rig, rig.device.record([LaunchCommand(bound, (0, 1, 1)), LaunchCommand(bound, ONE)]))
    expect.same(rig.array(cell, dtype), turned(array, [1]), "the cell")


@order_graphs.case("hundred-replays", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    graph = rig.device.record(_turns(rig, cell, dtype, range(1, 4)))
    for _ in range(100):
        point = rig.device.replay(graph, (), rig.timeline(), ())
    rig.done(point)
    wanted = turned(array, [1, 2, 3] * 100)
    expect.same(rig.array(cell, dtype), wanted, "the cell after 100 replays")


@order_graphs.case("replay-reads-anew", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    source, target = rig.buffer(16), rig.buffer(16)
    graph = rig.device.record([CopyCommand(target.region(), source.region())])
    for _ in range(3):
        data = rig.noise(16)
        rig.write(source.region(), data)
        _replay(rig, graph)
        expect.same_bytes(rig.read(target), data, "what the replay copied")


@order_graphs.case("slots-of-each-replay", "replay.slots", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    buffers, arrays = cells(rig, dtype, 3)
    graph = _slotted(rig, dtype)
    expect.equal(graph.slots, 2, "the graph's slots")
    for number, buffer in enumerate(buffers):
        rig.done(rig.device.replay(graph, (buffer, number + 5), rig.timeline(), ()))
    for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
        wanted = turned(array, [number + 5] * 2)
        expect.same(rig.array(buffer, dtype), wanted, f"the cell of replay {number}")


@order_graphs.case("slots-many", "replay.slots", needs=NEEDS, count=(4, 9, 33))
def _(rig: Rig, count: int) -> None:
    """Each of many slots has what its replay gives, the last one too."""
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    program = rig.program(turn(dtype))
    bound = [rig.device.bind(program, (cell, Slot(i))) for i in range(count)]
    graph = rig.device.record([LaunchCommand(launchable, ONE) for launchable in bound])
    expect.equal(graph.slots, count, "the graph's slots")
    numbers: list[int] = []
    for number in (1, 2):
        given = [number + i % 7 for i in range(count)]
        rig.done(rig.device.replay(graph, given, rig.timeline(), ()))
        numbers += given
    wanted = turned(array, numbers)
    expect.same(rig.array(cell, dtype), wanted, f"the cell after two replays with {count} slots")


@order_graphs.case("slots-are-captured-at-replay", "replay.slots", needs=NEEDS)
def _(rig: Rig) -> None:
    """Three replays wait at once, each with its own arguments."""
    dtype, (line,) = element(rig, ints=True), lines(rig, 1)
    buffers, arrays = cells(rig, dtype, 3)
    graph, gate = _slotted(rig, dtype), rig.gate()
    for number, buffer in enumerate(buffers):
        point = rig.device.replay(graph, [buffer, number + 5], line, (gate.point,))
    gate.open()
    rig.done(point)
    for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
        wanted = turned(array, [number + 5] * 2)
        expect.same(rig.array(buffer, dtype), wanted, f"the cell of replay {number}")


@order_graphs.case("slot-takes-a-region", "replay.slots", needs=NEEDS, cell=(2, 600, 9000, 140_000))
def _(rig: Rig, cell: int) -> None:
    """However far in its buffer the region begins."""
    dtype = element(rig, ints=True)
    array = np.arange((cell + 2) * N).astype(NUMPY[dtype])
    buffer, nbytes = rig.buffer(array), N * dtype.nbytes
    graph = _slotted(rig, dtype)
    region = buffer.region(cell * nbytes, nbytes)
    rig.done(rig.device.replay(graph, (region, 3), rig.timeline(), ()))
    place = slice(cell * N, (cell + 1) * N)
    array[place] = turned(array[place], [3, 3])
    expect.same(rig.array(buffer, dtype), array, "the buffer around the region")


@order_graphs.case("wrong-slots-are-refused", "call.refused", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (cell,), (array,) = cells(rig, dtype, 1)
    graph = _slotted(rig, dtype)
    for slots in ((), (cell,), (cell, 1, 2), (1, 1), (cell, cell)):
        expect.raises(InvalidCall, rig.device.replay, graph, slots, rig.timeline(), ())
    bound = rig.device.bind(rig.program(turn(dtype)), (cell, Slot(0)))
    expect.raises(InvalidCall, rig.device.launch, bound, ONE, rig.timeline(), ())
    expect.same(rig.array(cell, dtype), array, "the cell after refused calls")


@order_graphs.case("after-names-earlier-commands", "call.refused", needs=NEEDS)
def _(rig: Rig) -> None:
    cell = rig.buffer(8)
    first = FillCommand(cell.region(), b"\1")
    for after in ((1,), (2,), (-1,)):
        commands = [first, FillCommand(cell.region(), b"\2", after)]
        expect.raises(InvalidCall, rig.device.record, commands)


@order_graphs.case("only-after-orders", "record.order", needs=NEEDS, seed=range(4))
def _(rig: Rig, seed: int) -> None:
    """Random commands on a few cells, each after exactly those whose result it must see."""
    shadow = [bytearray(rig.noise(64)) for _ in range(5)]
    buffers = [rig.buffer(bytes(cell)) for cell in shadow]
    commands: list[Command] = []
    users: list[list[tuple[int, bool]]] = [[] for _ in shadow]
    for number in range(40):
        to, of = (int(i) for i in rig.random.choice(len(shadow), 2, replace=False))
        reads = bool(rig.random.integers(4))
        after = {i for i, _ in users[to]} | ({i for i, w in users[of] if w} if reads else set())
        if reads:
            command: Command = CopyCommand(
                buffers[to].region(), buffers[of].region(), tuple(sorted(after))
            )
            shadow[to][:] = shadow[of]
            users[of].append((number, False))
        else:
            pattern = rig.noise(4)
            command = FillCommand(buffers[to].region(), pattern, tuple(sorted(after)))
            shadow[to][:] = pattern * 16
        users[to] = [(number, True)]
        commands.append(command)
    _replay(rig, rig.device.record(commands))
    for number, (buffer, wanted) in enumerate(zip(buffers, shadow, strict=True)):
        expect.same_bytes(rig.read(buffer), bytes(wanted), f"cell {number} of seed {seed}")


@order_graphs.case("small-after-big", "record.order", needs=NEEDS)
def _(rig: Rig) -> None:
    """A command of microseconds after one of milliseconds: side by side it would be too early."""
    size = min(4 << 20, rig.info.limits.alloc_nbytes // 4)
    big, small = rig.buffer(bytes(size)), rig.buffer(bytes(64))
    graphs = [
        rig.device.record(
            [
                FillCommand(big.region(), bytes([byte])),
                CopyCommand(small.region(), big.region(size - 64, 64), after=(0,)),
            ]
        )
        for byte in (1, 2, 3, 4)
    ]
    for byte, graph in enumerate(graphs, 1):
        _replay(rig, graph)
        expect.same_bytes(rig.read(small), bytes([byte]) * 64, f"what replay {byte} copied")


@order_graphs.case("after-many", "record.order", needs=NEEDS, count=(9, 65))
def _(rig: Rig, count: int) -> None:
    """Of many commands that one comes after, the one that is done last is named last: the end of a
    chain, and the longest of all."""
    size = min(8 << 20, rig.info.limits.alloc_nbytes // 4)
    big, small, log = rig.buffer(bytes(size)), rig.buffer(bytes(64)), rig.buffer(bytes(8 * count))
    chain: list[Command] = [
        FillCommand(log.region(0, 8), bytes([i]), after=(i - 1,) if i else ()) for i in range(CHAIN)
    ]
    chain.append(FillCommand(big.region(), b"\1", after=(CHAIN - 1,)))
    others = [FillCommand(log.region(8 * i, 8), b"\1", after=()) for i in range(1, count)]
    after = (*range(CHAIN + 1, CHAIN + count), CHAIN)
    last = CopyCommand(small.region(), big.region(size - 64, 64), after=after)
    _replay(rig, rig.device.record([*chain, *others, last]))
    expect.same_bytes(rig.read(small), b"\1" * 64, f"what a command after {count} others copied")


@order_graphs.case("graph-large", "replay.same", needs=NEEDS, mib=(1, 4, 8))
def _(rig: Rig, mib: int) -> None:
    """Every byte of a large fill and copy in a graph, and no other."""
    size = (mib << 20) + 13
    fits(rig, size + 128, 2)
    source, target = rig.buffer(bytes(size + 128)), rig.buffer(bytes(size + 128))
    commands: list[Command] = [
        FillCommand(source.region(64, size), b"\x5a"),
        CopyCommand(target.region(64, size), source.region(64, size)),
    ]
    _replay(rig, rig.device.record(commands))
    wanted = bytes(64) + b"\x5a" * size + bytes(64)
    expect.same_bytes(rig.read(source), wanted, f"{size} bytes filled in a graph")
    expect.same_bytes(rig.read(target), wanted, f"{size} bytes copied in a graph")


@order_graphs.case("after-nothing-still-joins", "record.order", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    """Commands after none run side by side; one after all, and the point, wait for them all."""
    log, end = rig.buffer(bytes(160)), rig.buffer(bytes(160))
    commands: list[Command] = [
        FillCommand(log.region(8 * i, 8), bytes([i + 1]), after=()) for i in range(20)
    ]
    graph = rig.device.record([*commands, CopyCommand(end.region(), log.region())])
    _replay(rig, graph)
    wanted = bytes(i + 1 for i in range(20) for _ in range(8))
    expect.same_bytes(rig.read(end), wanted, "what the last command saw")


@order_graphs.case("graph-keeps-what-it-uses", "record.keeps", needs=NEEDS)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    (cell, spy), (array, _) = cells(rig, dtype, 2)
    turns = _turns(rig, cell, dtype, range(3))
    graph = rig.device.record([*turns, CopyCommand(spy.region(), cell.region())])
    for command in turns:
        assert isinstance(command, LaunchCommand)
        rig.device.free(command.launchable)
    rig.device.free(cell)
    squatter = rig.buffer(b"\xee" * cell.nbytes)
    _replay(rig, graph)
    expect.same(rig.array(spy, dtype), turned(array, range(3)), "what the graph copied at its end")
    expect.same_bytes(rig.read(squatter), b"\xee" * cell.nbytes, "a buffer made after the free")


@order_graphs.case(
    "freed-graph-gives-memory-back", "record.keeps", needs=(Feature.GRAPH, Feature.STATS)
)
def _(rig: Rig) -> None:
    before = rig.device.stats("").live_nbytes
    cell = rig.buffer(4096)
    graph = rig.device.record([FillCommand(cell.region(), b"\1")])
    _replay(rig, graph)
    rig.device.free(cell)
    expect.that(rig.device.stats("").live_nbytes > before, "the graph holds its buffer")
    rig.device.free(graph)
    expect.equal(rig.device.stats("").live_nbytes, before, "the bytes held without the graph")


@order_graphs.case("free-graph-before-it-runs", "free.deferred", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    cell, gate = rig.buffer(bytes(8)), rig.gate()
    graph = rig.device.record([FillCommand(cell.region(), b"\7")])
    point = rig.device.replay(graph, (), line, (gate.point,))
    rig.device.free(graph)
    expect.raises(StaleHandle, rig.device.replay, graph, (), rig.timeline(), ())
    gate.open()
    rig.done(point)
    expect.same_bytes(rig.read(cell), b"\7" * 8, "what a graph wrote that was freed before it ran")


@order_graphs.case("graph-waits-and-holds", "submit.waits", "submit.order", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, cell, spy = rig.gate(), rig.buffer(bytes(8)), rig.buffer(bytes(8))
    commands = [FillCommand(cell.region(0, 4), b"\1"), FillCommand(cell.region(4, 4), b"\1")]
    graph = rig.device.record(commands)
    rig.device.replay(graph, (), line, (gate.point,))
    point = rig.device.copy(spy.region(), cell.region(), line, ())
    rig.device.wait([point], QUIET_S, True)
    expect.same_bytes(rig.read(cell), bytes(8), "the cell while the graph waits")
    gate.open()
    rig.done(point)
    expect.same_bytes(rig.read(spy), b"\1" * 8, "what a copy behind the graph saw")


@order_graphs.case("one-graph-on-many-timelines", "replay.slots", "replay.same", needs=NEEDS)
def _(rig: Rig) -> None:
    """Replays of one graph at once, on a timeline each, share nothing but the graph."""
    dtype, held = element(rig, ints=True), lines(rig, 4)
    buffers, arrays = cells(rig, dtype, 4)
    graph, gate = _slotted(rig, dtype), rig.gate()
    for number in range(10):
        points = [
            rig.device.replay(graph, (buffer, number), line, (gate.point,))
            for buffer, line in zip(buffers, held, strict=True)
        ]
    gate.open()
    for point in points:
        rig.done(point)
    for buffer, array in zip(buffers, arrays, strict=True):
        wanted = turned(array, [n for n in range(10) for _ in range(2)])
        expect.same(rig.array(buffer, dtype), wanted, "a cell after ten replays")


@order_graphs.case(
    "failure-in-a-graph", "replay.fails", "submit.poisoned", needs=(Feature.GRAPH, Feature.INJECT)
)
def _(rig: Rig) -> None:
    line, other = lines(rig, 2)
    cell, copy = rig.buffer(bytes(64)), work(rig, "copy")
    commands = [FillCommand(cell.region(8 * i, 8), b"\1") for i in range(8)]
    graph = rig.device.record(commands)
    planted = Failure(FailureKind.ILLEGAL_ADDRESS, Scope.OPERATION, rig.name, "replay", "planted")
    rig.device.inject(Fault(planted, "replay"))
    point = rig.device.replay(graph, (), line, ())
    behind = copy.submit(line, ())
    expect.equal(rig.failed(point), planted, "the failure of the graph's point")
    expect.equal(rig.failed(behind), planted, "the failure behind it")
    expect.equal(copy.ran(), False, "whether a copy behind the graph ran")
    rig.done(rig.device.replay(graph, (), other, ()))
    expect.same_bytes(rig.read(cell), b"\1" * 64, "what the next replay wrote")
