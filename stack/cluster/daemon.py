"""The daemon: one thread that owns the cluster, and the socket by which people reach it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from hal.core.errors import InvalidCall, PluginError
from hal.core.facts import dataclass
from stack.cluster.cluster import LiveCluster
from stack.cluster.files import ClusterFile
from stack.cluster.server import Door, Server
from stack.launch.loop import signals_heard

LONGEST_S = 60.0
WATCH_S = 10.0
_AT_ONCE = 16
"""Hosts that are reached for at the same time."""
Lost = Callable[[Sequence[str]], Sequence[str]]
"""Of hosts, by name, those that are gone. Raises PluginError where nobody can say."""


@dataclass(frozen=True, slots=True)
class DaemonCall:
    """Something to do on the cluster's thread."""

    call: Callable[[LiveCluster], Any]
    answer: Future[Any]


class Daemon:
    """Runs a cluster until it is asked to end."""

    def __init__(
        self, folder: Path, config: ClusterFile, port: int | None, lost: Lost | None = None
    ) -> None:
        """Take the folder and listen; `port` is the page's, None for none. `lost` tells which of
        the hosts are gone, where somebody knows.

        Raises InvalidCall, and SpecError for a cluster that cannot be."""
        self._cluster = LiveCluster(folder, config)
        self._requests: queue.SimpleQueue[DaemonCall] = queue.SimpleQueue()
        self._waker = os.eventfd(0)
        self._ended = threading.Event()
        self._lost = lost
        self._doubts = threading.Event()
        try:
            door = Door(self.ask, self.end, self._cluster.users)
            self._server = Server(folder, door, port)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def page(self) -> str:
        """Where the page is; "" without."""
        return self._server.page

    def ask(self, call: Callable[[LiveCluster], Any]) -> Any:
        """What a call gives on the cluster's thread, once it is durable; raises what it raises."""
        request = DaemonCall(call, Future())
        self._requests.put(request)
        os.eventfd_write(self._waker, 1)
        return request.answer.result(LONGEST_S)

    def end(self) -> None:
        """Let `run` return. Jobs go on, but in an allocation."""
        self._ended.set()
        self._doubts.set()
        os.eventfd_write(self._waker, 1)

    def run(self) -> None:
        """Do what is asked for and what time and ending runs bring, until `end` or a signal."""
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            if threading.current_thread() is not threading.main_thread():
                self._run(None)
                return
            # Not by handlers that call `end`: the system may tell another thread of a signal, and
            # then this one sleeps on.
            with signals_heard((signal.SIGTERM, signal.SIGINT)) as heard:
                self._run(heard)
        finally:
            self._server.close()
            self._cluster.close()

    def _run(self, heard: socket | None) -> None:
        while not self._ended.is_set():
            self._turn(heard)

    def _watch(self) -> None:
        """Look after hosts until the end: those that are gone, as somebody knows, and those that
        jobs say they have lost. What does not answer is asked again."""
        while not self._ended.is_set():
            self._doubts.wait(WATCH_S)
            self._doubts.clear()
            with contextlib.suppress(PluginError, InvalidCall, TimeoutError):
                if self._lost is not None:
                    for host in self._lost(self.ask(LiveCluster.usable)):
                        self.ask(partial(LiveCluster.lose, host=host))
                doubted = self.ask(LiveCluster.doubted)
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    for host, well in zip(
                        doubted, threads.map(self._cluster.answers, doubted), strict=True
                    ):
                        self.ask(partial(LiveCluster.heard, host=host, answers=well))

    def _turn(self, heard: socket | None) -> None:
        due_s = min(self._cluster.look(), LONGEST_S)
        watched = self._cluster.watched()
        poll = select.poll()
        for descriptor in (self._waker, *watched):
            poll.register(descriptor, select.POLLIN)
        if heard is not None:
            poll.register(heard, select.POLLIN)
        readable = {descriptor for descriptor, _ in poll.poll(due_s * 1000)}
        if heard is not None and heard.fileno() in readable:
            self._ended.set()
        if self._waker in readable:
            os.eventfd_read(self._waker)
        for descriptor in readable & watched.keys():
            self._cluster.ended(watched[descriptor])
        if self._cluster.loses_hosts:
            self._doubts.set()
        requests: list[DaemonCall] = []
        while not self._requests.empty():
            requests.append(self._requests.get_nowait())
        answers = self._cluster.do([request.call for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
