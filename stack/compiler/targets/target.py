"""What a target is: a kind of machine, and how kernels are made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hal.core.description import DeviceInfo
from hal.core.errors import UnsupportedFormat
from hal.core.facts import dataclass
from hal.core.values import KernelSource
from hal.tile.kernel import Kernel
from stack.compiler.templates.family import Templates

Writer = Callable[[Kernel, DeviceInfo], KernelSource]
"""A kernel as a program in one format, lowered as far as the format needs."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine."""

    name: str
    matches: Callable[[DeviceInfo], bool]
    """Whether a device is such a machine."""
    templates: Templates
    """How tile kernels are made for it."""
    writers: Mapping[str, Writer]
    """The program formats in which they can be written."""

    def writer(self, info: DeviceInfo) -> Writer:
        """The writer of the program format that the device likes best.

        Raises UnsupportedFormat when there is none that the device takes.
        """
        for accepted in info.formats:
            if accepted in self.writers:
                return self.writers[accepted]
        raise UnsupportedFormat(
            f"{info.name} takes programs in {', '.join(info.formats) or 'no format'}; "
            f"the compiler writes {', '.join(self.writers)} for {self.name}"
        )
