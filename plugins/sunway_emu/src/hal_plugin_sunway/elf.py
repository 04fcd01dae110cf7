"""What occupies a program's LDM: the thread-local symbols of an ELF file (System V gABI)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SYMTAB, _TLS_SYMBOL = 2, 6
_SYMBOL_NBYTES = 24


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in LDM: `offset` and `nbytes` of it."""

    name: str
    offset: int
    nbytes: int

    def __str__(self) -> str:
        return f"  {self.nbytes:7d} bytes at {self.offset:6d}: {self.name}"


def ldm_variables(path: Path) -> tuple[Variable, ...]:
    """The variables of a 64-bit little-endian shared object, largest first."""
    data = path.read_bytes()
    found: set[Variable] = set()
    for table in (table for table in _sections(data) if table[1] == _SYMTAB):
        for at in range(table[4], table[4] + table[5], _SYMBOL_NBYTES):
            label, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, at)
            if info & 0xF == _TLS_SYMBOL and size and section:
                found.add(Variable(_name(data, table, label), value, size))
    return tuple(sorted(found, key=lambda v: (-v.nbytes, v.offset)))


def ldm_map(path: Path, shown: int = 12) -> str:
    """The largest variables, a line each."""
    variables = ldm_variables(path)
    lines = [str(v) for v in variables[:shown]]
    if rest := variables[shown:]:
        lines.append(f"  {sum(v.nbytes for v in rest):7d} bytes: {len(rest)} more")
    return "\n".join(lines)


def string(path: Path, name: str) -> str | None:
    """The text that a constant array of characters holds; None where there is no such object."""
    data = path.read_bytes()
    for table in _sections(data):
        if table[1] == _SYMTAB:
            for at in range(table[4], table[4] + table[5], _SYMBOL_NBYTES):
                label, _, _, section, value, size = struct.unpack_from("<IBBHQQ", data, at)
                if section and size and _name(data, table, label) == name:
                    home = _sections(data)[section]
                    start = home[4] + value - home[3]
                    return data[start : start + size].split(b"\0", 1)[0].decode(errors="replace")
    return None


def _name(data: bytes, table: tuple[int, ...], at: int) -> str:
    names = _sections(data)[table[6]][4]
    return data[names + at : data.index(b"\0", names + at)].decode(errors="replace")


def _sections(data: bytes) -> list[tuple[int, ...]]:
    """The section headers, as the fields of Elf64_Shdr."""
    start = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
