"""Mutants of failure and recovery."""

import time
from dataclasses import replace

from hal.core.errors import Failure, FailureKind, InvalidCall, OperationFailed, Scope
from hal.core.values import Fault, HealthState
from hal.hosted.lock import LOCK
from hal.hosted.queues import HostTasks, Stage
from tests.mutants.zoo import hook, mutant


@mutant("loss-wakes-nobody", "leaves those waiting whose device is lost", "failure.loss")
def _(device):
    session = device._session

    def lose(failure):
        session.cause, session.state = failure, HealthState.LOST

    session.lose = lose


@mutant(
    "loss-without-cause",
    "tells those waiting for a lost device that they were aborted",
    "failure.loss",
)
def _(device):
    session = device._session
    real = session.fail_all

    def fail_all(failure):
        real(session.aborted("wait", "aborted", Scope.DEVICE))

    session.fail_all = fail_all


@mutant("loss-spares-gates", "fails device timelines alone when the device is lost", "failure.loss")
def _(device):
    session = device._session

    def fail_all(failure):
        for queue in session.queues:
            if not queue.host_driven:
                session.fail(queue, queue.value + 1, failure)

    session.fail_all = fail_all


@mutant("loss-is-forgotten", "takes submissions after the device was lost", "failure.refuses")
def _(device):
    device._session.check_usable = lambda where: None


@mutant(
    "loss-refused-without-cause",
    "refuses submissions after a loss with InvalidCall",
    "failure.refuses",
)
def _(device):
    session = device._session

    def check_usable(where):
        if session.cause is not None:
            raise InvalidCall("the device is not usable")

    session.check_usable = check_usable


@mutant("hang-is-a-fault", "gives a hang the kind LAUNCH_FAULT", "failure.hang")
def _(device):
    scheduler = device._scheduler
    real = scheduler._fail

    def fail(op, failure):
        if failure.kind is FailureKind.HANG:
            failure = replace(failure, kind=FailureKind.LAUNCH_FAULT)
        real(op, failure)

    scheduler._fail = fail


@mutant("hang-is-never-found", "waits for ever for an operation that hangs", "failure.hang")
def _(device):
    # longer than a case waits here on the busiest machine
    scheduler, patience_s = device._scheduler, 6.0
    real = scheduler._expire

    def expire():
        if all(time.monotonic() - op.since_s > patience_s for op in scheduler._heads()):
            real()

    scheduler._expire = expire


@mutant("waiting-is-a-hang", "takes work that waits for the host for a hang", "failure.hang")
def _(device):
    scheduler, session, seen = device._scheduler, device._session, {}
    real = scheduler._expire

    def expire():
        real()
        now = time.monotonic()
        for op in list(scheduler._heads()):
            since = seen.setdefault(id(op), now)
            if op.stage is Stage.WAITING and now - since > 0.12:
                text = "no progress"
                hang = Failure(FailureKind.HANG, Scope.OPERATION, session.name, "", text)
                session.fail(op.queue, op.value, hang)

    scheduler._expire = expire


@mutant(
    "slow-host-call-is-a-hang",
    "takes a host function that takes its time for a hang",
    "host_call.slow",
)
def _(device):
    scheduler, session = device._scheduler, device._session
    real = scheduler._expire

    def expire():
        real()
        for op in list(scheduler._heads()):
            apart = isinstance(op.work, HostTasks) and op.work.apart
            if apart and op.stage is Stage.RUNNING and time.monotonic() - op.since_s > 0.12:
                hang = Failure(FailureKind.HANG, Scope.OPERATION, session.name, "", "no progress")
                session.fail(op.queue, op.value, hang)

    scheduler._expire = expire


@mutant("health-waits", "answers `health` when the work is done", "health.prompt")
def _(device):
    real, session = device.health, device._session

    def health():
        end = time.monotonic() + 3.0
        while session.active and time.monotonic() < end:
            time.sleep(0.005)
        return real()

    hook(device, health)


@mutant("health-is-ok", "says OK whatever happened", "health.cause")
def _(device):
    real = device.health

    def health():
        return replace(real(), state=HealthState.OK, cause=None)

    hook(device, health)


@mutant("health-names-the-last", "names the last cause, not the first", "health.cause")
def _(device):
    session = device._session
    real = session.lose

    def lose(failure):
        real(failure)
        session.cause = failure

    session.lose = lose


@mutant("inject-next", "injects a fault at the next call, whatever its number", "inject.true")
def _(device):
    real = device.inject

    def inject(fault):
        real(replace(fault, nth=1))

    hook(device, inject)


@mutant("inject-reworded", "injects a failure of its own words", "inject.true")
def _(device):
    real = device.inject

    def inject(fault):
        real(Fault(replace(fault.failure, message="injected"), fault.hook, fault.nth))

    hook(device, inject)


@mutant(
    "inject-writes-all", "writes everything where a fault asks for a partial write", "inject.true"
)
def _(device):
    session = device._session
    real = session.submit_tasks

    def submit_tasks(hook, tasks, timeline, waits, keeps=()):
        whole = tuple(replace(t, run=lambda part, t=t: t.run(False)) for t in tasks)
        return real(hook, whole, timeline, waits, keeps)

    session.submit_tasks = submit_tasks


@mutant("subscribers-hear-twice", "calls subscribers twice for a failure", "subscribe.once")
def _(device):
    real = device.subscribe

    def subscribe(callback):
        real(callback)
        real(callback)

    hook(device, subscribe)


@mutant("last-subscriber-alone", "calls the last subscriber alone", "subscribe.once")
def _(device):
    real = device.subscribe

    def subscribe(callback):
        device._subscribers.clear()
        real(callback)

    hook(device, subscribe)


@mutant("subscribers-hear-of-work", "tells subscribers of failed operations", "subscribe.once")
def _(device):
    scheduler = device._scheduler
    real = scheduler._fail

    def fail(op, failure):
        real(op, failure)
        for callback in device._subscribers:
            callback(failure)

    scheduler._fail = fail


@mutant("reset-keeps-memory", "keeps memory allocated over a reset", "reset.clears")
def _(device):
    device._memory.free_all = lambda: None


@mutant("reset-same-epoch", "begins no new epoch at a reset", "reset.clears")
def _(device):
    real, session = device.reset, device._session

    def reset():
        real()
        session.epoch = 0
        return 0

    hook(device, reset)


@mutant("reset-reaches-points", "takes points for reached that a reset ended", "reset.clears")
def _(device):
    session = device._session
    real = session.fail_all

    def fail_all(failure):
        if failure.operation != "reset":
            real(failure)
            return
        with LOCK:
            for queue in session.queues:
                queue.todo.clear()
                queue.value = 1 << 40
            session.changed.notify_all()

    session.fail_all = fail_all


@mutant("reset-stays-lost", "stays lost after a reset", "reset.works")
def _(device):
    real, session = device.reset, device._session

    def reset():
        cause, state = session.cause, session.state
        epoch = real()
        session.cause, session.state = cause, state
        return epoch

    hook(device, reset)


@mutant("close-raises-after-loss", "raises the cause when a lost device is closed", "close.failed")
def _(device):
    real, session = device.close, device._session

    def close():
        cause = session.cause
        real()
        if cause is not None:
            raise OperationFailed(cause)

    hook(device, close)


@mutant("close-once", "raises at a second close", "close.twice")
def _(device):
    real, session = device.close, device._session

    def close():
        if session.state is HealthState.CLOSED:
            raise InvalidCall("the device is closed already")
        real()

    hook(device, close)


@mutant("close-wants-all-freed", "refuses to close while buffers are live", "close.live")
def _(device):
    real = device.close

    def close():
        live = len(device._memory._live)
        real()
        if live:
            raise InvalidCall(f"{live} buffers are live")

    hook(device, close)


@mutant("close-drops-work", "drops submitted work at close", "close.drains")
def _(device):
    device._scheduler.busy = lambda: False
