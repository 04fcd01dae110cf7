"""PyTorch's place for activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), with the gradients that it would have anyway.

    Nothing is recomputed: what lives between forward and backward is decided for a step as a whole,
    when it is compiled, not by the order in which a script computes it.
    """
    return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Iterable[Callable[..., Any]], segments: int, input: Any, **options: Any
) -> Any:
    """Each function on what the one before gave, as by `checkpoint`."""
    for function in functions:
        input = function(input)
    return input
