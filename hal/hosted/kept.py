"""Files that a device keeps between processes, such as compiled programs, each behind its hash."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from hal.core.values import KernelSource

Built = TypeVar("Built")

_SIZE = hashlib.sha256().digest_size
_KEEPING_S = 3.0


class KeptFiles:
    """Bytes by key in a folder (empty: nowhere). What cannot be read or written or is damaged is
    not there; that is never an error."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None

    @property
    def is_open(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def get(self, *said: object) -> bytes | None:
        """What was kept for these facts."""
        try:
            data = self._path(said).read_bytes() if self._folder else b""
        except OSError:
            return None
        digest, content = data[:_SIZE], data[_SIZE:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, content: bytes, *said: object) -> None:
        """Keep bytes for these facts."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(hashlib.sha256(content).digest() + content, self._path(said))
        except OSError:
            return

    def _path(self, said: tuple[object, ...]) -> Path:
        assert self._folder is not None, "asked before"
        text = repr(said).encode(errors="backslashreplace")
        return self._folder / hashlib.sha256(text).hexdigest()

    def _write(self, data: bytes, path: Path) -> None:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(data)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise


class KeptBuilds(Generic[Built]):
    """What a driver built from sources, in files; `said` are facts on which builds depend."""

    def __init__(self, files: KeptFiles, *said: object) -> None:
        self._files, self._said = files, said
        self._new: dict[KernelSource, Built] = {}

    def get(self, source: KernelSource) -> bytes | None:
        """The binary of a source."""
        return self._files.get(*self._said, source)

    def note(self, source: KernelSource, program: Built) -> None:
        """A program was built, and should be kept."""
        if self._files.is_open:
            self._new[source] = program

    def keep(self, binary: Callable[[Built], bytes | None]) -> None:
        """Keep what was built, as far as time allows and the driver gives binaries. A driver may
        take longer for that than for building, so this comes last."""
        until_s = time.monotonic() + _KEEPING_S
        while self._new and time.monotonic() < until_s:
            source, program = self._new.popitem()
            if content := binary(program):
                self._files.put(content, *self._said, source)
