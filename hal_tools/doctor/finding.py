"""What an examination finds: one line per check, with what to do where something is wrong."""

from __future__ import annotations

from hal.core.facts import dataclass

OK, BAD, NOTE = "ok", "bad", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check of a plugin: "ok", "bad" or "note"; `advice` is "" where all is
    well."""

    plugin: str
    check: str
    outcome: str
    text: str
    advice: str = ""
