"""mpi4py, which is there only where the extra `hal-accel[mpi]` is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hal.core.errors import InvalidCall


def mpi() -> Any:
    """The module `mpi4py.MPI`, by which MPI is initialized. Raises InvalidCall that says what to
    install."""
    try:
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the second without a library to load
        raise InvalidCall(
            f"MPI is not there ({error}); install it by `pip install 'hal-accel[mpi]'`, or "
            "`pip install mpi4py` beside an MPI of your own"
        ) from error
