"""Movement operators as maps from an element of the result to an element of the source.

Each row gets the node, an `Index` of its result and how to regroup it, and gives the index of the
source and the guards under which the element exists. Dimensions that a view treats alike are merged
first, so that no loop is split without need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from hal.tile.node import Node
from stack.compiler.graph.access import ZERO, Guard, Index, Regroup

View = Callable[[Node, Index, Regroup], tuple[Index, tuple[Guard, ...]]]


def runs(count: int, together: Callable[[int], bool]) -> list[list[int]]:
    """Dimension numbers grouped: `together(i)` says that i belongs with i - 1."""
    groups: list[list[int]] = []
    for i in range(count):
        if groups and together(i):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _merged(shape: Sequence[int], groups: list[list[int]]) -> tuple[int, ...]:
    return tuple(prod(shape[i] for i in g) for g in groups)


def _reshape(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    return index, ()


def _permute(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    perm: tuple[int, ...] = n["perm"]
    groups = runs(len(perm), lambda i: perm[i] == perm[i - 1] + 1)
    out = regroup(index, _merged(n.shape, groups))
    order = sorted(range(len(groups)), key=lambda g: perm[groups[g][0]])
    return Index(tuple(out.shape[g] for g in order), tuple(out.at[g] for g in order)), ()


def _expand(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    grown = [a != b for a, b in zip(source, n.shape, strict=True)]
    groups = runs(len(source), lambda i: grown[i] == grown[i - 1])
    out = regroup(index, _merged(n.shape, groups))
    at = tuple(ZERO if grown[g[0]] else a for g, a in zip(groups, out.at, strict=True))
    return Index(_merged(source, groups), at), ()


def _slice(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    start, step = n["start"], n["step"]
    cut = [n.shape[i] != source[i] for i in range(len(source))]
    groups = runs(len(source), lambda i: not cut[i] and not cut[i - 1])
    out = regroup(index, _merged(n.shape, groups))
    at = tuple(
        a.times(step[g[0]]).shift(start[g[0]]) if cut[g[0]] else a
        for g, a in zip(groups, out.at, strict=True)
    )
    return Index(_merged(source, groups), at), ()


def _flip(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    axes = set(n["axes"])
    groups = runs(len(n.shape), lambda i: (i in axes) == (i - 1 in axes))
    shape = _merged(n.shape, groups)
    out = regroup(index, shape)
    at = tuple(
        a.times(-1).shift(size - 1) if g[0] in axes else a
        for g, a, size in zip(groups, out.at, shape, strict=True)
    )
    return Index(shape, at), ()


def _pad(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    lo = n["lo"]
    padded = [n.shape[i] != source[i] for i in range(len(source))]
    groups = runs(len(source), lambda i: not padded[i] and not padded[i - 1])
    out = regroup(index, _merged(n.shape, groups))
    at, guards = [], []
    for g, a in zip(groups, out.at, strict=True):
        moved = a.shift(-lo[g[0]]) if padded[g[0]] else a
        if padded[g[0]]:
            guards.append(Guard(moved, 0, source[g[0]]))
        at.append(moved)
    return Index(_merged(source, groups), tuple(at)), tuple(guards)


VIEWS: Mapping[str, View] = {
    "reshape": _reshape,
    "contiguous": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "flip": _flip,
    "pad": _pad,
}


def permute_forward(n: Node, index: Index, regroup: Regroup) -> Index:
    """The element of a permute's result that comes from the source element `index`."""
    perm: tuple[int, ...] = n["perm"]
    position = {p: i for i, p in enumerate(perm)}
    groups = runs(len(perm), lambda s: position[s] == position[s - 1] + 1)
    source = regroup(index, _merged(n.srcs[0].shape, groups))
    order = sorted(range(len(groups)), key=lambda g: position[groups[g][0]])
    return Index(tuple(source.shape[g] for g in order), tuple(source.at[g] for g in order))
