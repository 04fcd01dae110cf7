"""A torch process group whose collectives are those of the stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hal.core.errors import HalError, InvalidCall
from hal.core.values import ReduceKind
from stack.bridge.torch.arrays import array_of, bytes_of
from stack.bridge.torch.meeting import meet
from stack.bridge.torch.work import Begun
from stack.comm.engine.base import Work
from stack.comm.group import Group

Op = dist.ReduceOp.RedOpType
_REDUCES = {
    Op.SUM: ReduceKind.SUM,
    Op.PRODUCT: ReduceKind.PROD,
    Op.MIN: ReduceKind.MIN,
    Op.MAX: ReduceKind.MAX,
    Op.AVG: ReduceKind.AVG,
}


def create(place: Any) -> HalProcessGroup:
    """What torch calls on every rank of a new process group, with what it knows of that rank."""
    rank, size = place.group_rank, place.group_size
    try:
        group = meet(place.store, rank, size, place.timeout)
    except HalError as error:
        raise dist.DistBackendError(str(error)) from error
    return HalProcessGroup(place.group_id, rank, size, group)


class HalProcessGroup(dist.ProcessGroup):
    """All operations begin at once and run in the background, in the order of the calls; sends and
    receives run side by side. Tensors are contiguous and of the host."""

    def __init__(self, name: str, rank: int, size: int, group: Group) -> None:
        super().__init__(rank, size)
        self._name = name
        self._group = group
        self._later = group.later
        self._size = size

    def getBackendName(self) -> str:
        return "hal"

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        """The name by which torch finds this process group."""
        return self._name

    @property
    def group(self) -> Group:
        """The stack's group under this one."""
        return self._group

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Begun:
        how = _reduce(opts)
        return Begun([self._all_reduce(tensor, how) for tensor in tensors], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> Begun:
        how, (tensor,) = _reduce(opts), tensors
        _check_reducible(tensor, how)
        call = self._later.reduce(array_of(tensor), opts.rootRank, how)
        return Begun([call], tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Begun:
        (tensor,) = tensors
        return Begun([self._later.broadcast(bytes_of(tensor), opts.rootRank)], tensors)

    def barrier(self, opts: Any = None) -> Begun:
        return Begun([self._later.barrier()], [])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return Begun([self._later.all_gather(bytes_of(input), bytes_of(output))], [output])

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        pairs = zip(outputs, inputs, strict=True)
        return Begun([self._later.all_gather(bytes_of(i), bytes_of(o)) for o, i in pairs], outputs)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        (parts,), (own,) = outputs, inputs
        whole = _whole(parts)
        call = self._later.all_gather(bytes_of(own), bytes_of(whole), _nbytes(parts))
        return Begun([call], parts, lambda: _deal(whole, parts))

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Begun:
        (own,), counts = inputs, [inputs[0].nbytes] * self._size
        if self.rank() != opts.rootRank:
            return Begun([self._later.gather(bytes_of(own), opts.rootRank, None, counts)], [])
        (parts,) = outputs
        whole = _whole(parts)
        call = self._later.gather(bytes_of(own), opts.rootRank, bytes_of(whole), counts)
        return Begun([call], parts, lambda: _deal(whole, parts))

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Begun:
        (own,) = outputs
        whole = None if self.rank() != opts.rootRank else bytes_of(_joined(inputs[0]))
        return Begun([self._later.scatter(whole, opts.rootRank, bytes_of(own))], outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return Begun([self._reduce_scatter(output, input, _reduce(opts))], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        how, pairs = _reduce(opts), zip(outputs, inputs, strict=True)
        return Begun([self._reduce_scatter(o, i, how) for o, i in pairs], outputs)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Begun:
        (own,), (parts,) = outputs, inputs
        counts = [part.numel() * (2 if part.is_complex() else 1) for part in parts]
        return Begun([self._reduce_scatter(own, _joined(parts), _reduce(opts), counts)], outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Begun:
        if not output_splits and not input_splits:
            return Begun([self._later.all_to_all(bytes_of(input), bytes_of(output))], [output])
        row = input.nbytes // max(input.shape[0], 1) if input.dim() else input.nbytes
        sent = input_splits or [input.shape[0] // self._size] * self._size
        counts = self._rows([n * row for n in sent])
        call = self._later.all_to_all_v(bytes_of(input), counts, bytes_of(output))
        return Begun([call], [output])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Begun:
        counts, whole = self._rows(_nbytes(inputs)), _whole(outputs)
        call = self._later.all_to_all_v(bytes_of(_joined(inputs)), counts, bytes_of(whole))
        return Begun([call], outputs, lambda: _deal(whole, outputs))

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Begun:
        (tensor,) = tensors
        return Begun([self._later.send(bytes_of(tensor), peer, tag)], tensors)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Begun:
        (tensor,) = tensors
        return Begun([self._later.receive(bytes_of(tensor), peer, tag)], tensors)

    def abort(self) -> None:
        self._group.abort()

    def shutdown(self) -> None:
        self._group.close()

    def _all_reduce(self, tensor: Tensor, how: ReduceKind) -> Work:
        _check_reducible(tensor, how)
        return self._later.all_reduce(array_of(tensor), how)

    def _reduce_scatter(
        self, output: Tensor, input: Tensor, how: ReduceKind, counts: list[int] | None = None
    ) -> Work:
        _check_reducible(input, how)
        return self._later.reduce_scatter(array_of(input), how, array_of(output), counts)

    def _rows(self, row: list[int]) -> list[list[int]]:
        """What every rank sends to every other, of which torch tells a rank its own row."""
        own = torch.tensor(row, dtype=torch.int64).numpy()
        rows: list[list[int]] = self._later.all_gather(own).finish().tolist()
        return rows


def _reduce(opts: Any) -> ReduceKind:
    """Raises InvalidCall for the reductions of bits and those with factors."""
    if opts is None:
        return ReduceKind.SUM
    op = opts.reduceOp.op if isinstance(opts.reduceOp, dist.ReduceOp) else opts.reduceOp
    if op not in _REDUCES:
        names = ", ".join(kind.name for kind in _REDUCES)
        raise InvalidCall(f"backend hal reduces by {names}, not by {op}")
    return _REDUCES[op]


def _check_reducible(tensor: Tensor, how: ReduceKind) -> None:
    if tensor.is_complex() and how not in (ReduceKind.SUM, ReduceKind.AVG):
        raise InvalidCall(f"complex numbers have no {how.value}")


def _nbytes(parts: Sequence[Tensor]) -> list[int]:
    return [part.nbytes for part in parts]


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Memory for all parts, one after the other."""
    return parts[0].new_empty(sum(part.numel() for part in parts))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _deal(whole: Tensor, parts: Sequence[Tensor]) -> None:
    """Give every part its elements."""
    start = 0
    for part in parts:
        part.detach().copy_(whole[start : start + part.numel()].view(part.shape))
        start += part.numel()
