"""Built programs on disk: what the driver gives as a program's binary, behind its own hash, because
drivers crash on binaries that are damaged."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pyopencl as cl
from pyopencl._cl import _Program

from hal.core.values import KernelSource

BUILD = "1"
"""Part of every key; changes when the way of building changes."""

_SUFFIX = ".clbin"


class Binaries:
    """The programs in a folder (empty: nowhere) that a device with this fingerprint built. What
    cannot be read or written is not in the cache; that is never an error."""

    def __init__(self, folder: str, fingerprint: str) -> None:
        self._folder = Path(folder) / "opencl" if folder else None
        self._fingerprint = fingerprint

    def key(self, source: KernelSource) -> str:
        """The name of a source's program."""
        said = repr((BUILD, cl.VERSION_TEXT, self._fingerprint, source))
        return hashlib.sha256(said.encode(errors="backslashreplace")).hexdigest()

    def get(self, key: str, context: cl.Context, device: cl.Device) -> _Program | None:
        """The program, ready to run; None if there is none or it is damaged."""
        if self._folder is None:
            return None
        try:
            digest, binary = _split((self._folder / (key + _SUFFIX)).read_bytes())
        except OSError:
            return None
        if hashlib.sha256(binary).digest() != digest:
            return None
        try:
            program = _Program(context, [device], [binary])
            program._build(b"", [device])
        except cl.Error:
            return None
        return program

    def put(self, key: str, program: _Program) -> None:
        """Keep a program, if its driver gives its binary."""
        if self._folder is None:
            return
        try:
            found: Any = program.get_info(cl.program_info.BINARIES)
            (binary,) = found
            self._write(key + _SUFFIX, hashlib.sha256(binary).digest() + binary)
        except (OSError, cl.Error):
            return

    def _write(self, name: str, data: bytes) -> None:
        assert self._folder is not None, "asked before"
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            try:
                file.write(data)
                file.close()
                os.replace(file.name, self._folder / name)
            except BaseException:
                os.unlink(file.name)
                raise


def _split(data: bytes) -> tuple[bytes, bytes]:
    size = hashlib.sha256().digest_size
    return data[:size], data[size:]
