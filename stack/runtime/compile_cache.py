"""Compiled graphs on disk, so that the second process starts without compiling.

An entry is named by the graph's structure, the device's description, the compiler's own source and
the schedules that were chosen for the device. A graph whose sizes are data has several, each with
the conditions under which it serves. What cannot be read is compiled again, what cannot be written
is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from hal.cache import Cache
from hal.core.description import DeviceInfo
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.program_text import OtherSizes, ProgramTextError, from_text, to_text
from stack.compiler.templates.schedule import Choices
from stack.runtime.canonical import structure
from stack.runtime.target import target_of

Compile = Callable[[GraphRequest], CompiledGraph]

VARIANTS = 8
"""The entries of a graph whose sizes are data; of further ones the last is written over."""


def cached(compile: Compile, info: DeviceInfo, choices: Choices, directory: str) -> Compile:
    """`compile`, looking in `directory` first and leaving its results there."""
    target, cache = f"{target_of(info)}\n{choices!r}", Cache(directory, "graphs")

    def look_up(request: GraphRequest) -> CompiledGraph:
        facts = request.facts
        text = f"{target}\n{_named(request)}"
        for variant in range(1 if facts is None else VARIANTS):
            name = hashlib.sha256(f"{text}\n{variant}".encode()).hexdigest()
            content = cache.get(name)
            if content is None:
                break
            try:
                return _read(content, request)
            except OtherSizes:
                continue
            except ProgramTextError:
                cache.remove(name)
                break
        found = compile(request)
        cache.put(name, to_text(found, () if facts is None else facts.conditions))
        return found

    return look_up


def _named(request: GraphRequest) -> str:
    """The request's structure; equal for equal ones of any process. Sizes that are data have the
    magnitude of their hints, for which schedules are chosen."""
    text, facts = repr(structure(request)), request.facts
    if facts is None:
        return text
    magnitudes = {name: int(facts.hints[name]).bit_length() for name in facts.least}
    # Sizes are written with the facts that they are of.
    return f"{text.replace(f'@{id(facts):x}', '')}\n{facts.least}\n{magnitudes}"


def _read(content: bytes, request: GraphRequest) -> CompiledGraph:
    """The graph of an entry. Raises ProgramTextError for none, or that of another request."""
    graph = from_text(content, request.facts)
    if (
        graph.inputs == tuple(n.type for n in request.inputs)
        and graph.outputs == tuple(n.type for n in request.outputs)
        and graph.updates == request.updates
    ):
        return graph
    raise ProgramTextError("the graph of another request")
