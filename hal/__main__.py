"""`python -m hal` is the command `hal`, also where no script of that name is on the PATH."""

import sys
from importlib.metadata import entry_points

if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="hal")
    sys.argv[0] = "hal"
    sys.exit(command.load()())
