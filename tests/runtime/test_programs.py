"""How a plan's programs are loaded."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from hal.core.errors import CompileError
from hal.core.values import Handle, KernelSource, Program
from stack.runtime import programs as module
from stack.runtime.programs import COMPILED_S, SLOW_S, Programs
from stack.settings import TURN_S

WRONG = "x" * 9


class Loads:
    """What a device is asked for."""

    def __init__(self) -> None:
        self.sources: list[KernelSource] = []
        self.freed: list[Handle] = []

    def free(self, handle: Handle) -> None:
        self.freed.append(handle)

    def load(self, source: KernelSource) -> Program:
        self.sources.append(source)
        if source.text == WRONG:
            raise CompileError("wrong", "wrong")
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


def test_what_is_begun_is_loaded_once() -> None:
    device: Any = Loads()
    programs = Programs(device)
    with programs.ahead():
        for number in (3, 1, 3):
            programs.begin(text(number))
        held = programs.load([text(1), text(2), text(3)])
        programs.begin(text(2))
    assert list(held) == [text(1), text(2), text(3)]
    assert sorted(len(s.text) for s in device.sources) == [1, 2, 3]
    assert programs.load([text(3)])[text(3)] is held[text(3)]


def test_what_is_begun_and_not_asked_for_is_let_go() -> None:
    """Also by what raises on the way."""
    device: Any = Loads()
    programs = Programs(device)

    def fail() -> None:
        with programs.ahead():
            programs.begin(text(1))
            programs.begin(text(len(WRONG)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    programs.sweep()
    assert len(device.freed) == sum(s == text(1) for s in device.sources)
    assert programs.count == 0
    programs.begin(text(2))  # outside
    assert text(2) not in device.sources


def test_what_does_not_build_is_said_where_it_is_asked_for() -> None:
    device: Any = Loads()
    programs = Programs(device)
    with programs.ahead():
        programs.begin(text(len(WRONG)))
        programs.load([text(1)])
        with pytest.raises(CompileError):
            programs.load([text(len(WRONG))])


def test_threads_take_turns_often_while_programs_are_loaded_beside_one() -> None:
    """A compiler's thread waited for 5 ms whenever it asked for Python: hardly a kernel was
    compiled before all of a graph's were written."""
    turns: list[float] = []

    class Counts(Loads):
        def load(self, source: KernelSource) -> Program:
            turns.append(sys.getswitchinterval())
            return super().load(source)

    device: Any = Counts()
    programs = Programs(device)
    before = sys.getswitchinterval()
    with programs.ahead():
        assert sys.getswitchinterval() == before
        programs.begin(text(1))
        held = programs.load([text(1)])
    assert len(held) == 1
    assert turns == [pytest.approx(TURN_S)]
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(
    ("slow_s", "is_compiled"), [((SLOW_S,), False), ((SLOW_S,) * 9, True), ((COMPILED_S,), True)]
)
def test_threads_load_where_a_device_compiles_and_not_where_one_program_waited(
    slow_s: tuple[float, ...], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads were begun for programs that were all in the cache, since one took 5 ms while the
    device computed."""
    now_s = [0.0]
    waits = list(slow_s)
    threads: list[threading.Thread] = []
    monkeypatch.setattr(module.time, "perf_counter", lambda: now_s[0])

    class Slow(Loads):
        def load(self, source: KernelSource) -> Program:
            now_s[0] += waits.pop() if waits else 0.0
            threads.append(threading.current_thread())
            return super().load(source)

    device: Any = Slow()
    held = Programs(device).load(map(text, range(10, 29)))
    assert len(held) == 19
    assert (set(threads) != {threading.current_thread()}) == is_compiled
