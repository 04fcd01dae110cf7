"""Writes docs/contract.md, the device contract as a manual, from the docstrings of `hal.core`.

python -m hal_tools.contract_docs [PATH]
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from hal.core import description, dtypes, errors, spec, values
from hal.core.discovery import manifest
from hal.core.spec import MANDATORY_DEVICE, MANDATORY_PLUGIN, NOTICES, OPTIONAL

DEFAULT_PATH = Path("docs/contract.md")
_WIDENS = {
    description.Feature.PEER_COPY: "widens `copy`",
    description.Feature.GROUP_IPC: "widens `create_group`",
}
_VALUES = (("Description", description), ("Values", values), ("Errors", errors), ("Types", dtypes))


def render() -> str:
    """The manual's text."""
    return "\n\n".join(_pages()) + "\n"


def _pages() -> Iterator[str]:
    yield "# The device contract"
    yield "<!-- Written by `python -m hal_tools.contract_docs` from the docstrings of hal.core. -->"
    yield f"Contract version {description.CONTRACT_VERSION}."
    yield _doc(spec)
    yield "## The manifest"
    yield _doc(manifest)
    hooks = {hook.name: hook for hook in ast.walk(_tree(spec)) if isinstance(hook, ast.FunctionDef)}
    yield "## Hooks of a plugin"
    yield from (_hook(hooks[name]) for name in MANDATORY_PLUGIN)
    yield f"## Hooks of a device: the {len(MANDATORY_DEVICE)} mandatory ones"
    yield from (_hook(hooks[name]) for name in MANDATORY_DEVICE)
    yield "## Hooks of a device: the optional ones"
    # A table from each feature to the hooks that it stands for
    rows = ["| feature | hooks |", "| --- | --- |"]
    for feature in description.Feature:
        names = ", ".join(f"`{hook}`" for hook, needs in OPTIONAL.items() if needs is feature)
        rows.append(f"| `{feature.value}` | {names or _WIDENS[feature]} |")
    yield "\n".join(rows)
    yield from (_hook(hooks[name]) for name in OPTIONAL)
    yield "## Notices to wrappers"
    yield from (_hook(hooks[name]) for name in NOTICES)
    for title, module in _VALUES:
        yield f"## {title}"
        yield _doc(module)
        # The public classes and the assigned names that have a docstring, as the text has them
        tree = _tree(module)
        for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                head = f"### `{node.name}`" + (f" ({bases})" if bases else "")
                # The fields and constants; what Python calls itself is no part of the contract.
                members = (m for m in node.body if isinstance(m, ast.AnnAssign | ast.Assign))
                written = (ast.unparse(member) for member in members)
                lines = "\n".join(line for line in written if not line.startswith("__"))
                parts = [head, ast.get_docstring(node) or "", _code(lines) if lines else ""]
                yield "\n\n".join(part for part in parts if part)
            match node, after:
                case (
                    ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)),
                    ast.Expr(ast.Constant(str(text))),
                ):
                    yield f"### `{name}`\n\n{_code(ast.unparse(node))}\n\n{inspect.cleandoc(text)}"


def _hook(hook: ast.FunctionDef) -> str:
    parameters = [ast.unparse(arg) for arg in hook.args.args if arg.arg != "self"]
    assert hook.returns is not None, "every hook says what it returns"
    signature = f"{hook.name}({', '.join(parameters)}) -> {ast.unparse(hook.returns)}"
    return f"### `{hook.name}`\n\n{_code(signature)}\n\n{ast.get_docstring(hook)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _doc(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PATH
    path.write_text(render(), encoding="utf-8")
