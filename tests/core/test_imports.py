"""No package reaches a higher one by a name in a string, which the import linter cannot see."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = "hal_plugin_cpu|hal_plugin_opencl|hal_plugin_sunway|hal_plugin_remote"
ABOVE = {
    "hal": f"stack|hal_conformance|hal_tools|{PLUGINS}",
    "stack": f"hal_conformance|hal_tools|{PLUGINS}",
    "hal_conformance": f"hal_tools|{PLUGINS}",
    "hal_tools": PLUGINS,
    "plugins/*/src": "stack|hal_conformance|hal_tools",
}
"""Where sources stand, and the packages that they may not import."""


def reached(text, above):
    """(line, string) of each string that names a module of the packages `above`, or imports one."""
    if not re.search(rf"\b({above})(\.|['\"])|\b(import|from|-m) ({above})\b", text):
        return  # most files: the others are worth a syntax tree
    nodes = list(ast.walk(ast.parse(text)))
    named = re.compile(rf"({above})\.[\w.]*(:\w+)?")
    loaded = re.compile(rf"\b(import|from|-m) ({above})\b")
    said = {
        node.value
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    imported = {
        argument
        for node in nodes
        if isinstance(node, ast.Call)
        and "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))
        for argument in node.args
    }
    for node in nodes:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or node in said:
            continue
        said_so = named.fullmatch(node.value) or loaded.search(node.value)
        if said_so or (node in imported and re.fullmatch(above, node.value)):
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", ABOVE)
def test_no_string_names_a_module_of_a_higher_package(folder):
    files = sorted(path for top in ROOT.glob(folder) for path in top.rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {string!r}"
        for path in files
        for line, string in reached(path.read_text(), ABOVE[folder])
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        'import_module("stack.tune.commands")',
        'importlib.import_module("stack")',
        'PLACES = {"training": "stack.framework:train"}',
        'run([python, "-c", "import sys; from stack.ir import Node"])',
        'module = f"stack.ops.{name}"',
    ],
)
def test_a_name_from_above_is_found(code):
    assert list(reached(code, ABOVE["hal"]))


@pytest.mark.parametrize(
    "code",
    ['MemorySpace("stack")', '"""What `stack.memory` keeps."""', 'text = "the stack. Then"'],
)
def test_a_word_is_no_import(code):
    assert not list(reached(code, ABOVE["hal"]))
