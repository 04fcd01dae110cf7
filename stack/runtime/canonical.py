"""The structure of a request: equal for two requests that compute the same function."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hal.core.errors import InvalidCall
from hal.tile.node import Attrs, Node, Type, node, rebuild, toposort
from stack.compiler.program import GraphRequest

Value = Type | tuple[str, Type, Attrs | str, tuple[int, ...]]
"""An input, or an operation: its name, type, attributes, and the numbers of its sources."""
Structure = tuple[tuple[Value, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""A request's values, the numbers of its outputs, and its updates."""


def structure(request: GraphRequest) -> Structure:
    """A key in which inputs are told by their position in `request.inputs`, not by their slot.

    Raises InvalidCall when the outputs depend on an input that `request.inputs` lacks.
    """
    at = dict(zip(request.inputs, count()))
    parts: list[Value] = [n.type for n in request.inputs]
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
        parts.append((n.op, n.type, attrs, at_srcs))
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
