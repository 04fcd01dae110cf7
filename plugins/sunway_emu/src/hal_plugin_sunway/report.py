"""The emulated time of a session, a line of JSON for each launch and allocation."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hal_plugin_sunway.chip import Chip
from hal_plugin_sunway.coregroup import Outcome


@dataclass(frozen=True, slots=True)
class Report:
    """Adds lines to `path`; to nothing where that is ""."""

    path: str
    chip: Chip
    lock: threading.Lock

    def launch(self, entry: str, grid: tuple[int, int, int], outcome: Outcome) -> None:
        """A launch, with what its CPEs did (see `Outcome`)."""
        if self.path:
            self._add({"launch": entry, "grid": grid, **asdict(outcome)}, outcome.cycles)

    def allocation(self, nbytes: int, cycles: float) -> None:
        """An allocation."""
        if self.path:
            self._add({"allocate": nbytes, "cycles": cycles}, cycles)

    def transfer(self, what: str, places: Sequence[int], cycles: float) -> None:
        """A copy or collective among core groups."""
        if self.path:
            self._add({"transfer": what, "core_groups": places, "cycles": cycles}, cycles)

    def _add(self, row: dict[str, object], cycles: float) -> None:
        line = json.dumps({**row, "emulated_s": self.chip.seconds(cycles)})
        with self.lock, Path(self.path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
