"""Tracing."""

from hal.core.device import Device


class Tracer:
    """Slice."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, device: Device) -> object:
        return self
