"""Products by a matrix unit that four subgroups run together, and that reads its operands itself
from scratch memory: blocks of eight lines of 16 bytes, one after the other.

A lane says where operands begin, and how far it is from a block to the next along the summed axis
and along the other one. Sums are laid out as those of smaller units, with sixteen rows for each
subgroup.
"""

from __future__ import annotations

from hal.core.description import DeviceInfo, MatrixUnit
from hal.core.facts import dataclass
from hal.tile.node import Node
from stack.compiler.lower.simt.dialect import SimtDialect
from stack.compiler.lower.simt.group import ALIGNED, LANE, GroupText
from stack.compiler.lower.simt.layout import Layout
from stack.compiler.units import SUBGROUP, wide_unit_of_group_dot

_SUBGROUPS, _EDGE = 4, 8
_MOST_COLUMNS = 256


def fitting(n: Node, lanes: int, info: DeviceInfo, groups: SimtDialect) -> MatrixUnit | None:
    """The unit for a product whose rows are sixteen for each subgroup of a group."""
    unit = wide_unit_of_group_dot(n, info)
    fits = lanes % (_SUBGROUPS * SUBGROUP) == 0 and n.shape[0] == lanes // SUBGROUP * 16
    if unit is None or unit.call not in groups.wide or not fits or n.shape[1] > _MOST_COLUMNS:
        return None
    return unit


@dataclass(frozen=True, slots=True)
class Blocks:
    """An operand in blocks, which along the axis of lines lie side by side, and `below` elements
    from there to the next along the other axis. `turned`: that of lines is not the summed one."""

    name: str
    below: int
    turned: bool

    def begin(self, across: str, k: str) -> str:
        """Where the unit begins to read, at numbers of blocks."""
        line, other = (across, k) if self.turned else (k, across)
        return f"{self.name} + {other} * {self.below} + {line} * {_EDGE * _EDGE}"

    def steps(self, nbytes: int) -> tuple[int, int]:
        """The bytes from a block to the next along the summed axis, and along the other one."""
        along, other = _EDGE * _EDGE * nbytes, self.below * nbytes
        return (other, along) if self.turned else (along, other)


def below(x: Node, inner: int) -> int:
    """The elements from a row of blocks to the next: 16 bytes more than they have, so that these
    begin in other banks."""
    return _EDGE * x.shape[inner] + ALIGNED // x.dtype.nbytes


def nbytes(x: Node, inner: int) -> int:
    """The bytes of an operand in blocks."""
    whole = x.shape[1 - inner] // _EDGE * below(x, inner) * x.dtype.nbytes
    return -(-whole // ALIGNED) * ALIGNED


def place(outer: str, inner: str, below: int) -> str:
    """The number of an element."""
    block = f"({outer}) / {_EDGE} * {below} + ({inner}) / {_EDGE} * {_EDGE * _EDGE}"
    return f"{block} + ({outer}) % {_EDGE} * {_EDGE} + ({inner}) % {_EDGE}"


def staged(group: GroupText) -> None:
    """What a lane has copied is there for the unit, once all lanes have said so."""
    group.out.do(f"{group.out.functions.define(*group.groups.wide_staged)}();")


def add(group: GroupText, n: Node, total: str, layout: Layout, a: Blocks, b: Blocks) -> None:
    """Multiply: all steps are begun, and then awaited."""
    unit, out = group.mapping.wide, group.out
    assert unit is not None, "operands are in blocks for it"
    wide, width, depth = group.groups.wide[unit.call], n.shape[1], n.srcs[0].shape[1]
    apart = layout[1].registers
    name, text = wide.product(unit.call, width, apart, (a.turned, b.turned))
    begin, end = wide.around(width, apart)
    for function in ((wide.block, wide.block_text), (name, text), begin, end):
        out.functions.define(*function)
    out.do(f"{begin[0]}({total});")
    size = n.srcs[0].dtype.nbytes
    first = f"{LANE} / {_SUBGROUPS * SUBGROUP} * {unit.m // _EDGE}"
    for k in range(0, depth, unit.k):
        at, steps = str(k // _EDGE), (a.steps(size), b.steps(size))
        places = (a.begin(f"({first})", at), b.begin("0", at))
        given = (
            f"{wide.block}({where}, {along}, {other})"
            for where, (along, other) in zip(places, steps, strict=True)
        )
        out.do(f"{name}({total}, {', '.join(given)});")
    out.do(f"{end[0]}({total});")
