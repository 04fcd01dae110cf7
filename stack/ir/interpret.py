"""The interpreter: slow, short, and the final word on what a graph means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hal.tile.node import Node, rebuild, toposort
from hal.tile.numeric import NUMPY
from stack.ops import OPS, UNBOUNDED, results_of
from stack.ops.error import GraphError
from stack.ops.operator import NDArray


def interpret(outputs: Sequence[Node], inputs: Mapping[Node, NDArray]) -> list[NDArray]:
    """The outputs' values by the operators' numpy references.

    `inputs` holds an array of the node's exact shape and element type for every input that the
    outputs depend on. Raises GraphError for an input that is missing or of another type.
    """
    values: dict[Node, NDArray] = {}
    whole = expanded(outputs)
    for n in toposort(whole):
        values[n] = evaluated(n, values, inputs)
    return [values[n] for n in whole]


def evaluated(n: Node, values: Mapping[Node, NDArray], inputs: Mapping[Node, NDArray]) -> NDArray:
    """The value of a node by those of its operands; raises as `interpret`."""
    operands = (_given(n, inputs),) if n.op == "input" else tuple(values[s] for s in n.srcs)
    if n.op == "loop":
        # The results of a loop that are of its element type.
        body, consts, steps = n["body"], n["consts"], n["steps"]
        results = results_of(dict(n.attrs))
        end = consts + n["carried"]
        carried, rows = list(operands[consts:end]), operands[end:]
        stacked = [
            np.zeros(t.shape, NUMPY[t.dtype])
            for t in results.types[n["carried"] :]
            if steps < UNBOUNDED
        ]
        for step in range(steps):
            if n["tested"] and not carried[0]:
                break
            i = steps - 1 - step if n["reverse"] else step
            given = (*operands[:consts], *carried, *(x[i] for x in rows))
            made = interpret(
                body.outputs, dict(zip(body.inputs, map(np.asarray, given), strict=True))
            )
            carried = made[: len(carried)]
            for stack, value in zip(stacked, made[len(carried) :], strict=True):
                stack[i] = value
        flat = [np.ravel([*carried, *stacked][i]) for i, _ in results.places(n.dtype)]
        return checked(n, np.concatenate(flat))
    reference = OPS[n.op].reference
    if reference is None:
        raise GraphError(f"{n.op} has no value of its own; it {OPS[n.op].meaning}")
    return checked(n, reference(n, operands))


def expanded(outputs: Sequence[Node]) -> list[Node]:
    """The outputs with operators without a reference decomposed."""
    done: dict[Node, Node] = {}
    for n in toposort(outputs):
        made = rebuild(n, tuple(done[s] for s in n.srcs))
        row = OPS[n.op]
        done[n] = made if row.reference or not row.decompose else row.decompose(made)
    return [done[n] for n in outputs]


def _given(n: Node, inputs: Mapping[Node, NDArray]) -> NDArray:
    if n not in inputs:
        raise GraphError(f"no array was given for {n}")
    array = inputs[n]
    if array.shape != n.shape or array.dtype != NUMPY[n.dtype]:
        raise GraphError(f"{n} was given an array of {array.dtype}{list(array.shape)}")
    return array


def checked(n: Node, value: Any) -> NDArray:
    """The value that a reference gave, which has the type of its node."""
    result = np.asarray(value)
    assert result.shape == n.shape, f"the reference of {n} gave shape {result.shape}"
    assert result.dtype == NUMPY[n.dtype], f"the reference of {n} gave {result.dtype}"
    return result
