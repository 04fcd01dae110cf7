"""The process that measures: it opens a device, answers orders, and may be killed at any time.

It ends when its parent does, and by an alarm when an order takes far longer than it may.
"""

from __future__ import annotations

import resource
import signal
from multiprocessing.connection import Connection

import hal
from hal.core.values import OpenOptions
from stack.tune.bench import Bench
from stack.tune.orders import Answer, Order, Refusal, Stage

IDLE_S = 600.0
"""How long the process waits for an order before it believes that none comes."""
GRACE_S = 5.0


def serve(descriptor: int, name: str, wrappers: list[str], settings: dict[str, str]) -> None:
    """Answer the orders of a connection until it ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with Connection(descriptor) as connection:
        try:
            device = hal.open(name, wrappers, OpenOptions(settings=settings))
        except hal.HalError as error:
            connection.send(Refusal(Stage.CRASH, str(error)))
            return
        with device:
            bench = Bench(device)
            connection.send(0.0)
            while connection.poll(IDLE_S):
                try:
                    order, limit_s = connection.recv()
                except EOFError:
                    return
                # Ends the process also where a driver holds the interpreter.
                signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)
                connection.send(_answer(bench, order, limit_s))
                signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(bench: Bench, order: Order, limit_s: float) -> Answer:
    try:
        return bench.answer(order, limit_s)
    except Exception as error:  # noqa: BLE001  a plugin is foreign code and may raise anything
        return Refusal(Stage.CRASH, f"{type(error).__name__}: {error}", lasting=True)
