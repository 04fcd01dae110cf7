"""Ranks are killed, stopped or cut off again and again, under calls of all kinds; the survivors
shrink the group, add up, and take a new rank in. Prints how long they took to hear of it, whom they
named, and what they kept open:

    python -m tests.comm.engine.trials [--trials 200] [--how kill|stop|cut] [--hosts 2] [--seed 0]

With --hosts ranks are in network namespaces, which need root; a cut takes a rank's host away, so
each rank has one of its own.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context

from stack.comm.store import StoreServer
from tests.comm.engine.hosts import enter, hosts, why_not
from tests.comm.engine.ranks import TOKEN, WAIT_S, Failed, serve

CODES = (
    "[g.all_reduce(x) for x in [g.empty(1 << 18)] for _ in range(10**7)][0].size",
    "[g.all_reduce(x) for x in [np.zeros(1 << 18)] for _ in range(10**7)][0].size",
    "[g.all_reduce(x) for x in [np.zeros(2)] for _ in range(10**7)][0].size",
    "[g.all_gather(x) for x in [np.zeros(50000)] for _ in range(10**7)][0].size",
    "[g.all_gather(x, y) for x, y in [(g.empty(1 << 20), g.empty(g.size << 20))]"
    " for _ in range(10**7)][0].size",
    "[g.broadcast(x, k % g.size) for x in [np.zeros(1 << 20)] for k in range(10**7)][0].size",
    "[g.later.all_reduce(x).wait() for x in [np.zeros(50000)] for _ in range(10**7)][0].size",
    "[(g.later.send(x, (g.rank + 1) % g.size), g.receive(y, (g.rank - 1) % g.size))[0].wait()"
    " for x, y in [(g.empty(1 << 19), g.empty(1 << 19))] for _ in range(10**7)][0].size",
    "[(g.later.send(x, (g.rank + 1) % g.size), g.receive(y, (g.rank - 1) % g.size))[0].wait()"
    " for x, y in [(np.zeros(3 << 20), np.zeros(3 << 20))] for _ in range(10**7)][0].size",
)
SHRINK = "[globals().update(g=g.shrink()), g.all_reduce(np.full(70000, g.rank + 1.0))[3]][1]"
_START = get_context("forkserver")
_START.set_forkserver_preload(["tests.comm.engine.ranks"])
_KEYS = count()


def serve_in(namespace, *arguments):
    """A rank's process in a namespace ("": in that of the parent)."""
    if namespace:
        enter(namespace)
    serve(*arguments)


class Rank:
    """A process that evaluates expressions over its group `g`."""

    def __init__(self, namespace, address, key, rank, size, deadline_s):
        self.pipe, other = _START.Pipe()
        arguments = (namespace, other, address, key, rank, size, deadline_s)
        self.process = _START.Process(target=serve_in, args=arguments, daemon=True)
        self.namespace = namespace
        self.process.start()
        other.close()

    def hear(self):
        if not self.pipe.poll(WAIT_S):
            raise TimeoutError("a rank does not answer")
        kind, value = self.pipe.recv()
        if kind == "error":
            raise Failed(*value)
        return value

    def tell(self, code):
        self.pipe.send(code)

    def ask(self, code):
        self.tell(code)
        return self.hear()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def end(self):
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)
        self.process.close()
        self.pipe.close()


@dataclass
class Told:
    """What trials came to: seconds until each survivor raised, trials whose survivors went on with
    the right result, what was wrong, and what the survivors had open, first and last: descriptors,
    those of threads that they watch (one of each other rank of the host at most) and memories."""

    trials: int = 0
    after_s: list = field(default_factory=list)
    right: int = 0
    wrong: list = field(default_factory=list)
    open_before: list = field(default_factory=list)
    open_after: list = field(default_factory=list)

    def as_json(self):
        times = sorted(self.after_s)
        at = {"median": len(times) // 2, "p99": len(times) * 99 // 100, "most": -1}
        return json.dumps(
            {
                "trials": self.trials,
                "went_on_right": self.right,
                "heard_ms": {name: round(1e3 * times[i], 1) for name, i in at.items()},
                "open_before": self.open_before,
                "open_after": self.open_after,
                "wrong": self.wrong[:5],
            }
        )


class Trials:
    """A group of `size` ranks on `where` (namespaces, in turn), in which trials are run."""

    def __init__(self, address, where, size, deadline_s, seed):
        self._random = random.Random(seed)
        self._place = address, deadline_s
        self._where = where
        self._size = size
        key = f"trials-{os.getpid()}-{next(_KEYS)}"
        names = [where[rank % len(where)] for rank in range(size)]
        self._ranks = [self._start(key, rank, name) for rank, name in enumerate(names)]
        for rank in self._ranks:
            rank.hear()

    def _start(self, key, rank, namespace):
        address, deadline_s = self._place
        return Rank(namespace, address, key, rank, self._size, deadline_s)

    def run(self, trials, hit, mend=lambda rank: None):
        """`hit(rank)` does it to a rank, and gives the words that its survivors must say; `mend`
        undoes what outlives the rank."""
        told = Told()
        self._one(told, hit, mend)  # the first one opens what stays
        told = Told()
        told.open_before = [rank.ask("held()") for rank in self._ranks]
        for _ in range(trials):
            self._one(told, hit, mend)
        told.open_after = self._held_at_last(told.open_before)
        return told

    def _held_at_last(self, wanted):
        """What is open, as soon as descriptors and memories are as wanted or after a while: threads
        of a group that was closed end some time later."""
        until_s = time.monotonic() + 100
        while True:
            held = [rank.ask("held()") for rank in self._ranks]
            as_wanted = [h[::2] for h in held] == [h[::2] for h in wanted]
            if as_wanted or time.monotonic() > until_s:
                return held
            time.sleep(0.02)

    def _one(self, told, hit, mend):
        victim = self._random.randrange(self._size)
        others = [rank for i, rank in enumerate(self._ranks) if i != victim]
        code = self._random.choice(CODES)
        if self._random.random() < 0.5:  # else ranks may be choosing a program when it happens
            for rank in self._ranks:
                rank.tell(code.replace("10**7", "2"))
            for rank in self._ranks:
                rank.hear()
        for rank in self._ranks:
            rank.tell(code)
        time.sleep(self._random.uniform(0.0, 0.1))
        told.trials += 1
        at_s, words = time.monotonic(), hit(self._ranks[victim])
        for rank in others:
            self._hear_of(told, rank, at_s, f"rank {victim} {words}")
        namespace = self._ranks[victim].namespace
        mend(self._ranks[victim])
        self._ranks[victim].end()
        self._go_on(told, others, namespace)

    def _hear_of(self, told, rank, at_s, words):
        try:
            told.wrong.append(f"a survivor gives {rank.hear()}")
        except Failed as failed:
            told.after_s.append(failed.at_s - at_s)
            if words not in failed.text:
                told.wrong.append(f"{failed.text}: not {words}")

    def _go_on(self, told, others, namespace):
        for rank in others:
            rank.tell(SHRINK)
        got = [rank.hear() for rank in others]
        told.right += got == [sum(range(1, self._size))] * (self._size - 1)
        key = f"trials-{os.getpid()}-{next(_KEYS)}"
        new = self._start(key, self._size - 1, namespace)
        for rank in others:
            rank.tell(f"[globals().update(g=g.grow({key!r}, {self._size})), g.rank][1]")
        for rank in (*others, new):
            rank.hear()
        self._ranks = [*others, new]

    def close(self):
        for rank in self._ranks:
            rank.end()


def kill(rank):
    rank.signal(signal.SIGKILL)
    return "has ended"


def stop(rank):
    rank.signal(signal.SIGSTOP)
    return "has said nothing"


def run(trials, how="kill", count=0, size=3, deadline_s=20.0, seed=0):
    """The trials between ranks of this host, or of `count` namespaces."""
    with ExitStack() as stack:
        net = stack.enter_context(hosts(count)) if count else None
        server = stack.enter_context(StoreServer(TOKEN, net.address if net else "127.0.0.1"))
        where = [net.namespace(h) for h in range(count)] if net else [""]
        address = f"{net.address if net else '127.0.0.1'}:{server.port}"
        made = Trials(address, where, size, deadline_s, seed)
        stack.callback(made.close)
        if how == "cut":

            def cut(rank):
                net.cut(where.index(rank.namespace))
                return "has said nothing"

            return made.run(trials, cut, lambda rank: net.mend(where.index(rank.namespace)))
        return made.run(trials, {"kill": kill, "stop": stop}[how])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--how", choices=("kill", "stop", "cut"), default="kill")
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.hosts and (why := why_not()):
        raise SystemExit(why)
    told = run(given.trials, given.how, given.hosts, given.size, given.deadline, given.seed)
    sys.stdout.write(told.as_json() + "\n")


if __name__ == "__main__":
    main()
