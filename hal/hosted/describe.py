"""What descriptions have in common: the features that cost a machine nothing, and types of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hal.core.description import (
    CONTRACT_VERSION,
    GUESSED,
    DeviceInfo,
    Feature,
    Limits,
    Link,
    MatrixUnit,
    MemorySpace,
    NumericProfile,
)
from hal.core.dtypes import DType
from hal.hosted.plugin import Choice

FREE = frozenset(Feature) - {
    Feature.MAP,
    Feature.IMPORT_HOST,
    Feature.IPC,
    Feature.GROUP_IPC,
    Feature.OPERATORS,
}
"""What `HostedDevice` does with any machine (docs/hosted.md)."""

ACCUMULATE: Mapping[DType, DType] = {d: d.computed_in for d in DType}
"""`NumericProfile.accumulate` of devices that add the products of narrow floats in float32."""


def described(
    choice: Choice,
    *,
    description: str,
    fingerprint: str,
    formats: Sequence[str],
    limits: Limits,
    spaces: Sequence[MemorySpace],
    dtypes: Mapping[DType, float],
    numeric: NumericProfile,
    features: frozenset[Feature] = FREE,
    guessed: Sequence[str] = (),
    declared: Mapping[str, float] | None = None,
    matrix_units: Sequence[MatrixUnit] = (),
    facts: Mapping[str, str] | None = None,
) -> DeviceInfo:
    """The description of a plugin's device, with links of unknown speed to all others of it.

    The arguments are fields of `DeviceInfo`; `guessed` names those that nobody has confirmed for
    this device, such as "limits.grid", which `hal info` and `hal doctor` then say.
    """
    return DeviceInfo(
        name=choice.name,
        plugin=choice.plugin,
        description=description,
        fingerprint=fingerprint,
        contract=CONTRACT_VERSION,
        limits=limits,
        spaces=tuple(spaces),
        dtypes=dtypes,
        numeric=numeric,
        formats=tuple(formats),
        features=features,
        links=tuple(Link(peer, "host", 0, 0) for peer in choice.peers),
        declared=declared or {},
        matrix_units=tuple(matrix_units),
        facts={**(facts or {}), **({GUESSED: ", ".join(guessed)} if guessed else {})},
    )
