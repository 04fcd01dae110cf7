"""The stack when something fails, when several use it at once, and what a trace of it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stack.framework as ht
from hal.core.description import Feature
from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, OperationFailed, Scope
from hal.core.values import Fault
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import together
from hal_conformance.elsewhere_engine import computed, polynomial, values
from hal_conformance.kernels import need
from hal_conformance.rig import Rig
from hal_conformance.seat import engine_on, near, run, seat, truth
from stack.compiler.program import GraphRequest
from stack.runtime.engine import Engine

stack_trouble = Cases("J", Level.RESILIENT)

F32 = DType.F32
Values = NDArray[Any]


def _launching(rig: Rig) -> str:
    """The hook by which the stack runs kernels on this device."""
    return "replay" if Feature.GRAPH in rig.info.features else "launch"


def _fault(rig: Rig, kind: FailureKind, hook: str) -> Fault:
    return Fault(Failure(kind, Scope.OPERATION, rig.name, hook, "injected by the case"), hook)


def _survives(rig: Rig, kind: FailureKind, read: Callable[[Engine, Any], object]) -> None:
    """One run fails with the injected cause; earlier values stay; the same plan then works."""
    need(rig, F32)
    engine = engine_on(rig)
    y, x_node = polynomial()
    x = rig.random.standard_normal(40).astype(np.float32)
    plan, array = engine.plan(GraphRequest((y,), (x_node,))), engine.put(x, F32)
    engine.sync()
    rig.device.inject(_fault(rig, kind, _launching(rig)))
    (lost,) = plan.run([array])
    error = expect.raises(OperationFailed, read, engine, lost)
    expect.failure(error, kind, Scope.OPERATION)
    expect.equal(error.failure.message, "injected by the case", "the message of the first cause")
    expect.raises(OperationFailed, engine.get, lost)
    expect.same(engine.get(array), x, "the input, which was there before the failure")
    (found,) = plan.run([array])
    near(rig, engine.get(found), truth([y], [(x_node, x)])[0], F32, "the run after it")


KINDS = (FailureKind.LAUNCH_FAULT, FailureKind.ILLEGAL_ADDRESS)


@stack_trouble.case(
    "failing-kernel", "inject.true", "submit.fails", needs=(Feature.INJECT,), kind=KINDS
)
def _(rig: Rig, kind: FailureKind) -> None:
    _survives(rig, kind, lambda engine, lost: engine.get(lost))


@stack_trouble.case(
    "failing-kernel-at-sync", "inject.true", "submit.fails", needs=(Feature.INJECT,)
)
def _(rig: Rig) -> None:
    _survives(rig, FailureKind.LAUNCH_FAULT, lambda engine, lost: engine.sync())


@stack_trouble.case("hanging-kernel", "inject.true", "failure.hang", needs=(Feature.INJECT,))
def _(rig: Rig) -> None:
    """A candidate that hangs ends by itself, and the next one runs."""
    if not 0 < rig.info.limits.progress_s <= 1:
        raise expect.Unfit("the device does not watch for hangs within a second")
    _survives(rig, FailureKind.HANG, lambda engine, lost: engine.get(lost))


@stack_trouble.case("failing-copy", "inject.true", "submit.fails", needs=(Feature.INJECT,))
def _(rig: Rig) -> None:
    """An array that never got its values says so; written again, it has them."""
    need(rig, F32)
    engine = engine_on(rig)
    x = np.arange(10, dtype=np.float32)
    rig.device.inject(_fault(rig, FailureKind.DATA_CORRUPTION, "copy"))
    array = engine.put(x, F32)
    expect.raises(OperationFailed, engine.get, array)
    engine.write(array, x + 1)
    expect.same(engine.get(array), x + 1, "the array, written again")


@stack_trouble.case("threads", "call.threads")
def _(rig: Rig) -> None:
    """Four threads compute with one engine."""
    need(rig, F32)
    engine = engine_on(rig)
    y, x_node = polynomial()
    hosts = [rig.random.standard_normal(40).astype(np.float32) for _ in range(4)]

    def compute(x: Values) -> list[Values]:
        return [run(engine, [y], [(x_node, x + i)])[0] for i in range(5)]

    found = together([partial(compute, x) for x in hosts])
    for x, results in zip(hosts, found, strict=True):
        for i, result in enumerate(results):
            (wanted,) = truth([y], [(x_node, x + i)])
            near(rig, result, wanted, F32, "a thread's result")


ROUNDS = 5
CHILD_S = 30.0
"""The deadline of another process: its start alone takes a second on a busy machine."""


@stack_trouble.case("two-processes", "open.sessions", timeout_s=60)
def _(rig: Rig) -> None:
    """Another process computes on the device, and this one goes on until the other is done."""
    need(rig, F32)
    registry = rig.setting.registry
    job = {
        "device": rig.name,
        "settings": dict(rig.setting.settings),
        "registry": f"{registry.__module__}:{registry.__qualname__}",
        "rounds": ROUNDS,
    }
    engine, turn, end = engine_on(rig), 0, time.monotonic() + CHILD_S
    command = [sys.executable, "-P", "-m", "hal_conformance.elsewhere_engine", json.dumps(job)]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=around) as child:
        try:
            while child.poll() is None and time.monotonic() < end:
                expect.same(computed(engine, turn), _wanted(turn), f"round {turn} of this process")
                turn += 1
                time.sleep(0.002)
            lines, _ = child.communicate(timeout=CHILD_S)
        finally:
            child.kill()
    expect.equal(child.returncode, 0, "the status of the other process")
    wanted = [_wanted(turn).tobytes().hex() for turn in range(ROUNDS)]
    expect.equal(lines.split(), wanted, "the results of the other process")


def _wanted(turn: int) -> Values:
    x = values(turn)
    return x * x + 3 * x


PHASES = frozenset("MXsfi")


def traced(rig: Rig, path: Path) -> list[dict[str, Any]]:
    """The events of a small computation with the wrapper `trace:FILE`."""
    device = rig.open(wrappers=("validate", f"trace:{path}"))
    with seat(engine_on(rig, device)):
        (ht.tensor(np.ones(8, np.float32)) * 2).sum().item()
    device.close()
    table = json.loads(path.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = table["traceEvents"]
    return events


@stack_trouble.case("trace", "describe.constant")
def _(rig: Rig) -> None:
    """A trace is a list of events that viewers open: named tracks, slices, arrows in pairs."""
    need(rig, F32)
    with tempfile.TemporaryDirectory() as folder:
        events = traced(rig, Path(folder) / "trace.json")
    for event in events:
        expect.that(event["ph"] in PHASES, f"an event of an unknown phase: {event}")
        whole = all(isinstance(event[key], int) for key in ("pid", "tid"))
        expect.that(whole and event["name"], f"an event without place or name: {event}")
        if event["ph"] != "M":
            expect.that(event["ts"] >= 0, f"an event without time: {event}")
        if event["ph"] == "X":
            expect.that(event["dur"] >= 0, f"a slice that ends before it begins: {event}")
    named = {e["pid"] for e in events if e["name"] == "process_name"}
    expect.equal({e["pid"] for e in events} - named, set(), "groups of tracks without a name")
    calls = {e["name"].split()[0] for e in events if e.get("cat") == "host"}
    expect.that({"alloc", "load", "copy", "wait"} <= calls, f"calls are missing: {sorted(calls)}")


@stack_trouble.case("trace-of-the-device", "timestamps.true", needs=(Feature.TIMESTAMPS,))
def _(rig: Rig) -> None:
    """Each operation is a slice that begins after its call, to which an arrow leads."""
    need(rig, F32)
    with tempfile.TemporaryDirectory() as folder:
        events = traced(rig, Path(folder) / "trace.json")
    slices = [e for e in events if e.get("cat") == "device" and e["ph"] == "X"]
    expect.that(len(slices) >= 2, f"{len(slices)} operations of the device are in the trace")
    ends = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "sf")
    arrows = {flow for flow, _ in ends}
    expect.that(arrows, "no arrow leads from a call to its operation")
    for flow in arrows:
        pair = ends[flow, "s"], ends[flow, "f"]
        expect.equal(pair, (1, 1), f"the two ends of arrow {flow}")
        begin, end = (
            next(e["ts"] for e in events if e.get("id") == flow and e["ph"] == phase)
            for phase in "sf"
        )
        expect.that(begin <= end, f"an operation began {begin - end} us before its call")
