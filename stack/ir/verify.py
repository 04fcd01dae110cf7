"""The graph verifier: valid in, valid out, checked between passes."""

from __future__ import annotations

from collections.abc import Iterable

from hal.tile.node import Node, Type, toposort
from stack.ops import infer
from stack.ops.error import GraphError
from stack.ops.numeric import canonical


def verify(outputs: Iterable[Node]) -> None:
    """Check every node that the outputs depend on against its type rule.

    Raises GraphError with the node's position in topological order, the node and the broken rule.
    """
    inputs: dict[int, Type] = {}
    for position, n in enumerate(toposort(outputs)):
        try:
            _check(n)
            _check_slot(n, inputs)
        except GraphError as error:
            raise GraphError(f"node %{position}, {n!r}, breaks its rule: {error}") from None


def _check(n: Node) -> None:
    due = infer(n.op, [s.type for s in n.srcs], dict(n.attrs), n.type)
    if due != n.type:
        raise GraphError(f"{n.op} of these operands is of type {due}")
    if n.op in ("const", "pad") and repr(canonical(n["value"], n.dtype)) != repr(n["value"]):
        raise GraphError(f"{n['value']!r} is not a value of {n.dtype.short}")


def _check_slot(n: Node, inputs: dict[int, Type]) -> None:
    if n.op == "input" and inputs.setdefault(n["slot"], n.type) != n.type:
        raise GraphError(f"slot {n['slot']} is also of type {inputs[n['slot']]}")
