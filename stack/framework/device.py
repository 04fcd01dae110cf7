"""Which engine a device name stands for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from stack.comm.world import World
from stack.runtime.engine import Engine
from stack.runtime.opening import engine_for

NDArray = np.ndarray[Any, Any]


engines: dict[str, Engine] = {}
"""Engines that a program registers under names of its own; any other name is a device's."""

_OTHERWISE = "cpu:0"
_default: list[str] = []
"""The default device, once it has been asked for or set."""


def engine(name: str) -> Engine:
    """The engine of a device, opened on first use. Raises PluginError when there is no such
    device."""
    return engines[name] if name in engines else engine_for(name)


def set_default_device(name: str) -> None:
    """Make new tensors on this device unless they are given another one."""
    engine(name)
    _default[:] = [name]


def default_device() -> str:
    """The device of new tensors: the one that was set, else the one that `hal run` gave to this
    process, else "cpu:0". Raises InvalidCall when what `hal run` says is wrong."""
    if not _default:
        world = World.present()
        _default.append(_OTHERWISE if world is None else world.device)
    return _default[0]


@contextmanager
def default_engine(name: str, engine: Engine) -> Iterator[None]:
    """Within the block the engine is registered under that name, and is the default device."""
    before = list(_default)
    engines[name] = engine
    _default[:] = [name]
    try:
        yield
    finally:
        _default[:] = before
        del engines[name]
