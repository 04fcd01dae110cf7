"""Mutants of graphs."""

from dataclasses import replace

from hal.core.errors import Failure, FailureKind, Scope
from hal.hosted.lock import LOCK
from tests.mutants.zoo import hook, mutant


@mutant("graph-unordered", "runs a graph's commands in any order", "record.order")
def _(device):
    real = device.record

    def record(commands):
        return real([replace(command, after=()) for command in commands])

    hook(device, record)


@mutant(
    "graph-ignores-after",
    "runs commands that name what they come after in any order",
    "record.order",
)
def _(device):
    real = device.record

    def record(commands):
        loose = [c if c.after is None else replace(c, after=()) for c in commands]
        return real(loose)

    hook(device, record)


@mutant("graph-backwards", "runs a graph's commands from the last to the first", "record.order")
def _(device):
    real = device.record

    def record(commands):
        return real([replace(command, after=None) for command in reversed(commands)])

    hook(device, record)


@mutant("graph-holds-nothing", "lets what a graph uses end with its owner", "record.keeps")
def _(device):
    real = device.record

    def record(commands):
        graph = real(commands)
        with LOCK:
            for allocation in graph.native.keeps:
                allocation.let_go()
        graph.native.keeps = ()
        return graph

    hook(device, record)


@mutant("graph-holds-for-ever", "holds what a graph uses when the graph is freed", "record.keeps")
def _(device):
    device._work.free = lambda graph: None


@mutant("replay-once", "runs a graph at its first replay alone", "replay.same")
def _(device):
    real, seen = device.replay, []

    def replay(graph, slots, timeline, waits):
        if any(graph is other for other in seen):
            return device._session.submit_tasks("replay", (), timeline, waits)
        seen.append(graph)
        return real(graph, slots, timeline, waits)

    hook(device, replay)


@mutant("replay-drops-last", "leaves out the last of several commands", "replay.same")
def _(device):
    real = device.record

    def record(commands):
        graph = real(commands)
        native = graph.native
        if len(commands) > 1:
            native.commands, native.tasks = native.commands[:-1], native.tasks[:-1]
        return graph

    hook(device, record)


@mutant(
    "replay-of-the-record", "replays with the buffers' contents at the first replay", "replay.same"
)
def _(device):
    machine, kept, real = device._session.machine, {}, device.replay
    read = machine.read
    inside = []

    def read_once(memory, offset, nbytes):
        if not inside:
            return read(memory, offset, nbytes)
        return kept.setdefault((id(memory), offset, nbytes), read(memory, offset, nbytes))

    def replay(graph, slots, timeline, waits):
        tasks = tuple(
            replace(t, run=_within(inside, t.run)) if t else t for t in graph.native.tasks
        )
        if not any(graph is other for other in seen):
            graph.native.tasks = tasks
            seen.append(graph)
        return real(graph, slots, timeline, waits)

    seen = []
    machine.read = read_once
    hook(device, replay)


def _within(inside, run):
    def marked(part):
        inside.append(run)
        try:
            run(part)
        finally:
            inside.pop()

    return marked


@mutant("slots-of-the-first-replay", "replays with the first replay's slots", "replay.slots")
def _(device):
    real, first = device.replay, {}

    def replay(graph, slots, timeline, waits):
        return real(graph, first.setdefault(graph, tuple(slots)), timeline, waits)

    hook(device, replay)


@mutant(
    "slots-late", "fills the slots when the replay runs, not when it is submitted", "replay.slots"
)
def _(device):
    real, last = device.replay, {}

    def replay(graph, slots, timeline, waits):
        last[graph] = slots
        make = device._work._task
        tasks = [
            task or make(command, slots)
            for task, command in zip(graph.native.tasks, graph.native.commands, strict=True)
        ]
        late = [
            replace(task, run=lambda part, c=command: make(c, last[graph]).run(part))
            for task, command in zip(tasks, graph.native.commands, strict=True)
        ]
        assert real
        return device._session.submit_tasks("replay", tuple(late), timeline, waits, (graph.native,))

    hook(device, replay)


@mutant(
    "replay-cause-lost", 'says "the graph failed" in place of the command\'s cause', "replay.fails"
)
def _(device):
    faults, name = device._session.faults, device._session.name
    real = faults.take

    def take(hook):
        failure = real(hook)
        if failure is None or hook != "replay":
            return failure
        return Failure(FailureKind.ABORTED, Scope.OPERATION, name, "replay", "the graph failed")

    faults.take = take


@mutant(
    "replay-failure-swallowed", "reaches a graph's point although a command failed", "replay.fails"
)
def _(device):
    faults = device._session.faults
    real = faults.take

    def take(hook):
        failure = real(hook)
        return None if hook == "replay" else failure

    faults.take = take
