"""Engines by device name, opened once in a process and closed at its end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence

import hal
from hal.cache import cache_dir
from hal.core.device import Device, Wrapper
from hal.core.errors import InvalidCall
from hal.core.values import OpenOptions
from stack.compiler.known import Known
from stack.compiler.program import CompiledGraph, GraphRequest
from stack.compiler.templates.schedule import NO_CHOICES
from stack.runtime.canonical import renumbered
from stack.runtime.compile_cache import cached
from stack.runtime.engine import TIMEOUT_S, Engine
from stack.runtime.programs import Programs
from stack.runtime.tuned import read_choices

Heard = Callable[[GraphRequest], None]
"""Called with every graph that an engine compiles or finds compiled."""


def engine_of(
    device: Device,
    timeout_s: float = TIMEOUT_S,
    cache_dir: str = "",
    heard: Heard | None = None,
) -> Engine:
    """A new engine on an open device, with the compiler and the operations of this package.

    Compiled graphs are kept in `cache_dir` (empty: nowhere), and schedules that were measured for
    the device are taken from there.
    """
    choices = read_choices(cache_dir, device.info) if cache_dir else NO_CHOICES
    programs = Programs(device)
    known = Known()

    def compile(request: GraphRequest) -> CompiledGraph:
        from stack.compiler.compile import compile_graph  # noqa: PLC0415  (not to start from caches)

        # Equal structures compile to equal programs.
        return compile_graph(renumbered(request), device.info, choices, programs.begin, known)

    kept = cached(compile, device.info, choices, cache_dir) if cache_dir else compile

    def told(request: GraphRequest) -> CompiledGraph:
        if heard is not None and request.facts is None:  # no problem to tune where sizes are data
            heard(renumbered(request))
        return kept(request)

    return Engine(device, told, timeout_s, programs)


def engine_for(
    name: str, wrappers: Sequence[str | Wrapper] | None = None, heard: Heard | None = None
) -> Engine:
    """The engine of the device `name` ("cpu:0"), opened at the first call and closed at exit.

    `wrappers` go around the device, as in `hal.open`: "validate", or "trace:FILE" to get a trace
    when the device closes. None means those that it has; at the first call that is none at all, so
    that its hooks are called directly. `heard` counts at the first call alone.
    A forked child opens the device anew. Raises as `hal.open`: PluginError, or InvalidCall for an
    unknown name; also InvalidCall for an engine that is open with other wrappers, and when the
    interpreter ends.
    """
    _check_not_ending(name)  # without the lock: a thread that the interpreter has ended may hold it
    with _lock:
        _check_not_ending(name)
        found = _engines.get(name)
        if found is None or found[0].closed:
            options = OpenOptions(cache_dir=str(cache_dir()))
            device = hal.open(name, wrappers or (), options)
            engine = engine_of(device, cache_dir=options.cache_dir, heard=heard)
            found = _engines[name] = engine, tuple(wrappers or ())
        engine, present = found
        if wrappers is not None and tuple(wrappers) != present:
            raise InvalidCall(f"{name} is open already with the wrappers {present}; close it first")
        return engine


def _check_not_ending(name: str) -> None:
    if _ending:
        raise InvalidCall(
            f"{name} is closed, as this process ends; exit handlers can compute if they are "
            "registered after `import stack`, and a `__del__` that runs later cannot"
        )


def close_all() -> None:
    """Close every engine that `engine_for` opened, which writes what their wrappers have to say."""
    with _lock:
        engines = [engine for engine, _ in _engines.values()]
        _engines.clear()
    for engine in engines:
        engine.close()


_engines: dict[str, tuple[Engine, tuple[str | Wrapper, ...]]] = {}
_lock = threading.Lock()
_ending: list[bool] = []
_parents: list[Engine] = []
"""Engines of the process from which this one was forked. They are kept as they were: what ends with
them has threads and locks of that process."""


def _close_at_exit() -> None:
    with _lock:  # first, as another thread could open again what is closed here
        _ending.append(True)
    close_all()


def _leave_parents() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _parents.extend(engine for engine, _ in _engines.values())
    _engines.clear()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_leave_parents)
