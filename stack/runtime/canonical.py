"""The structure of a request: equal for two requests that compute the same function."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Attrs, Node, node, rebuild, toposort
from stack.compiler.program import GraphRequest

Value = (
    tuple[tuple[int, ...], DType] | tuple[str, tuple[int, ...], DType, Attrs | str, tuple[int, ...]]
)
"""An input's shape and element type, or an operation: its name, shape, element type, attributes,
and the numbers of its sources. Types themselves would be hashed and shown in Python."""
Structure = tuple[tuple[Value, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""A request's values, the numbers of its outputs, and its updates."""


def structure(request: GraphRequest) -> Structure:
    """A key in which inputs are told by their position in `request.inputs`, not by their slot.

    Raises InvalidCall when the outputs depend on an input that `request.inputs` lacks.
    """
    at = dict(zip(request.inputs, count()))
    parts: list[Value] = [(n.type.shape, n.type.dtype) for n in request.inputs]
    for n in toposort(request.outputs):
        if n.op == "input":
            if n not in at:
                what = f"the graph reads {n!r}, which is not among the request's inputs"
                raise InvalidCall(what)
            continue
        # repr tells 0.0 from -0.0 and makes one NaN equal to another; == does neither.
        attrs = repr(n.attrs) if n.op == "const" else n.attrs
        at_srcs = tuple([at[s] for s in n.srcs])
        at[n] = len(parts)
        parts.append((n.op, n.type.shape, n.type.dtype, attrs, at_srcs))
    return tuple(parts), tuple([at[n] for n in request.outputs]), request.updates


def renumbered(request: GraphRequest) -> GraphRequest:
    """The same request with input i in slot i, so that equal structures compile to equal
    programs."""
    new: dict[Node, Node] = {n: node("input", n.type, slot=i) for i, n in enumerate(request.inputs)}
    for n in toposort(request.outputs):
        if n not in new:
            new[n] = rebuild(n, tuple([new[s] for s in n.srcs]))
    outputs = tuple(new[n] for n in request.outputs)
    return replace(request, outputs=outputs, inputs=tuple(new[n] for n in request.inputs))
