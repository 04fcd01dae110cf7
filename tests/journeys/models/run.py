"""Small scripts, one for each kind of model and habit, run on PyTorch and on the framework: the
same text but for the package that is imported, and the same losses at every step.

    python -m tests.journeys.models.run [--device cpu:0] [NAME ...]

prints for each script how far the losses come apart, or why it does not run.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import stack.framework as ht

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "begin")
OURS = "stack.framework"
EXACT, ELSEWHERE = 5e-5, 2e-3
"""How far a loss may be from PyTorch's, relative to it, on cpu:0 and on other devices."""
SMALL = 1e-2
"""Losses nearer to 0 are compared as if they were this large."""


class _Imports(ast.NodeTransformer):
    """The package that is imported, in the place of torch."""

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for name in node.names:
            if name.name.split(".")[0] == "torch":
                name.asname = name.asname or "torch"
                name.name = OURS + name.name.removeprefix("torch")
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if (node.module or "").split(".")[0] == "torch":
            node.module = OURS + (node.module or "").removeprefix("torch")
        return node


def losses_of(name: str, device: str | None) -> tuple[list[float], float]:
    """What a script says of its steps, and how far two may be apart: with PyTorch, or on a device
    here."""
    path = SCRIPTS / f"{name}.py"
    tree = ast.parse(path.read_text(), str(path))
    if device is not None:
        ht.set_default_device(device)
        tree = ast.fix_missing_locations(_Imports().visit(tree))
    spec = spec_from_file_location("begin", SCRIPTS / "begin.py")
    assert spec is not None
    assert spec.loader is not None
    begin = module_from_spec(spec)  # its numbers begin anew
    spec.loader.exec_module(begin)
    sys.modules["begin"] = begin
    script = ModuleType(f"models_{name}")
    sys.modules[script.__name__] = script  # where its dataclasses and pickles find it
    space = vars(script)
    exec(compile(tree, str(path), "exec"), space)
    losses, tolerance = space["losses"], space.get("TOLERANCE", 0.0)
    assert isinstance(losses, list)
    assert isinstance(tolerance, float)
    return [float(x) for x in losses], tolerance


@dataclass(frozen=True)
class Compared:
    """The largest relative difference of a loss, and the largest that is allowed."""

    apart: float
    allowed: float

    @property
    def agree(self) -> bool:
        return self.apart <= self.allowed


def compare(name: str, device: str) -> Compared:
    """Run a script on both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of its own functions
        theirs, tolerance = losses_of(name, None)
    ours, _ = losses_of(name, device)
    assert len(ours) == len(theirs) > 0
    pairs = zip(ours, theirs, strict=True)
    each = [abs(a - b) / max(abs(b), SMALL) for a, b in pairs]
    apart = max(each) if all(x == x for x in each) else float("inf")
    return Compared(apart, max(tolerance, EXACT if device == "cpu:0" else ELSEWHERE))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--verbose", action="store_true", help="show where a script fails")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all without any")
    given = parser.parse_args(arguments)
    warnings.simplefilter("error")  # a script that PyTorch runs is not warned here
    passed = 0
    for name in given.names or NAMES:
        began = time.process_time()
        try:
            found = compare(name, given.device)
            passed += found.agree
            said = f"{'ok  ' if found.agree else 'APART'} {found.apart:.1e}"
        except Exception as error:  # noqa: BLE001  (a script of anyone's)
            said = f"FAILS {type(error).__name__}: {str(error).splitlines()[0][:150]}"
            if given.verbose:
                traceback.print_exc()
        took = time.process_time() - began
        print(f"{name:26} {said}  ({took:.1f} s of processor)", flush=True)  # noqa: T201
    print(f"{passed} of {len(given.names or NAMES)} on {given.device}")  # noqa: T201
    return 0 if passed == len(given.names or NAMES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
