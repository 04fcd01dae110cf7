"""What a run's keeper starts: `hal run` with the plan of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hal.core.errors import HalError
from stack.launch.command import run


def main() -> int:
    """Run the ranks of the plan in the file that is named; gives the exit status."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    if plan["hosts"]:
        Path(plan["hosts"]).write_text(plan["lines"])
    try:
        return run(
            plan["target"],
            plan["arguments"],
            plan["size"],
            plan["module"],
            plan["devices"],
            Path(plan["hosts"]) if plan["hosts"] else None,
            None,
            plan["shell"],
            plan["address"],
            300.0,
            plan["restarts"],
            grace_s=plan["grace_s"],
        )
    except HalError as error:
        sys.stderr.write(f"hal run: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
