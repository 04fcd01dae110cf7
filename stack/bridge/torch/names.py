"""How the device is named, and whether it is used."""

from __future__ import annotations

import os
from typing import Any

import torch

NAME = "hal"
DEVICES = "HAL_DEVICES"
used: list[bool] = []
"""Not empty once a tensor of the device was asked for."""


def listed() -> list[str]:
    """The devices that HAL_DEVICES names, in order."""
    return [n.strip() for n in os.environ.get(DEVICES, "").split(",") if n.strip()]


def index_of(device: Any) -> int:
    """The index that a device, its name or an index says; the current one's without any."""
    found = device
    if device is not None and not isinstance(device, int):
        found = torch.device(device).index
    return int(torch.hal.current_device()) if found is None else int(found)
