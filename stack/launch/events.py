"""What happened to a job, as lines of JSON."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hal.core.errors import InvalidCall
from stack.launch.spent import Report, Spent


class EventLog:
    """Writes a line for each event and instruction of a job: `at_s` since the job began, `event`,
    and what belongs to it. Without a file it only counts where the time went."""

    def __init__(self, file: Path | None) -> None:
        """Raises InvalidCall for a file that cannot be written."""
        self._begin_s = time.monotonic()
        self._spent = Spent()
        try:
            self._file = None if file is None else file.open("w", buffering=1)
        except OSError as error:
            raise InvalidCall(f"--events {file} cannot be written: {error}") from error

    def note(self, event: Any) -> None:
        """An event or instruction of the job's machine."""
        given = {field.name: _plain(getattr(event, field.name)) for field in fields(event)}
        self.write(type(event).__name__.lower(), **given)

    @property
    def report(self) -> Report:
        """Where the time went so far."""
        return self._spent.report

    def write(self, event: str, **given: Any) -> None:
        """Raises InvalidCall where the file takes no more."""
        line = {"at_s": round(time.monotonic() - self._begin_s, 4), "event": event, **given}
        self._spent.add(line)
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            file, self._file = self._file, None
            with suppress(OSError):  # what it still holds finds no room, either
                file.close()
            raise InvalidCall(f"{file.name} takes no more events: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        return str(value) if set(plain) == {"seat", "start"} else plain
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
