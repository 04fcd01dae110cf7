"""A device's description as JSON and back, for tools and reports: the round trip is exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from hal.core.description import (
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
    SpaceKind,
)
from hal.core.dtypes import DType
from hal.core.errors import InvalidCall


def to_json(info: DeviceInfo) -> dict[str, Any]:
    """The description as JSON values: enums by value, mappings with text keys, features sorted."""
    table: dict[str, Any] = _plain(info)
    return table


def from_json(table: Mapping[str, Any]) -> DeviceInfo:
    """The description that `to_json` wrote. Raises InvalidCall for a missing or wrong entry."""
    try:
        numeric = table["numeric"]
        accumulate = {DType(key): DType(value) for key, value in numeric["accumulate"].items()}
        return DeviceInfo(
            **{
                **table,
                "limits": _limits(table["limits"]),
                "spaces": tuple(
                    MemorySpace(**{**space, "kind": SpaceKind(space["kind"])})
                    for space in table["spaces"]
                ),
                "dtypes": {DType(name): rate for name, rate in table["dtypes"].items()},
                "numeric": NumericProfile(**{**numeric, "accumulate": accumulate}),
                "formats": tuple(table["formats"]),
                "features": frozenset(Feature(name) for name in table["features"]),
                "matrix_units": tuple(_matrix_unit(unit) for unit in table["matrix_units"]),
                "links": tuple(Link(**link) for link in table["links"]),
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidCall(f"not a device description: {type(error).__name__}: {error}") from error


def _plain(value: object) -> Any:
    match value:
        case Enum():
            return value.value
        case frozenset():
            return sorted(_plain(item) for item in value)
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case DeviceInfo() | Limits() | MemorySpace() | MatrixUnit() | NumericProfile() | Link():
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _limits(table: Mapping[str, Any]) -> Limits:
    x, y, z = table["grid"]
    rows, columns = table.get("mesh", (1, 1))
    tuples = {"grid": (x, y, z), "caches": tuple(table["caches"]), "mesh": (rows, columns)}
    return Limits(**{**table, **tuples})


def _matrix_unit(table: Mapping[str, Any]) -> MatrixUnit:
    types = {key: DType(table[key]) for key in ("inputs", "accumulate")}
    if table.get("right") is not None:
        types["right"] = DType(table["right"])
    return MatrixUnit(**{**table, **types})
