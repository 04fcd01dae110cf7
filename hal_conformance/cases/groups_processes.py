"""Groups whose members are in processes of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hal.core.description import Feature
from hal_conformance import expect
from hal_conformance.case import Cases, Level
from hal_conformance.crowd import new_key
from hal_conformance.elsewhere_group import COUNT
from hal_conformance.expect import Wrong
from hal_conformance.rig import Rig

groups_processes = Cases("H", Level.DEVICES)

BETWEEN = (Feature.COLLECTIVES, Feature.GROUP_IPC)
CHILD_S = 30.0
"""The deadline of a child process: its start alone takes a second on a busy machine."""


@groups_processes.case(
    "processes-sum", "group.processes", needs=BETWEEN, ranks=(2, 4), timeout_s=60
)
def _(rig: Rig, ranks: int) -> None:
    outputs = _run(rig, ["sum"] * ranks)
    total = np.arange(COUNT, dtype=np.int32) * sum(range(1, ranks + 1))
    wanted = ["joined", "sum " + ",".join(map(str, total))]
    for rank, output in enumerate(outputs):
        expect.equal(output.split("\n"), wanted, f"the output of rank {rank}")


@groups_processes.case(
    "process-killed", "collective.missing", needs=BETWEEN, level=Level.RESILIENT, timeout_s=60
)
def _(rig: Rig) -> None:
    """A rank that is killed fails the call on the others, with its number."""
    outputs = _run(rig, ["sum", "vanish", "sum"])
    for rank in (0, 2):
        last = outputs[rank].split("\n")[-1]
        expect.that(last.startswith("failed peer"), f"rank {rank} printed {last!r}")
        expect.that("1" in last, f"rank {rank} does not name rank 1: {last!r}")


@groups_processes.case("process-does-not-come", "group.missing", needs=BETWEEN, timeout_s=60)
def _(rig: Rig) -> None:
    (output,) = _run(rig, ["sum"], size=2, timeout_s=0.2)
    expect.that(
        output.startswith("refused DeadlineExceeded") and "1" in output,
        f"the lone member printed {output!r}",
    )


@groups_processes.case("process-stays-away", "collective.missing", needs=BETWEEN, timeout_s=60)
def _(rig: Rig) -> None:
    """A member that lives and does not call: the others get an error at their deadline."""
    outputs = _run(rig, ["sum", "stay"], timeout_s=6.0)
    last = outputs[0].split("\n")[-1]
    expect.that(last.startswith("failed peer"), f"rank 0 printed {last!r}")


def _run(
    rig: Rig, tasks: Sequence[str], size: int | None = None, timeout_s: float = 20.0
) -> list[str]:
    """Run a member for each task; gives what each printed."""
    peers = _peers(rig, size or len(tasks))
    job = {"peers": peers, "key": new_key(), "timeout_s": timeout_s, "rendezvous": _rendezvous(rig)}
    own = [dict(rig.setting.settings) if peer == rig.name else {} for peer in peers]
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(_child({**job, "rank": rank, "do": task, "settings": own[rank]}))
            for rank, task in enumerate(tasks)
        ]
        order = sorted(range(len(tasks)), key=lambda rank: tasks[rank] == "stay")
        outputs = {rank: _output(children[rank]) for rank in order}
    return [outputs[rank] for rank in range(len(tasks))]


def _peers(rig: Rig, size: int) -> list[str]:
    """Each process opens the device under test; those of a mixed group take its devices in turn."""
    names = rig.setting.peers if rig.setting.rendezvous else (rig.name,)
    return [names[rank % len(names)] for rank in range(size)]


def _rendezvous(rig: Rig) -> list[str]:
    found = rig.setting.rendezvous
    return [found.address, found.token] if found else []


@contextlib.contextmanager
def _child(job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "hal_conformance.elsewhere_group", json.dumps(job)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate(timeout=CHILD_S)


def _output(child: subprocess.Popen[str]) -> str:
    try:
        return child.communicate("\n", timeout=CHILD_S)[0].strip()
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"a member's process did not end in {CHILD_S} s") from error
