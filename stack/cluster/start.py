"""What a run's keeper starts: `hal run` with the plan of a file.

Where a run ends because hosts are out of reach, their names are in the plan's file `lost` then."""

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
    events = Path(plan["events"])
    try:
        status = run(
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
            events=events,
            grace_s=plan["grace_s"],
        )
    except HalError as error:
        sys.stderr.write(f"hal run: {error}\n")
        return 1
    if status and (place := _lost(events)) is not None:
        Path(plan["lost"]).write_text(json.dumps([plan["names"][place]]))
    return status


def _lost(events: Path) -> int | None:
    """The place among the job's hosts of the one whose loss has ended a run; None where its ranks
    had not begun, or something else was first."""
    began = False
    for line in events.read_text().splitlines():
        event = json.loads(line)
        match event["event"]:
            case "start":
                began = True
            case "exited" if event["status"]:
                return None
            case "asked":
                return None
            case "lost":
                return int(event["host"]) if began else None
    return None


if __name__ == "__main__":
    sys.exit(main())
