"""The process that emulates a core group, and what it says."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hal.cache import Cache
from hal.core.errors import InvalidCall
from hal_plugin_sunway import toolchain
from hal_plugin_sunway.chip import Chip

_SLICE_S = 1.0
_END_S = 5.0
_KILLED_S = 60.0
"""A busy machine takes back the memory of a process late."""


class CoreGroupFailure(Exception):
    """A run that the core group ended: `kind` in the emulator's words, `line` of the source (0: not
    known). `lost` says that the process has ended, too."""

    def __init__(self, kind: str, line: int, text: str, lost: bool = False) -> None:
        super().__init__(text)
        self.kind, self.line, self.lost = kind, line, lost


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run took, in emulated CPE cycles: `cycles` from start to end; `busy` computing, and
    waiting for transfers and synchronisations, summed over the CPEs; then flops and DMA bytes."""

    cycles: float
    busy: float
    dma_wait: float
    sync_wait: float
    flops: float
    get_nbytes: float
    put_nbytes: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program in the process: its number there, its file, and the LDM bytes of its variables."""

    number: int
    path: Path
    ldm_nbytes: int


class CoreGroup:
    """One process. Calls are made one at a time; it may be ended at any time and is then gone."""

    def __init__(
        self, chip: Chip, memory_fd: int, memory_nbytes: int, cache: Cache = toolchain.NOWHERE
    ) -> None:
        worker = toolchain.worker(cache)
        ours, theirs = socket.socketpair()
        self._link, self._lock, self._rest = ours, threading.Lock(), b""
        try:
            with theirs:
                words = [worker, theirs.fileno(), memory_fd, memory_nbytes]
                self._process = subprocess.Popen(
                    list(map(str, words)),
                    pass_fds=(theirs.fileno(), memory_fd),
                    stdin=subprocess.DEVNULL,
                )
            self._link.settimeout(_SLICE_S)
            for figure in chip.figures.values():
                self._tell(f"figure {figure.name} {figure.value!r}")
        except BaseException:
            ours.close()
            raise

    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def load(self, path: Path) -> Loaded:
        """Load a compiled program. Raises CoreGroupFailure when it needs what there is not."""
        number, nbytes = self._ask(f"load {path}")
        return Loaded(int(number), path, int(nbytes))

    def unload(self, loaded: Loaded) -> None:
        """Forget a program."""
        self._tell(f"unload {loaded.number}")

    def has_entry(self, loaded: Loaded, name: str) -> bool:
        """Whether the program defines `name`."""
        try:
            self._ask(f"entry {loaded.number} {name}")
        except CoreGroupFailure as failure:
            if failure.lost:
                raise
            return False
        return True

    def trace(self, path: str) -> None:
        """Write the next run's timeline to a file."""
        self._tell(f"trace {path}")

    def run(self, loaded: Loaded, entry: str, slots: Sequence[str], patience_s: float) -> Outcome:
        """Run an entry on all CPEs with these slots of arguments. `patience_s`: without a call of
        the runtime for so long it is a hang. Raises CoreGroupFailure."""
        words = [f"run {loaded.number} {entry} {patience_s!r}", *slots]
        return _outcome(self._ask(" ".join(words), loaded))

    def run_host(self, host: Loaded, slaves: Loaded, patience_s: float) -> Outcome:
        """Run a host program, which starts the CPEs itself. Raises CoreGroupFailure."""
        order = f"host {host.number} {slaves.number} {patience_s!r}"
        return _outcome(self._ask(order, slaves))

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait(_KILLED_S)
        self._link.close()

    def _tell(self, order: str) -> None:
        with self._lock:
            self._send(order)

    def _ask(self, order: str, loaded: Loaded | None = None) -> list[str]:
        """The words of the answer. Raises CoreGroupFailure."""
        with self._lock:
            self._send(order)
            while b"\n" not in self._rest:
                self._rest += self._receive()
            answer, _, self._rest = self._rest.partition(b"\n")
            words = answer.decode().split()
            if words[0] == "ok":
                return words[1:]
            nbytes = int(words[3])
            while len(self._rest) < nbytes:
                self._rest += self._receive()
            taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
            text = taken.decode(errors="replace")
        if lost := words[0] == "last":
            self._process.wait(_KILLED_S)
        text, line = _placed(text, int(words[2]), loaded)
        raise CoreGroupFailure(words[1], line, text, lost)

    def _send(self, order: str) -> None:
        if "\n" in order:
            raise InvalidCall(f"a path or name may have no line break: {order!r}")
        try:
            self._link.sendall(order.encode() + b"\n")
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> bytes:
        """More of the answer. The process itself ends what hangs; here its end is noticed, after
        what it said last."""
        while True:
            ended = self._process.poll() is not None
            try:
                if got := self._link.recv(65536):
                    return got
            except TimeoutError:
                if not ended:
                    continue
            except OSError as error:
                raise self._gone() from error
            raise self._gone()

    def _gone(self) -> CoreGroupFailure:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait(_KILLED_S)
        return CoreGroupFailure("lost", 0, f"the core group's process ended with {status}", True)


def _outcome(words: list[str]) -> Outcome:
    return Outcome(*map(float, words))


def _placed(text: str, line: int, loaded: Loaded | None) -> tuple[str, int]:
    """The text with a source line where it has an address "@OFFSET" of the program."""
    found = re.search(r"at @([0-9a-f]+)", text)
    if found is None or loaded is None:
        return text, line
    exact = toolchain.line_of(loaded.path, int(found[1], 16))
    where = f"line {exact}" if exact else "a line that addr2line would tell (install binutils)"
    return text.replace(found[0], where), exact or line
