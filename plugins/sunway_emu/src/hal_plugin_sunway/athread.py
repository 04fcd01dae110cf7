"""Whole athread programs: a host part that starts the slave cores, in one file or two."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hal.core.errors import CompileError, Failure, FailureKind, OperationFailed, Scope
from hal_plugin_sunway import elf, toolchain
from hal_plugin_sunway.arena import PAGE, Arena
from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.coregroup import CoreGroup, CoreGroupFailure, Loaded, Outcome
from hal_plugin_sunway.describe import ldm_nbytes


@dataclass(frozen=True, slots=True)
class Run:
    """What to run: `slaves` is the file of the slave part (the same as `host` when one file has
    both); `trace` a file for the timeline ("": none)."""

    host: Path
    slaves: Path
    trace: str = ""
    patience_s: float = 60.0


def run(chip: Chip, what: Run) -> Outcome:
    """Run a program's main on the emulated chip; it prints where this process prints.

    One file is compiled twice, with `__sw_host__` and with `__sw_slave__` defined. Raises
    CompileError; OperationFailed when the program fails or its main returns another number than 0.
    """
    arena = Arena(PAGE)
    with tempfile.TemporaryDirectory(prefix="hal-athread-") as name:
        group = CoreGroup(chip, arena.fd, arena.nbytes)
        try:
            folder = Path(name)
            slaves = _loaded(group, what.slaves, folder, "slave")
            host = _loaded(group, what.host, folder, "host")
            room = ldm_nbytes(chip)
            if slaves.ldm_nbytes > room:
                said = f"the variables take {slaves.ldm_nbytes} bytes of LDM; a CPE has {room}"
                occupied = elf.ldm_map(slaves.path)
                raise CompileError(f"{what.slaves.name}: {said}:\n{occupied}", occupied)
            if what.trace:
                group.trace(str(Path(what.trace).resolve()))
            try:
                return group.run_host(host, slaves, what.patience_s)
            except CoreGroupFailure as failure:
                kind = FailureKind.HANG if "hang" in failure.kind else FailureKind.LAUNCH_FAULT
                where = f"{what.slaves.name}:{failure.line}" if failure.line else what.host.name
                text = f"{where}: {failure}"
                raise OperationFailed(
                    Failure(kind, Scope.OPERATION, "sunway", "athread", text)
                ) from failure
        finally:
            group.end()
            arena.close()


def _loaded(group: CoreGroup, file: Path, folder: Path, role: str) -> Loaded:
    flags = [f"-I{file.resolve().parent}"]
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    path = toolchain.program(text, folder, file.name, role, flags)
    try:
        return group.load(path)
    except CoreGroupFailure as failure:
        raise CompileError(f"{file.name}: {failure}", str(failure)) from failure
