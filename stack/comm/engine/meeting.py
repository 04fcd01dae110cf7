"""How the ranks of a group find each other: through the store, then by connections.

Every rank writes a card into the store. Ranks whose processes run under one kernel and can reach
each other's abstract sockets are of one host: they try, and tell the store what they found. A
host's lowest rank makes the memory that its ranks share, and its card has the token that must be in
it. Any two ranks get a connection of their own, by whose end one learns that the other's process
has ended. Abstract sockets and memory without a name go with their processes.

A card is a lease: nobody else is that rank while its process lives and has not left the group. The
last rank that leaves takes the group's keys out of the store; those of a process that ends without
leaving go with it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace

from hal.core.errors import DeadlineExceeded, HalError, InvalidCall
from hal.core.facts import dataclass
from stack.comm.choose.choices import AlgorithmChoices, choices_in, own_choices, own_rules
from stack.comm.choose.network import network_of_hosts
from stack.comm.engine.links import VERSION, Card, Connections, Deadline, Links, Listeners
from stack.comm.engine.segment import segment_of
from stack.comm.store import Hold, Store, StoreError
from stack.comm.world import taken

DECIDED = "shrink/who"
"""The key with the ranks that go on after a failure."""
_WITHDRAWAL_S = 5.0
_OTHERS_S = 1.0
_GIVE_UP_S = 2.0
"""How much later another rank may give up, which began to meet at about the same time."""
_LOOK_S = 0.1
"""How often a rank that waits until all have met looks whether one has ended."""
_READ_S = 3.0
"""How long what a rank holds stays when it refuses the others, if not all of them refuse too."""
_TRIES = 3
"""How often a place is asked for that was just let go."""


@dataclass(frozen=True, slots=True)
class Met:
    """What a meeting gives: `hosts[r]` is the lowest rank of rank r's host, `segment` the
    descriptor of the memory that this host's ranks share. It and the connections are the caller's.
    `choices` are equal on all ranks. `hold` has this rank's keys in the store."""

    hosts: tuple[int, ...]
    connections: Connections
    segment: int
    choices: AlgorithmChoices
    hold: Hold


@dataclass(frozen=True, slots=True)
class MeshLine:
    """What a group is that lies in a mesh: `ranks` are its ranks' numbers in the job. The groups of
    one `mesh` that a process is in end together: ranks that are in another of them alone hear by it
    who is lost. `why` says of a rank of the job that has ended a group what it has raised; "" where
    it has raised nothing. `say` tells the others what this rank raises, before it ends one."""

    mesh: str
    ranks: tuple[int, ...]
    why: Callable[[int], str] = lambda rank: ""
    say: Callable[[BaseException], None] = lambda error: None


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """Where the ranks of a group meet: a store, its address, and the group's key in it. A rank that
    says nothing for `silent_s` seconds is lost; None for a tenth of the deadline. `line` is for a
    group that lies in a mesh."""

    store: Store
    address: str
    key: str
    silent_s: float | None = None
    line: MeshLine | None = None

    @property
    def table(self) -> Store:
        """The part of the store that holds this group's keys alone."""
        return self.store.under(f"group/{len(self.key)}:{self.key}/")  # no key begins another one

    def next(self, what: str) -> MeetingPlace:
        """The place of a group that follows this one."""
        return replace(self, key=f"{self.key}/{what}", line=None)


def meet(place: MeetingPlace, rank: int, size: int, deadline_s: float) -> Met:
    """Meet the other ranks.

    Raises DeadlineExceeded that names who is missing, InvalidCall when ranks disagree, PluginError
    when the system lacks what is needed.
    """
    store, deadline = place.table, Deadline(deadline_s)
    with ExitStack() as stack:
        listeners = Listeners(store, place.address, rank, size)
        stack.callback(listeners.close)
        # Closed last: who sees it reads in the store whether this rank has given up
        connections = stack.enter_context(ExitStack())
        hold = stack.enter_context(_held(store, rank, size))
        card = listeners.card(size)
        take_place(store, hold, f"card/{rank}", rank, card, deadline)
        for word in ("gave-up", "refuses"):
            store.delete(f"{word}/{rank}", deadline.left_s)
        cards = _cards(store, rank, size, deadline)
        links = Links(store, rank, cards, deadline)
        connections.callback(links.close)
        # Each rank's host, called by its lowest rank. Ranks of one kernel are of one host if they
        # reach each other there, which containers may not
        candidates = (other for other in range(rank) if cards[other].boot == cards[rank].boot)
        own = next((other for other in candidates if links.reach(other)), rank)
        hold.set(f"host/{rank}", str(own).encode(), deadline.left_s)
        keys = [f"host/{r}" for r in range(len(cards))]
        hosts = tuple(map(int, values(store, keys, "came, but did not say who is near", deadline)))
        links.call_lower(hosts)
        links.hear_higher(listeners, hosts)
        # What rank 0 knows of the network between several hosts. One host's ranks need no
        # programs, but a word that nobody understands is an error there, too.
        if len(set(hosts)) == 1:
            choices = AlgorithmChoices(rules=own_rules())
        else:
            network = network_of_hosts(hosts)
            if rank == 0:
                hold.set("choices", own_choices(network), deadline.left_s)
            what = "did not tell what it knows of the network"
            choices = choices_in(values(store, ["choices"], what, deadline)[0], network)
        segment = segment_of(links, rank, hosts, cards, deadline)
        _await_all(store, hold, links, rank, size, deadline)
        return Met(hosts, links.take(), segment, choices, hold)


def say_met(store: Store, size: int, deadline: Deadline) -> None:
    """This rank needs nothing more that others have in the store."""
    if store.add("count", 1, deadline.left_s) == size:
        store.set("met", b"", deadline.left_s)


def _await_all(
    store: Store, hold: Hold, links: Links, rank: int, size: int, deadline: Deadline
) -> None:
    """Wait until all ranks have met: they say something at every heartbeat only from then on, and
    one that still waits for another would be taken for silent. The end of a rank that has met is
    left to who watches it."""
    hold.set(f"met/{rank}", b"", deadline.left_s)
    say_met(store, size, deadline)
    keys = [f"met/{other}" for other in range(size)]
    while True:
        try:
            store.wait(["met"], min(deadline.left_s, _LOOK_S))
        except DeadlineExceeded:
            ended = links.ended()
            gave_up = any(store.find(f"gave-up/{other}", 5.0) is not None for other in ended)
            if deadline.passed or gave_up:
                with suppress(HalError):  # it counts when it comes again
                    store.add("count", -1, _WITHDRAWAL_S)
                raise _Missing(store, keys, "have not met all others", deadline.seconds) from None
            if ended:
                return
        else:
            return


def leave(place: MeetingPlace, hold: Hold) -> None:
    """Take this rank's keys out of the store, and behind the last rank all of the group's. Does not
    fail: keys go with their processes at the latest. Who goes on after a failure stays written
    there: a rank that was left out may come yet."""
    store = place.table
    with suppress(HalError):
        if hold.there:
            store.wait(["met"], _OTHERS_S)  # until then others may need them
            hold.release()
            if store.find(DECIDED, _WITHDRAWAL_S) is None:
                store.clear(_WITHDRAWAL_S)


@contextmanager
def _held(store: Store, rank: int, size: int) -> Iterator[Hold]:
    """What a rank holds in the store once it has met the others. One that gives up lets it go and
    says so: it has come, and whoever comes later waits for it to come again. One that refuses the
    others leaves what it holds a while, so that they read why they disagree."""
    hold = store.hold()
    try:
        yield hold
    except BaseException as error:
        if isinstance(error, DeadlineExceeded):
            with suppress(HalError):  # before its card goes: who misses that looks here
                store.set(f"gave-up/{rank}", b"", _WITHDRAWAL_S)
            if isinstance(error, _Missing) and (later := error.told_again()):
                hold.release()
                raise later from None
        elif isinstance(error, ValueError):  # InvalidCall or PlanError
            with suppress(HalError):
                store.set(f"refuses/{rank}", b"", _WITHDRAWAL_S)
                store.wait([f"refuses/{other}" for other in range(min(size, 1024))], _READ_S)
        hold.release()
        raise


def take_place(
    store: Store, hold: Hold, key: str, rank: int, card: Card, deadline: Deadline
) -> None:
    """Hold a rank's card. Raises InvalidCall when another process has it."""
    for _ in range(_TRIES):
        try:
            hold.set(key, json.dumps(asdict(card)).encode(), deadline.left_s)
        except StoreError as error:
            found, refused = store.find(key, deadline.left_s), error
        else:
            return
        if found is not None:
            theirs = json.loads(found)
            process, host = theirs["process"], theirs["host"]
            text = taken(rank, process, host)
            if (process, host) == (os.getpid(), socket.gethostname()):
                text = f"rank {rank} is taken: this process has joined the group already; "
                text += "close it first"
            raise InvalidCall(text) from None
    raise refused


def _cards(store: Store, rank: int, size: int, deadline: Deadline) -> list[Card]:
    """The cards of all ranks. One that has another idea of the group is told of as soon as it is
    read, since the ranks that are still awaited may not exist."""
    cards: list[Card] = []
    keys = [f"card/{other}" for other in range(size)]
    for other, key in enumerate(keys):
        try:
            card = Card(**json.loads(store.get(key, deadline.left_s)))
        except DeadlineExceeded:
            raise _Missing(store, keys, "did not come", deadline.seconds) from None
        if (card.version, card.size) != (VERSION, size):
            theirs = f"rank {other} has version {card.version} and size {card.size}"
            ours = f"rank {rank} has version {VERSION} and size {size}"
            raise InvalidCall(f"ranks disagree about the group: {theirs}, {ours}")
        cards.append(card)
    return cards


def values(store: Store, keys: Sequence[str], what: str, deadline: Deadline) -> list[bytes]:
    """What the ranks have written under these keys, by rank. A key goes with its process, so one
    that was there may be missing again. Raises DeadlineExceeded that names the ranks."""
    try:
        for start in range(0, len(keys), 1024):
            store.wait(keys[start : start + 1024], deadline.left_s)
        return [store.get(key, deadline.left_s) for key in keys]
    except DeadlineExceeded:
        raise _Missing(store, keys, what, deadline.seconds) from None


class _Missing(DeadlineExceeded):
    """Ranks have not written these keys within a deadline."""

    def __init__(self, store: Store, keys: Sequence[str], what: str, seconds: float) -> None:
        self._told = store, keys, what, seconds
        missing = [r for r, key in enumerate(keys) if store.find(key, 5.0) is None]
        # Looked for first: one that gives up meanwhile says so before its card goes.
        away = [r for r in missing if store.find(f"card/{r}", 5.0) is None]
        never = [r for r in missing if store.find(f"gave-up/{r}", 5.0) is None]
        named = never or missing
        # one whose card is there may only be waiting for one whose card has gone
        gone = [r for r in named if r in away]
        text = f"ranks {gone or named} {what} within {seconds:g} s"
        super().__init__(text if never else f"{text}, but had come before, and given up")
        self._waiting = [] if gone else named

    def told_again(self) -> _Missing | None:
        """The same a little later, when a rank that only waits for another one has given up, too,
        and one that is stopped has not; None where there is no more to tell."""
        store = self._told[0]
        if not self._waiting:
            return None
        with suppress(HalError):
            store.wait([f"gave-up/{r}" for r in self._waiting], _GIVE_UP_S)
        with suppress(HalError):
            later = _Missing(*self._told)
            return later if later._waiting else None
        return None
