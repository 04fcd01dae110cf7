"""Which of NCCL's functions stand for a collective: carried out in numpy as its manual says what
they do, they give what the contract says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind
from hal.hosted.ccl import _REDUCTIONS, _TYPES, lies_well, orders
from hal.hosted.machine import Part
from hal.tile.numeric import NUMPY
from hal_conformance.collectives import expected, source_count, wanted_count

Kind, Array = CollectiveKind, NDArray[Any]
DTYPE_OF = {number: NUMPY[dtype] for dtype, number in _TYPES.items()}
FOLD = {
    _REDUCTIONS[ReduceKind.SUM]: np.add, _REDUCTIONS[ReduceKind.PROD]: np.multiply,
    _REDUCTIONS[ReduceKind.MAX]: np.fmax, _REDUCTIONS[ReduceKind.MIN]: np.fmin,
}  # fmt: skip
"""In the elements' own type, one rank after the other, and NaN is lost."""
MOVES = [
    k for k in Kind if k not in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER, Kind.BARRIER)
]


class Memory:
    """A rank's memory: the source, then the destination."""

    def __init__(self, source: Array, wanted: int) -> None:
        self.dst = source.nbytes + 8
        self.bytes = np.full(self.dst + wanted, 0xC5, np.uint8)
        self.bytes[: source.nbytes] = source.view(np.uint8)

    def at(self, address: int, count: int, dtype: int) -> Array:
        width = DTYPE_OF[dtype].itemsize
        return self.bytes[address : address + count * width].view(DTYPE_OF[dtype])


def carried_out(
    calls: Sequence[Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]], memory: list[Memory]
) -> None:
    """What the ranks call together, by the manual of NCCL."""
    ranks = range(len(memory))
    if calls[0] and calls[0][0][0] not in ("ncclSend", "ncclRecv"):
        for (call,) in calls:
            assert (call[0], call[2]) == (calls[0][0][0], calls[0][0][2]), "all ranks call the same"
        name, _, (count, dtype, *more) = calls[0][0]
        scattered, gathers = name == "ncclReduceScatter", name == "ncclAllGather"
        sizes = count * len(memory) if scattered else count
        sources = [memory[r].at(calls[r][0][1][0], sizes, dtype).copy() for r in ranks]
        for rank in ranks:
            if name == "ncclReduce" and rank != more[1]:
                continue
            if name == "ncclBroadcast":
                result = sources[more[0]]
            elif gathers:
                result = np.concatenate(sources)
            else:
                result = sources[0]
                for source in sources[1:]:
                    result = FOLD[more[0]](result, source).astype(source.dtype)
                if scattered:
                    result = result[rank * count : (rank + 1) * count]
            memory[rank].at(calls[rank][0][1][1], len(result), dtype)[:] = result
        return
    sent: dict[tuple[int, int], list[Array]] = {}
    for rank in ranks:
        for name, (at,), (count, dtype, peer) in calls[rank]:
            if name == "ncclSend":
                sent.setdefault((rank, peer), []).append(memory[rank].at(at, count, dtype).copy())
    for rank in ranks:
        for name, (at,), (count, dtype, peer) in calls[rank]:
            if name == "ncclRecv":
                memory[rank].at(at, count, dtype)[:] = sent[peer, rank].pop(0)
    assert not any(sent.values()), "each message is received"


def results(call: Collective, sources: Sequence[Array]) -> list[Array] | None:
    size, width = len(sources), call.dtype.nbytes
    wanted = [wanted_count(call, rank, size) for rank in range(size)]
    memory = [Memory(s, n * width) for s, n in zip(sources, wanted, strict=True)]
    calls = [orders(call, rank, size, memory[rank].dst, 0) for rank in range(size)]
    if None in calls:
        assert calls == [None] * size, "all ranks go the same way"
        return None
    carried_out([c for c in calls if c is not None], memory)
    return [
        m.bytes[m.dst : m.dst + n * width].view(NUMPY[call.dtype])
        for m, n in zip(memory, wanted, strict=True)
    ]


def drawn(dtype: DType, count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return rng.uniform(-2, 2, count).astype(NUMPY[dtype])
    return rng.integers(0, 2 if dtype is DType.BOOL else 256, count).astype(NUMPY[dtype])


def calls_of(kind: Kind, dtype: DType, size: int, count: int) -> list[Collective]:
    if kind is Kind.ALL_TO_ALL_V:
        rows = np.random.default_rng(count).integers(0, count + 1, (size, size))
        return [Collective(kind, dtype, 0, counts=tuple(tuple(map(int, row)) for row in rows))]
    roots = range(size) if kind in (Kind.BROADCAST, Kind.GATHER, Kind.SCATTER) else (0,)
    return [Collective(kind, dtype, count, root=root) for root in roots]


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_bytes_go_where_the_contract_wants_them(kind: Kind, size: int) -> None:
    for dtype in DType:
        for call in (c for n in (0, 1, 13) for c in calls_of(kind, dtype, size, n)):
            counts = [source_count(call, rank, size) for rank in range(size)]
            sources = [drawn(dtype, n, rank) for rank, n in enumerate(counts)]
            found = results(call, sources)
            assert found is not None
            for rank, (got, want) in enumerate(zip(found, expected(call, sources), strict=True)):
                assert got.tobytes() == want.tobytes(), (call, rank)


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER])
@pytest.mark.parametrize("reduce", ReduceKind)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_is_reduced_is_as_the_contract_says_or_left_to_the_host(
    kind: Kind, reduce: ReduceKind, size: int
) -> None:
    taken = set()
    for dtype in DType:
        for root in range(size if kind is Kind.REDUCE else 1):
            call = Collective(kind, dtype, 7, reduce, root)
            if dtype is DType.BOOL and reduce is ReduceKind.AVG:
                continue
            count = source_count(call, 0, size)
            sources = [drawn(dtype, count, rank) for rank in range(size)]
            if dtype.is_float:
                sources[-1][0] = np.nan
                step = 2.0**-dtype.mantissa  # of which halves are lost one by one
                for rank, value in enumerate((1.0, step / 2, step / 2)[:size]):
                    sources[rank][1] = value
            if (found := results(call, sources)) is None:
                continue
            taken.add(dtype)
            exact = not dtype.is_float or dtype.is_narrow
            for got, want in zip(found, expected(call, sources), strict=True):
                if exact:
                    assert got.tobytes() == want.tobytes(), call
                else:
                    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    whole = {DType.I8, DType.U8, DType.I32, DType.U32, DType.I64, DType.U64}
    floats = {DType.F32, DType.F64} | ({DType.F16, DType.BF16} if size < 3 else set())
    bounds = reduce in (ReduceKind.MIN, ReduceKind.MAX)
    assert taken == (set() if reduce is ReduceKind.AVG else whole if bounds else whole | floats)


def test_nothing_is_called_for_a_barrier() -> None:
    assert orders(Collective(Kind.BARRIER, DType.U8, 0), 0, 2, 0, 0) is None


def test_memory_may_overlap_where_nccl_works_in_place() -> None:
    one, other = object(), object()

    def lies(kind: Kind, rank: int, dst: int, src: int, *sizes: int, memory: object = one) -> bool:
        call = Collective(kind, DType.F32, 4)
        return lies_well(call, rank, Part(one, dst, sizes[0]), Part(memory, src, sizes[-1]))

    assert lies(Kind.ALL_REDUCE, 1, 64, 64, 16)
    assert lies(Kind.ALL_REDUCE, 1, 64, 68, 16, memory=other)
    assert lies(Kind.ALL_REDUCE, 1, 64, 80, 16)
    assert not lies(Kind.ALL_REDUCE, 1, 64, 68, 16)
    assert lies(Kind.ALL_GATHER, 1, 0, 16, 32, 16)
    assert not lies(Kind.ALL_GATHER, 0, 0, 16, 32, 16)
    assert lies(Kind.REDUCE_SCATTER, 1, 16, 0, 16, 32)
    assert not lies(Kind.REDUCE_SCATTER, 1, 0, 0, 16, 32)
    assert not lies(Kind.ALL_TO_ALL, 0, 0, 0, 32)
    assert not lies(Kind.SCATTER, 0, 0, 0, 16, 32)
