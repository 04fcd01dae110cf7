"""One thread that waits for many things at once, and calls what each has to be answered with."""

from __future__ import annotations

import selectors


def turn(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Wait for at most that long, and call the data of every key for which something came."""
    for key, _ in selector.select(timeout_s):
        if selector.get_map().get(key.fd) is key:  # not taken away by a call before it
            key.data()
