"""Launches that come in bursts: while the device sleeps they are handed over together.

To hand work to a driver whose threads sleep wakes them, which costs more than ten launches. A
device that is through with each small launch before the next one comes would sleep between them.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

from hal.hosted.flight import Flight
from hal.hosted.queues import Held, Queue

LOOK_S = 1e-3
"""How long a launch is held at most where no call comes that hands it over."""

_RAPID_NS = 20_000
"""The device may be kept waiting for the next launch if that came so soon after the one before."""
_LONGEST_NS = 100_000
"""A launch that comes so long after the first one held hands them over."""
_MOST = 64
_LINGER_S = 10e-3
"""How long the session's thread looks every `LOOK_S` after launches were held."""


class BurstOwner(Protocol):
    """The session, as far as bursts need it."""

    flight: Flight
    changed: threading.Condition


class Bursts:
    """Decides when a launch that could start goes to the driver, or is held for more to come.

    Whoever asks for the state of a queue, or gives it other work, hands over what is held
    (`Flight.settle`). Methods are called with the lock held.
    """

    def __init__(self, session: BurstOwner) -> None:
        self._session, self._flight = session, session.flight
        self._since_ns = 0
        self.unwatched = False
        """Whether the session's thread sleeps for longer than `LOOK_S`, and must be woken to hand
        over what is held."""
        self.away = False
        """Whether that thread works on an operation, and so would not hand over what is held."""

    def take(self, queue: Queue, launch: Held) -> None:
        """Start a launch, or hold it."""
        now_ns = time.monotonic_ns()
        pause_ns, queue.launched_ns = now_ns - queue.launched_ns, now_ns
        held = queue.held
        held.append(launch)
        if len(held) > 1:
            if len(held) >= _MOST or now_ns - queue.held_ns > _LONGEST_NS:
                self._flight.hand_over(queue)
        elif pause_ns < _RAPID_NS and not self.away and self._flight.is_idle(queue):
            queue.held_ns = now_ns
            self._since_ns = now_ns
            if self.unwatched:
                self.unwatched = False
                self._session.changed.notify_all()
        else:
            self._flight.hand_over(queue)

    def look_s(self) -> float:
        """How long the session's thread may sleep."""
        lingers = time.monotonic() - self._since_ns * 1e-9 < _LINGER_S
        return LOOK_S if lingers else math.inf
