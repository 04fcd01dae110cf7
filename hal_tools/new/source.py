"""The reference device's files under another name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hal.reference

_FOLDER = Path(hal.reference.__file__).parent
_NUMBERS = '''"""What a device says about itself.

Every number and every word below is still the copied device's. Put your chip's in their place: the
suite measures what is declared, and the compiler cuts kernels by `Limits` (docs/formats.md of HAL
says which of them it reads). What is not known is 0.
"""'''
_REWRITTEN = "__init__.py"
"""Its text is about the reference device; a new plugin has its own."""


def renamed_sources(name: str) -> Iterator[tuple[str, str]]:
    """Each file of the device as a plugin `name`: file name and text."""
    for path in sorted([*_FOLDER.glob("*.py"), *_FOLDER.glob("*.toml")]):
        if path.name == _REWRITTEN:
            continue
        text = _renamed(path.read_text(encoding="utf-8"), name)
        yield path.name, _with_own_imports_last(text, f"hal_plugin_{name}")


def _renamed(text: str, name: str) -> str:
    words = {
        "hal.reference": f"hal_plugin_{name}",
        '"reference"': f'"{name}"',
        "ReferenceMachine": f"{name.capitalize()}Machine",
        "HAL_REFERENCE": f"HAL_{name.upper()}",
        "hal-reference": f"hal-{name}",
        # A driver keeps its own order; that of the definition holds work back on purpose.
        "AdversarialOrder(seed)": "Order()",
        "AdversarialOrder": "Order",
        "The definition of the contract: interprets hal-tile/1, slowly": (
            f"{name} accelerators; still the device that was copied"
        ),
        '"""What a device says about itself."""': _NUMBERS,
    }
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def _with_own_imports_last(text: str, package: str) -> str:
    """By name `hal_plugin_x` comes after all of `hal`; linters hold imports to that order."""
    if f"from {package}" not in text:
        return text
    lines = text.splitlines(keepends=True)
    imports = [n for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom)]
    own = [n for n in imports if isinstance(n, ast.ImportFrom) and _is_in(n.module, package)]
    moved = "".join("".join(lines[n.lineno - 1 : n.end_lineno]) for n in own)
    taken = {i for n in own for i in range(n.lineno - 1, n.end_lineno or n.lineno)}
    last = max(n.end_lineno or n.lineno for n in imports)
    kept = "".join(line for i, line in enumerate(lines[:last]) if i not in taken)
    return f"{kept}{moved}{''.join(lines[last:])}"


def _is_in(module: str | None, package: str) -> bool:
    return module is not None and module.partition(".")[0] == package
