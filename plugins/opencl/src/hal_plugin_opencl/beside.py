"""A second process that builds programs. As a program: that process.

Some drivers build one program at a time in a process, and generate code one kernel after the other,
but keep what they made in files that all processes read. What is made here meanwhile is there for
the process that asked, which then builds the same text in a twentieth of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from select import select
from threading import Condition, Thread
from typing import IO, Any

import pyopencl as cl

# The class below `pyopencl.Program`, which has neither a cache of its own nor options of its own.
from pyopencl._cl import _Program

from hal.hosted.places import Place
from hal_plugin_opencl import find

LEAST = 3
"""Texts from which on the process is worth its start, which takes half a second."""
_IDLE_S = 10.0
"""How long the process waits for more."""
_WAIT_S = 60.0
"""How long what the process is at is waited for; then it is done here, too."""


@dataclass(frozen=True, slots=True)
class Text:
    """What is built: a text with options; and those of its kernels that do nothing where their last
    argument is 0, with the bytes of each argument, 0 for a buffer."""

    text: str
    options: str
    kernels: tuple[tuple[str, tuple[int, ...]], ...]


Work = tuple[int, str]
"""The number of a text, to be built; or of one that is built, and a kernel that needs code."""


def shares(device: cl.Device) -> bool:
    """Whether the driver is one that builds so, and this process may use two cores."""
    keeps = os.environ.get("POCL_KERNEL_CACHE", "1") != "0"
    is_pocl = device.platform.name == "Portable Computing Language"
    return is_pocl and keeps and len(os.sched_getaffinity(0)) > 1


class Beside:
    """What there is to build for a device, divided between this process, which takes what it needs
    next, and another one, which takes from the end. Where that one fails, all is this one's."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._changed = Condition()
        self._texts: list[Text] = []
        self._free: list[Work] = []
        self._built: set[int] = set()
        self._theirs: Work | None = None
        self._serving = False

    def add(self, texts: Sequence[Text]) -> None:
        """There are more to build, if they are many."""
        with self._changed:
            new = [text for text in texts if text not in self._texts]
            if len(new) < LEAST:
                return
            begin = len(self._texts)
            self._texts += new
            # Taken from the end: builds first, since code is made of what is built.
            self._free[:0] = [
                (begin + i, name) for i, text in enumerate(new) for name, _ in text.kernels
            ]
            self._free += [(begin + i, "") for i in range(len(new))]
            self._changed.notify_all()
            if not self._serving:
                self._serving = True
                Thread(target=self._serve, name="hal-opencl-beside", daemon=True).start()

    def take(self, text: Text, kernel: str = "") -> bool:
        """This process builds a text, or makes the code of one of its kernels, and no other does so
        from now on; False where the other process is at it: then `wait`."""
        with self._changed:
            work = self._work(text, kernel)
            if work in self._free:
                self._free.remove(work)
            return work is None or work != self._theirs

    def wait(self, text: Text, kernel: str = "") -> None:
        """Until the other process has done that, or has ended."""
        with self._changed:
            work = self._work(text, kernel)
            self._changed.wait_for(lambda: self._theirs != work, _WAIT_S)

    def built(self, text: Text) -> None:
        """A text was built here, so another process may make its kernels' code."""
        with self._changed:
            if (work := self._work(text)) is not None:
                self._built.add(work[0])
                self._changed.notify_all()

    def _work(self, text: Text, kernel: str = "") -> Work | None:
        return (self._texts.index(text), kernel) if text in self._texts else None

    def _serve(self) -> None:
        """Give the other process what is free, until nothing is."""
        command = [sys.executable, "-m", __name__, json.dumps(asdict(self._place))]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        with suppress(OSError, ValueError):
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere)
            try:
                self._give(process.stdin, process.stdout)
            finally:
                _end(process)
        with self._changed:
            self._serving, self._theirs = False, None
            self._texts, self._free, self._built = [], [], set()
            self._changed.notify_all()

    def _give(self, given: IO[bytes] | None, done: IO[bytes] | None) -> None:
        told: set[int] = set()
        while given is not None and done is not None:
            answered, _, _ = select([done], [], [], _WAIT_S)
            if not answered or not done.readline():
                return
            with self._changed:
                if self._theirs is not None:
                    self._built.add(self._theirs[0])
                self._theirs = None
                self._changed.notify_all()
                work = self._changed.wait_for(self._next, _IDLE_S)
                if work is None:
                    return
            number, kernel = work
            text = () if number in told else asdict(self._texts[number])
            told.add(number)
            given.write(json.dumps((number, kernel, text)).encode() + b"\n")
            given.flush()

    def _next(self) -> Work | None:
        """What the other process does next, which is no longer free; None where nothing is."""
        ready = (w for w in reversed(self._free) if not w[1] or w[0] in self._built)
        self._theirs = next(ready, None)
        if self._theirs is not None:
            self._free.remove(self._theirs)
        return self._theirs


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process end, which it does when its input ends; one that does not is killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(timeout=_IDLE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _main(place: Place) -> None:
    """Do what the standard input says, a line for each."""
    device = find.at(place)
    context = cl.Context([device])
    queue, buffer = cl.CommandQueue(context), cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    programs: dict[int, tuple[_Program, Any]] = {}
    _say_done()
    for line in sys.stdin:
        number, name, text = json.loads(line)
        if text:
            program = _Program(context, text["text"])
            program._build(text["options"].encode(), [device])
            programs[number] = program, dict(text["kernels"])
        if name:
            program, kernels = programs[number]
            kernel: Any = cl.Kernel(program, name)
            for index, nbytes in enumerate(kernels[name]):
                if nbytes:
                    kernel._set_arg_buf(index, bytes(nbytes))
                else:
                    kernel.set_arg(index, buffer)
            cl.enqueue_nd_range_kernel(queue, kernel, (1, 1, 1), (1, 1, 1))
            queue.finish()
        _say_done()


def _say_done() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(Place(**json.loads(sys.argv[1])))
