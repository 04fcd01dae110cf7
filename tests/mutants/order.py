"""Mutants of submission: waits, order, failures that spread, threads."""

import threading
import time
from dataclasses import replace

from hal.core.errors import Failure, FailureKind, InvalidCall, Scope
from hal.core.values import Buffer
from hal.hosted.lock import LOCK
from hal.hosted.queues import HostTasks, Job, Stage, failure_of, reached
from tests.mutants.zoo import checked, hook, lax, mutant


def _waits(device, change):
    """Let every submitted operation wait for `change(waits)`."""
    session = device._session
    real = session.submit_tasks

    def submit_tasks(hook, tasks, timeline, waits, keeps=()):
        return real(hook, tasks, timeline, change(waits), keeps)

    session.submit_tasks = submit_tasks


@mutant("ignores-waits", "waits for nothing", "submit.waits")
def _(device):
    _waits(device, lambda waits: ())


@mutant("drops-last-wait", "waits for all but the last of several points", "submit.waits")
def _(device):
    _waits(device, lambda waits: waits[:-1] if len(waits) > 1 else waits)


@mutant("drops-first-wait", "waits for all but the first of several points", "submit.waits")
def _(device):
    _waits(device, lambda waits: waits[1:] if len(waits) > 1 else waits)


@mutant("waits-for-less", "waits for the value before the one that was named", "submit.waits")
def _(device):
    _waits(device, lambda waits: [replace(p, value=max(0, p.value - 1)) for p in waits])


@mutant("waits-for-the-host-alone", "forgets to wait for its own timelines", "submit.waits")
def _(device):
    _waits(device, lambda waits: [p for p in waits if p.timeline.host_driven])


@mutant("fill-overtakes", "fills at once what waits for no point", "submit.order")
def _(device):
    real = device.fill

    def fill(dst, pattern, timeline, waits):
        if not waits and dst.buffer.native.memory is not None:
            data = pattern * (dst.nbytes // len(pattern))
            device._session.machine.write(dst.buffer.native.memory, dst.offset, data)
        return real(dst, pattern, timeline, waits)

    hook(device, fill)


@mutant(
    "timelines-unordered",
    "runs work that waits for no point on a timeline of its own",
    "submit.order",
)
def _(device):
    real = device.copy

    def copy(dst, src, timeline, waits):
        if not waits:
            device.wait([real(dst, src, device.create_timeline(False), ())], 1.0, True)
        return real(dst, src, timeline, waits)

    hook(device, copy)


@mutant("refuses-to-queue", "refuses work whose wait is not over", "submit.async")
def _(device):
    def check(waits):
        if not all(map(reached, waits)):
            raise InvalidCall("it cannot run now")
        return waits

    _waits(device, check)


@mutant("submission-waits", "returns from `copy` when the copy is done", "submit.async")
def _(device):
    real = device.copy

    def copy(dst, src, timeline, waits):
        point = real(dst, src, timeline, waits)
        device.wait([point], 3.0, True)
        if not reached(point):
            raise InvalidCall("the copy took too long")
        return point

    hook(device, copy)


@mutant("signals-early", "reaches a point before its work is done", "wait.true")
def _(device):
    scheduler = device._scheduler
    real = scheduler._work

    def work(op):
        if isinstance(op.work, HostTasks | Job):
            with LOCK:
                op.queue.value = op.value
                device._session.changed.notify_all()
            time.sleep(0.1)
        real(op)

    scheduler._work = work


@mutant("signals-never", "does not reach the point of every seventh operation", "submit.order")
def _(device):
    session = device._session
    real = session.finish

    def finish(op, spans):
        before = op.queue.value
        real(op, spans)
        if op.number % 7 == 0:
            op.queue.value = before

    session.finish = finish


@mutant("runs-behind-a-failure", "runs an operation although its wait failed", "submit.poisoned")
def _(device):
    scheduler = device._scheduler
    scheduler._pass_on_failures = lambda: None
    scheduler._is_ready = lambda op: (
        op.stage is Stage.WAITING and all(reached(p) or failure_of(p) for p in op.waits)
    )


def _passes_on(device, change):
    """Give operations behind a failure `change(cause)` as their cause."""
    scheduler, session = device._scheduler, device._session

    def pass_on():
        found = True
        while found:
            found = False
            for op in list(scheduler._heads()):
                cause = next(filter(None, map(failure_of, op.waits)), None)
                if op.stage is Stage.WAITING and cause is not None:
                    session.fail(op.queue, op.value, change(cause))
                    found = True

    scheduler._pass_on_failures = pass_on


@mutant("cause-is-aborted", "tells those behind a failure that they were aborted", "submit.fails")
def _(device):
    name = device._session.name

    def aborted(cause):
        return Failure(FailureKind.ABORTED, Scope.OPERATION, name, "", "aborted")

    _passes_on(device, aborted)


@mutant("cause-is-reworded", "changes the message of a failure that it passes on", "submit.fails")
def _(device):
    _passes_on(device, lambda cause: replace(cause, message=f"because of: {cause.message}"))


@mutant(
    "failure-ends-there", "goes on with a timeline behind an operation that failed", "submit.fails"
)
def _(device):
    session = device._session

    def fail(queue, first, cause):
        for op in queue.fail(first, cause):
            if op.value == first:
                session.drop(op, cause)
            else:
                queue.todo.append(op)
        queue.value = max(queue.value, first)
        session.changed.notify_all()

    session.fail = fail


@mutant("failure-takes-all", "fails every timeline when one operation fails", "submit.apart")
def _(device):
    scheduler, session = device._scheduler, device._session
    real = scheduler._fail

    def fail(op, failure):
        real(op, failure)
        session.fail_all(failure)

    scheduler._fail = fail


@mutant("values-by-two", "takes two values of a timeline for a fill", "timeline.values")
def _(device):
    real = device.fill

    def fill(dst, pattern, timeline, waits):
        real(replace(dst, nbytes=0), pattern, timeline, waits)
        return real(dst, pattern, timeline, waits)

    hook(device, fill)


@mutant(
    "value-of-refused-call",
    "takes a value of the timeline for a copy of nothing twice",
    "timeline.values",
)
def _(device):
    real = device.copy

    def copy(dst, src, timeline, waits):
        point = real(dst, src, timeline, waits)
        return real(dst, src, timeline, (point,)) if point.value == 2 else point

    hook(device, copy)


@mutant("one-queue", "has one queue for all timelines", "timeline.independent")
def _(device):
    scheduler = device._scheduler
    heads = scheduler._heads

    def first():
        found = sorted(heads(), key=lambda op: op.number)
        return iter(found[:1])

    scheduler._heads = first


@mutant(
    "one-thread-only",
    "refuses calls from another thread than the one that opened it",
    "call.threads",
)
def _(device):
    owner, real = threading.get_ident(), device.alloc

    def alloc(nbytes, options):
        if threading.get_ident() != owner:
            raise InvalidCall("this device belongs to another thread")
        return real(nbytes, options)

    hook(device, alloc)


@mutant("threads-lose-work", "forgets fills that another thread submits", "call.threads")
def _(device):
    owner, real = threading.get_ident(), device.fill

    def fill(dst, pattern, timeline, waits):
        mine = threading.get_ident() == owner
        return real(dst if mine else replace(dst, nbytes=0), pattern, timeline, waits)

    hook(device, fill)


@lax("checks-no-points", "takes waits for anything", "handle.stale")
def _(checks):
    checks._points = lambda where, points: None


@lax("stale-after-reset", "takes handles of an earlier epoch", "handle.stale")
def _(checks):
    handles = checks._handles
    handles.restart = lambda epoch: None
    handles.check = lambda where, handle, kind: None


@lax("foreign-handles", "takes handles of another session", "open.sessions")
def _(checks):
    checks._handles.check = lambda where, handle, kind: None


def _at_least_nothing(device):
    real = device.alloc

    def alloc(nbytes, options):
        return real(max(0, nbytes), options)

    hook(device, alloc)


@lax("negative-sizes", "takes a negative size as 0", "call.refused", device=_at_least_nothing)
def _(checks):
    def alloc(nbytes, options):
        return checks._new("alloc", Buffer, (yield))

    checked(checks, alloc)


@mutant(
    "launch-before-a-large-copy-ends",
    "lets a launch see the end of a copy of more than 256 KiB only after it",
    "submit.order",
)
def _(device):
    machine, late = device._session.machine, []
    write, read, run = machine.write, machine.read, machine.run

    def flush():
        while late:
            write(*late.pop(0))

    def wrong_write(memory, offset, data):
        flush()
        half = len(data) // 2
        if len(data) > 1 << 18:
            write(memory, offset, data[:half])
            late.append((memory, offset + half, bytes(data[half:])))
        else:
            write(memory, offset, data)

    def wrong_read(memory, offset, nbytes):
        flush()
        return read(memory, offset, nbytes)

    def wrong_run(program, args, grid):
        run(program, args, grid)
        flush()

    machine.write, machine.read, machine.run = wrong_write, wrong_read, wrong_run


@mutant(
    "waits-in-turns-dropped",
    "forgets a wait for a timeline that has itself waited for this one",
    "submit.waits",
)
def _(device):
    waited = set()

    def kept(timeline, waits):
        here, found = id(timeline.native), []
        for point in waits:
            there = id(point.timeline.native)
            if point.timeline.host_driven or (there, here) not in waited:
                found.append(point)
                waited.add((here, there))
        return found

    real_copy, real_launch = device.copy, device.launch

    def copy(dst, src, timeline, waits):
        return real_copy(dst, src, timeline, kept(timeline, waits))

    def launch(launchable, grid, timeline, waits):
        return real_launch(launchable, grid, timeline, kept(timeline, waits))

    hook(device, copy)
    hook(device, launch)
