"""Ranks that are processes: each evaluates expressions over its group, and tells how they end."""

import gc
import os
import signal
import time
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from hal.core.errors import HalError
from stack.comm.engine.meeting import MeshLine
from stack.comm.group import Group
from stack.comm.store import Store, StoreServer

TOKEN = "of-a-test"
WAIT_S = 180.0
_KEYS = count()
_START = get_context("forkserver")
_START.set_forkserver_preload(["tests.comm.engine.ranks"])


class Failed(Exception):
    """What a rank's expression raised: the error's type and text, and when."""

    def __init__(self, kind, text, at_s):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.at_s = kind, text, at_s


def serve(pipe, address, key, rank, size, deadline_s):
    """A rank's process: answers expressions until its pipe ends."""
    store = Store(address, TOKEN, WAIT_S)
    names = {"np": np, "os": os, "time": time, "store": store, "address": address, "Group": Group}
    names |= {"held": held, "MeshLine": MeshLine}
    names["g"] = Group.join(store, address, key, rank, size, deadline_s)
    pipe.send(("value", rank))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the test is over
        while pipe.poll(WAIT_S):
            pipe.send(outcome(pipe.recv(), names))
    names["g"].close()
    store.close()


def outcome(code, names):
    """The value of an expression, or its error."""
    try:
        return "value", eval(code, names)
    except HalError as error:
        return "error", (type(error).__name__, str(error), time.monotonic())


def watched(process="self"):
    """How many threads of others a process watches."""
    folder = f"/proc/{process}/fd"
    return sum("pidfd" in os.path.realpath(f"{folder}/{fd}") for fd in os.listdir(folder))


def held():
    """This process's open descriptors but those of threads that it watches, these (they come some
    time after their group), and the shared memories that it maps."""
    gc.collect()
    threads = watched()
    shared = Path("/proc/self/maps").read_text().count("memfd:hal-")
    return len(os.listdir("/proc/self/fd")) - threads, threads, shared


class Ranks:
    """Processes that form a group, `g` in their expressions."""

    def __init__(self, port, size, deadline_s):
        key, address = f"ranks-{os.getpid()}-{next(_KEYS)}", f"127.0.0.1:{port}"
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, other = _START.Pipe()
            arguments = (other, address, key, rank, size, deadline_s)
            process = _START.Process(target=serve, args=arguments, daemon=True)
            process.start()
            other.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        for rank in range(size):
            self.hear(rank)

    def tell(self, rank, code):
        """Begin to evaluate an expression."""
        self.pipes[rank].send(code)

    def hear(self, rank):
        """The value of the expression that the rank evaluates. Raises Failed."""
        if not self.pipes[rank].poll(WAIT_S):
            raise TimeoutError(f"rank {rank} does not answer")
        kind, value = self.pipes[rank].recv()
        if kind == "error":
            raise Failed(*value)
        return value

    def ask(self, rank, code):
        self.tell(rank, code)
        return self.hear(rank)

    def ask_all(self, code, ranks=None):
        """The expression's value on each of these ranks, which evaluate it together."""
        ranks = range(len(self.pipes)) if ranks is None else ranks
        for rank in ranks:
            self.tell(rank, code)
        return [self.hear(rank) for rank in ranks]

    def fails(self, rank):
        """How the expression that the rank evaluates has failed."""
        try:
            value = self.hear(rank)
        except Failed as failed:
            return failed
        raise AssertionError(f"rank {rank} gives {value}")

    def signal(self, rank, number):
        os.kill(self.processes[rank].pid, number)

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)
            process.close()


@contextmanager
def running(size, deadline_s=WAIT_S):
    """Ranks in processes, and the store that they meet in. One that is silent for a tenth of the
    deadline is lost."""
    with StoreServer(TOKEN) as server:
        ranks = Ranks(server.port, size, deadline_s)
        try:
            yield ranks
        finally:
            for process in ranks.processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
            ranks.close()
