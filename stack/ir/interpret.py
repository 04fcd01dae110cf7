"""The interpreter: slow, short, and the final word on what a graph means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hal.tile.node import Node, toposort
from hal.tile.numeric import NUMPY
from stack.ir.error import GraphError
from stack.ir.record import NDArray, OpRecord


def interpret(
    outputs: Sequence[Node], inputs: Mapping[Node, NDArray], records: Mapping[str, OpRecord]
) -> list[NDArray]:
    """The outputs' values by the records' numpy references.

    `inputs` holds an array of the node's exact shape and element type for every input that the
    outputs depend on. Raises GraphError for an input that is missing or of another type.
    """
    values: dict[Node, NDArray] = {}
    for n in toposort(outputs):
        operands = (_given(n, inputs),) if n.op == "input" else tuple(values[s] for s in n.srcs)
        values[n] = _checked(n, records[n.op].reference(n, operands))
    return [values[n] for n in outputs]


def _given(n: Node, inputs: Mapping[Node, NDArray]) -> NDArray:
    if n not in inputs:
        raise GraphError(f"no array was given for {n}")
    array = inputs[n]
    if array.shape != n.shape or array.dtype != NUMPY[n.dtype]:
        raise GraphError(f"{n} was given an array of {array.dtype}{list(array.shape)}")
    return array


def _checked(n: Node, value: Any) -> NDArray:
    result = np.asarray(value)
    assert result.shape == n.shape, f"the reference of {n} gave shape {result.shape}"
    assert result.dtype == NUMPY[n.dtype], f"the reference of {n} gave {result.dtype}"
    return result
