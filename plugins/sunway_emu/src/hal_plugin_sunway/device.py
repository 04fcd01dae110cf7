"""The opened device: a hosted one that ends its core group's process at its close."""

from __future__ import annotations

from hal.core.spec import hookimpl
from hal.hosted.device import HostedDevice
from hal.hosted.order import Order
from hal_plugin_sunway.chip import changed, published
from hal_plugin_sunway.choice import Choice
from hal_plugin_sunway.describe import describe
from hal_plugin_sunway.machine import SunwayMachine


class SunwayDevice(HostedDevice):
    """One session of a core group. Raises PluginError when the host cannot emulate it."""

    def __init__(self, choice: Choice) -> None:
        chip = changed(published(), choice.chip)
        nbytes = choice.memory_nbytes or chip.count("memory_nbytes")
        info = describe(chip, choice, nbytes)
        self._machine = SunwayMachine(info.name, chip, choice, nbytes)
        super().__init__(info, self._machine, Order())

    @hookimpl
    def close(self) -> None:
        super().close()
        self._machine.close()
