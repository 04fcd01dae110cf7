"""When Python's collector of cycles is held still."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import stack.framework as ht
from stack.collector import loading, paused


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


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, as in a program of its own."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_what_is_loaded_is_old_at_once(runs: list[int]) -> None:
    """Python's collector took 38 ms of a process until its first step, most of it to go through
    modules that stay."""
    with loading():
        runs.clear()
        made = objects()
        assert not runs
    assert any(x is made for x in gc.get_objects(generation=2))
    assert not gc.get_freeze_count()
    assert gc.isenabled()


@pytest.mark.usefixtures("thawed")
def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with loading():
        made = objects()
    assert frozen / 2 < gc.get_freeze_count() <= frozen, "what is gone since is not counted"
    assert not any(x is made for x in gc.get_objects(generation=2))


def test_the_framework_is_loaded_in_a_pause() -> None:
    code = (
        "import gc, numpy, ml_dtypes\n"
        "runs = []\n"
        "gc.callbacks.append(lambda phase, info: runs.append(info['generation']))\n"
        "gc.collect()\n"
        "import stack.framework\n"
        "print(len(runs), gc.isenabled())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    count, is_enabled = done.stdout.split()
    assert int(count) < 20, "hundreds otherwise"
    assert is_enabled == "True"
