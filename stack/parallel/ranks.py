"""The ranks along an axis of a mesh, as one value: what a model's step exchanges with them."""

from __future__ import annotations

import atexit
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from hal.core.errors import HalError, InvalidCall
from hal.tile.node import Node
from stack import ops as g
from stack.comm.device.group import DeviceGroup
from stack.comm.group import Group
from stack.framework import Tensor
from stack.framework.cell import tracing
from stack.framework.devices import engine
from stack.framework.dtypes import NAMES
from stack.framework.reverse import check_told_apart
from stack.framework.store import barrier
from stack.framework.tensor import apply
from stack.parallel.mesh import Mesh
from stack.parallel.order import begun, called
from stack.parallel.refusals import say_raised
from stack.runtime import Engine

SINGLE = "one rank"


class Ranks:
    """The ranks on this rank's line along an axis of a mesh: `rank` of `size`, whose devices make
    calls together in a group that this device's engine knows as `name`.

    All ranks call the same operations in the same order, but for messages. Gradients flow through
    operations: each rank has the derivative of the sum of the ranks' losses. Outside of a captured
    function an operation begins where the program has it. A line of one rank needs no group, and
    gives its own values back.

    Messages between the same ranks that one captured function or backward pass begins need a `name`
    each, equal on both ranks; InvalidCall says where one is missing.
    """

    def __init__(self, axis: str, device: str, rank: int, size: int, group: Group | None) -> None:
        """Use `Ranks.join`. `group` becomes this value's own; None for one rank."""
        self.axis, self.device, self.rank, self.size = axis, device, rank, size
        self.name = SINGLE
        self.group = group
        if group is not None:
            self._engine = own = _engine(device)
            self._members = DeviceGroup(group, own.device)
            names = (axis if i == 0 else f"{axis}{i}" for i in range(len(own.groups) + 1))
            self.name = next(name for name in names if name not in own.groups)
            own.groups[self.name] = self._members
            # Exchanges in memory that the ranks share need no copies; what lies idle is not theirs.
            own.sync()
            own.pool.trim()
            own.pool.draw_from(self._members.alloc, size)
            atexit.register(self._leave_at_exit)  # runs before what closes the device

    @classmethod
    def join(cls, mesh: Mesh, axis: str, device: str) -> Self:
        """Meet the ranks on this rank's line; all of them call it, in the same order among such
        calls. Raises as `Mesh.join`."""
        rank, size = mesh.place(axis), mesh.size(axis)
        if size == 1:
            return cls(axis, device, rank, size, None)
        _engine(device)
        group = mesh.join(axis)
        try:
            return cls(axis, device, rank, size, group)
        except BaseException:
            group.close()
            raise

    def leave(self) -> None:
        """Give everything back, once what is begun is done. Idempotent."""
        if self.group is None:
            return
        atexit.unregister(self._leave_at_exit)
        group, self.group = self.group, None
        self._engine.groups.pop(self.name, None)
        self._engine.pool.draw_no_more(self._members.alloc)
        try:
            self._members.close()
        finally:
            group.close()

    def _leave_at_exit(self) -> None:
        """A process that ends lets what it has begun with others end, while it has a device. They
        are told by what it ends, if nobody has caught that."""
        if (error := getattr(sys, "last_value", None)) is not None:
            say_raised(error)
        with suppress(HalError):  # nobody is left to be told
            self.leave()

    @property
    def sent(self) -> Counter[str]:
        """The bytes that this rank has sent to others along the axis, by kind of call, as
        `stack.comm.messages.sent_bytes` counts them."""
        return self._members.sent if self.group is not None else Counter()

    # operations

    def all_reduce(self, x: Tensor, by: str = "sum", name: str = "") -> Tensor:
        """The ranks' values combined element by element, by "sum", "avg", "prod", "min" or "max";
        gradients flow through the first two. `name` is what it is of, in messages."""
        return self._exchange(f"{by} of", name, x, lambda n, c: g.all_reduce(by, n, self.name, c))

    def reduce(self, x: Tensor, root: int, by: str = "sum", name: str = "") -> Tensor:
        """As `all_reduce` (but for "avg") on rank `root`, zeros on the others."""
        self._check_rank(root)
        what = f"{by} on rank {root} of"
        return self._exchange(what, name, x, lambda n, c: g.reduce_to(by, n, root, self.name, c))

    def broadcast(self, x: Tensor, root: int, name: str = "") -> Tensor:
        """The value of rank `root`; those of the others tell the shape alone."""
        self._check_rank(root)
        what = f"rank {root}'s"
        return self._exchange(what, name, x, lambda n, c: g.broadcast_from(n, root, self.name, c))

    def all_gather(self, x: Tensor, dim: int = 0, name: str = "") -> Tensor:
        """The ranks' values concatenated along an axis."""
        at = self._axis(x, dim)

        def make(n: Node, c: str) -> Node:
            return _joined(g.all_gather(n, self.size, self.name, c), at)

        return self._exchange("all of", name, x, make)

    def reduce_scatter(self, x: Tensor, dim: int = 0, by: str = "sum", name: str = "") -> Tensor:
        """The ranks' values combined as by `all_reduce`, of which rank i has part i of an axis."""
        at = self._divisible(x, dim)

        def make(n: Node, c: str) -> Node:
            return g.reduce_scatter(by, _split(n, at, self.size), self.name, c)

        return self._exchange(f"a part of the {by} of", name, x, make)

    def all_to_all(self, x: Tensor, split: int = 0, join: int = 0, name: str = "") -> Tensor:
        """Part j of axis `split` goes to rank j; what comes is concatenated along axis `join`."""
        at, to = self._divisible(x, split), self._axis(x, join)

        def make(n: Node, c: str) -> Node:
            return _joined(g.all_to_all(_split(n, at, self.size), self.name, c), to)

        return self._exchange("parts of", name, x, make)

    def all_to_all_v(self, x: Tensor, rows: Tensor, name: str = "") -> Tensor:
        """x has the shape (size, most rows, ...); of x[j] the first rows[j] go to rank j. In the
        result (of x's shape) what came from rank i is at index i, and zeros behind it. `rows` are
        int64 data: how many travel is known when the exchange begins."""
        if x.ndim < 2 or x.shape[0] != self.size:
            raise InvalidCall(
                f"all_to_all_v among {self.size} takes ({self.size}, most rows, ...), "
                f"not {list(x.shape)}"
            )
        width = math.prod(x.shape[2:])

        def make(n: Node, m: Node, c: str) -> Node:
            elements = g.mul(m, g.full_like(m, width))
            return g.all_to_all_v(n, elements, self.name, c)

        if self.group is None:
            kept = g.lt(g.arange(x.shape[1]), g.broadcast(rows.node, (x.shape[1],)))
            shape = (1, x.shape[1], *[1] * (x.ndim - 2))
            mask = g.broadcast(g.reshape(kept, shape), x.shape)
            return apply(lambda n: g.where(mask, n, g.full_like(n, 0)), x)
        text = self._called("rows of", name, x)
        return begun(apply(lambda n, m: make(n, m, text), x, rows))

    def shift(self, x: Tensor, by: int = 1, name: str = "") -> Tensor:
        """The value of the rank that is `by` places before this one, around the ring."""
        pairs = [(rank, (rank + by) % self.size) for rank in range(self.size)]
        return self._messages(f"shift by {by} of", name, x, pairs)

    def send(self, x: Tensor, to: int, name: str = "") -> Tensor:
        """Send to a rank, which calls `receive`. Gives zeros of x's shape: their `backward`, with
        any gradient, brings the derivative that comes back from there."""
        self._check_other(to)
        return self._messages("", name, x, [(self.rank, to)])

    def receive(self, like: Tensor, source: int, name: str = "") -> Tensor:
        """What rank `source` sends, which has the shape and type of `like`. If that requires a
        gradient, `backward` sends the derivative back."""
        self._check_other(source)
        return self._messages("", name, like, [(source, self.rank)])

    def _messages(
        self, what: str, name: str, x: Tensor, pairs: Sequence[tuple[int, int]]
    ) -> Tensor:
        # The ranks' programs differ, so a number in the program would not name both sides alike.
        text = name or f"{what or 'message of'} {_type(x)}"
        if self.group is None:
            return apply(g.contiguous, x)
        if (trace := tracing()) is not None:
            sent = apply(lambda n: g.send_receive(n, pairs, self.name, text), x)
            effects = trace.effects
            effects.append(sent)
            check_told_apart(e.node for e in effects)
            return sent

        def make(n: Node) -> Node:  # one that no earlier message is equal to, whose value is known
            return g.send_receive(n, pairs, self.name, text, after=(barrier(n),))

        return begun(apply(make, x))

    def _exchange(
        self, what: str, name: str, x: Tensor, make: Callable[[Node, str], Node]
    ) -> Tensor:
        if self.group is None:
            return apply(g.contiguous, x)
        text = self._called(what, name, x)
        return begun(apply(lambda n: make(n, text), x))

    def _called(self, what: str, name: str, x: Tensor) -> str:
        return called(name or f"{what} {_type(x)}")

    def _axis(self, x: Tensor, dim: int) -> int:
        if not -x.ndim <= dim < x.ndim:
            raise InvalidCall(f"axis {dim} is none of a tensor of shape {list(x.shape)}")
        return dim % x.ndim

    def _divisible(self, x: Tensor, dim: int) -> int:
        at = self._axis(x, dim)
        if x.shape[at] % self.size:
            raise InvalidCall(
                f"axis {dim} of a tensor of shape {list(x.shape)} cannot be divided among the "
                f"{self.size} ranks along {self.axis!r}; take a multiple of {self.size}"
            )
        return at

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InvalidCall(f"rank {rank} is none of the {self.size} along {self.axis!r}")

    def _check_other(self, rank: int) -> None:
        self._check_rank(rank)
        if rank == self.rank:
            raise InvalidCall(f"rank {rank} along {self.axis!r} sends nothing to itself")


def _engine(device: str) -> Engine:
    own = engine(device)
    if not isinstance(own, Engine):
        raise InvalidCall(f"{device} is no device of this process's ranks")
    return own


def _type(x: Any) -> str:
    return f"{NAMES[x.dtype]}{list(x.shape)}"


def _split(n: Node, axis: int, size: int) -> Node:
    """An axis in equal parts, which lie along a new first axis."""
    shape = (*n.shape[:axis], size, n.shape[axis] // size, *n.shape[axis + 1 :])
    first = (axis, *(i for i in range(len(shape)) if i != axis))
    return g.permute(g.reshape(n, shape), first)


def _joined(n: Node, axis: int) -> Node:
    """The parts along the first axis concatenated along an axis of each."""
    rest = list(range(1, len(n.shape)))
    rest.insert(axis, 0)
    part = n.shape[1:]
    shape = (*part[:axis], n.shape[0] * part[axis], *part[axis + 1 :])
    return g.reshape(g.permute(n, tuple(rest)), shape)
