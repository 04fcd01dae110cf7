"""What to do about a cause, by the stage at which it appeared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hal.core.discovery.installed import PLUGINS
from hal.core.discovery.manifest import Found
from hal.core.discovery.registry import BLOCKED_VARIABLE
from hal.core.discovery.survey import DEADLINE_VARIABLE

Advice = Callable[[Found, str], str]

_OPENING = {
    r"PermissionError|Permission denied|EACCES": (
        "let this user open the device: `ls -l` of its file in /dev names a group, often 'render' "
        "or 'video'; add the user to it and log in anew"
    ),
    r"MemoryError|[Oo]ut of memory|out-of-memory|busy|EBUSY": (
        "another process may have the device, or what is left of it: end that process, or open "
        "another device"
    ),
    r"No such file|FileNotFoundError|cannot open shared object|no driver": (
        "install or load the device's driver, or let the plugin list no device where there is none"
    ),
    r"returned None": (
        "let open_device give the object whose methods are the hooks (docs/contract.md)"
    ),
    r"lacks the hooks|describes itself as|DeviceInfo": (
        "correct the description or the hooks of the object that open_device gives; "
        "docs/contract.md has each with its parameters"
    ),
}
"""What to do by what the cause says, for a device that does not open."""


def advice(check: str, found: Found, cause: str, device: str = "") -> str:
    """What the person who installs or writes the plugin, or opens its `device`, does next."""
    if device:
        look = _watch(cause, f"import hal; hal.open('{device}')", "")
        told = (step for words, step in _OPENING.items() if re.search(words, cause))
        return "; ".join([*list(told)[:1], look])
    return _ADVICE[check](found, cause)


def _import(found: Found, cause: str) -> str:
    if missing := re.search(r"No module named '(.+?)'", cause):
        if missing[1].partition(".")[0] == found.module.partition(".")[0]:
            return (
                f"correct {missing[1]!r}: its own package has no such module, which an import or "
                f'[project.entry-points."{PLUGINS}"] names; install again after that'
            )
        return (
            f"install what brings the module {missing[1]!r}, and let the plugin's dependencies "
            f"name it"
        )
    return _watch(cause, f"import {found.module}", "open_device")


def _watch(cause: str, code: str, later: str) -> str:
    """How to see the failure itself; what takes too long belongs into a later hook."""
    look = f'see it happen: python -X faulthandler -c "{code}"'
    if not cause.startswith("did not finish"):
        return look
    move = f"; what takes long there belongs into {later}" if later else ""
    return f"{look}{move}; {DEADLINE_VARIABLE} sets a longer deadline in seconds"


_ADVICE: Mapping[str, Advice] = {
    "entry point": lambda found, cause: "pip uninstall all of these distributions but one",
    "package": lambda found, cause: (
        f"install it again: pip install --force-reinstall {found.distribution}; if that does not "
        f'help, its [project.entry-points."{PLUGINS}"] names the wrong module'
    ),
    "manifest": lambda found, cause: (
        "correct the file (`hal new-plugin` writes a whole one, docs/contract.md says what each "
        "entry means); the package data of pyproject.toml must include it"
    ),
    "contract": lambda found, cause: "pip install --upgrade what the cause names",
    "blocked": lambda found, cause: (
        f"take {found.name} out of the variable {BLOCKED_VARIABLE} to use it"
    ),
    "import": _import,
    "hooks": lambda found, cause: (
        f"correct the hooks in {found.module}; docs/contract.md has each with its parameters"
    ),
    "enumerate": lambda found, cause: _watch(
        cause, f"import {found.module} as p; print(p.enumerate_devices())", "open_device"
    ),
}
