"""Argument validation."""

from hal.core.device import Device


def validate(device: Device) -> object:
    """Slice."""
    return object()
