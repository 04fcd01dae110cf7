"""Programs: loaded, used by launchables, graphs and operations, and given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any
from weakref import WeakSet

from hal.core.errors import CompileError, DeviceLost, Failure, FailureKind, Scope, Unsupported
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import KernelSource, Launchable, Operator, Program
from hal.hosted.lock import LOCK
from hal.hosted.session import Session
from hal.hosted.watch import NoProgress, watched


@dataclass(eq=False)
class Loaded:
    """A program's payload. The machine has it back once it and its launchables, of which there are
    `bound`, were freed and nothing uses it, and at the latest when Python forgets it."""

    session: Session
    native: Any
    bound: int = 0
    holds: int = 0
    freed: bool = False
    ended: bool = field(default=False, init=False)

    def check(self, hook: str) -> None:
        """A launchable keeps its program, so there is nothing to refuse."""

    def hold(self) -> None:
        self.holds += 1

    def let_go(self) -> None:
        self.holds -= 1
        self._end()

    def free(self) -> None:
        self.freed = True
        self._end()

    def unbind(self, count: int = 1) -> None:
        """So many launchables were freed."""
        self.bound -= count
        self._end()

    def _end(self) -> None:
        if self.freed and not self.bound and not self.holds:
            self._spend()

    def _spend(self) -> None:
        if not self.ended:
            self.ended = True
            self.session.spend(self.session.machine.unload, self.native)

    def __del__(self) -> None:
        self._spend()


class Programs:
    """The hooks that load programs and vendor operators, and their end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._live: WeakSet[Loaded] = WeakSet()

    @hookimpl
    def load(self, source: KernelSource) -> Program:
        session = self._session
        failure = session.strike("load", FailureKind.COMPILE)
        if failure is not None:
            raise CompileError(f"{source.entry}: {failure.message}", failure.message)
        with session.calling("load") as epoch:
            session.give_back()
            loaded = Loaded(session, self._compiled(source))
            with LOCK:
                self._live.add(loaded)
        return Program(session.name, epoch, loaded, source.entry, source.params)

    @hookimpl
    def operators(self) -> Sequence[Operator]:
        return self._session.machine.operators()

    @hookimpl
    def load_operator(self, operator: Operator, constants: Mapping[str, int]) -> Program:
        session, where = self._session, f"{self._session.name}.load_operator"
        if operator not in session.machine.operators():
            raise Unsupported(f"{where}: {operator.name!r} is no operator of this device")
        if constants.keys() != operator.conditions.keys():
            asked = ", ".join(operator.conditions)
            raise Unsupported(f"{where}: {operator.name} takes the constants {asked}")
        for name, multiple in operator.conditions.items():
            if constants[name] < 1 or constants[name] % multiple:
                text = f"{name} is {constants[name]}, and must be a multiple of {multiple}"
                raise Unsupported(f"{where}: {operator.name}: {text}")
        with session.calling("load_operator") as epoch:
            session.give_back()
            loaded = Loaded(session, session.machine.prepare(operator, constants))
            with LOCK:
                self._live.add(loaded)
        return Program(session.name, epoch, loaded, operator.name, operator.params)

    def _compiled(self, source: KernelSource) -> Any:
        """The machine's program. A compiler that does not return loses the device."""
        session = self._session
        machine, limit_s = session.machine, session.info.limits.progress_s
        if not limit_s or machine.ends_hangs:
            return machine.compile(source)
        limit_s = max(limit_s, machine.compile_s)
        name = f"{session.name} load {source.entry}"
        try:
            return watched(name, limit_s, lambda: machine.beats, lambda: machine.compile(source))
        except NoProgress as error:
            failure = Failure(
                FailureKind.HANG, Scope.DEVICE, session.name, f"load {source.entry}", str(error)
            )
            with LOCK:
                session.lose(failure)
            raise DeviceLost(failure) from None

    def launchable(self, program: Program, payload: object) -> Launchable:
        """A launchable with its payload, which keeps the program."""
        with LOCK:
            program.native.bound += 1
        return Launchable(program.device, program.epoch, payload, program)

    def free(self, handle: Program | Launchable) -> None:
        """Its owner needs it no longer (with the lock held)."""
        if isinstance(handle, Program):
            handle.native.free()
        else:
            handle.program.native.unbind()

    def free_all(self) -> None:
        """Nobody needs any program: the session or its epoch ended (with the lock held)."""
        for loaded in list(self._live):
            loaded.freed = True
            loaded.unbind(loaded.bound)
        self._live.clear()
