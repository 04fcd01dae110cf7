"""Compiled graphs on disk, so that the second process starts without compiling.

An entry is named by the graph's structure, the device's description, the compiler's own source and
the schedules that were chosen for the device. What cannot be read is compiled again, what cannot be
written is not kept.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hal.core.description import DeviceInfo
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.templates.schedule import Choices
from stack.runtime.canonical import structure
from stack.runtime.sealed import read_sealed, write_sealed
from stack.runtime.target import target_of

Compile = Callable[[GraphRequest], CompiledGraph]


def cached(compile: Compile, info: DeviceInfo, choices: Choices, directory: str) -> Compile:
    """`compile`, looking in `directory` first and leaving its results there."""
    target, folder = f"{target_of(info)}\n{choices!r}", Path(directory, "graphs")

    def look_up(request: GraphRequest) -> CompiledGraph:
        text = f"{target}\n{structure(request)!r}"
        path = folder / hashlib.sha256(text.encode()).hexdigest()
        found = _read(path)
        if found is None:
            found = compile(request)
            _write(path, found)
        return found

    return look_up


def _read(path: Path) -> CompiledGraph | None:
    content = read_sealed(path)
    found = None if content is None else pickle.loads(content)
    return found if isinstance(found, CompiledGraph) else None


def _write(path: Path, graph: CompiledGraph) -> None:
    # A cache that cannot be written only makes the next start slower.
    with suppress(OSError):
        write_sealed(path, pickle.dumps(graph, pickle.HIGHEST_PROTOCOL))
