"""Whether work on a plan still has somebody who waits for it.

Making, proving and predicting a program takes milliseconds of a processor's time, and many times
that where ranks share the processor. So such work asks at every step.
"""

from collections.abc import Callable

GoOn = Callable[[], None]
"""Raises where nobody waits any more. It is called for every step, so it takes less than a
microsecond."""


def always() -> None:
    """Go on to the end."""
