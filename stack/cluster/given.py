"""What a person gives, before it is a job or a cluster: plain data that nobody has checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hal.core.errors import InvalidCall


def plain(path: Path) -> dict[str, Any]:
    """What a TOML file says. Raises InvalidCall for one that is not there, or is none."""
    import tomllib  # noqa: PLC0415  who hands in a script has none to read

    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCall(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidCall(f"{path} is not TOML: {error}") from error


def wanted(target: str, arguments: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """A job as plain data, which nobody has checked: of a TOML file, or a script with its
    arguments; what is `given` by options comes before what the file says. Raises InvalidCall."""
    here = {"folder": str(Path.cwd())}
    if not target.endswith(".toml"):
        return {**here, "script": target, "arguments": list(arguments), **given}
    if arguments:
        raise InvalidCall("a job's file has its own arguments; give none behind it")
    base = plain(Path(target))
    return {**base, **({} if base.get("folder") else here), **given}


def check_folder(folder: str) -> None:
    """Raise InvalidCall for a folder that others would find elsewhere."""
    if not Path(folder).is_absolute():
        raise InvalidCall(f"the folder {folder!r} to run in must be absolute")


def check_script(folder: str, script: str, module: bool) -> None:
    """Raise InvalidCall for a script (unless it is a module) or folder that this user does not
    find."""
    check_folder(folder)
    place = Path(folder)
    if not place.is_dir():
        raise InvalidCall(f"there is no folder {folder!r} to run in")
    if not module and not (place / script).is_file():
        raise InvalidCall(f"there is no script {script!r} in {place}")
