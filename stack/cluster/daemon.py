"""The daemon: one thread that owns the cluster, and the socket by which people reach it."""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.cluster.cluster import LiveCluster
from stack.cluster.files import ClusterFile
from stack.cluster.server import Door, Server

LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class DaemonCall:
    """Something to do on the cluster's thread."""

    call: Callable[[LiveCluster], Any]
    answer: Future[Any]


class Daemon:
    """Runs a cluster until it is asked to end."""

    def __init__(self, folder: Path, config: ClusterFile, port: int | None) -> None:
        """Take the folder and listen; `port` is the page's, None for none.

        Raises InvalidCall, and SpecError for a cluster that cannot be."""
        self._cluster = LiveCluster(folder, config)
        self._requests: queue.SimpleQueue[DaemonCall] = queue.SimpleQueue()
        self._waker = os.eventfd(0)
        self._ended = False
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
        """Let `run` return. Jobs go on."""
        self._ended = True
        os.eventfd_write(self._waker, 1)

    def run(self) -> None:
        """Do what is asked for and what time and ending runs bring, until `end` or a signal."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.end())
        try:
            while not self._ended:
                self._turn()
        finally:
            self._server.close()
            self._cluster.close()

    def _turn(self) -> None:
        due_s = min(self._cluster.look(), LONGEST_S)
        watched = self._cluster.watched()
        poll = select.poll()
        for descriptor in (self._waker, *watched):
            poll.register(descriptor, select.POLLIN)
        readable = {descriptor for descriptor, _ in poll.poll(due_s * 1000)}
        if self._waker in readable:
            os.eventfd_read(self._waker)
        for descriptor in readable & watched.keys():
            self._cluster.ended(watched[descriptor])
        requests: list[DaemonCall] = []
        while not self._requests.empty():
            requests.append(self._requests.get_nowait())
        answers = self._cluster.do([request.call for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
