"""Compiled graphs on disk, so that the second process starts without compiling.

An entry is named by the graph's structure, the device's description and the compiler's own source;
it carries its checksum. What cannot be read is compiled again, what cannot be written is not kept.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import hal.tile
import stack.compiler
import stack.ir
import stack.ops
from hal.core.description import DeviceInfo
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.runtime.canonical import structure

Compile = Callable[[GraphRequest], CompiledGraph]
_SUM = hashlib.sha256().digest_size


def cached(compile: Compile, info: DeviceInfo, directory: str) -> Compile:
    """`compile`, looking in `directory` first and leaving its results there."""
    target = Path(directory, "graphs")

    def look_up(request: GraphRequest) -> CompiledGraph:
        path = target / _key(request, info)
        found = _read(path)
        if found is None:
            found = compile(request)
            _write(path, found)
        return found

    return look_up


def _key(request: GraphRequest, info: DeviceInfo) -> str:
    facts = (structure(request), info.limits, info.matrix_units, info.formats, info.spaces)
    text = f"{info.fingerprint}\n{_toolchain()}\n{facts!r}"
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _toolchain() -> str:
    """A digest of the source that turns graphs into programs."""
    digest = hashlib.sha256()
    packages = (hal.tile, stack.compiler, stack.ir, stack.ops)
    roots = [Path(next(iter(p.__path__))) for p in packages]
    for path in sorted(p for root in roots for p in root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> CompiledGraph | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content[_SUM:]).digest() != content[:_SUM]:
        return None
    found = pickle.loads(content[_SUM:])
    return found if isinstance(found, CompiledGraph) else None


def _write(path: Path, graph: CompiledGraph) -> None:
    content = pickle.dumps(graph, pickle.HIGHEST_PROTOCOL)
    # A cache that cannot be written only makes the next start slower.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder, path.name)
            whole.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(whole, path)
