"""Data parallelism: every rank has the whole model and a part of each batch."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from hal.core.errors import HalError, InvalidCall
from stack import ops as g
from stack.comm.device.group import DeviceGroup
from stack.comm.group import Group
from stack.framework import Tensor, default_generator, mode, tensor
from stack.framework.device import engine
from stack.framework.dtypes import NAMES
from stack.framework.nn import Module
from stack.parallel.agree import agree
from stack.parallel.buckets import runs, share
from stack.parallel.mesh import Mesh
from stack.parallel.order import begun, called
from stack.runtime import Engine

Array = NDArray[Any]


def data_parallel(model: Module, mesh: Mesh, axis: str = "data") -> DataParallel:
    """Train one model on the ranks along an axis of the mesh; all of them call it, before the first
    step.

    From then on `backward` gives every rank the average of the ranks' gradients, which is the
    gradient of the mean loss over the whole batch, of which each rank takes an equal part: ranks
    whose data differs in the lengths of its first axes are refused. What is
    drawn at random on the model's device is this rank's part of what one rank would draw for the
    whole batch, where the batch is the first axis: dropout is the same for any number of ranks.
    Every rank computes the same things in the same order, whatever it looks at.

    Raises InvalidCall when models differ, and what ends a group of ranks.
    """
    return DataParallel(model, mesh, axis)


class DataParallel:
    """A model's ranks: `rank` of `size`. With one rank it does nothing. Use it in a `with` block,
    which leaves the group at its end."""

    def __init__(self, model: Module, mesh: Mesh, axis: str) -> None:
        """Use `data_parallel`."""
        self.rank, self.size = mesh.place(axis), mesh.size(axis)
        self._parameters = list(model.named_parameters())
        self._membership = None
        if self.size > 1:
            self._membership = Membership.join(model, mesh, axis)
            mode.add_sharer(self)

    def part(self, array: Array) -> Array:
        """This rank's rows of a batch, along its first axis. The ranks' rows, one rank after the
        other, are the batch. Raises InvalidCall when they cannot be equally many."""
        rows = array.shape[0]
        if rows % self.size:
            raise InvalidCall(
                f"a batch of {rows} rows cannot be divided by {self.size} ranks; take a multiple "
                f"of {self.size}"
            )
        each = rows // self.size
        return array[self.rank * each : (self.rank + 1) * each]

    def mean(self, x: Tensor) -> Tensor:
        """The average of the ranks' values, through which no gradient flows; all ranks call it.
        Raises InvalidCall for a tensor that is not of floats."""
        if not x.dtype.is_float:
            raise InvalidCall(f"mean takes floats, not {NAMES[x.dtype]}; pass x.float()")
        if self._membership is None:
            return x.detach()
        name = called(f"mean of {NAMES[x.dtype]}{list(x.shape)}")
        combined = g.all_reduce("avg", x.detach().node, self._membership.name, name)
        return begun(Tensor(combined, x.device))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on a rank; all ranks call it, and wait for each other."""
        if self._membership is None:
            return flag
        return bool(self.mean(tensor(float(flag), device=self._membership.device)).item() > 0)

    def local_gradients(self) -> AbstractContextManager[None]:
        """Within the block `backward` gathers gradients on this rank alone. A batch in several
        parts: let all but the last one run in it."""
        return mode.local_gradients()

    def share(self) -> None:
        """Replace the gradients that this rank has gathered by their averages over the ranks."""
        if self._membership is not None:
            learned = [(name, p) for name, p in self._parameters if p.requires_grad]
            names = {p.serial: name for name, p in learned}
            for run in runs([p for _, p in learned]):
                share(run, self._membership.name, names)

    def close(self) -> None:
        """Leave the group, once everything begun is done: the model is this process's own again.
        Idempotent."""
        mode.drop_sharer(self)
        if self._membership is not None:
            self._membership.leave()
            self._membership = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_entered: list[Membership] = []
"""In the order in which they came."""


class Membership:
    """The group of a model's ranks, which its device is in under `name`.

    The device draws at random, and takes its memory, as the newest of its memberships says.
    """

    def __init__(self, group: Group, engine: Engine, device: str, name: str) -> None:
        self.name = name
        self.device = device
        self._group = group
        self._engine = engine
        self._members = DeviceGroup(group, engine.device)
        engine.groups[name] = self._members
        _entered.append(self)
        self._rule()
        # Registered anew, it runs before what closes the device.
        atexit.unregister(_leave_all)
        atexit.register(_leave_all)

    @classmethod
    def join(cls, model: Module, mesh: Mesh, axis: str) -> Self:
        """Meet the other ranks and compare models."""
        device = _device_of([*model.parameters(), *model.buffers()])
        own = engine(device)
        if not isinstance(own, Engine):
            raise InvalidCall(f"{device} is no device of this process's ranks")
        group = mesh.join(axis)
        try:
            agree(group, model, device)
            return cls(group, own, device, _free_name(own, axis))
        except BaseException:
            group.close()
            raise

    def leave(self) -> None:
        """Give everything back."""
        _entered.remove(self)
        self._engine.groups.pop(self.name, None)
        try:
            self._resign()
            self._members.close()
        finally:
            self._group.close()

    def _rule(self) -> None:
        default_generator(self.device).part = self._group.rank, self._group.size
        # Gradients in memory that the ranks share.
        self._engine.pool.draw_from(self._members.alloc)

    def _resign(self) -> None:
        if left := [other for other in _entered if other._engine is self._engine]:
            left[-1]._rule()
        else:
            default_generator(self.device).part = 0, 1
            self._engine.pool.draw_from(None)


def _leave_all() -> None:
    """A process that ends lets what it has begun with others end, while it still has a device."""
    for membership in list(_entered):
        with suppress(HalError):  # nobody is left to be told
            membership.leave()


def _device_of(tensors: Sequence[Tensor]) -> str:
    devices = sorted({t.device for t in tensors})
    if len(devices) != 1:
        raise InvalidCall(
            f"data parallelism takes a model with parameters on one device of each rank, not on "
            f"{', '.join(devices) or 'none'}"
        )
    return devices[0]


def _free_name(own: Engine, axis: str) -> str:
    names = (axis if i == 0 else f"{axis}{i}" for i in range(len(own.groups) + 1))
    return next(name for name in names if name not in own.groups)
