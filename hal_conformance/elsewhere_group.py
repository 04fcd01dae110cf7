"""One member of a group in a process of its own:
python -m hal_conformance.elsewhere_group JOB, a JSON object with peers (the members' devices),
settings, key, rank, timeout_s, what to do ("sum", "vanish" or "stay"), and for groups that the
stack makes the address and token of their store as rendezvous.

Prints "joined" once the group stands, then one line: "sum" and the elements, or "failed" and the
failure's scope and message.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

import click
import numpy as np

import hal
from hal.core.device import Device
from hal.core.dtypes import DType
from hal.core.errors import HalError, OperationFailed
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    Group,
    GroupSpec,
    OpenOptions,
)

COUNT = 64


def main(text: str) -> None:
    """Do the job and print what came of it."""
    job = json.loads(text)
    with _opened(job) as device:
        try:
            click.echo(_work(device, job))
        except OperationFailed as error:
            click.echo(f"failed {error.failure.scope.value} {error.failure.message}")
        except HalError as error:
            click.echo(f"refused {type(error).__name__} {error}")


def _opened(job: dict[str, Any]) -> Device:
    name, options = job["peers"][job["rank"]], OpenOptions(settings=job["settings"])
    if not job["rendezvous"]:
        return hal.open(name, options=options)
    mixed = import_module("hal_conformance.mixed")
    place = mixed.Rendezvous(*job["rendezvous"])
    device: Device = place.open(hal.registry(), name, hal.DEFAULT_WRAPPERS, options)
    return device


def _work(device: Device, job: dict[str, Any]) -> str:
    spec = GroupSpec(job["key"], job["rank"], tuple(job["peers"]), job["timeout_s"])
    group = device.create_group(spec)
    click.echo("joined")
    if job["do"] == "vanish":
        os.kill(os.getpid(), signal.SIGKILL)
    if job["do"] == "stay":
        sys.stdin.readline()
        return "stayed"
    return f"sum {_sum(device, group, job['rank'])}"


def _sum(device: Device, group: Group, rank: int) -> str:
    timeline = device.create_timeline(False)
    buffer = device.alloc(COUNT * 4, AllocOptions())
    mine = np.arange(COUNT, dtype=np.int32) * (rank + 1)
    device.copy(buffer.region(), mine.tobytes(), timeline, ())
    call = Collective(CollectiveKind.ALL_REDUCE, DType.I32, COUNT)
    point = device.collective(group, call, buffer.region(), buffer.region(), timeline, ())
    host = bytearray(COUNT * 4)
    end = device.copy(host, buffer.region(), timeline, [point])
    if not device.wait([end], 20, True):
        return "was not done in 20 s"
    return ",".join(map(str, np.frombuffer(host, np.int32)))


if __name__ == "__main__":
    main(sys.argv[1])
