"""Atomic updates as C functions: built-in ones of whole integers, else compare and exchange of the
word that holds the element."""

from __future__ import annotations

from string import Template

from hal.core.dtypes import DType
from hal.tile.kernel import GLOBAL, Memory
from hal.tile.ops import ATOMICS
from stack.compiler.text.c import arith, casts
from stack.compiler.text.c.types import register
from stack.compiler.text.c.writer import CWriter

_BUILTIN = {"add": "add", "min": "min", "max": "max", "exchange": "xchg"}

_WHOLE = Template("""\
$function void $name(volatile $space $element *p, $value x) {
    $atomic((volatile $space $kind *)p, $bits);
}
""")

_SWAPPED = Template("""\
$function void $name(volatile $space $element *p, $value x) {
    volatile $space $word *w = (volatile $space $word *)p;
    $word old = *w;
    for (;;) {
        const $value a = $current;
        const $value b = $next;
        const $word seen = $swap(w, old, $bits);
        if (seen == old) return;
        old = seen;
    }
}
""")

_PART = Template("""\
$function void $name(volatile $space $element *p, $value x) {
    const $long address = ($long)p;
    const $word shift = ($word)(address & 3U) * 8U;
    volatile $space $word *w = (volatile $space $word *)(address - (address & 3U));
    $word old = *w;
    for (;;) {
        const $part raw = ($part)(old >> shift);
        const $value a = $current;
        const $value b = $next;
        const $word new = (old & ~($mask << shift)) | (($word)($part)($bits) << shift);
        const $word seen = $swap(w, old, new);
        if (seen == old) return;
        old = seen;
    }
}
""")


def function(out: CWriter, kind: str, target: Memory) -> str:
    """The name of a function (pointer, value) that updates an element of a memory."""
    place = "global" if target.space == GLOBAL else "scratch"
    name = f"hal_atomic_{kind}_{target.dtype.short}_{place}"
    d, dtype = out.dialect, target.dtype
    bits = max(dtype.bits, 32)
    op = ATOMICS[kind]
    common = {
        "function": d.function,
        "name": name,
        "space": d.in_global if target.space == GLOBAL else d.in_scratch,
        "element": register(d, dtype),
        "value": register(d, dtype),
        "word": d.words[bits],
        "long": d.words[64],
        "swap": d.atomic[bits].format("cmpxchg"),
        "next": ("x" if op is None else arith.combined(out, op, dtype, "a", "x")),
    }
    if dtype.bits < 32:
        part = out.dialect.words[dtype.bits]
        current = "raw != 0" if dtype is DType.BOOL else casts.from_bits(out, "raw", dtype)
        raw = "b" if dtype is DType.BOOL else casts.to_bits(out, "b", dtype)
        mask = f"0x{(1 << dtype.bits) - 1:X}U"
        text = _PART.substitute(common, part=part, current=current, bits=raw, mask=mask)
    elif dtype.is_int or kind == "exchange":
        builtin = d.atomic[bits].format(_BUILTIN[kind])
        whole = register(d, dtype) if dtype.is_int else common["word"]
        raw = "x" if dtype.is_int else casts.to_bits(out, "x", dtype)
        text = _WHOLE.substitute(common, atomic=builtin, kind=whole, bits=raw)
    else:
        current, raw = casts.from_bits(out, "old", dtype), casts.to_bits(out, "b", dtype)
        text = _SWAPPED.substitute(common, current=current, bits=raw)
    return out.functions.define(name, text)
