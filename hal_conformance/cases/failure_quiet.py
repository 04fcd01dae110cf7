"""A lost device stays calm: it answers, ends and is forgotten without harm."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from hal.core.description import Feature
from hal.core.errors import HalError
from hal.core.values import AllocOptions, HealthState, Point
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.faults import (
    FAULT,
    LOST,
    RESET_REQUIRED,
    Doom,
    caught,
    fastest,
    lost_error,
    plant,
    planted,
    stopwatch,
)
from hal_conformance.rig import Rig
from hal_conformance.steps import QUIET_S, element, lines, stamp, work

failure_quiet = Cases("I", Level.RESILIENT)

NEEDS = (Feature.INJECT,)
HEALTH_S = 0.05
WORK_S = 2.0
"""How long work waits at most for an answer of `health`."""


@failure_quiet.case("health-is-prompt", "health.prompt", timed=True, when=("idle", "busy", "lost"))
def _(rig: Rig, when: str) -> None:
    if when == "lost" and Feature.INJECT in rig.info.features:
        Doom(rig).strike()
    if when == "busy":
        fill = work(rig, "fill")
        for _ in range(500):
            fill.submit(rig.timeline(), ())
    took = fastest(3, lambda _: _health_s(rig))
    expect.that(took <= HEALTH_S, f"the best of three took {took:.3f} s, allowed are {HEALTH_S} s")


@failure_quiet.case("health-while-at-work", "health.prompt", needs=(Feature.HOST_CALL,))
def _(rig: Rig) -> None:
    """Work that ends only after `health` has answered."""
    answered, running = threading.Event(), threading.Event()

    def hold() -> None:
        running.set()
        answered.wait(WORK_S)

    point = rig.device.host_call(hold, rig.timeline(), ())
    rig.device.wait([point], QUIET_S, True)
    rig.until(running.is_set, "the host call")
    state, at_work = rig.device.health().state, rig.pending(point)
    answered.set()
    expect.equal((state, at_work), (HealthState.OK, True), "(the state, the work goes on)")
    rig.done(point)


@failure_quiet.case("health-from-eight-threads", "health.prompt", "call.threads")
def _(rig: Rig) -> None:
    gate, (line,) = rig.gate(), lines(rig, 1)
    work(rig, "fill").submit(line, (gate.point,))
    states = together([lambda: {rig.device.health().state for _ in range(50)}] * 8)
    expect.equal(states, [{HealthState.OK}] * 8, "the states that eight threads saw")
    gate.open()


@failure_quiet.case("health-after-an-operation-failed", "health.cause", needs=NEEDS)
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    plant(rig.device, planted(rig.device), "fill")
    caught(rig.device, work(rig, "fill").submit(line, ()))
    expect.equal(rig.device.health().state, HealthState.OK, "the state after a failed operation")


@failure_quiet.case("signal-after-loss-is-ignored", "signal.first", needs=NEEDS)
def _(rig: Rig) -> None:
    gate, failure = rig.gate(), Doom(rig).strike()
    rig.device.signal(gate.timeline, 1, None)
    gate.fail(planted(rig.device, FAULT, "late"))
    lost_error(caught(rig.device, gate.point), failure)


@failure_quiet.case("free-after-loss", "close.failed", needs=NEEDS)
def _(rig: Rig) -> None:
    """What owners do when they go: give their handles back, and close."""
    (line,) = lines(rig, 1)
    program = rig.program(stamp(element(rig)))
    buffer, gate, doom = rig.buffer(64), rig.gate(), Doom(rig)
    bound = rig.device.bind(program, (rig.buffer(64),))
    rig.device.fill(buffer.region(), b"\1", line, (gate.point,))
    doom.strike()
    for handle in (buffer, bound, program, line, gate.timeline):
        rig.device.free(handle)
    rig.device.close()
    expect.equal(rig.device.health().state, HealthState.CLOSED, "the state after close")


@failure_quiet.case("close-after-loss", "close.failed", needs=NEEDS, how=("lost", "reset-required"))
def _(rig: Rig, how: str) -> None:
    (line,) = lines(rig, 1)
    gate, doom = rig.gate(), Doom(rig, how=LOST if how == "lost" else RESET_REQUIRED)
    work(rig, "fill").submit(line, (gate.point,))
    doom.strike()
    rig.device.close()
    rig.device.close()


@failure_quiet.case("dropped-after-loss", "close.failed", needs=NEEDS)
def _(rig: Rig) -> None:
    """A lost session that its owner forgets without `close` goes without a word."""
    said: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, said.append
    try:
        device = rig.setting.registry().open(rig.name)
        line, buffer = device.create_timeline(False), device.alloc(8, AllocOptions())
        plant(device, planted(device, LOST), "fill")
        caught(device, device.fill(buffer.region(), b"\0", line, ()))
        del device, line, buffer
        gc.collect()
    finally:
        sys.unraisablehook = hook
    expect.equal([str(word.exc_value) for word in said], [], "what went wrong while it went")


@failure_quiet.case("loss-during-close", "close.failed", needs=(Feature.INJECT, Feature.HOST_CALL))
def _(rig: Rig) -> None:
    """`close` waits for work, and that work loses the device."""
    (line,) = lines(rig, 1)
    doom, entered = Doom(rig), threading.Event()
    closing = threading.Event()

    def slow() -> None:
        entered.set()
        closing.wait(QUIET_S)

    rig.device.host_call(slow, line, ())
    doom.submit(line)
    rig.device.wait([Point(line, 1)], 0, True)
    entered.wait(1)
    rig.device.close()
    expect.equal(rig.device.health().state, HealthState.CLOSED, "the state after close")


@failure_quiet.case(
    "loss-during-a-host-call", "failure.loss", needs=(Feature.INJECT, Feature.HOST_CALL)
)
def _(rig: Rig) -> None:
    """The device goes while a host function runs: its point has the cause, and it ends in peace."""
    (line,) = lines(rig, 1)
    doom, entered, finish, ended = Doom(rig), threading.Event(), threading.Event(), []

    def slow() -> None:
        entered.set()
        finish.wait(5)
        ended.append(1)

    point = rig.device.host_call(slow, line, ())
    rig.device.wait([point], QUIET_S, True)
    expect.that(entered.wait(5), "the host function runs")
    failure = doom.strike()
    lost_error(caught(rig.device, point), failure)
    finish.set()
    rig.until(lambda: bool(ended), "the end of the host function")


@failure_quiet.case("calls-after-loss-raise-hal-errors", "failure.refuses", needs=NEEDS)
def _(rig: Rig) -> None:
    """Whatever a caller tries on a lost device, it gets an answer or an error of the contract."""
    program = rig.program(stamp(element(rig)))
    source, buffer, doom = rig.source(stamp(element(rig))), rig.buffer(64), Doom(rig)
    doom.strike()
    device = rig.device
    for call in (
        lambda: device.alloc(64, AllocOptions()),
        lambda: device.load(source),
        lambda: device.bind(program, (buffer,)),
        lambda: device.create_timeline(False),
        lambda: device.create_timeline(True),
        device.describe,
        device.health,
    ):
        try:
            call()
        except HalError:
            continue


def _health_s(rig: Rig) -> float:
    with stopwatch() as seconds:
        rig.device.health()
    return seconds[0]
