"""Movement operators as maps from an element of the result to an element of the source.

Each row gets the node, an `Index` of its result and how to regroup it, and gives the index of the
source and the guards under which the element exists. Dimensions that a view treats alike are merged
first, so that no loop is split without need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from hal.tile.node import Node
from hal.tile.size import equal
from stack.compiler.graph.access import Affine, Guard, Index, Regroup, is_below

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


Run = Sequence[tuple[int, Affine]]
"""Neighbouring dimensions, each with its size and the position along it."""


def _split(index: Index, shape: Sequence[int], regroup: Regroup) -> list[Run]:
    """The index as a run of dimensions for each one of a shape: those that it has already where
    they fit, for what is merged may not come apart again."""
    found: list[Run] = []
    dims = [d for d in zip(index.shape, index.at, strict=True) if d[0] != 1]
    for size in shape:
        run: list[tuple[int, Affine]] = []
        while dims and is_below(prod(n for n, _ in run), size):
            run.append(dims.pop(0))
        if not equal(prod(n for n, _ in run), size):
            whole = regroup(index, shape)
            return [[d] for d in zip(whole.shape, whole.at, strict=True)]
        found.append(run)
    return found


def _joined(runs: Iterable[Run]) -> Index:
    dims = [d for run in runs for d in run]
    return Index(tuple(n for n, _ in dims), tuple(at for _, at in dims))


def _position(run: Run) -> Affine:
    """Where a run is along the one dimension that it makes up."""
    return _joined([run]).flat()


def _reshape(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    return index, ()


def _permute(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    perm: tuple[int, ...] = n["perm"]
    # Wherever dimensions of one element are, the others are in the same order.
    wide = [i for i, size in enumerate(n.shape) if size != 1]
    source = {i: k for k, i in enumerate(sorted(wide, key=perm.__getitem__))}
    groups = runs(len(wide), lambda k: source[wide[k]] == source[wide[k - 1]] + 1)
    if len(groups) <= 1:
        return index, ()
    out = _split(index, _merged([n.shape[i] for i in wide], groups), regroup)
    order = sorted(range(len(groups)), key=lambda g: source[wide[groups[g][0]]])
    return _joined(out[g] for g in order), ()


def _expand(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    grown = [a != b for a, b in zip(source, n.shape, strict=True)]
    groups = runs(len(source), lambda i: grown[i] == grown[i - 1])
    out = _split(index, _merged(n.shape, groups), regroup)
    return _joined(r for g, r in zip(groups, out, strict=True) if not grown[g[0]]), ()


def _slice(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    start, step = n["start"], n["step"]
    cut = [n.shape[i] != source[i] for i in range(len(source))]
    groups = runs(len(source), lambda i: not cut[i] and not cut[i - 1])
    found: list[Run] = []
    for g, run in zip(groups, _split(index, _merged(n.shape, groups), regroup), strict=True):
        i = g[0]
        moved = [(source[i], _position(run).times(step[i]).shift(start[i]))]
        found.append(moved if cut[i] else run)
    return _joined(found), ()


def _flip(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    axes = set(n["axes"])
    groups = runs(len(n.shape), lambda i: (i in axes) == (i - 1 in axes))
    found: list[Run] = []
    for g, run in zip(groups, _split(index, _merged(n.shape, groups), regroup), strict=True):
        turned = [(size, at.times(-1).shift(size - 1)) for size, at in run]
        found.append(turned if g[0] in axes else run)
    return _joined(found), ()


def _pad(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    lo = n["lo"]
    padded = [n.shape[i] != source[i] for i in range(len(source))]
    groups = runs(len(source), lambda i: not padded[i] and not padded[i - 1])
    found: list[Run] = []
    guards = []
    for g, run in zip(groups, _split(index, _merged(n.shape, groups), regroup), strict=True):
        i = g[0]
        if not padded[i]:
            found.append(run)
            continue
        moved = _position(run).shift(-lo[i])
        guards.append(Guard(moved, 0, source[i]))
        found.append([(source[i], moved)])
    return _joined(found), tuple(guards)


def _window(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source, axis = n.srcs[0].shape, n["axis"]
    before, after = prod(source[:axis]), prod(source[axis + 1 :])
    shape = (before, *n.shape[axis : axis + 2], after)
    first, number, element, last = _split(index, shape, regroup)
    inside = _position(number).times(n["stride"]).plus(_position(element).times(n["dilation"]))
    return _joined((first, [(source[axis], inside)], last)), ()


VIEWS: Mapping[str, View] = {
    "reshape": _reshape,
    "contiguous": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "flip": _flip,
    "pad": _pad,
    "window": _window,
}


def forward(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    """The element of the result of a reshape, permute or slice without steps that comes from the
    source element `index`, and where there is one."""
    match n.op:
        case "permute":
            return _permute_forward(n, index, regroup), ()
        case "slice":
            return _slice_forward(n, index, regroup)
    return index, ()


def _slice_forward(n: Node, index: Index, regroup: Regroup) -> tuple[Index, tuple[Guard, ...]]:
    source = n.srcs[0].shape
    cut = [n.shape[i] != source[i] for i in range(len(source))]
    groups = runs(len(source), lambda i: not cut[i] and not cut[i - 1])
    found: list[Run] = []
    guards = []
    for g, run in zip(groups, _split(index, _merged(source, groups), regroup), strict=True):
        i = g[0]
        if not cut[i]:
            found.append(run)
            continue
        moved = _position(run).shift(-n["start"][i])
        guards.append(Guard(moved, 0, n.shape[i]))
        found.append([(n.shape[i], moved)])
    return _joined(found), tuple(g for g in guards if not g.always())


def _permute_forward(n: Node, index: Index, regroup: Regroup) -> Index:
    perm: tuple[int, ...] = n["perm"]
    position = {p: i for i, p in enumerate(perm)}
    groups = runs(len(perm), lambda s: position[s] == position[s - 1] + 1)
    source = _split(index, _merged(n.srcs[0].shape, groups), regroup)
    order = sorted(range(len(groups)), key=lambda g: position[groups[g][0]])
    return _joined(source[g] for g in order)
