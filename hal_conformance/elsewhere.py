"""A second process with its own session of a device, which does what it is told.

`Elsewhere` is the parent's side. The child reads one JSON object a line from stdin and answers each
with one on stdout; it ends when stdin ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import Any, Self

import hal
from hal.core.device import Device
from hal.core.errors import HalError
from hal.core.values import AllocOptions, Buffer, OpenOptions, Region, SharedHandle
from hal_conformance.busy import Deadline

DEADLINE_S = 10.0
"""How long the parent waits for an answer, the start of the child included, besides what a busy
machine takes."""


class Elsewhere:
    """The child, from its start to the end of the `with` block.

    `registry` is a module-level function that makes the child's registry.
    """

    def __init__(
        self, device: str, settings: Mapping[str, str], registry: Callable[[], Any]
    ) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "hal_conformance.elsewhere"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        made_by = f"{registry.__module__}:{registry.__qualname__}"
        self._ask("open", device=device, settings=dict(settings), registry=made_by)

    def export(self, content: bytes) -> SharedHandle:
        """The child allocates a shareable buffer of that content and exports it."""
        return _shared(self._ask("export", content=content.hex()))

    def take(self, shared: SharedHandle) -> None:
        """The child imports a buffer."""
        self._ask("take", **_plain(shared))

    def read(self) -> bytes:
        """What the child's buffer holds."""
        return bytes.fromhex(self._ask("read")["content"])

    def write(self, offset: int, content: bytes) -> None:
        """The child copies bytes to its buffer."""
        self._ask("write", offset=offset, content=content.hex())

    def free(self) -> None:
        """The child frees its buffer."""
        self._ask("free")

    def kill(self) -> None:
        """The child dies at once, without any clean-up."""
        self._child.kill()
        self._child.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, what: str, **given: object) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"what": what, **given}).encode() + b"\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(what))
        if "error" in answer:
            raise HalError(f"{what} in another process: {answer['error']}")
        return answer

    def _line(self, what: str) -> bytes:
        assert self._child.stdout is not None
        deadline, line = Deadline(self._child.pid, DEADLINE_S), b""
        number = self._child.stdout.fileno()
        while not line.endswith(b"\n"):
            while not select.select([number], [], [], max(0.0, deadline.left_s()))[0]:
                if deadline.left_s() <= 0:
                    raise TimeoutError(f"{what} in another process: no answer in {DEADLINE_S} s")
            part = os.read(number, 1 << 16)
            if not part:
                raise EOFError(f"{what} in another process: it ended")
            line += part
        return line


class _Child:
    """The child's side: a device and at most one buffer."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._buffer: Buffer | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what the request says."""
        what = request.pop("what")
        try:
            return getattr(self, f"_{what}")(**request) or {}
        except HalError as error:
            return {"error": f"{type(error).__name__}: {error}"}

    @property
    def _here(self) -> tuple[Device, Buffer]:
        assert self._device is not None
        assert self._buffer is not None
        return self._device, self._buffer

    def _open(self, device: str, settings: dict[str, str], registry: str) -> None:
        module, _, name = registry.partition(":")
        made: hal.Registry = getattr(import_module(module), name)()
        self._device = made.open(device, options=OpenOptions(settings=settings))

    def _export(self, content: str) -> dict[str, Any]:
        assert self._device is not None
        data = bytes.fromhex(content)
        self._buffer = self._device.alloc(len(data), AllocOptions(shareable=True))
        self._write(0, content)
        return _plain(self._device.export_buffer(self._buffer))

    def _take(self, kind: str, token: list[int], nbytes: int) -> None:
        assert self._device is not None
        self._buffer = self._device.import_buffer(SharedHandle(kind, tuple(token), nbytes))

    def _read(self) -> dict[str, Any]:
        _, buffer = self._here
        host = bytearray(buffer.nbytes)
        self._copy(host, buffer.region())
        return {"content": host.hex()}

    def _write(self, offset: int, content: str) -> None:
        _, buffer = self._here
        data = bytes.fromhex(content)
        self._copy(buffer.region(offset, len(data)), data)

    def _copy(self, dst: Region | bytearray, src: Region | bytes) -> None:
        device, _ = self._here
        timeline = device.create_timeline(False)
        if not device.wait([device.copy(dst, src, timeline, ())], DEADLINE_S, True):
            raise HalError(f"a copy took more than {DEADLINE_S} s")
        device.free(timeline)

    def _free(self) -> None:
        device, buffer = self._here
        device.free(buffer)
        self._buffer = None


def _plain(shared: SharedHandle) -> dict[str, Any]:
    return {"kind": shared.kind, "token": list(shared.token), "nbytes": shared.nbytes}


def _shared(answer: dict[str, Any]) -> SharedHandle:
    return SharedHandle(answer["kind"], tuple(answer["token"]), answer["nbytes"])


def main() -> None:
    """Answer until stdin ends. What the plugin prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = _Child()
    for line in sys.stdin:
        answers.write(json.dumps(child.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
