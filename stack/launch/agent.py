"""Runs the ranks of one host for a launcher, which it talks to over stdin and stdout.

It starts nothing before it has reached the job's store from its host. When the launcher's end of
stdin closes, for whatever reason, it ends every process that came from its ranks, and then itself.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import time
from io import FileIO
from pathlib import Path
from typing import Any

from hal.core.errors import DeadlineExceeded, HalError
from hal.net.loop import turn
from stack.comm.engine.links import address_towards
from stack.comm.store import Lease, Store
from stack.comm.world import BEAT_S, World, host_and_port
from stack.launch.copies import Copies, Giver
from stack.launch.faults import DISK_FULL, TORN_WRITE
from stack.launch.keeping import kept_in, order_of, settle, tear
from stack.launch.line import MOST_DESCRIPTORS
from stack.launch.loop import signals_heard, unblocked
from stack.launch.processes import adopt_descendants, kill_descendants, reap_adopted
from stack.launch.ranks import Order, Ranks
from stack.launch.seats import share
from stack.launch.talk import GREETING, PIECE_NBYTES, Ear, said

LOOK_S = 0.5
"""How often it looks whether ranks that may be replaced are stopped."""
STOPPED_S = 1.0
"""A rank that was stopped for so long is lost."""
KILL_S = 10.0
_MEET_S = 15.0
_OUTBOX_NBYTES = 1 << 20
"""With more than this not taken by the launcher, nothing more is read from the ranks."""
_ON_DISK = ""
"""The process, as it were, of what an earlier job has kept on disk."""
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""What a rank wrote is on the screen before it ends, and a crash in native code shows its stack."""


class Agent:
    """The agent of a host. `run` returns once the launcher lets it go."""

    def __init__(self, orders: FileIO, answers: FileIO) -> None:
        self._orders = orders
        self._answers = answers
        self._ear = Ear()
        self._outbox = bytearray(GREETING)
        self._selector = selectors.DefaultSelector()
        self._ranks = Ranks(
            self._selector,
            lambda rank, stream, data: self._say(
                {"say": "wrote", "rank": rank, "stream": stream}, data
            ),
            lambda rank, status: self._say({"say": "exited", "rank": rank, "status": status}),
            self._told,
        )
        self._held: dict[str, list[int]] = {}
        """The memory of each process, also of those that have ended until another one has it."""
        self._copies: Copies | None = None
        self._giver: Giver | None = None
        self._token = ""
        self._keep_in: Path | None = None
        self._is_well = False
        self._is_cut = False
        self._damage: set[str] = set()
        self._lease: Lease | None = None
        self._over = False
        self._why = ""
        self._next_look_s = 0.0
        self._members: dict[int, str] = {}
        self._stopped: dict[int, float] = {}

    def run(self) -> str:
        """Serve the launcher; then end all descendants. Gives why it ended, "" when the launcher
        let it go."""
        with signals_heard(_ENDING) as signals:
            self._selector.register(
                signals, selectors.EVENT_READ, lambda: self._end("it got a signal")
            )
            self._selector.register(self._orders, selectors.EVENT_READ, self._hear)
            self._selector.register(self._answers, selectors.EVENT_WRITE, self._write)
            while not self._over:
                left_s = max(0.0, self._next_look_s - time.monotonic())
                turn(self._selector, min(left_s, LOOK_S) if self._members else left_s)
                # Tell the launcher of ranks that have been stopped for STOPPED_S. The system
                # knows: a rank that is only slow, on however busy a machine, is not taken for one.
                looks = self._members and not self._is_cut
                stopped, now_s = self._ranks.stopped() if looks else set(), time.monotonic()
                self._stopped = {rank: self._stopped.get(rank, now_s) for rank in stopped}
                for rank, since_s in self._stopped.items():
                    if now_s - since_s >= STOPPED_S:
                        why = f"its process has been stopped for {now_s - since_s:.1f} s"
                        words = {"say": "faulty", "member": self._members[rank], "kind": "stopped"}
                        words["why"] = why
                        self._say({"say": "told", "rank": rank, "words": words})
                if self._giver is not None:
                    self._giver.look()
                self._look()
        for end in (self._giver, self._copies):
            if end is not None:
                end.close()
        kill_descendants(KILL_S)
        if self._keep_in is not None:
            if DISK_FULL in self._damage:
                sizes = [os.fstat(memory).st_size for memory in self._memories()]
                half = max(sizes, default=0) // 2
                resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))
            try:
                settle(self._keep_in, self._memories(), self._is_well)
            except OSError as error:
                return f"the newest state is not kept in {self._keep_in}: {error}"
            if TORN_WRITE in self._damage:
                tear(self._keep_in)
        return self._why

    def _memories(self) -> list[int]:
        """The descriptors of all that ranks of this host have kept, and of copies."""
        copies = [] if self._copies is None else self._copies.memories
        return [own for every in self._held.values() for own in every] + copies

    def _end(self, why: str) -> None:
        self._over = True
        self._why = self._why or why

    def _look(self) -> None:
        """Now and then: a sign of life, adopted children that have ended, the store's."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + BEAT_S
        self._say({"say": "beat"})
        reap_adopted(self._ranks.processes)
        if self._copies is not None:
            self._copies.look()
        if self._lease is not None and self._lease.lost:
            self._end(f"the launcher's store is out of reach: {self._lease.lost}")

    def _hear(self) -> None:
        data = self._orders.read(PIECE_NBYTES)
        if data == b"":
            self._over = True
        for words, _ in self._ear.hear(data or b""):
            self._obey(words)

    def _obey(self, words: dict[str, Any]) -> None:
        try:
            match words:
                case {"say": "meet", "store": store, "token": token, "key": key, "copies": copies}:
                    self._meet(store, token, key, copies)
                case {"say": "start", "folder": folder, "ranks": ranks}:
                    os.chdir(folder)
                    cpus = sorted(os.sched_getaffinity(0))
                    for rank in ranks:
                        given = {**_DEFAULTS, **os.environ, **rank["environment"]}
                        world = World.from_environment(given)
                        mine = share(cpus, world.local_rank, world.local_size)
                        command, lined = tuple(rank["command"]), bool(world.member)
                        self._ranks.start(Order(world.rank, command, given, mine, lined))
                        if lined:
                            self._members[world.rank] = world.member
                case {"say": "signal", "number": number}:
                    self._ranks.signal(number, words.get("rank"))
                case {"say": "keep", "folder": folder}:
                    self._keep_in = Path(folder)
                    found = kept_in(self._keep_in)
                    if found.memory is not None:
                        self._held[_ON_DISK] = [found.memory]
                    self._say({"say": "kept", "step": found.step, "lacks": found.lacks})
                case {"say": "fault", "kind": kind}:
                    # A fault that was asked for happens to this host.
                    match kind:
                        case "agent-kill":
                            os.kill(os.getpid(), signal.SIGKILL)
                        case "cut":  # nobody hears anything of it any more
                            self._is_cut = True
                            self._ranks.signal(signal.SIGSTOP)
                        case _:
                            self._damage.add(kind)
                case {"say": "well"}:
                    self._is_well = True
                case {"say": "copy to", "address": address}:
                    if self._giver is not None:
                        self._giver.close()
                    self._giver = None
                    if address:
                        self._giver = Giver(self._selector, self._token, address, self._given)
                case {"say": "tell", "ranks": ranks, "words": told}:
                    self._ranks.tell(ranks, told)
                case _:
                    self._say({"say": "refused", "why": f"it does not know the order {words}"})
        except (HalError, OSError) as error:
            self._say({"say": "refused", "why": str(error)})

    def _meet(self, store: str, token: str, key: str, copies: bool) -> None:
        """Be known to the job's store; with none the launcher is on this host, and no network is
        in between. Listen for the `copies` of other hosts, if there are any."""
        address = ""
        if store:
            name = socket.gethostname().encode()
            try:
                self._lease = Store(store, token, _MEET_S).lease(key, name)
            except DeadlineExceeded as error:
                text = f"{error}; `hal run --address` says how it reaches the launcher's host"
                raise DeadlineExceeded(text) from error
            if copies:
                own = address_towards(*host_and_port(store))
                self._copies, self._token = Copies(self._selector, token, own), token
                address = self._copies.address
        self._say({"say": "ready", "copies": address})

    def _told(self, rank: int, words: dict[str, Any], descriptors: list[int]) -> None:
        """A rank says something on its line. The memory in which it keeps its state stays open here
        when it ends; whoever arrives on this host later gets all of it."""
        match words:
            case {"say": "generations"}:
                for descriptor in self._held.get(self._members[rank], []):
                    os.close(descriptor)
                self._held[self._members[rank]] = descriptors
                return
            case {"say": "held"}:
                running = {self._members[other] for other in self._ranks.numbers}
                left = [
                    (m, own) for m, every in self._held.items() for own in every if m not in running
                ]
                copies = [] if self._copies is None else self._copies.memories
                left = [*(("", own) for own in copies), *left][:MOST_DESCRIPTORS]
                members, memories = zip(*left, strict=True) if left else ((), ())
                answer = {"say": "held", "members": members, "copies": len(copies)}
                self._ranks.tell([rank], answer, memories)
                return
            case {"say": "copy"}:
                newest = max(self._held[self._members[rank]], key=order_of)
                if self._giver is None:
                    self._given(order_of(newest), "there is no other host")
                else:
                    self._giver.give(os.dup(newest))
                return
            case {"say": "forget"}:  # what processes that have ended held was wrong
                self._forget_the_dead()
                return
            case {"say": "entered"}:  # a rank of this host has the newest state
                self._forget_the_dead()
        self._say({"say": "told", "rank": rank, "words": words})

    def _given(self, order: tuple[int, int], why: str) -> None:
        """The state of this host is in the memory of another one, or it is not, as `why` says."""
        epoch, step = order
        words = {"say": "copied", "epoch": epoch, "step": step, "why": why}
        self._ranks.tell(sorted(self._members), words)
        if self._giver is not None:
            self._say({**words, "to": self._giver.address, "over": bool(self._giver.why)})

    def _forget_the_dead(self) -> None:
        for gone in set(self._held) - {self._members[rank] for rank in self._ranks.numbers}:
            for descriptor in self._held.pop(gone):
                os.close(descriptor)
        if self._copies is not None:
            self._copies.forget()

    def _say(self, words: dict[str, Any], data: bytes = b"") -> None:
        if self._is_cut:
            return
        if not self._outbox:
            self._selector.register(self._answers, selectors.EVENT_WRITE, self._write)
        self._outbox += said(words, data)
        self._ranks.pause(len(self._outbox) > _OUTBOX_NBYTES)

    def _write(self) -> None:
        try:
            del self._outbox[: self._answers.write(self._outbox) or 0]
        except OSError:
            self._end("the launcher does not listen any more")
            self._outbox.clear()
        if not self._outbox:
            self._selector.unregister(self._answers)
        self._ranks.pause(len(self._outbox) > _OUTBOX_NBYTES)


def main() -> None:
    """The program of an agent: `python -m stack.launch.agent`."""
    adopt_descendants()
    orders, answers = (FileIO(os.dup(number), mode) for number, mode in ((0, "r"), (1, "w")))
    os.dup2(2, 1)  # what anybody prints here must not mix with the answers
    if why := Agent(unblocked(orders), unblocked(answers)).run():
        sys.exit(why)


if __name__ == "__main__":
    main()
