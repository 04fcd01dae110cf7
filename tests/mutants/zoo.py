"""What a mutant is, and the decorators that add one to the zoo."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import hal
from hal.core.device import Device, Wrapper
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.core.wrappers.validation import Validation, validate
from hal.hosted.device import HostedDevice
from hal.reference import plugin as reference
from hal_conformance.rig import Setting

VARIABLE = "HAL_MUTANT"
"""Names the mutant that this process and those that it starts see as the plugin "reference"."""

DEVICES = 4
PEERS = tuple(f"reference:{index}" for index in range(DEVICES))


@dataclass(frozen=True)
class Mutant:
    """`text` says in one sentence what it does wrong, `must` which sentence that breaks.

    Each device that it `opens` goes through `device`, the checks around that through `checks`;
    `world` is entered while a case runs. `module` is the text of an installed plugin's module, for
    what only a plugin in a process of its own shows. `passes`: it is odd, but not wrong.
    """

    name: str
    text: str
    must: str
    opens: Callable[[int, OpenOptions], HostedDevice] = reference.open_device
    device: Callable[[HostedDevice], object] = lambda device: None
    checks: Callable[[Validation], object] = lambda checks: None
    world: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    module: str = ""
    passes: bool = False


ZOO: dict[str, Mutant] = {}

SUBJECTS = (
    "memory",
    "programs",
    "launch",
    "order",
    "waiting",
    "graphs",
    "failure",
    "groups",
    "description",
    "plugin",
)
"""The modules with mutants, in the order of the table."""


def zoo() -> Mapping[str, Mutant]:
    """Every mutant by name."""
    for subject in SUBJECTS:
        import_module(f"tests.mutants.{subject}")
    return ZOO


def mutant(
    name: str, text: str, must: str, passes: bool = False
) -> Callable[[Callable[[HostedDevice], object]], object]:
    """Add a mutant whose opened devices the function changes; each has its `options`."""
    return lambda change: _add(Mutant(name, text, must, device=change, passes=passes))


def opener(
    name: str, text: str, must: str
) -> Callable[[Callable[[int, OpenOptions], HostedDevice]], object]:
    """Add a mutant whose devices the function opens."""
    return lambda opens: _add(Mutant(name, text, must, opens=opens))


def lax(
    name: str,
    text: str,
    must: str,
    device: Callable[[HostedDevice], object] = lambda device: None,
) -> Callable[[Callable[[Validation], object]], object]:
    """Add a mutant that lets pass what the checks around a device refuse."""
    return lambda change: _add(Mutant(name, text, must, device=device, checks=change))


def world(
    name: str, text: str, must: str
) -> Callable[[Callable[[], AbstractContextManager[object]]], object]:
    """Add a mutant of the machinery that all hosted devices share."""
    return lambda change: _add(Mutant(name, text, must, world=change))


def installed(name: str, text: str, must: str, module: str) -> None:
    """Add a mutant whose plugin is installed with this module."""
    _add(Mutant(name, text, must, module=module))


def hook(device: HostedDevice, function: Callable[..., Any]) -> None:
    """Put a function in the place of the hook of its name."""
    setattr(device, function.__name__, hookimpl(function))


def checked(checks: Validation, function: Callable[..., Any]) -> None:
    """Put a generator in the place of the checks of the hook of its name."""
    setattr(checks, function.__name__, hookimpl(wrapper=True)(function))


def unchecked(checks: Validation, *hooks: str) -> None:
    """Let all arguments of these hooks pass."""
    for name in hooks:
        setattr(checks, name, None)


def declare(device: HostedDevice, **facts: Any) -> None:
    """Change what the device says about itself, and nothing else."""
    info = replace(device._session.info, **facts)

    def describe() -> hal.DeviceInfo:
        return info

    hook(device, describe)


def setting(found: Mutant | None, cache_dir: str) -> Setting:
    """How cases see a mutant, or the reference device itself. An installed mutant's plugin has the
    mutant's name, in the form of a word."""
    if found is None:
        return Setting(PEERS[0], PEERS, cache_dir=cache_dir)
    if found.module:
        return Setting(f"{word(found)}:0", (f"{word(found)}:0",), cache_dir=cache_dir)
    return Setting(PEERS[0], PEERS, cache_dir=cache_dir, registry=registry)


def word(found: Mutant) -> str:
    """The name of an installed mutant's plugin."""
    return found.name.replace("-", "_")


@contextlib.contextmanager
def let_loose(found: Mutant | None) -> Iterator[None]:
    """For the body, the plugin "reference" of `registry` is this mutant."""
    names = (VARIABLE, reference.DEVICES_VARIABLE, reference.PROGRESS_VARIABLE)
    before = {name: os.environ.get(name) for name in names}
    os.environ |= {
        VARIABLE: found.name if found else "",
        reference.DEVICES_VARIABLE: str(DEVICES),
        reference.PROGRESS_VARIABLE: "100",
    }
    _registry_of.cache_clear()
    try:
        with found.world() if found else contextlib.nullcontext():
            yield
    finally:
        _restore(before)


def registry() -> hal.Registry:
    """The registry in which the mutant stands. Another process finds it by the variable, too."""
    return _registry_of(os.environ[VARIABLE])


class _Lax(hal.Registry):
    """A registry whose devices are checked as the mutant has it."""

    def __init__(self, found: Mutant) -> None:
        super().__init__(extra={reference.PLUGIN: _plugin(found)})
        self._mutant = found

    def open(
        self,
        name: str,
        wrappers: Sequence[str | Wrapper] = hal.DEFAULT_WRAPPERS,
        options: OpenOptions | None = None,
    ) -> Device:
        made = [self._checks if wrapper == "validate" else wrapper for wrapper in wrappers]
        return super().open(name, made, options)

    def _checks(self, device: Device) -> Validation:
        checks = validate(device)
        self._mutant.checks(checks)
        return checks


@functools.cache
def _registry_of(name: str) -> hal.Registry:
    return _Lax(zoo()[name])


def _plugin(found: Mutant) -> object:
    def open_device(index: int, options: OpenOptions) -> HostedDevice:
        device = found.opens(index, options)
        device.options = options  # type: ignore[attr-defined]
        found.device(device)
        return device

    return SimpleNamespace(
        enumerate_devices=reference.enumerate_devices, open_device=hookimpl(open_device)
    )


def _add(made: Mutant) -> Mutant:
    assert made.name not in ZOO, f"two mutants are named {made.name}"
    ZOO[made.name] = made
    return made


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
