"""The file that names a job's hosts.

One host a line: its name, then `slots=N` (1 without it) and `devices=cpu:0,cpu:1` (those that
`hal run --devices` names without it). What follows # is a comment:

    node1  slots=4  devices=mychip:0,mychip:1,mychip:2,mychip:3
    node2  slots=2                                               # shares what --devices names
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hal.core.errors import InvalidCall
from stack.launch.seats import Host, device_names

_KEYS = ("slots", "devices")
_SLOTS = 1 << 16


def read_hosts(path: Path, devices: Sequence[str]) -> tuple[Host, ...]:
    """The hosts of a file; `devices` are those of hosts that name none. Raises InvalidCall."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCall(f"the hosts file {path} cannot be read: {error}") from error
    found = tuple(_hosts(text, str(path), tuple(devices)))
    if not found:
        raise InvalidCall(f"the hosts file {path} names no host; one line has name and slots=N")
    names = [host.name for host in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidCall(f"the hosts file {path} names {', '.join(twice)} twice; add up the slots")
    return found


def _hosts(text: str, path: str, devices: tuple[str, ...]) -> Iterator[Host]:
    for number, line in enumerate(text.splitlines(), 1):
        name, *words = line.partition("#")[0].split() or [""]
        if name:
            where = f"{path}, line {number}"
            if name.startswith("-") or "=" in name:
                raise InvalidCall(f"{where}: {name!r} is not a host's name; the name comes first")
            facts: dict[str, str] = {}
            for word in words:
                key, _, value = word.partition("=")
                if key == "slots" and not value:
                    raise InvalidCall(f"{where}: {word!r} has no number; write slots=4, say")
                if key not in _KEYS or key in facts or not value:
                    raise InvalidCall(
                        f"{where}: {word!r} is not slots=N or devices=NAME,NAME, once each"
                    )
                facts[key] = value
            try:
                own = device_names(facts["devices"]) if "devices" in facts else devices
            except InvalidCall as error:
                raise InvalidCall(f"{where}: {error}") from error
            if not own:
                raise InvalidCall(
                    f"{where}: {name} has no devices; add devices=NAME or give --devices"
                )
            slots_text = facts.get("slots", "1")
            slots = (
                int(slots_text)
                if slots_text.isascii() and slots_text.isdecimal() and len(slots_text) < 6
                else 0
            )
            if not 0 < slots <= _SLOTS:
                raise InvalidCall(f"{where}: slots={slots_text} is not a number from 1 to {_SLOTS}")
            yield Host(name, slots, own)
