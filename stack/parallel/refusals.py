"""What a rank alone refuses before it comes to the others, which wait for it, and what it raises
behind that."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from hal.core.errors import DeadlineExceeded, HalError, InvalidCall
from stack.comm.store import Store
from stack.comm.world import World

LOOK_S = 0.2
"""How often a rank that waits for others looks what these have refused."""
AGAIN_S = 0.5
"""How long a rank that has refused something may take to come with something else."""
LONGEST = 4096
"""Letters of a reason that others are told."""

ASK_S = 2.0
"""How long one that has lost a rank asks what that has raised."""

_met: Counter[str] = Counter()
"""How often all ranks of a job have come."""
_raised: set[str] = set()
"""The jobs that were told what this rank has raised."""


@contextmanager
def told() -> Iterator[None]:
    """Tell the other ranks of the job why this one raises InvalidCall: a script may catch that, and
    the others wait for a rank that never comes."""
    try:
        yield
    except InvalidCall as error:
        world = World.present()
        if world is not None and world.size > 1 and not world.member:
            with suppress(HalError):
                store = _store(world)
                store.set(f"refused/{world.rank}", str(error)[:LONGEST].encode(), AGAIN_S)
                store.close()
        raise


def say_raised(error: BaseException) -> None:
    """Tell the ranks of the job, which hear that this one ends its groups, what it has raised."""
    text = "".join(traceback.format_exception_only(error)).strip()
    with suppress(HalError):
        world = World.present()
        if world is not None and world.size > 1 and not world.member:
            store = _store(world)
            data = text[:LONGEST].encode(errors="replace")
            store.set(f"raised/{world.rank}", data, AGAIN_S)
            _raised.add(world.job)
            store.close()


def raised(world: World) -> Callable[[int], str]:
    """What a rank of the job has raised and ended its groups by; "" where it has not. It is asked
    for once."""

    @cache
    def by(rank: int) -> str:
        with suppress(HalError):
            store = _store(world)
            found = store.find(f"raised/{rank}", ASK_S)
            store.close()
            return "" if found is None else found.decode(errors="replace")
        return ""

    return by


def forget_raised(world: World) -> None:
    """This rank goes on, and the others have come to where it does."""
    if world.job in _raised:
        with suppress(HalError):
            store = _store(world)
            store.delete(f"raised/{world.rank}", ASK_S)
            store.close()
        _raised.discard(world.job)


def await_all(world: World) -> None:
    """Wait until all ranks of the job come to this, at most until they are late. Raises InvalidCall
    when one has refused something instead, with its reason; and before an epoch of ranks."""
    world.check_epoch()
    store = _store(world)
    number = _met[world.job]
    meeting = store.under(f"meeting {number}/")
    until_s = time.monotonic() + world.deadline_s
    try:
        store.delete(f"refused/{world.rank}")
        if meeting.add("came") == world.size:
            meeting.set("all", b"")
        known: dict[int, float] = {}
        while not _have_come(meeting):
            now_s = time.monotonic()
            if now_s > until_s:
                return  # who joins the group tells who is missing
            for rank in range(world.size):
                reason = store.find(f"refused/{rank}")
                if reason is None:
                    known.pop(rank, None)
                elif now_s - known.setdefault(rank, now_s) >= AGAIN_S:
                    meeting.add("came", -1)
                    raise InvalidCall(f"rank {rank}: {reason.decode()}")
        _met[world.job] += 1
        if meeting.add("left") == world.size:
            meeting.clear()
    finally:
        store.close()


def _have_come(meeting: Store) -> bool:
    try:
        meeting.wait(["all"], LOOK_S)
    except DeadlineExceeded:
        return False
    return True


def _store(world: World) -> Store:
    return Store.of(world).under(f"parallel/{world.job}/")
