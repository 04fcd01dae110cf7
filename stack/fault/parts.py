"""A batch in equal parts, whose gradients are added in pairs: how many ranks share them is not in
the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hal.core.errors import InvalidCall
from stack import ops as g
from stack.comm.group import Group
from stack.fault.own_time import OwnTime
from stack.framework import Tensor, default_generator, jit, tensor
from stack.framework.nn import Module
from stack.parallel import Ranks
from stack.parallel.buckets import runs

AXIS = "data"
MOST_DELAYED = 2.0
"""A rank that was so many times as long at it as it needed shares its processors with other work,
which also empties their caches."""

Array = np.ndarray[Any, Any]
Loss = Callable[..., Tensor]


class Warmed(BaseException):
    """A step was run as far as its captured function, which is compiled now."""


class Parts:
    """`count` equal parts of each batch, of which this rank has neighbouring ones. A plan is of one
    part, whoever has it, so another number of ranks needs no other plans.

    A sum over parts is one of pairs, pairs of pairs and so on; a rank's own parts are a part of
    that tree where ranks have equally many, a power of two. Other divisions differ by roundings.
    """

    def __init__(self, model: Module, count: int, device: str) -> None:
        if count < 1:
            raise InvalidCall(f"a batch in {count} parts; there is at least 1")
        self.count, self.device = count, device
        self.rank, self.size, self.own = 0, 1, range(count)
        self._model = model
        self._ranks: Ranks | None = None
        self._drawn: int | None = None
        self._add = jit(_sums)
        self._is_warm = False
        self.own_s: float | None = None
        """What this rank took for its own parts in this step, without waiting for others, or for a
        processor; None where nobody is to be compared with it, or it had to wait so long for a
        processor that the time says nothing of the rank."""
        self.own_loss = 0.0
        """Of this rank's own parts in this step, where `own_s` is measured."""
        self.slowed = 1.0
        """It takes so many times its time: a fault on demand."""
        self._watch: OwnTime | None = None
        self.warming = False
        """Whether a step ends, by Warmed, once its captured function has run."""

    def join(self, group: Group | None, rank: int, size: int, own: range | None = None) -> None:
        """Share the parts with the ranks of a group, which becomes this value's own, from now on;
        `own` are those of this rank, by default its share. `rank` of `size` is what it counts
        as."""
        self.leave()
        if size > self.count:
            raise InvalidCall(
                f"{size} ranks share a batch of {self.count} parts; give `parts` a number that is "
                "not below that of the ranks"
            )
        self.rank, self.size = rank, size
        self.own = share(self.count, rank, size) if own is None else own
        place = (0, 1) if group is None else (group.rank, group.size)
        self._ranks = Ranks(AXIS, self.device, *place, group)

    def leave(self) -> None:
        """Leave the group. Idempotent."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.close()
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            ranks.leave()
        self._divide(None)

    def begin(self) -> None:
        """A step begins."""
        self.own_s = None
        if self._watch is not None:
            self._watch.begin()
        elif self.group is not None:
            self._watch = OwnTime()

    @property
    def group(self) -> Group | None:
        """The group that was joined."""
        return None if self._ranks is None else self._ranks.group

    def of(self, batch: Array) -> list[Array]:
        """The rows of a whole batch that are this rank's parts. Raises InvalidCall for a batch that
        cannot be divided."""
        rows = batch.shape[0]
        if rows % self.count:
            raise InvalidCall(
                f"a batch of {rows} rows cannot be divided into {self.count} parts; take a "
                f"multiple of {self.count}"
            )
        each = rows // self.count
        return [batch[i * each : (i + 1) * each] for i in self.own]

    def gradients(self, loss: Loss, update: Callable[[], object]) -> Callable[..., Tensor]:
        """A step: for each part the gradients of `loss(*part)`, then, with the mean of all parts in
        `p.grad` of the model's parameters, `update()`. It takes whole batches, gives the mean loss,
        and is captured: as under `jit`, Python runs only in the first call."""
        learned = [p for p in self._model.parameters() if p.requires_grad]
        homes = runs(learned)

        def gather(*part: Tensor) -> list[Tensor]:
            for p in learned:
                p.grad = None
            value = loss(*part)
            value.backward()
            lacking = [p for p in learned if p.grad is None]
            if lacking:
                raise InvalidCall(f"{len(lacking)} parameters have no gradient of the loss")
            sums = [value.detach()]
            for home in homes:  # the gradients of its parameters as one array
                grads = enumerate(p.grad for p in home.members)
                own = [home.layout.padded(t.node, i) for i, t in grads if t is not None]
                sums.append(Tensor(g.concat(own, 0), home.members[0].device))
            for p in learned:
                p.grad = None
            return sums

        def finish(*sums: Tensor) -> Tensor:
            value, *flats = (self._mean_of(t) for t in sums)
            for home, flat in zip(homes, flats, strict=True):
                for p, view in zip(home.members, home.layout.split(flat.node), strict=True):
                    p.grad = Tensor(view, p.device)
            update()
            return value

        gathered, finished = jit(gather), jit(finish)

        def step(*batches: Array) -> Tensor:
            sums = self._summed(gathered, batches)
            if self._watch is not None and self.own_s is None:
                # The others are not waited for yet: what follows waits for them
                self.own_loss = float(sums[0].item())
                if self.slowed > 1.0:
                    time.sleep(self._watch.passed_s()[0] * (self.slowed - 1.0))
                passed_s, own_s = self._watch.passed_s()
                self.own_s = own_s if passed_s <= MOST_DELAYED * own_s else None
            value = finished(*sums)
            if self.warming:
                raise Warmed
            return value

        return step

    def averaged(self, function: Loss) -> Callable[..., Tensor]:
        """The mean of `function(*part)` over all parts, captured; it takes whole batches."""
        one, all_ = jit(lambda *part: [function(*part).detach()]), jit(self._mean_of)

        def mean(*batches: Array) -> Tensor:
            return all_(*self._summed(one, batches))

        return mean

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on a rank; all ranks call it, and wait for each other."""
        assert self._ranks is not None, "the parts are shared by nobody yet"
        if self._ranks.group is None:
            return flag
        given = tensor(float(flag), device=self.device)
        return bool(self._ranks.all_reduce(given).item() > 0)

    def _mean_of(self, own: Tensor) -> Tensor:
        assert self._ranks is not None, "the parts are shared by nobody yet"
        whole = own if self._ranks.group is None else self._ranks.all_reduce(own)
        return whole * (1.0 / self.count)

    def _summed(
        self, function: Callable[..., list[Tensor]], batches: Sequence[Array]
    ) -> list[Tensor]:
        """The sum of what the function gives for each of this rank's parts, in pairs."""
        parts = zip(*(self.of(batch) for batch in batches), strict=True)
        generator = default_generator(self.device)
        state = generator.get_state() if len(self.own) > 1 else None
        waiting: list[tuple[range, list[Tensor]]] = []
        for i, part in zip(self.own, parts, strict=True):
            if waiting and state is not None:
                generator.set_state(*state)  # all parts are of one draw
            self._divide(i)
            waiting.append((range(i, i + 1), function(*part)))
            while (pair := _pair(waiting)) is not None:
                waiting[-2:] = [(pair, self._add(waiting[-2][1], waiting[-1][1]))]
        while len(waiting) > 1:
            ends = range(waiting[-2][0].start, waiting[-1][0].stop)
            waiting[-2:] = [(ends, self._add(waiting[-2][1], waiting[-1][1]))]
        found = waiting[0][1]
        if not self._add.traced or not self._is_warm:
            self._is_warm = True  # so that a rank which gets more parts later compiles nothing
            self._add(found, found)
        return found

    def _divide(self, part: int | None) -> None:
        """Draws at random are those of this part."""
        if part == self._drawn:
            return
        generator = default_generator(self.device)
        if self._drawn is not None:
            generator.unite(AXIS)
        if part is not None:
            generator.divide(AXIS, part, self.count)
        self._drawn = part


def share(count: int, rank: int, size: int) -> range:
    """The parts of a rank: neighbours, as many for each as there are, more for the last ones. So 4
    parts are 1, 1 and 2 for 3 ranks, whose sum by pairs of ranks is that of pairs of parts."""
    return range(count * rank // size, count * (rank + 1) // size)


def shares(count: int, part_s: Sequence[float]) -> list[range]:
    """The parts of ranks that take so long for one part each, so that the last one to be done is
    done soonest. Neighbours, and one at least."""
    own = [1] * len(part_s)
    for _ in range(count - len(own)):
        least = min(range(len(own)), key=lambda rank: (own[rank] + 1) * part_s[rank])
        own[least] += 1
    ends = list(accumulate(own))
    return [range(end - n, end) for n, end in zip(own, ends, strict=True)]


def _pair(waiting: Sequence[tuple[range, Any]]) -> range | None:
    """The two last sums as one, where they are the halves of a node of the tree."""
    if len(waiting) < 2:
        return None
    first, second = waiting[-2][0], waiting[-1][0]
    if len(first) != len(second) or first.start % (2 * len(first)):
        return None
    return range(first.start, second.stop)


def _sums(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return [x + y for x, y in zip(a, b, strict=True)]
