"""The one lock of all hosted devices of a process, because groups and peer copies join devices.

It guards states and is never held while an operation works. It is free again in a forked child.
"""

from __future__ import annotations

import os
import threading

LOCK = threading.RLock()

SLICE_S = 0.05
"""The longest time that a thread sleeps before it looks again, for signals and deadlines."""

os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
