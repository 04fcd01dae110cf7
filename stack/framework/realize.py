"""Running what is pending.

Nothing runs until a value is asked for, or a function is captured. Then everything that is pending
and alive on the device runs as one request, so that no part of it is computed twice; views and
constants stay as they are because they cost nothing to repeat. What is on the device's tape is a
request of its own, which runs first: no node depends on it.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any

from hal.core.errors import InvalidCall
from hal.tile.node import Node
from stack.compiler.program import GraphRequest
from stack.framework import store
from stack.framework.cell import (
    Cell,
    become,
    check_crossing,
    contexts,
    here,
    owners,
    root,
    settle,
    stale,
    tracing,
    under_way,
)
from stack.framework.devices import engine
from stack.framework.errors import TracingError, where_called
from stack.framework.request import Inlining, depends
from stack.framework.spread import check_whole, divisions, parts

PART = (
    "a tensor was to be computed of values of which this rank had a part, and these have changed "
    "since: compute it in a captured function, or within `gathered()` of what `parallel` gave"
)


def array_of(cell: Cell) -> Any:
    """The array with the cell's value, computed now if it must be. It may be shared: read it, never
    write it."""
    return arrays_of([cell])[0]


def arrays_of(cells: Sequence[Cell]) -> list[Any]:
    """`array_of` of many cells at once: views are computed by one request for each device."""
    refuse_in_trace("its value is needed")
    if under_way:
        check_crossing(cells)
    _compute_tapes(cells)
    missing = [c for c in cells if _array(c) is None]
    if missing:
        for device, group in by_device(missing).items():
            pending = [c for c in group if store.root(_node(c)) not in store.arrays]
            if pending:
                _run_pending(device, pending)
        missing = [c for c in missing if _array(c) is None]
    computed: dict[Cell, Any] = {}
    if missing:
        for device, group in by_device(missing).items():
            computed.update(zip(group, compute([_node(c) for c in group], device), strict=True))
    found = [computed[c] if c in computed else _array(c) for c in cells]
    return [check_whole(a, c.value_type) for a, c in zip(found, cells, strict=True)]


def parts_of(cells: Sequence[Cell]) -> list[tuple[Any, int]]:
    """For each cell an array, and the first of its elements from which on the cell's lie there one
    after the other. A part of an array that is there is not copied: what writes that in place
    changes it."""
    if under_way:
        check_crossing(cells)
    realize(*cells)
    found = {c: part for c in cells if (part := _part(c.node)) is not None}
    others = [c for c in cells if c not in found]
    found.update(zip(others, ((array, 0) for array in arrays_of(others)), strict=True))
    return [found[c] for c in cells]


def _part(n: Node) -> tuple[Any, int] | None:
    begin = 0
    while (array := _known(n)) is None:
        n = store.named(n)
        if n.op == "slice":
            first = _first_of_slice(n)
            if first is None:
                return None
            begin += first
        elif n.op != "reshape":
            return None
        n = n.srcs[0]
    return check_whole(array, store.named(n).type), begin


def _first_of_slice(n: Node) -> int | None:
    """The first element of a slice whose elements lie one after the other; None for others."""
    shape, start, stop = n.srcs[0].type.shape, n["start"], n["stop"]
    lengths = [b - a for a, b in zip(start, stop, strict=True)]
    outer = next((i for i, length in enumerate(lengths) if length != 1), len(shape))
    if n["step"] != (1,) * len(shape) or lengths[outer + 1 :] != list(shape[outer + 1 :]):
        return None
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    first: int = sum(map(operator.mul, start, steps))
    return first


def realize(*cells: Cell) -> None:
    """Start computing these values and all else that is pending on their devices; do not wait."""
    refuse_in_trace("realize was called")
    _compute_tapes(cells)
    for device in dict.fromkeys(c.device for c in cells):
        _run_pending(device, [c for c in cells if c.device == device])


def realize_leaves() -> None:
    """Start computing this thread's pending leaves, such as parameters that are still to be drawn;
    not those whose value is lost, which who asks for it is told."""
    settle()
    cells = [c for c in here.context.pending() if c.owns and c.link is None]
    leaves = [c for c in cells if not is_of_parts(c.node)]
    if depends([c.node for c in leaves], _WITHOUT_VALUE):
        leaves = [c for c in leaves if not depends([c.node], _WITHOUT_VALUE)]
    realize(*leaves)


class _WithoutValue(Container[Node]):
    """The leaves that have no value and no origin: arguments of traces, and lost ones."""

    def __contains__(self, n: object) -> bool:
        return (
            isinstance(n, Node)
            and n.op == "input"
            and n not in store.arrays
            and n not in store.origins
        )


_WITHOUT_VALUE = _WithoutValue()


def compute_before(written: set[Node]) -> None:
    """Compute what is pending on leaves that are about to be overwritten, whichever thread it is
    of."""
    for context in list(contexts):
        for cell in context.pending():
            # Whether the cell stands for what a thread's trace gives it, and has no value yet.
            trace = context.trace
            if not (trace is not None and (cell.serial >= trace.born or cell in trace.old)):
                _compute_before(cell, written)


def _compute_before(cell: Cell, written: set[Node]) -> None:
    n = cell.node
    if divisions and depends([n], parts) and depends([n], written, through_known=True):
        become(cell, store.lost(n.type, PART))
        cell.require_grad(False)
        cell.settled()
    elif not cell.requires_grad or cell.owns:
        if depends([n], written):
            isolate([cell])
    elif depends([n], written, through_known=True):
        # It could still be differentiated by what is overwritten; now it is a plain value.
        array = compute([n], cell.device)[0]
        with store.lock:
            if cell.node is n:
                become(cell, store.holding(array))
                cell.require_grad(False)


def is_of_parts(n: Node) -> bool:
    """Whether a value is computed of what this rank has a part of: who asks for it is told that."""
    return bool(divisions) and depends([n], parts)


def _compute_tapes(cells: Iterable[Cell]) -> None:
    """Begin to compute what is on the tapes of these cells."""
    for cell in cells:
        if (recording := root(cell).recording) is not None:
            recording.compute()


def isolate(cells: Iterable[Cell]) -> None:
    """Give each cell a leaf and an array of its own, computed from what its node reads now."""
    for device, group in by_device(cells).items():
        nodes = [c.node for c in group]
        for cell, n, array in zip(group, nodes, compute(nodes, device), strict=True):
            with store.lock:
                if cell.node is not n:
                    continue  # another thread has given it a leaf since
                if cell.owns and cell.node in store.arrays:
                    continue  # another thread has computed it
                if cell.owns and cell.node in store.origins:
                    store.bind(cell.node, array)
                    cell.settled()
                elif cell.requires_grad and not cell.owns:
                    store.leaves[cell.node] = store.holding(array)
                else:
                    become(cell, store.holding(array))


def by_device(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells, each once, grouped by device in order."""
    groups: dict[str, list[Cell]] = {}
    for cell in dict.fromkeys(cells):
        groups.setdefault(cell.device, []).append(cell)
    return groups


def compute(nodes: Sequence[Node], device: str) -> tuple[Any, ...]:
    """New arrays with the nodes' values."""
    inline = Inlining()
    outputs = [_lowered(inline, n) for n in nodes]
    return _run(device, outputs, inline)


def _run(device: str, outputs: Sequence[Node], inline: Inlining) -> tuple[Any, ...]:
    inputs = tuple([inline.add_input(leaf) for leaf in inline.inputs])
    arrays = [check_whole(store.arrays[leaf], leaf.type) for leaf in inline.inputs]
    return engine(device).plan(GraphRequest(tuple(outputs), inputs)).run(arrays)


def _lowered(inline: Inlining, n: Node) -> Node:
    lowered = inline(n)
    if lowered is None and sys.is_finalizing():
        raise InvalidCall(
            "the interpreter ends, and the values of tensors have gone; an exit handler that is "
            "registered after `import stack` can still read them"
        )
    if lowered is None:
        raise _no_value(n)
    return lowered


def _no_value(root: Node) -> Exception:
    """Why a node has no value."""
    stack, seen, function = [root], set[Node](), "a jitted function"
    while stack:
        n = stack.pop()
        if n in store.reasons:
            return InvalidCall(f"{store.reasons[n]}\n  at {where_called()}")
        if n in store.arguments:
            function = store.arguments[n]
            break
        if n not in seen:
            seen.add(n)
            origin = store.origins.get(n)
            stack.extend(n.srcs if origin is None else (origin,))
    return TracingError(
        f"a tensor that {function!r} made while it was traced was kept but not returned, so it has "
        f"no value; return it from the function\n  at {where_called()}"
    )


def _known(n: Node) -> Any:
    """The array of a node whose value is there under some name."""
    n = store.named(n)
    return store.arrays.get(store.leaves.get(n, n))


def _array(cell: Cell) -> Any:
    """The array of a cell whose value is there under some name."""
    return _known(_node(cell))


def _node(cell: Cell) -> Node:
    """A node with the cell's value: of what was computed on a tape not that of how it was."""
    if (recording := cell.recording) is not None and (leaf := recording.value(cell)) is not None:
        return leaf
    link = cell.link
    if link is not None and root(cell).recording is not None:
        return link.window.read(_node(link.source))
    return cell.node


def _run_pending(device: str, asked: Sequence[Cell]) -> None:
    settle()
    if (recording := here.context.recordings.get(device)) is not None:
        recording.compute()
    inline = Inlining()
    outputs: dict[Node, Node] = {}
    own = here.context.pending()
    cells = sorted([c for c in own if c.device == device], key=_AGE)
    pending = dict.fromkeys([c.node for c in cells if _known(c.node) is None])
    for cell in asked:
        if _known(cell.node) is None and not _is_view(cell.node, pending):
            outputs[cell.node] = _lowered(inline, cell.node)
    for n in pending:
        if n in outputs or _is_view(n, pending) or store.root(n).op in _CHEAP:
            continue
        if is_of_parts(n):
            continue
        lowered = inline(n)
        if lowered is not None:
            outputs[n] = lowered
    if outputs:
        arrays = _run(device, list(outputs.values()), inline)
        # Hang arrays on their nodes, and let cells that need no history forget how they were
        # computed.
        values = dict(zip(outputs, arrays, strict=True))
        held: dict[Node, Node] = {}
        for n, array in values.items():
            if n.op == "input":
                store.bind(n, array)
                continue
            held[n] = store.holding(array)
            # Without an input the node is no device's own: it may be pending on another one too.
            if n in inline.fed:
                store.leaves[n] = held[n]
        for cell in here.context.pending():
            if cell.device != device or cell.requires_grad:
                continue
            with store.lock:
                leaf = None if cell.owns else held.get(cell.node)
                if leaf is not None and leaf in owners:
                    cell.node = leaf
                    stale(cell)
                elif leaf is not None:
                    become(cell, leaf)


_AGE = operator.attrgetter("serial")
_CHEAP = ("const", "arange", "input")
"""What needs no array before it is asked for: constants, lost arguments."""


def _is_view(n: Node, pending: Container[Node]) -> bool:
    """Whether a node is a view, or another name, of a value that is known or about to be."""
    while (origin := store.origins.get(n)) is not None or n.op in store.VIEWS:
        n = n.srcs[0] if origin is None else origin
        if n in pending or n in store.leaves or n in store.arrays:
            return True
    return False


def refuse_in_trace(what: str) -> None:
    """Raise TracingError inside a trace: a captured plan has no values yet."""
    if (trace := tracing()) is not None:
        raise TracingError(
            f"{what} while {trace.function!r} is traced at {where_called()}; under jit "
            "nothing is computed "
            "before the function returns: return the tensor and look at it outside"
        )
