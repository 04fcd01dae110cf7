"""Values of which this rank has a part only.

A cell's node is of the whole value, and its array may be this rank's part of it: then the functions
that are captured with it are divided among the ranks, and nothing else can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.program import GraphRequest
from stack.framework import store
from stack.framework.cell import Cell, Settler, tracing
from stack.framework.errors import TracingError
from stack.runtime.array import Array

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False, slots=True)
class GradientOf:
    """The gradient that a tensor has at a call."""

    tensor: Cell


Source = int | Cell | GradientOf | Array
"""Where an input of a captured plan comes from at each call: the argument of that number, a cell, a
tensor's gradient, a constant."""


class Division(Settler, Protocol):
    """How captured functions are divided among ranks. It settles by keeping this rank's part of
    each value that a cell which it has spread was given outside of them."""

    def divided(
        self, function: str, request: GraphRequest, sources: Sequence[Source]
    ) -> tuple[GraphRequest, list[Source]]:
        """What this rank computes of a request whose inputs come from `sources`, and the sources of
        further inputs of its own."""
        ...

    def planned(self, make: Callable[[], Made]) -> Made:
        """What this rank makes of the request that was divided last: a plan. Raises on all ranks
        that compute with it what is raised on one."""
        ...

    def called(self, function: str, arguments: Sequence[Array | np.ndarray | None]) -> None:
        """The function that was divided last is called for the first time, with the values of these
        arguments; None for one that is computed of parts. Raises InvalidCall on all ranks that
        compute with it where theirs are others."""
        ...

    def taken(self) -> AbstractContextManager[None]:
        """Values are whole within it, and an optimizer gives them other homes."""
        ...


divisions: dict[int, Division] = {}
"""Who has spread a cell, by the cell's serial number. Who changes it says so by `changed`."""


class _Spread:
    """Who has spread a cell, by its serial number in digits: what traces note of the cells that
    they read. So what was captured while values were divided is found again only when they are."""

    def __getattr__(self, serial: str) -> Division | None:
        return divisions.get(int(serial))


_spread = _Spread()


class _Parts:
    """The leaves of which this rank has a part."""

    def __contains__(self, leaf: object) -> bool:
        if not isinstance(leaf, Node):
            return False
        array = store.arrays.get(leaf)
        return array is not None and array.type != leaf.type


parts = _Parts()


def divisions_of(sources: Sequence[Source]) -> list[Division]:
    """Who has spread the cells among the sources."""
    found = (divisions.get(s.serial) for s in sources if isinstance(s, Cell))
    return list({id(d): d for d in found if d is not None}.values())


def divided(
    function: str,
    request: GraphRequest,
    sources: Sequence[Source],
    make: Callable[[GraphRequest], Made],
) -> tuple[Made, list[Source]]:
    """What `make` makes of the request as the cells that the function reads are divided, and
    the sources of further inputs; of the request itself where it reads none that is spread. Raises
    TracingError for cells of two divisions."""
    trace = tracing()
    for s in sources:
        if isinstance(s, Cell) and trace is not None:
            trace.note(_spread, str(s.serial))
    found = divisions_of(sources)
    if not found:
        return make(request), []
    if len(found) > 1:
        raise TracingError(
            f"{function!r} reads values that {len(found)} calls of `parallel` have spread; spread "
            "models that one function trains by one call"
        )
    (division,) = found
    own, more = division.divided(function, request, sources)
    return division.planned(lambda: make(own)), more


def check_whole(array: Array, cell_type: object) -> Array:
    """The array itself. Raises InvalidCall where it is a rank's part of a value of another type."""
    if array.type != cell_type:
        raise InvalidCall(
            f"this rank has {array.type} of a value of {cell_type}, which is spread over ranks: "
            "read it in a captured function, or within `gathered()` of what `parallel` gave"
        )
    return array
