"""The types of what `describe` returned, checked once when a device is opened."""

from __future__ import annotations

from collections.abc import Mapping

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
)
from hal.core.dtypes import DType
from hal.core.errors import PluginError

_FIELDS: Mapping[str, type] = {
    "name": str,
    "plugin": str,
    "description": str,
    "fingerprint": str,
    "contract": int,
    "limits": Limits,
    "spaces": tuple,
    "dtypes": Mapping,
    "numeric": NumericProfile,
    "formats": tuple,
    "features": frozenset,
    "matrix_units": tuple,
    "scale": str,
    "links": tuple,
    "declared": Mapping,
    "facts": Mapping,
}
_ITEMS: Mapping[str, type] = {
    "spaces": MemorySpace,
    "dtypes": DType,
    "formats": str,
    "features": Feature,
    "matrix_units": MatrixUnit,
    "links": Link,
    "declared": str,
    "facts": str,
}


def checked_info(device: str, found: object) -> DeviceInfo:
    """The description itself. Raises PluginError naming the field whose type is wrong."""
    if not isinstance(found, DeviceInfo):
        kind = type(found).__name__
        raise PluginError(f"{device}.describe returned a {kind}; it must return a DeviceInfo")
    for field, kind_of_field in _FIELDS.items():
        _check(device, field, getattr(found, field), kind_of_field)
    for field, kind_of_items in _ITEMS.items():
        for value in getattr(found, field):
            _check(device, f"item of {field}", value, kind_of_items)
    return found


def _check(device: str, field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise PluginError(
            f"{device}.describe returned a DeviceInfo whose {field} is {value!r}; it must be a "
            f"{kind.__name__}"
        )
