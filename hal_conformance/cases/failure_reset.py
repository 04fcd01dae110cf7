"""Reset: everything of the old epoch has failed, is stale and freed, and the device works again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from hal.core.description import Feature
from hal.core.errors import Failure, OperationFailed, StaleHandle
from hal.core.values import AllocOptions, Buffer, FillCommand, HealthState, Point, Timeline
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.faults import LOST, RESET_REQUIRED, Doom, plant, planted
from hal_conformance.held import check_held, held
from hal_conformance.rig import Rig
from hal_conformance.steps import KINDS, QUIET_S, cells, element, lines, stamp, turn, turned, work

failure_reset = Cases("I", Level.RESILIENT)

NEEDS = (Feature.RESET,)
BOTH = (Feature.RESET, Feature.INJECT)
HOW = {"loss": LOST, "reset-required": RESET_REQUIRED}


@failure_reset.case("works-after-reset", "reset.works", needs=BOTH, how=tuple(HOW), kind=KINDS)
def _(rig: Rig, how: str, kind: str) -> None:
    epoch = rig.device.health().epoch
    Doom(rig, how=HOW[how]).strike()
    lost = rig.device.health().state
    expect.that(lost is not HealthState.OK, f"the state before the reset is {lost}")
    expect.equal(rig.reset(), epoch + 1, "the epoch that reset gives")
    health = rig.device.health()
    expect.equal(health.state, HealthState.OK, "the state after reset")
    expect.equal((health.epoch, health.cause), (epoch + 1, None), "the epoch and cause after reset")
    one = work(rig, kind)
    rig.done(one.submit(rig.timeline(), ()))
    expect.equal(one.ran(), True, f"whether a {kind} ran after the reset")


@failure_reset.case("computes-after-reset", "reset.works", needs=BOTH)
def _(rig: Rig) -> None:
    dtype = element(rig, ints=True)
    Doom(rig).strike()
    rig.reset()
    (cell,), (array,) = cells(rig, dtype, 1)
    program = rig.program(turn(dtype))
    for k in range(10):
        rig.launch(program, (cell, k))
    expect.same(rig.array(cell, dtype), turned(array, range(10)), "ten kernels after the reset")


@failure_reset.case("reset-of-a-healthy-device", "reset.clears", "reset.works", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    epoch, gate, copy = rig.device.health().epoch, rig.gate(), work(rig, "copy-out")
    point = copy.submit(line, (gate.point,))
    expect.equal([rig.reset(), rig.reset()], [epoch + 1, epoch + 2], "the epochs of two resets")
    expect.raises(StaleHandle, rig.device.wait, [point], 0, True)
    expect.equal(copy.ran(), False, "whether a copy ran that a reset ended")
    rig.done(work(rig, "fill").submit(rig.timeline(), ()))


@failure_reset.case("reset-wakes-waiters", "reset.clears", "call.threads", needs=NEEDS)
def _(rig: Rig) -> None:
    """Of eight threads that wait, none sees its point reached, and none waits on."""
    (line,) = lines(rig, 1)
    gate, waiting = rig.gate(), threading.Semaphore(0)
    points = [work(rig, "fill").submit(line, (gate.point,)), gate.point]

    def waiter(index: int) -> str:
        waiting.release()
        try:
            rig.device.wait([points[index % 2]], 5, True)
        except (OperationFailed, StaleHandle):
            return "woken"
        return "reached or late"

    def reset() -> str:
        for _ in range(8):
            waiting.acquire(timeout=5)
        rig.device.wait([gate.point], QUIET_S, True)
        rig.reset()
        return "woken"

    calls: list[Callable[[], str]] = [partial(waiter, index) for index in range(8)]
    expect.equal(together([*calls, reset]), ["woken"] * 9, "what the waiters got")


@failure_reset.case("stale-after-reset", "handle.stale", "reset.clears", needs=NEEDS)
def _(rig: Rig) -> None:
    """Every kind of handle, in every call that takes it."""
    device, line = rig.device, lines(rig, 1)[0]
    program = rig.program(stamp(element(rig)))
    buffer, gate = rig.buffer(64), rig.gate()
    bound = device.bind(program, (buffer,))
    rig.reset()
    fresh, own = rig.buffer(64), rig.timeline()
    for call in (
        lambda: device.free(buffer),
        lambda: device.free(program),
        lambda: device.free(bound),
        lambda: device.free(line),
        lambda: device.free(gate.timeline),
        lambda: device.fill(buffer.region(), b"\0", own, ()),
        lambda: device.fill(fresh.region(), b"\0", line, ()),
        lambda: device.fill(fresh.region(), b"\0", own, (gate.point,)),
        lambda: device.copy(fresh.region(), buffer.region(), own, ()),
        lambda: device.bind(program, (fresh,)),
        lambda: device.launch(bound, (1, 1, 1), own, ()),
        lambda: device.wait([Point(line, 1)], 0, True),
        lambda: device.wait([gate.point], 0, True),
        gate.open,
    ):
        expect.raises(StaleHandle, call)


@failure_reset.case(
    "stale-graph-after-reset", "handle.stale", "reset.clears", needs=(*NEEDS, Feature.GRAPH)
)
def _(rig: Rig) -> None:
    graph = rig.device.record([FillCommand(rig.buffer(8).region(), b"\1")])
    rig.reset()
    expect.raises(StaleHandle, rig.device.replay, graph, (), rig.timeline(), ())
    expect.raises(StaleHandle, rig.device.free, graph)


@failure_reset.case(
    "memory-after-reset", "reset.clears", "stats.exact", needs=(*BOTH, Feature.STATS)
)
def _(rig: Rig) -> None:
    """Live buffers, those of pending work and those that a graph keeps: all is given back."""
    (line,) = lines(rig, 1)
    gate, doom = rig.gate(), Doom(rig)
    buffers = [rig.device.alloc(10_000, AllocOptions()) for _ in range(5)]
    rig.device.fill(buffers[0].region(), b"\1", line, (gate.point,))
    rig.device.free(buffers[0])
    if Feature.GRAPH in rig.info.features:
        rig.device.record([FillCommand(buffers[1].region(), b"\1")])
        rig.device.free(buffers[1])
    doom.strike()
    rig.reset()
    stats = rig.device.stats("")
    expect.equal((stats.live_nbytes, stats.live_buffers), (0, 0), "(bytes, buffers) after reset")


@failure_reset.case("all-memory-after-reset", "reset.clears", "reset.works", needs=BOTH)
def _(rig: Rig) -> None:
    """What a lost device held can be allocated again, three times over."""
    most = min(rig.info.limits.alloc_nbytes, 256 << 20)
    for _ in range(3):
        held = [rig.device.alloc(most // 4, AllocOptions()) for _ in range(3)]
        expect.equal(len(held), 3, "buffers of a quarter of the memory each")
        Doom(rig).strike()
        rig.reset()


@failure_reset.case("twenty-losses", "reset.works", "reset.clears", "open.leaks", needs=BOTH)
def _(rig: Rig) -> None:
    """Twenty losses and resets leave no descriptor, no thread and no memory behind."""
    _loss_and_reset(rig, 0)
    before = held()
    for number in range(1, 20):
        _loss_and_reset(rig, number)
    check_held(before, "19 losses and resets")


@failure_reset.case("losses-in-turn", "health.cause", "reset.works", needs=BOTH)
def _(rig: Rig) -> None:
    """Each loss has its own cause, and none of an epoch before."""
    for number in range(5):
        doom = Doom(rig, how=LOST if number % 2 else RESET_REQUIRED)
        doom.failure = planted(rig.device, LOST, f"loss {number}")
        expect.equal(rig.device.health().cause, None, "the cause before the loss")
        doom.strike()
        expect.equal(rig.device.health().cause, doom.failure, "the cause of the loss")
        rig.reset()


@failure_reset.case("faults-of-a-new-epoch", "inject.true", "reset.works", needs=BOTH)
def _(rig: Rig) -> None:
    Doom(rig).strike()
    rig.reset()
    (line,) = lines(rig, 1)
    fill = work(rig, "fill")
    failure = plant(rig.device, planted(rig.device), "fill")
    expect.equal(rig.failed(fill.submit(line, ())), failure, "the failure after a reset")


@failure_reset.case("close-after-reset", "close.failed", "reset.works", needs=BOTH)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate = rig.gate()
    work(rig, "fill").submit(line, (gate.point,))
    Doom(rig).strike()
    rig.reset()
    rig.device.close()
    rig.device.close()
    expect.raises(StaleHandle, rig.device.reset)


@failure_reset.case("reset-while-others-submit", "reset.works", "call.threads", needs=NEEDS)
def _(rig: Rig) -> None:
    """Threads that submit while the device is reset get their points, or errors of the contract."""
    held = lines(rig, 4)
    buffers, ended = [rig.buffer(64) for _ in held], threading.Event()

    def submit(index: int) -> str:
        is_last = False
        while not is_last:
            is_last = ended.is_set()  # then its handles are stale
            try:
                _fill_and_wait(rig, buffers[index], held[index])
            except (OperationFailed, StaleHandle):
                return "refused"
        return "never refused"

    def reset() -> str:
        time.sleep(QUIET_S)
        try:
            rig.reset()
        finally:
            ended.set()
        return "reset"

    calls: list[Callable[[], str]] = [partial(submit, index) for index in range(4)]
    expect.equal(together([*calls, reset]), ["refused"] * 4 + ["reset"], "what the threads got")
    rig.done(work(rig, "copy").submit(rig.timeline(), ()))


def _fill_and_wait(rig: Rig, buffer: Buffer, line: Timeline) -> None:
    point = rig.device.fill(buffer.region(), b"\1", line, ())
    rig.done(point)


def _loss_and_reset(rig: Rig, number: int) -> Failure:
    """Use all that a device has, lose it, reset it."""
    (line,) = lines(rig, 1)
    gate, buffer = rig.gate(), rig.buffer(4096)
    kinds = [
        kind
        for kind, feature in {
            "launch": None,
            "copy": None,
            "replay": Feature.GRAPH,
            "host_call": Feature.HOST_CALL,
        }.items()
        if feature is None or feature in rig.info.features
    ]
    for kind in kinds:
        rig.done(work(rig, kind).submit(rig.timeline(), ()))
    rig.device.fill(buffer.region(), b"\1", line, (gate.point,))
    failure = Doom(rig).strike()
    rig.reset()
    if Feature.STATS in rig.info.features:
        live = rig.device.stats("").live_nbytes
        expect.equal(live, 0, f"the bytes held after reset {number}")
    return failure
