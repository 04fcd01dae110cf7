"""Immutable, hash-consed expression nodes. Tile IR and graph IR are both made of them.

Two nodes with the same operator, type, sources and attributes are one object, so equality is
identity and common subexpressions are shared by construction.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary, ref

from hal.core.dtypes import DType
from hal.core.facts import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a tile or a tensor: its shape (empty: a scalar) and its element type."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return self.dtype.short + (f"[{','.join(map(str, self.shape))}]" if self.shape else "")

    @property
    def size(self) -> int:
        """The number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take, one after the other."""
        return self.dtype.nbytes_of(self.size)

    def with_shape(self, shape: Iterable[int]) -> Type:
        return Type(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> Type:
        return Type(self.shape, dtype)


Attrs = tuple[tuple[str, Any], ...]


class Node:
    """One operation: `op` names it, `attrs` are sorted (name, value) pairs with hashable values.

    Make nodes with `node()`; never construct or change them directly.
    """

    __slots__ = ("__weakref__", "attrs", "op", "srcs", "type")

    op: str
    type: Type
    srcs: tuple[Node, ...]
    attrs: Attrs

    def __getitem__(self, name: str) -> Any:
        """The attribute of that name. Raises KeyError when the node has none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name!r}; it has {[k for k, _ in self.attrs]}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        inner = ", ".join(
            [*(f"<{s.op}>" for s in self.srcs), *(f"{k}={v!r}" for k, v in self.attrs)]
        )
        return f"{self.op}({inner}): {self.type}"


_interned: WeakValueDictionary[Any, Node] = WeakValueDictionary()
_by_key: dict[Any, ref[Node]] = vars(_interned)["data"]
"""The same; who asks it needs no call of Python."""
_lock = threading.RLock()


def _leave_parent() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_leave_parent)


def node(op: str, type: Type, srcs: tuple[Node, ...] = (), **attrs: Any) -> Node:
    """The one node with these parts. Attribute values must be hashable."""
    return _one(op, type, srcs, tuple(sorted(attrs.items()) if len(attrs) > 1 else attrs.items()))


def _one(op: str, type: Type, srcs: tuple[Node, ...], pairs: Attrs) -> Node:
    # repr tells 0.0 from -0.0 and makes one NaN equal to another; == does neither. A type would be
    # hashed in Python, each time that the key is looked up.
    told = repr(pairs) if op in ("const", "pad") else pairs
    key = (op, type.shape, type.dtype, srcs, told)
    with _lock:  # threads that make it at once get one
        held = _by_key.get(key)
        found = None if held is None else held()
        if found is None:
            found = Node()
            found.op, found.type, found.srcs, found.attrs = op, type, srcs, pairs
            _interned[key] = found
    return found


def unshared(op: str, type: Type, attrs: Attrs) -> Node:
    """A node without sources that `node` does not find. The caller sees to it that no other has
    these parts."""
    made = Node()
    made.op, made.type, made.srcs, made.attrs = op, type, (), attrs
    return made


def rebuild(old: Node, srcs: tuple[Node, ...]) -> Node:
    """The same operation on other sources."""
    return old if srcs == old.srcs else _one(old.op, old.type, srcs, old.attrs)


def toposort(
    roots: Iterable[Node], below: Callable[[Node], Sequence[Node]] | None = None
) -> Iterator[Node]:
    """Every node that the roots depend on, each after its sources, or after those that are `below`
    it, once; deterministic, without recursion."""
    seen: set[Node] = set()
    for root in roots:
        stack: list[Node | None] = [root]
        pop, push = stack.pop, stack.extend  # every pass of the compiler goes through its graph
        while stack:
            current = pop()
            if current is None:  # all that the next one depends on has been
                expanded = pop()
                assert expanded is not None, "a node lies below each mark"
                yield expanded
            elif current not in seen:
                seen.add(current)
                srcs = current.srcs if below is None else below(current)
                if not srcs:
                    yield current
                elif len(srcs) == 1:
                    push((current, None, srcs[0]))
                else:
                    push((current, None, *srcs[::-1]))


def substitute(roots: Iterable[Node], mapping: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with each node that is a key replaced by its value; the values stay as they are."""
    wanted = tuple(roots)
    done: dict[Node, Node] = dict(mapping)
    for root in wanted:
        stack = [root]
        while stack:
            last = stack[-1]
            pending = [s for s in last.srcs if s not in done] if last not in done else []
            if pending:
                stack += reversed(pending)
                continue
            stack.pop()
            if last not in done:
                done[last] = rebuild(last, tuple(done[s] for s in last.srcs))
    return tuple(done[root] for root in wanted)
