"""Nested tuples, lists and dicts as a flat list and a hashable description."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """The shape of a tree, quick to make and to hash: each call of a captured function does both.

    `kind` is the container's type; `names` a dict's keys; a leaf has no kind.

    A leaf that is not taken out of the tree is held as `fixed`, with its type, since 1 == 1.0 ==
    True.
    """

    kind: type[Any] | None = None
    names: tuple[Hashable, ...] = ()
    parts: tuple[Spec, ...] = ()
    fixed: tuple[type, Any] | None = None


LEAF = Spec()
"""Of every leaf that is taken out."""


def flatten(tree: Any, taken: Callable[[Any], bool]) -> tuple[list[Any], Spec]:
    """The taken leaves in order, and the spec that holds all else."""
    leaves: list[Any] = []
    return leaves, _spec(tree, taken, leaves)


def _spec(tree: Any, taken: Callable[[Any], bool], leaves: list[Any]) -> Spec:
    if taken(tree):
        leaves.append(tree)
        return LEAF
    if isinstance(tree, dict):
        return Spec(type(tree), tuple(tree), _specs(tree.values(), taken, leaves))
    if isinstance(tree, tuple | list):
        return Spec(type(tree), (), _specs(tree, taken, leaves))
    return Spec(fixed=(type(tree), tree))


def _specs(trees: Any, taken: Callable[[Any], bool], leaves: list[Any]) -> tuple[Spec, ...]:
    return tuple([_spec(t, taken, leaves) for t in trees])


def numbers(spec: Spec) -> tuple[Spec, list[float]]:
    """The spec without its floats and without its integers from 2 on, and these in order."""
    found: list[float] = []
    return _without_numbers(spec, found), found


def _without_numbers(spec: Spec, found: list[float]) -> Spec:
    if spec.fixed is not None:
        kind, value = spec.fixed
        if kind is float or (kind is int and value >= 2):
            found.append(value)
            return Spec(fixed=(kind, None))
        return spec
    if not spec.parts:
        return spec
    return Spec(spec.kind, spec.names, tuple([_without_numbers(p, found) for p in spec.parts]))


def with_numbers(spec: Spec, given: Iterator[Any]) -> Spec:
    """A spec that `numbers` gave, with others in their places."""
    if spec.fixed is not None:
        kind, value = spec.fixed
        taken = value is None and kind in (float, int)
        return Spec(fixed=(kind, next(given))) if taken else spec
    if not spec.parts:
        return spec
    return Spec(spec.kind, spec.names, tuple([with_numbers(p, given) for p in spec.parts]))


def unflatten(spec: Spec, leaves: Iterator[Any]) -> Any:
    """The tree with these leaves in the places of those taken out."""
    if spec.fixed is not None:
        return spec.fixed[1]
    if spec.kind is None:
        return next(leaves)
    parts = [unflatten(p, leaves) for p in spec.parts]
    make: Callable[..., Any] = spec.kind
    if issubclass(spec.kind, dict):
        return make(zip(spec.names, parts, strict=True))
    return make(*parts) if hasattr(make, "_fields") else make(parts)
