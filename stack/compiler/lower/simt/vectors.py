"""Neighbours that a lane moves at once between its registers and memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hal.core.dtypes import DType
from stack.compiler.lower.simt.group import GroupText, guarded
from stack.compiler.lower.simt.layout import Layout, registers
from stack.compiler.text.c.nest import LoopNest
from stack.compiler.text.c.scope import PrivateArray, Scope
from stack.compiler.text.c.types import register

_LOAD = """\
{function} void {name}({kind} *to, int step, const {kind} *from) {{
    if ((ulong)from % {nbytes} == 0) {{
        union {{ {vector} whole; {kind} part[{width}]; }} x;
        x.whole = *(const {vector} *)from;
        {loop} to[i * step] = x.part[i];
    }} else {{
        {loop} to[i * step] = from[i];
    }}
}}
"""
_STORE = """\
{function} void {name}({kind} *to, int step, const {kind} *from) {{
    if ((ulong)to % {nbytes} == 0) {{
        union {{ {vector} whole; {kind} part[{width}]; }} x;
        {loop} x.part[i] = from[i * step];
        *({vector} *)to = x.whole;
    }} else {{
        {loop} to[i] = from[i * step];
    }}
}}
"""
"""Elements lie `step` apart in registers and side by side in memory, which may begin anywhere: a
vector reaches it where its address allows that."""


def width(group: GroupText, layout: Layout, axis: int, dtype: DType) -> int:
    """How many neighbours along an axis a lane moves at once: 1 where it has none."""
    s, vectors = layout[axis], group.groups.vectors
    most = min(s.own & -s.own, max(vectors, default=0) // dtype.nbytes)
    fits = most > 1 and s.size % most == 0 and most * dtype.nbytes in vectors
    return most if fits and dtype is not DType.BOOL else 1


def nest_of(group: GroupText, scope: Scope, layout: Layout, axis: int, dtype: DType) -> LoopNest:
    """Loops over the first elements of vectors."""
    many = width(group, layout, axis, dtype)
    return group.nest(scope, layout, [many if i == axis else 1 for i in range(len(layout))])


def load(
    group: GroupText,
    nest: LoopNest,
    tile: PrivateArray,
    layout: Layout,
    axis: int,
    dtype: DType,
    source: str,
    conditions: tuple[Sequence[str], str | None],
    other: str,
) -> None:
    """Read a vector: where `conditions` hold, and along the axis up to a limit; else `other`."""
    many, step = width(group, layout, axis, dtype), prod(registers(layout)[axis + 1 :])
    name, target = _function(group, _LOAD, dtype, many), f"&{tile.at(nest.position)}"
    here, (common, limit) = nest.position[axis].text, conditions
    whole = [*common, *([] if limit is None else [f"{here} + {many} <= {limit}"])]
    nest.do(guarded(whole, f"{name}({target}, {step}, &{source});"))
    if whole:
        single = " && ".join([*common, *([] if limit is None else [f"{here} + e < {limit}"])])
        loop = f"{group.groups.unrolled}for (int e = 0; e < {many}; ++e)"
        value = f"{single} ? (&{source})[e] : {other}"
        nest.do(f"else {{ {loop} ({target})[e * {step}] = {value}; }}")


def store(
    group: GroupText,
    nest: LoopNest,
    tile: PrivateArray,
    layout: Layout,
    axis: int,
    dtype: DType,
    target: str,
    conditions: tuple[Sequence[str], str | None],
) -> None:
    """Write a vector: where `conditions` hold, and along the axis up to a limit."""
    many, step = width(group, layout, axis, dtype), prod(registers(layout)[axis + 1 :])
    name, source = _function(group, _STORE, dtype, many), f"&{tile.at(nest.position)}"
    here, (common, limit) = nest.position[axis].text, conditions
    whole = [*common, *([] if limit is None else [f"{here} + {many} <= {limit}"])]
    nest.do(guarded(whole, f"{name}(&{target}, {step}, {source});"))
    if limit is not None:
        loop = f"{group.groups.unrolled}for (int e = 0; e < {many}; ++e)"
        line = f"(&{target})[e] = ({source})[e * {step}];"
        single = guarded([*common, f"{here} + e < {limit}"], line)
        nest.do(f"else {{ {loop} {single} }}")


def _function(group: GroupText, text: str, dtype: DType, width: int) -> str:
    out, nbytes = group.out, width * dtype.nbytes
    kind = register(out.dialect, dtype)
    name = f"hal_{'load' if text is _LOAD else 'store'}_{kind}{width}"
    loop = f"{group.groups.unrolled}for (int i = 0; i < {width}; ++i)"
    facts = {"name": name, "kind": kind, "nbytes": nbytes, "width": width, "loop": loop}
    vector, function = group.groups.vectors[nbytes], out.dialect.function
    out.functions.define(name, text.format(vector=vector, function=function, **facts))
    return name
