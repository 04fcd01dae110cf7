"""Placeholder until collectives land."""

from __future__ import annotations

from typing import Any

from hal.core.errors import Unsupported
from hal.core.spec import hookimpl
from hal_plugin_cpu.session import Session


class Groups:
    def __init__(self, session: Session) -> None:
        pass

    @hookimpl
    def create_group(self, spec):
        raise Unsupported("not yet")

    @hookimpl
    def collective(self, group, call, dst, src, timeline, waits):
        raise Unsupported("not yet")

    @hookimpl
    def abort(self, group, cause):
        raise Unsupported("not yet")

    @hookimpl
    def async_error(self, group):
        raise Unsupported("not yet")

    @hookimpl
    def shrink(self, group, ranks):
        raise Unsupported("not yet")

    def free(self, handle: Any) -> bool:
        return False

    def leave_all(self) -> None:
        pass
