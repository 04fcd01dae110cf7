from collections.abc import Sequence
from typing import Any

def bind(given: dict[str, Any]) -> None: ...
def capsule(address: int) -> Any: ...
def encode(
    args: Sequence[Any],
    held: dict[int, Any],
    tape: Any,
    generation: int,
    operands: dict[Any, Any],
    scalars: list[float],
) -> tuple[Any, ...] | None: ...
def guards(count: int) -> tuple[int, int, int, int]: ...
def places(
    args: tuple[Any, ...], held: dict[int, Any], tape: Any, generation: int, row: Any
) -> tuple[Any, ...] | None: ...
