"""A member of a group and the calls that it has made: what groups of one process and groups between
processes have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from hal.core.dtypes import DType
from hal.core.errors import Failure, FailureKind, PluginError, Scope
from hal.core.values import Collective, CollectiveKind, GroupSpec, ReduceKind
from hal_plugin_cpu._native import ffi, lib
from hal_plugin_cpu.session import Session

# The native runtime numbers these as the contract lists them.
DTYPES = tuple(DType)
KINDS = tuple(CollectiveKind)
REDUCES = tuple(ReduceKind)


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call of a group: the native call, its description by the first member, and who joined so
    far.

    `mismatch` is the text of a disagreement.
    """

    number: int
    call: Collective
    native: Any
    joined: list[int]
    mismatch: str = ""


class Bond(Protocol):
    """What ties a member to the others."""

    @property
    def changed(self) -> Any:
        """The lock of the members and calls that the bond knows."""

    def join(self, member: Member, call: Collective) -> SharedCall:
        """Give the call its number. Needs `changed`."""

    def skip(self, member: Member, shared: SharedCall) -> None:
        """The call was refused after it got its number: the member will not come to it. Needs
        `changed`."""

    def trouble(self, member: Member) -> Failure | None:
        """What the member's unfinished calls fail with now, if anything. Needs `changed`."""

    def part(self) -> None:
        """The member has left and owes nothing more."""


@dataclass(eq=False, slots=True)
class Member:
    """A device's part in a group: the payload of its `Group`. `error` is the first failure of the
    group here, `failed` its number in the session."""

    session: Session
    spec: GroupSpec
    bond: Bond
    next_call: int = 0
    error: Failure | None = None
    failed: int = 0
    left: bool = False
    outstanding: list[SharedCall] = field(default_factory=list)

    def join(self, call: Collective) -> SharedCall:
        """The member's next call."""
        with self.bond.changed:
            shared = self.bond.join(self, call)
            self.next_call += 1
            self.outstanding.append(shared)
            return shared

    def skip(self, shared: SharedCall) -> None:
        """The call was refused after all."""
        with self.bond.changed:
            self.outstanding = [s for s in self.outstanding if s is not shared]
            self.bond.skip(self, shared)

    def note(self, failure: Failure) -> None:
        """Every later call fails with this, unless something failed before."""
        if self.error is None:
            self.failed = self.session.failures.number(failure)
            self.error = failure

    def fail(self, failure: Failure) -> None:
        """Fail the unfinished calls of this member and all later ones. The first failure stays."""
        self.note(failure)
        for shared in self.outstanding:
            lib.hc_call_fail(self.session.native, shared.native, self.spec.rank, self.failed)

    def prune(self) -> None:
        """Forget the calls that are done."""
        rank = self.spec.rank
        self.outstanding = [s for s in self.outstanding if not lib.hc_call_done(s.native, rank)]


def native_call(size: int, call: Collective) -> Any:
    """The native call of a description."""
    cells = [cell for row in call.counts for cell in row]
    native = lib.hc_call_new(
        size, KINDS.index(call.kind), DTYPES.index(call.dtype), REDUCES.index(call.reduce),
        call.root, call.count, ffi.new("int64_t[]", cells) if cells else ffi.NULL,
    )  # fmt: skip
    if native == ffi.NULL:
        raise PluginError("collective: the system has no memory left for the native runtime")
    return ffi.gc(native, lib.hc_call_release)


def said(call: Collective) -> str:
    """A call in words."""
    how = f"{call.reduce.value}, root {call.root}"
    parts = f", counts {[list(row) for row in call.counts]}" if call.counts else ""
    return f"{call.kind.value} of {call.count} {call.dtype.short} ({how}{parts})"


def failure_of(member: Member, kind: FailureKind, text: str, call: Collective | None) -> Failure:
    """A failure among peers, as this member's device tells it."""
    name = f"collective {call.kind.value}" if call else "collective"
    return Failure(kind, Scope.PEER, member.session.name, name, text)


def late(member: Member, shared: SharedCall, missing: list[int]) -> Failure:
    """The failure of a call for which these ranks did not come in time."""
    text = f"call {shared.number}: ranks {missing} did not come in {member.spec.timeout_s} s"
    return failure_of(member, FailureKind.PEER_LOST, text, shared.call)
