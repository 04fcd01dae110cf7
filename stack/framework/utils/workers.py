"""Processes that load batches beside the one that trains.

Each worker has a pipe. It answers requests in their order, and requests go to the workers in turn,
so that batches come in the order in which they were asked for, whoever is faster. Results wait in
the worker: a thread of it sends them.
"""

from __future__ import annotations

import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np

from hal.core.facts import dataclass
from stack.framework.create import tensor
from stack.framework.devices import set_default_device
from stack.framework.random import manual_seed
from stack.framework.tensor import Tensor
from stack.framework.tree import Spec, flatten, unflatten

WATCH_S = 1.0
"""How often it is looked whether the other process still lives."""
END_S = 5.0
"""How long a worker may take to end before it is killed."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker this process is, as `get_worker_info` tells."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class Source(Protocol):
    """What a worker loads from."""

    @property
    def dataset(self) -> Any: ...

    def answers(self) -> Callable[[Any], Any]:
        """For one epoch the function from requests to batches, which raises StopIteration when
        there are no more."""
        ...


_info: list[WorkerInfo] = []


def get_worker_info() -> WorkerInfo | None:
    """Of the worker that this process is; None in any other one."""
    return _info[0] if _info else None


class _Begin(NamedTuple):
    """An epoch begins: its number, and the seed from which those of the workers follow."""

    epoch: int
    seed: int


class _Failure(NamedTuple):
    """What a worker raised, and what is said of it."""

    kind: type[Exception]
    text: str


class _Batch(NamedTuple):
    """A batch whose tensors are arrays."""

    arrays: list[Any]
    form: Spec


_END = None
"""The answer when a worker has no more batches, and the request that ends it."""


class Workers:
    """`count` processes that load from `source`. `init` is called in each with its number;
    `timeout_s` is how long a batch may take, 0: as long as its worker lives."""

    def __init__(
        self,
        source: Source,
        count: int,
        init: Callable[[int], object] | None,
        timeout_s: float,
        context: BaseContext,
    ) -> None:
        self._timeout_s, self._epoch = timeout_s, 0
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        for number in range(count):
            mine, theirs = context.Pipe()
            args = (theirs, source, number, count, init, os.getpid())
            process = context.Process(target=_work, args=args, daemon=True)  # type: ignore[attr-defined] # each context has one
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def batches(self, requests: Iterable[Any], ahead: int, seed: int) -> Iterator[Any]:
        """The answers to the requests, in order, without those of workers that have no more;
        `ahead` requests are under way at a time. Raises what a worker raised, with the worker's own
        traceback in its text, and RuntimeError for one that died or is late."""
        self._epoch += 1
        for pipe in self._pipes:
            _tell(pipe, _Begin(self._epoch, seed))
        count = len(self._pipes)
        active = [True] * count
        rest, turn, under_way = iter(requests), 0, deque[int]()

        def ask() -> None:
            nonlocal turn
            following = [(turn + i) % count for i in range(count)]
            number = next((i for i in following if active[i]), None)
            if number is None:
                return
            for request in rest:
                _tell(self._pipes[number], (request,))
                under_way.append(number)
                turn = number + 1
                return

        for _ in range(ahead):
            ask()
        while under_way:
            number = under_way.popleft()
            found = self._answer(number)
            active[number] = found is not _END
            ask()
            if isinstance(found, _Failure):
                raise _raised(found)
            if found is not _END:
                yield unflatten(found.form, iter([tensor(a) for a in found.arrays]))

    def _answer(self, number: int) -> _Batch | _Failure | None:
        """The next answer of this epoch."""
        pipe, process = self._pipes[number], self._processes[number]
        began = time.monotonic()
        while True:
            ready = wait([pipe, process.sentinel], WATCH_S)
            if pipe in ready:
                try:
                    epoch, found = pickle.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    ready = [process.sentinel]
                else:
                    if epoch == self._epoch:
                        answer: _Batch | _Failure | None = found
                        return answer
                    continue
            if ready:
                process.join(END_S)
                raise RuntimeError(
                    f"DataLoader worker {number} (pid {process.pid}) exited unexpectedly, with "
                    f"exit status {process.exitcode}; num_workers=0 loads in this process, and "
                    "shows why"
                )
            if self._timeout_s and time.monotonic() - began > self._timeout_s:
                raise RuntimeError(
                    f"DataLoader timed out after {self._timeout_s:g} seconds: worker {number} has "
                    "no batch yet"
                )

    def close(self) -> None:
        """End the processes, by force where they do not. Idempotent."""
        for pipe in self._pipes:
            _tell(pipe, _END)
            pipe.close()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            process.join(max(0.0, min(WATCH_S, deadline - time.monotonic())))
            if process.is_alive():
                process.kill()
                process.join(END_S)
        self._pipes, self._processes = [], []


def _tell(pipe: Connection, message: Any) -> None:
    """Send a message; a worker that has died is found when its answer is due."""
    with suppress(OSError):
        pipe.send(message)


def _raised(failure: _Failure) -> Exception:
    try:
        return failure.kind(failure.text)
    except Exception:  # noqa: BLE001  a kind that takes other arguments
        return RuntimeError(failure.text)


# in the worker


def _work(
    pipe: Connection,
    source: Source,
    number: int,
    count: int,
    init: Callable[[int], object] | None,
    parent: int,
) -> None:
    """Answer requests until there is an end of them, or of the process that sends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
    set_default_device("cpu:0")
    results: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_send, args=(pipe, results), daemon=True).start()
    epoch, is_new = 0, True
    answers: Callable[[Any], Any] | None = None
    failed: _Failure | None = None
    while (message := _received(pipe, parent)) is not _END:
        if isinstance(message, _Begin):
            epoch, failed = message.epoch, None
            seed = message.seed + number
            _info[:] = [WorkerInfo(number, count, seed, source.dataset)]
            try:
                if is_new:
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                    manual_seed(seed)
                    if init is not None:
                        init(number)
                is_new = False
                answers = source.answers()
            except Exception as error:  # noqa: BLE001  the parent raises it
                failed = _failure(error, number)
            continue
        found: _Batch | _Failure | None = failed
        if failed is None:
            assert answers is not None, "an epoch begins before its requests"
            found = _answered(answers, message[0], number)
        try:
            content = pickle.dumps((epoch, found), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001  a batch that cannot be sent
            content = pickle.dumps((epoch, _failure(error, number)))
        results.put(content)


def _received(pipe: Connection, parent: int) -> Any:
    """The next message; None where there will be none."""
    try:
        while not pipe.poll(WATCH_S):
            if os.getppid() != parent:
                return None
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _send(pipe: Connection, results: queue.Queue[bytes]) -> None:
    """Send results as long as the process lives, or its parent takes them."""
    while True:
        try:
            content = results.get(timeout=WATCH_S)
        except queue.Empty:
            continue
        try:
            pipe.send_bytes(content)
        except OSError:  # the parent has closed it
            return


def _answered(answers: Callable[[Any], Any], request: Any, number: int) -> _Batch | _Failure | None:
    try:
        leaves, form = flatten(answers(request), lambda x: isinstance(x, Tensor))
        return _Batch([x.detach().numpy() for x in leaves], form)
    except StopIteration:
        return _END
    except Exception as error:  # noqa: BLE001  the parent raises it
        return _failure(error, number)


def _failure(error: Exception, number: int) -> _Failure:
    name = type(error).__name__
    text = (
        f"Caught {name} in DataLoader worker process {number}.\nOriginal {traceback.format_exc()}"
    )
    try:
        pickle.loads(pickle.dumps(type(error)))
    except Exception:  # noqa: BLE001  a kind of the worker's own
        return _Failure(RuntimeError, text)
    return _Failure(type(error), text)
