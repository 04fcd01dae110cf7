"""The vendor's libraries, which come in wheels of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path


def libraries(name: str, majors: Iterable[int]) -> Iterator[str]:
    """Where a library of these versions is installed, in their order."""
    spec = find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    for major in majors:
        yield from (str(p) for f in folders for p in f.glob(f"*/lib/{name}.so.{major}"))


def majors(driver: int) -> range:
    """The versions whose code a driver of a major version loads, the newest first."""
    return range(driver, 11, -1)


def nccl() -> str | None:
    """Where the library of groups is, if it is installed."""
    return next(libraries("libnccl", (2,)), None)
