"""Gradients as flat arrays in buckets, each averaged over the ranks by a node of the graph."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from hal.core.facts import dataclass
from hal.tile.node import Node, toposort
from stack import ops as g
from stack.framework import Tensor
from stack.framework.cell import tracing
from stack.framework.flat import FlatLayout, homes
from stack.parallel.order import begun, called
from stack.parallel.rows import rows_of

BUCKET_NBYTES = 1 << 20
"""Gradients that are averaged at once, about: few enough that the first ones are on their way while
most of the backward pass is still to come, enough that a call's own costs do not count."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters that lie one after the other in a flat array of gradients."""

    members: Sequence[Tensor]
    layout: FlatLayout


def runs(parameters: Sequence[Tensor]) -> list[Run]:
    """The parameters in the flat arrays that their optimizers have; those of no optimizer, and of
    one that has others as well, in an array for each element type."""
    known = {p.serial for p in parameters}
    groups: dict[Hashable, list[Tensor]] = {}
    for p in parameters:
        home = homes.get(p.serial)
        own = home is not None and all(m.serial in known for m in home.members)
        groups.setdefault(id(home) if own else p.dtype, []).append(p)
    return [_run(group) for group in groups.values()]


def _run(group: Sequence[Tensor]) -> Run:
    home = homes.get(group[0].serial)
    if home is not None and {m.serial for m in home.members} == {p.serial for p in group}:
        return Run(home.members, home.layout)
    return Run(group, FlatLayout.of([p.shape for p in group]))


def share(run: Run, group: str, parameters: Mapping[str, Tensor]) -> None:
    """Replace the gradients by their averages over the ranks of the group. Parameters without one
    stay without one; the call fails where they have one on another rank, as the ranks' models would
    differ from then on, and where the data of another rank has another number of rows, as the
    average would not be that over all rows. In a trace in buckets, else at once: ranks may cut
    graphs that are not of one trace differently. `parameters` are
    those of the whole model by their names, equal on all ranks."""
    if all(p.grad is None for p in run.members):
        return
    parts = [g.full(p.shape, 0, p.dtype) if p.grad is None else p.grad.node for p in run.members]
    names = {p.serial: name for name, p in parameters.items()}
    rows = rows_of(parts, list(parameters.values()))
    cut = buckets(parts) if tracing() is not None else [range(len(parts))]
    pieces = [_averaged(run, parts, bucket, group, names, rows) for bucket in cut]
    flat = begun(Tensor(g.concat(pieces, 0), run.members[0].device))
    views = run.layout.split(flat.node)
    for p, view in zip(run.members, views, strict=True):
        if p.grad is not None:
            p.grad = Tensor(view, p.device)


def _averaged(
    run: Run,
    parts: Sequence[Node],
    bucket: range,
    group: str,
    names: Mapping[int, str],
    rows: Sequence[int],
) -> Node:
    own = [run.layout.padded(parts[i], i) for i in bucket]
    members = [run.members[i] for i in bucket]
    ends = dict.fromkeys(names[p.serial] for p in (members[0], members[-1]))
    lacking = [names[p.serial] for p in members if p.grad is None]
    without = f", none for {', '.join(lacking)}" if lacking else ""
    of = f" from {' and '.join(map(str, rows))} rows" if rows else ""
    what = f"gradients of {' to '.join(ends)}{without}{of}"
    return g.all_reduce("avg", g.concat(own, 0), group, called(what))


def buckets(parts: Sequence[Node], nbytes: int = BUCKET_NBYTES) -> list[range]:
    """Neighbours that are averaged at once: about `nbytes` of them, and none that comes much later
    in the backward pass than the first one of its bucket.

    How late a gradient comes is told by the longest way to it through the graph. A model's
    parameters are in the order of its layers, so that the last ones come first.
    """
    depth: dict[Node, int] = {}
    for n in toposort(list(parts)):
        depth[n] = 1 + max((depth[s] for s in n.srcs), default=0)
    late, found, first, size = depth, list[range](), 0, 0
    for i, part in enumerate(parts):
        if i > first and (size >= nbytes or late[part] > late[parts[first]]):
            found.append(range(first, i))
            first, size = i, 0
        size += math.prod(part.shape) * part.dtype.nbytes
    return [*found, range(first, len(parts))]
