"""The text of one LLVM function while it is written: instructions, labels, declarations."""

from __future__ import annotations

from stack.compiler.text.llvm.types import suffix, vector


class LlvmWriter:
    """Appends instructions. `block` is the label of the basic block that is being written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.block = "entry"
        self._declared: dict[str, str] = {}
        self._fresh = 0

    def name(self) -> str:
        """A value name that nothing else has."""
        self._fresh += 1
        return f"%v{self._fresh}"

    def put(self, instruction: str) -> str:
        """Append an instruction; give the name of its result."""
        self._fresh += 1
        name = f"%v{self._fresh}"
        self.lines.append(f"{name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(instruction)

    def hole(self) -> int:
        """Leave a place for a line that is known later; see `fill`."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, place: int, line: str) -> None:
        """Write the line of a hole."""
        self.lines[place] = line

    def alloca(self, kind: str, count: int, align: int) -> str:
        """Stack memory of `count` elements, made once in the entry block."""
        self._fresh += 1
        name = f"%v{self._fresh}"
        self.allocas.append(f"{name} = alloca [{count} x {kind}], align {align}")
        return name

    # control flow

    def label(self, hint: str) -> str:
        """A block label that nothing else has."""
        self._fresh += 1
        return f"{hint}{self._fresh}"

    def begin(self, label: str) -> None:
        """Begin the block of that label; the block before must have ended."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.lines.append(f"br label %{label}")

    def branch(self, condition: str, then: str, orelse: str) -> None:
        self.lines.append(f"br i1 {condition}, label %{then}, label %{orelse}")

    # calls

    def call(self, function: str, result: str, *args: tuple[str, str], flags: str = "") -> str:
        """Call an external function or intrinsic with (type, value) arguments; `result` is its
        type, `flags` says what floats it need not keep, each with a space behind."""
        self.declare(function, result, tuple(kind for kind, _ in args))
        given = ", ".join(f"{kind} {value}" for kind, value in args)
        if result == "void":
            self.lines.append(f"call void @{function}({given})")
            return ""
        return self.put(f"call {flags}{result} @{function}({given})")

    def elementwise(
        self, function: str, scalar: str, width: int, *args: str, flags: str = ""
    ) -> str:
        """Call llvm.<function> whose arguments and result have one type."""
        kind = vector(scalar, width)
        return self.call(
            f"llvm.{function}.{suffix(scalar, width)}",
            kind,
            *((kind, a) for a in args),
            flags=flags,
        )

    def declare(self, function: str, result: str, kinds: tuple[str, ...]) -> None:
        """Declare an external function once."""
        if function not in self._declared:
            self._declared[function] = f"declare {result} @{function}({', '.join(kinds)})"

    def declarations(self) -> list[str]:
        return list(self._declared.values())
