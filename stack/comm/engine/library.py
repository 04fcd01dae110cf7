"""The engine's native library. Only what communicates imports it."""

from __future__ import annotations

try:
    from stack.comm.engine._native import ffi, lib
except ImportError as error:
    raise ImportError(
        f"the communication engine is not built ({error}); install the package by "
        "`pip install --editable .`, or build it in place by `python setup.py build_ext --inplace`"
    ) from error

__all__ = ["ffi", "lib"]
