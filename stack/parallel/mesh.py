"""The ranks of a job as a grid with named axes."""

from __future__ import annotations

import math
from collections import Counter

from hal.core.errors import InvalidCall
from hal.core.facts import dataclass
from stack.comm.engine.meeting import MeshLine
from stack.comm.group import Group
from stack.comm.store import Store
from stack.comm.world import World
from stack.parallel.refusals import forget_raised, raised, say_raised, told

_joined: Counter[str] = Counter()
"""How often a line of ranks was joined; every group needs a key of its own. The job's store has it,
too: ranks of which one gave up, as another one was late, come to one group again."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in a grid: `axes` names its axes, `sizes` has the ranks along each. The last axis
    varies fastest, so its neighbours have neighbouring ranks. `world` is None in a process that
    `hal run` has not started, which is a mesh of one rank."""

    world: World | None
    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, world: World | None, **sizes: int) -> Mesh:
        """`Mesh.of(world, data=4)`; without sizes all ranks are along the axis "data".

        Raises InvalidCall when the sizes do not multiply to the number of ranks.
        """
        ranks = 1 if world is None else world.size
        given = sizes or {"data": ranks}
        if any(n < 1 for n in given.values()) or math.prod(given.values()) != ranks:
            product = " * ".join(f"{name}={n}" for name, n in given.items())
            raise InvalidCall(
                f"a mesh of {product} takes {math.prod(given.values())} ranks, but this job has "
                f"{ranks}; change the sizes, or start it by `hal run -n N`"
            )
        return cls(world, tuple(given), tuple(given.values()))

    @classmethod
    def present(cls, **sizes: int) -> Mesh:
        """The mesh of the job that this process is a rank of; of one rank where it is none."""
        with told():
            return cls.of(World.present(), **sizes)

    @property
    def rank(self) -> int:
        """This process's rank in the job."""
        return 0 if self.world is None else self.world.rank

    def size(self, axis: str) -> int:
        """The ranks along an axis."""
        return self.sizes[self._number(axis)]

    def place(self, axis: str) -> int:
        """Where this rank stands along an axis."""
        return self.rank // self._stride(axis) % self.size(axis)

    def ranks(self, axis: str) -> tuple[int, ...]:
        """The ranks on this rank's line along an axis, in order: those that differ from it there
        alone."""
        stride = self._stride(axis)
        first = self.rank - self.place(axis) * stride
        return tuple(range(first, first + self.size(axis) * stride, stride))

    def join(self, axis: str) -> Group:
        """A new group of the ranks on this rank's line; all of them call it, in the same order
        among such calls. The caller closes it. What ends one group of the job's meshes in a process
        ends the others there. Raises InvalidCall outside of a job, and as `Group.join`."""
        if self.world is None:
            raise InvalidCall("this process is no rank of a job; start it by `hal run -n 2 SCRIPT`")
        self.world.check_epoch()
        ranks = f"{self.size(axis)} from {self.ranks(axis)[0]} by {self._stride(axis)}"
        line = f"{self.world.job}/{axis} of {ranks}"
        store, size = Store.of(self.world), self.size(axis)
        number = max(_joined[line], int(store.find(f"joined/{line}") or 0))
        times = self.world.deadline_s, self.world.silent_s
        own = MeshLine(self.world.job, self.ranks(axis), raised(self.world), say_raised)
        place = f"{line}/{number}", self.place(axis)
        group = Group.join(store, self.world.store, *place, size, *times, own)
        _joined[line] = number + 1
        store.set(f"joined/{line}", str(number + 1).encode())
        forget_raised(self.world)
        return group

    def _stride(self, axis: str) -> int:
        return math.prod(self.sizes[self._number(axis) + 1 :])

    def _number(self, axis: str) -> int:
        if axis not in self.axes:
            raise InvalidCall(f"the mesh has no axis {axis!r}, only {', '.join(self.axes)}")
        return self.axes.index(axis)
