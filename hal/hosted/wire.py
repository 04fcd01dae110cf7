"""What of a collective travels to other processes: the call as words, and bytes as memory whose
size is sealed, so that nobody can take it from under who reads it."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

from hal.core.dtypes import DType
from hal.core.values import Collective, CollectiveKind, ReduceKind


def words_of(call: Collective) -> dict[str, Any]:
    """A call as values of JSON."""
    return {
        "kind": call.kind.value,
        "dtype": call.dtype.value,
        "count": call.count,
        "reduce": call.reduce.value,
        "root": call.root,
        "counts": call.counts,
        "parts": call.parts,
        "name": call.name,
    }


def call_of(words: dict[str, Any]) -> Collective:
    """The call that another process has put into words."""
    return Collective(
        CollectiveKind(words["kind"]),
        DType(words["dtype"]),
        words["count"],
        ReduceKind(words["reduce"]),
        words["root"],
        tuple(map(tuple, words["counts"])),
        tuple(words["parts"]),
        words["name"],
    )


def packed(data: bytes) -> int:
    """A descriptor for memory with these bytes."""
    descriptor = os.memfd_create("hal-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unpacked(descriptor: int, nbytes: int) -> memoryview:
    """The bytes of a descriptor from another process, which this closes. Raises OSError for memory
    that is smaller, or may become so."""
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if not sealed or os.fstat(descriptor).st_size < nbytes:
            raise OSError(f"what came for {nbytes} bytes is no sealed memory of that size")
        if not nbytes:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
