"""When Python's collector of cycles is held still."""

from __future__ import annotations

import gc
import os
import select
import threading
from collections.abc import Iterator

import pytest

import stack.framework as ht
from stack.runtime.collector import paused


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """The collector runs after every few objects."""
    before = gc.get_threshold()
    gc.set_threshold(10)
    yield
    gc.set_threshold(*before)
    gc.enable()


@pytest.fixture
def runs() -> Iterator[list[int]]:
    """The generations that were collected."""
    found: list[int] = []

    def heard(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(heard)
    yield found
    gc.callbacks.remove(heard)


def objects() -> list[list[int]]:
    return [[i] for i in range(1000)]


def test_nothing_is_collected_in_a_pause_but_when_asked_for(runs: list[int]) -> None:
    objects()
    assert runs, "the collector runs in this test"
    with paused():
        with paused():
            objects()
        runs.clear()
        objects()
        assert not runs
        gc.collect()
        assert runs == [2]
    assert gc.isenabled()
    objects()
    assert len(runs) > 1


def test_a_pause_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_where_the_collector_was_off_it_stays_off() -> None:
    gc.disable()
    with paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_last_thread_ends_the_pause() -> None:
    within, over = threading.Event(), threading.Event()

    def pause() -> None:
        with paused():
            within.set()
            assert over.wait(60)

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    assert within.wait(60)
    with paused():
        pass
    assert not gc.isenabled()
    over.set()
    thread.join(60)
    assert gc.isenabled()


def test_a_forked_child_does_not_wait_for_threads_of_its_parent() -> None:
    with paused():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert select.select([os.pidfd_open(child)], [], [], 60)[0]
        assert os.waitpid(child, os.WNOHANG) == (child, 0)
        assert not gc.isenabled()


def test_a_captured_function_is_traced_and_compiled_in_a_pause(runs: list[int]) -> None:
    @ht.jit
    def function(x: ht.Tensor) -> ht.Tensor:
        runs.clear()
        for i in range(20):
            x = ht.sin(x) + i
        assert not runs
        return x

    function(ht.ones(4))
    assert gc.isenabled()
