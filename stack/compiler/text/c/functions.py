"""C functions that a kernel's text defines before it: those that it calls, and no other."""

from __future__ import annotations

from string import Template

from hal.core.dtypes import DType
from stack.compiler.text.c.dialect import Dialect
from stack.compiler.text.c.types import register


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

    def has(self, name: str) -> bool:
        """Whether a function is defined."""
        return name in self._texts

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
