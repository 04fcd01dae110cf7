"""C functions that a kernel's text defines before it: those that it calls, and no other."""

from __future__ import annotations

from string import Template

from hal.core.dtypes import DType
from hal.tile.numeric import bounds
from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.types import literal, register

_TEXTS = {
    "hal_f16_bits": """\
$function $u16 hal_f16_bits(float x) {
    $u32 all = $as_u32, b = all & 0x7FFFFFFFU;
    $u32 small = $as_small - 0x3F000000U;
    $u32 usual = (b + 0xC8000FFFU + ((b >> 13) & 1U)) >> 13;
    $u32 h = b < 0x38800000U ? small : b >= 0x47800000U ? 0x7C00U : usual;
    h = b > 0x7F800000U ? 0x7E00U | ((b >> 13) & 0x3FFU) : h;
    return ($u16)(h | ((all >> 16) & 0x8000U));
}
""",
    "hal_f16_value": """\
$function float hal_f16_value($u16 h) {
    $u32 m = h & 0x7FFFU;
    $u32 usual = (m << 13) + 0x38000000U, odd = (m << 13) | 0x7F800000U;
    $u32 b = m < 0x400U ? $as_tiny : m < 0x7C00U ? usual : odd;
    b |= ($u32)(h & 0x8000U) << 16;
    return $as_b;
}
""",
    "hal_bf16_bits": """\
$function $u16 hal_bf16_bits(float x) {
    $u32 b = $as_u32;
    $u32 up = b + 0x7FFFU + ((b >> 16) & 1U);
    return ($u16)(((b & 0x7FFFFFFFU) > 0x7F800000U ? b | 0x400000U : up) >> 16);
}
""",
    "hal_bf16_value": """\
$function float hal_bf16_value($u16 h) {
    $u32 b = ($u32)h << 16;
    return $as_b;
}
""",
}

_NARROW = {DType.F16: "hal_f16", DType.BF16: "hal_bf16"}


class Functions:
    """The functions that a text calls, each defined once, after those that it needs itself."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._texts: dict[str, str] = {}

    def text(self) -> str:
        """The definitions."""
        return "\n".join(self._texts.values())

    def define(self, name: str, text: str) -> str:
        """Add a function; give its name."""
        self._texts.setdefault(name, text)
        return name

    def fma(self, dtype: DType, a: str, b: str, c: str) -> str:
        """a * b + c of f32 or f64, rounded once."""
        name = f"HAL_FMA_{dtype.short.upper()}"
        return f"{self.define(name, self.dialect.fma[dtype])}({a}, {b}, {c})"

    def exact(self, name: str, dtype: DType, value: str) -> str:
        """A function of f32 or f64 with an exact result, by an instruction where there is one."""
        kind = register(self.dialect, dtype)
        named = {"name": name, "kind": kind, "builtin": name + "f" * (dtype is not DType.F64)}
        text = Template(self.dialect.exact).substitute(named)
        return f"{self.define(f'HAL_{name}_{kind}', text)}({value})"

    def load(self, kind: str, width: int, space: str, place: str) -> str:
        """The vector of `width` elements of a type at a pointer into a space."""
        return f"HAL_LOAD_{self._vector(kind, width)}({space}, {place})"

    def store(self, kind: str, width: int, space: str, place: str, value: str) -> str:
        """Puts a vector at a pointer into a space."""
        return f"HAL_STORE_{self._vector(kind, width)}({space}, {place}, {value})"

    def stream(self, kind: str, width: int, place: str, value: str) -> str:
        """Puts a vector at an aligned pointer into global memory, past the caches."""
        self._vector(kind, width)
        text = Template(self.dialect.streamed).substitute({"kind": kind, "width": width})
        return f"{self.define(f'HAL_STREAM_{kind}{width}', text)}({place}, {value})"

    def _vector(self, kind: str, width: int) -> str:
        nbytes = next(d.nbytes for d, text in self.dialect.registers.items() if text == kind)
        named = {"kind": kind, "width": width, "nbytes": nbytes}
        text = Template(self.dialect.vectors).substitute(named)
        return self.define(f"{kind}{width}", text)

    def bits(self, dtype: DType, value: str) -> str:
        """The bits of a narrow float, rounded from an f32 value."""
        return f"{self._narrow(_NARROW[dtype] + '_bits')}({value})"

    def value(self, dtype: DType, bits: str) -> str:
        """The f32 value of a narrow float's bits."""
        return f"{self._narrow(_NARROW[dtype] + '_value')}({bits})"

    def rounded(self, dtype: DType, value: str) -> str:
        """An f32 value rounded to a narrow float; of other types the value itself."""
        return self.value(dtype, self.bits(dtype, value)) if dtype in _NARROW else value

    def _narrow(self, name: str) -> str:
        return self.define(name, Template(_TEXTS[name]).substitute(self._words()))

    def _words(self) -> dict[str, str]:
        d = self.dialect
        u32 = d.words[32]
        return {
            "function": d.function,
            "u16": d.words[16],
            "u32": u32,
            "as_u32": d.as_type.format(u32, "x"),
            "as_small": d.as_type.format(u32, f"({d.as_type.format('float', 'b')} + 0.5f)"),
            "as_tiny": d.as_type.format(u32, "((float)m * 0x1p-24f)"),
            "as_b": d.as_type.format("float", "b"),
        }

    def saturated(self, source: DType, target: DType, value: str) -> str:
        """A float truncated to an integer type, its ends for what lies outside, 0 for NaN."""
        low, high = bounds(target)
        real, to = register(self.dialect, source), register(self.dialect, target)
        name = f"hal_{target.short}_of_{real}"
        f = "" if source is DType.F64 else "f"
        most, least = literal(target, high), literal(target, low)
        self.define(
            name,
            f"{self.dialect.function} {to} {name}({real} x) {{\n"
            f"    return x >= {float(high + 1).hex()}{f} ? {most}\n"
            f"         : x <= {float(low).hex()}{f} ? {least} : x == x ? ({to})x : 0;\n"
            "}\n",
        )
        return f"{name}({value})"
