"""Imported by every Python process under a sanitizer: native modules come from its folder."""

import os
import resource
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path


class Instrumented:
    """Finds the modules that the folder has."""

    def __init__(self, folder: Path) -> None:
        self._paths = {
            ".".join([*path.relative_to(folder).parts[:-1], path.name.split(".")[0]]): str(path)
            for path in folder.rglob("*.so")
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._paths:
            return None
        at = self._paths[name]
        return spec_from_file_location(name, at, loader=ExtensionFileLoader(name, at))


sys.meta_path.insert(0, Instrumented(Path(os.environ["HAL_INSTRUMENTED"])))


def _limit(what: int, limits: tuple[int, int]) -> None:
    """Its tables take terabytes of addresses: a process with a limit for them could do nothing."""
    if what != resource.RLIMIT_AS:
        _setrlimit(what, limits)


_setrlimit = resource.setrlimit
resource.setrlimit = _limit
