"""The two hooks of a plugin whose devices are those that its driver lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hal.core.description import DeviceSummary
from hal.core.facts import dataclass
from hal.core.spec import hookimpl
from hal.core.values import OpenOptions
from hal.hosted.places import Place, check_index, places
from hal.hosted.settings import numbers


@dataclass(frozen=True, slots=True)
class Choice:
    """The device of a plugin that is to be opened. `memory_nbytes` and `progress_s` are 0 where
    nobody has set them; `cache_dir` is where compiled programs may be kept ("": nowhere)."""

    plugin: str
    place: Place
    memory_nbytes: int = 0
    progress_s: float = 0.0
    cache_dir: str = ""

    @property
    def name(self) -> str:
        """The contract's name of the device."""
        return f"{self.plugin}:{self.place.index}"

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the plugin's other devices."""
        others = (i for i in range(self.place.count) if i != self.place.index)
        return tuple(f"{self.plugin}:{i}" for i in others)


class HostedPlugin:
    """The hooks of the plugin `name`.

    `find` gives a line about each device that the driver has, and must start nothing; `make` opens
    one. These variables are read, here for "mychip": HAL_MYCHIP_DEVICES presents the first device
    so often ("8 of 1": number 1), in place of all devices once; HAL_MYCHIP_MEMORY and
    HAL_MYCHIP_PROGRESS are the settings `memory_nbytes` and `progress_s` of devices that are opened
    without them.
    """

    def __init__(
        self, name: str, find: Callable[[], Sequence[str]], make: Callable[[Choice], object]
    ) -> None:
        self._name, self._find, self._make = name, find, make
        self._variables = {
            setting: f"HAL_{name.upper()}_{word}"
            for setting, word in (("memory_nbytes", "MEMORY"), ("progress_s", "PROGRESS"))
        }

    @hookimpl
    def enumerate_devices(self) -> Sequence[DeviceSummary]:
        """A row for each device."""
        return [DeviceSummary(place.index, place.line) for place in self._places()]

    @hookimpl
    def open_device(self, index: int, options: OpenOptions) -> object:
        """Open a device. Raises InvalidCall for a device or setting that does not exist."""
        known = self._places()
        check_index(self._name, index, len(known))
        given = numbers(f"{self._name}:{index}", self._variables, options)
        return self._make(
            Choice(
                self._name,
                known[index],
                int(given["memory_nbytes"]),
                given["progress_s"],
                options.cache_dir,
            )
        )

    def _places(self) -> list[Place]:
        return places(self._find(), f"HAL_{self._name.upper()}_DEVICES")
