"""What a wait leaves to others: the interpreter lock, submission, and Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.rig import Rig
from hal_conformance.steps import LONG_S, elsewhere, lines, work

order_waiters = Cases("F", Level.ASYNC)


@order_waiters.case("lock-is-free", "wait.lock")
def _(rig: Rig) -> None:
    """Another thread runs on while this one waits: only that thread can end the wait."""
    gate = rig.gate()

    def beat() -> None:
        for _ in range(20):
            time.sleep(0.0005)
        gate.open()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    expect.equal(rig.device.wait([gate.point], LONG_S, True), True, "the wait for 20 beats")
    thread.join(LONG_S)


@order_waiters.case("lock-is-free-all-the-time", "wait.lock", timed=True)
def _(rig: Rig) -> None:
    """Beats of another thread during a wait come at least half as often as without one, in turns
    until they do: a machine that is busy for a while beats less in that while."""
    gate = rig.gate()
    for _ in range(10):
        best = max(_beats(lambda: rig.device.wait([gate.point], 0.05, True)) for _ in range(3))
        idle = max(_beats(lambda: time.sleep(0.05)) for _ in range(3))
        if 2 * best >= idle:
            break
    expect.that(2 * best >= idle, f"{best} beats in a wait of 0.05 s, {idle} without one")


def _beats(call: Callable[[], object]) -> int:
    end, count = threading.Event(), [0]

    def beat() -> None:
        while not end.wait(0.0005):
            count[0] += 1

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    call()
    end.set()
    thread.join(LONG_S)
    return count[0]


@order_waiters.case("waits-do-not-hold-submission", "call.threads")
def _(rig: Rig) -> None:
    (line,) = lines(rig, 1)
    gate, fill = rig.gate(), work(rig, "fill")

    def use_and_open() -> int:
        for _ in range(20):
            rig.done(fill.submit(line, ()))
        gate.open()
        return 0

    waiters = [lambda: int(rig.device.wait([gate.point], LONG_S, True))] * 4
    expect.equal(together([*waiters, use_and_open]), [1, 1, 1, 1, 0], "what the threads got")


_INTERRUPT = """
    import os, signal, threading, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    gate, line = device.create_timeline(True), device.create_timeline(False)
    buffer = device.alloc(16, AllocOptions())
    sent = []
    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    delays = []
    for _ in range(TRIES):
        timer = threading.Timer(0.03, interrupt)
        try:
            timer.start()  # on a busy machine the signal may come before this returns
            device.wait([Point(gate, 1)], 10, True)
        except KeyboardInterrupt:
            delays.append(time.monotonic() - sent[-1])
        timer.join(10)
    device.signal(gate, 1, None)
    point = device.fill(buffer.region(), bytes(1), line, [Point(gate, 1)])
    works = device.wait([point], 10, True)
    device.close()
    result = [delays, works]
"""


@order_waiters.case("interrupt", "wait.interrupt", timeout_s=60)
def _(rig: Rig) -> None:
    """Ctrl-C ends a wait, and the device works on."""
    delays, works = elsewhere(rig, _INTERRUPT.replace("TRIES", "1"))
    expect.equal([len(delays), works], [1, True], "(interrupted waits, device works)")


@order_waiters.case("interrupt-soon", "wait.interrupt", timed=True, timeout_s=60)
def _(rig: Rig) -> None:
    delays, _ = elsewhere(rig, _INTERRUPT.replace("TRIES", "3"))
    expect.equal(len(delays), 3, "interrupted waits of 3")
    expect.that(min(delays) <= 0.1, f"the best of three ended {min(delays):.3f} s after Ctrl-C")
