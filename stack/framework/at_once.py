"""What is done when it is asked for: a number, or an array that is there, written into one run of
a tensor that is there, and such a run read.

A loop of these is as many commands to the device. As operations writes would be one expression,
another one for each loop, which is compiled, and each value read a kernel.
"""

from __future__ import annotations

import math
from typing import Any

from hal.core.dtypes import DType
from hal.tile.node import Node
from stack.framework import store
from stack.framework.cell import Cell, become, under_way
from stack.framework.devices import NDArray, engine
from stack.framework.dtypes import is_plain
from stack.ops.numeric import element
from stack.recorder.window import Window


def write_at_once(source: Cell, window: Window, value: Any) -> bool:
    """Whether what the window shows of a cell is the value now: a number, or a cell. False where
    that has to wait for something, or where somebody else holds what the cell was."""
    if source.recording is not None or source.part is not None or not window.is_contiguous:
        return False
    dtype = source.node.dtype
    given = value if isinstance(value, Cell) else None
    number = values = None
    if given is None:
        number = element(value, dtype) if is_plain(value, dtype) else None
    elif given.value_type.dtype is dtype and given.value_type.shape == window.shape:
        number = _constant(given, dtype)
        values = _array(given) if number is None else None
    if number is None and values is None:
        return False
    own, type = engine(source.device), source.value_type
    with store.lock:
        if source.node not in store.arrays:
            filled = _constant(source, dtype)
            if filled is None or not type.size:
                return False
            array = own.empty(type)
            own.fill(array, 0, type.size, filled)
        elif store.references(source.node) == store.ALONE:
            array = store.arrays[source.node]
            if array.type != type:  # this rank has a part of the value
                return False
        else:
            return False
        if values is not None:
            own.copy(array, window.offset, values)
        elif number is not None:
            own.fill(array, window.offset, math.prod(window.shape), number)
        become(source, store.holding(array))
    return True


def read_at_once(cell: Cell) -> NDArray | None:
    """The values of a window on one run of a tensor that is there; None for other cells."""
    link = cell.link
    if link is None or under_way or not link.window.is_contiguous or link.window.repeats:
        return None
    source = link.source
    array = _array(source)
    if array is None or array.type != source.value_type:
        return None
    return engine(source.device).get_part(array, link.window.offset, link.window.shape)


def _array(cell: Cell) -> Any:
    """The array of a cell that has one of its own; None for others."""
    if cell.link is not None or cell.part is not None or cell.recording is not None:
        return None
    return store.arrays.get(cell.node)


def _constant(cell: Cell, dtype: DType) -> Any:
    """The number that all elements of a cell are, if its node says so and it is of that type."""
    if cell.link is not None or cell.part is not None or cell.recording is not None:
        return None
    n: Node = cell.node
    while n.op in ("reshape", "expand"):
        n = n.srcs[0]
    return element(n["value"], dtype) if n.op == "const" and n.dtype is dtype else None
