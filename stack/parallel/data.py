"""Data parallelism: every rank has the whole model and a part of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from hal.core.errors import InvalidCall
from stack.framework import Tensor, default_generator, modes, tensor
from stack.framework.dtypes import NAMES
from stack.framework.nn import Module
from stack.parallel.agree import Agreement, Meeting, agree_on_model, take_values
from stack.parallel.buckets import runs, share
from stack.parallel.mesh import Mesh
from stack.parallel.ranks import Ranks
from stack.parallel.refusals import say_raised

Array = NDArray[Any]


def data_parallel(model: Module, mesh: Mesh, axis: str = "data") -> DataParallel:
    """Train one model on the ranks along an axis of the mesh; all of them call it, before the first
    step.

    From then on a `backward` that gathers gradients of the model gives every rank the average of
    the ranks' gradients, which is the gradient of the mean loss over the whole batch, of which each
    rank takes an equal part: ranks whose data differs in the lengths of its first axes are refused.
    What is drawn at random on the model's device is this rank's part of what one rank would draw
    for the whole batch, where the batch is the first axis: dropout is the same for any number of
    ranks. A model may be data parallel along several axes. Every rank computes the same things in
    the same order, whatever it looks at.

    Raises InvalidCall when models differ, and what ends a group of ranks.
    """
    device = device_of([*model.parameters(), *model.buffers()])
    ranks = Ranks.join(mesh, axis, device)
    if ranks.group is not None:
        try:
            agree_on_model(Agreement([ranks.group], mesh.rank, Meeting.SPREAD), model)
            take_values(ranks.group, model, device)
        except BaseException:
            ranks.leave()
            raise
    return DataParallel(model, ranks)


class DataParallel:
    """A model's `ranks` along an axis, which is rank `rank` of `size`. With one rank it does
    nothing. Use it in a `with` block, which leaves the group at its end."""

    def __init__(self, model: Module, ranks: Ranks) -> None:
        """Use `data_parallel`. The parameters hold this value as a rule for their gradients, the
        device's generator the ranks' shares of the axis."""
        self.ranks, self.rank, self.size = ranks, ranks.rank, ranks.size
        self._parameters = list(model.named_parameters())
        self._is_open = self.size > 1
        if self._is_open:
            default_generator(ranks.device).divide(ranks.axis, self.rank, self.size)
            for _, p in self._parameters:
                p.grad_rules = (*p.grad_rules, self)

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
        return self.ranks.all_reduce(x.detach(), "avg", f"mean of {NAMES[x.dtype]}{list(x.shape)}")

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on a rank; all ranks call it, and wait for each other."""
        if self.size == 1:
            return flag
        return bool(self.mean(tensor(float(flag), device=self.ranks.device)).item() > 0)

    def gathered(self) -> AbstractContextManager[None]:
        """A block within which every rank has the whole model, as it has anyway."""
        return nullcontext()

    def local_gradients(self) -> AbstractContextManager[None]:
        """Within the block `backward` gathers gradients on this rank alone. A batch in several
        parts: let all but the last one run in it."""
        return modes.local_gradients()

    def __call__(self) -> None:
        """The rule of the parameters' gradients: replace those that this rank has gathered by their
        averages over the ranks."""
        for run in runs([p for _, p in self._parameters if p.requires_grad]):
            share(run, self.ranks.name, dict(self._parameters))

    def close(self) -> None:
        """Leave the group, once everything begun is done: the model is this process's own again.
        Idempotent."""
        if self._is_open:
            self._is_open = False
            for _, p in self._parameters:
                p.grad_rules = tuple(rule for rule in p.grad_rules if rule is not self)
            default_generator(self.ranks.device).unite(self.ranks.axis)
        self.ranks.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            say_raised(error)
        self.close()


def device_of(tensors: Sequence[Tensor]) -> str:
    """The device of a model's tensors. Raises InvalidCall where they are on several, or none."""
    devices = sorted({t.device for t in tensors})
    if len(devices) != 1:
        raise InvalidCall(
            f"data parallelism takes a model with parameters on one device of each rank, not on "
            f"{', '.join(devices) or 'none'}"
        )
    return devices[0]
