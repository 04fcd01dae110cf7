import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall, StaleHandle
from hal.core.values import (
    LLVM_IR,
    AllocOptions,
    CopyCommand,
    FillCommand,
    KernelSource,
    LaunchCommand,
    Param,
    ParamKind,
    Point,
    Slot,
)

PLAIN = AllocOptions()


def chain(rig, texts, n, **after):
    """A cell, and commands that each turn it from v into 4 v + c."""
    cell = rig.upload(np.zeros(64, np.int64))
    program = rig.load(texts["mix"], "mix", "bbbi")
    bound = [rig.device.bind(program, (cell, cell, cell, c)) for c in range(n)]
    return cell, [LaunchCommand(b, (64, 1, 1), **after) for b in bound]


def chain_value(n, start=0):
    for c in range(n):
        start = (start * 4 + c) % 2**64
    return start


def test_an_ordered_graph_is_the_direct_sequence(rig, texts):
    cell, commands = chain(rig, texts, 100)
    graph = rig.device.record(commands)
    assert (graph.commands, graph.slots) == (100, 0)
    rig.wait(rig.device.replay(graph, (), rig.timeline, ()))
    assert (rig.download(cell, np.uint64) == chain_value(100)).all()


def test_an_empty_graph_reaches_its_point(rig):
    graph = rig.device.record(())
    rig.wait(rig.device.replay(graph, (), rig.timeline, ()))


def test_a_long_chain_without_work_needs_no_more_stack_than_a_short_one(rig):
    cell = rig.upload(np.zeros(8, np.int64))
    nothing, something = cell.region(0, 0), cell.region(0, 8)
    chain_ = [FillCommand(nothing, b"\0", (k - 1,) if k else ()) for k in range(20_000)]
    graph = rig.device.record([*chain_, FillCommand(something, b"\7", (len(chain_) - 1,))])
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(
            target=rig.device.replay, args=(graph, (), rig.timeline, ()), daemon=True
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(20)
    assert rig.download(cell, np.uint8)[:8].tolist() == [7] * 8


def test_graphs_mix_launches_copies_and_fills(rig, texts):
    a, b = (rig.upload(np.zeros(4096, np.int64)) for _ in range(2))
    program = rig.load(texts["increment"], "increment", "bi")
    graph = rig.device.record(
        [
            FillCommand(a.region(), np.int64(5).tobytes()),
            LaunchCommand(rig.device.bind(program, (a, 2)), (4096, 1, 1)),
            CopyCommand(b.region(8, 4088 * 8), a.region(0, 4088 * 8)),
            FillCommand(a.region(0, 8), b"\1"),
            LaunchCommand(rig.device.bind(program, (b, 1)), (0, 1, 1)),
        ]
    )
    for _ in range(2):
        rig.device.replay(graph, (), rig.timeline, ())
    expected = np.full(4096, 7)
    expected[0], expected[4089:] = 0, 0
    assert np.array_equal(rig.download(b, np.int64), expected)
    assert rig.download(a, np.int64)[:2].tolist() == [0x0101010101010101, 7]


def test_slots_are_bound_at_replay_and_captured_then(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    bound = rig.device.bind(program, (Slot(1), Slot(0)))
    fixed = rig.upload(np.zeros(1000, np.int64))
    graph = rig.device.record(
        [
            LaunchCommand(bound, (1000, 1, 1)),
            LaunchCommand(rig.device.bind(program, (fixed, Slot(0))), (1000, 1, 1)),
            LaunchCommand(bound, (10, 1, 1)),
        ]
    )
    assert graph.slots == 2
    cells = [rig.upload(np.zeros(1000, np.int64)) for _ in range(3)]
    gate = rig.device.create_timeline(True)
    for k, cell in enumerate(cells):  # all wait, so their arguments are different ones at once
        rig.device.replay(graph, (10**k, cell), rig.timeline, (Point(gate, 1),))
    rig.device.signal(gate, 1, None)
    for k, cell in enumerate(cells):
        got = rig.download(cell, np.int64)
        assert (got[:10] == 2 * 10**k).all()
        assert (got[10:] == 10**k).all()
    assert (rig.download(fixed, np.int64) == 111).all()


def test_a_slot_takes_regions_and_checks_them(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    graph = rig.device.record([LaunchCommand(rig.device.bind(program, (Slot(0), 1)), (2, 1, 1))])
    buffer = rig.upload(np.zeros(8, np.int64))
    rig.device.replay(graph, (buffer.region(16, 16),), rig.timeline, ())
    assert rig.download(buffer, np.int64).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    for slots in ((), (buffer, buffer), (buffer.region(60, 16),), (7,)):
        with pytest.raises(InvalidCall):
            rig.device.replay(graph, slots, rig.timeline, ())
    rig.device.free(buffer)
    with pytest.raises(StaleHandle):
        rig.device.replay(graph, (buffer,), rig.timeline, ())


def test_one_slot_fills_parameters_of_different_types(rig):
    text = """
    define void @echo(ptr %args, ptr %grid, i64 %begin, i64 %end) {
      %slot = getelementptr i64, ptr %args, i64 1
      %out = load ptr, ptr %args
      %bits = load i64, ptr %slot
      store i64 %bits, ptr %out
      ret void
    }"""
    outs = [rig.upload(np.zeros(1, np.uint64)) for _ in range(2)]
    commands = []
    for out, dtype in zip(outs, (DType.F32, DType.I16), strict=True):
        params = (Param("out", ParamKind.BUFFER, DType.I64), Param("v", ParamKind.SCALAR, dtype))
        program = rig.device.load(KernelSource(LLVM_IR, text, "echo", params))
        commands.append(LaunchCommand(rig.device.bind(program, (out, Slot(0))), (1, 1, 1)))
    graph = rig.device.record(commands)
    assert graph.slots == 1
    rig.device.replay(graph, (3,), rig.timeline, ())
    assert rig.download(outs[0], np.float32)[0] == 3.0
    assert rig.download(outs[1], np.uint64)[0] == 3


def test_commands_may_name_only_earlier_ones(rig, texts):
    _, commands = chain(rig, texts, 2)
    for after in ((1,), (2,), (-1,)):
        with pytest.raises(InvalidCall):
            rig.device.record(
                [commands[0], LaunchCommand(commands[1].launchable, (1, 1, 1), after)]
            )


def test_a_thousand_replays(rig, texts):
    cell = rig.upload(np.zeros(300, np.int64))
    program = rig.load(texts["increment"], "increment", "bi")
    graph = rig.device.record(
        [LaunchCommand(rig.device.bind(program, (cell, c)), (300, 1, 1)) for c in (1, 2, 3)]
    )
    for _ in range(1000):
        rig.device.replay(graph, (), rig.timeline, ())
    assert (rig.download(cell, np.int64) == 6000).all()


def test_a_graph_keeps_its_buffers_until_it_is_freed(rig, texts):
    cell, commands = chain(rig, texts, 5)
    graph = rig.device.record(commands)
    spy = rig.device.alloc(cell.nbytes, PLAIN)
    keeper = rig.device.record([*commands, CopyCommand(spy.region(), cell.region())])
    for command in commands:
        rig.device.free(command.launchable)
    rig.device.free(cell)
    assert rig.device.stats("").live_nbytes == cell.nbytes + spy.nbytes
    rig.device.replay(keeper, (), rig.timeline, ())
    assert (rig.download(spy, np.uint64) == chain_value(5)).all()
    rig.device.free(keeper)
    rig.device.free(graph)
    assert rig.device.stats("").live_nbytes == spy.nbytes
    with pytest.raises(StaleHandle):
        rig.device.replay(graph, (), rig.timeline, ())


def test_freeing_a_graph_in_flight_lets_it_finish(rig, texts):
    cell, commands = chain(rig, texts, 9)
    graph = rig.device.record(commands)
    gate = rig.device.create_timeline(True)
    rig.device.replay(graph, (), rig.timeline, (Point(gate, 1),))
    rig.device.free(graph)
    rig.device.signal(gate, 1, None)
    assert (rig.download(cell, np.uint64) == chain_value(9)).all()


def test_replays_on_two_timelines_do_not_share_state(rig, texts):
    program = rig.load(texts["increment"], "increment", "bi")
    bound = rig.device.bind(program, (Slot(0), 1))
    graph = rig.device.record([LaunchCommand(bound, (500, 1, 1)) for _ in range(20)])
    lines = [rig.device.create_timeline(False) for _ in range(4)]
    cells = [rig.upload(np.zeros(500, np.int64)) for _ in lines]
    for _ in range(25):
        for line, cell in zip(lines, cells, strict=True):
            rig.device.replay(graph, (cell,), line, ())
    rig.wait(*(Point(line, 25) for line in lines))
    for cell in cells:
        assert (rig.download(cell, np.int64) == 500).all()


def test_every_command_leaves_a_span(rig, texts):
    _, commands = chain(rig, texts, 6)
    buffer = rig.device.alloc(64, PLAIN)
    graph = rig.device.record([*commands, FillCommand(buffer.region(), b"\0")])
    point = rig.device.replay(graph, (), rig.timeline, ())
    rig.wait(point)
    spans = rig.device.timestamps(point)
    assert [span.name for span in spans] == ["mix"] * 6 + ["fill"]
    edges = [edge for span in spans for edge in (span.start_ns, span.end_ns)]
    assert edges == sorted(edges)


@pytest.mark.slow
@settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_graphs_equal_their_direct_run(shared_rig, texts, data):
    """Each command on a few cells names in `after` those that touched its cells before."""
    rig = shared_rig
    n = data.draw(st.integers(0, 25))
    size = data.draw(st.sampled_from([1, 16, 5000]))
    touch = data.draw(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=n, max_size=n))
    shadow = [np.arange(size, dtype=np.int64) + k for k in range(4)]
    cells = [rig.upload(array) for array in shadow]
    program = rig.load(texts["mix"], "mix", "bbbi")
    commands = []
    for i, (a, b, c) in enumerate(touch):
        after = tuple(j for j in range(i) if {a, b, c} & set(touch[j]))
        bound = rig.device.bind(program, (cells[a], cells[b], cells[c], i))
        everything = data.draw(st.booleans())
        commands.append(LaunchCommand(bound, (size, 1, 1), None if everything else after))
        shadow[c] = shadow[a] * 3 + shadow[b] + i
    graph = rig.device.record(commands)
    rig.wait(rig.device.replay(graph, (), rig.timeline, ()))
    for cell, expected in zip(cells, shadow, strict=True):
        assert np.array_equal(rig.download(cell, np.int64), expected)
    for handle in (graph, program, *cells):
        rig.device.free(handle)
