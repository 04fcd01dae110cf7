"""Which matrix units products are made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.dtypes import DType
from hal.tile.build import arange, binary, broadcast, reshape, transpose, where
from hal.tile.node import Node

PAYS = 1.25
"""How many times the rate of multiply-adds in the sums' type a unit must have: where it has less,
operands are converted and multiplied in that type, at no cost of denormals."""


OF_A_PRODUCT = 3
"""Tile registers that a product takes: its sums and both operands."""

SUBGROUP = 32
"""The lanes that run a unit of groups together."""


PAIRS = MatrixUnit(1, 1, 2, DType.I16, DType.I32, together=2)
"""Neighbouring products of 16-bit integers, each pair with its sum, for one vector register: no
instruction is named, since compilers make the processor's own of that sum (`vpmaddwd`, `vpdpwssd`),
which multiplies twice as many as one of 32 bits."""


UNSIGNED = {DType.I8: DType.U8}
"""Integers that units multiply, and those of as many bits that have no sign."""


def units(info: DeviceInfo) -> tuple[MatrixUnit, ...]:
    """The units that work on vector or tile registers, can be called, and pay by their rate or have
    none that is known. Their rates, which vary from one measurement to the next, are left out."""
    return tuple(
        replace(u, rate=0.0)
        for u in info.matrix_units
        if _is_whole(u) and u.call and _pays(u, info)
    )


def _is_whole(u: MatrixUnit) -> bool:
    """Whether it works on vector registers, or on tile registers that hold a product."""
    return u.registers >= OF_A_PRODUCT if u.register else u.m == 1 and u.together == u.k


def _pays(u: MatrixUnit, info: DeviceInfo) -> bool:
    usual = info.dtypes.get(u.accumulate, 0.0)
    return not u.rate or not usual or u.rate >= PAYS * usual


def units_of(
    left: DType, right: DType, accumulate: DType, info: DeviceInfo
) -> tuple[MatrixUnit, ...]:
    """The units for a product of these types, the widest first; for integers that 16 bits hold,
    pairs come last. Where the left operand has a sign, one of vector registers that wants none will
    do (`MatmulShape.moved`)."""
    types = left, right, accumulate
    found = [u for u in units(info) if (u.inputs, u.right_inputs, u.accumulate) == types]
    unsigned = UNSIGNED.get(left), right, accumulate
    found += [
        u
        for u in units(info)
        if not u.register and (u.inputs, u.right_inputs, u.accumulate) == unsigned
    ]
    # whether operands of pairs hold all numbers of these types
    pairs = accumulate is PAIRS.accumulate and all(
        d is PAIRS.inputs or (d.is_int and d.bits < PAIRS.inputs.bits) for d in types[:2]
    )
    found.sort(key=lambda u: u.m * u.n * u.k, reverse=True)
    return (*found, *((PAIRS,) if pairs else ()))


def unit_of_dot(n: Node, lanes: int, info: DeviceInfo) -> MatrixUnit | None:
    """The unit that computes a `dot` where a vector register holds so many sums: one of tile
    registers, if both operands are loaded as it reads them, or one whose sums are a register, which
    the columns and the depth fill."""
    a, b, _ = n.srcs
    types = a.dtype, b.dtype, n.dtype
    for u in units(info):
        if u.register:
            fits = n.shape[0] % u.m == n.shape[1] % u.n == 0 and a.shape[1] == u.k
            fits = fits and a.op == "var" and in_groups(b, u.together) is not None
        else:
            fits = u.n == lanes and n.shape[1] % u.n == 0 and a.shape[1] % u.k == 0
        if fits and (u.inputs, u.right_inputs, u.accumulate) == types:
            return u
    pairs = (PAIRS.inputs, PAIRS.inputs, PAIRS.accumulate) == types
    if pairs and lanes > 1 and n.shape[1] % lanes == 0 and a.shape[1] % PAIRS.k == 0:
        return replace(PAIRS, n=lanes)
    return None


def into_groups(operand: Node, together: int) -> Node:
    """An operand [k, n] as [k / together, n * together], neighbours along k side by side."""
    if together == 1:
        return operand
    k, n = operand.shape
    apart = reshape(operand, (k // together, together, n))
    return reshape(transpose(apart, (0, 2, 1)), (k // together, n * together))


def grouped(n: Node) -> tuple[Node, int] | None:
    """The operand that `into_groups` made a node of, and how many neighbours lie side by side; None
    where it was made otherwise."""
    if n.op != "reshape" or n.srcs[0].op != "transpose":
        return None
    (turned,) = n.srcs[0].srcs
    found = turned.srcs[0] if turned.op == "reshape" and len(turned.shape) == 3 else None
    if found is None or len(found.shape) != 2:
        return None
    together = turned.shape[1]
    return (found, together) if into_groups(found, together) is n else None


def stacked(rows: Sequence[Node]) -> Node:
    """Tiles [1, n] one above the other."""
    shape, number = (len(rows), *rows[0].shape[1:]), reshape(arange(len(rows)), (len(rows), 1))
    below = broadcast(rows[-1], shape)
    for i in reversed(range(len(rows) - 1)):
        here = broadcast(binary("eq", number, i), shape)
        below = where(here, broadcast(rows[i], shape), below)
    return below


def out_of_groups(groups: Node, together: int) -> Node:
    """The operand that `into_groups` made so."""
    height, width = groups.shape
    apart = reshape(groups, (height, width // together, together))
    return reshape(transpose(apart, (0, 2, 1)), (height * together, width // together))


def in_groups(n: Node, together: int) -> Node | None:
    """The variable that `out_of_groups` made an operand of; None where it was made otherwise."""
    found = n
    for op in ("reshape", "transpose", "reshape"):
        if found.op != op:
            return None
        (found,) = found.srcs
    fits = found.op == "var" and len(found.shape) == 2 and found.shape[1] % together == 0
    return found if fits and out_of_groups(found, together) is n else None


def unit_of_groups(
    left: DType, right: DType, accumulate: DType, info: DeviceInfo
) -> MatrixUnit | None:
    """The unit that a subgroup of lanes runs together on operands of these types; None where there
    is none or multiply-adds are as fast."""
    return _of_subgroups((left, right, accumulate), info, wide=False)


def units_of_groups(
    left: DType, right: DType, accumulate: DType, info: DeviceInfo
) -> tuple[MatrixUnit, ...]:
    """That one, if there is one."""
    found = unit_of_groups(left, right, accumulate, info)
    return () if found is None else (found,)


_SUBGROUP_ROWS = 16
"""The rows of a unit that a single subgroup runs; with more it is one of several subgroups."""


def _of_subgroups(
    types: tuple[DType, DType, DType], info: DeviceInfo, *, wide: bool
) -> MatrixUnit | None:
    for u in info.matrix_units:
        fits = u.m > 1 and (u.m > _SUBGROUP_ROWS) == wide and u.call
        if fits and (u.inputs, u.right_inputs, u.accumulate) == types:
            return u if _pays(u, info) else None
    return None


def unit_of_group_dot(n: Node, info: DeviceInfo) -> MatrixUnit | None:
    """The unit of groups that computes a `dot`: one by whose shape the tiles divide."""
    return _dividing(n, unit_of_groups(*_types(n), info))


def wide_unit_of_group_dot(n: Node, info: DeviceInfo) -> MatrixUnit | None:
    """The same, of those that several subgroups run together."""
    return _dividing(n, _of_subgroups(_types(n), info, wide=True))


def _types(n: Node) -> tuple[DType, DType, DType]:
    a, b, _ = n.srcs
    return a.dtype, b.dtype, n.dtype


def _dividing(n: Node, u: MatrixUnit | None) -> MatrixUnit | None:
    if u is None or n.shape[0] % u.m or n.shape[1] % u.n or n.srcs[0].shape[1] % u.k:
        return None
    return u
