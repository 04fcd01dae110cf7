"""Which part of a captured function a rank computes, by a strategy. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from hal.core.dtypes import DType
from hal.core.errors import InvalidCall
from hal.tile.node import Node, Type
from stack import ops as g
from stack.compiler.program import GraphRequest
from stack.framework import Tensor
from stack.framework.flat import FlatParameters, homes
from stack.framework.nn import Module
from stack.framework.optim.optimizer import Optimizer
from stack.ops.sharding import outer_size
from stack.parallel.gathers import gathered_for_uses
from stack.parallel.partition import Spread, calls, partitioned, rank_input, traffic
from stack.parallel.placement import (
    WHOLE,
    Packed,
    Part,
    Placement,
    Row,
    Sharded,
    aligned,
    local_type,
    part_of,
)
from stack.parallel.strategy import AxisLayout, Strategy

Layout = tuple[Placement, ...]
"""A value's placements along the axes, in the order in which a graph is divided: each one is of
what a rank has after those before."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What one call of a captured function exchanges: bytes that this rank sends and calls that it
    makes, by axis and kind; operators without a rule, which every rank computes as a whole, with
    the bytes of their results."""

    function: str
    sent: Mapping[tuple[str, str], int]
    calls: Mapping[tuple[str, str], int]
    whole: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"{self.function}: a rank sends {sum(self.sent.values())} bytes"]
        for (axis, kind), nbytes in sorted(self.sent.items()):
            lines.append(f"  {axis}: {self.calls[axis, kind]} {kind}, {nbytes} bytes")
        for op, nbytes in sorted(self.whole.items()):
            lines.append(f"  {op} has no rule: {nbytes} bytes are computed on every rank")
        return "\n".join(lines)


def in_order(strategy: Strategy) -> list[AxisLayout]:
    """The axes in the order in which a graph is divided: rows come last, as they divide what is
    left of each parameter."""
    return sorted(strategy.axes, key=lambda axis: "rows" in (axis.parameters, axis.states))


def divide(
    function: str,
    request: GraphRequest,
    layouts: Sequence[Layout | None],
    arguments: Sequence[int | None],
    axes: Sequence[AxisLayout],
    groups: Sequence[str],
) -> tuple[GraphRequest, Explained]:
    """What a rank computes of a captured function.

    Of each input `layouts` has where it is stored, None where every rank has the whole, and
    `arguments` its number where it is an argument. `groups` has what the devices' engines call the
    ranks along each axis. Further inputs of the result are the rank's numbers along the axes of
    more than one rank. Raises InvalidCall for an argument that cannot be divided.
    """
    numbers = count()
    inputs, outputs = list(request.inputs), request.outputs
    updated = dict(request.updates)
    whole: Counter[str] = Counter()
    for k, (axis, group) in enumerate(zip(axes, groups, strict=True)):
        if axis.size == 1:
            continue
        stored = [WHOLE if layout is None else layout[k] for layout in layouts]
        rank = rank_input(len(inputs))
        spread = Spread(
            axis.size,
            group,
            dict(zip(inputs, stored, strict=False)),
            _computed(function, inputs, arguments, axes, axis),
            [stored[updated[i]] if i in updated else WHOLE for i in range(len(outputs))],
        )
        cut = partitioned(
            outputs, spread, rank, lambda what: f"{what}: exchange {next(numbers)} of {function!r}"
        )
        whole.update(cut.whole)
        outputs = cut.outputs
        inputs = [
            g.input(n["slot"], local_type(n.type, spread.inputs.get(n, WHOLE), axis.size))
            for n in inputs
        ]
        inputs.append(rank)
    for axis, group in zip(axes, groups, strict=True):
        if axis.size > 1 and axis.parameters == "rows":
            outputs = gathered_for_uses(outputs, group)
    sizes = {group: axis.size for axis, group in zip(axes, groups, strict=True)}
    said = Explained(function, traffic(outputs, sizes), calls(outputs), whole)
    return GraphRequest(outputs, tuple(inputs), request.updates), said


def _computed(
    function: str,
    inputs: Sequence[Node],
    arguments: Sequence[int | None],
    axes: Sequence[AxisLayout],
    axis: AxisLayout,
) -> dict[Node, Placement]:
    """The parts of the arguments that a rank computes with. Of two axes of ranks that divide one
    axis of the arguments the second one divides what is left by the first."""
    found: dict[Node, Placement] = {}
    at = axis.batch
    before = axes[: axes.index(axis)]
    major = math.prod(a.size for a in before if a.batch == at and at is not None)
    for n, number in zip(inputs, arguments, strict=False):
        if number is None or at is None or len(n.shape) <= at:
            continue
        if n.shape[at] % (major * axis.size):
            raise InvalidCall(
                f"axis {at} of argument {number} of {function!r}, of shape {list(n.shape)}, cannot "
                f"be divided among {major * axis.size} ranks along {axis.name!r}; take a multiple "
                f"of {major * axis.size}"
            )
        found[n] = Sharded(at, major)
    return found


def check_axes(have: Mapping[str, int], strategy: Strategy) -> None:
    """Raise InvalidCall where a mesh of these axes is another one than the strategy's."""
    if have != strategy.sizes:
        raise InvalidCall(
            f"the strategy is for a mesh of {strategy.sizes}, and this one is {dict(have)}; make "
            "it by Mesh.present(**strategy.sizes)"
        )


def check_patterns(model: Module, strategy: Strategy) -> None:
    names = [name for name, _ in model.named_parameters()]
    for axis in strategy.axes:
        for pattern, _ in axis.shards:
            only = AxisLayout(axis.name, axis.size, shards=((pattern, Sharded(0)),))
            if all(only.placement(name) == WHOLE for name in names):
                raise InvalidCall(
                    f"no parameter of the model is called {pattern!r}, which axis {axis.name!r} of "
                    f"the strategy divides; there are {', '.join(names)}"
                )


def layouts_of(
    model: Module, axes: Sequence[AxisLayout], optimizers: Sequence[Optimizer]
) -> dict[Tensor, Layout]:
    """The layout of every value that is stored: flat arrays of optimizers, and their states, and
    parameters that no optimizer has."""
    names = {p.serial: name for name, p in model.named_parameters()}
    found: dict[Tensor, Layout] = {}
    homed: set[int] = set()
    for optimizer in optimizers:
        for shard in optimizer.shards:
            flat = shard.flat
            homed |= {m.serial for m in flat.members}
            found[flat.cell] = _flat_layout(flat, names, axes, "parameters")
            for state in shard.state.values():
                found[state] = _flat_layout(flat, names, axes, "states")
    for name, p in model.named_parameters():
        if p.serial in homes and p.serial not in homed:
            raise InvalidCall(
                f"{name} belongs to an optimizer that `parallel` was not given; pass all of them"
            )
        if p.serial not in homed:
            found[p] = _parameter_layout(name, p.shape, axes)
    return found


def _parameter_layout(name: str, shape: tuple[int, ...], axes: Sequence[AxisLayout]) -> Layout:
    layout: list[Placement] = []
    for axis in axes:
        p = _checked(name, shape, axis)
        if axis.parameters == "rows":
            size = aligned(math.prod(shape))
            p = Row(-(-size // axis.size) * axis.size)
        layout.append(p)
        shape = local_type(Type(shape, DType.F32), p, axis.size).shape
    return tuple(layout)


def _flat_layout(
    flat: FlatParameters, names: Mapping[int, str], axes: Sequence[AxisLayout], what: str
) -> Layout:
    ends = [*flat.layout.starts[1:], flat.layout.size]
    sizes = [end - start for start, end in zip(flat.layout.starts, ends, strict=True)]
    shapes = list(flat.layout.shapes)
    layout: list[Placement] = []
    for axis in axes:
        rows = (axis.parameters if what == "parameters" else axis.states) == "rows"
        parts: list[Part] = []
        for i, (member, size) in enumerate(zip(flat.members, sizes, strict=True)):
            name, shape = names.get(member.serial, f"parameter {i}"), shapes[i]
            number = math.prod(shape)
            p = _checked(name, shape, axis)
            if rows and p != WHOLE:
                raise InvalidCall(
                    f"axis {axis.name!r} divides {name} both along an axis and in rows; take two "
                    "axes"
                )
            if rows and size % axis.size:
                raise InvalidCall(
                    f"{name} takes {size} elements in the optimizer's array, which {axis.size} "
                    f"ranks along {axis.name!r} cannot divide; take a divisor of {size}"
                )
            if isinstance(p, Sharded):
                where = Sharded(0, outer_size(shape, p.axis, p.major))
                parts.append(part_of(number, size, where, axis.size))
                shapes[i] = local_type(Type(shape, DType.F32), p, axis.size).shape
            else:
                parts.append(part_of(number, size, Row(size) if rows else WHOLE, axis.size))
        layout.append(Packed(tuple(parts)))
        sizes = [part.local for part in parts]
        if rows:
            shapes = [(n,) for n in sizes]
    return tuple(layout)


def _checked(name: str, shape: tuple[int, ...], axis: AxisLayout) -> Placement:
    """A parameter's placement. Raises InvalidCall where its sizes do not allow it."""
    p = axis.placement(name)
    if not isinstance(p, Sharded):
        return p
    if not 0 <= p.axis < len(shape):
        raise InvalidCall(
            f"axis {axis.name!r} divides axis {p.axis} of {name}, which has shape {list(shape)}"
        )
    if shape[p.axis] % (p.major * axis.size):
        of = f" of each of its {p.major} parts" if p.major > 1 else ""
        raise InvalidCall(
            f"axis {p.axis}{of} of {name}, of shape {list(shape)}, cannot be divided among the "
            f"{axis.size} ranks along {axis.name!r}; take other sizes, or fewer ranks"
        )
    return p
