"""The engine's native library. Only what communicates imports it."""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any


def _caller_in(path: str) -> Any:
    """The module of native/caller.c, which is in the same file as `_native`."""
    name = "stack.comm.engine._caller"
    loader = ExtensionFileLoader(name, path)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


try:
    from stack.comm.engine import _native

    Caller: Any = _caller_in(_native.__file__).Caller
    """Blocking calls of the native group at an address: `collective`, `send` and `receive` give the
    engine's code, or None, and have done nothing, for what Python has to look at."""
except ImportError as error:
    raise ImportError(
        f"the communication engine is not built, or of other sources ({error}); install the "
        "package by `pip install --editable .`, or build it in place by `python setup.py build_ext "
        "--inplace`"
    ) from error

ffi: Any = _native.ffi
lib: Any = _native.lib

__all__ = ["Caller", "ffi", "lib"]
