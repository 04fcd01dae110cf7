"""The sum of sparse tensors of all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from stack.bridge.torch.arrays import array_of
from stack.bridge.torch.errors import refuse
from stack.comm.engine.base import Work
from stack.comm.group import Group


def all_reduce_sparse(
    group: Group, tensors: Sequence[Tensor]
) -> tuple[list[Work], Callable[[], None]]:
    """Calls that gather what all ranks' tensors in coordinate format have, and what then gives each
    of these tensors the sum. How many elements each rank has is asked here, which waits for all
    ranks. Raises RuntimeError where the ranks' tensors have different shapes."""
    with torch.no_grad():
        own = reduce(add, tensors)
        own = own.coalesce()
    # How many elements each rank has.
    kind = zlib.crc32(repr((own.shape, own.dtype, own.sparse_dim())).encode())
    every = group.all_gather(np.array([own._nnz(), kind], np.int64))
    for rank, (_, other) in enumerate(every.tolist()):
        if other != kind:
            told = f"{list(own.shape)} of {own.dtype} with {own.sparse_dim()} sparse dimensions"
            refuse("allreduce", f"rank {rank} has another sparse tensor than this rank's {told}")
    counts = [int(n) for n, _ in every.tolist()]
    places = own.indices().t().contiguous()
    values = own.values().contiguous()
    calls, wholes = list[Work](), list[Tensor]()
    for part in (places, values):
        each = int(np.prod(part.shape[1:]))
        whole = part.new_empty((sum(counts), *part.shape[1:]))
        sizes = [n * each * (2 if part.is_complex() else 1) for n in counts]
        calls.append(group.later.all_gather(array_of(part), array_of(whole), sizes))
        wholes.append(whole)

    def give() -> None:
        total = torch.sparse_coo_tensor(
            wholes[0].t(), wholes[1], own.shape, check_invariants=True
        ).coalesce()
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(total)

    return calls, give
