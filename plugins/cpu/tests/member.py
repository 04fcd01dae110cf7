"""A process with one CPU device that joins groups.

Each line of its input is a command in JSON, each line of its output the answer to one. An error of
the contract is an answer.
"""

import json
import os
import sys
import time

from hal_plugin_cpu.plugin import open_device

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, HalError, OperationFailed, Scope
from hal.core.values import (
    AllocOptions,
    Collective,
    CollectiveKind,
    Fault,
    GroupSpec,
    OpenOptions,
    ReduceKind,
)

DTYPES = {dtype.short: dtype for dtype in DType}


class Member:
    """Answers commands. Groups and points have names that the commands choose."""

    def __init__(self):
        self.device = open_device(0, OpenOptions(settings={"threads": "1"}))
        self.groups, self.points, self.results = {}, {}, {}

    def join(self, name, key, rank, size, timeout_s, peers=None):
        peers = tuple(peers or ("cpu:0",) * size)
        self.groups[name] = self.device.create_group(GroupSpec(key, rank, peers, timeout_s))

    def submit(self, name, point, src, dst_nbytes, in_place=False, **call):
        """`src` is the source in hexadecimal digits, or a number of zero bytes."""
        device, source = self.device, bytes(src) if isinstance(src, int) else bytes.fromhex(src)
        timeline = device.create_timeline(False)
        taken = device.alloc(len(source), AllocOptions())
        device.wait((device.copy(taken.region(), source, timeline, ()),), 10, True)
        given = taken if in_place else device.alloc(dst_nbytes, AllocOptions(zero=True))
        call["kind"], call["dtype"] = CollectiveKind(call["kind"]), DTYPES[call["dtype"]]
        call["reduce"] = ReduceKind(call["reduce"])
        call["counts"] = tuple(map(tuple, call["counts"]))
        regions = given.region(), taken.region()
        self.points[point] = device.collective(
            self.groups[name], Collective(**call), *regions, timeline, ()
        )
        self.results[point] = given

    def result(self, point, timeout_s=10):
        """The destination once the point is reached; None at the deadline."""
        device, given = self.device, self.results[point]
        if not device.wait((self.points[point],), timeout_s, True):
            return None
        out = bytearray(given.nbytes)
        timeline = device.create_timeline(False)
        device.wait((device.copy(out, given.region(), timeline, ()),), 10, True)
        return out.hex()

    def error(self, name):
        failure = self.device.async_error(self.groups[name])
        return failure and said(failure)

    def shrink(self, name, new, ranks):
        self.groups[new] = self.device.shrink(self.groups[name], ranks)
        return [self.groups[new].rank, self.groups[new].size]

    def abort(self, name, message):
        cause = Failure(FailureKind.ABORTED, Scope.PEER, "cpu:0", "test", message)
        self.device.abort(self.groups[name], cause)

    def leave(self, name):
        self.device.free(self.groups.pop(name))

    def lose(self):
        lost = Failure(FailureKind.DEVICE_LOST, Scope.DEVICE, "cpu:0", "test", "planted")
        self.device.inject(Fault(lost, "fill"))
        buffer, timeline = self.device.alloc(8, AllocOptions()), self.device.create_timeline(False)
        self.device.fill(buffer.region(), b"\0", timeline, ())

    def fork(self):
        """Leave a child behind that does nothing; give its process id."""
        child = os.fork()
        if not child:
            sys.stdin.close()
            os.close(1)
            time.sleep(60)
            os._exit(0)
        return child


def said(failure):
    return {
        "kind": failure.kind.value,
        "scope": failure.scope.value,
        "message": failure.message,
        "device": failure.device,
    }


def answer(member, command):
    try:
        return {"value": getattr(member, command.pop("do"))(**command)}
    except OperationFailed as error:
        return {"failure": said(error.failure)}
    except HalError as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    owner = Member()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(owner, json.loads(line))) + "\n")
        sys.stdout.flush()
