"""A torch process group whose collectives are those of the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend

from hal.core.errors import HalError
from hal.core.values import ReduceKind
from stack.bridge.torch.arrays import (
    array_of,
    count_of,
    elements_of,
    give,
    is_away,
    is_packed,
    packed,
    unpack,
)
from stack.bridge.torch.checks import (
    check_alike,
    check_coalesced,
    check_gathered,
    check_gathered_coalesced,
    check_list_size,
    check_pairs,
    check_root,
    check_root_tensor,
    check_single,
    check_some,
    check_splits,
)
from stack.bridge.torch.errors import check, raises_torch_errors, refuse
from stack.bridge.torch.meeting import meet
from stack.bridge.torch.monitored import MonitoredBarrier
from stack.bridge.torch.names import NAME
from stack.bridge.torch.sparse import all_reduce_sparse
from stack.bridge.torch.work import Begun
from stack.comm.engine.base import Work
from stack.comm.engine.codes import BitReduce, Reduce
from stack.comm.group import Group

Op = dist.ReduceOp.RedOpType
_REDUCES: dict[Any, Reduce] = {
    Op.SUM: ReduceKind.SUM,
    Op.PRODUCT: ReduceKind.PROD,
    Op.MIN: ReduceKind.MIN,
    Op.MAX: ReduceKind.MAX,
    Op.AVG: ReduceKind.AVG,
    Op.BAND: BitReduce.BAND,
    Op.BOR: BitReduce.BOR,
    Op.BXOR: BitReduce.BXOR,
}
_COMBINE: dict[Reduce, np.ufunc] = {
    ReduceKind.SUM: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MIN: np.minimum,
    ReduceKind.MAX: np.maximum,
    BitReduce.BAND: np.bitwise_and,
    BitReduce.BOR: np.bitwise_or,
    BitReduce.BXOR: np.bitwise_xor,
}


def create(place: Any) -> HalProcessGroup:
    """What torch calls on every rank of a new process group, with what it knows of that rank."""
    rank, size = place.group_rank, place.group_size
    try:
        group = meet(place.store, rank, size, place.timeout)
    except HalError as error:  # also a wrong call: no rank has made one
        raise dist.DistBackendError(str(error)) from error
    return HalProcessGroup(place.group_id, group, place.store)


class HalProcessGroup(dist.ProcessGroup):
    """All operations begin at once and run in the background, in the order of the calls; sends and
    receives run side by side. Tensors are of the host or of the device; those with gaps, and all of
    the device, go through copies of the host.

    Wrong calls are refused before they begin, by RuntimeError. What ends the group is raised as
    DistBackendError by the operations' `wait`.
    """

    def __init__(self, name: str, group: Group, store: dist.Store) -> None:
        """`store` is where the ranks have met: what all of them can read and write."""
        super().__init__(group.rank, group.size)
        self._name = name
        self._group = group
        self._later = group.later
        self._size = group.size
        self._owed = list[Begun]()
        """Collectives whose results lie in copies until they are settled."""
        own = dist.PrefixStore("monitored", store)
        self._monitored = MonitoredBarrier(own, group.rank, group.size)
        self.options = Backend.Options("hal", timedelta(seconds=group.deadline_s))
        """As torch's own backends have them."""

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
        return [torch.device("cpu"), torch.device(NAME)]

    def _get_backend(self, device: torch.device) -> HalProcessGroup:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """How long an operation of this rank may make no progress, from the next one on."""
        self._group.deadline_s = timeout.total_seconds()
        self.options._timeout = timeout

    _set_default_timeout = set_timeout

    @raises_torch_errors
    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None) -> Begun:
        """Every tensor gets what all tensors of all ranks are together."""
        tensors, how = _list(tensors), _reduce("allreduce", opts)
        check_some("allreduce", tensors)
        check_alike("allreduce", tensors)
        if tensors[0].layout is torch.sparse_coo:
            summed = how is ReduceKind.SUM
            check(summed, "allreduce", "unsupported reduction operation for sparse tensors")
            calls, give_sum = all_reduce_sparse(self._group, tensors)
            return self._begun(calls, tensors, give_sum, opts)
        own = packed(tensors[0])
        if len(tensors) > 1:
            own = own.clone()  # which may be in the list again
            # Combine further tensors of this process into the first one.
            _check_reducible("allreduce", own, how)
            averaged = how is ReduceKind.AVG
            check(
                not averaged, "allreduce", "there is no average over several tensors of a process"
            )
            total = array_of(own)
            for tensor in tensors[1:]:
                with np.errstate(all="ignore"):
                    _COMBINE[how](total, array_of(packed(tensor)), out=total)
        call = self._all_reduce(own, how)
        after = _copies_to(own, tensors)
        return self._begun([call], tensors, after, opts)

    @raises_torch_errors
    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Begun:
        """In one call, through a buffer: so a tensor may be in the list twice."""
        how = _reduce("allreduce_coalesced", opts)
        check_coalesced("allreduce_coalesced", tensors)
        whole = _joined(tensors)
        call = self._all_reduce(whole, how)
        give_all = lambda: _deal(whole, tensors)
        return self._begun([call], tensors, give_all, opts)

    @raises_torch_errors
    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Begun:
        how = _reduce("reduce", opts)
        check_root("reduce", opts.rootRank, self._size)
        check_single("reduce", tensors, "tensor list")
        check_root_tensor("reduce", opts.rootTensor, tensors)
        own = packed(*tensors)
        _check_reducible("reduce", own, how)
        call = self._later.reduce(array_of(own), opts.rootRank, how)
        return self._begun([call], tensors, unpack([own], tensors), opts)

    @raises_torch_errors
    def broadcast(
        self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, *, root: int = 0
    ) -> Begun:
        """Every tensor gets the root's tensor of number `rootTensor`."""
        tensors = _list(tensors)
        root, number = (root, 0) if opts is None else (opts.rootRank, opts.rootTensor)
        check_root("broadcast", root, self._size)
        check_root_tensor("broadcast", number, tensors)
        check_alike("broadcast", tensors)
        own = packed(tensors[number])
        call = self._later.broadcast(elements_of(own), root)
        after = _copies_to(own, tensors)
        return self._begun([call], tensors, after, opts)

    @raises_torch_errors
    def barrier(self, opts: Any = None) -> Begun:
        """What collectives that began before give is in its place then."""
        begun = self._begun([self._later.barrier()], [], None, opts)
        begun.behind = tuple(self._owed)
        return begun

    @raises_torch_errors
    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks, at most `timeout`, by default the group's. Raises RuntimeError that
        names the first rank, or with `wait_all_ranks` all ranks, that did not come."""
        timeout = self.options._timeout if timeout is None else timeout
        self._monitored.pass_through(timeout, wait_all_ranks)

    @raises_torch_errors
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return self.all_gather_single_coalesced([output], [input], opts)

    @raises_torch_errors
    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Begun:
        check_pairs("all_gather_single_coalesced", outputs, inputs)
        wholes = [packed(output) for output in outputs]
        calls = []
        for own, whole in zip(map(packed, inputs), wholes, strict=True):
            apart = own.clone() if _overlap(own, whole, self.rank()) else own
            calls.append(self._later.all_gather(elements_of(apart), elements_of(whole)))
        return self._begun(calls, outputs, unpack(wholes, outputs), opts)

    @raises_torch_errors
    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Begun:
        """Every list gets all tensors of all ranks."""
        check_gathered("allgather", outputs, inputs, self._size)
        whole = _whole(outputs[0])
        own = packed(inputs[0]) if len(inputs) == 1 else _joined(inputs)
        call = self._later.all_gather(elements_of(own), elements_of(whole))
        result = outputs if len(outputs) > 1 else outputs[0]
        after = lambda: _deal_all([whole] * len(outputs), outputs)
        return self._begun([call], result, after, opts)

    @raises_torch_errors
    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Begun:
        check_gathered_coalesced("allgather_coalesced", outputs, inputs, self._size)
        parts = [list(each) for each in zip(*outputs, strict=True)]
        wholes = [_whole(each) for each in parts]
        pairs = zip(map(packed, inputs), wholes, strict=True)
        calls = [self._later.all_gather(elements_of(i), elements_of(o)) for i, o in pairs]
        result = [x for each in parts for x in each]
        after = lambda: _deal_all(wholes, parts)
        return self._begun(calls, result, after, opts)

    @raises_torch_errors
    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> Begun:
        check_root("gather", opts.rootRank, self._size)
        check_single("gather", inputs, "input tensor list")
        own = elements_of(packed(*inputs))
        if self.rank() != opts.rootRank:
            check(not outputs, "gather", "requires empty output on non-root")
            call = self._later.gather(own, opts.rootRank)
            return self._begun([call], [], None, opts)
        check_single("gather", outputs, "output list")
        (parts,) = outputs
        check_list_size("gather", "output", parts, self._size)
        check_alike("gather", parts, inputs[0])
        whole = _whole(parts)
        call = self._later.gather(own, opts.rootRank, elements_of(whole))
        return self._begun([call], parts, lambda: _deal(whole, parts), opts)

    @raises_torch_errors
    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> Begun:
        check_root("scatter", opts.rootRank, self._size)
        check_single("scatter", outputs, "output tensor list")
        own, whole = packed(*outputs), None
        if self.rank() == opts.rootRank:
            check_single("scatter", inputs, "input list")
            (given,) = inputs
            check_list_size("scatter", "input", given, self._size)
            check_alike("scatter", given, outputs[0])
            whole = elements_of(_joined(given))
        else:
            check(not inputs, "scatter", "requires empty input on non-root")
        call = self._later.scatter(whole, opts.rootRank, elements_of(own))
        return self._begun([call], outputs, unpack([own], outputs), opts)

    @raises_torch_errors
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Begun:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @raises_torch_errors
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Begun:
        what = "reduce_scatter_single_coalesced"
        check_pairs(what, outputs, inputs)
        how, own = _reduce(what, opts), [packed(output) for output in outputs]
        pairs = zip(own, map(packed, inputs), strict=True)
        calls = [self._reduce_scatter(o, i, how) for o, i in pairs]
        return self._begun(calls, outputs, unpack(own, outputs), opts)

    @raises_torch_errors
    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Begun:
        """Ranks' parts may have different sizes."""
        check_single("reduce_scatter", outputs, "output tensor list")
        check_single("reduce_scatter", inputs, "input list")
        (parts,), how = inputs, _reduce("reduce_scatter", opts)
        check_list_size("reduce_scatter", "input", parts, self._size)
        check_coalesced("reduce_scatter", parts)
        check_alike("reduce_scatter", outputs, parts[self.rank()])
        own = packed(*outputs)
        call = self._reduce_scatter(own, _joined(parts), how, _sizes(parts))
        return self._begun([call], outputs, unpack([own], outputs), opts)

    @raises_torch_errors
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Begun:
        what = "alltoall_base"
        sent = check_splits(what, input, input_splits, self._size)
        taken = check_splits(what, output, output_splits, self._size)
        got, given = packed(output), elements_of(packed(input))
        if not output_splits and not input_splits:
            call = self._later.all_to_all(given, elements_of(got))
        else:
            row, column = _in_elements(sent, input), _in_elements(taken, output)
            counts = self._rows(row, column)
            call = self._later.all_to_all_v(given, counts, elements_of(got))
        return self._begun([call], [output], unpack([got], [output]), opts)

    @raises_torch_errors
    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Begun:
        for which, tensors in (("output", outputs), ("input", inputs)):
            check_list_size("alltoall", which, tensors, self._size)
            check_coalesced("alltoall", tensors)
        counts, whole = self._rows(_sizes(inputs), _sizes(outputs)), _whole(outputs)
        call = self._later.all_to_all_v(elements_of(_joined(inputs)), counts, elements_of(whole))
        after = lambda: _deal(whole, outputs)
        return self._begun([call], outputs, after, opts)

    @raises_torch_errors
    def send(self, tensors: Sequence[Tensor], peer: int, tag: int) -> Begun:
        check_single("send", tensors, "tensor list")
        call = self._later.send(elements_of(packed(*tensors)), peer, tag)
        return Begun([call], tensors)

    @raises_torch_errors
    def recv(self, tensors: Sequence[Tensor], peer: int, tag: int) -> Begun:
        return self._receive("recv", tensors, peer, tag)

    @raises_torch_errors
    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Begun:
        """From whichever rank sends first; `source_rank` of the operation tells which."""
        return self._receive("recvAnySource", tensors, None, tag)

    def abort(self) -> None:
        self._group.abort()

    def shutdown(self) -> None:
        self._group.close()

    def _receive(self, what: str, tensors: Sequence[Tensor], peer: int | None, tag: int) -> Begun:
        check_single(what, tensors, "tensor list")
        own = packed(*tensors)
        call = self._later.receive(elements_of(own), peer, tag)
        return Begun([call], tensors, unpack([own], tensors))

    def _begun(
        self,
        calls: Sequence[Work],
        result: Sequence[Any],
        after: Callable[[], None] | None,
        opts: Any,
    ) -> Begun:
        """A collective on its way."""
        given_s = -1.0 if opts is None else opts.timeout.total_seconds()
        timeout_s = given_s if given_s > 0 else None  # below 0 where the caller gives none
        begun = Begun(calls, result, after, timeout_s)
        self._owed = [owed for owed in self._owed if not owed.is_completed()]
        if after is not None:
            self._owed.append(begun)
        return begun

    def _all_reduce(self, tensor: Tensor, how: Reduce) -> Work:
        _check_reducible("allreduce", tensor, how)
        return self._later.all_reduce(array_of(tensor), how)

    def _reduce_scatter(
        self, output: Tensor, input: Tensor, how: Reduce, counts: list[int] | None = None
    ) -> Work:
        _check_reducible("reduce_scatter", input, how)
        if counts is None and _overlap(output, input, self.rank()):
            input = input.clone()
        return self._later.reduce_scatter(array_of(input), how, array_of(output), counts)

    def _rows(self, row: list[int], column: list[int]) -> list[list[int]]:
        """What every rank sends to every other, of which torch tells a rank its own row and column.
        Waits for all ranks."""
        told = self._group.all_gather(np.array([row, column], np.int64))
        for i, (sends, _) in enumerate(told.tolist()):
            for j, (_, takes) in enumerate(told.tolist()):
                agree = sends[j] == takes[i]
                why = f"rank {i} sends {sends[j]} elements to rank {j}, which takes {takes[i]}"
                check(agree, "alltoall", why)
        rows: list[list[int]] = told[:, 0].tolist()
        return rows


def _list(tensors: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _reduce(what: str, opts: Any) -> Reduce:
    """Refuses the reductions with factors."""
    if opts is None:
        return ReduceKind.SUM
    op = opts.reduceOp.op if isinstance(opts.reduceOp, dist.ReduceOp) else opts.reduceOp
    if op not in _REDUCES:
        names = ", ".join(kind.name for kind in _REDUCES)
        refuse(what, f"backend hal reduces by {names}, not by {op}")
    return _REDUCES[op]


def _check_reducible(what: str, tensor: Tensor, how: Reduce) -> None:
    sums = how in (ReduceKind.SUM, ReduceKind.AVG)
    check(sums or not tensor.is_complex(), what, f"complex numbers have no {how.value}")


def _overlap(part: Tensor, whole: Tensor, number: int) -> bool:
    """Whether a part shares memory with the whole, but is not its part of that number: then the one
    would be written while the other is still read."""
    at, start = part.data_ptr(), whole.data_ptr()
    apart = at >= start + whole.nbytes or start >= at + part.nbytes
    return not apart and at != start + number * part.nbytes


def _copies_to(own: Tensor, tensors: Sequence[Tensor]) -> Callable[[], None] | None:
    """What gives all tensors the value of one that `packed` made of one of them; None where there
    is nothing to do."""
    if len(tensors) == 1 and is_packed(tensors[0]):
        return None
    return lambda: _deal_all([own.view(-1)] * len(tensors), [[t] for t in tensors])


def _in_elements(rows: Sequence[int], tensor: Tensor) -> list[int]:
    """Numbers of a tensor's rows as numbers of its elements."""
    each = count_of(tensor) // max(tensor.shape[0], 1) if tensor.dim() else 1
    return [n * each for n in rows]


def _sizes(parts: Sequence[Tensor]) -> list[int]:
    return [count_of(part) for part in parts]


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Memory for all parts, one after the other."""
    return torch.empty(sum(part.numel() for part in parts), dtype=parts[0].dtype, device="cpu")


def _joined(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.detach().reshape(-1) for part in parts])
    return whole.cpu() if is_away(whole) else whole


def _deal_all(wholes: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> None:
    for whole, each in zip(wholes, parts, strict=True):
        _deal(whole, each)


def _deal(whole: Tensor, parts: Sequence[Tensor]) -> None:
    """Give every part its elements."""
    start = 0
    for part in parts:
        give(part, whole[start : start + part.numel()].view(part.shape))
        start += part.numel()
