"""`python -m hal` is the command `hal`, also where no script of that name is on the PATH."""

import sys
from importlib import import_module

from hal.core.discovery.installed import entry_points

if __name__ == "__main__":
    (command,) = (point for point in entry_points("console_scripts") if point.name == "hal")
    module, _, name = command.module.partition(":")
    sys.exit(getattr(import_module(module), name)(prog_name="hal"))
