"""The order in which clusters run, and where updated inputs are written in place."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from hal.tile.node import Node
from stack.compiler.cluster import Cluster, same
from stack.compiler.fuse import Fusion
from stack.compiler.program import GraphRequest
from stack.compiler.roots import base


def schedule(fusion: Fusion, extra: Mapping[Cluster, set[Cluster]]) -> list[Cluster] | None:
    """A topological order that frees buffers early; None when `extra` dependencies make a cycle.

    Among the clusters that can run, the one that shrinks the live set most runs first, then the
    earliest.
    """
    clusters = fusion.clusters
    number = {c: i for i, c in enumerate(clusters)}
    before = {c: fusion.dependencies(c) | extra.get(c, set()) for c in clusters}
    after: dict[Cluster, list[Cluster]] = {c: [] for c in clusters}
    for c, needs in before.items():
        for need in needs:
            after[need].append(c)
    inputs = {c: {n for r in c.roots for n in fusion.needs[r]} for c in clusters}
    users: dict[Node, int] = {}
    for needed in inputs.values():
        for n in needed:
            users[n] = users.get(n, 0) + 1

    def growth(c: Cluster) -> int:
        freed = sum(_nbytes(n) for n in inputs[c] if users[n] == 1 and n.op != "input")
        return sum(_nbytes(r) for r in c.roots) - freed

    waiting = {c: len(needs) for c, needs in before.items()}
    ready = [(growth(c), number[c], c) for c in clusters if not waiting[c]]
    heapq.heapify(ready)
    out: list[Cluster] = []
    while ready:
        _, _, c = heapq.heappop(ready)
        out.append(c)
        for n in inputs[c]:
            users[n] -= 1
        for follower in after[c]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (growth(follower), number[follower], follower))
    return out if len(out) == len(clusters) else None


def _nbytes(n: Node) -> int:
    return n.type.size * n.dtype.nbytes


def update_in_place(
    request: GraphRequest, fusion: Fusion
) -> tuple[list[Cluster], list[tuple[int, int]]]:
    """(the order of the clusters, the updates that still need a copy at the end).

    An update is in place when its cluster can run after every other reader of the input, and itself
    reads the input only at the element that it writes. Then the root's home becomes the input.
    """
    extra: dict[Cluster, set[Cluster]] = {}
    order = schedule(fusion, extra)
    assert order is not None, "the graph has a cycle"
    copies: list[tuple[int, int]] = []
    for output, target in request.updates:
        root = base(request.outputs[output])
        if not root.type.size:
            continue
        source = request.inputs[target]
        trial = (
            _after_readers(fusion, fusion.of[root], source, extra) if root in fusion.of else None
        )
        new_order = schedule(fusion, trial) if trial is not None else None
        if trial is None or new_order is None or not _reads_in_place(fusion.of[root], root, source):
            copies.append((output, target))
            continue
        extra, order = trial, new_order
        fusion.homes[root] = fusion.homes[source]
    return order, copies


def _after_readers(
    fusion: Fusion, writer: Cluster, source: Node, extra: Mapping[Cluster, set[Cluster]]
) -> dict[Cluster, set[Cluster]]:
    readers = {
        c
        for c in fusion.clusters
        if c is not writer and any(source in fusion.needs[r] for r in c.roots)
    }
    return {**extra, writer: extra.get(writer, set()) | readers}


def _reads_in_place(cluster: Cluster, root: Node, source: Node) -> bool:
    """Whether every read of the input in its writer's kernel is of the element that is written."""
    nest = cluster.nest
    if cluster.kind != "loops" or root not in nest.exprs:
        return False
    if any(r.op == "reduce" for r in nest.own):
        return False
    found = [r for reads in nest.reads.values() for r in reads if r.root is source]
    return all(not r.guards and same(r.offset, nest.own[root]) for r in found)
