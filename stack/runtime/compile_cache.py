"""Compiled graphs on disk, so that the second process starts without compiling.

An entry is named by the graph's structure, the device's description, the compiler's own source and
the schedules that were chosen for the device. What cannot be read is compiled again, what cannot be
written is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from hal.cache import Cache
from hal.core.description import DeviceInfo
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.program_text import ProgramTextError, from_text, to_text
from stack.compiler.templates.schedule import Choices
from stack.runtime.canonical import structure
from stack.runtime.target import target_of

Compile = Callable[[GraphRequest], CompiledGraph]


def cached(compile: Compile, info: DeviceInfo, choices: Choices, directory: str) -> Compile:
    """`compile`, looking in `directory` first and leaving its results there."""
    target, cache = f"{target_of(info)}\n{choices!r}", Cache(directory, "graphs")

    def look_up(request: GraphRequest) -> CompiledGraph:
        text = f"{target}\n{structure(request)!r}"
        name = hashlib.sha256(text.encode()).hexdigest()
        found = _read(cache, name, request)
        if found is None:
            found = compile(request)
            cache.put(name, to_text(found))
        return found

    return look_up


def _read(cache: Cache, name: str, request: GraphRequest) -> CompiledGraph | None:
    """The entry; one that is no graph, or that of another request, is removed."""
    content = cache.get(name)
    if content is None:
        return None
    try:
        graph = from_text(content)
    except ProgramTextError:
        graph = None
    if graph is not None and (
        graph.inputs == tuple(n.type for n in request.inputs)
        and graph.outputs == tuple(n.type for n in request.outputs)
        and graph.updates == request.updates
    ):
        return graph
    cache.remove(name)
    return None
