"""Every rank begins the exchanges of a group in the order of the program."""

from __future__ import annotations

from stack.framework import Tensor
from stack.framework.cell import tracing
from stack.framework.realize import realize


def begun(x: Tensor) -> Tensor:
    """The tensor itself, whose value an exchange gives: outside of a trace it begins now.

    What is left pending would begin when a value is looked at. A rank that alone looks at one would
    begin its exchanges in another order than the others, and get one's values for another's.
    """
    if tracing() is None:
        realize(x)
    return x


def called(what: str) -> str:
    """What all ranks call the exchange that the program comes to now.

    In a trace it is told by its place in the program, which is the same on all ranks also where
    their graphs differ: by a number of its own that a rank computes with. The compiler begins
    exchanges in an order that follows from the graph, so such ranks may begin them in two orders,
    and no two of one function have one name. Outside of a trace the program's order is kept.
    """
    if (trace := tracing()) is None:
        return what
    return f"{what}: exchange {next(trace.numbers)} of {trace.function!r}"
