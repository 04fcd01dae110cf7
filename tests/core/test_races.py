"""The race detector agrees with a search for paths in the graph of what waits for what."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hal_plugin_bytes.device import PYTHON, BytesDevice
from hypothesis import given

import hal
from hal.core.device import Device
from hal.core.errors import Failure, FailureKind, Scope
from hal.core.values import (
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
from hal.core.wrappers.race import Race
from hal.core.wrappers.races import races

FAILURE = Failure(FailureKind.ABORTED, Scope.OPERATION, "bytes:0", "test", "cancelled")


@pytest.fixture
def device():
    return Device(BytesDevice(), "bytes:0", [races])


@pytest.fixture
def queues(device):
    return [device.create_timeline(False) for _ in range(3)]


def program(device, reads, writes):
    text = "def touch(grid, data):\n    pass\n"
    param = Param("data", ParamKind.BUFFER, hal.DType.U8, reads=reads, writes=writes)
    return device.load(KernelSource(PYTHON, text, "touch", (param,)))


# against a search

TIMELINES, GATES, SIZE = 3, 2, 8
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 3)).map(
    lambda s: (s[0], min(s[0] + s[1], SIZE))
)
points = st.tuples(st.integers(0, TIMELINES + GATES - 1), st.integers(1, 4))
waits = st.lists(points, max_size=2)
steps = st.one_of(
    st.tuples(st.just("fill"), st.integers(0, TIMELINES - 1), spans, waits),
    st.tuples(st.just("read"), st.integers(0, TIMELINES - 1), spans, waits),
    st.tuples(st.just("signal"), st.integers(TIMELINES, TIMELINES + GATES - 1)),
    st.tuples(st.just("wait"), points),
)


@dataclass
class Model:
    """A schedule as a graph: nodes are operations and moments of the host, edges say "before"."""

    edges: dict = field(default_factory=dict)
    needs: dict = field(default_factory=dict)
    spans: dict = field(default_factory=dict)
    signalled: dict = field(default_factory=dict)
    moment: int = 0

    def submit(self, node, span, writes, needs):
        self.edges[node] = {("host", self.moment)}
        self.needs[node] = [*needs, *([(node[0], node[1] - 1)] if node[1] > 1 else [])]
        self.spans[node] = (*span, writes)

    def host(self, *after):
        self.edges[("host", self.moment + 1)] = {("host", self.moment), *after}
        self.moment += 1

    def signal(self, gate):
        self.signalled[gate] = self.signalled.get(gate, 0) + 1
        self.host()
        self.edges[(gate, self.signalled[gate])] = {("host", self.moment)}

    def placed(self):
        """The operations all of whose needs have been submitted or signalled, again and again."""
        done = {(g, v) for g, last in self.signalled.items() for v in range(1, last + 1)}
        while more := {n for n, needs in self.needs.items() if n not in done and {*needs} <= done}:
            done |= more
        return done & self.needs.keys()

    def comes_before(self, first, second):
        todo, seen = [second], set()
        while todo:
            node = todo.pop()
            if node == first:
                return True
            if node not in seen:
                seen.add(node)
                todo += [*self.edges.get(node, ()), *self.needs.get(node, ())]
        return False

    def races(self):
        placed = sorted(self.placed())
        pairs = [(a, b) for i, a in enumerate(placed) for b in placed[i + 1 :]]
        return {
            pair
            for pair in pairs
            if self.conflict(*pair) and not self.comes_before(*pair)
            if not self.comes_before(*reversed(pair))
        }

    def conflict(self, a, b):
        (start, end, writes), (other_start, other_end, other_writes) = self.spans[a], self.spans[b]
        return start < other_end and other_start < end and (writes or other_writes)


@given(st.lists(steps, max_size=14))
def test_a_race_is_raised_when_and_only_when_a_search_finds_a_new_one(schedule):
    device, model = Device(BytesDevice(), "bytes:0", [races]), Model()
    lines = [device.create_timeline(number >= TIMELINES) for number in range(TIMELINES + GATES)]
    buffer = device.alloc(SIZE, AllocOptions())
    counts, known = [0] * TIMELINES, set()
    for step in schedule:
        raised = take(step, device, model, lines, buffer, counts)
        found = model.races()
        assert raised == (found > known), (step, found - known)
        known = found


def take(step, device, model, lines, buffer, counts):
    """Take a step on the device and in the model; whether the device raised a race."""
    try:
        match step:
            case ("signal", gate):
                model.signal(gate)
                device.signal(lines[gate], model.signalled[gate], None)
            case ("wait", (line, value)):
                if device.wait([Point(lines[line], value)], 0.0, True):
                    model.host((line, value))
            case (kind, line, (start, end), needs):
                counts[line] += 1
                model.submit((line, counts[line]), (start, end), kind == "fill", needs)
                region = buffer.region(start, end - start)
                points = [Point(lines[n], value) for n, value in needs]
                if kind == "fill":
                    device.fill(region, b"x", lines[line], points)
                else:
                    device.copy(bytearray(end - start), region, lines[line], points)
    except Race:
        return True
    return False


# one by one


def test_both_operations_the_bytes_and_the_points_are_named(device, queues):
    buffer = device.alloc(16, AllocOptions())
    device.fill(buffer.region(0, 8), b"x", queues[0], [])
    launchable = device.bind(program(device, True, False), [buffer.region(4)])
    with pytest.raises(Race) as caught:
        device.launch(launchable, (1, 1, 1), queues[1], [])
    assert "bytes:0: race on bytes [4, 8) of a buffer of 16 bytes" in str(caught.value)
    assert "fill (timeline 1 at 1) writes [0, 8)" in str(caught.value)
    assert "launch touch (timeline 2 at 1) reads [4, 16)" in str(caught.value)
    assert caught.value.first.startswith("fill")
    assert "wait for the first one's point" in caught.value.next_step


@pytest.mark.parametrize(
    ("reads", "writes", "grid", "racing"),
    [
        (True, False, (1, 1, 1), False),
        (False, True, (1, 1, 1), True),
        (True, True, (1, 1, 1), True),
        (False, False, (1, 1, 1), False),
        (False, True, (1, 0, 1), False),
    ],
)
def test_a_launch_touches_what_its_parameters_say(device, queues, reads, writes, grid, racing):
    buffer = device.alloc(8, AllocOptions())
    launchable = device.bind(program(device, reads, writes), [buffer])
    device.copy(bytearray(8), buffer.region(), queues[0], [])
    if racing:
        with pytest.raises(Race):
            device.launch(launchable, grid, queues[1], [])
    else:
        device.launch(launchable, grid, queues[1], [])


def test_what_waits_for_a_failed_timeline_races_with_nothing(device, queues):
    buffer, gate = device.alloc(8, AllocOptions()), device.create_timeline(True)
    device.fill(buffer.region(), b"x", queues[0], [Point(gate, 1)])
    device.fill(buffer.region(), b"y", queues[1], [])
    device.signal(gate, 1, FAILURE)
    device.fill(buffer.region(), b"z", queues[0], [])


def test_a_signal_that_lets_a_race_happen_names_it(device, queues):
    buffer, gate = device.alloc(8, AllocOptions()), device.create_timeline(True)
    device.fill(buffer.region(), b"x", queues[0], [Point(gate, 1)])
    device.fill(buffer.region(), b"y", queues[1], [])
    with pytest.raises(Race):
        device.signal(gate, 1, None)
    assert device.wait([Point(queues[0], 1)], 0.0, True)


def test_unordered_commands_of_a_graph_race(device):
    buffer, other = device.alloc(8, AllocOptions()), device.alloc(8, AllocOptions())
    commands = [
        FillCommand(buffer.region(), b"x", after=()),
        FillCommand(other.region(), b"x", after=()),
        CopyCommand(other.region(), buffer.region(), after=(0,)),
    ]
    with pytest.raises(Race, match=r"fill \(command 1 of a graph\).*copy \(command 2 of a graph\)"):
        device.record(commands)
    commands[2] = CopyCommand(other.region(), buffer.region(), after=(0, 1))
    device.record(commands)


def test_a_slot_may_bring_the_race_into_a_graph(device, queues):
    first, second = device.alloc(8, AllocOptions()), device.alloc(8, AllocOptions())
    launchables = [device.bind(program(device, False, True), [Slot(i)]) for i in (0, 1)]
    graph = device.record([LaunchCommand(one, (1, 1, 1), after=()) for one in launchables])
    for launchable in launchables:
        device.free(launchable)
    device.replay(graph, [first, second], queues[0], [])
    with pytest.raises(Race, match=r"launch touch \(command 0 of a graph\)"):
        device.replay(graph, [first, first], queues[0], [])


def test_a_replay_races_as_a_whole(device, queues):
    buffer = device.alloc(8, AllocOptions())
    graph = device.record([FillCommand(buffer.region(), b"x")])
    point = device.replay(graph, [], queues[0], [])
    device.copy(bytearray(8), buffer.region(), queues[1], [point])
    with pytest.raises(Race, match=r"replay of 1 commands \(fill\)"):
        device.replay(graph, [], queues[2], [])


def test_a_reset_ends_every_order(device, queues):
    buffer = device.alloc(8, AllocOptions())
    device.fill(buffer.region(), b"x", queues[0], [])
    device.reset()
    device.fill(buffer.region(), b"x", queues[1], [])


def test_memory_that_was_freed_is_forgotten(device, queues):
    buffer = device.alloc(8, AllocOptions())
    device.fill(buffer.region(), b"x", queues[0], [])
    device.free(buffer)
    device.fill(device.alloc(8, AllocOptions()).region(), b"x", queues[1], [])
