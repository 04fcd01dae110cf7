"""Which engine a device name stands for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

import numpy as np

from stack.comm.world import World
from stack.framework.cell import here
from stack.runtime.engine import Engine
from stack.runtime.opening import engine_for

NDArray = np.ndarray[Any, Any]


class Device(str):
    """A device's name with its parts: device("cpu") and device("cpu", 0) are "cpu:0"."""

    __slots__ = ()

    def __new__(cls, type: str, index: int | None = None) -> Self:
        whole = type if ":" in type else f"{type}:{index or 0}"
        return super().__new__(cls, whole)

    @property
    def type(self) -> str:
        """The plugin's name: "cpu" of "cpu:0"."""
        return self.rpartition(":")[0]

    @property
    def index(self) -> int:  # type: ignore[override] # str.index is of no use here
        """The device's number within its plugin."""
        return int(self.rpartition(":")[2])


engines: dict[str, Engine] = {}
"""Engines that a program registers under names of its own; any other name is a device's."""

_OTHERWISE = "cpu:0"
_default: list[str] = []
"""The default device, once it has been asked for or set."""


def engine(name: str) -> Engine:
    """The engine of a device, opened on first use. Raises PluginError when there is no such
    device."""
    return engines[name] if name in engines else engine_for(name)


_device = lru_cache(maxsize=256)(Device)


def placed(name: str | None) -> Device:
    """The device of that name, or the default one, opened. Raises PluginError when there is no such
    device."""
    given = default_device() if name is None else name
    found = str.__new__(Device, given) if given in engines else _device(given)
    engine(found)
    return found


def set_default_device(name: str) -> None:
    """Make new tensors on this device unless they are given another one. Set in the main thread it
    holds for all threads that have set none of their own."""
    engine(name)
    if threading.current_thread() is threading.main_thread():
        _default[:] = [name]
    else:
        here.device = name


def default_device() -> str:
    """The device of new tensors: the one that was set, else the one that `hal run` gave to this
    process, else "cpu:0". Raises InvalidCall when what `hal run` says is wrong."""
    if here.device:
        return here.device
    if not _default:
        world = World.present()
        _default.append(_OTHERWISE if world is None else world.device)
    return _default[0]


def get_default_device() -> Device:
    """The default device, opened."""
    return placed(None)


@contextmanager
def default_engine(name: str, engine: Engine) -> Iterator[None]:
    """Within the block the engine is registered under that name, and is the default device."""
    before = list(_default)
    here.context.recordings.pop(name, None)
    engines[name] = engine
    _default[:] = [name]
    try:
        yield
    finally:
        _default[:] = before
        del engines[name]
        here.generators.pop(name, None)
        here.context.recordings.pop(name, None)
