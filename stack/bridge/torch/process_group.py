"""A torch process group whose collectives are those of the stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hal.core.errors import HalError, InvalidCall
from hal.core.values import ReduceKind
from stack.bridge.torch.arrays import array_of, count_of, elements_of, packed, unpack
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
    receives run side by side. Tensors are of the host; those with gaps are copied."""

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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> HalProcessGroup:
        return self

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Begun:
        how, own = _reduce(opts), [packed(tensor) for tensor in tensors]
        return Begun([self._all_reduce(x, how) for x in own], tensors, unpack(own, tensors))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> Begun:
        how, own = _reduce(opts), packed(*tensors)
        _check_reducible(own, how)
        call = self._later.reduce(array_of(own), opts.rootRank, how)
        return Begun([call], tensors, unpack([own], tensors))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Begun:
        own = packed(*tensors)
        call = self._later.broadcast(elements_of(own), opts.rootRank)
        return Begun([call], tensors, unpack([own], tensors))

    def barrier(self, opts: Any = None) -> Begun:
        return Begun([self._later.barrier()], [])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return self.all_gather_single_coalesced([output], [input])

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        wholes = [packed(output) for output in outputs]
        pairs = zip(map(packed, inputs), wholes, strict=True)
        calls = [self._later.all_gather(elements_of(i), elements_of(o)) for i, o in pairs]
        return Begun(calls, outputs, unpack(wholes, outputs))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        wholes = [_whole(parts) for parts in outputs]
        calls = [
            self._later.all_gather(elements_of(packed(own)), elements_of(whole), _sizes(parts))
            for own, whole, parts in zip(inputs, wholes, outputs, strict=True)
        ]
        return Begun(
            calls, [x for parts in outputs for x in parts], lambda: _deal_all(wholes, outputs)
        )

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Begun:
        own = elements_of(packed(*inputs))
        counts = [own.size] * self._size
        if self.rank() != opts.rootRank:
            return Begun([self._later.gather(own, opts.rootRank, None, counts)], [])
        (parts,) = outputs
        whole = _whole(parts)
        call = self._later.gather(own, opts.rootRank, elements_of(whole), counts)
        return Begun([call], parts, lambda: _deal(whole, parts))

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Begun:
        own = packed(*outputs)
        whole = None if self.rank() != opts.rootRank else elements_of(_joined(inputs[0]))
        call = self._later.scatter(whole, opts.rootRank, elements_of(own))
        return Begun([call], outputs, unpack([own], outputs))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Begun:
        how, own = _reduce(opts), [packed(output) for output in outputs]
        pairs = zip(own, map(packed, inputs), strict=True)
        calls = [self._reduce_scatter(o, i, how) for o, i in pairs]
        return Begun(calls, outputs, unpack(own, outputs))

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Begun:
        own, (parts,) = packed(*outputs), inputs
        call = self._reduce_scatter(own, _joined(parts), _reduce(opts), _sizes(parts))
        return Begun([call], outputs, unpack([own], outputs))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Begun:
        got, given = packed(output), elements_of(packed(input))
        if not output_splits and not input_splits:
            call = self._later.all_to_all(given, elements_of(got))
        else:
            rows = input.shape[0]
            sent = input_splits or [rows // self._size] * self._size
            counts = self._rows([n * (given.size // max(rows, 1)) for n in sent])
            call = self._later.all_to_all_v(given, counts, elements_of(got))
        return Begun([call], [output], unpack([got], [output]))

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Begun:
        counts, whole = self._rows(_sizes(inputs)), _whole(outputs)
        call = self._later.all_to_all_v(elements_of(_joined(inputs)), counts, elements_of(whole))
        return Begun([call], outputs, lambda: _deal(whole, outputs))

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Begun:
        call = self._later.send(elements_of(packed(*tensors)), peer, tag)
        return Begun([call], tensors)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Begun:
        own = packed(*tensors)
        call = self._later.receive(elements_of(own), peer, tag)
        return Begun([call], tensors, unpack([own], tensors))

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Begun:
        raise InvalidCall("backend hal receives from a rank that is named; pass src to recv")

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
        rows = torch.empty(self._size, self._size, dtype=torch.int64)
        self.all_gather_single(rows, torch.tensor(row)).settle()
        told: list[list[int]] = rows.tolist()
        return told


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


def _sizes(parts: Sequence[Tensor]) -> list[int]:
    return [count_of(part) for part in parts]


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Memory for all parts, one after the other."""
    return parts[0].new_empty(sum(part.numel() for part in parts))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _deal_all(wholes: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> None:
    for whole, each in zip(wholes, parts, strict=True):
        _deal(whole, each)


def _deal(whole: Tensor, parts: Sequence[Tensor]) -> None:
    """Give every part its elements."""
    start = 0
    for part in parts:
        part.detach().copy_(whole[start : start + part.numel()].view(part.shape))
        start += part.numel()
