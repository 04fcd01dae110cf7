"""The figures of the chip, read from `chip.toml`, where each has its source and confidence."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from hal.core.errors import InvalidCall

TAGS = ("published", "measured", "derived", "disputed", "calibrated", "free")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the chip: `tag` is one of `TAGS`, `group` the table that it stands in."""

    group: str
    name: str
    value: float
    source: str
    tag: str


_LARGEST = 1e15
_RANGES: Mapping[str, tuple[float, float]] = {
    "ldm_nbytes": (1, 1 << 20),  # the emulator's process has so much for each CPE
    "banks": (1, 1024),
    "lost_share": (0, 0.99),
    **dict.fromkeys(
        (
            *("cpe_hz", "mpe_hz", "memory_nbytes", "memory_nbytes_s", "line_nbytes", "row_nbytes"),
            *("burst_lines", "write_queue_lines", "dma_align_nbytes", "dma_most_nbytes"),
            *("fp64_flop_cycle", "fp32_flop_cycle", "fp16_flop_cycle", "int_ops_cycle"),
            *("ldm_nbytes_cycle", "get_nbytes_cycle", "put_nbytes_cycle", "rma_nbytes_cycle"),
        ),
        (1, _LARGEST),
    ),
}
"""The least and the most that a figure can be, where that is not 0 and `_LARGEST`: what is divided
by, or what the emulator keeps tables of."""


@dataclass(frozen=True, slots=True)
class Chip:
    """All figures by name. Two chips with other figures are other chips, with other times."""

    figures: Mapping[str, Figure]

    def __getitem__(self, name: str) -> float:
        return self.figures[name].value

    def count(self, name: str) -> int:
        """A figure that is a whole number."""
        return int(self.figures[name].value)

    def seconds(self, cycles: float) -> float:
        """Emulated seconds of CPE cycles."""
        return cycles / self["cpe_hz"]

    def having(self, **values: float) -> Chip:
        """The chip with other values. Raises InvalidCall for a name that there is not, and for a
        value that no chip can have or the emulator has no room for."""
        if unknown := sorted(values.keys() - self.figures.keys()):
            known = ", ".join(self.figures)
            raise InvalidCall(f"the chip has no figures {unknown}; it has {known}")
        for name, value in values.items():
            least, most = _RANGES.get(name, (0.0, _LARGEST))
            if not least <= value <= most:
                raise InvalidCall(f"chip: {name} must be {least:g} to {most:g}, is {value:g}")
        changed = {n: replace(self.figures[n], value=v, tag="free") for n, v in values.items()}
        return Chip({**self.figures, **changed})


@functools.cache
def published() -> Chip:
    """The chip as `chip.toml` has it."""
    return Chip(parse((files("hal_plugin_sunway") / "chip.toml").read_text()))


def parse(text: str) -> dict[str, Figure]:
    """The figures of a data file's text, by name."""
    found: dict[str, Figure] = {}
    for group, rows in tomllib.loads(text).items():
        for name, row in rows.items():
            assert name not in found, f"{name} stands twice in the chip's figures"
            assert row["tag"] in TAGS, f"{name} has the unknown tag {row['tag']}"
            found[name] = Figure(group, name, float(row["value"]), row["source"], row["tag"])
    return found


def changed(chip: Chip, text: str) -> Chip:
    """The chip with the changes of a text "name=value,name=value". Raises InvalidCall."""
    values: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, number = part.partition("=")
        try:
            values[name.strip()] = float(number)
        except ValueError:
            raise InvalidCall(f"chip: {part!r} is not NAME=NUMBER") from None
    return chip.having(**values)
