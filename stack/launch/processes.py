"""Processes that end with their parents, on Linux.

A subreaper becomes the parent of every descendant whose own parent ends. So it finds all of them,
also those that have left their process group or session, and can end them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hal.core.errors import DeadlineExceeded, Unsupported

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.01
_STATE, _PRIORITY = 0, 37
"""Fields of a thread's `stat` behind its name."""
_LOOKS = 2
"""A look that finds nobody may have missed the child of a process which ended during it."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_descendants() -> None:
    """Become the parent of orphaned descendants. Raises Unsupported where the system cannot."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def descendants_end(deadline_s: float = 15.0) -> Iterator[None]:
    """Whatever this process starts in the block, directly or not, has ended when the block has.

    Raises Unsupported where the system cannot do that, DeadlineExceeded when some do not end, which
    then says what the block has raised.
    """
    before = set(descendants())
    adopt_descendants()
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        try:
            kill_descendants(deadline_s, before)
        except DeadlineExceeded as left:
            if raised is None:
                raise
            text = f"{type(raised).__name__}: {raised}; besides, {left}"
            raise DeadlineExceeded(text) from raised
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def end_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent, which has this number, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def descendants() -> list[int]:
    """The process numbers of all children, their children, and so on."""
    parents = dict(_parents())
    found: list[int] = []
    level = {os.getpid()}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def kill_descendants(deadline_s: float, spared: Collection[int] = ()) -> None:
    """End every descendant but those by SIGKILL, where `adopt_descendants` was called before.

    Raises DeadlineExceeded that names who is left, and what holds each of their threads.
    """
    until_s = time.monotonic() + deadline_s
    looks, killed = 0, set[int]()
    while looks < _LOOKS:
        left = [process for process in descendants() if process not in spared]
        stuck = sorted(killed.intersection(left))
        if stuck and time.monotonic() > until_s:
            these = "; ".join(map(_state, stuck))
            raise DeadlineExceeded(
                f"processes did not end within {deadline_s:g} s after SIGKILL: {these}"
            )
        looks = 0 if left else looks + 1
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        killed.update(left)
        reap(left)
        time.sleep(_PAUSE_S)


def _state(process: int) -> str:
    """A process in words: its name, and of each thread the state, the real-time priority and what
    it waits for in the system."""
    threads = []
    with suppress(OSError):
        for thread in sorted(Path(f"/proc/{process}/task").iterdir(), key=lambda t: int(t.name)):
            with suppress(OSError):
                after = (thread / "stat").read_text().rpartition(")")[2].split()
                words = [after[_STATE], f"priority {after[_PRIORITY]}"]
                words += [(thread / "wchan").read_text().strip("\0")]
                threads.append(" ".join(words))
    name = "gone"
    with suppress(OSError):
        name = Path(f"/proc/{process}/comm").read_text().strip()
    return f"{process} ({name}: {', '.join(threads) or 'no threads'})"


def reap(processes: list[int]) -> None:
    """Forget those of these children that have ended."""
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)


def reap_adopted(own: Collection[int]) -> None:
    """Forget children that have ended, up to the first that is one's own."""
    while (ended := _ended_child()) is not None and ended not in own:
        reap([ended])


def _ended_child() -> int | None:
    """A child that has ended and is not forgotten yet."""
    with suppress(ChildProcessError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_pid
    return None


def _parents() -> Iterator[tuple[int, int]]:
    """Every process of the system that can be seen, with its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                # The second field is the program's name in brackets, which may contain anything.
                after = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                yield int(name), int(after[1])


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        cause = os.strerror(ctypes.get_errno())
        raise Unsupported(f"this system cannot tie processes to their parents: {cause}")
