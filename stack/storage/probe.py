"""Find out what a store does before anything is trusted to it, by racing against itself.

Stores exist that ignore a conditional create, or keep it only as long as creates come one at a time
(SeaweedFS up to 4.16); a commit there could be two jobs', or none's.
"""

from __future__ import annotations

import secrets
from functools import partial
from threading import Barrier

from stack.storage.errors import Refused
from stack.storage.store import BlobStore, whole_file
from stack.storage.threads import Threads

RACERS = 8
ROUNDS = 2


def probe(store: BlobStore, deadline_s: float) -> None:
    """Commit from several threads at once, read, list and delete. Raises Refused with what the
    store did instead; nothing is left of the trial."""
    folder = f"probe-{secrets.token_hex(6)}"
    names = [f"{folder}/{i}" for i in range(ROUNDS)]
    try:
        for name in names:
            _race(store, name, deadline_s)
        listed = set(store.list(f"{folder}/"))
        if listed != set(names):
            raise _refused(store, f"it lists {sorted(listed)} where {names} are")
        store.delete(names)
        if store.list(f"{folder}/"):
            raise _refused(store, "it lists files that were deleted")
    finally:
        store.delete(names)


def _race(store: BlobStore, name: str, deadline_s: float) -> None:
    start = Barrier(RACERS)

    def racer(number: int) -> bool:
        start.wait(deadline_s)
        return store.commit(name, b"%d" % number)

    with Threads(RACERS) as threads:
        begun = [threads.give(partial(racer, i)) for i in range(RACERS)]
        won = [future.result(deadline_s) for future in begun]
    if won.count(True) != 1:
        raise _refused(
            store,
            f"of {RACERS} that created one file at a time, each only if it is not there, "
            f"{won.count(True)} succeeded",
        )
    held = whole_file(store, name, 16)
    if held != b"%d" % won.index(True):
        raise _refused(store, f"it holds {held!r} where {won.index(True)} was written")
    if store.commit(name, b"late"):
        raise _refused(store, "it created a file anew that was there")


def _refused(store: BlobStore, what: str) -> Refused:
    return Refused(
        f"{store.where} cannot hold checkpoints: {what}. Use a store that honours conditional "
        "creates (`If-None-Match: *` in S3, hard links in a file system)"
    )
