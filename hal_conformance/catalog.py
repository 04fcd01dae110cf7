"""Every case of the suite, found in `hal_conformance.cases`."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterable
from importlib import import_module

import hal_conformance.cases
from hal_conformance.case import Case, Cases

GROUPS = {
    "A": "plugin and negotiation",
    "B": "capabilities",
    "C": "memory",
    "D": "programs",
    "E": "launch and kernel semantics",
    "F": "timelines, queues, ordering",
    "G": "devices and topology",
    "H": "collectives",
    "I": "failure and recovery",
    "J": "integration with the stack",
    "K": "declared performance",
}


@functools.cache
def catalog() -> tuple[Case, ...]:
    """Every case, by group, in the order of the files."""
    return cases_of(sorted(m.name for m in pkgutil.iter_modules(hal_conformance.cases.__path__)))


def cases_of(files: Iterable[str]) -> tuple[Case, ...]:
    """The cases of these files, by group, in the order of the files."""
    found: dict[str, Case] = {}
    for name in files:
        module = import_module(f"hal_conformance.cases.{name}")
        for cases in (v for v in vars(module).values() if isinstance(v, Cases)):
            for case in cases:
                assert case.id not in found, f"two cases are named {case.id}"
                found[case.id] = case
    return tuple(sorted(found.values(), key=lambda case: case.group))


def files_of(cases: Iterable[Case]) -> tuple[str, ...]:
    """The files that cases stand in."""
    modules = (case.module.rpartition(".")[2] for case in cases)
    return tuple(dict.fromkeys(modules))
