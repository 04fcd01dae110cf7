"""How a plan's programs are loaded."""

from __future__ import annotations

from typing import Any

from hal.core.values import KernelSource, Program
from stack.runtime.programs import Programs


class Loads:
    """What a device is asked for."""

    def __init__(self) -> None:
        self.sources: list[KernelSource] = []

    def load(self, source: KernelSource) -> Program:
        self.sources.append(source)
        return Program("fake:0", 0, None, source.entry, source.params)


def text(number: int) -> KernelSource:
    return KernelSource("text/1", "x" * number, "f", ())


def test_a_device_is_told_what_is_loaded_beside_a_source() -> None:
    """What it has loaded already is not among that."""
    device: Any = Loads()
    programs = Programs(device)
    known = programs.load([text(3)])
    assert list(known) == [text(3)]
    held = programs.load(map(text, range(1, 6)))
    assert list(held) == [*map(text, range(1, 6))]
    first, *others = device.sources
    assert first.beside == (text(3),)
    assert set(others) == {text(1), text(2), text(4), text(5)}
    assert all(set(s.beside) == set(others) for s in others)
    assert not any(s.beside for source in others for s in source.beside)
