"""The smallest kernels: a number added to every element of a buffer, and two vectors added."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hal.core.dtypes import DType
from hal.tile.build import Builder, add, program_id
from hal.tile.kernel import Kernel
from hal.tile.numeric import NUMPY
from hal_conformance import expect
from hal_conformance.rig import Rig

COUNT = 16
"""The elements of every buffer of these kernels."""

_LIKED = (DType.I32, DType.F32, DType.I64, DType.F64, DType.U32, DType.I16, DType.F16, DType.U8)


def number_type(rig: Rig) -> DType:
    """An element type of the device that holds small whole numbers."""
    found = next((d for d in _LIKED if d in rig.info.dtypes), None)
    if found is None:
        raise expect.Unfit("the device has no usual number type")
    return found


def numbers(rig: Rig) -> NDArray[Any]:
    """COUNT small whole numbers of `number_type`."""
    return rig.random.integers(0, 40, COUNT).astype(NUMPY[number_type(rig)])


def add_number(rig: Rig, number: int = 1, name: str = "add_number") -> Kernel:
    """x += number. An instance does the whole buffer; the grid is (1, 1, 1)."""
    b = Builder(name)
    x = b.buffer("x", number_type(rig), writes=True)
    b.store(x, 0, add(b.load(x, 0, (COUNT,), (1,)), number), (1,))
    return b.kernel()


def add_vectors(rig: Rig) -> Kernel:
    """z = x + y, an element by an instance."""
    b = Builder("add_vectors")
    dtype = number_type(rig)
    x, y = b.buffer("x", dtype), b.buffer("y", dtype)
    z = b.buffer("z", dtype, reads=False, writes=True)
    i = program_id()
    b.store(z, i, add(b.load(x, i), b.load(y, i)))
    return b.kernel()
